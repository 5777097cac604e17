//! The connection on which Redis reports every changed key to the front, without its socket.
//!
//! First the front asks which Redis is at the other end, because only reports of the Redis that the pmnet server uses
//! count. Then the front asks for reports about all keys (CLIENT TRACKING ON BCAST). Once Redis has answered the
//! request for reports, no change is missed. From time to time the front asks for a sign of life.

use std::net::SocketAddr;

use pmnet_resp::read;
use pmnet_wire::StoreName;

use super::StoreAddress;
use super::identity::{ASK_RUN_ID, NO_RUN_ID, run_id_of};
use super::line::{ELSEWHERE, Line, UNASKED};
use crate::limits::REPLIES;
use crate::shell::socket::{Ended, Unwritten};
use crate::tracking::Tracking;

/// Questions on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Login,
    Resp3,
    Info,
    Tracking,
    Life,
    /// A fence, with its number: the first fence has number 1. The answer to a fence is a sign of life, too.
    Fence(u64),
}

/// Why a connection is unusable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The connection is lost, and will be made again.
    Lost(String),
    /// Redis refuses to report changed keys.
    Refused(String),
}

impl From<Ended> for Heard {
    fn from(ended: Ended) -> Heard {
        Heard::Lost(ended.why("closed by Redis"))
    }
}

/// The connection on which Redis reports changed keys.
pub(crate) struct ChangesLine {
    line: Line<Asked>,
    /// Run id of the process at the other end.
    run_id: Option<String>,
    /// Whether Redis reports every changed key.
    pub(crate) is_up: bool,
    /// Number of fences sent.
    fences: u64,
}

impl ChangesLine {
    pub(crate) fn new(store: &StoreAddress) -> ChangesLine {
        let mut line = Line::new(store, REPLIES);
        line.log_in(store, Asked::Login);
        line.ask(Asked::Resp3, &["HELLO", "3"]);
        line.ask(Asked::Info, &ASK_RUN_ID);
        line.ask(Asked::Tracking, &["CLIENT", "TRACKING", "ON", "BCAST"]);
        ChangesLine {
            line,
            run_id: None,
            is_up: false,
            fences: 0,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.line.address
    }

    /// Returns the run id of the process at the other end, if known.
    pub(crate) fn run_id(&self) -> Option<&str> {
        self.run_id.as_deref()
    }

    /// Asks for a sign of life, unless the answer to an earlier question is outstanding.
    pub(crate) fn poke(&mut self) {
        if self.line.asked().is_empty() {
            self.line.ask(Asked::Life, &["PING"]);
        }
    }

    /// Sends a fence if a fence was requested and has not been sent. Reports that come before the answer to the fence
    /// may be about old changes.
    pub(crate) fn fence(&mut self, asked: u64) {
        if self.is_up && self.fences < asked {
            self.fences = asked;
            self.line.ask(Asked::Fence(asked), &["PING"]);
        }
    }

    /// Takes bytes from Redis. Redis's reports about keys go to `tracking`.
    ///
    /// # Errors
    /// The reason why the connection is unusable.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        name: Option<&StoreName>,
        tracking: &mut Tracking,
    ) -> Result<(), Heard> {
        self.line.receive(bytes);
        let lost = |error: pmnet_resp::Malformed| Heard::Lost(error.to_string());
        while let Some(value) = self.line.next().map_err(lost)? {
            if value.starts_with(b">") {
                told(&value, tracking)?;
            } else if let Some(asked) = self.line.answered() {
                self.answered(asked, &value, name)?;
                if let Asked::Fence(count) = asked {
                    tracking.passed_fences(count);
                }
            } else {
                return Err(Heard::Lost(UNASKED.into()));
            }
        }
        Ok(())
    }

    fn answered(
        &mut self,
        asked: Asked,
        value: &[u8],
        name: Option<&StoreName>,
    ) -> Result<(), Heard> {
        if matches!(asked, Asked::Life | Asked::Fence(_)) {
            // An error is a sign of life, too.
            return Ok(());
        }
        if let Some(error) = read::error(value) {
            let passes = ["BUSY", "LOADING", "MASTERDOWN"];
            return Err(if passes.iter().any(|word| error.starts_with(word)) {
                Heard::Lost(error.to_owned())
            } else {
                Heard::Refused(error.to_owned())
            });
        }
        match asked {
            Asked::Info => {
                let lost = |why: &str| Heard::Lost(why.into());
                let run_id = run_id_of(value).ok_or_else(|| lost(NO_RUN_ID))?;
                if name.is_none_or(|name| name.run_id != run_id) {
                    return Err(lost(ELSEWHERE));
                }
                self.run_id = Some(run_id);
            }
            Asked::Tracking => self.is_up = true,
            Asked::Login | Asked::Resp3 | Asked::Life | Asked::Fence(_) => {}
        }
        Ok(())
    }
}

