//! The payload language of updates and bypasses (`docs/spec/wire.md` §6).
//!
//! A payload is an eight-byte preamble, and then one RESP2 array of bulk strings (or several, for a transaction). The
//! bytes after the preamble can be sent to a Redis server unchanged. So the check is strict: the bytes must be whole
//! commands, with no other bytes before, between or after them.
//!
//! ```text
//!  0         1          2      3          4          8
//!  +---------+----------+------+----------+----------+----------------------------+
//!  | version | protocol | form | reserved | database | *2\r\n$3\r\nGET\r\n$1\r\nk… |
//!  +---------+----------+------+----------+----------+----------------------------+
//! ```

use pmnet_resp::limits::ARGUMENTS_MAX;
use pmnet_resp::write_command;

/// Version of the payload language.
pub const VERSION: u8 = 1;
/// Length of the preamble in bytes.
pub const PREAMBLE_LEN: usize = 8;
/// Maximum number of commands in one transaction.
pub const COMMANDS_MAX: usize = 64 * 1024;

/// Reply to [`Form::StoreAddress`] from a store without an address.
pub const NO_ADDRESS: &[u8] = b"-ERR pmnet: this store has no address of its own\r\n";

/// Command that asks an embedded store for the versions of keys. The reply is an array of integers: the number of the
/// store's start, and a version for each key.
pub const WATCH: &str = "PMNET.WATCH";
/// Command before the commands of a transaction, for an embedded store: the transaction runs only if all these keys
/// still have these versions. Arguments: the number of the store's start, and for each key its database, version and
/// name.
pub const UNCHANGED: &str = "PMNET.UNCHANGED";
/// Command that asks an embedded store which lists and sorted sets are new since an earlier answer. Arguments: the
/// first two integers of the earlier answer, or zeros. The reply is an array of integers: the number of the store's
/// start, the number of arrivals so far, and the [`arrival`] of each new list or sorted set, or 0 if the store no
/// longer knows them.
pub const ARRIVED: &str = "PMNET.ARRIVED";

/// Returns a number for a key and type (list or sorted set) for which a client waits. Different keys may have the same
/// number. No key has number 0.
#[must_use]
pub fn arrival(database: u32, sorted: bool, key: &[u8]) -> i64 {
    let place = u64::from(database) << 1 | u64::from(sorted);
    (key_hash(key) ^ place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .max(1)
        .cast_signed()
}

/// Relation between the commands of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Exactly one command. The reply is the command's reply.
    Single,
    /// Independent commands in order. The reply consists of the commands' replies, one after the other.
    Pipeline,
    /// Commands of MULTI … EXEC, which are executed together. The reply is the array of the commands' replies.
    Transaction,
    /// No command. When the barrier is reached, the server returns the store's name ([`crate::StoreName`]) as a bulk
    /// string, or `+OK` if the store cannot be reached directly.
    Barrier,
    /// No command. The server returns the store's name as a bulk string, or an error that says why the store has no
    /// name.
    StoreAddress,
    /// A pack: independent commands and MULTI … EXEC, in order. Each such part has one reply. The store may stop before
    /// the last part. The reply is the array of the replies to the executed parts. A reply that is not an array is the
    /// reply to all parts.
    Pack,
}

/// RESP version of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2.
    Resp2,
    /// RESP3.
    Resp3,
}

/// Reason why a payload is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The payload is too short for its preamble, or has another version of it.
    #[error("bad payload preamble")]
    Preamble,
    /// The payload is not a RESP array of bulk strings, or has bytes before, between or after the commands.
    #[error("payload is not a sequence of RESP commands")]
    Syntax,
    /// The number of commands does not fit the form.
    #[error("wrong number of commands for this form")]
    Count,
}

/// A checked view of a payload.
#[derive(Clone, Copy, Debug)]
pub struct Commands<'a> {
    /// Relation between the commands.
    pub form: Form,
    /// RESP version of the reply.
    pub protocol: Protocol,
    /// Redis database in which the commands are executed.
    pub database: u32,
    /// Number of commands.
    pub count: usize,
    /// The RESP bytes of all commands, checked.
    pub resp: &'a [u8],
}

/// Builds the preamble.
#[must_use]
pub fn preamble(form: Form, protocol: Protocol, database: u32) -> [u8; PREAMBLE_LEN] {
    let form = match form {
        Form::Single => 0,
        Form::Transaction => 1,
        Form::Barrier => 2,
        Form::StoreAddress => 3,
        Form::Pipeline => 4,
        Form::Pack => 5,
    };
    let protocol = match protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    };
    let d = database.to_be_bytes();
    [VERSION, protocol, form, 0, d[0], d[1], d[2], d[3]]
}

/// Returns a payload of one command in database 0 with RESP2 replies.
#[must_use]
pub fn single<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut out = preamble(Form::Single, Protocol::Resp2, 0).to_vec();
    write_command(&mut out, arguments);
    out
}

/// Returns a payload without commands: a barrier.
#[must_use]
pub fn barrier() -> Vec<u8> {
    preamble(Form::Barrier, Protocol::Resp2, 0).to_vec()
}

