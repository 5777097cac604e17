//! Requests of several clients that run between one MULTI and EXEC.
//!
//! A request whose reply a script cannot return unchanged (`exact`) costs three round trips to Redis and two syncs of
//! its AOF. Several such requests that wait at the same time share one transaction, and so the cost of one request.
//! Each request keeps a record and a reply of its own, and fails without the others. If Redis refuses to queue a
//! request, no request has run yet. This request is then left out, and the others are sent again. If memory is short,
//! each request is sent alone and gets its own error from Redis.
//!
//! Some requests never run together:
//! - transactions of clients, which take effect as a whole or not at all;
//! - code and flushes, around which pmnet's records are guarded;
//! - commands about scripts;
//! - commands of modules, except a few that are known to be quick: a slow command could make the other requests exceed
//!   their deadlines, and all replies would be lost;
//! - all requests in a Redis Cluster, where the keys of a transaction must be in one slot.

use bytes::Bytes;
use pmnet_resp::reply;
use pmnet_server::{RecordKey, StoreError};
use pmnet_wire::command::Form;

use super::commands::{CommandTable, is_flush, is_quick, runs_code, runs_reading_code};
use super::execute::{half_done, names_scripts, record, reply_of, switch_protocol};
use super::plan::{Item, Plan};
use super::record::unrecorded;
use super::transaction::{Items, Outcome, Torn, Transaction};
use super::{LOST_REPLY, Link, RedisStore};

/// Maximum number of requests that run together. The bound limits the time for which other requests wait, and the
/// number of replies that a crash can lose.
const TOGETHER_MAX: usize = 128;
/// Number of bytes of arguments from which on no further request joins.
const TOGETHER_BYTES_MAX: usize = 1 << 20;
/// Maximum number of times that the requests are sent again without the commands that Redis refused to queue.
const RESENDS_MAX: usize = 4;

/// A request whose commands cannot run in a script.
pub struct Asked<'a> {
    pub plan: Plan<'a>,
    pub field: &'a RecordKey,
    pub prefix: &'a Bytes,
}

/// Requests that wait for the next common transaction.
#[derive(Default)]
pub struct Together<'a> {
    asked: Vec<Asked<'a>>,
    bytes: usize,
}

impl<'a> Together<'a> {
    /// Returns whether this request may run together with the requests that wait.
    pub fn takes(&self, plan: &Plan<'_>, table: &CommandTable) -> bool {
        let guarded = |(name, arguments): (&Vec<u8>, &Vec<&[u8]>)| {
            let code = runs_code(name) || runs_reading_code(name);
            // This check also covers SCRIPT FLUSH.
            let scripts = name == b"SCRIPT" || names_scripts(name, arguments);
            code || is_flush(name) || scripts || !(table.is_core(name) || is_quick(name, arguments))
        };
        let same = |first: &Asked<'_>| {
            first.plan.database == plan.database && first.plan.resp3 == plan.resp3
        };
        matches!(plan.form, Form::Single | Form::Pipeline)
            && !plan.runs().any(guarded)
            && self.asked.first().is_none_or(same)
            && self.asked.len() < TOGETHER_MAX
            && self.bytes < TOGETHER_BYTES_MAX
    }

    /// Adds a request that may run together with the requests that wait.
    pub fn add(&mut self, asked: Asked<'a>) {
        let words = asked.plan.runs().flat_map(|(_, arguments)| arguments);
        self.bytes += words.map(|word| word.len()).sum::<usize>();
        self.asked.push(asked);
    }
}

impl RedisStore {
    /// Runs the requests that wait, and appends their replies.
    pub(super) fn finish_together(
        &mut self,
        link: &mut Link,
        together: &mut Together<'_>,
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        let mut all = std::mem::take(together).asked;
        if all.len() > 1 && self.run_together(link, &mut all, replies)? {
            return Ok(());
        }
        for Asked {
            plan,
            field,
            prefix,
        } in all
        {
            let reply = self.run_transaction(link, plan, field, prefix)?;
            replies.push(reply);
        }
        Ok(())
    }

