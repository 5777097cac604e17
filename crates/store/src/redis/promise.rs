//! The promised updates, which were acknowledged to their clients before Redis received them.
//!
//! The front acknowledges four commands early, in forms that Redis accepts whatever the data is
//! ([`pmnet_wire::promise::is_promised`], which both the front and the store use). If Redis refuses such a command, the
//! cause is Redis's configuration. The update then stays in the devices until an operator corrects the configuration.
//! Other updates that are refused for good are dropped, counted and logged: commands of `--assume-ok`, and commands
//! that no front sends.

use pmnet_wire::command::Commands;

use super::commands::{CommandTable, upper};

/// Commands that are acknowledged early even if `--assume-ok` does not list them.
const PROMISED: [&str; 4] = ["SET", "MSET", "SETEX", "PSETEX"];
/// Commands that `--assume-ok` can list.
const ASSUMABLE: [&[u8]; 8] = [
    b"FLUSHALL",
    b"FLUSHDB",
    b"HMSET",
    b"LSET",
    b"LTRIM",
    b"PFMERGE",
    b"RENAME",
    b"RESTORE",
];
/// Maximum number of databases that a Redis can have (`databases`).
pub const DATABASES_MAX: u32 = i32::MAX.unsigned_abs();
/// Maximum number of bytes of a key that a text shows.
const SHOWN_BYTES_MAX: usize = 64;

/// Returns whether a front acknowledges this command without knowing the data, because Redis always accepts the command
/// in this form.
pub fn is_promised(arguments: &[&[u8]]) -> bool {
    pmnet_wire::promise::is_promised(arguments.len(), |index| arguments[index])
}

/// Returns the promised commands that the server lacks under their own names, because its configuration has renamed
/// them.
pub fn missing(table: &CommandTable) -> Vec<&'static str> {
    PROMISED
        .into_iter()
        .filter(|name| !table.has(name.as_bytes()))
        .collect()
}

/// Returns a text for messages that shows an update: its first command, with key and database.
pub fn shown(commands: &Commands<'_>) -> String {
    let Some(mut arguments) = commands.iter().next() else {
        return "an update without a command".into();
    };
    let text = |bytes: &[u8]| {
        let cut = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
        let dots = if cut.len() < bytes.len() { "…" } else { "" };
        format!("{}{dots}", cut.escape_ascii())
    };
    let name = text(arguments.next().unwrap_or_default());
    let key = arguments.next().map(|key| format!(" {}", text(key)));
    let more = match commands.count {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    format!(
        "{name}{}{more} in database {}",
        key.unwrap_or_default(),
        commands.database
    )
}

/// Returns whether clients may have been told OK for a command of this name because of `--assume-ok`.
pub fn is_assumable(name: &[u8]) -> bool {
    ASSUMABLE.contains(&upper(name).as_slice())
}

/// Returns whether clients may have been told OK, because of `--assume-ok`, for all commands of an update.
pub fn is_assumed(commands: &Commands<'_>) -> bool {
    let mut names = commands.iter().map(|mut a| a.next().unwrap_or_default());
    commands.count > 0 && names.all(is_assumable)
}

/// Returns the reason why an update that was not promised may be dropped.
pub fn excuse(commands: &Commands<'_>) -> &'static str {
    if is_assumed(commands) {
        "its client was told OK because of --assume-ok"
    } else {
        "no front acknowledges it early"
    }
}

#[cfg(test)]
mod tests {
    use pmnet_resp::write_command;
    use pmnet_wire::command::{Form, Protocol, preamble};

    use super::*;

    fn promised(line: &str) -> bool {
        is_promised(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_dropped_is_named() {
        let payload = |lines: &[&str]| {
            let mut out = preamble(Form::Transaction, Protocol::Resp2, 3).to_vec();
            for line in lines {
                write_command(&mut out, &line.split(' ').collect::<Vec<_>>());
            }
            out
        };
        let hmset = payload(&["HMSET li\nst f v", "RENAME a b"]);
        let hmset = Commands::parse(&hmset).unwrap();
        assert_eq!(shown(&hmset), "HMSET li\\nst and 1 more in database 3");
        assert!(excuse(&hmset).contains("--assume-ok"));
        let other = payload(&["INCR n", "HMSET list f v"]);
        assert!(!excuse(&Commands::parse(&other).unwrap()).contains("--assume-ok"));
    }

    #[test]
    fn a_promise_is_what_redis_accepts_whatever_the_data_is() {
        for line in [
            "SET k v",
            "set k v keepttl",
            "SET k v EX 1",
            "SET k v ex 100000000000",
            "SET k v PX 100000000000000",
            "SET k v EXAT 1",
            "SET k v pxat 99",
            "MSET a 1",
            "MSET a 1 b 2",
            "SETEX k 10 v",
            "PSETEX k 10 v",
        ] {
            assert!(promised(line), "{line}");
        }
        for line in [
            "SET k",
            "SET k v NX",
            "SET k v EX 0",
            "SET k v EX 01",
            "SET k v EX -1",
            "SET k v EX 100000000001",
            "SET k v EX 9999999999999999999999",
            "SET k v EX x",
            "SET k v EX 10 NX",
            "SET pmnet:{0} v",
            "MSET a",
            "MSET a 1 b",
            "SETEX k 0 v",
            "SETEX k v",
            "GET k",
            "INCR k",
            "HMSET k a b",
        ] {
            assert!(!promised(line), "{line}");
        }
    }
}
