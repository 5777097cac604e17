//! The pmnet-lab binary; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    pmnet_lab::cli::main()
}