    /// Runs the requests in one transaction. Returns false if no request has run: each request must then be run alone.
    fn run_together(
        &mut self,
        link: &mut Link,
        all: &mut [Asked<'_>],
        replies: &mut Vec<Bytes>,
    ) -> Result<bool, StoreError> {
        let (database, resp3) = (all[0].plan.database, all[0].plan.resp3);
        switch_protocol(link, resp3)?;
        for _ in 0..=RESENDS_MAX {
            let begun: Vec<_> = all
                .iter()
                .map(|asked| record(asked.field, asked.prefix, &in_pack(&asked.plan)))
                .collect();
            let mut transaction = Transaction::begin(link, &self.hash, database, None)?;
            transaction.records(&begun);
            let items = all.iter().flat_map(|asked| &asked.plan.items);
            for (index, item) in items.enumerate() {
                if let Item::Run(name, arguments) = item {
                    let hidden = self.own_keys().hidden(database, name, arguments);
                    transaction.command(index, hidden.as_ref().unwrap_or(arguments));
                }
            }
            let outcome = transaction.run(
                &self.watermark,
                &self.watermark,
                // The reply of this item comes only after the replies to the wait commands.
                None,
                Items::Asked,
            )?;
            match outcome {
                Outcome::Ran(results) => {
                    self.seen_records = true;
                    let done = self.replies_of(all, results);
                    self.owe(link, all, &done);
                    self.write_owed(link)?;
                    replies.extend(done);
                    return Ok(true);
                }
                Outcome::Doubtful(results, error) => {
                    let done = self.replies_of(all, results);
                    self.owe(link, all, &done);
                    return Err(error);
                }
                Outcome::Unrecorded(results, why) => {
                    let done = self.replies_of(all, results);
                    for (asked, reply) in all.iter().zip(&done) {
                        let begun = [asked.prefix, &in_pack(&asked.plan)[..]].concat().into();
                        let change = record(asked.field, asked.prefix, reply);
                        self.owed.add_unrecorded(link, change, begun);
                    }
                    return Err(unrecorded(&why));
                }
                Outcome::Torn(torn) => return Err(half_done(&torn, &torn_fields(&torn, all))),
                Outcome::NoMemory(_) => return Ok(false),
                Outcome::Refused(items) => {
                    let mut slots: Vec<&mut Item<'_>> = all
                        .iter_mut()
                        .flat_map(|asked| &mut asked.plan.items)
                        .collect();
                    for (index, error) in items {
                        if let Some(item) = slots.get_mut(index) {
                            **item = Item::Done(reply::error(&error).into());
                        }
                    }
                }
            }
        }
        Ok(false)
    }

    /// Returns the reply to each request, from the results of all their commands.
    fn replies_of(&self, all: &[Asked<'_>], results: Vec<(usize, Bytes)>) -> Vec<Bytes> {
        let mut results = results.into_iter();
        let mut one = |asked: &Asked<'_>| {
            let own = results.by_ref().take(asked.plan.runs().count());
            reply_of(&asked.plan, own.collect(), asked.field)
        };
        all.iter().map(&mut one).collect()
    }

    fn owe(&mut self, link: &Link, all: &[Asked<'_>], replies: &[Bytes]) {
        let change =
            |(asked, reply): (&Asked<'_>, &Bytes)| record(asked.field, asked.prefix, reply);
        self.owed.add(link, all.iter().zip(replies).map(change));
    }
}

/// Returns the records of the requests of which Redis has executed only a part. If it is not known which requests these
/// are, returns the records of all requests.
fn torn_fields<'r>(torn: &Torn, all: &'r [Asked<'_>]) -> Vec<&'r [u8]> {
    let fields = all
        .iter()
        .flat_map(|asked| asked.plan.items.iter().map(|_| &asked.field[..]));
    let is_torn = |(index, _): &(usize, &[u8])| torn.items.is_empty() || torn.items.contains(index);
    let torn = fields.enumerate().filter(is_torn);
    let mut found: Vec<&[u8]> = torn.map(|(_, field)| field).collect();
    found.dedup();
    found
}

/// Returns the reply to a request whose only plan is `plan`.
fn in_pack(plan: &Plan<'_>) -> Bytes {
    super::execute::in_pack(plan, &LOST_REPLY.repeat(plan.parts.unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_transaction_names_the_records_of_those_that_it_tore() {
        let asked = [(b"r1", 1), (b"r2", 3), (b"r3", 1)];
        let asked = asked.map(|(field, items)| (field.to_vec(), items));
        let none = Bytes::new();
        let all: Vec<Asked<'_>> = asked
            .iter()
            .map(|(field, items)| Asked {
                plan: Plan {
                    items: (0..*items).map(|_| Item::Done(Vec::new())).collect(),
                    ..Plan::done(Vec::new())
                },
                field,
                prefix: &none,
            })
            .collect();
        let said = |items: &[usize]| {
            let torn = Torn {
                why: "It broke".into(),
                items: items.to_vec(),
                recorded: true,
            };
            half_done(&torn, &torn_fields(&torn, &all)).to_string()
        };
        for (items, records) in [
            (&[0][..], "(record r1, kept"),
            (&[3], "(record r2, kept"),
            (&[1, 2, 4], "(records r2, r3, kept"),
            (&[], "(records r1, r2, r3, kept"),
        ] {
            let text = said(items);
            assert!(text.contains(records), "{items:?}: {text}");
        }
    }
}
