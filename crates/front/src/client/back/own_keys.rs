//! Commands that list the keys of a database and are read from the store directly: the front takes pmnet's
//! own keys out of the reply.
//!
//! The pmnet server removes the same keys from the listings that it executes. Front and server must agree, because a
//! client may get one page of a SCAN from the front and the next from the server.

use bytes::Bytes;
use pmnet_resp::{Arguments, read, write_bulk, write_header};
use pmnet_wire::promise::RECORDS_PREFIX;

use crate::table::Facts;

/// The form in which a reply lists keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Listing {
    /// The reply is a list of keys.
    Keys,
    /// The reply is a cursor and a list of keys.
    Scan,
}

/// Returns the form in which the reply to this command lists keys; `None` if it does not list the keys of its database.
pub(in crate::client) fn listing(facts: &Facts, arguments: &Arguments<'_>) -> Option<Listing> {
    match (facts.name, arguments.len()) {
        ("KEYS", 2) => Some(Listing::Keys),
        ("SCAN", 2..) => Some(Listing::Scan),
        _ => None,
    }
}

/// Returns the reply without pmnet's own keys, which are in database 0.
pub(in crate::client) fn without_own(listing: Listing, reply: Bytes) -> Bytes {
    let Some(parts) = read::elements(&reply) else {
        return reply;
    };
    let cursor = match (listing, &parts[..]) {
        (Listing::Keys, _) => None,
        (Listing::Scan, [cursor, _]) => Some(*cursor),
        (Listing::Scan, _) => return reply,
    };
    let keys = match cursor {
        None => Some(parts),
        Some(_) => read::elements(parts[1]),
    };
    let keys = keys.unwrap_or_default();
    let own = |key: &&[u8]| read::bulk(key).is_some_and(|key| key.starts_with(RECORDS_PREFIX));
    let count = keys.iter().filter(|key| own(key)).count();
    if count == 0 {
        return reply;
    }
    let mut out = Vec::with_capacity(reply.len());
    if let Some(cursor) = cursor {
        write_header(&mut out, 2);
        out.extend_from_slice(cursor);
    }
    write_header(&mut out, keys.len() - count);
    for key in keys.iter().filter(|key| !own(key)) {
        write_bulk(&mut out, read::bulk(key).unwrap_or_default());
    }
    Bytes::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(names: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        write_header(&mut out, names.len());
        names
            .iter()
            .for_each(|name| write_bulk(&mut out, name.as_bytes()));
        out
    }

    fn page(names: &[&str]) -> Bytes {
        [b"*2\r\n$3\r\n176\r\n".to_vec(), keys(names)]
            .concat()
            .into()
    }

    #[test]
    fn only_keys_of_pmnet_are_taken_out() {
        let all = [
            "a",
            "pmnet:{0}",
            "pmnet:x",
            "pmnet:{7}:scripts",
            "b pmnet:{0}",
        ];
        let shown = ["a", "pmnet:x", "b pmnet:{0}"];
        assert_eq!(without_own(Listing::Scan, page(&all)), page(&shown));
        let listed = without_own(Listing::Keys, keys(&all).into());
        assert_eq!(listed, keys(&shown));
        for same in [page(&shown), page(&[]), page(&["a"])] {
            assert_eq!(without_own(Listing::Scan, same.clone()), same);
        }
        assert_eq!(without_own(Listing::Scan, page(&["pmnet:{0}"])), page(&[]));
        for odd in ["-ERR invalid cursor\r\n", "*1\r\n:1\r\n", ":1\r\n"] {
            let odd = Bytes::from_static(odd.as_bytes());
            assert_eq!(without_own(Listing::Scan, odd.clone()), odd);
            assert_eq!(without_own(Listing::Keys, odd.clone()), odd);
        }
    }
}
