//! A server whose store is a program. The program takes batches, stores each batch with its rows, and confirms each
//! batch (`docs/use/programs.md`).
//!
//! Loop, machine and rules are those of every server: [`serve`] runs on a thread of its own, with a store whose steps
//! the program carries out. Invariants: there is one batch at a time. A device or a client gets a confirmation only
//! after the program has confirmed the batch. The program stores its own data and the rows of the batch in one
//! transaction. The next start needs exactly these rows.
//!
//! ```no_run
//! # use pmnet_server::program::{Kind, Program};
//! # use pmnet_server::{ServerConfig, serve::ServeConfig};
//! # use std::time::Duration;
//! # fn begin() {} fn apply(_: &[u8]) -> Vec<u8> { Vec::new() } fn put(_: &[u8], _: Option<&[u8]>) {} fn commit() {}
//! # fn stored() -> Vec<(Vec<u8>, bytes::Bytes)> { Vec::new() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = ServeConfig::new("127.0.0.1:51500".parse()?, ServerConfig::new(0));
//! let mut program = Program::open(config, stored())?;
//! loop {
//!     let Some(batch) = program.next(Duration::from_secs(1))? else { continue };
//!     begin();
//!     for (at, item) in batch.items.iter().enumerate() {
//!         let reply = apply(&item.payload);
//!         if item.kind != Kind::Update {
//!             program.reply(at, &reply)?;
//!         }
//!     }
//!     for (key, value) in program.rows()? {
//!         put(key, value.as_deref());
//!     }
//!     commit();
//!     program.done(batch.number)?;
//! }
//! # }
//! ```

mod handover;
mod rows;

pub use rows::{BLOB_BYTES_MAX, KEY_BYTES_MAX, RowsError};

use crate::serve::{DriverError, Ended, ServeConfig, serve};
use crate::store::{RecordChange, RecordKey, Source};
use bytes::Bytes;
use handover::{Answer, Handover, Pulled, Slot, Work};
use pmnet_proto::Peer;
use pmnet_udp::{Stop, StopTrigger};
use pmnet_wire::MESSAGE_BYTES_MAX;
use pmnet_wire::program::REPLY_MARK;
use rows::{CRC_BYTES, Rows};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum length of a reply, in bytes.
pub const REPLY_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An update. The client that sent the update was already told that the update is durable, and gets no reply.
    Update,
    /// A bypass that may change the program's state. The client that sent the bypass gets a reply.
    Bypass,
    /// A bypass that only reads. The client that sent the bypass gets a reply.
    Read,
}

/// One update or bypass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The kind of the item.
    pub kind: Kind,
    /// The client's session, and the position of the item in the session.
    pub source: Source,
    /// The client's bytes.
    pub payload: Bytes,
}

/// The program's next work, which the program must store in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Number of the batch, counted from 1 in each process. [`Program::done`] needs it.
    pub number: u64,
    /// Updates or bypasses, in the order in which they take effect. If the batch has no items, the program must only
    /// store rows.
    pub items: Vec<Item>,
}

/// The reason why a call was refused.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The rows that the program passed cannot be used.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// The socket could not be opened.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The shard has stopped, or the server was closed. The text has advice.
    #[error("the server has ended: {0}")]
    Stopped(String),
    /// The batch with this number must be confirmed before the next batch can be taken.
    #[error("batch {0} is not confirmed yet: one batch at a time")]
    Unconfirmed(u64),
    /// The program has not taken a batch.
    #[error("there is no batch: take one first")]
    NoBatch,
    /// The batch was already confirmed or given back.
    #[error("batch {0} was confirmed or given back before")]
    Twice(u64),
    /// The batch is not the present batch.
    #[error("batch {given} is not the present one, which is {present}")]
    Order {
        /// The number that the program passed.
        given: u64,
        /// The number of the present batch.
        present: u64,
    },
    /// The batch has no item with this index.
    #[error("the batch has no item {0}")]
    NoItem(usize),
    /// An update has no reply.
    #[error("item {0} is an update: it takes no reply")]
    NoReplyWanted(usize),
    /// The item already has a reply.
    #[error("item {0} has its reply already")]
    RepliedTwice(usize),
    /// A bypass has no reply.
    #[error("item {0} is a bypass and has no reply yet")]
    NoReply(usize),
    /// The reply is too long.
    #[error("a reply of {0} bytes: the longest has {REPLY_BYTES_MAX}")]
    ReplyTooLong(usize),
    /// The program has already requested the rows, so a later reply would not be in them.
    #[error("the rows of the batch were asked for already: give the replies before")]
    RowsTaken,
    /// The program has not requested the rows of the batch, so the batch cannot be confirmed.
    #[error(
        "the rows of batch {0} were not asked for: without them in the program's transaction, its updates would be applied twice \
         after a restart"
    )]
    RowsNotTaken(u64),
    /// All rows together are too long for one blob.
    #[error("all rows together are longer than {BLOB_BYTES_MAX} bytes: store them row by row")]
    BlobTooLong,
}

