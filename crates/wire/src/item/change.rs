//! Changes of an item that depend on the item's present state.

use super::number::c_unsigned;
use super::{Item, NO_ITEM};

/// How old and new data are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The new data replaces the old data.
    Replace,
    /// The new data follows the old data.
    Append,
    /// The new data precedes the old data.
    Prepend,
}

/// Change of an item's time of expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Keeps the time of expiry.
    Keep,
    /// Sets this time, in milliseconds since 1970; 0: the item does not expire.
    Until(u64),
}

/// A change of an item. If `compare` is given, the change applies only if the item's unique number equals it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Stores an item in place of an existing item: `cas`, `append`, `prepend`.
    Store {
        /// How old and new data are combined.
        mode: Mode,
        /// Unique number that the item must have.
        compare: Option<u64>,
        /// If the item is newer than `compare`, it is replaced nevertheless, and the new item is marked as stale.
        stale: bool,
        /// The new item, with its new unique number.
        item: Item<'a>,
        /// Time of expiry in milliseconds since 1970, unless the old item's time is kept; 0: the item does not expire.
        until: u64,
        /// Maximum number of bytes of the combined data.
        data_max: u64,
    },
    /// Changes a counter: `incr`, `decr`.
    Count {
        /// Whether the counter is increased.
        up: bool,
        /// Amount of the change.
        delta: u64,
        /// Unique number that the item must have.
        compare: Option<u64>,
        /// New unique number of the item.
        unique: u64,
        /// If no item exists: value and time of expiry of a new item.
        initial: Option<(u64, u64)>,
        /// Change of the time of expiry of an existing item.
        touch: Touch,
    },
    /// Removes an item, or marks it as stale.
    Drop {
        /// Unique number that the item must have.
        compare: Option<u64>,
        /// True: the item is only marked as stale, and not removed.
        stale: bool,
        /// If the item is marked: its new unique number.
        unique: u64,
        /// If the item is marked: change of its time of expiry.
        touch: Touch,
    },
    /// Returns an item, and may promise its renewal to the caller.
    Fetch {
        /// Unique number of a new item, if one is made.
        unique: u64,
        /// If no item exists: time of expiry of a new, empty item. `None`: no item is made.
        vivify: Option<u64>,
        /// Change of the time of expiry of an existing item.
        touch: Touch,
        /// If the item expires in fewer seconds than this number, its renewal is promised to the caller, unless the
        /// renewal was already promised to another client.
        recache: u64,
    },
}

/// The present item before a change.
#[derive(Clone, Copy, Debug)]
pub struct Old<'a> {
    /// The stored string.
    pub stored: &'a [u8],
    /// Milliseconds until the item expires; `None`: it does not expire.
    pub left: Option<u64>,
}

/// The effect of a change on the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The store is unchanged.
    Nothing,
    /// The key gets this string, with this change of its time of expiry.
    String(Vec<u8>, Touch),
    /// The key is removed.
    Removed,
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Effect on the stored item.
    pub written: Written,
    /// Status in the reply.
    pub status: &'static str,
    /// Text in the reply.
    pub text: Vec<u8>,
    /// Whether the item is new, or its renewal is promised to the caller.
    pub won: bool,
}

impl Applied {
    fn nothing(status: &'static str) -> Applied {
        Applied {
            written: Written::Nothing,
            status,
            text: Vec::new(),
            won: false,
        }
    }

    fn writes(status: &'static str, item: Item<'_>, touch: Touch) -> Applied {
        Applied {
            written: Written::String(item.stored(), touch),
            ..Applied::nothing(status)
        }
    }
}

const EXISTS: &str = "EXISTS";
const NOT_FOUND: &str = "NOT_FOUND";
const NOT_STORED: &str = "NOT_STORED";
const STORED: &str = "STORED";

impl<'a> Change<'a> {
    /// Returns the arguments after the key, which are equal in both forms of the command.
    #[must_use]
    pub fn arguments(&self) -> Vec<Vec<u8>> {
        let number = |number: u64| number.to_string().into_bytes();
        let flag = |flag: bool| number(u64::from(flag));
        let raw = |unique: u64| unique.to_be_bytes().to_vec();
        let compared = |compare: &Option<u64>| compare.map_or_else(Vec::new, raw);
        let end = |touch: &Touch| match *touch {
            Touch::Keep => Vec::new(),
            Touch::Until(end) => number(end),
        };
        match self {
            Change::Store {
                mode,
                compare,
                stale,
                item,
                until,
                data_max,
            } => {
                let mode = match mode {
                    Mode::Replace => "REPLACE",
                    Mode::Append => "APPEND",
                    Mode::Prepend => "PREPEND",
                };
                vec![
                    b"STORE".into(),
                    mode.into(),
                    compared(compare),
                    flag(*stale),
                    item.stored(),
                    number(*until),
                    number(*data_max),
                ]
            }
            Change::Count {
                up,
                delta,
                compare,
                unique,
                initial,
                touch,
            } => vec![
                b"COUNT".into(),
                flag(*up),
                number(*delta),
                compared(compare),
                raw(*unique),
                initial.map_or_else(Vec::new, |(value, _)| number(value)),
                number(initial.map_or(0, |(_, until)| until)),
                end(touch),
            ],
            Change::Drop {
                compare,
                stale,
                unique,
                touch,
            } => vec![
                b"DROP".into(),
                compared(compare),
                flag(*stale),
                raw(*unique),
                end(touch),
            ],
            Change::Fetch {
                unique,
                vivify,
                touch,
                recache,
            } => vec![
                b"FETCH".into(),
                raw(*unique),
                vivify.map_or_else(Vec::new, number),
                end(touch),
                number(*recache),
            ],
        }
    }

