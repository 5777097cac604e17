//! A store that keeps only the protocol's records, in memory.
//!
//! The store serves to measure pmnet without a database. The store accepts and forgets every effect, and its reads find
//! nothing. The store accepts payloads of each kind, so that programs can be measured, too: a program's request gets an
//! empty reply. Records survive `load`, but not the end of the process.

use std::collections::BTreeMap;

use bytes::Bytes;
use pmnet_resp::write_header;
use pmnet_server::{Batch, RecordKey, Request, Store, StoreError};
use pmnet_wire::command::{Arguments, Commands, Form, Protocol};
use pmnet_wire::{Payloads, program};

/// Keeps the protocol's records in memory, and no data.
#[derive(Debug, Default)]
pub struct NullStore {
    records: BTreeMap<RecordKey, Bytes>,
}

impl NullStore {
    /// Returns a store without records.
    #[must_use]
    pub fn new() -> NullStore {
        NullStore::default()
    }
}

impl Store for NullStore {
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        Ok(self
            .records
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect())
    }

    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError> {
        let malformed = batch
            .effects
            .iter()
            .filter(|payload| is_malformed(payload))
            .count();
        for (key, value) in &batch.records {
            match value {
                Some(value) => self.records.insert(key.clone(), value.clone()),
                None => self.records.remove(key),
            };
        }
        Ok(u64::try_from(malformed).unwrap_or(u64::MAX))
    }

    fn execute(
        &mut self,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        for request in requests {
            let reply = answer(&request.payload, request.record.is_some());
            if let Some((key, prefix)) = &request.record {
                self.records
                    .insert(key.clone(), [&prefix[..], &reply].concat().into());
            }
            replies.push(reply.into());
        }
        Ok(())
    }

    fn payloads(&self) -> Payloads {
        Payloads::ALL
    }

    fn durability(&self) -> String {
        "no store: effects are forgotten at once, records last as long as this process".into()
    }
}

fn is_malformed(payload: &[u8]) -> bool {
    program::body(payload).is_none()
        && Commands::parse(payload).map_or(true, |commands| commands.count == 0)
}

fn answer(payload: &[u8], writes: bool) -> Vec<u8> {
    if program::body(payload).is_some() {
        return vec![program::REPLY_MARK];
    }
    let commands = match Commands::parse(payload) {
        Ok(commands) => commands,
        Err(error) => return crate::malformed_reply(error).into(),
    };
    let mut reply = Vec::new();
    match commands.form {
        Form::Barrier => reply.extend_from_slice(b"+OK\r\n"),
        Form::StoreAddress => reply.extend_from_slice(pmnet_wire::command::NO_ADDRESS),
        Form::Transaction => write_header(&mut reply, commands.count),
        Form::Pack => {
            write_header(&mut reply, commands.units().count());
            for unit in commands.units() {
                if unit.commands.form == Form::Transaction {
                    write_header(&mut reply, unit.commands.count);
                }
                for mut arguments in unit.commands.iter() {
                    reply.extend_from_slice(one(&mut arguments, writes, commands.protocol));
                }
            }
            return reply;
        }
        Form::Single | Form::Pipeline => {}
    }
    for mut arguments in commands.iter() {
        reply.extend_from_slice(one(&mut arguments, writes, commands.protocol));
    }
    reply
}

fn one(arguments: &mut Arguments<'_>, writes: bool, protocol: Protocol) -> &'static [u8] {
    let name = arguments.next().unwrap_or_default();
    if name.eq_ignore_ascii_case(b"PING") && arguments.len() == 0 {
        b"+PONG\r\n"
    } else if writes {
        b"+OK\r\n"
    } else if protocol == Protocol::Resp3 {
        b"_\r\n"
    } else {
        b"$-1\r\n"
    }
}
