//! `pmnet ctl promote`: makes a replica of the shard's Redis the master. The server then continues with this master.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::anyhow;
use clap::Args;
use pmnet_cli::{tell, warn_of_password};
use pmnet_store::{Progress, Promotion};
use serde_json::json;

use super::{CtlArgs, LOOK, until};
use crate::cli::passwords::PasswordFiles;

/// The replica to promote, and its shard.
#[derive(Debug, Args)]
pub(super) struct PromoteArgs {
    /// Address of the shard's Redis, as in the server's --store: redis://HOST:PORT, or
    /// redis+sentinel://HOST:PORT,…/NAME.
    #[arg(long, value_name = "URL")]
    store: String,
    /// File whose first line is the password for Redis, instead of a password in --store.
    #[arg(long, value_name = "FILE")]
    store_password_file: Option<PathBuf>,
    /// File whose first line is the password for the Sentinels in --store.
    #[arg(long, value_name = "FILE")]
    sentinel_password_file: Option<PathBuf>,
    /// Address of the replica, HOST:PORT. With --is-stopped the addresses of all remaining replicas, with commas
    /// between them. Not with Sentinels, because they choose the replica.
    #[arg(long, value_name = "ADDR,…", value_delimiter = ',')]
    to: Vec<String>,
    /// You state that the master is stopped permanently: it does not run, and will not come back as a master.
    #[arg(long)]
    is_stopped: bool,
}

/// Promotes the replica. Returns false if the promotion was not complete in time.
pub(super) fn of(args: &PromoteArgs, ctl: &CtlArgs) -> anyhow::Result<bool> {
    warn_of_password("--store", &args.store, "give it with --store-password-file");
    let files = PasswordFiles {
        store: args.store_password_file.clone(),
        sentinel: args.sentinel_password_file.clone(),
    };
    let passwords = files.read()?;
    let plan = Promotion::plan(
        &args.store,
        &passwords,
        ctl.shard,
        &args.to,
        args.is_stopped,
    );
    let promotion = plan.map_err(|text| anyhow!(text))?;
    let then = promotion.then();
    if ctl.json {
        let (from, to) = promotion.places();
        tell(format_args!(
            "{}",
            json!({ "wants": "promote", "from": from, "to": to, "then": then })
        ));
    } else {
        tell(format_args!("{}", promotion.text()));
        if let Some(then) = &then {
            tell(format_args!("Then {then}"));
        }
    }
    if ctl.dry_run {
        return Ok(true);
    }
    promotion.begin().map_err(|text| anyhow!(text))?;
    wait(&promotion, ctl)
}

/// Waits until a server serves the shard with the new master, or until the time has passed.
fn wait(promotion: &Promotion, ctl: &CtlArgs) -> anyhow::Result<bool> {
    let begun = Instant::now();
    let served = until(ctl.wait, LOOK, || {
        Ok(match promotion.look().map_err(|text| anyhow!(text))? {
            Progress::Served(at) => Ok(at),
            Progress::Waits(text) => Err(text),
        })
    })?;
    match &served {
        Ok(at) if ctl.json => {
            let seconds = begun.elapsed().as_secs_f64();
            tell(format_args!(
                "{}",
                json!({ "done": true, "master": at, "seconds": seconds })
            ));
        }
        Ok(at) => tell(format_args!(
            "done: {at} is the master, and a server serves the shard there"
        )),
        Err(waits) if ctl.json => tell(format_args!("{}", json!({ "done": false, "says": waits }))),
        Err(waits) => tell(format_args!("not done in time: {waits}")),
    }
    Ok(served.is_ok())
}
