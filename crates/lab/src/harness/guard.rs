//! The hidden subcommand with which the harness starts programs. The subcommand asks the kernel to kill this process
//! when the parent dies, and then replaces itself by the program. The process id stays the same.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;

use anyhow::Context;

/// Arguments of `pmnet-lab guarded`.
#[derive(Debug, clap::Args)]
pub struct GuardArgs {
    /// Process id of the parent. The parent must be alive.
    #[arg(long)]
    parent: i32,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Replaces this process by the program. Returns only on failure.
///
/// # Errors
/// Fails if the parent has already ended, or if the program cannot be started.
pub fn exec_guarded(args: &GuardArgs) -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("cannot tie the process to its parent")?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    anyhow::ensure!(
        parent == Some(args.parent),
        "the process that wanted this is gone"
    );
    let (program, rest) = args
        .command
        .split_first()
        .context("no program to start was named")?;
    let error = std::process::Command::new(program).args(rest).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
