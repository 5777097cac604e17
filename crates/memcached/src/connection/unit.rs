//! Commands for the store, and how several of them are joined to one call.

use bytes::Bytes;
use pmnet_resp::write_command;
use pmnet_wire::command::{Form, Protocol, key_hash, preamble};
use pmnet_wire::item::{COMMAND, Change, SCRIPT};

use super::shared::{Dialect, Shared};
use crate::request::KEY_BYTES_MAX;

/// Maximum number of commands of a call.
pub(super) const UNITS_MAX: usize = 64;
/// Maximum number of changes of items in a call. Each change may carry its script.
const CHANGES_MAX: usize = 16;
/// Maximum number of bytes of values that the commands of a call send and get.
pub(super) const VALUES_MAX: u64 = 15 << 20;

/// The work that the store does for a unit.
#[derive(Debug)]
pub(super) enum Work {
    /// A plain `SET`, which is acknowledged as soon as it is durable.
    Update(Vec<Bytes>),
    /// A read of the string at the key.
    Look,
    /// A read of the string at the key, and of its remaining time.
    LookLong,
    /// A command of Redis that may change data. `shows`: whether the command's reply may be a value.
    Command { words: Vec<Bytes>, shows: bool },
    /// A change of the item. The values are its arguments, and whether its reply may be a value.
    Change {
        arguments: Vec<Vec<u8>>,
        shows: bool,
    },
}

/// A command of the store, on behalf of a client's command.
#[derive(Debug)]
pub(super) struct Unit {
    /// Number of the slot in which the answer to the client's command is put together.
    pub(super) slot: u64,
    pub(super) key: Bytes,
    pub(super) work: Work,
}

/// Kinds of units that may travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Looks,
    LooksLong,
    Changes,
}

impl Unit {
    pub(super) fn change(slot: u64, key: Bytes, change: &Change<'_>) -> Unit {
        let shows = matches!(change, Change::Fetch { .. });
        let arguments = change.arguments();
        Unit {
            slot,
            key,
            work: Work::Change { arguments, shows },
        }
    }

    fn kind(&self) -> Option<Kind> {
        match self.work {
            Work::Update(_) => None,
            Work::Look => Some(Kind::Looks),
            Work::LookLong => Some(Kind::LooksLong),
            Work::Command { .. } | Work::Change { .. } => Some(Kind::Changes),
        }
    }

    /// Whether the unit may be sent only after the store has named its dialect, and has said that it serves this front.
    pub(super) fn needs_store(&self) -> bool {
        matches!(self.work, Work::Update(_) | Work::Change { .. })
    }

    fn is_change(&self) -> bool {
        matches!(self.work, Work::Change { .. })
    }

    /// Whether the answer to the unit comes from the store.
    pub(super) fn is_answered_by_store(&self) -> bool {
        self.kind().is_some()
    }

    /// Whether the unit has no effect besides its answer.
    pub(super) fn is_look(&self) -> bool {
        matches!(self.work, Work::Look | Work::LookLong)
    }

    /// Returns the maximum number of bytes of values that the unit sends and gets.
    fn weight(&self, item_max: u64) -> u64 {
        let (words, shows) = match &self.work {
            Work::Update(words) => (sum(words), false),
            Work::Look | Work::LookLong => (0, true),
            Work::Command { words, shows } => (sum(words), *shows),
            Work::Change { arguments, shows } => (sum(arguments), *shows),
        };
        words.max(if shows { item_max } else { 0 })
    }

    /// Returns the number of bytes of the unit in memory.
    pub(super) fn bytes(&self) -> usize {
        let words = match &self.work {
            Work::Update(words) | Work::Command { words, .. } => sum(words),
            Work::Look | Work::LookLong => 0,
            Work::Change { arguments, .. } => sum(arguments),
        };
        usize::try_from(words)
            .unwrap_or(usize::MAX)
            .saturating_add(KEY_BYTES_MAX)
    }

