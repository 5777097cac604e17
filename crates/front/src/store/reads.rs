//! One connection to the store for reads, without its socket.
//!
//! All reads that wait at one moment are sent as one transaction:
//!
//! ```text
//! MULTI   HMGET <records> watermark chain store   [ROLE]   [SELECT n]   reads …   [SELECT 0]   EXEC
//! ```
//!
//! A read's reply is used if two conditions hold: the records name the epoch that the head named, and the store has
//! applied everything that the head requires. If the head has not answered a client's question yet, the client gets the
//! epoch and the watermark in the records. The records must also name the process to which this connection leads. A
//! replica has the same records, but may lack effects that have no order. (For a read from a replica, the head's answer
//! covers these effects too, and the records must name the replica's master.) From time to time the store is also asked
//! for its replicas. After each transaction the connection is set to database 0, whatever the transaction's outcome
//! was. So the front need not remember which database an aborted transaction has selected. No client gets an error from
//! here. The read becomes a bypass; if the read itself is wrong, the store answers the bypass with the error again.
//!
//! Invariants: at most one reply to one read is held in memory at a time. Each client whose reads were taken is told
//! once: either that all its reads are complete, or that the rest will not be read. An unexpected reply ends the
//! connection.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use pmnet_resp::{ReplyLimits, parse_integer, read, write_command};
use pmnet_wire::StoreName;
use pmnet_wire::command::Protocol;

use super::StoreAddress;
use super::identity::{ASK_RUN_ID, Found, Match, NO_RUN_ID, Own, ask_owner, owner_of, run_id_of};
use super::line::{ELSEWHERE, Line, UNASKED};
use crate::client::{BATCH_REPLY_BYTES_MAX, Freshness, StoreRead, Unread, says_busy};
use crate::limits::BULK_BYTES_MAX;
use crate::shell::socket::Unwritten;
use crate::upstream::Time;

/// Maximum number of transactions under way on one connection.
pub(crate) const TRANSACTIONS_MAX: usize = 4;
/// Number of reads in a transaction from which on no further client's reads are added.
const READS_PER_TRANSACTION: usize = 512;
/// Longest first line of an array, and longest error line, in bytes.
const LINE_BYTES_MAX: usize = 1024;
/// Bytes of a reply's framing that are not counted.
const FRAMING_BYTES: usize = 64;

/// Limits of the store's reply to one read.
const REPLIES: ReplyLimits = ReplyLimits {
    line_bytes: LINE_BYTES_MAX,
    bulk_bytes: BULK_BYTES_MAX,
    reply_bytes: BATCH_REPLY_BYTES_MAX + FRAMING_BYTES,
};

/// The client that reads: its index, its connection, the number of its batch, and the time of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reader {
    pub(crate) client: usize,
    pub(crate) connection: u64,
    pub(crate) batch: u64,
    pub(crate) since: Time,
}

/// A result for a client.
#[derive(Debug)]
pub(crate) enum Told {
    /// Epoch and watermark of the store, for a client that did not know the head's answer at submission.
    Record(Reader, u32, u64),
    /// The reply to the client's next read.
    Reply(Reader, Bytes),
    /// The rest of the batch is not read.
    Unread(Reader, Unread),
    /// The replicas that the store names; empty if it names none.
    Replicas(Vec<SocketAddr>),
}

/// Reads of one client that wait for a transaction, or for their replies.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) client: usize,
    pub(crate) read: StoreRead,
    /// The time since which the reads have waited.
    pub(crate) since: Time,
    /// Whether the reads were in a transaction that the store refused because of another client's command.
    pub(crate) again: bool,
}

impl Queued {
    pub(crate) fn reader(&self) -> Reader {
        Reader {
            client: self.client,
            connection: self.read.connection,
            batch: self.read.batch,
            since: self.since,
        }
    }
}

/// The purpose of one command of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Record,
    Role,
    Select,
    /// A read of the member with this index.
    Read(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The reply to MULTI comes next.
    Multi,
    /// The next reply says that the step with this index is queued.
    Queue(usize),
    /// The head of EXEC's reply comes next.
    Exec,
    /// The reply to the step with this index comes next.
    Reply(usize),
}

struct Member {
    waiting: Queued,
    /// Number of replies still to come.
    left: usize,
    bytes: usize,
    /// Whether the client has been told that the rest is not read.
    told: bool,
    /// Whether the store refused one of the client's commands.
    refused: bool,
}

struct Round {
    members: Vec<Member>,
    steps: Vec<Step>,
    phase: Phase,
    /// Whether the last SELECT succeeded.
    selected: bool,
    /// Whether the store refused ROLE.
    no_role: bool,
}

