//! The commands that are *promised*: acknowledged before Redis has received them (`docs/spec/protocol.md` §1 "nilext").
//! Front and store use the same rule. [`crate::guard`] lists the changes that clients may not make at this Redis.
//!
//! The front acknowledges a command early if [`is_promised`] is true. If Redis refuses such a command, the store's
//! adaptor keeps the command and never drops it. Front and adaptor refuse commands that touch pmnet's own records.

/// Prefix of the names of pmnet's own records in a Redis. A client's command must not have an argument with this
/// prefix. If it has one, it is not promised.
pub const RECORDS_PREFIX: &[u8] = b"pmnet:{";

/// Largest time to live that is promised, in milliseconds (about 3,000 years). Redis refuses values near
/// the end of the 64-bit range, depending on its clock.
const TTL_MS_MAX: u64 = 100_000_000_000_000;
/// Maximum number of digits of a number that is read. Longer numbers exceed every limit in this module.
const DIGITS_MAX: usize = 18;

/// Returns whether this command may be acknowledged before Redis has received it. `count` is the number of its
/// arguments, of which the first is its name. The command must be a plain SET, MSET, SETEX or PSETEX in a form that
/// Redis 6.2 and later accept for any data. The replies of these commands do not depend on the data. Because the
/// command must not fail at Redis, its form is checked at least as strictly as Redis checks it.
pub fn is_promised<'a>(count: usize, argument: impl Fn(usize) -> &'a [u8]) -> bool {
    if count == 0 {
        return false;
    }
    let is = |index: usize, word: &str| argument(index).eq_ignore_ascii_case(word.as_bytes());
    let form = if is(0, "SET") {
        match count {
            3 => true,
            4 => is(3, "KEEPTTL"),
            5 if is(3, "EX") || is(3, "EXAT") => is_ttl(argument(4), 1000),
            5 if is(3, "PX") || is(3, "PXAT") => is_ttl(argument(4), 1),
            _ => false,
        }
    } else if is(0, "MSET") {
        count >= 3 && count % 2 == 1
    } else {
        (is(0, "SETEX") && count == 4 && is_ttl(argument(2), 1000))
            || (is(0, "PSETEX") && count == 4 && is_ttl(argument(2), 1))
    };
    form && !(0..count).any(|index| argument(index).starts_with(RECORDS_PREFIX))
}

/// Returns whether a text is a time to live that Redis accepts: a positive number of units of `unit_ms` milliseconds,
/// in canonical decimal.
fn is_ttl(text: &[u8], unit_ms: u64) -> bool {
    let plain = (1..=DIGITS_MAX).contains(&text.len())
        && text[0] != b'0'
        && text.iter().all(u8::is_ascii_digit);
    plain
        && std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
            .is_some_and(|ttl| ttl <= TTL_MS_MAX / unit_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promised(line: &str) -> bool {
        let words: Vec<&str> = line.split_whitespace().collect();
        is_promised(words.len(), |index| words[index].as_bytes())
    }

    #[test]
    fn what_redis_cannot_refuse_is_promised() {
        for line in [
            "SET k v",
            "set k v keepttl",
            "SET k v EX 1",
            "SET k v exat 1",
            "SET k v PX 1",
            "SET k v PXAT 9",
            // The longest times that are promised.
            "SET k v EX 100000000000",
            "SET k v PX 100000000000000",
            "SETEX k 100000000000 v",
            "PSETEX k 100000000000000 v",
            "SETEX k 1 v",
            "PSETEX k 1 v",
            "MSET k v",
            "mset k v l w",
            // The argument contains the prefix, but does not begin with it.
            "SET k xpmnet:{0}",
            "SET pmnet: v",
        ] {
            assert!(promised(line), "{line}");
        }
    }

    #[test]
    fn nothing_else_is_promised() {
        for line in [
            "",
            "SET",
            "SET k",
            "SET k v NX",
            "SET k v KEEPTTL 1",
            "SET k v NX 1",
            "SET k v EX",
            "SET k v EX 1 NX",
            "SET k v EX 0",
            "SET k v EX 01",
            "SET k v EX -1",
            "SET k v EX +1",
            "SET k v EX 1.0",
            "SET k v EX 1x",
            "SET k v EX 100000000001",
            "SET k v EXAT 100000000001",
            "SET k v PX 100000000000001",
            "SET k v PXAT 100000000000001",
            "SET k v PX 99999999999999999999",
            "SETEX k 1",
            "SETEX k 1 v w",
            "SETEX k 0 v",
            "SETEX k 100000000001 v",
            "PSETEX k 1",
            "PSETEX k 1 v w",
            "PSETEX k 100000000000001 v",
            "MSET",
            "MSET k",
            "MSET k v l",
            "MSETNX k v",
            "GET k 1 v",
            "APPEND k v",
            "SET pmnet:{0} v",
            "SET k pmnet:{",
            "MSET k v pmnet:{7}:scripts w",
        ] {
            assert!(!promised(line), "{line}");
        }
        assert!(!is_ttl(b"", 1));
    }
}
