//! The language of payloads: all written payloads can be read, and all other bytes are refused.

use pmnet_resp::limits::ARGUMENTS_MAX;
use pmnet_resp::write_command;
use pmnet_wire::command::{
    COMMANDS_MAX, CommandError, Commands, Form, Protocol, barrier, key_hash, preamble, single,
};
use proptest::prelude::*;

type Command = Vec<Vec<u8>>;

fn command() -> impl Strategy<Value = Command> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6)
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Protocol::Resp2), Just(Protocol::Resp3)]
}

fn payload(form: Form, protocol: Protocol, database: u32, commands: &[Command]) -> Vec<u8> {
    let mut bytes = preamble(form, protocol, database).to_vec();
    for command in commands {
        write_command(&mut bytes, command);
    }
    bytes
}

fn read(commands: &Commands<'_>) -> Vec<Command> {
    commands
        .iter()
        .map(|command| command.map(<[u8]>::to_vec).collect())
        .collect()
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        list in prop::collection::vec(command(), 1..6),
        transaction: bool,
        protocol in protocol(),
        database: u32,
    ) {
        let form = if transaction { Form::Transaction } else { Form::Pipeline };
        let bytes = payload(form, protocol, database, &list);
        let commands = Commands::parse(&bytes).expect("written by us");
        prop_assert_eq!(read(&commands), &list[..]);
        let said = (commands.form, commands.protocol, commands.database, commands.count);
        prop_assert_eq!(said, (form, protocol, database, list.len()));
        prop_assert_eq!(commands.resp, &bytes[8..]);
    }

    #[test]
    fn a_single_command_is_read(list in command()) {
        let bytes = single(&list);
        let commands = Commands::parse(&bytes).expect("written by us");
        prop_assert_eq!(read(&commands), vec![list]);
    }

    /// A payload that is cut at any byte is refused, or it consists of whole commands.
    #[test]
    fn a_cut_payload_is_never_half_understood(list in prop::collection::vec(command(), 1..5)) {
        let bytes = payload(Form::Pipeline, Protocol::Resp2, 0, &list);
        for cut in 0..bytes.len() {
            match Commands::parse(&bytes[..cut]) {
                Ok(commands) => {
                    prop_assert!(commands.count < list.len());
                    prop_assert_eq!(read(&commands), &list[..commands.count]);
                }
                Err(CommandError::Preamble) => prop_assert!(cut < 8),
                Err(CommandError::Count) => prop_assert_eq!(cut, 8),
                Err(CommandError::Syntax) => prop_assert!(cut > 8),
            }
        }
    }

    #[test]
    fn any_bytes_are_judged_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(commands) = Commands::parse(&bytes) {
            prop_assert_eq!(read(&commands).len(), commands.count);
        }
    }

    /// Text that looks like RESP, so that deep paths of the parser are reached. Accepted text is canonical: writing the
    /// parsed commands gives the same bytes.
    #[test]
    fn what_is_accepted_is_canonical(resp in "([*$][0-9]{1,3}\r\n|[A-Z]{1,4}\r\n|\r\n|:1\r\n){1,12}") {
        let mut bytes = preamble(Form::Pipeline, Protocol::Resp2, 0).to_vec();
        bytes.extend_from_slice(resp.as_bytes());
        if let Ok(commands) = Commands::parse(&bytes) {
            let again = payload(Form::Pipeline, Protocol::Resp2, 0, &read(&commands));
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn lengths_that_lie_are_refused(list in command(), claimed in 0usize..2_000_000_000) {
        let mut bytes = payload(Form::Single, Protocol::Resp2, 0, &[]);
        bytes.extend_from_slice(format!("*{}\r\n", claimed.max(list.len() + 1)).as_bytes());
        for argument in &list {
            bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
        prop_assert_eq!(Commands::parse(&bytes).err(), Some(CommandError::Syntax));
    }
}

#[test]
fn heads_are_exactly_what_a_server_reads() {
    let parse = |resp: &[u8]| {
        let bytes = [&preamble(Form::Single, Protocol::Resp2, 0)[..], resp].concat();
        Commands::parse(&bytes).map(|commands| commands.count)
    };
    assert_eq!(parse(b"*1\r\n$1\r\na\r\n"), Ok(1));
    let wrong: [&[u8]; 10] = [
        b"$1\r\n$1\r\na\r\n",
        b"*1\r\n*1\r\na\r\n",
        b"*\r\n$1\r\na\r\n",
        b"*1\r\n$\r\n\r\n",
        b"*1\r\n$:\r\n0123456789\r\n",
        b"*01\r\n$1\r\na\r\n",
        b"*1\r\n$01\r\na\r\n",
        b"*1\rx$1\r\na\r\n",
        b"*1\r\n$1\rxa\r\n",
        b"*1\r\n$1\r\naxx",
    ];
    for resp in wrong {
        assert_eq!(parse(resp), Err(CommandError::Syntax), "{resp:?}");
    }
}

#[test]
fn a_pack_is_commands_and_transactions() {
    let line = |words: &str| {
        words
            .split(' ')
            .map(|word| word.as_bytes().to_vec())
            .collect()
    };
    let list: Vec<Command> = [
        "INCR a", "MULTI", "INCR b", "multi", "EXEC", "GET c", "MULTI", "EXEC now", "EXEC",
    ]
    .map(line)
    .to_vec();
    let bytes = payload(Form::Pack, Protocol::Resp3, 7, &list);
    let pack = Commands::parse(&bytes).expect("whole");
    let units: Vec<_> = pack.units().collect();
    let said: Vec<_> = units
        .iter()
        .map(|unit| (unit.commands.form, read(&unit.commands)))
        .collect();
    assert_eq!(
        said,
        [
            (Form::Single, list[..1].to_vec()),
            (Form::Transaction, list[2..4].to_vec()),
            (Form::Single, list[5..6].to_vec()),
            (Form::Transaction, list[7..8].to_vec()),
        ]
    );
    for unit in &units {
        let Commands {
            protocol,
            database,
            count,
            ..
        } = unit.commands;
        assert_eq!((protocol, database), (Protocol::Resp3, 7));
        assert_eq!(count, unit.commands.iter().count());
    }
    let together: Vec<u8> = units.iter().flat_map(|unit| unit.resp).copied().collect();
    assert_eq!(together, pack.resp);
}

#[test]
fn a_barrier_has_no_command() {
    assert_eq!(barrier(), [1, 2, 2, 0, 0, 0, 0, 0]);
    let bytes = barrier();
    let commands = Commands::parse(&bytes).expect("written by us");
    assert_eq!((commands.form, commands.count), (Form::Barrier, 0));
    for form in [Form::Barrier, Form::StoreAddress] {
        let with_one = payload(form, Protocol::Resp2, 0, &[vec![b"PING".to_vec()]]);
        assert_eq!(Commands::parse(&with_one).err(), Some(CommandError::Count));
    }
}

#[test]
fn a_transaction_has_at_most_so_many_commands() {
    assert_eq!(COMMANDS_MAX, 65_536);
    let ping: Command = vec![b"PING".to_vec()];
    for (count, expected) in [
        (COMMANDS_MAX, None),
        (COMMANDS_MAX + 1, Some(CommandError::Count)),
    ] {
        for form in [Form::Transaction, Form::Pipeline, Form::Pack] {
            let bytes = payload(form, Protocol::Resp2, 0, &vec![ping.clone(); count]);
            assert_eq!(
                Commands::parse(&bytes).err(),
                expected,
                "{count} as {form:?}"
            );
        }
    }
}

/// Redis has the same bound for its own clients, so no store has to parse more arguments.
#[test]
fn a_command_has_at_most_so_many_arguments() {
    let with = |count: usize| {
        let mut bytes = preamble(Form::Single, Protocol::Resp2, 0).to_vec();
        bytes.extend(format!("*{count}\r\n").bytes());
        bytes.extend(b"$0\r\n\r\n".repeat(count));
        Commands::parse(&bytes).map(|commands| commands.count)
    };
    assert_eq!(with(ARGUMENTS_MAX), Ok(1));
    assert_eq!(with(ARGUMENTS_MAX + 1), Err(CommandError::Syntax));
    assert_eq!(with(0), Err(CommandError::Syntax));
}

#[test]
fn arguments_tell_how_many_are_left() {
    let bytes = single(&[&b"MSET"[..], b"a", b"1"]);
    let commands = Commands::parse(&bytes).expect("written by us");
    let mut arguments = commands.iter().next().expect("one command");
    for left in (0..3).rev() {
        assert!(arguments.next().is_some());
        assert_eq!(arguments.len(), left);
    }
    assert_eq!(arguments.next(), None);
}

/// FNV-1a with 64 bits, checked with its published test values; 0 is never the hash of a key.
#[test]
fn key_hash_is_fnv_1a() {
    for (key, hash) in [
        (&b""[..], 0xcbf2_9ce4_8422_2325_u64),
        (b"a", 0xaf63_dc4c_8601_ec8c),
        (b"foobar", 0x8594_4171_f739_67e8),
    ] {
        assert_eq!(key_hash(key), hash);
    }
}
