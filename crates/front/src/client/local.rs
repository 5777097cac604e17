//! Commands that the front answers by itself.

use bytes::Bytes;
use pmnet_resp::reply::{self, OK};
use pmnet_resp::{Arguments, parse_integer};
use pmnet_wire::command::Protocol;

use super::back::calls::Purpose;
use super::mode::Mode;
use super::replies::Muted;
use super::{Connection, Later, Shared};
use crate::table::{Local, Sub};
use crate::upstream::Upstream;
use crate::users::Users;

/// Largest database number that is asked for; the store decides which it has.
const DATABASE_MAX: u32 = 1_000_000;

/// What a client sets for its connection, and RESET sets back.
pub(super) struct Settings {
    pub(super) protocol: Protocol,
    pub(super) database: u32,
    pub(super) name: Bytes,
    /// CLIENT NO-EVICT; the front evicts nobody.
    pub(super) no_evict: bool,
    /// CLIENT NO-TOUCH; the front's reads touch what they read.
    pub(super) no_touch: bool,
    /// CLIENT CAPA redirect. A front redirects no client.
    pub(super) redirects: bool,
    /// CLIENT SETINFO: name and version of its library.
    pub(super) library: (Bytes, Bytes),
    /// CLIENT REPLY OFF.
    pub(super) silent: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            protocol: Protocol::Resp2,
            database: 0,
            name: Bytes::new(),
            no_evict: false,
            no_touch: false,
            redirects: false,
            library: (Bytes::new(), Bytes::new()),
            silent: false,
        }
    }
}

impl Settings {
    /// CLIENT SETINFO; its number of arguments is checked.
    pub(super) fn set_info(&mut self, arguments: &Arguments<'_>) -> Bytes {
        let option = String::from_utf8_lossy(arguments.get(2));
        let own = match option.to_ascii_lowercase().as_str() {
            "lib-name" => &mut self.library.0,
            "lib-ver" => &mut self.library.1,
            _ => return reply::error(&format!("ERR Unrecognized option '{option}'")),
        };
        if !valid_name(arguments.get(3)) {
            return reply::error(&format!(
                "ERR {option} cannot contain spaces, newlines or special characters."
            ));
        }
        *own = Bytes::copy_from_slice(arguments.get(3));
        OK
    }
}

impl Connection {
    /// Answers a local command; its number of arguments is checked.
    pub(super) fn local<U: Upstream>(
        &mut self,
        local: Local,
        sub: Sub,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let answer = match local {
            Local::Ping => match arguments.len() {
                1 => Bytes::from_static(b"+PONG\r\n"),
                2 => reply::bulk(arguments.get(1)),
                _ => reply::error("ERR wrong number of arguments for 'ping' command"),
            },
            Local::Echo => reply::bulk(arguments.get(1)),
            Local::Hello => return self.hello(arguments, up, shared),
            Local::Auth => return self.auth(arguments, up, shared),
            Local::Select => return self.select(arguments, up, shared),
            Local::Quit => self.quit(),
            Local::Reset => self.reset(&shared.users),
            Local::Client => return self.client(sub, arguments, up, shared),
            Local::Multi if self.mode.transaction().is_some() => {
                reply::error("ERR MULTI calls can not be nested")
            }
            Local::Multi => {
                self.begin_transaction();
                OK
            }
            Local::Exec => return self.execute(up, shared),
            Local::Discard if self.mode.take_transaction().is_none() => {
                reply::error("ERR DISCARD without MULTI")
            }
            Local::Discard | Local::Unwatch => {
                self.unwatch();
                OK
            }
        };
        self.reply(answer);
        Ok(())
    }

    /// QUIT: answers what is outstanding, then closes.
    pub(super) fn quit(&mut self) -> Bytes {
        self.end.end();
        self.passing.drop_direct();
        OK
    }

    /// RESET: as if freshly connected.
    pub(super) fn reset(&mut self, users: &Users) -> Bytes {
        self.mode = Mode::Ordinary;
        self.unwatch();
        self.passing.drop_direct();
        self.replies.mute(Muted::No);
        self.settings = Settings {
            // As in Redis.
            library: std::mem::take(&mut self.settings.library),
            redirects: self.settings.redirects,
            ..Settings::default()
        };
        self.tracks.on = false;
        self.rights.reset(users);
        Bytes::from_static(b"+RESET\r\n")
    }

    /// AUTH; only the connection that it is sent on is logged in.
    fn auth<U: Upstream>(
        &mut self,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let answer = match arguments.len() {
            2 => self.log_in(None, arguments.get(1), up, shared)?,
            3 => self.log_in(Some(arguments.get(1)), arguments.get(2), up, shared)?,
            _ => Some(reply::error("ERR syntax error")),
        };
        if let Some(answer) = answer {
            self.reply(answer);
        }
        Ok(())
    }

    fn hello<U: Upstream>(
        &mut self,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let wish = match Hello::parse(arguments, self.settings.protocol) {
            Ok(wish) => wish,
            Err(error) => {
                self.reply(error);
                return Ok(());
            }
        };
        if let Some((user, password)) = wish.login {
            match self.log_in(Some(user), password, up, shared)? {
                Some(answer) if answer == OK => {}
                Some(error) => {
                    self.reply(error);
                    return Ok(());
                }
                None => return Ok(()),
            }
        } else if wish.wrong.is_none() && !self.may_greet(up, shared)? {
            return Ok(());
        }
        if let Some(wrong) = wish.wrong {
            self.reply(wrong);
            return Ok(());
        }
        if wish.protocol != self.settings.protocol && self.passing.subscriptions() > 0 {
            if let Some(name) = wish.name {
                self.settings.name = Bytes::copy_from_slice(name);
            }
            // In RESP2 a subscriber could not ask for another protocol.
            self.begin_resp2(arguments);
            return Ok(());
        }
        if !self.ask_about(&wish, up, shared)? {
            let name = wish.name.map(Bytes::copy_from_slice);
            let greeting = self.greet(wish.protocol, name, shared);
            self.reply(greeting);
        }
        Ok(())
    }