/// A connection to the store for reads.
pub(crate) struct ReadsLine {
    /// The questions on this connection are those of the greeting. The steps of transactions are recognized by their
    /// order.
    line: Line<Own>,
    /// Run id of the master, if the connection leads to a replica; `None`: it leads to the master itself.
    replica_of: Option<String>,
    protocol: Protocol,
    found: Found,
    transactions: VecDeque<Round>,
    /// Whether a transaction was answered.
    pub(crate) proven: bool,
    /// The store's BUSY error, if it has sent one.
    pub(crate) busy: Option<Bytes>,
}

impl ReadsLine {
    pub(crate) fn new(
        store: &StoreAddress,
        records: &str,
        protocol: Protocol,
        replica_of: Option<String>,
    ) -> ReadsLine {
        let mut line = Line::new(store, REPLIES);
        line.log_in(store, Own::Setting);
        if protocol == Protocol::Resp3 {
            line.ask(Own::Setting, &["HELLO", "3"]);
        }
        line.ask(Own::Info, &ASK_RUN_ID);
        // A replica names its master in the record of each transaction, so it is not asked for the owner.
        if replica_of.is_none() {
            line.ask(Own::Owner, &ask_owner(records));
        }
        ReadsLine {
            line,
            replica_of,
            protocol,
            found: Found::default(),
            transactions: VecDeque::new(),
            proven: false,
            busy: None,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.line.address
    }

    /// Whether the identity of the store at the other end is known.
    pub(crate) fn is_known(&self) -> bool {
        self.line.asked().is_empty()
    }

    /// Returns the run id of the store at the other end, or of its master if it is a replica; `None`: not
    /// known yet.
    pub(crate) fn leads_to(&self) -> Option<&str> {
        let found = Some(&self.found.run_id).filter(|_| self.is_known());
        self.replica_of.as_ref().or(found).map(|run_id| &run_id[..])
    }

    /// Returns the time since which the oldest read of the transactions has been waiting.
    pub(crate) fn oldest(&self) -> Option<Time> {
        let members = &self.transactions.front()?.members;
        members.iter().map(|member| member.waiting.since).min()
    }

    /// Whether a further transaction may be begun.
    pub(crate) fn has_room(&self) -> bool {
        self.is_known() && self.transactions.len() < TRANSACTIONS_MAX
    }

    /// Begins a transaction for the waiting reads, up to the bound. `asks_role`: whether the store must name its
    /// replicas.
    pub(crate) fn begin(&mut self, records: &str, asks_role: bool, waiting: &mut VecDeque<Queued>) {
        let out = self.line.outbox();
        write_command(out, &["MULTI"]);
        write_command(out, &["HMGET", records, "watermark", "chain", "store"]);
        let (mut steps, mut members) = (vec![Step::Record], Vec::new());
        if asks_role {
            write_command(out, &["ROLE"]);
            steps.push(Step::Role);
        }
        let mut database = 0;
        while steps.len() < READS_PER_TRANSACTION
            && let Some(next) = waiting.pop_front()
        {
            if database != next.read.database {
                database = next.read.database;
                write_command(out, &["SELECT", &database.to_string()]);
                steps.push(Step::Select);
            }
            out.extend_from_slice(&next.read.commands);
            steps.extend(std::iter::repeat_n(
                Step::Read(members.len()),
                next.read.count,
            ));
            members.push(Member {
                left: next.read.count,
                waiting: next,
                bytes: 0,
                told: false,
                refused: false,
            });
        }
        if database != 0 {
            write_command(out, &["SELECT", "0"]);
            steps.push(Step::Select);
        }
        write_command(out, &["EXEC"]);
        self.transactions.push_back(Round {
            members,
            steps,
            phase: Phase::Multi,
            selected: true,
            no_role: false,
        });
    }

    /// Takes bytes from the store. Reads that must be repeated in another transaction are added to `again`.
    ///
    /// # Errors
    /// The reason why the connection is unusable. The caller must then call [`ReadsLine::end`], which tells the
    /// clients.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        name: Option<&StoreName>,
        told: &mut Vec<Told>,
        again: &mut VecDeque<Queued>,
    ) -> Result<(), String> {
        self.line.receive(bytes);
        while !self.line.inbox().is_empty() {
            let exec = self
                .transactions
                .front()
                .is_some_and(|transaction| transaction.phase == Phase::Exec);
            let value = if self.is_known() && exec {
                let Some(line) = line(self.line.inbox())? else {
                    return Ok(());
                };
                self.line.take(line)
            } else {
                match self.line.next() {
                    Ok(None) => return Ok(()),
                    Ok(Some(value)) => value,
                    Err(error) => {
                        self.too_large(told);
                        return Err(error.to_string());
                    }
                }
            };
            if says_busy(&value) {
                self.busy = Some(value.clone());
            }
            if let Some(own) = self.line.answered() {
                self.greeted(own, &value, name)?;
                continue;
            }
            let Some(transaction) = self.transactions.front_mut() else {
                return Err(UNASKED.into());
            };
            let run_id = self.replica_of.as_ref().unwrap_or(&self.found.run_id);
            if transaction.take(&value, run_id, self.protocol, told)? {
                self.proven = true;
                if let Some(over) = self.transactions.pop_front() {
                    over.finish(told, again);
                }
            }
        }
        Ok(())
    }

