//! `Store::execute` on Redis (module text, "A request that changes state").
//!
//! Requests are sent in groups, each group with one write: reads unchanged, and state-changing requests as calls of the
//! request script. A request that needs MULTI is a group of its own. The replies of a group are returned after the
//! whole group has become durable.

use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use pmnet_resp::read::{elements, text};
use pmnet_resp::{parse_integer, reply, write_bulk, write_header};
use pmnet_server::{RecordChange, RecordKey, Request, StoreError};
use pmnet_wire::StoreName;
use pmnet_wire::command::{Commands, Form};
use pmnet_wire::guard::sets_eviction;

use crate::{PACK_HEADER_BYTES_MAX, REPLY_BYTES_MAX, REPLY_TOO_LONG, bounded_reply, warn_too_long};

use super::cluster::{one_slot, probe};
use super::commands::{CommandTable, is_flush, runs_code, upper};
use super::config::{WaitFor, setting};
use super::exact::is_script_flush;
use super::own_keys::OwnKeys;
use super::pending::{Pending, add_read, expect_ok, read_pending};
use super::plan::{Item, Plan, selected};
use super::record::unrecorded;
use super::together::{Asked, Together};
use super::transaction::{Items, Outcome, Torn, Transaction};
use super::{LOST_REPLY, Link, RedisStore};

/// A group is sent as soon as its commands have this many bytes.
const GROUP_BYTES_MAX: usize = 1 << 20;
/// A group is sent as soon as it has this many requests.
const GROUP_REQUESTS_MAX: usize = 1024;
/// Maximum number of scripts of `EVAL_RO` that this process remembers as kept in Redis. If there are more scripts, the
/// process forgets all of them, and then checks each script again.
const READ_SCRIPTS_MAX: usize = 10_000;
/// Maximum number of scripts that Redis keeps for clients; `request.lua` has the same bound.
const SCRIPTS_MAX: usize = 10_000;
/// Lua script that keeps the text of a client's script.
const KEEP_LUA: &str = include_str!("keep.lua");
/// Reply to a transaction that has a command which Redis refused.
const EXECABORT: &[u8] = b"-EXECABORT Transaction discarded because of previous errors.\r\n";
/// Maximum number of times that a transaction is sent again without commands that Redis refused to queue.
const RESENDS_MAX: usize = 4;

/// Returns whether the arguments of this `EVAL_RO` have a number of keys that Redis would accept.
fn counts_keys(arguments: &[&[u8]]) -> bool {
    let count = arguments.get(2).and_then(|count| parse_integer(count));
    let count = count.and_then(|count| usize::try_from(count).ok());
    count.is_some_and(|count| count <= arguments.len() - 3)
}

impl RedisStore {
    pub(super) fn execute_all(
        &mut self,
        link: &mut Link,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        if requests.iter().any(|request| request.record.is_some()) {
            link.may_write()?;
        }
        let mut group = Vec::new();
        let mut together = Together::default();
        for request in requests {
            let full =
                link.connection.out().len() >= GROUP_BYTES_MAX || group.len() >= GROUP_REQUESTS_MAX;
            if full {
                self.finish_group(link, &mut group, replies)?;
            }
            let recorded = request.record.is_some();
            let plan = self.plan(link, &request.payload, recorded, &mut group, replies)?;
            if let Some((field, prefix)) = &request.record
                && self.home.is_none()
                && !plan.runs_in_script(&link.commands)
            {
                if !together.takes(&plan, &link.commands) {
                    self.finish_together(link, &mut together, replies)?;
                }
                if together.takes(&plan, &link.commands) {
                    self.finish_group(link, &mut group, replies)?;
                    together.add(Asked {
                        plan,
                        field,
                        prefix,
                    });
                    continue;
                }
            } else {
                self.finish_together(link, &mut together, replies)?;
            }
            match (&request.record, plan.finished()) {
                (None, Some(reply)) => group.push(Pending::Done(reply.into())),
                (None, None) => {
                    if plan
                        .runs()
                        .any(|(name, arguments)| names_scripts(name, arguments))
                    {
                        self.finish_group(link, &mut group, replies)?;
                        self.know_scripts(link, &plan)?;
                    }
                    let bodies = self.new_read_scripts(&plan);
                    if !bodies.is_empty() {
                        self.finish_group(link, &mut group, replies)?;
                        self.keep_scripts(link, &bodies)?;
                    }
                    group.push(add_read(link, &plan, self.own_keys()));
                }
                (Some((field, prefix)), _) => {
                    if plan.runs_in_script(&link.commands) {
                        group.push(self.add_script(link, &plan, field, prefix));
                    } else {
                        self.finish_group(link, &mut group, replies)?;
                        self.know_scripts(link, &plan)?;
                        let reply = self.run_transaction(link, plan, field, prefix)?;
                        replies.push(reply);
                    }
                }
            }
        }
        self.finish_together(link, &mut together, replies)?;
        self.finish_group(link, &mut group, replies)
    }

