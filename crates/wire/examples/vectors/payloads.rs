//! Vectors of payloads: commands, and records between hops, accepted and refused (`docs/spec/wire.md` §5, §6).

use super::vector::{
    Vector, command_fields, durable_fields, hex, path_fields, reply_fields, store_name_fields,
};
use pmnet_resp::write_command;
use pmnet_wire::command::{CommandError, Commands, Form, Protocol, preamble};
use pmnet_wire::record::{
    CHAIN_MAX, DURABLE_ROW_BYTES, DurableRow, MEMBER_BYTES, Member, RecoverReply, SESSION_ROWS_MAX,
    SESSION_ROWS_PER_PART, SessionRow, read_durable, read_path, write_durable, write_padded_path,
    write_path,
};
use pmnet_wire::store_name::STORE_NAME_PART_BYTES_MAX;
use pmnet_wire::{FRAGMENT_BYTES_MIN, FragmentSize, StoreName};
use serde_json::Value;

/// Returns the name that a refusal has in the vectors.
pub const fn error_name(error: CommandError) -> &'static str {
    match error {
        CommandError::Preamble => "preamble",
        CommandError::Syntax => "syntax",
        CommandError::Count => "count",
    }
}

/// Returns the fields of a payload of this language, or the reason why it is refused.
pub fn judge(language: &str, bytes: &[u8]) -> Result<Value, &'static str> {
    let malformed = "malformed";
    match language {
        "commands" => Commands::parse(bytes)
            .map(|c| command_fields(&c))
            .map_err(error_name),
        "durable" => read_durable(bytes)
            .map(|rows| durable_fields(&rows))
            .ok_or(malformed),
        "path" => read_path(bytes)
            .map(|path| path_fields(&path))
            .ok_or(malformed),
        "recover_reply" => RecoverReply::read(bytes)
            .map(|reply| reply_fields(&reply))
            .ok_or(malformed),
        "store_name" => StoreName::parse(bytes)
            .map(|name| store_name_fields(&name))
            .map_err(|_| malformed),
        other => panic!("unknown payload language {other}"),
    }
}

/// Returns every payload vector.
pub fn all() -> Vec<Vector> {
    let mut vectors = Vec::new();
    for (language, list) in [
        ("commands", commands()),
        ("durable", durable()),
        ("path", path()),
        ("recover_reply", recover_reply()),
        ("store_name", store_name()),
    ] {
        for (name, bytes, reject) in list {
            let judged = judge(language, &bytes);
            assert_eq!(judged.as_ref().err().copied(), reject, "{language}_{name}");
            vectors.push(Vector {
                name: format!("{language}_{name}"),
                payload: Some(language),
                hex: hex(&bytes),
                fields: judged.ok(),
                reject,
            });
        }
    }
    vectors
}

type Case = (&'static str, Vec<u8>, Option<&'static str>);

fn payload(form: Form, database: u32, list: &[&[&[u8]]]) -> Vec<u8> {
    let mut bytes = preamble(form, Protocol::Resp2, database).to_vec();
    for arguments in list {
        write_command(&mut bytes, arguments);
    }
    bytes
}

