//! Runs files through a target without an engine: `cargo run -p pmnet-fuzz -- TARGET FILE…`.
//! Without arguments it lists the targets. A crash shows its panic.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(name) = arguments.next() else {
        for (name, _) in pmnet_fuzz::TARGETS {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    };
    let Some(run) = pmnet_fuzz::target(&name) else {
        eprintln!("there is no target {name}; without arguments the targets are listed");
        return ExitCode::from(2);
    };
    for file in arguments {
        match std::fs::read(&file) {
            Ok(data) => {
                run(&data);
                println!("{name} {file}: {} bytes, nothing found", data.len());
            }
            Err(error) => {
                eprintln!("{file}: {error}");
                return ExitCode::from(2);
            }
        }
    }
    ExitCode::SUCCESS
}
