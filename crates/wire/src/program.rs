//! Payloads and replies of programs that are not stores of commands (`docs/spec/wire.md` §6, form `program`).
//!
//! Such payloads and replies begin with special marks. So no store of commands executes a payload for a program, no
//! program takes a fence or a command for a request, and a client can distinguish a program's reply from a store's
//! error.

use crate::command::{PREAMBLE_LEN, VERSION};

/// The preamble of a payload for a program.
pub const PREAMBLE: [u8; PREAMBLE_LEN] = [VERSION, 2, 6, 0, 0, 0, 0, 0];

/// First byte of a program's reply. No reply in RESP begins with this byte.
pub const REPLY_MARK: u8 = 1;

/// Returns the payload with its preamble.
#[must_use]
pub fn payload(bytes: &[u8]) -> Vec<u8> {
    [&PREAMBLE, bytes].concat()
}

/// Returns the bytes after the preamble; `None` if the payload is not for a program.
#[must_use]
pub fn body(payload: &[u8]) -> Option<&[u8]> {
    payload.strip_prefix(&PREAMBLE)
}

/// Returns a program's reply without its mark; `None` if the reply does not come from a program.
#[must_use]
pub fn reply_body(reply: &[u8]) -> Option<&[u8]> {
    reply.strip_prefix(&[REPLY_MARK])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{self, CommandError, Commands};

    #[test]
    fn stores_and_programs_do_not_take_each_others_payloads() {
        for bytes in [&b""[..], b"x", b"*1\r\n$4\r\nPING\r\n"] {
            let ours = payload(bytes);
            assert_eq!(body(&ours), Some(bytes));
            let refused = Commands::parse(&ours).map(|_| ());
            assert_eq!(refused, Err(CommandError::Preamble));
        }
        for theirs in [command::barrier(), command::single(&["PING"]), Vec::new()] {
            assert_eq!(body(&theirs), None);
        }
        for reply in [&b"+OK\r\n"[..], b"-ERR\r\n", b"$-1\r\n", b"", b"_\r\n"] {
            assert_eq!(reply_body(reply), None);
        }
        assert_eq!(reply_body(&[REPLY_MARK]), Some(&b""[..]));
    }
}
