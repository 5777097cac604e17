//! `pmnet ctl drain`: sends one barrier. The server answers the barrier after it has applied everything before the
//! barrier.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use pmnet_cli::{ConfigError, tell};
use pmnet_client::{ClientConfig, Session, SessionError};
use pmnet_fleet::FollowConfig;
use pmnet_wire::command::barrier;
use serde_json::json;

use super::CtlArgs;

use crate::cli::common::InFleet;
use crate::cli::redis::{NOWHERE, devices, located};

/// Returns the configuration of a client for this shard, with the devices of `--via`.
pub(super) fn via(via: &str, shard: u32) -> Result<ClientConfig, ConfigError> {
    Ok(ClientConfig {
        shard,
        ..devices(via)?
    })
}

/// Returns the configuration of a client for this shard, with the devices that etcd names.
pub(super) fn in_fleet(place: &InFleet, wait: Duration) -> anyhow::Result<ClientConfig> {
    let (members, names) = place.in_etcd()?;
    let follow = FollowConfig { members, names };
    let client = ClientConfig {
        shard: place.shard,
        ..ClientConfig::new(NOWHERE)
    };
    located(client, Some(&follow), wait, &AtomicBool::new(false)).map_err(|text| anyhow!(text))
}

/// Sends a barrier and waits for the answer. Returns false if the time passes before the answer arrives.
pub(super) fn of(client: &ClientConfig, wait: Duration, args: &CtlArgs) -> anyhow::Result<bool> {
    let devices: Vec<String> = std::iter::once(&client.head)
        .chain(&client.others)
        .map(SocketAddr::to_string)
        .collect();
    let begun = Instant::now();
    let client = ClientConfig {
        keys: args.front_key()?,
        ..client.clone()
    };
    let drained = if args.dry_run {
        None
    } else {
        Some(ask(client, wait)?)
    };
    let seconds = begun.elapsed().as_secs_f64();
    if args.json {
        tell(format_args!(
            "{}",
            json!({ "wants": "drain", "devices": devices, "drained": drained, "seconds": seconds })
        ));
        return Ok(drained.unwrap_or(true));
    }
    match drained {
        None => tell(format_args!(
            "waits until the database has what is acknowledged now, at one of {}",
            devices.join(", ")
        )),
        Some(true) => tell(format_args!(
            "everything that was acknowledged {seconds:.1} s ago, and before, is in the database"
        )),
        Some(false) => tell(format_args!(
            "not within {} s: the server or its database does not run, or the chain is not whole (see their logs), no \
             device of {} is there, or the keys differ ({}). Nothing was changed",
            wait.as_secs(),
            devices.join(", "),
            keys_hint(args.key.is_some())
        )),
    }
    Ok(drained.unwrap_or(true))
}

/// Returns the text for an operator whose keys may differ from those of the devices, which answer only their own keys.
const fn keys_hint(has_key: bool) -> &'static str {
    match has_key {
        true => "compare the file of --key with those of the devices: pmnet key show",
        false => "this command has no key: if the devices have keys, give --key FILE",
    }
}

fn ask(client: ClientConfig, wait: Duration) -> anyhow::Result<bool> {
    let mut session = Session::start(client, wait).context("cannot reach the devices")?;
    match session.bypass(barrier().into(), 0, true) {
        // If the session cannot be ended properly, it expires at the devices.
        Ok(_) => session.end().map_or(Ok(true), |()| Ok(true)),
        Err(SessionError::Unknown | SessionError::Failed(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