    /// Writes the unit's command in the store's dialect.
    fn write(&self, out: &mut Vec<u8>, dialect: Dialect) {
        match &self.work {
            Work::Update(words) | Work::Command { words, .. } => write_command(out, words),
            Work::Look | Work::LookLong => write_command(out, &[&b"GET"[..], &self.key]),
            Work::Change { arguments, .. } => {
                let front: &[&[u8]] = match dialect {
                    Dialect::Redis => &[b"EVAL", SCRIPT.as_bytes(), b"1"],
                    Dialect::Packet => &[COMMAND.as_bytes()],
                };
                let behind = arguments.iter().map(Vec::as_slice);
                let words = front.iter().copied().chain([&self.key[..]]).chain(behind);
                write_command(out, &words.collect::<Vec<_>>());
            }
        }
    }
}

fn sum<T: AsRef<[u8]>>(words: &[T]) -> u64 {
    let bytes: usize = words.iter().map(|word| word.as_ref().len()).sum();
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// A call that is to be submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The payload for the store.
    pub payload: Bytes,
    /// Hash of the call's only key, which the devices use.
    pub key_hash: u64,
    /// How the call is carried out.
    pub way: Way,
}

/// The way in which a call is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The call is acknowledged as soon as it is durable.
    Update,
    /// The store answers the call, which does not change the store.
    Read,
    /// The store answers the call, which may change the store.
    Change,
}

/// Returns a question for the store's address. Only a Redis has an address.
pub(super) fn which_dialect() -> Call {
    Call {
        payload: preamble(Form::StoreAddress, Protocol::Resp2, 0)
            .to_vec()
            .into(),
        key_hash: 0,
        way: Way::Read,
    }
}

/// Returns a read of a key. Its reply shows whether the key's database can be used.
pub(super) fn look(key: &Bytes, database: u32) -> Call {
    let mut payload = preamble(Form::Single, Protocol::Resp2, database).to_vec();
    write_command(&mut payload, &[&b"GET"[..], key]);
    Call {
        payload: payload.into(),
        key_hash: key_hash(key),
        way: Way::Read,
    }
}

/// Returns the number of these units that are joined to one call. The first unit must not be an update.
pub(super) fn together<'a>(units: impl Iterator<Item = &'a Unit>, item_max: u64) -> usize {
    let (mut count, mut weight, mut changes, mut first) = (0, 0u64, 0, None);
    for unit in units.take(UNITS_MAX) {
        let Some(kind) = unit.kind() else {
            break;
        };
        let first = *first.get_or_insert(kind);
        weight = weight.saturating_add(unit.weight(item_max));
        changes += usize::from(unit.is_change());
        let fits = weight <= VALUES_MAX && changes <= CHANGES_MAX && kind == first;
        if count > 0 && (!fits || kind == Kind::LooksLong) {
            break;
        }
        count += 1;
    }
    count
}

/// Makes one call of units that are joined.
pub(super) fn call<'a>(units: &[&'a Unit], shared: &Shared, dialect: Dialect) -> Option<Call> {
    let first: &'a Unit = units.first()?;
    let begin = |form| preamble(form, Protocol::Resp2, shared.database).to_vec();
    let same = units.iter().all(|unit| unit.key == first.key);
    let key_hash = if same { key_hash(&first.key) } else { 0 };
    let (payload, way) = match first.kind() {
        None => {
            let mut payload = begin(Form::Single);
            first.write(&mut payload, dialect);
            (payload, Way::Update)
        }
        Some(Kind::Looks) if units.len() > 1 => {
            let mut payload = begin(Form::Single);
            let keys = units.iter().map(|unit| &unit.key[..]);
            let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(keys).collect();
            write_command(&mut payload, &words);
            (payload, Way::Read)
        }
        Some(Kind::Looks) => {
            let mut payload = begin(Form::Single);
            first.write(&mut payload, dialect);
            (payload, Way::Read)
        }
        Some(Kind::LooksLong) => {
            let mut payload = begin(Form::Transaction);
            first.write(&mut payload, dialect);
            write_command(&mut payload, &[&b"PTTL"[..], &first.key]);
            (payload, Way::Read)
        }
        Some(Kind::Changes) => {
            let form = if units.len() > 1 {
                Form::Pipeline
            } else {
                Form::Single
            };
            let mut payload = begin(form);
            units
                .iter()
                .for_each(|unit| unit.write(&mut payload, dialect));
            (payload, Way::Change)
        }
    };
    Some(Call {
        payload: payload.into(),
        key_hash,
        way,
    })
}
