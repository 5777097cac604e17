//! Writes man pages and shell completions of `pmnet` for packages (`make dist`). The folder gets the subfolders `man1`,
//! `bash`, `zsh` and `fish`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap_complete::Shell;
use pmnet_cli::notice;

fn write(folder: PathBuf) -> std::io::Result<()> {
    let mut command = pmnet::cli::definition();
    let made = |name: &str| {
        let made = folder.join(name);
        std::fs::create_dir_all(&made).map(|()| made)
    };
    clap_mangen::generate_to(command.clone(), made("man1")?)?;
    for (shell, name) in [
        (Shell::Bash, "bash"),
        (Shell::Zsh, "zsh"),
        (Shell::Fish, "fish"),
    ] {
        clap_complete::generate_to(shell, &mut command, "pmnet", made(name)?)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        notice("usage: pages FOLDER");
        return ExitCode::from(2);
    };
    match write(folder.into()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            notice(&format!("pages: {error}"));
            ExitCode::FAILURE
        }
    }
}
