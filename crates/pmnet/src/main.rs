//! The pmnet binary; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    pmnet::cli::main()
}
