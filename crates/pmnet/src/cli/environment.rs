//! Flags from environment variables: for example, `PMNET_DEVICE_LISTEN` stands for `--listen` of `pmnet device`.

use std::ffi::OsString;

use clap::{Arg, Command};

/// Flags with a statement that is true for one start only. An environment variable would repeat the statement at each
/// start, so these flags have none.
const STATED_ONCE: [&str; 8] = [
    "declare-data-loss",
    "detach",
    "discard",
    "dry-run",
    "is-stopped",
    "new-slots",
    "shrink-chain",
    "without-damaged",
];

/// Gives each long flag its environment variable.
pub fn with_variables(command: Command) -> Command {
    below(command, "PMNET")
}

fn below(command: Command, prefix: &str) -> Command {
    command
        .mut_args(|arg| with_variable(arg, prefix))
        .mut_subcommands(|sub| {
            let prefix = format!("{prefix}_{}", upper(sub.get_name()));
            below(sub, &prefix)
        })
}

fn upper(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

fn with_variable(arg: Arg, prefix: &str) -> Arg {
    let Some(long) = arg.get_long().filter(|long| !STATED_ONCE.contains(long)) else {
        return arg;
    };
    let name: &'static str = format!("{prefix}_{}", upper(long)).leak();
    // The help explains the names of the variables once, so it does not list each of them.
    arg.env(name).hide_env(true)
}

/// Logs each variable of this process's environment that looks like a flag of this role and is none. `root`: the whole
/// command line, with its variables.
pub fn warn_of_unknown(root: &Command, role: &str) {
    let Some(command) = root.find_subcommand(role) else {
        return;
    };
    let variables = std::env::vars_os().map(|(name, value)| {
        let text = |text: OsString| text.to_string_lossy().into_owned();
        (text(name), text(value))
    });
    for (name, is_stated_once) in unknown(command, variables) {
        let flag = flag_of(command, &name);
        if is_stated_once {
            tracing::warn!(
                "PM6037 {name} has no effect: --{flag} is true for one start only, so it counts on the command line only"
            );
        } else {
            tracing::warn!(
                "PM6036 {name} has no effect: no flag of pmnet {role} has this variable"
            );
        }
    }
}

/// Returns the start of the names of a role's variables.
fn prefix(command: &Command) -> String {
    format!("PMNET_{}_", upper(command.get_name()))
}

/// Returns the flag that a variable with this name would stand for, without dashes.
fn flag_of(command: &Command, name: &str) -> String {
    let rest = name.strip_prefix(&prefix(command)).unwrap_or(name);
    rest.to_lowercase().replace('_', "-")
}

/// Returns the names that begin like a role's variables and are none, in order. The second part is true if the name
/// stands for a flag that has no variable.
fn unknown(
    command: &Command,
    variables: impl Iterator<Item = (String, String)>,
) -> Vec<(String, bool)> {
    let prefix = prefix(command);
    let is_known = |name: &str| {
        let mut known = command.get_arguments().filter_map(Arg::get_env);
        known.any(|known| known == name)
    };
    let mut found: Vec<(String, bool)> = variables
        .filter(|(name, value)| {
            name.strip_prefix(&prefix)
                .is_some_and(|rest| !is_of_kubernetes(rest, value))
        })
        .filter(|(name, _)| !is_known(name))
        .map(|(name, _)| {
            let flag = flag_of(command, &name);
            let is_stated_once = STATED_ONCE.contains(&flag.as_str())
                && command
                    .get_arguments()
                    .any(|arg| arg.get_long() == Some(&flag));
            (name, is_stated_once)
        })
        .collect();
    found.sort();
    found
}

/// Returns whether Kubernetes makes such a variable for a service, for example for a service `pmnet-redis`:
/// `PMNET_REDIS_SERVICE_HOST`, `PMNET_REDIS_SERVICE_PORT_RESP`, `PMNET_REDIS_PORT` (with a URL),
/// `PMNET_REDIS_PORT_6380_TCP_ADDR`. `rest`: the name without the role's prefix, which can begin with the rest of the
/// service's name.
fn is_of_kubernetes(rest: &str, value: &str) -> bool {
    let words: Vec<&str> = rest.split('_').collect();
    (0..words.len()).any(|at| match &words[at..] {
        ["SERVICE", "HOST"] | ["SERVICE", "PORT", ..] => true,
        ["PORT"] => value.contains("://"),
        ["PORT", number, "TCP" | "UDP" | "SCTP", more @ ..] => {
            number.parse::<u16>().is_ok() && matches!(more, [] | ["PROTO" | "PORT" | "ADDR"])
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a misspelt variable had no effect, and no message told so.
    #[test]
    fn variables_that_are_no_flag_are_found_and_those_of_kubernetes_are_not() {
        let root = with_variables(crate::cli::definition());
        let found = |role: &str, variables: &[(&str, &str)]| {
            let all = variables.iter();
            let all = all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let found = unknown(root.find_subcommand(role).unwrap(), all);
            let names = found.into_iter();
            names
                .map(|(name, once)| format!("{name} {once}"))
                .collect::<Vec<_>>()
        };
        let variables = [
            ("PMNET_REDIS_COPYS", "3"),
            ("PMNET_REDIS_COPIES", "3"),
            ("PMNET_REDIS_LOG_JSON", "true"),
            ("PMNET_REDIS_PORT", "6380"),
            ("PMNET_DEVICE_DECLARE_DATA_LOSS", "true"),
            ("PMNET_DEVICE_DISCARDED", "true"),
            ("PMNET_REDISX_COPYS", "3"),
            ("PATH", "/bin"),
        ];
        let redis = ["COPYS", "LOG_JSON", "PORT"].map(|name| format!("PMNET_REDIS_{name} false"));
        assert_eq!(found("redis", &variables), redis);
        assert_eq!(
            found("device", &variables),
            [
                "PMNET_DEVICE_DECLARE_DATA_LOSS true",
                "PMNET_DEVICE_DISCARDED false"
            ]
        );
        for role in ["server", "memcached", "controller", "run"] {
            assert_eq!(found(role, &variables), [""; 0], "{role}");
            let name = format!("PMNET_{}_NOTHING", role.to_uppercase());
            assert_eq!(found(role, &[(&name, "")]), [format!("{name} false")]);
        }
        let of_kubernetes = [
            ("PMNET_REDIS_PORT", "tcp://10.0.0.1:6380"),
            ("PMNET_REDIS_SERVICE_HOST", "10.0.0.1"),
            ("PMNET_REDIS_SERVICE_PORT", "6380"),
            ("PMNET_REDIS_SERVICE_PORT_RESP", "6380"),
            ("PMNET_REDIS_PORT_6380_TCP", "tcp://10.0.0.1:6380"),
            ("PMNET_REDIS_PORT_6380_TCP_PROTO", "tcp"),
            ("PMNET_REDIS_PORT_6380_TCP_PORT", "6380"),
            ("PMNET_REDIS_PORT_6380_TCP_ADDR", "10.0.0.1"),
            ("PMNET_REDIS_FRONT_PORT_53_UDP_ADDR", "10.0.0.1"),
            ("PMNET_REDIS_FRONT_SERVICE_HOST", "10.0.0.1"),
        ];
        assert_eq!(found("redis", &of_kubernetes), [""; 0]);
    }

    #[test]
    fn each_flag_has_a_variable_but_those_that_state_something_once() {
        let command = with_variables(crate::cli::definition());
        let variables = |name: &str| {
            let sub = command.find_subcommand(name).unwrap();
            let args = sub.get_arguments().filter_map(|arg| arg.get_env());
            args.map(|name| name.to_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let device = variables("device");
        for wanted in [
            "PMNET_DEVICE_LISTEN",
            "PMNET_DEVICE_LOG_SIZE",
            "PMNET_DEVICE_CONFIG",
            "PMNET_DEVICE_JSON",
        ] {
            assert!(
                device.iter().any(|name| name == wanted),
                "{wanted}: {device:?}"
            );
        }
        assert!(
            !device
                .iter()
                .any(|name| name.contains("LOSS") || name.contains("DETACH")),
            "{device:?}"
        );
        assert!(variables("controller").contains(&"PMNET_CONTROLLER_ETCD".to_owned()));
        let root: Vec<_> = command
            .get_arguments()
            .filter_map(|arg| arg.get_env())
            .collect();
        assert_eq!(root, ["PMNET_LOG_JSON"]);
    }
}