fn commands() -> Vec<Case> {
    let set: &[&[u8]] = &[b"SET", b"key", b"value"];
    let incr: &[&[u8]] = &[b"INCR", b"n"];
    let (multi, exec): (&[&[u8]], &[&[u8]]) = (&[b"MULTI"], &[b"EXEC"]);
    let raw = |resp: &[u8]| {
        let mut bytes = preamble(Form::Single, Protocol::Resp2, 0).to_vec();
        bytes.extend_from_slice(resp);
        bytes
    };
    let changed = |at: usize, value: u8| {
        let mut bytes = payload(Form::Single, 0, &[set]);
        bytes[at] = value;
        bytes
    };
    let mut resp3 = preamble(Form::Single, Protocol::Resp3, 15).to_vec();
    write_command(&mut resp3, set);
    let (preamble_bad, syntax, count) = (Some("preamble"), Some("syntax"), Some("count"));
    vec![
        ("single", payload(Form::Single, 0, &[set]), None),
        ("single_resp3_database_15", resp3, None),
        (
            "single_last_database",
            payload(Form::Single, u32::MAX, &[set]),
            None,
        ),
        (
            "single_binary_argument",
            payload(Form::Single, 0, &[&[b"SET", b"k", b"\r\n\0\xff$9"]]),
            None,
        ),
        (
            "single_empty_argument",
            payload(Form::Single, 0, &[&[b"SET", b"k", b""]]),
            None,
        ),
        ("pipeline_of_one", payload(Form::Pipeline, 0, &[set]), None),
        (
            "pipeline",
            payload(Form::Pipeline, 0, &[set, incr, set]),
            None,
        ),
        (
            "transaction",
            payload(Form::Transaction, 2, &[set, incr]),
            None,
        ),
        (
            "pack",
            payload(Form::Pack, 0, &[set, multi, incr, set, exec, incr]),
            None,
        ),
        ("barrier", payload(Form::Barrier, 0, &[]), None),
        ("store_address", payload(Form::StoreAddress, 0, &[]), None),
        ("nothing", vec![], preamble_bad),
        (
            "short_preamble",
            payload(Form::Barrier, 0, &[])[..7].to_vec(),
            preamble_bad,
        ),
        ("other_version", changed(0, 2), preamble_bad),
        ("unknown_protocol", changed(1, 4), preamble_bad),
        ("unknown_form", changed(2, 6), preamble_bad),
        ("reserved_byte", changed(3, 1), preamble_bad),
        ("single_without_command", raw(b""), count),
        (
            "single_of_two",
            payload(Form::Single, 0, &[set, incr]),
            count,
        ),
        (
            "transaction_of_none",
            payload(Form::Transaction, 0, &[]),
            count,
        ),
        ("pipeline_of_none", payload(Form::Pipeline, 0, &[]), count),
        ("pack_of_none", payload(Form::Pack, 0, &[]), count),
        (
            "pack_with_half_a_transaction",
            payload(Form::Pack, 0, &[multi, incr]),
            count,
        ),
        (
            "pack_with_exec_alone",
            payload(Form::Pack, 0, &[incr, exec]),
            count,
        ),
        (
            "pack_with_an_empty_transaction",
            payload(Form::Pack, 0, &[multi, exec]),
            count,
        ),
        (
            "pack_with_a_transaction_in_another",
            payload(Form::Pack, 0, &[multi, incr, multi, exec]),
            count,
        ),
        (
            "barrier_with_command",
            payload(Form::Barrier, 0, &[set]),
            count,
        ),
        (
            "store_address_with_command",
            payload(Form::StoreAddress, 0, &[set]),
            count,
        ),
        ("inline", raw(b"SET key value\r\n"), syntax),
        ("no_arguments", raw(b"*0\r\n"), syntax),
        ("null_array", raw(b"*-1\r\n"), syntax),
        ("null_argument", raw(b"*1\r\n$-1\r\n"), syntax),
        ("argument_missing", raw(b"*2\r\n$4\r\nINCR\r\n"), syntax),
        ("argument_cut", raw(b"*1\r\n$4\r\nINC"), syntax),
        (
            "argument_longer_than_stated",
            raw(b"*1\r\n$3\r\nINCR\r\n"),
            syntax,
        ),
        ("argument_without_end", raw(b"*1\r\n$4\r\nINCRxx"), syntax),
        (
            "number_with_leading_zero",
            raw(b"*01\r\n$4\r\nPING\r\n"),
            syntax,
        ),
        ("number_with_sign", raw(b"*+1\r\n$4\r\nPING\r\n"), syntax),
        (
            "number_of_ten_digits",
            raw(b"*1\r\n$1000000000\r\n"),
            syntax,
        ),
        (
            "number_without_line_feed",
            raw(b"*1\r$4\r\nPING\r\n"),
            syntax,
        ),
        ("too_many_arguments", raw(b"*1048577\r\n"), syntax),
        ("integer_argument", raw(b"*1\r\n:4\r\n"), syntax),
        ("bytes_behind", raw(b"*1\r\n$4\r\nPING\r\n\r\n"), syntax),
        ("bytes_in_front", raw(b" *1\r\n$4\r\nPING\r\n"), syntax),
    ]
}

fn row(device: u32, order: u64) -> DurableRow {
    DurableRow {
        device,
        incarnation: device + 100,
        order,
    }
}

fn member(device: u32) -> Member {
    Member {
        device,
        incarnation: 5,
        log_uuid: 0x0011_2233_4455_6677_8899_aabb_ccdd_ee00 + u128::from(device),
        tail: 2_005,
        applied: 1_990,
        flags: 0,
        word_epoch: 7,
        served: 4,
        size: FragmentSize::MAX,
    }
}

fn devices(count: usize) -> impl Iterator<Item = u32> {
    (1..).take(count)
}

fn durable() -> Vec<Case> {
    let rows = |count| {
        devices(count)
            .map(|d| row(d, 5_000 - u64::from(d)))
            .collect::<Vec<_>>()
    };
    let whole = write_durable(&rows(2));
    let malformed = Some("malformed");
    vec![
        ("one", write_durable(&rows(1)), None),
        ("longest_chain", write_durable(&rows(CHAIN_MAX)), None),
        ("largest_numbers", vec![0xff; DURABLE_ROW_BYTES], None),
        ("none", vec![], malformed),
        ("too_many", write_durable(&rows(CHAIN_MAX + 1)), malformed),
        ("cut", whole[..whole.len() - 1].to_vec(), malformed),
        ("half_a_row_more", [&whole[..], &[0; 8]].concat(), malformed),
    ]
}