    /// Does what HELLO asks for, but for a login; the reply.
    pub(super) fn greet(
        &mut self,
        protocol: Protocol,
        name: Option<Bytes>,
        shared: &Shared,
    ) -> Bytes {
        if let Some(name) = name {
            self.settings.name = name;
        }
        self.settings.protocol = protocol;
        self.hello_reply(shared)
    }

    /// What HELLO says in the present protocol.
    pub(super) fn hello_reply(&self, shared: &Shared) -> Bytes {
        shared.about.reply(self.settings.protocol, self.shown_id())
    }

    /// The number of this connection as clients see it.
    pub(super) fn shown_id(&self) -> i64 {
        i64::try_from(self.id).unwrap_or(i64::MAX)
    }

    /// SELECT. A database that nobody has used yet is first checked with the store: an update acknowledged
    /// early for a database that does not exist would be lost. If the store does not answer, the connection
    /// ends, because later commands are not meant for the previous database.
    fn select<U: Upstream>(
        &mut self,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let database = match parse_database(arguments.get(1)) {
            Ok(database) => database,
            Err(error) => {
                self.reply(error);
                return Ok(());
            }
        };
        if shared.databases.contains(&database) {
            self.settings.database = database;
            self.reply(OK);
            return Ok(());
        }
        if !self.ask_store(
            database,
            &[b"DBSIZE"],
            Purpose::Select { database },
            up,
            shared,
        )? {
            self.end.cut_off();
        }
        Ok(())
    }
}

/// What a client asks for with HELLO.
pub(super) struct Hello<'a> {
    pub(super) protocol: Protocol,
    pub(super) login: Option<(&'a [u8], &'a [u8])>,
    pub(super) name: Option<&'a [u8]>,
    /// The error of an option. Those in front of it count all the same, as in Redis.
    wrong: Option<Bytes>,
}

impl<'a> Hello<'a> {
    pub(super) fn parse(arguments: &Arguments<'a>, present: Protocol) -> Result<Hello<'a>, Bytes> {
        let mut hello = Hello {
            protocol: present,
            login: None,
            name: None,
            wrong: None,
        };
        if arguments.len() > 1 {
            hello.protocol = match parse_integer(arguments.get(1)) {
                Some(2) => Protocol::Resp2,
                Some(3) => Protocol::Resp3,
                Some(_) => return Err(reply::error("NOPROTO unsupported protocol version")),
                None => {
                    return Err(reply::error(
                        "ERR Protocol version is not an integer or out of range",
                    ));
                }
            };
        }
        let mut at = 2;
        while at < arguments.len() {
            if arguments.is(at, "AUTH") && at + 2 < arguments.len() {
                hello.login = Some((arguments.get(at + 1), arguments.get(at + 2)));
                at += 3;
            } else if arguments.is(at, "SETNAME") && at + 1 < arguments.len() {
                if !valid_name(arguments.get(at + 1)) {
                    hello.wrong = Some(reply::error(BAD_NAME));
                    break;
                }
                hello.name = Some(arguments.get(at + 1));
                at += 2;
            } else {
                let option = String::from_utf8_lossy(arguments.get(at));
                let wrong = format!("ERR Syntax error in HELLO option '{option}'");
                hello.wrong = Some(reply::error(&wrong));
                break;
            }
        }
        Ok(hello)
    }

    /// The same; or the error of an option.
    pub(super) fn complete(mut self) -> Result<Self, Bytes> {
        self.wrong.take().map_or(Ok(self), Err)
    }
}

pub(super) const BAD_NAME: &str =
    "ERR Client names cannot contain spaces, newlines or special characters.";
/// Longest client name, in bytes.
const NAME_BYTES_MAX: usize = 1024;

pub(super) fn valid_name(name: &[u8]) -> bool {
    name.len() <= NAME_BYTES_MAX && name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

/// The number of a database, or the error that Redis gives.
pub(super) fn parse_database(text: &[u8]) -> Result<u32, Bytes> {
    let number = parse_integer(text)
        .ok_or_else(|| reply::error("ERR value is not an integer or out of range"))?;
    if i32::try_from(number).is_err() {
        return Err(reply::error(
            "ERR value is out of range, value must between -2147483648 and 2147483647",
        ));
    }
    u32::try_from(number)
        .ok()
        .filter(|number| *number <= DATABASE_MAX)
        .ok_or_else(|| reply::error("ERR DB index is out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_no_database_has_the_error_of_redis() {
        let range = "ERR value is out of range, value must between -2147483648 and 2147483647";
        for (text, error) in [
            ("x", "ERR value is not an integer or out of range"),
            (
                "9223372036854775808",
                "ERR value is not an integer or out of range",
            ),
            ("9223372036854775807", range),
            ("-2147483649", range),
            ("2147483647", "ERR DB index is out of range"),
            ("-1", "ERR DB index is out of range"),
        ] {
            assert_eq!(
                parse_database(text.as_bytes()),
                Err(reply::error(error)),
                "{text}"
            );
        }
        assert_eq!(parse_database(b"15"), Ok(15));
    }
}
