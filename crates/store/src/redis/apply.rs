//! `Store::apply` on Redis: one MULTI … EXEC for effects and records (module text, "A batch").

use pmnet_server::{Batch, StoreError};
use pmnet_wire::command::Commands;

use super::record::unrecorded;
use super::resp::{error, write_bulk, write_header};
use super::transaction::{Items, Outcome, Transaction};
use super::{Link, RedisStore, WATERMARK, plan, promise};

/// How often a batch is sent again without effects that Redis refused while queueing. Redis names
/// all of them at once, so one is the rule; more means that its mind changes.
const RESENDS_MAX: usize = 4;

/// An effect that is to be sent.
struct Effect<'a> {
    commands: Commands<'a>,
    flushes: bool,
}

impl RedisStore {
    pub(super) fn apply_batch(
        &mut self,
        link: &mut Link,
        batch: &Batch,
    ) -> Result<u64, StoreError> {
        if batch.effects.is_empty() && batch.records.is_empty() {
            return Ok(0);
        }
        link.may_write()?;
        let mut why_rejected: Vec<String> = Vec::new();
        let mut effects = Vec::with_capacity(batch.effects.len());
        for payload in &batch.effects {
            match admit(link, payload)? {
                Ok(effect) => effects.push(Some(effect)),
                Err(why) => why_rejected.push(why),
            }
        }
        let after = batch
            .records
            .iter()
            .find(|(key, _)| key == WATERMARK)
            .map_or_else(
                || self.watermark.clone(),
                |(_, value)| value.clone().unwrap_or_default(),
            );

        self.in_flight = Some(after.clone());
        for _ in 0..=RESENDS_MAX {
            let mut transaction = Transaction::begin(link, &self.hash);
            for (index, effect) in effects.iter().enumerate() {
                let Some(effect) = effect else { continue };
                transaction.select(effect.commands.database);
                if effect.flushes {
                    for arguments in effect.commands.iter() {
                        let arguments: Vec<&[u8]> = arguments.collect();
                        if super::commands::is_flush(&super::commands::upper(arguments[0])) {
                            transaction.flush(index, &arguments);
                        } else {
                            transaction.command(index, &arguments);
                        }
                    }
                } else {
                    transaction.verbatim(index, effect.commands.count, effect.commands.resp);
                }
            }
            transaction.select(0);
            add_records(&mut transaction, &self.hash, batch);
            let outcome = transaction.run(
                &self.hash,
                &self.watermark,
                &after,
                self.url.wait_replicas,
                Items::Promised,
            )?;
            match outcome {
                Outcome::Unrecorded(_, why) => {
                    self.owed.add(link, batch.records.iter().cloned());
                    return Err(unrecorded(&why));
                }
                Outcome::Doubtful(_, error) => return Err(error),
                Outcome::Ran(replies) => {
                    let mut last = None;
                    for (index, reply) in replies {
                        if let (Some(error), Some(effect)) = (error(&reply), &effects[index])
                            && last != Some(index)
                        {
                            last = Some(index);
                            if promise::is_promised(&effect.commands) {
                                return Err(broken(&effect.commands, error));
                            }
                            why_rejected.push(dropped(&effect.commands, error));
                        }
                    }
                    self.watermark = after;
                    self.in_flight = None;
                    self.seen_records |= batch.records.iter().any(|(_, value)| value.is_some());
                    for why in &why_rejected {
                        self.reject(why);
                    }
                    return Ok(u64::try_from(why_rejected.len()).unwrap_or(u64::MAX));
                }
                // Not said of what was promised.
                Outcome::NoMemory(error) => return Err(StoreError::Retry(error)),
                Outcome::Refused(items) => {
                    for (index, error) in items {
                        if let Some(effect) = effects[index].take() {
                            if promise::is_promised(&effect.commands) {
                                return Err(kept(&effect.commands, &error));
                            }
                            why_rejected.push(dropped(&effect.commands, &error));
                        }
                    }
                }
            }
        }
        Err(StoreError::Retry(
            "Redis refuses other commands of the batch each time".into(),
        ))
    }
}

/// Checks one payload: the effect, or (inner error) why it is rejected for good.
fn admit<'a>(link: &mut Link, payload: &'a [u8]) -> Result<Result<Effect<'a>, String>, StoreError> {
    let commands = match Commands::parse(payload) {
        Ok(commands) => commands,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let flushes = match plan::check_effect(&commands, &link.commands) {
        Ok(flushes) => flushes,
        Err(why) => return Ok(Err(format!("{}: {why}", promise::shown(&commands)))),
    };
    if commands.database >= promise::DATABASES_MAX {
        return Ok(Err(format!(
            "{}: no Redis has it",
            promise::shown(&commands)
        )));
    }
    if !link.has_database(commands.database)? {
        return Err(StoreError::Retry(format!(
            "Redis has no database {}, but was to have it when this was acknowledged: {}. Set `databases` in \
             redis.conf to {} or more and restart Redis; until then the devices keep all updates from here on",
            commands.database,
            promise::shown(&commands),
            commands.database + 1
        )));
    }
    Ok(Ok(Effect { commands, flushes }))
}

/// An effect that Redis refuses and that may be dropped.
fn dropped(commands: &Commands<'_>, error: &str) -> String {
    format!(
        "{}: {error} ({})",
        promise::shown(commands),
        promise::excuse(commands)
    )
}

/// A promise that Redis refuses while nothing of the batch has run.
fn kept(commands: &Commands<'_>, error: &str) -> StoreError {
    StoreError::Retry(format!(
        "Redis refuses what its client was told to be done ({}): {error}. Put Redis right (is the command renamed in \
         redis.conf? is it really Redis 6.2 or newer?) and restart it; until then the devices keep all updates \
         from here on",
        promise::shown(commands)
    ))
}

/// A promise that failed alone, in the midst of its batch.
fn broken(commands: &Commands<'_>, error: &str) -> StoreError {
    StoreError::Fatal(format!(
        "an acknowledged update is lost: Redis accepted it at first and failed to execute it ({}): {error}. The rest \
         of its batch is applied. Find the cause in Redis (were its access rights changed?), write this key again, \
         then start the server again",
        promise::shown(commands)
    ))
}

fn add_records(transaction: &mut Transaction<'_>, hash: &[u8], batch: &Batch) {
    let written = batch
        .records
        .iter()
        .filter(|(_, value)| value.is_some())
        .count();
    if written > 0 {
        transaction.own_bytes(|out| {
            write_header(out, 2 + 2 * written);
            write_bulk(out, b"HSET");
            write_bulk(out, hash);
            for (key, value) in &batch.records {
                if let Some(value) = value {
                    write_bulk(out, key);
                    write_bulk(out, value);
                }
            }
        });
    }
    let removed = batch.records.len() - written;
    if removed > 0 {
        transaction.own_bytes(|out| {
            write_header(out, 2 + removed);
            write_bulk(out, b"HDEL");
            write_bulk(out, hash);
            for (key, _) in batch.records.iter().filter(|(_, value)| value.is_none()) {
                write_bulk(out, key);
            }
        });
    }
}
