//! The part that the command lines of all binaries share.
//!
//! Purpose: exit codes, logs, signals, and the notation of addresses and sizes are the same in all binaries. Exit
//! codes: 0 if the command succeeded; 1 if it failed, or if a check found a problem; 2 if the command line or the
//! configuration is invalid. With exit code 1, a sentence on stderr describes the problem and says what to do. Not
//! allowed here: knowledge of a role, a protocol or a subcommand.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod end;
mod error;
mod files;
mod limits;
mod logs;
mod message;
mod output;
mod programs;
mod secrets;
mod signals;
mod values;

pub use end::{finish, parse, parse_by};
pub use error::ConfigError;
pub use files::bounded_text;
pub use limits::open_files;
pub use logs::{check_log_filter, filter_logs};
pub use output::{notice, progress, said, tell, tell_all};
pub use pmnet_udp::Family;
pub use programs::find_program;
pub use secrets::{password, warn_of_password};
pub use signals::{Reload, Shutdown, call_on_signals, on_reload, on_signals, reload_on_hangup};
pub use values::{address, addresses, bytes, host_and_port, is_name, resolve};
