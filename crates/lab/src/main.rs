//! The binary pmnet-lab. All its code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    pmnet_lab::cli::main()
}
