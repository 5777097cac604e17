//! Operators' input: the configuration file, sizes, command lines (`docs/`).
//!
//! Invariants: reading never panics; a refusal gives its reason; an accepted size is this number of
//! bytes; an accepted file is also accepted with a comment and an empty line appended.

use pmnet::cli::{check_file, is_command_line};
use pmnet_cli::bytes;

use crate::input::Input;

/// Maximum number of arguments of one command line.
const ARGUMENTS: usize = 12;

/// The words from which command lines are made.
const WORDS: &[&str] = &[
    "device",
    "server",
    "redis",
    "load",
    "check",
    "log",
    "inspect",
    "verify",
    "sim",
    "doctor",
    "demo",
    "--listen",
    "127.0.0.1:51000",
    "--next",
    "--log",
    "d.log",
    "--media",
    "file",
    "dram",
    "pmem",
    "--shards",
    "--log-size",
    "64M",
    "--entries",
    "--frame-bytes",
    "--config",
    "--json",
    "--store",
    "--via",
    "--seeds",
    "1",
    "0",
    "-1",
    "4294967295",
    "18446744073709551616",
    "--help",
    "--",
    "=",
    "",
];

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    if input.byte() % 8 == 7 {
        command_line(&mut input);
        return;
    }
    let text = String::from_utf8_lossy(input.rest());
    match check_file(&text) {
        Ok(()) => {
            let more = format!("{text}\n# comment\n\n");
            assert!(check_file(&more).is_ok(), "a comment changes nothing");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let first = text.lines().next().unwrap_or_default();
    match bytes("--log-size", first) {
        Ok(size) => {
            assert!(size > 0);
            assert_eq!(bytes("--log-size", &size.to_string()).ok(), Some(size));
        }
        Err(error) => assert!(error.to_string().starts_with("--log-size")),
    }
}

fn command_line(input: &mut Input<'_>) {
    let mut words = vec!["pmnet".to_owned()];
    for _ in 0..1 + input.index(ARGUMENTS) {
        if input.rarely(8) {
            words.push(String::from_utf8_lossy(input.bytes(20)).into_owned());
        } else {
            words.push(input.pick(WORDS).to_owned());
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let _ = is_command_line(&words);
}