/// The program's part of the present batch.
#[derive(Debug)]
struct Present {
    number: u64,
    kinds: Vec<Kind>,
    slots: Vec<Slot>,
    /// The reply to each item, if the program has given it.
    replies: Vec<Option<Vec<u8>>>,
    records: Vec<RecordChange>,
    /// The rows and the replies, after the program has requested the rows.
    sealed: Option<(Vec<RecordChange>, Vec<Bytes>)>,
}

/// The loop's handle to the handover. The handle is dropped when the loop ends, in whatever way. By the drop the
/// program learns that the loop has ended.
struct Loop(Arc<Handover>);

impl Drop for Loop {
    fn drop(&mut self) {
        self.0.end("the server's thread has died".into());
    }
}

/// A server of one shard whose store is the calling program.
#[derive(Debug)]
pub struct Program {
    handover: Arc<Handover>,
    stop: StopTrigger,
    thread: Option<JoinHandle<()>>,
    address: Peer,
    present: Option<Present>,
    last: u64,
}

impl Program {
    /// Opens the server with the rows that the program has stored. If the program has never stored rows, pass none.
    ///
    /// # Errors
    /// [`ProgramError::Rows`] or [`ProgramError::Io`].
    pub fn open(
        config: ServeConfig,
        rows: impl IntoIterator<Item = (RecordKey, Bytes)>,
    ) -> Result<Program, ProgramError> {
        let rows = Rows::open(config.server.shard, rows)?;
        Program::start(config, rows)
    }

    /// Opens the server with the blob that [`Program::blob`] returned for the last stored batch. Bytes after the blob
    /// are ignored. If `blob` has only zeros, the program has not stored a blob yet.
    ///
    /// # Errors
    /// [`ProgramError::Rows`] or [`ProgramError::Io`].
    pub fn open_blob(config: ServeConfig, blob: &Bytes) -> Result<Program, ProgramError> {
        let rows = Rows::open_blob(config.server.shard, blob)?;
        Program::start(config, rows)
    }

    fn start(config: ServeConfig, rows: Rows) -> Result<Program, ProgramError> {
        let handover = Arc::new(Handover::new(rows)?);
        let (stop, trigger) = Stop::new()?;
        let (bound, address) = mpsc::channel();
        let served = Loop(handover.clone());
        let run = move || {
            let store = Box::new(Pulled::new(served.0.clone()));
            let ended = serve(
                config,
                store,
                None,
                &stop,
                |_, _| (),
                |address, _| {
                    // The send fails if the receiver has given up.
                    let _ = bound.send(Ok(address));
                },
            );
            let why = match ended {
                Ok(Ended::Asked | Ended::TurnIsOver) => "it was closed".to_owned(),
                Err(DriverError::Io(error)) => {
                    let text = error.to_string();
                    let _ = bound.send(Err(error));
                    text
                }
                Err(DriverError::Stopped(stop)) => stop.0,
            };
            served.0.end(why);
        };
        let thread = std::thread::Builder::new()
            .name("pmnet-server".into())
            .spawn(run)?;
        let address = address
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the server's thread has died")));
        let address = address.inspect_err(|_| handover.leave());
        Ok(Program {
            address: address?,
            handover,
            stop: trigger,
            thread: Some(thread),
            present: None,
            last: 0,
        })
    }

    /// Returns the server's UDP address. The last device of the chain sends to this address.
    #[must_use]
    pub const fn address(&self) -> Peer {
        self.address
    }

