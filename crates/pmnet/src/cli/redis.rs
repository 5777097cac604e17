//! `pmnet redis`: the RESP front.

use std::time::Duration;

use clap::Args;
use pmnet_cli::{ConfigError, address, call_on_signals};
use serde::Deserialize;
use serde_json::json;

use super::common::{CommonArgs, required, udp_address};
use super::ready;

const EXAMPLES: &str = "\
Examples:
  pmnet redis --listen 127.0.0.1:6380 --via 127.0.0.1:51000
  pmnet redis --listen 127.0.0.1:6380 --via 127.0.0.1:51000 --copies 3 --assume-ok HMSET

Redis clients connect here and see their Redis. SET (without NX, XX, GET), MSET, SETEX and PSETEX
are acknowledged as soon as every device of the chain holds them; everything else is executed by
the database, exactly once. --assume-ok names more commands to acknowledge early: their reply is
then always +OK, and an error that the database finds later is only counted and logged.";

/// Settings of `pmnet redis`; section `[redis]` of the configuration file.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RedisArgs {
    /// TCP address for Redis clients.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// UDP address of the head device.
    #[arg(long, value_name = "HOST:PORT")]
    via: Option<String>,
    /// Number of the shard [default: 0].
    #[arg(long)]
    shard: Option<u32>,
    /// Accept acknowledgements only if at least so many devices hold the write [default: 1].
    #[arg(long, value_name = "R")]
    copies: Option<u8>,
    /// More commands to acknowledge early, separated by commas (see below).
    #[arg(long, value_name = "COMMANDS", value_delimiter = ',')]
    assume_ok: Option<Vec<String>>,
    /// Address of the database for commands that need a connection of their own (blocking,
    /// pub/sub, WATCH) [default: what the server says].
    #[arg(long, value_name = "HOST:PORT")]
    direct: Option<String>,
    /// Poll for so long after activity before sleeping.
    #[arg(long, value_name = "US")]
    spin_us: Option<u64>,
    /// A command without an outcome after this long is answered as unknown.
    #[arg(long, value_name = "MS")]
    deadline_ms: Option<u64>,
    /// Most clients at a time.
    #[arg(long, value_name = "N")]
    connections_max: Option<usize>,
}

/// The command line of `pmnet redis`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RedisCommand {
    #[command(flatten)]
    args: RedisArgs,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Serves until asked to end.
pub fn main(command: &RedisCommand, file: RedisArgs) -> anyhow::Result<bool> {
    let flags = command.args.clone();
    let listen = required("--listen", "redis", flags.listen.or(file.listen))?;
    let via = required("--via", "redis", flags.via.or(file.via))?;
    let via = udp_address("--via", &via)?;
    let mut config = pmnet_front::FrontConfig::new(address("--listen", &listen)?);
    config.direct = flags.direct.or(file.direct);
    config.assume_ok = flags.assume_ok.or(file.assume_ok).unwrap_or_default();
    if let Some(micros) = flags.spin_us.or(file.spin_us) {
        config.spin = Duration::from_micros(micros);
    }
    if let Some(millis) = flags.deadline_ms.or(file.deadline_ms) {
        config.call_timeout = Duration::from_millis(millis.max(1));
    }
    if let Some(most) = flags.connections_max.or(file.connections_max) {
        config.connections_max = most.max(1);
    }
    let copies = flags.copies.or(file.copies).unwrap_or(1);
    if copies == 0 {
        return Err(ConfigError("--copies must be at least 1".into()).into());
    }
    let mut client = pmnet_client::ClientConfig::new(via);
    client.shard = flags.shard.or(file.shard).unwrap_or(0);
    client.copies_min = copies;
    let front = pmnet_front::Front::bind(&config, pmnet_client::Endpoint::bind(client)?)?;
    let stopper = front.stopper();
    call_on_signals(move || stopper.stop())?;
    ready::announce(
        command.common.json,
        "redis",
        &[
            ("listen", json!(front.local_addr()?.to_string())),
            ("via", json!(via.to_string())),
            ("copies", json!(copies)),
        ],
    );
    front.run()?;
    Ok(true)
}
