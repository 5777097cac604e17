//! Settings of a client's connection, and the parsing of the commands that change them.

use bytes::Bytes;
use pmnet_resp::reply::{self, OK};
use pmnet_resp::{Arguments, parse_integer};
use pmnet_wire::command::Protocol;

use super::errors::BAD_NAME;

/// Largest database number that the store is asked about. The store decides which databases it has.
const DATABASE_MAX: u32 = 1_000_000;

/// The version of RESP and the database that a client has selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Selected {
    pub(super) protocol: Protocol,
    pub(super) database: u32,
}

/// Settings of a client's connection, which RESET resets.
pub(super) struct Settings {
    pub(super) selected: Selected,
    pub(super) name: Bytes,
    /// Set by CLIENT NO-EVICT. The setting has no effect, because the front evicts no client.
    pub(super) no_evict: bool,
    /// Set by CLIENT NO-TOUCH. The setting has no effect: the front's reads touch their keys.
    pub(super) no_touch: bool,
    /// Set by CLIENT CAPA redirect. The setting has no effect, because a front redirects no client.
    pub(super) redirects: bool,
    /// Set by CLIENT SETINFO: name and version of the client's library.
    pub(super) library: (Bytes, Bytes),
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            selected: Selected {
                protocol: Protocol::Resp2,
                database: 0,
            },
            name: Bytes::new(),
            no_evict: false,
            no_touch: false,
            redirects: false,
            library: (Bytes::new(), Bytes::new()),
        }
    }
}

impl Settings {
    /// Resets the settings, as RESET does.
    pub(super) fn reset(&mut self) {
        *self = Settings {
            // As in Redis, RESET keeps the library.
            library: std::mem::take(&mut self.library),
            redirects: self.redirects,
            ..Settings::default()
        };
    }

    /// Handles a CLIENT SETINFO whose number of arguments has been checked.
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

/// The options of a client's HELLO.
pub(super) struct Hello<'a> {
    pub(super) protocol: Protocol,
    pub(super) login: Option<(&'a [u8], &'a [u8])>,
    pub(super) name: Option<&'a [u8]>,
    /// The error of an invalid option. As in Redis, the options before the invalid option take effect.
    pub(super) wrong: Option<Bytes>,
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

    /// Returns the options, or the error that stands in `wrong`.
    pub(super) fn complete(mut self) -> Result<Self, Bytes> {
        self.wrong.take().map_or(Ok(self), Err)
    }
}

/// Longest client name, in bytes.
const NAME_BYTES_MAX: usize = 1024;

pub(super) fn valid_name(name: &[u8]) -> bool {
    name.len() <= NAME_BYTES_MAX && name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

/// Parses the number of a database. Fails with Redis's error.
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