    /// Returns a descriptor that can be polled. The descriptor is readable while [`Program::next`] has a result.
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        self.handover.ready().as_raw_fd()
    }

    /// Takes the next batch, or waits for it. `None`: no batch came within `wait`, or a signal arrived.
    ///
    /// # Errors
    /// [`ProgramError::Unconfirmed`] or [`ProgramError::Stopped`].
    pub fn next(&mut self, wait: Duration) -> Result<Option<Batch>, ProgramError> {
        if let Some(present) = &self.present {
            return Err(ProgramError::Unconfirmed(present.number));
        }
        let mut work = self.handover.take().map_err(ProgramError::Stopped)?;
        if work.is_none() && !wait.is_zero() {
            let timeout = Timespec::try_from(wait).ok();
            let ready = self.handover.ready();
            match poll(&mut [PollFd::new(&ready, PollFlags::IN)], timeout.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => return Ok(None),
                Err(error) => return Err(ProgramError::Io(error.into())),
            }
            work = self.handover.take().map_err(ProgramError::Stopped)?;
        }
        Ok(work.map(|work| self.begin(work)))
    }

    fn begin(&mut self, work: Work) -> Batch {
        self.last += 1;
        let Work {
            items,
            slots,
            records,
        } = work;
        self.present = Some(Present {
            number: self.last,
            kinds: items.iter().map(|item| item.kind).collect(),
            replies: items.iter().map(|_| None).collect(),
            slots,
            records,
            sealed: None,
        });
        Batch {
            number: self.last,
            items,
        }
    }

    /// Sets the reply to a bypass of the present batch. `item` is the index of the bypass, counted from 0.
    ///
    /// # Errors
    /// [`ProgramError`]: there is no such bypass, it already has a reply, the rows were already requested, or the reply
    /// is too long.
    pub fn reply(&mut self, item: usize, reply: &[u8]) -> Result<(), ProgramError> {
        let present = self.present.as_mut().ok_or(ProgramError::NoBatch)?;
        if reply.len() > REPLY_BYTES_MAX {
            return Err(ProgramError::ReplyTooLong(reply.len()));
        }
        match present.kinds.get(item) {
            None => return Err(ProgramError::NoItem(item)),
            Some(Kind::Update) => return Err(ProgramError::NoReplyWanted(item)),
            Some(Kind::Bypass | Kind::Read) => {}
        }
        if present.sealed.is_some() {
            return Err(ProgramError::RowsTaken);
        }
        if present.replies[item].is_some() {
            return Err(ProgramError::RepliedTwice(item));
        }
        // A work with bypasses has no updates. A slot without an item already has its answer.
        let mut asked = present.slots.iter().filter(|slot| slot.answer.is_none());
        let record = asked.nth(item).and_then(|slot| slot.record.as_ref());
        let prefix = record.map_or(&[][..], |(_, prefix)| prefix);
        let mut value = Vec::with_capacity(prefix.len() + 1 + reply.len() + CRC_BYTES);
        value.extend_from_slice(prefix);
        value.push(REPLY_MARK);
        value.extend_from_slice(reply);
        present.replies[item] = Some(value);
        Ok(())
    }

    /// Returns the rows that the program must store in the same transaction as the present batch. `Some` sets the value
    /// of a key, and `None` deletes the row. Each key occurs at most once. If the batch only reads, there are no rows.
    ///
    /// # Errors
    /// [`ProgramError::NoBatch`] or [`ProgramError::NoReply`].
    pub fn rows(&mut self) -> Result<&[RecordChange], ProgramError> {
        let present = self.present.as_mut().ok_or(ProgramError::NoBatch)?;
        if present.sealed.is_none() {
            if let Some(item) = present.unanswered() {
                return Err(ProgramError::NoReply(item));
            }
            let sealed = self.handover.with_rows(|rows| present.seal(rows));
            present.sealed = Some(sealed);
        }
        Ok(present.sealed.as_ref().map_or(&[], |(rows, _)| rows))
    }

    /// Returns all rows, as they are after the present batch, in one blob. The blob is for a program that stores a
    /// single value. The blob takes time and space for all sessions at each batch: about 100 bytes for each session,
    /// and its last reply.
    ///
    /// # Errors
    /// [`ProgramError::NoBatch`], [`ProgramError::NoReply`] or [`ProgramError::BlobTooLong`].
    pub fn blob(&mut self) -> Result<Vec<u8>, ProgramError> {
        let handover = self.handover.clone();
        let rows = self.rows()?;
        handover
            .with_rows(|stored| stored.blob(rows))
            .ok_or(ProgramError::BlobTooLong)
    }

    /// Confirms the present batch: the program has stored it durably, with its rows. The devices may then drop its
    /// entries, and clients get their replies.
    ///
    /// # Errors
    /// [`ProgramError`]: the batch is not the present batch, a reply is missing, the rows were not requested, or the
    /// server has ended.
    pub fn done(&mut self, number: u64) -> Result<(), ProgramError> {
        let mut present = self.take_present(number)?;
        let without_rows = present.seal_of_reads();
        let Some((rows, replies)) = present.sealed.take().or(without_rows) else {
            let error = match present.unanswered() {
                Some(item) => ProgramError::NoReply(item),
                None => ProgramError::RowsNotTaken(number),
            };
            self.present = Some(present);
            return Err(error);
        };
        let done = Answer::Done { rows, replies };
        self.handover.answer(done).map_err(ProgramError::Stopped)
    }

    /// Gives the present batch back. The program must have executed no part of the batch, and must not execute it
    /// later. The batch is offered again, perhaps with more items. If a program does not know whether its transaction
    /// took place, it must not call this function. Instead, the program must close the server, and open it with the
    /// rows that it finds.
    ///
    /// # Errors
    /// [`ProgramError`]: the batch is not the present batch, or the server has ended.
    pub fn undone(&mut self, number: u64) -> Result<(), ProgramError> {
        self.take_present(number)?;
        self.handover
            .answer(Answer::Undone)
            .map_err(ProgramError::Stopped)
    }

    fn take_present(&mut self, number: u64) -> Result<Present, ProgramError> {
        let taken = self.present.take_if(|present| present.number == number);
        taken.ok_or_else(|| match &self.present {
            _ if (1..=self.last).contains(&number) => ProgramError::Twice(number),
            Some(present) => ProgramError::Order {
                given: number,
                present: present.number,
            },
            None => ProgramError::NoBatch,
        })
    }
}