    /// Turns a payload into a plan. If Redis must be asked (whether a database exists), the group is finished first.
    fn plan<'a>(
        &mut self,
        link: &mut Link,
        payload: &'a [u8],
        recorded: bool,
        group: &mut Vec<Pending>,
        replies: &mut Vec<Bytes>,
    ) -> Result<Plan<'a>, StoreError> {
        let commands = match Commands::parse(payload) {
            Ok(commands) => commands,
            Err(error) => return Ok(Plan::done(crate::malformed_reply(error).into())),
        };
        match commands.form {
            Form::Barrier | Form::StoreAddress => {
                let mut reply = Vec::new();
                write_bulk(&mut reply, self.name(link).to_string().as_bytes());
                return Ok(Plan::done(reply));
            }
            Form::Single | Form::Pipeline | Form::Transaction | Form::Pack => {}
        }
        if !link.knows_database(commands.database) {
            self.finish_group(link, group, replies)?;
            if let Err(error) = link.try_database(commands.database)? {
                let times = if commands.form == Form::Pipeline {
                    commands.count
                } else {
                    1
                };
                return Ok(Plan::done(
                    format!("-{error}\r\n").into_bytes().repeat(times),
                ));
            }
        }
        let databases = if recorded && commands.form == Form::Transaction {
            self.finish_group_for_selects(link, &commands, group, replies)?
        } else {
            Vec::new()
        };
        let asks = commands.iter().any(|arguments| {
            let mut name = arguments.clone();
            let is_config = |name: &[u8]| name.eq_ignore_ascii_case(b"CONFIG");
            name.next().is_some_and(is_config) && {
                let all: Vec<&[u8]> = arguments.collect();
                sets_eviction(all.len(), |index| all[index])
            }
        });
        let unlimited = asks && {
            self.finish_group(link, group, replies)?;
            setting(&mut link.connection, "maxmemory")?.as_deref() == Some("0")
        };
        let by_slots = self.home.is_some();
        let build = |table: &CommandTable| match commands.form {
            Form::Pack => Plan::of_pack(&commands, table, unlimited, by_slots),
            _ => Plan::new(&commands, table, unlimited, &databases, recorded),
        };
        let plan = build(&link.commands);
        let names = plan.runs().map(|(name, _)| name);
        let unknown: Vec<_> = names
            .filter(|name| !name.is_empty() && !link.commands.has(name))
            .cloned()
            .collect();
        if unknown.is_empty() {
            return Ok(plan);
        }
        // The command was loaded later with a module, or was renamed, or does not exist.
        self.finish_group(link, group, replies)?;
        for name in unknown {
            let reply = link.connection.call(&[b"COMMAND", b"INFO", &name])?;
            link.commands.learn(&name, &reply);
        }
        Ok(build(&link.commands))
    }

    /// Returns the databases that the transaction selects and that exist in Redis. If Redis has to be asked, the group
    /// is finished first.
    fn finish_group_for_selects(
        &mut self,
        link: &mut Link,
        commands: &Commands<'_>,
        group: &mut Vec<Pending>,
        replies: &mut Vec<Bytes>,
    ) -> Result<Vec<u32>, StoreError> {
        let mut databases = Vec::new();
        for arguments in commands.iter() {
            let arguments: Vec<&[u8]> = arguments.collect();
            let Some(database) = selected(&upper(arguments[0]), &arguments) else {
                continue;
            };
            if !link.knows_database(database) {
                self.finish_group(link, group, replies)?;
                if link.try_database(database)?.is_err() {
                    continue;
                }
            }
            databases.push(database);
        }
        Ok(databases)
    }

    /// Returns the facts by which fronts reach the store directly and recognize it. Fronts get these facts unencrypted,
    /// so the facts contain no password. The address is numeric, because fronts must not wait for a resolver.
    fn name(&self, link: &Link) -> StoreName {
        StoreName {
            address: link.connection.peer,
            run_id: link.facts.run_id.clone(),
            records: String::from_utf8_lossy(&self.hash).into_owned(),
            owner: String::from_utf8_lossy(&link.owner).into_owned(),
            // If replies wait for a sync or for replicas, a plain read may show values that are not durable yet. In a
            // Redis Cluster a transaction cannot have the records beside keys of another slot.
            reads: self.home.is_none()
                && self.url.wait_replicas == 0
                && !link.facts.persistence.waits(WaitFor::Reply),
        }
    }

    pub(super) fn own_keys(&self) -> OwnKeys<'_> {
        OwnKeys {
            records: &self.hash,
            scripts: &self.scripts,
        }
    }

    /// Prepares Redis for a request that names scripts by their digests. Redis may lack a script that pmnet's records
    /// have: the script came by an EVAL or a SCRIPT LOAD inside pmnet's own script, or Redis was restarted. So this
    /// function loads the scripts that the request names.
    fn know_scripts(&self, link: &mut Link, plan: &Plan<'_>) -> Result<(), StoreError> {
        for (name, arguments) in plan.runs().filter(|(name, a)| names_scripts(name, a)) {
            let named = if name == b"SCRIPT" {
                &arguments[2..]
            } else {
                &arguments[1..2]
            };
            for sha in named {
                self.know_script(link, &sha.to_ascii_lowercase())?;
            }
        }
        Ok(())
    }

    /// Returns the texts that an `EVAL_RO` of this process is about to run for the first time.
    fn new_read_scripts<'a>(&mut self, plan: &Plan<'a>) -> Vec<&'a [u8]> {
        let mut bodies = Vec::new();
        for (name, arguments) in plan.runs() {
            if name != b"EVAL_RO" || !counts_keys(arguments) {
                continue;
            }
            if self.read_scripts.len() >= READ_SCRIPTS_MAX {
                self.read_scripts.clear();
            }
            let mut hasher = DefaultHasher::new();
            arguments[1].hash(&mut hasher);
            if self.read_scripts.insert(hasher.finish()) {
                bodies.push(arguments[1]);
            }
        }
        bodies
    }

    /// Keeps these scripts if Redis allows it, so that `EVALSHA` finds them later.
    fn keep_scripts(&self, link: &mut Link, bodies: &[&[u8]]) -> Result<(), StoreError> {
        let most = SCRIPTS_MAX.to_string();
        for body in bodies {
            let reply = link.connection.call(&[
                b"EVAL",
                KEEP_LUA.as_bytes(),
                b"2",
                &self.hash,
                &self.scripts,
                &link.owner,
                body,
                most.as_bytes(),
            ])?;
            if let Some(why) = pmnet_resp::read::error(&reply) {
                tracing::debug!(why, "the text of a script that reads was not kept");
            }
        }
        Ok(())
    }

    fn know_script(&self, link: &mut Link, sha: &[u8]) -> Result<(), StoreError> {
        let connection = &mut link.connection;
        let known = connection.call(&[b"SCRIPT", b"EXISTS", sha])?;
        if elements(&known).is_some_and(|e| e.first() == Some(&&b":1\r\n"[..])) {
            return Ok(());
        }
        let body = connection.call(&[b"HGET", &self.scripts, &[b"script/", sha].concat()])?;
        if let Some(body) = text(&body) {
            connection.call(&[b"SCRIPT", b"LOAD", body])?;
        }
        Ok(())
    }

    fn add_script(
        &self,
        link: &mut Link,
        plan: &Plan<'_>,
        field: &RecordKey,
        prefix: &Bytes,
    ) -> Pending {
        let skip = usize::from(link.connection.add_select(0));
        let database = plan.database.to_string();
        let form: &[u8] = match plan.form {
            Form::Pack => b"k",
            _ => b"s",
        };
        let transaction = (plan.form == Form::Transaction).then_some(plan.items.len());
        let version: &[u8] = if plan.resp3 { b"3" } else { b"2" };
        let longest = REPLY_BYTES_MAX.to_string();
        let mut slots = Vec::new();
        if let Some(home) = self.home {
            slots = plan.slots(&link.commands);
            slots.extend((!slots.contains(&home)).then_some(home));
        }
        let probes: Vec<Vec<u8>> = slots.iter().map(|slot| probe(*slot)).collect();
        let count = probes.len().to_string();
        let mut head: Vec<&[u8]> = vec![b"EVALSHA", &link.request_sha];
        // A Redis that does not serve the slot of the records' hash answers with an error.
        match self.home {
            None => head.push(b"0"),
            Some(_) => head.extend([&b"1"[..], &self.hash]),
        }
        head.extend([
            database.as_bytes(),
            version,
            form,
            &self.hash,
            field,
            prefix,
            &self.scripts,
            &self.watermark,
            &link.owner,
            LOST_REPLY,
            longest.as_bytes(),
            REPLY_TOO_LONG,
            count.as_bytes(),
        ]);
        head.extend(probes.iter().map(|probe| &probe[..]));
        let tail: usize = plan
            .items
            .iter()
            .map(|item| match item {
                Item::Run(_, arguments) => 1 + arguments.len(),
                Item::Done(_) | Item::Select(_) => 2,
                Item::Transaction(_) => 1,
            })
            .sum();
        let out = link.connection.out();
        write_header(out, head.len() + usize::from(transaction.is_some()) + tail);
        for argument in head {
            write_bulk(out, argument);
        }
        if let Some(count) = transaction {
            write_bulk(out, format!("-{count}").as_bytes());
        }
        for item in &plan.items {
            match item {
                Item::Transaction(count) => write_bulk(out, format!("-{count}").as_bytes()),
                Item::Run(_, arguments) => {
                    write_bulk(out, arguments.len().to_string().as_bytes());
                    for argument in arguments {
                        write_bulk(out, argument);
                    }
                }
                Item::Done(reply) => {
                    write_bulk(out, b"0");
                    write_bulk(out, reply);
                }
                // A script never contains a SELECT.
                Item::Select(_) => {
                    write_bulk(out, b"0");
                    write_bulk(out, &reply::OK);
                }
            }
        }
        Pending::Script {
            skip,
            field: field.clone(),
            prefix: prefix.clone(),
            slots,
        }
    }

    /// Sends a group, reads all its replies, waits until its effects are durable, and returns the replies.
    fn finish_group(
        &mut self,
        link: &mut Link,
        group: &mut Vec<Pending>,
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        if group.is_empty() {
            return Ok(());
        }
        let group = std::mem::take(group);
        let scripts = group.iter().filter(|p| matches!(p, Pending::Script { .. }));
        let scripts = scripts.count();
        let wrote = scripts > 0;
        let sent = group.iter().any(|p| !matches!(p, Pending::Done(_)));
        if !sent {
            replies.extend(group.into_iter().filter_map(|p| match p {
                Pending::Done(reply) => Some(reply),
                _ => None,
            }));
            return Ok(());
        }
        // pmnet's scripts change the watched hash, and every EXEC ends the watch, too.
        let unwatched = wrote
            || group
                .iter()
                .any(|p| matches!(p, Pending::ReadTransaction { .. }));
        let back = link.connection.add_select(0);
        if unwatched {
            link.add_watch(&self.hash, true);
        }
        let looks = self.home.is_some() && !unwatched;
        if looks {
            link.connection.add(&[b"EXISTS", &self.hash]);
        }
        if wrote {
            link.add_wait(WaitFor::Reply, self.url.wait_replicas);
        }
        link.connection.send()?;
        let mut ready = Vec::with_capacity(group.len());
        let mut unsettled = Vec::new();
        for pending in group {
            if let Some(unknown) = read_pending(link, pending, &self.hash, &mut ready)? {
                unsettled.push(unknown);
            }
        }
        if back {
            expect_ok(&link.connection.reply()?)?;
        }
        if unwatched {
            link.read_watch(&self.hash, true, &self.watermark)?;
        }
        if looks {
            // A Redis that is no longer the master answers for every key that another node has it.
            expect_ok(&link.connection.reply()?)?;
        }
        if wrote {
            link.read_wait(WaitFor::Reply, self.url.wait_replicas)?;
            // Commands other than these scripts may not have written a record.
            self.seen_records |= scripts > unsettled.len();
        }
        if !unsettled.is_empty() {
            self.owed.add(link, unsettled);
            self.write_owed(link)?;
        }
        replies.append(&mut ready);
        Ok(())
    }

    /// Executes a request by MULTI, if its commands cannot run in a script.
    pub(super) fn run_transaction(
        &mut self,
        link: &mut Link,
        mut plan: Plan<'_>,
        field: &[u8],
        prefix: &[u8],
    ) -> Result<Bytes, StoreError> {
        switch_protocol(link, plan.resp3)?;
        for _ in 0..=RESENDS_MAX {
            let lost = in_pack(&plan, &LOST_REPLY.repeat(plan.parts.unwrap_or(1)));
            let begun = record(field, prefix, &lost);
            let slot = match self.home {
                None => None,
                Some(_) => match one_slot(link, &plan)? {
                    Ok(slot) => slot,
                    Err(error) => {
                        plan = Plan {
                            parts: plan.parts.map(|_| 1),
                            ..Plan::done(error)
                        };
                        None
                    }
                },
            };
            let mut transaction = Transaction::begin(link, &self.hash, plan.database, slot)?;
            transaction.records(std::slice::from_ref(&begun));
            let mut database = plan.database;
            let unguarded = plan.runs().any(|(name, _)| runs_code(name));
            if unguarded {
                transaction.seal("begin")?;
            }
            for (index, item) in plan.items.iter().enumerate() {
                match item {
                    Item::Run(name, arguments) if is_flush(name) => {
                        transaction.flush(index, arguments);
                    }
                    Item::Run(name, arguments) => {
                        if is_script_flush(name, arguments) {
                            self.read_scripts.clear();
                            transaction.forget_scripts(&self.scripts, arguments);
                        }
                        let hidden = self.own_keys().hidden(database, name, arguments);
                        transaction.command(index, hidden.as_ref().unwrap_or(arguments));
                    }
                    Item::Select(other) => {
                        database = *other;
                        transaction.select(database);
                    }
                    Item::Done(_) | Item::Transaction(_) => {}
                }
            }
            if unguarded {
                transaction.seal("end")?;
            }
            let outcome = transaction.run(
                &self.watermark,
                &self.watermark,
                // The reply of this item comes only after the reply to WAIT.
                None,
                Items::Asked,
            )?;
            match outcome {
                Outcome::Ran(results) => {
                    self.seen_records = true;
                    let reply = reply_of(&plan, results, field);
                    self.owed.add(link, [record(field, prefix, &reply)]);
                    self.write_owed(link)?;
                    return Ok(reply);
                }
                Outcome::Unrecorded(results, why) => {
                    let reply = reply_of(&plan, results, field);
                    let begun = [prefix, &lost].concat().into();
                    self.owed
                        .add_unrecorded(link, record(field, prefix, &reply), begun);
                    return Err(unrecorded(&why));
                }
                Outcome::Torn(torn) => return Err(half_done(&torn, &[field])),
                Outcome::Doubtful(results, error) => {
                    let reply = reply_of(&plan, results, field);
                    self.owed.add(link, [record(field, prefix, &reply)]);
                    return Err(error);
                }
                // The commands of the pack that need no memory must still be executed and answered.
                Outcome::NoMemory(_) if plan.parts.is_some_and(|parts| parts > 1) => {
                    plan.keep_first();
                }
                Outcome::NoMemory(error) => {
                    let reply = match plan.form {
                        Form::Transaction => reply::error(&format!(
                            "EXECABORT Transaction discarded because of: {error}"
                        )),
                        _ => reply::error(&error).repeat(plan.items.len()).into(),
                    };
                    let reply = in_pack(&plan, &reply);
                    self.owed.add(link, [record(field, prefix, &reply)]);
                    self.write_owed(link)?;
                    return Ok(reply);
                }
                Outcome::Refused(_) if plan.form == Form::Transaction => {
                    plan = Plan {
                        parts: plan.parts,
                        ..Plan::done(EXECABORT.to_vec())
                    };
                }
                Outcome::Refused(items) => {
                    for (index, error) in items {
                        plan.items[index] = Item::Done(reply::error(&error).into());
                    }
                }
            }
        }
        Err(StoreError::Retry(
            "Redis refuses other commands of the request each time".into(),
        ))
    }
}

