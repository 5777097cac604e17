//! The payloads of packets: the commands of updates and bypasses, and the rows that hops exchange
//! (`docs/spec/wire.md` §5, §6).
//!
//! Invariants: reading never panics nor allocates by an unchecked length; accepted commands are
//! written again as the same bytes; parsed rows are written to bytes that parse to the same rows.

use pmnet_resp::write_command;
use pmnet_wire::command::{Commands, Form, preamble};
use pmnet_wire::record::{
    CHAIN_MAX, RecoverReply, SESSION_ROWS_MAX, read_durable, read_path, write_durable, write_path,
};

/// Runs one input.
pub fn run(data: &[u8]) {
    commands(data);
    rows(data);
    // Parses the input as commands of one form, so that the code after a valid preamble is reached
    // at once.
    for form in [Form::Single, Form::Pipeline, Form::Pack] {
        let mut payload = preamble(form, pmnet_wire::command::Protocol::Resp3, 7).to_vec();
        payload.extend_from_slice(data);
        commands(&payload);
    }
    // The path in a RECOVER has only one length.
    if data.len() < pmnet_wire::FRAGMENT_BYTES {
        let mut padded = data.to_vec();
        padded.resize(pmnet_wire::FRAGMENT_BYTES, 0);
        rows(&padded);
    }
}

fn commands(payload: &[u8]) {
    let Ok(commands) = Commands::parse(payload) else {
        return;
    };
    let mut again = preamble(commands.form, commands.protocol, commands.database).to_vec();
    let mut count = 0;
    for arguments in commands.iter() {
        let announced = arguments.len();
        let arguments: Vec<&[u8]> = arguments.collect();
        assert_eq!(arguments.len(), announced);
        assert!(!arguments.is_empty(), "a command has a name");
        write_command(&mut again, &arguments);
        count += 1;
    }
    assert_eq!(count, commands.count);
    if commands.form == Form::Pack {
        let units = commands.units().flat_map(|unit| unit.resp).copied();
        assert!(
            units.eq(commands.resp.iter().copied()),
            "nothing is left over"
        );
    }
    assert_eq!(again, payload, "one way to write a command");
}

fn rows(payload: &[u8]) {
    if let Some(rows) = read_durable(payload) {
        assert!((1..=CHAIN_MAX).contains(&rows.len()));
        assert_eq!(write_durable(&rows), payload);
    }
    if let Some(path) = read_path(payload) {
        assert!((1..=CHAIN_MAX).contains(&path.len()));
        assert_eq!(read_path(&write_path(&path)), Some(path));
    }
    if let Some(reply) = RecoverReply::read(payload) {
        assert!(reply.members.len() <= CHAIN_MAX && reply.sessions.len() <= SESSION_ROWS_MAX);
        let written = reply.write();
        assert_eq!(written.len(), payload.len());
        assert_eq!(RecoverReply::read(&written), Some(reply));
    }
}