impl Present {
    /// Returns the index of the first bypass without a reply.
    fn unanswered(&self) -> Option<usize> {
        let asked = self.kinds.iter().zip(&self.replies);
        let mut asked = asked.enumerate();
        asked
            .find(|(_, (kind, reply))| **kind != Kind::Update && reply.is_none())
            .map(|(at, _)| at)
    }

    /// Returns the rows, and one reply for each slot.
    fn seal(&mut self, stored: &Rows) -> (Vec<RecordChange>, Vec<Bytes>) {
        let mut given = std::mem::take(&mut self.replies).into_iter().flatten();
        let records = std::mem::take(&mut self.records).into_iter();
        let mut changes: Vec<(RecordKey, Option<Vec<u8>>)> = records
            .map(|(key, value)| (key, value.map(Vec::from)))
            .collect();
        let mut replies = Vec::with_capacity(self.slots.len());
        // For each reply that is recorded: its index, the index of its change, and the length of the prefix in that
        // change.
        let mut recorded = Vec::new();
        for slot in &self.slots {
            let prefix = slot.record.as_ref().map_or(&[][..], |(_, prefix)| prefix);
            let value = match slot.answer {
                Some(answer) => [prefix, answer].concat(),
                None => given.next().unwrap_or_default(),
            };
            match &slot.record {
                Some((key, _)) => {
                    recorded.push((replies.len(), changes.len(), prefix.len()));
                    changes.push((key.clone(), Some(value)));
                    replies.push(Bytes::new());
                }
                None => replies.push(value.into()),
            }
        }
        let rows = stored.sealed(changes);
        for (reply, row, prefix) in recorded {
            // The reply is a part of its row, so it need not be copied.
            if let Some(row) = &rows[row].1 {
                replies[reply] = row.slice(prefix..row.len() - CRC_BYTES);
            }
        }
        (rows, replies)
    }

    /// Returns the replies of a batch that only reads. Such a batch has no rows to request.
    fn seal_of_reads(&mut self) -> Option<(Vec<RecordChange>, Vec<Bytes>)> {
        let reads = self.sealed.is_none()
            && self.records.is_empty()
            && self.slots.iter().all(|slot| slot.record.is_none())
            && self.unanswered().is_none();
        reads.then(|| self.seal(&Rows::default()))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.handover.leave();
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            // The thread has already printed its panic message.
            let _ = thread.join();
        }
    }
}