    fn greeted(&mut self, own: Own, value: &[u8], name: Option<&StoreName>) -> Result<(), String> {
        if value.starts_with(b"-") {
            return Err(format!(
                "it said {}",
                String::from_utf8_lossy(value.trim_ascii())
            ));
        }
        match own {
            Own::Setting | Own::Marker | Own::Login | Own::Client | Own::Fence => return Ok(()),
            Own::Info => {
                self.found.run_id = run_id_of(value).ok_or(NO_RUN_ID)?;
                return Ok(());
            }
            Own::Owner => self.found.owner = owner_of(value),
        }
        match name.map(|name| self.found.compare(name)) {
            Some(Match::Same) => Ok(()),
            _ => Err(ELSEWHERE.into()),
        }
    }

    /// A reply is longer than allowed. The client of the read must use a bypass.
    fn too_large(&mut self, told: &mut Vec<Told>) {
        if let Some(transaction) = self.transactions.front_mut()
            && let Phase::Reply(at) = transaction.phase
            && let Some(Step::Read(member)) = transaction.steps.get(at)
        {
            transaction.members[*member].unread(Unread::Large, told);
        }
    }

    /// Gives the connection up, and tells all clients whose reads are in its transactions.
    pub(crate) fn end(self, told: &mut Vec<Told>) {
        for transaction in self.transactions {
            for mut member in transaction.members {
                member.unread(Unread::Unfit, told);
            }
        }
    }
}

impl Unwritten for ReadsLine {
    fn unwritten(&self) -> &[u8] {
        self.line.unwritten()
    }

    fn wrote(&mut self, count: usize) {
        self.line.wrote(count);
    }
}

impl Member {
    fn unread(&mut self, why: Unread, told: &mut Vec<Told>) {
        if !self.told && self.left > 0 {
            self.told = true;
            told.push(Told::Unread(self.waiting.reader(), why));
        }
    }

    fn reply(&mut self, value: Bytes, told: &mut Vec<Told>) {
        self.bytes += value.len();
        if self.bytes > BATCH_REPLY_BYTES_MAX {
            return self.unread(Unread::Large, told);
        }
        self.left -= 1;
        told.push(Told::Reply(self.waiting.reader(), value));
    }
}

