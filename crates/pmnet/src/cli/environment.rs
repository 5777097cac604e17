//! Flags from environment variables: for example, `PMNET_DEVICE_LISTEN` stands for `--listen` of `pmnet device`.

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

#[cfg(test)]
mod tests {
    use super::*;

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
