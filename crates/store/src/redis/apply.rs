//! `Store::apply` on Redis: one script, or one MULTI … EXEC, for effects and records (module text, "A batch").

use bytes::Bytes;
use pmnet_resp::read::{elements, error, text};
use pmnet_resp::{reply, write_bulk, write_header};
use pmnet_server::{Batch, StoreError};
use pmnet_wire::command::Commands;
use pmnet_wire::slots::slot_of;

use super::cluster::{elsewhere, probe, waits_for};
use super::commands::{is_flush, upper};
use super::config::WaitFor;
use super::owner::{FENCED, taken_over};
use super::pending::not_understood;
use super::plan::{self, Nature};
use super::record::unrecorded;
use super::runs::Runs;
use super::transaction::{Items, Outcome, Torn, Transaction};
use super::{Link, RedisStore, WATERMARK, promise};

/// Maximum number of times that a batch is sent again without effects that Redis refused to queue. Redis names all of
/// these effects at once, so the batch is usually sent again once. More attempts are needed only if Redis changes its
/// answers between them.
const RESENDS_MAX: usize = 4;

/// Maximum number of updates that an error names when only a part of a batch was executed.
const SHOWN_MAX: usize = 8;

/// An effect that is to be sent to Redis.
struct Effect<'a> {
    commands: Commands<'a>,
    nature: Nature,
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
            match self.admit(link, payload)? {
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
        let scripted = effects.iter().flatten().all(|e| e.nature.scriptable);
        for _ in 0..=RESENDS_MAX {
            let outcome = if scripted {
                self.run_script(link, &effects, batch, &after)?
            } else {
                self.run_multi(link, &effects, batch, &after)?
            };
            if matches!(outcome, Outcome::Unrecorded(..)) {
                self.owed.add(link, batch.records.iter().cloned());
            }
            if let Some(rejected) =
                self.conclude(outcome, &mut effects, &mut why_rejected, batch, &after)?
            {
                return Ok(rejected);
            }
        }
        Err(StoreError::Retry(
            "Redis refuses other commands of the batch each time".into(),
        ))
    }

    /// Checks one payload. Returns the effect. The inner error is the reason why the payload is rejected for good.
    fn admit<'a>(
        &mut self,
        link: &mut Link,
        payload: &'a [u8],
    ) -> Result<Result<Effect<'a>, String>, StoreError> {
        let commands = match Commands::parse(payload) {
            Ok(commands) => commands,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let shown = || promise::shown(&commands);
        let nature = match plan::check_effect(&commands, &link.commands, link.home.is_some()) {
            Ok(nature) => nature,
            Err(why) => return Ok(Err(format!("{}: {why}", shown()))),
        };
        if let Some(why) = self.misplaced(link, &commands) {
            return Ok(Err(format!("{}: {why}", shown())));
        }
        let database = commands.database;
        if database >= promise::DATABASES_MAX {
            return Ok(Err(format!("{}: no Redis has it", shown())));
        }
        let Err(error) = link.try_database(database)? else {
            self.databases = self.databases.max(database + 1);
            return Ok(Ok(Effect { commands, nature }));
        };
        if error.starts_with("NOPERM") {
            return Err(StoreError::Retry(format!(
                "PM2305 Redis does not let its user into database {database} ({error}), for which this was acknowledged: {}. Allow \
                 it (ACL SETUSER … +select); until then the devices keep all updates from here on",
                shown(),
            )));
        }
        // A front uses a database only after Redis has selected it. So if no Redis of this shard ever had the database,
        // no client was promised an update in it.
        if database >= self.databases && has_no_such(&error) {
            return Ok(Err(format!("{}: {error}", shown())));
        }
        Err(StoreError::Retry(format!(
            "PM2306 Redis has no database {database} any more ({error}), for which this was acknowledged: {}. Set `databases` in \
             redis.conf to {} or more and restart Redis; until then the devices keep all updates from here on",
            shown(),
            database + 1
        )))
    }

    /// Returns the reason why these keys of a Redis Cluster can never be written in this shard. There are two such
    /// reasons. First reason: the keys' slot does not belong to this shard, and the master did not serve the slot when
    /// it was connected. Second reason: one command has keys of several slots.
    fn misplaced(&self, link: &Link, commands: &Commands<'_>) -> Option<String> {
        self.home?;
        commands.iter().find_map(|command| {
            let arguments: Vec<&[u8]> = command.collect();
            let name = upper(arguments[0]);
            let slots: Vec<u16> = if name == b"MSET" {
                let keys = arguments[1..].iter().step_by(2);
                keys.map(|key| slot_of(key)).collect()
            } else {
                let keys = link.commands.slot_keys(&name, &arguments);
                keys.iter().map(|key| slot_of(key)).collect()
            };
            if let Some(slot) = slots.iter().find(|slot| self.is_foreign(**slot)) {
                return Some(format!(
                    "slot {slot} is not of this shard, and its master does not serve it"
                ));
            }
            let several = slots.windows(2).any(|pair| pair[0] != pair[1]);
            several.then(|| "CROSSSLOT its keys are of several slots".to_owned())
        })
    }

    /// Applies the batch by MULTI, for commands that cannot run in a script.
    fn run_multi(
        &self,
        link: &mut Link,
        effects: &[Option<Effect<'_>>],
        batch: &Batch,
        after: &[u8],
    ) -> Result<Outcome, StoreError> {
        // If the transaction contained a SELECT, and Redis refused it because the right was taken away, the next
        // commands would run in the wrong database.
        let mut databases = effects.iter().flatten().map(|e| e.commands.database);
        let database = databases.next().unwrap_or(0);
        let mut transaction = Transaction::begin(link, &self.hash, database, None)?;
        for (index, effect) in effects.iter().enumerate() {
            let Some(effect) = effect else { continue };
            transaction.select(effect.commands.database);
            if effect.nature.flushes {
                for arguments in effect.commands.iter() {
                    let arguments: Vec<&[u8]> = arguments.collect();
                    if is_flush(&upper(arguments[0])) {
                        transaction.flush(index, &arguments);
                    } else {
                        transaction.command(index, &arguments);
                    }
                }
            } else {
                transaction.verbatim(index, effect.commands.count, effect.commands.resp);
            }
        }
        transaction.records(&batch.records);
        transaction.run(
            &self.watermark,
            after,
            Some(self.url.wait_replicas),
            Items::Promised,
        )
    }

    /// Applies the batch by the script, as a whole or not at all.
    fn run_script(
        &self,
        link: &mut Link,
        effects: &[Option<Effect<'_>>],
        batch: &Batch,
        after: &[u8],
    ) -> Result<Outcome, StoreError> {
        let removed = batch.records.iter().filter(|(_, value)| value.is_none());
        let written = batch.records.iter().filter(|(_, value)| value.is_some());
        let mut runs = Runs::new(self.home.is_some());
        let slots = self.slots_of(link, effects);
        for (index, effect) in effects.iter().enumerate() {
            let Some(effect) = effect else { continue };
            for command in effect.commands.iter() {
                runs.add(index, effect.commands.database, command);
            }
        }
        let (removed_count, written_count) = (removed.clone().count(), written.clone().count());
        // In a Redis Cluster the script also gets the name of the records' hash as a key. A Redis that is no longer the
        // master then reports that the slot has moved.
        let keys = usize::from(self.home.is_some());
        let values = 3 + keys + 6 + slots.len() + removed_count + 2 * written_count + runs.values();
        let number =
            |out: &mut Vec<u8>, value: usize| write_bulk(out, value.to_string().as_bytes());
        let owner = link.owner.clone();
        let out = link.connection.out();
        write_header(out, values);
        for argument in [b"EVALSHA", &link.apply_sha[..]] {
            write_bulk(out, argument);
        }
        number(out, keys);
        for argument in std::iter::repeat_n(&self.hash[..], keys).chain([
            &self.hash[..],
            &owner,
            &self.watermark,
        ]) {
            write_bulk(out, argument);
        }
        number(out, slots.len());
        slots.iter().for_each(|slot| write_bulk(out, &probe(*slot)));
        number(out, removed_count);
        removed.for_each(|(key, _)| write_bulk(out, key));
        number(out, written_count);
        for (key, value) in written {
            write_bulk(out, key);
            write_bulk(out, value.as_deref().unwrap_or_default());
        }
        runs.write(out);
        link.add_watch(&self.hash, true);
        link.add_wait(WaitFor::Updates, self.url.wait_replicas);
        link.connection.send()?;
        let reply = link.connection.reply()?;
        let numbered = |text: &str| {
            let (ordinal, error) = text.split_once(' ')?;
            let index = runs.effect_of(ordinal.parse().ok()?)?;
            Some((index, error.to_owned()))
        };
        if let Some(error) = error(&reply) {
            if error.starts_with(FENCED) {
                return Err(taken_over(&self.hash));
            }
            if let Some(rest) = error.strip_prefix("BROKEN ") {
                return Err(unfinished(rest, &runs, effects));
            }
            if let Some((slot, why)) = elsewhere(error, &slots) {
                return Err(StoreError::Retry(waits_for(slot, why)));
            }
            return Err(StoreError::Retry(error.to_owned()));
        }
        let Some(mut failed) = elements(&reply) else {
            return Err(not_understood("EVALSHA", &reply));
        };
        if failed.first().and_then(|first| text(first)) == Some(b"REFUSED") {
            let refused = failed
                .drain(1..)
                .filter_map(|refusal| numbered(&String::from_utf8_lossy(text(refusal)?)));
            let mut refused: Vec<_> = refused.collect();
            // An effect may have several commands, so it may appear several times.
            refused.dedup_by_key(|(index, _)| *index);
            link.read_watch(&self.hash, true, &self.watermark)?;
            link.read_wait(WaitFor::Updates, self.url.wait_replicas)?;
            return Ok(Outcome::Refused(refused));
        }
        let failed = failed.iter().filter_map(|failure| {
            let (index, error) = numbered(&String::from_utf8_lossy(text(failure)?))?;
            Some((index, reply::error(&error)))
        });
        let failed = failed.collect();
        link.read_watch(&self.hash, true, after)?;
        link.read_wait(WaitFor::Updates, self.url.wait_replicas)?;
        Ok(Outcome::Ran(failed))
    }

    /// Returns the slots that a batch needs in a Redis Cluster, each once: the slots of the effects' keys, and the slot
    /// of the records.
    fn slots_of(&self, link: &Link, effects: &[Option<Effect<'_>>]) -> Vec<u16> {
        let Some(home) = self.home else {
            return Vec::new();
        };
        let mut slots = vec![home];
        for command in effects.iter().flatten().flat_map(|e| e.commands.iter()) {
            let arguments: Vec<&[u8]> = command.collect();
            let keys = link.commands.slot_keys(&upper(arguments[0]), &arguments);
            slots.extend(keys.iter().map(|key| slot_of(key)));
        }
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// Returns the number of effects of the batch that were rejected. `None`: the batch must be sent again without the
    /// effects that Redis refuses.
    fn conclude(
        &mut self,
        outcome: Outcome,
        effects: &mut [Option<Effect<'_>>],
        why_rejected: &mut Vec<String>,
        batch: &Batch,
        after: &Bytes,
    ) -> Result<Option<u64>, StoreError> {
        match outcome {
            Outcome::Unrecorded(replies, why) => {
                check_promises(effects, &replies)?;
                Err(unrecorded(&why))
            }
            Outcome::Torn(torn) => Err(half_done(&torn, effects)),
            Outcome::Doubtful(replies, error) => {
                check_promises(effects, &replies)?;
                Err(error)
            }
            // Redis never answers a promised update in this way.
            Outcome::NoMemory(error) => Err(StoreError::Retry(error)),
            Outcome::Ran(replies) => {
                check_promises(effects, &replies)?;
                let mut last = None;
                for (index, reply) in replies {
                    if let (Some(error), Some(Some(effect))) = (error(&reply), effects.get(index))
                        && last != Some(index)
                    {
                        last = Some(index);
                        why_rejected.push(dropped(&effect.commands, error));
                    }
                }
                self.watermark = after.clone();
                self.in_flight = None;
                self.seen_records |= batch.records.iter().any(|(_, value)| value.is_some());
                for why in &*why_rejected {
                    self.reject(why);
                }
                Ok(Some(u64::try_from(why_rejected.len()).unwrap_or(u64::MAX)))
            }
            Outcome::Refused(items) => {
                for (index, error) in items {
                    if let Some(effect) = effects.get_mut(index).and_then(Option::take) {
                        // No acknowledged update may be lost, even if an operator sets wrong rights.
                        let waits =
                            error.starts_with("NOPERM ") && promise::is_assumed(&effect.commands);
                        if effect.nature.promised || waits {
                            return Err(kept(&effect.commands, &error));
                        }
                        why_rejected.push(dropped(&effect.commands, &error));
                    }
                }
                Ok(None)
            }
        }
    }
}

/// Checks whether an acknowledged update failed in a batch of which other updates ran.
///
/// # Errors
/// `Fatal` with the first acknowledged update that failed.
fn check_promises(
    effects: &[Option<Effect<'_>>],
    replies: &[(usize, Bytes)],
) -> Result<(), StoreError> {
    for (index, reply) in replies {
        if let (Some(error), Some(Some(effect))) = (error(reply), effects.get(*index))
            && effect.nature.promised
        {
            return Err(broken(&effect.commands, error));
        }
    }
    Ok(())
}

/// Returns whether Redis says that the database does not exist and will never exist.
fn has_no_such(error: &str) -> bool {
    [
        "DB index is out of range",
        "invalid DB index",
        "not allowed in cluster mode",
    ]
    .iter()
    .any(|words| error.contains(words))
}

/// Returns a log text about an effect that Redis refuses and that may be dropped.
fn dropped(commands: &Commands<'_>, error: &str) -> String {
    format!(
        "{}: {error} ({})",
        promise::shown(commands),
        promise::excuse(commands)
    )
}

/// Returns the error for a promised update that Redis refuses before any command of the batch has run.
fn kept(commands: &Commands<'_>, error: &str) -> StoreError {
    StoreError::Retry(format!(
        "PM2307 Redis refuses a write that was acknowledged ({}): {error}. Put Redis right (is the command renamed in \
         redis.conf? is it really Redis 6.2 or newer?) and restart it; until then the devices keep all updates \
         from here on",
        promise::shown(commands)
    ))
}

/// Returns a text that shows the first of these effects to an operator.
fn shown(items: &[usize], effects: &[Option<Effect<'_>>]) -> String {
    let shown: Vec<String> = items
        .iter()
        .filter_map(|item| effects.get(*item)?.as_ref())
        .take(SHOWN_MAX)
        .map(|effect| promise::shown(&effect.commands))
        .collect();
    let more = match items.len().saturating_sub(shown.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", shown.join("; "))
}

/// Returns the error for a batch of which only a part has run; `rest` is the script's text after its first word.
fn unfinished(rest: &str, runs: &Runs<'_>, effects: &[Option<Effect<'_>>]) -> StoreError {
    let (ran, why) = rest.split_once(' ').unwrap_or((rest, ""));
    StoreError::Fatal(match ran.parse::<usize>() {
        Ok(first) => {
            let mut items: Vec<usize> = (first..).map_while(|n| runs.effect_of(n)).collect();
            items.dedup();
            format!(
                "PM2014 Redis failed in the midst of a batch ({why}). The batch counts as applied, but these of its updates are \
                 not, or in part: {}. Find the cause, write these keys again, then start the server again",
                shown(&items, effects)
            )
        }
        Err(_) => format!(
            "PM2015 Redis failed while it changed pmnet's records ({why}): a part of them is changed, and none of the batch's \
             updates is applied. Restore Redis's data, or start the shard anew"
        ),
    })
}

/// Returns the error for a batch of which Redis has executed only a part, or has executed a part in another database.
fn half_done(torn: &Torn, effects: &[Option<Effect<'_>>]) -> StoreError {
    let then = if torn.recorded {
        "The batch counts as applied, so write these keys again, where they belong, and look for them in the database before"
    } else {
        "The batch does not count as applied, and is applied again, as a whole, when the server starts; look for these \
         keys in the database before"
    };
    StoreError::Fatal(format!(
        "{} ({}). {then}. First find the cause (were access rights in Redis changed?)",
        torn.why,
        shown(&torn.items, effects)
    ))
}

/// Returns the error for a promised update that failed in the middle of its batch, while the other updates ran.
fn broken(commands: &Commands<'_>, error: &str) -> StoreError {
    StoreError::Fatal(format!(
        "PM2013 an acknowledged update is lost: Redis accepted it at first and failed to execute it ({}): {error}. The rest \
         of its batch is applied. Find the cause in Redis (were its access rights changed?), write this key again, \
         then start the server again",
        promise::shown(commands)
    ))
}