impl Round {
    /// Takes the next value from the store. EXEC's reply is taken in steps: first its head, then each of its parts.
    /// Returns whether the value was the last value of the transaction. `run_id`: the run id of the store at the other
    /// end, or of its master if that store is a replica.
    ///
    /// # Errors
    /// The reply is unexpected, or the records belong to another store.
    fn take(
        &mut self,
        value: &Bytes,
        run_id: &str,
        protocol: Protocol,
        told: &mut Vec<Told>,
    ) -> Result<bool, String> {
        let odd = || {
            let text = String::from_utf8_lossy(&value[..value.len().min(FRAMING_BYTES)]);
            format!("it said {:?}", text.trim_end())
        };
        match self.phase {
            Phase::Multi if value == "+OK\r\n" => self.phase = Phase::Queue(0),
            Phase::Multi => return Err(odd()),
            Phase::Queue(at) => {
                match self.steps[at] {
                    _ if value == "+QUEUED\r\n" => {}
                    // A busy store will run no command of the transaction.
                    _ if says_busy(value) => {
                        for member in &mut self.members {
                            member.refused = true;
                        }
                    }
                    Step::Read(member) if value.starts_with(b"-") => {
                        self.members[member].refused = true;
                    }
                    Step::Role if value.starts_with(b"-") => self.no_role = true,
                    _ => return Err(odd()),
                }
                self.phase = match at + 1 < self.steps.len() {
                    true => Phase::Queue(at + 1),
                    false => Phase::Exec,
                };
            }
            Phase::Exec => {
                if self.no_role {
                    told.push(Told::Replicas(Vec::new()));
                }
                let refused = self.no_role || self.members.iter().any(|member| member.refused);
                if refused && value.starts_with(b"-EXECABORT") {
                    return Ok(true);
                }
                let count = value
                    .strip_prefix(b"*")
                    .and_then(|rest| parse_integer(rest.strip_suffix(b"\r\n")?));
                if refused || count != i64::try_from(self.steps.len()).ok() {
                    return Err(odd());
                }
                self.phase = Phase::Reply(0);
            }
            Phase::Reply(at) => {
                if !is_reply(value, protocol) {
                    return Err(odd());
                }
                match self.steps[at] {
                    Step::Record => {
                        let (epoch, watermark, store) = record(value).ok_or_else(odd)?;
                        if store != run_id.as_bytes() {
                            return Err("the pmnet server uses another store now".into());
                        }
                        for member in &mut self.members {
                            match member.waiting.read.freshness {
                                Freshness::Told => told.push(Told::Record(
                                    member.waiting.reader(),
                                    epoch,
                                    watermark,
                                )),
                                Freshness::Known { epoch: of, need } => {
                                    if epoch != of || watermark < need {
                                        member.unread(Unread::Unfit, told);
                                    }
                                }
                            }
                        }
                    }
                    Step::Role => told.push(Told::Replicas(replicas(value))),
                    Step::Select => self.selected = value == "+OK\r\n",
                    Step::Read(member) => {
                        let member = &mut self.members[member];
                        if value.starts_with(b"-") || value.starts_with(b"!") || !self.selected {
                            member.unread(Unread::Unfit, told);
                        }
                        if !member.told {
                            member.reply(value.clone(), told);
                        }
                    }
                }
                if at + 1 == self.steps.len() {
                    return Ok(true);
                }
                self.phase = Phase::Reply(at + 1);
            }
        }
        Ok(false)
    }

    /// Ends the transaction. Reads that failed because of another client's command are repeated once.
    fn finish(self, told: &mut Vec<Told>, again: &mut VecDeque<Queued>) {
        for mut member in self.members.into_iter().rev() {
            if member.told || member.left == 0 {
                continue;
            }
            if member.refused || member.waiting.again {
                member.unread(Unread::Unfit, told);
            } else {
                member.waiting.again = true;
                again.push_front(member.waiting);
            }
        }
    }
}

/// Whether a value may be the reply to a command in this version of RESP. Pushes and attributes are not
/// replies.
fn is_reply(value: &[u8], protocol: Protocol) -> bool {
    let of_resp2 = b"+-:$*".as_slice();
    let kinds = match protocol {
        Protocol::Resp2 => of_resp2,
        Protocol::Resp3 => b"+-:$*_#,(!=%~".as_slice(),
    };
    value.first().is_some_and(|kind| kinds.contains(kind))
}

/// Returns the end of the line at the head of `bytes`, if the line is complete.
fn line(bytes: &[u8]) -> Result<Option<usize>, String> {
    let end = bytes
        .windows(2)
        .take(LINE_BYTES_MAX)
        .position(|two| two == b"\r\n");
    match end {
        None if bytes.len() > LINE_BYTES_MAX => Err("it sent a line without an end".into()),
        end => Ok(end.map(|end| end + 2)),
    }
}

/// Returns the replicas in a master's reply to ROLE. A replica whose address is a host name is left out,
/// because resolving it would block.
fn replicas(value: &[u8]) -> Vec<SocketAddr> {
    let parts = read::elements(value).unwrap_or_default();
    let is_master = parts.first().and_then(|role| read::bulk(role)) == Some(b"master");
    let all = parts.get(2).and_then(|all| read::elements(all));
    let all = all.filter(|_| is_master).unwrap_or_default();
    let address = |replica: &[u8]| {
        let parts = read::elements(replica)?;
        let text = |at: usize| std::str::from_utf8(read::bulk(parts.get(at)?)?).ok();
        Some(SocketAddr::new(
            text(0)?.parse().ok()?,
            text(1)?.parse().ok()?,
        ))
    };
    all.into_iter().filter_map(address).collect()
}

/// Returns epoch, watermark, and the store in which the epoch began, from the reply about the records.
fn record(value: &[u8]) -> Option<(u32, u64, &[u8])> {
    let [watermark, chain, store] = read::elements(value)?[..] else {
        return None;
    };
    let watermark = read::bulk(watermark)?.try_into().ok()?;
    let (epoch, _) = read::bulk(chain)?.split_first_chunk()?;
    let epoch = u32::from_be_bytes(*epoch);
    Some((epoch, u64::from_be_bytes(watermark), read::bulk(store)?))
}
