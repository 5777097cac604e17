//! `pmnet-lab resp-limit`.

use std::time::Duration;

use clap::Args;
use pmnet_cli::{ConfigError, address, call_on_signals};

use crate::limit::{Limit, VALUE_BYTES_MAX};

const EXAMPLES: &str = "\
Example: the highest rate of redis-benchmark on this machine
  pmnet-lab resp-limit --listen 127.0.0.1:7000 &
  redis-benchmark -p 7000 -t set,get -c 16 -d 100";

/// Maximum value of `--spin-us`: a second.
const SPIN_US_MAX: u64 = 1_000_000;

/// Options of `pmnet-lab resp-limit`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LimitArgs {
    /// TCP address for Redis clients.
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// Size of the value that answers every GET, in bytes.
    #[arg(long, default_value_t = 100, value_name = "N")]
    value_bytes: usize,
    /// Microseconds to poll after activity before sleeping. If there are fewer cores than busy processes, polling takes
    /// processor time from the clients.
    #[arg(long, default_value_t = 0, value_name = "US", value_parser = clap::value_parser!(u64).range(..=SPIN_US_MAX))]
    spin_us: u64,
}

/// Serves until the process gets a signal to end.
pub fn main(args: &LimitArgs) -> anyhow::Result<bool> {
    let listen = address("--listen", &args.listen)?;
    if args.value_bytes > VALUE_BYTES_MAX {
        return Err(ConfigError(format!(
            "--value-bytes {}: it can be up to {VALUE_BYTES_MAX}",
            args.value_bytes
        ))
        .into());
    }
    let spin = Duration::from_micros(args.spin_us);
    let mut limit = Limit::bind(listen, args.value_bytes, spin)?;
    let stopper = limit.stopper();
    call_on_signals(move || {
        // The wake-up fails only if the server's loop has already ended.
        let _ = stopper.wake();
    })?;
    println!("ready resp-limit listen={}", limit.local_addr()?);
    limit.run()?;
    Ok(true)
}