/// Returns the error for requests of which Redis has executed only a part. The error names the records in `fields`.
pub(super) fn half_done(torn: &Torn, fields: &[&[u8]]) -> StoreError {
    let kept = if torn.recorded { "" } else { "not " };
    let (what, records) = match fields {
        [_] => ("That was a request of a client", "record"),
        _ => ("Those were requests of clients", "records"),
    };
    let shown: Vec<String> = fields
        .iter()
        .map(|f| f.escape_ascii().to_string())
        .collect();
    StoreError::Fatal(format!(
        "{}. {what} ({records} {}, {kept}kept in pmnet's records), and a part is missing. Find \
         out what stands between this server and Redis and answers in its place, put the data right, then start the \
         server again",
        torn.why,
        shown.join(", ")
    ))
}

/// Returns whether the command asks Redis for scripts by their digests.
pub(super) fn names_scripts(name: &[u8], arguments: &[&[u8]]) -> bool {
    match name {
        b"EVALSHA" | b"EVALSHA_RO" => arguments.len() >= 2,
        b"SCRIPT" => arguments.len() >= 3 && arguments[1].eq_ignore_ascii_case(b"EXISTS"),
        _ => false,
    }
}

pub(super) fn record(field: &[u8], prefix: &[u8], reply: &[u8]) -> RecordChange {
    (field.to_vec(), Some([prefix, reply].concat().into()))
}