impl Unwritten for ChangesLine {
    fn unwritten(&self) -> &[u8] {
        self.line.unwritten()
    }

    fn wrote(&mut self, count: usize) {
        self.line.wrote(count);
    }
}

/// Gives a report about keys to `tracking`.
fn told(value: &[u8], tracking: &mut Tracking) -> Result<(), Heard> {
    let odd = || Heard::Lost(UNASKED.into());
    let elements = read::elements(value).ok_or_else(odd)?;
    let [kind, what] = elements[..] else {
        return Err(odd());
    };
    if read::bulk(kind) != Some(b"invalidate") {
        return Err(odd());
    }
    if what.starts_with(b"_") || what.starts_with(b"*-1") {
        tracking.all_changed();
        return Ok(());
    }
    let keys = read::elements(what).ok_or_else(odd)?;
    let keys: Option<Vec<&[u8]>> = keys.into_iter().map(read::bulk).collect();
    tracking.changed(&keys.ok_or_else(odd)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracking::{Told, Wish};

    fn name(run_id: &str) -> StoreName {
        StoreName {
            address: ([127, 0, 0, 1], 1).into(),
            run_id: run_id.into(),
            records: "pmnet:{0}".into(),
            owner: String::new(),
            reads: false,
        }
    }

    const HELLO: &str = "+OK\r\n%1\r\n$1\r\na\r\n:1\r\n";
    const INFO: &str = "=12\r\ntxt:run_id:a\r\n";

    fn greet(said: &[&str]) -> (Result<(), Heard>, bool, Vec<(u64, Told)>) {
        let store = StoreAddress::parse("redis://u:secret@127.0.0.1:1").unwrap();
        let mut link = ChangesLine::new(&store);
        let mut tracking = Tracking::default();
        tracking.begin(1, Wish::default()).unwrap();
        tracking.register(1, b"k");
        let name = name("a");
        let mut result = Ok(());
        for said in said {
            result =
                result.and_then(|()| link.receive(said.as_bytes(), Some(&name), &mut tracking));
        }
        (result, link.is_up, tracking.take_outbox())
    }

    #[test]
    fn it_is_up_when_redis_has_agreed() {
        let (result, up, told) = greet(&[HELLO, INFO]);
        assert_eq!((result, up, told.len()), (Ok(()), false, 0));
        let push = ">2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\nx\r\n$1\r\nk\r\n";
        let (result, up, told) = greet(&[HELLO, INFO, "+OK\r\n", push]);
        assert_eq!((result, up), (Ok(()), true));
        let keys = Told::Keys(bytes::Bytes::from_static(b"*1\r\n$1\r\nk\r\n"));
        assert_eq!(told, [(1, keys)]);
        let flush = ">2\r\n$10\r\ninvalidate\r\n_\r\n";
        let (result, _, told) = greet(&[HELLO, INFO, "+OK\r\n", flush]);
        assert_eq!((result, told), (Ok(()), vec![(1, Told::All)]));
    }

    #[test]
    fn what_redis_refuses_is_told_from_what_passes() {
        for (said, refused) in [
            ("-NOPERM x\r\n", true),
            ("-BUSY x\r\n", false),
            ("+OK\r\n:1\r\n", false),
            (">1\r\n$1\r\nx\r\n", false),
            (">2\r\n$10\r\ninvalidate\r\n:1\r\n", false),
            (">2\r\n$10\r\ninvalidate\r\n*1\r\n:1\r\n", false),
        ] {
            let (result, _, _) = greet(&[HELLO, INFO, said]);
            let error = result.unwrap_err();
            assert_eq!(
                matches!(error, Heard::Refused(_)),
                refused,
                "{said}: {error:?}"
            );
        }
        let (result, up, _) = greet(&[HELLO, "=12\r\ntxt:run_id:b\r\n"]);
        assert!(
            matches!(result, Err(Heard::Lost(_))) && !up,
            "another Redis"
        );
    }
}