fn path() -> Vec<Case> {
    let of = |count| write_path(&devices(count).map(member).collect::<Vec<_>>());
    let flagged = Member {
        flags: Member::SHRINK | Member::DECLARE_LOSS,
        ..member(3)
    };
    let small = Member {
        size: FragmentSize::of_mtu(1420, true),
        ..member(3)
    };
    let longest = write_padded_path(&[member(1)], FragmentSize::MAX);
    let counted = |count: u8| {
        let mut bytes = of(1);
        bytes[3] = count;
        bytes
    };
    let malformed = Some("malformed");
    vec![
        ("one", of(1), None),
        ("with_operator_flags", write_path(&[flagged]), None),
        ("longest_chain", of(CHAIN_MAX), None),
        ("of_nobody", counted(0), malformed),
        ("too_long", counted(9), malformed),
        (
            "without_padding",
            of(1)[..8 + MEMBER_BYTES].to_vec(),
            malformed,
        ),
        (
            "one_byte_short",
            of(1)[..FRAGMENT_BYTES_MIN - 1].to_vec(),
            malformed,
        ),
        ("of_an_earlier_version", longest.clone(), None),
        ("one_byte_long", [&longest[..], &[0]].concat(), malformed),
        ("with_sizes", write_path(&[small, member(4)]), None),
        ("empty", vec![], malformed),
    ]
}

fn recover_reply() -> Vec<Case> {
    let of = |members: usize, sessions: u64| {
        RecoverReply {
            shard_token: 0xfedc_ba98_7654_3210,
            members: devices(members).map(member).collect(),
            sessions: (1..=sessions)
                .map(|n| SessionRow {
                    session: n * 10,
                    last_seq: n,
                    token: !n,
                    front: None,
                })
                .collect(),
        }
        .write()
    };
    let whole = of(2, 3);
    let rows = u64::try_from(SESSION_ROWS_PER_PART).expect("few rows");
    let rows_max = u64::try_from(SESSION_ROWS_MAX).expect("few rows");
    let malformed = Some("malformed");
    vec![
        ("one_member", of(1, 0), None),
        ("two_members_three_sessions", whole.clone(), None),
        ("full_part", of(CHAIN_MAX, rows), None),
        (
            "full_part_of_an_earlier_version",
            of(CHAIN_MAX, rows_max),
            None,
        ),
        ("nobody", of(0, 0), None),
        ("too_many_members", of(CHAIN_MAX + 1, 0), malformed),
        ("too_many_sessions", of(1, rows_max + 1), malformed),
        ("cut", whole[..whole.len() - 1].to_vec(), malformed),
        ("one_byte_more", [&whole[..], &[0]].concat(), malformed),
        ("counts_cut", whole[..15].to_vec(), malformed),
        ("empty", vec![], malformed),
    ]
}

fn store_name() -> Vec<Case> {
    let of = |address: &str, run_id: &str, records: &str, owner: &str| {
        format!("redis://{address}/?run_id={run_id}&records={records}&owner={owner}").into_bytes()
    };
    let (address, run, records) = ("127.0.0.1:6379", "0f".repeat(20), "pmnet:{0}");
    let owner = format!("{}-1", "a0".repeat(16));
    let good = of(address, &run, records, &owner);
    let long = |count: usize| "x".repeat(count);
    let malformed = Some("malformed");
    vec![
        ("ipv4", good.clone(), None),
        ("ipv6", of("[::1]:6380", &run, "pmnet:{7}", &owner), None),
        ("that_only_reads", of(address, &run, records, ""), None),
        (
            "to_be_read_from",
            [&good[..], b"&reads=direct"].concat(),
            None,
        ),
        (
            "reads_otherwise",
            [&good[..], b"&reads=by_proxy"].concat(),
            malformed,
        ),
        (
            "longest_part",
            of(address, &long(STORE_NAME_PART_BYTES_MAX), records, &owner),
            None,
        ),
        (
            "part_too_long",
            of(address, &long(STORE_NAME_PART_BYTES_MAX + 1), records, ""),
            malformed,
        ),
        (
            "host_name",
            of("host:6379", &run, records, &owner),
            malformed,
        ),
        (
            "port_missing",
            of("127.0.0.1", &run, records, ""),
            malformed,
        ),
        (
            "port_with_leading_zero",
            of("127.0.0.1:06379", &run, records, &owner),
            malformed,
        ),
        (
            "run_id_missing",
            of(address, "", records, &owner),
            malformed,
        ),
        ("records_missing", of(address, &run, "", &owner), malformed),
        ("blank", of(address, &run, records, "a b"), malformed),
        ("line_end", [&good[..], b"\r\n"].concat(), malformed),
        ("further_part", [&good[..], b"&x=1"].concat(), malformed),
        (
            "address_only",
            b"redis://127.0.0.1:6379".to_vec(),
            malformed,
        ),
        ("empty", vec![], malformed),
    ]
}