/// If the request is a pack, returns the replies as an array with one element for each part.
pub(super) fn in_pack(plan: &Plan<'_>, replies: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(PACK_HEADER_BYTES_MAX + replies.len());
    if let Some(parts) = plan.parts {
        write_header(&mut out, parts);
    }
    out.extend_from_slice(replies);
    out.into()
}

/// Returns the reply to a request whose commands have these results. The reply is in the form in which the request's
/// record keeps it.
pub(super) fn reply_of(plan: &Plan<'_>, results: Vec<(usize, Bytes)>, field: &[u8]) -> Bytes {
    let mut reply = Vec::new();
    if plan.form == Form::Transaction {
        write_header(&mut reply, plan.items.len());
    }
    let mut results = results.into_iter();
    for item in &plan.items {
        match item {
            Item::Done(bytes) => reply.extend_from_slice(bytes),
            Item::Select(_) => reply.extend_from_slice(&reply::OK),
            Item::Run(..) => {
                reply.extend_from_slice(&results.next().map_or(Bytes::new(), |(_, r)| r));
            }
            Item::Transaction(_) => {}
        }
    }
    match plan.parts {
        Some(parts) if reply.len() + PACK_HEADER_BYTES_MAX > REPLY_BYTES_MAX => {
            warn_too_long(field);
            in_pack(plan, &REPLY_TOO_LONG.repeat(parts))
        }
        Some(_) => in_pack(plan, &reply),
        None => bounded_reply(reply.into(), field),
    }
}

pub(super) fn switch_protocol(link: &mut Link, resp3: bool) -> Result<(), StoreError> {
    let protocol = if resp3 { 3 } else { 2 };
    if link.connection.protocol != protocol {
        link.connection.protocol = protocol;
        expect_ok(
            &link
                .connection
                .call(&[b"HELLO", protocol.to_string().as_bytes()])?,
        )?;
    }
    Ok(())
}
