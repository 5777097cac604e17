//! The payload of an update: one `SET` with exactly the requested length.

use anyhow::Context;
use pmnet_wire::command;

/// Maximum number of bytes by which a key is made longer.
const KEY_MORE_MAX: usize = 8;
/// Maximum number of digits of a value's length.
const DIGITS_MAX: usize = 6;

/// Returns a `SET` of exactly this length, including the preamble. `number` selects the key.
///
/// # Errors
/// Fails if the length is too short for a `SET`.
pub fn payload(bytes: usize, number: usize) -> anyhow::Result<Vec<u8>> {
    // One more byte of value may make the payload two bytes longer, if the length of the value gets another digit. Then
    // a longer key gives the exact length.
    let fitting = (0..KEY_MORE_MAX).find_map(|more| {
        let key = format!("k{}{}", number % 100, "x".repeat(more));
        let set = |value: &[u8]| command::single(&[b"SET", key.as_bytes(), value]);
        let empty = set(b"").len();
        (0..DIGITS_MAX).find_map(|digits| {
            let payload = set(&vec![b'v'; bytes.checked_sub(empty + digits)?]);
            (payload.len() == bytes).then_some(payload)
        })
    });
    fitting.with_context(|| format!("a payload of {bytes} bytes cannot be made"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::micro::{PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MIN};

    #[test]
    fn payloads_are_commands_of_every_length() {
        for bytes in PAYLOAD_BYTES_MIN..=PAYLOAD_BYTES_MAX {
            for number in [0, 63] {
                let payload = payload(bytes, number).unwrap();
                assert_eq!(payload.len(), bytes);
                assert_eq!(command::Commands::parse(&payload).unwrap().count, 1);
            }
        }
    }
}