    /// Reads [`Change::arguments`]; `None`: the arguments have another form.
    #[must_use]
    pub fn parse(arguments: &[&'a [u8]]) -> Option<Change<'a>> {
        let flag = |text: &[u8]| number(text).map(|flag| flag != 0);
        match *arguments {
            [b"STORE", mode, compare, stale, item, until, data_max] => Some(Change::Store {
                mode: match mode {
                    b"REPLACE" => Mode::Replace,
                    b"APPEND" => Mode::Append,
                    b"PREPEND" => Mode::Prepend,
                    _ => return None,
                },
                compare: compared(compare)?,
                stale: flag(stale)?,
                item: Item::parse(item)?,
                until: number(until)?,
                data_max: number(data_max)?,
            }),
            [b"COUNT", up, delta, compare, unique, initial, until, touch] => Some(Change::Count {
                up: flag(up)?,
                delta: number(delta)?,
                compare: compared(compare)?,
                unique: raw(unique)?,
                initial: match optional(initial)? {
                    Some(value) => Some((value, number(until)?)),
                    None => None,
                },
                touch: end(touch)?,
            }),
            [b"DROP", compare, stale, unique, touch] => Some(Change::Drop {
                compare: compared(compare)?,
                stale: flag(stale)?,
                unique: raw(unique)?,
                touch: end(touch)?,
            }),
            [b"FETCH", unique, vivify, touch, recache] => Some(Change::Fetch {
                unique: raw(unique)?,
                vivify: optional(vivify)?,
                touch: end(touch)?,
                recache: number(recache)?,
            }),
            _ => None,
        }
    }

    /// Returns the effect on the present item.
    ///
    /// # Errors
    /// [`NO_ITEM`].
    pub fn apply(&self, old: Option<Old<'_>>) -> Result<Applied, &'static str> {
        let item = match old {
            Some(old) => Some(Item::parse(old.stored).ok_or(NO_ITEM)?),
            None => None,
        };
        let left = old.and_then(|old| old.left);
        Ok(match self {
            Change::Store { mode, .. } => match item {
                Some(old) => self.store_over(old),
                None if *mode == Mode::Replace => Applied::nothing(NOT_FOUND),
                None => Applied::nothing(NOT_STORED),
            },
            Change::Count { .. } => self.count(item),
            Change::Drop { .. } => {
                item.map_or_else(|| Applied::nothing(NOT_FOUND), |old| self.drop_one(old))
            }
            Change::Fetch { .. } => self.fetch(item, left),
        })
    }

    fn store_over(&self, old: Item<'_>) -> Applied {
        let Change::Store {
            mode,
            compare,
            stale,
            item,
            until,
            data_max,
        } = *self
        else {
            return Applied::nothing(NOT_STORED);
        };
        let same = compare.is_none_or(|unique| unique == old.unique);
        let older = stale && compare.is_some_and(|unique| unique < old.unique);
        if mode == Mode::Replace {
            return match () {
                () if same => Applied::writes(STORED, item, Touch::Until(until)),
                () if older => {
                    let item = Item {
                        stale: true,
                        token_sent: old.token_sent,
                        ..item
                    };
                    Applied::writes(STORED, item, Touch::Keep)
                }
                () => Applied::nothing(EXISTS),
            };
        }
        if !same {
            return Applied::nothing(EXISTS);
        }
        let data = if mode == Mode::Append {
            [old.data, item.data].concat()
        } else {
            [item.data, old.data].concat()
        };
        if u64::try_from(data.len()).unwrap_or(u64::MAX) > data_max {
            return Applied::nothing(NOT_STORED);
        }
        let joined = Item::new(old.flags, item.unique, &data);
        Applied::writes(STORED, joined, Touch::Keep)
    }

    fn count(&self, old: Option<Item<'_>>) -> Applied {
        let Change::Count {
            up,
            delta,
            compare,
            unique,
            initial,
            touch,
        } = *self
        else {
            return Applied::nothing(NOT_FOUND);
        };
        let Some(old) = old else {
            let Some((value, until)) = initial else {
                return Applied::nothing(NOT_FOUND);
            };
            let text = value.to_string().into_bytes();
            let new = Item::new(0, unique, &text);
            let applied = Applied::writes("NEW", new, Touch::Until(until));
            return Applied {
                won: true,
                text,
                ..applied
            };
        };
        if old.data.is_empty() {
            return Applied::nothing("NON_NUMERIC");
        }
        if compare.is_some_and(|compare| compare != old.unique) {
            return Applied::nothing(EXISTS);
        }
        let Some(value) = c_unsigned(old.data) else {
            return Applied::nothing("NON_NUMERIC");
        };
        let value = if up {
            value.wrapping_add(delta)
        } else {
            value.saturating_sub(delta)
        };
        let text = value.to_string().into_bytes();
        // As memcached does, a shorter number is padded with spaces to the length of the old number.
        let in_place = text.len() <= old.data.len();
        let mut data = text.clone();
        data.resize(text.len().max(old.data.len()), b' ');
        let new = Item {
            stale: old.stale && in_place,
            token_sent: old.token_sent && in_place,
            ..Item::new(old.flags, unique, &data)
        };
        Applied {
            text,
            ..Applied::writes("OK", new, touch)
        }
    }

    fn drop_one(&self, old: Item<'_>) -> Applied {
        let Change::Drop {
            compare,
            stale,
            unique,
            touch,
        } = *self
        else {
            return Applied::nothing(NOT_FOUND);
        };
        if compare.is_some_and(|compare| compare != old.unique) {
            return Applied::nothing(EXISTS);
        }
        if !stale {
            return Applied {
                written: Written::Removed,
                ..Applied::nothing("DELETED")
            };
        }
        let marked = Item {
            stale: true,
            token_sent: false,
            unique,
            ..old
        };
        Applied::writes("DELETED", marked, touch)
    }

    fn fetch(&self, old: Option<Item<'_>>, left: Option<u64>) -> Applied {
        let Change::Fetch {
            unique,
            vivify,
            touch,
            recache,
        } = *self
        else {
            return Applied::nothing(NOT_FOUND);
        };
        let Some(old) = old else {
            let Some(until) = vivify else {
                return Applied::nothing(NOT_FOUND);
            };
            let new = Item::new(0, unique, b"");
            let kept = Item {
                token_sent: true,
                ..new
            };
            return Applied {
                text: new.stored(),
                won: true,
                ..Applied::writes("NEW", kept, Touch::Until(until))
            };
        };
        let ends_soon = left.is_some_and(|left| left.div_ceil(1000) < recache);
        let won = !old.token_sent && (old.stale || ends_soon);
        let written = if won || touch != Touch::Keep {
            let kept = Item {
                token_sent: old.token_sent || won,
                ..old
            };
            Written::String(kept.stored(), touch)
        } else {
            Written::Nothing
        };
        Applied {
            written,
            status: "HIT",
            text: old.stored(),
            won,
        }
    }
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn raw(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// Reads an optional number. `None`: the text is neither empty nor a number.
fn optional(text: &[u8]) -> Option<Option<u64>> {
    if text.is_empty() {
        return Some(None);
    }
    number(text).map(Some)
}

fn compared(bytes: &[u8]) -> Option<Option<u64>> {
    if bytes.is_empty() {
        return Some(None);
    }
    raw(bytes).map(Some)
}

fn end(text: &[u8]) -> Option<Touch> {
    Some(optional(text)?.map_or(Touch::Keep, Touch::Until))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_as_it_was_written_and_nothing_else_is_one() {
        let item = Item::new(5, 6, b"data");
        for change in [
            Change::Store {
                mode: Mode::Append,
                compare: Some(0),
                stale: true,
                item,
                until: 7,
                data_max: 8,
            },
            Change::Count {
                up: false,
                delta: u64::MAX,
                compare: None,
                unique: 1,
                initial: Some((2, 3)),
                touch: Touch::Until(0),
            },
            Change::Drop {
                compare: Some(1),
                stale: false,
                unique: 2,
                touch: Touch::Keep,
            },
            Change::Fetch {
                unique: 1,
                vivify: Some(0),
                touch: Touch::Until(5),
                recache: 9,
            },
        ] {
            let arguments = change.arguments();
            let mut seen: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            assert_eq!(Change::parse(&seen), Some(change));
            for at in 0..seen.len() {
                let right = std::mem::replace(&mut seen[at], b"?");
                assert_eq!(Change::parse(&seen), None, "{change:?} {at}");
                seen[at] = right;
            }
            assert_eq!(Change::parse(&seen[1..]), None);
        }
    }
}
