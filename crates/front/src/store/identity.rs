//! The identity of the store at the other end of a connection.
//!
//! An address may belong to another process than the Redis that the pmnet server uses. An address leads to another
//! process after a failover or a restart of Redis. It may also lead to different processes on the front's and on the
//! server's machine. So the front asks which store is at the other end of a connection. The front sends no client's
//! command on the connection before the answer matches the store's name from the server's barrier (`docs/spec/wire.md`
//! §6).

use pmnet_resp::{read, reply};
use pmnet_wire::StoreName;

/// Longest answer to INFO that is parsed, in bytes.
const INFO_BYTES_MAX: usize = 64 * 1024;

/// A command that the front itself sends on a connection to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// AUTH of the front, HELLO or SELECT. An error as the answer ends the connection.
    Setting,
    /// The write before WAIT. An error as the answer to this write is the reply to WAIT.
    Marker,
    /// AUTH with the client's user and password.
    Login,
    /// The command INFO server.
    Info,
    /// The command HGET for the owner.
    Owner,
    /// The command CLIENT ID.
    Client,
    /// A command that Redis does not know. Before the store answers, it sends all messages that it still had to send.
    Fence,
}

/// The identity of the store at the other end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) run_id: String,
    /// Owner of the records. `None`: the front has not asked for the owner, or there are no records.
    pub(crate) owner: Option<String>,
    /// The store's number for the client of this connection, if known.
    pub(crate) client: Option<i64>,
    /// Version of Redis, or of the Redis with which the server is compatible; (0, 0) if unknown.
    pub(crate) version: (u32, u32),
}

/// The result of comparing a connection with a store's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    Same,
    /// The connection leads to this process, but the records have another owner. The server has loaded its records
    /// again since the connection, or the server, last read the owner.
    OtherOwner,
    Other,
}

impl Found {
    pub(crate) fn compare(&self, name: &StoreName) -> Match {
        // If the name has no owner, the server only reads this store and has not claimed the records.
        let owned = name.owner.is_empty() || self.owner.as_deref() == Some(&name.owner);
        match (self.run_id == name.run_id, owned) {
            (true, true) => Match::Same,
            (true, false) => Match::OtherOwner,
            (false, _) => Match::Other,
        }
    }
}

/// The question for the store's identity. The answer is an [`Own::Info`].
pub(crate) const ASK_RUN_ID: [&str; 2] = ["INFO", "server"];
/// The question for the connection's client number. The answer is an [`Own::Client`].
pub(crate) const ASK_CLIENT: [&str; 2] = ["CLIENT", "ID"];
/// Error text for a store that does not give its identity.
pub(crate) const NO_RUN_ID: &str = "its INFO has no run_id, so it cannot be recognised";

/// Returns the question for the owner of `records`. The answer is an [`Own::Owner`].
pub(crate) fn ask_owner(records: &str) -> [&str; 3] {
    ["HGET", records, "owner"]
}

/// Returns the run id in an answer to [`ASK_RUN_ID`].
pub(crate) fn run_id_of(reply: &[u8]) -> Option<String> {
    let info = read::bulk(reply).filter(|info| info.len() <= INFO_BYTES_MAX)?;
    let line = info
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(b"run_id:"))?;
    let run_id = String::from_utf8_lossy(line.trim_ascii()).into_owned();
    (!run_id.is_empty()).then_some(run_id)
}

/// Returns major and minor version of Redis in an answer to [`ASK_RUN_ID`]. Another server gives the version
/// of Redis with which it is compatible.
pub(crate) fn version_of(reply: &[u8]) -> Option<(u32, u32)> {
    let info = read::bulk(reply)?;
    let line = info
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(b"redis_version:"))?;
    let mut numbers = std::str::from_utf8(line.trim_ascii()).ok()?.split('.');
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

/// Returns the owner in an answer to [`ask_owner`].
pub(crate) fn owner_of(reply: &[u8]) -> Option<String> {
    read::bulk(reply).map(|owner| String::from_utf8_lossy(owner).into_owned())
}

/// Returns the store's name in the reply to a barrier, or the reason why the reply has no name.
pub(crate) fn store_name(reply: &[u8]) -> Result<StoreName, String> {
    if reply == &reply::OK[..] {
        return Err("the pmnet server's store is another one".to_owned());
    }
    let text = read::bulk(reply).ok_or_else(|| {
        let text = String::from_utf8_lossy(reply.strip_prefix(b"-").unwrap_or(reply));
        let text = text.trim().trim_start_matches("ERR ");
        // This text becomes part of an error of the front, which has the prefix already.
        text.trim_start_matches("pmnet: ").to_owned()
    })?;
    StoreName::parse(text)
        .map_err(|error| format!("{:?} is {error}", String::from_utf8_lossy(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_both_protocols_are_read() {
        for reply in [
            &b"$27\r\n# Server\r\nrun_id:abc\r\nx:1\r\n\r\n"[..],
            b"=31\r\ntxt:# Server\r\nrun_id:abc\r\nx:1\r\n\r\n",
        ] {
            assert_eq!(run_id_of(reply).as_deref(), Some("abc"));
        }
        for reply in [
            &b"$-1\r\n"[..],
            b"_\r\n",
            b"-ERR x\r\n",
            b"$3\r\nx:1\r\n",
            b"=\r",
            b"",
        ] {
            assert_eq!(run_id_of(reply), None, "{reply:?}");
        }
        assert_eq!(owner_of(b"$3\r\no-1\r\n").as_deref(), Some("o-1"));
        assert_eq!(owner_of(b"$-1\r\n"), None);
        assert_eq!(owner_of(b"_\r\n"), None);
    }

    #[test]
    fn versions_are_read() {
        let reply = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        let version = |text: &str| version_of(reply(text).as_bytes());
        assert_eq!(
            version("# Server\r\nredis_version:7.0.15\r\nx:1"),
            Some((7, 0))
        );
        assert_eq!(version("redis_version:6.2.6\r\n"), Some((6, 2)));
        assert_eq!(version("redis_version:x\r\n"), None);
        assert_eq!(version("x:1"), None);
    }

    #[test]
    fn a_store_is_the_same_if_process_and_owner_are() {
        let name = |run_id: &str, owner: &str| StoreName {
            address: ([127, 0, 0, 1], 1).into(),
            run_id: run_id.into(),
            records: "pmnet:{0}".into(),
            owner: owner.into(),
            reads: false,
        };
        let found = |owner: Option<&str>| Found {
            run_id: "a".into(),
            owner: owner.map(str::to_owned),
            client: None,
            version: (7, 0),
        };
        for (owner, other, expected) in [
            (Some("o"), name("a", "o"), Match::Same),
            (Some("o"), name("a", ""), Match::Same),
            (None, name("a", ""), Match::Same),
            (Some("o"), name("a", "p"), Match::OtherOwner),
            (None, name("a", "o"), Match::OtherOwner),
            (Some("o"), name("b", "o"), Match::Other),
            (None, name("b", ""), Match::Other),
        ] {
            assert_eq!(found(owner).compare(&other), expected, "{owner:?} {other}");
        }
    }
}
