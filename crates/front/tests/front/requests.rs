//! The front sends a client's command unchanged as the payload, up to the largest command.

use pmnet_front::limits::{BULK_BYTES_MAX, COMMAND_BYTES_MAX, REQUESTS};
use pmnet_resp::{Parser, ProtocolError, Status, write_command};
use pmnet_wire::command::{Commands, Form, PREAMBLE_LEN, Protocol, preamble};
use pmnet_wire::{FRAGMENT_BYTES_MIN, FRAGMENTS_MAX};
use proptest::prelude::*;

/// Returns the arguments of the command at the head of `input`, once as the front reads them and once as the store
/// reads them.
fn both_sides(input: &[u8]) -> [Vec<Vec<u8>>; 2] {
    let mut parser = Parser::new(REQUESTS);
    assert_eq!(parser.poll(input), Ok(Status::Complete));
    let mut payload = preamble(Form::Single, Protocol::Resp2, 0).to_vec();
    payload.extend_from_slice(parser.frame(input));
    let commands = Commands::parse(&payload).expect("a payload");
    let sent = commands.iter().next().expect("one command");
    let arguments = parser.arguments(input);
    [
        arguments.iter().map(<[u8]>::to_vec).collect(),
        sent.map(<[u8]>::to_vec).collect(),
    ]
}

proptest! {
    #[test]
    fn a_command_is_a_payload(
        command in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6),
    ) {
        let mut input = Vec::new();
        write_command(&mut input, &command);
        prop_assert_eq!(both_sides(&input), [command.clone(), command]);
    }
}

#[test]
fn an_inline_command_is_a_payload() {
    let words = vec![b"SET".to_vec(), b"k".to_vec(), b"a b\r".to_vec()];
    assert_eq!(both_sides(b"SET  k \"a b\\r\"\n"), [words.clone(), words]);
}

#[test]
fn a_value_of_sixteen_mebibytes_is_one_command() {
    let command = [b"SET".to_vec(), b"key".to_vec(), vec![b'v'; BULK_BYTES_MAX]];
    let mut input = Vec::new();
    write_command(&mut input, &command);
    let [front, store] = both_sides(&input);
    assert!(front == command && store == command);
    let room = usize::from(FRAGMENTS_MAX) * FRAGMENT_BYTES_MIN;
    assert!(
        COMMAND_BYTES_MAX + PREAMBLE_LEN <= room,
        "the largest command fits into its fragments"
    );
}

#[test]
fn a_larger_one_is_refused_by_its_length() {
    let error = Parser::new(REQUESTS)
        .poll(b"*1\r\n$16777217\r\n")
        .unwrap_err();
    assert!(matches!(error, ProtocolError::TooLarge { .. }));
    assert_eq!(
        error.to_string(),
        "Protocol error: invalid bulk length: pmnet takes commands up to 16 MiB, this one has at least 16777234 bytes"
    );
}