impl<'a> Commands<'a> {
    /// Parses and checks a whole payload.
    ///
    /// # Errors
    /// [`CommandError`] with the first fault.
    pub fn parse(payload: &'a [u8]) -> Result<Commands<'a>, CommandError> {
        let (head, resp) = payload
            .split_first_chunk::<PREAMBLE_LEN>()
            .ok_or(CommandError::Preamble)?;
        if head[0] != VERSION || head[3] != 0 {
            return Err(CommandError::Preamble);
        }
        let protocol = match head[1] {
            2 => Protocol::Resp2,
            3 => Protocol::Resp3,
            _ => return Err(CommandError::Preamble),
        };
        let form = match head[2] {
            0 => Form::Single,
            1 => Form::Transaction,
            2 => Form::Barrier,
            3 => Form::StoreAddress,
            4 => Form::Pipeline,
            5 => Form::Pack,
            _ => return Err(CommandError::Preamble),
        };
        let database = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        let mut count = 0;
        let mut rest = resp;
        let mut units = Units::default();
        while !rest.is_empty() {
            let (command, after) = split_command(rest).ok_or(CommandError::Syntax)?;
            units.note(command);
            rest = after;
            count += 1;
        }
        let right = match form {
            Form::Single => count == 1,
            Form::Transaction | Form::Pipeline => (1..=COMMANDS_MAX).contains(&count),
            Form::Pack => (1..=COMMANDS_MAX).contains(&count) && units.are_whole(),
            Form::Barrier | Form::StoreAddress => count == 0,
        };
        if !right {
            return Err(CommandError::Count);
        }
        Ok(Commands {
            form,
            protocol,
            database,
            count,
            resp,
        })
    }

    /// Returns the commands, each as the iterator of its arguments.
    pub fn iter(&self) -> impl Iterator<Item = Arguments<'a>> + use<'a> {
        let mut rest = self.resp;
        core::iter::from_fn(move || {
            let (left, after) = read_number(rest, b'*')?;
            let command = Arguments { left, rest: after };
            rest = skip_command(rest)?;
            Some(command)
        })
    }

    /// Returns the parts of a pack in order; each is one command, or a transaction.
    pub fn units(&self) -> impl Iterator<Item = Unit<'a>> + use<'a> {
        let (pack, mut rest) = (*self, self.resp);
        let part = move |form, count, resp| Commands {
            form,
            count,
            resp,
            ..pack
        };
        core::iter::from_fn(move || {
            let all = rest;
            let (first, after) = split_command(all)?;
            rest = after;
            if first != MULTI {
                return Some(Unit {
                    commands: part(Form::Single, 1, first),
                    resp: first,
                });
            }
            let mut count = 0;
            loop {
                let before = rest;
                let (command, left) = split_command(before)?;
                rest = left;
                if command == EXEC {
                    let inside = &after[..after.len() - before.len()];
                    return Some(Unit {
                        commands: part(Form::Transaction, count, inside),
                        resp: &all[..all.len() - rest.len()],
                    });
                }
                count += 1;
            }
        })
    }
}

/// A part of a pack that has one reply.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    /// The part as a request of its own: a command, or a transaction without MULTI and EXEC.
    pub commands: Commands<'a>,
    /// Bytes of the part in the pack.
    pub resp: &'a [u8],
}

/// The bytes before a transaction in a pack. No other form of MULTI is accepted.
pub const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
/// The bytes after a transaction in a pack.
pub const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// Checks whether the transactions of a pack are whole, command by command.
#[derive(Default)]
struct Units {
    /// Number of commands in the transaction that has begun.
    inside: Option<usize>,
    broken: bool,
}

impl Units {
    fn note(&mut self, command: &[u8]) {
        match (&mut self.inside, command) {
            (inside @ None, MULTI) => *inside = Some(0),
            (inside @ Some(1..), EXEC) => *inside = None,
            (_, MULTI | EXEC) => self.broken = true,
            (Some(count), _) => *count += 1,
            (None, _) => {}
        }
    }

    fn are_whole(&self) -> bool {
        !self.broken && self.inside.is_none()
    }
}

/// Iterator over the arguments of one command, name first.
#[derive(Clone, Debug)]
pub struct Arguments<'a> {
    left: usize,
    rest: &'a [u8],
}

impl<'a> Iterator for Arguments<'a> {
    type Item = &'a [u8];
    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (argument, rest) = read_bulk(self.rest)?;
        self.rest = rest;
        Some(argument)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Arguments<'_> {}

/// Reads `<marker><digits>\r\n`. Only canonical decimal is accepted, so that this check and a Redis server cannot read
/// different numbers.
fn read_number(bytes: &[u8], marker: u8) -> Option<(usize, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    if first != marker {
        return None;
    }
    let end = rest.iter().take(10).position(|&b| b == b'\r')?;
    let digits = &rest[..end];
    if digits.is_empty()
        || (digits[0] == b'0' && digits.len() > 1)
        || rest.get(end + 1) != Some(&b'\n')
    {
        return None;
    }
    let mut value = 0usize;
    for &d in digits {
        value = value
            .checked_mul(10)?
            .checked_add(usize::from(d.checked_sub(b'0').filter(|d| *d <= 9)?))?;
    }
    Some((value, &rest[end + 2..]))
}

fn read_bulk(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = read_number(bytes, b'$')?;
    if rest.len() < length.checked_add(2)? || &rest[length..length + 2] != b"\r\n" {
        return None;
    }
    Some((&rest[..length], &rest[length + 2..]))
}

fn split_command(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let after = skip_command(bytes)?;
    Some((&bytes[..bytes.len() - after.len()], after))
}

fn skip_command(bytes: &[u8]) -> Option<&[u8]> {
    let (arguments, mut rest) = read_number(bytes, b'*')?;
    if arguments == 0 || arguments > ARGUMENTS_MAX {
        return None;
    }
    for _ in 0..arguments {
        rest = read_bulk(rest)?.1;
    }
    Some(rest)
}

/// Returns a 64-bit hash of a key (FNV-1a), for the `key_hash` field; 0 is reserved for "unknown".
#[must_use]
pub fn key_hash(key: &[u8]) -> u64 {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash.max(1)
}
