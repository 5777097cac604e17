//! `pmnet device --fleet`: a device that answers only while it has a lease in etcd.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use pmnet_cli::ConfigError;
use pmnet_client::{Clock, Stop};
use pmnet_dataplane::relay::{Lease, LeaseWords};
use pmnet_dataplane::xdp::Found;
use pmnet_device::DeviceError;
use pmnet_fleet::{Agent, AgentConfig, Facts, LEASE_SECONDS, LEASE_SECONDS_USUAL, Names, Order};
use pmnet_log::{Log, Media};
use pmnet_wire::record::Member;

use super::args::{DeviceArgs, Mode};
use super::relay::{open_log, run_relay};
use super::settings::Settings;
use super::{direct, kernel};
use crate::cli::common::{in_etcd, required};

/// How often it is looked whether etcd has answered.
const LOOK: Duration = Duration::from_millis(20);
/// A device that was refused waits for this part of a lease, whether its place is another one.
const PATIENCE: u64 = 3;

/// Settings of a device in a fleet.
#[derive(Clone, Debug)]
pub struct FleetSettings {
    endpoints: Vec<String>,
    fleet: String,
    names: Names,
    seconds: u64,
}

impl FleetSettings {
    /// The same for another shard of the fleet.
    pub fn of_shard(&self, shard: u32) -> Result<FleetSettings, ConfigError> {
        Ok(FleetSettings {
            names: Names::new(&self.fleet, shard).map_err(ConfigError)?,
            ..self.clone()
        })
    }

    /// The settings of a fleet; `None` without one.
    pub fn new(
        flags: &DeviceArgs,
        file: &DeviceArgs,
        listen: SocketAddr,
    ) -> Result<Option<FleetSettings>, ConfigError> {
        let etcd = flags.etcd.clone().or_else(|| file.etcd.clone());
        let seconds = flags.lease_seconds.or(file.lease_seconds);
        let Some(name) = flags.fleet.clone().or_else(|| file.fleet.clone()) else {
            return match (etcd, seconds) {
                (None, None) => Ok(None),
                _ => Err(ConfigError(
                    "--etcd and --lease-seconds belong to --fleet: give the fleet's name".into(),
                )),
            };
        };
        match flags.mode.or(file.mode) {
            None | Some(Mode::Relay | Mode::AfXdp) => {}
            Some(Mode::Nic | Mode::Switch | Mode::Router) => {
                if !Clock::boottime_is_the_kernels() {
                    return Err(ConfigError(
                        "--fleet with a kernel mode: this process is in a time namespace whose clock is not the kernel's, \
                         by which leases end there. Start it outside, or leave --mode out"
                            .into(),
                    ));
                }
            }
        }
        if flags.server_reads_log || file.server_reads_log {
            return Err(ConfigError(
                "--fleet does not go with --server-reads-log: the chain in etcd may put another device between the log and \
                 the server. Leave one of them out"
                    .into(),
            ));
        }
        if listen.ip().is_unspecified() || listen.port() == 0 {
            return Err(ConfigError(format!(
                "--listen {listen}: with --fleet it must be the address and port to which the others send"
            )));
        }
        let seconds = seconds.unwrap_or(LEASE_SECONDS_USUAL);
        if !LEASE_SECONDS.contains(&seconds) {
            return Err(ConfigError(format!(
                "--lease-seconds {seconds}: {} to {}",
                LEASE_SECONDS.start(),
                LEASE_SECONDS.end()
            )));
        }
        let shard = flags.shard.or(file.shard).unwrap_or(0);
        let (endpoints, names) = in_etcd(&required("--etcd", "device", etcd)?, &name, shard)?;
        Ok(Some(FleetSettings {
            endpoints,
            fleet: name,
            names,
            seconds,
        }))
    }
}

/// Serves until asked to end: as the chain in etcd says, if there is one, and again from the start whenever it says something else.
pub fn serve(settings: Settings, stop: &Stop, json: bool) -> anyhow::Result<()> {
    let fleet = settings.fleet.clone().context("--fleet")?;
    let clock = Clock::boottime();
    let device = &settings.relay.device;
    let agent = Agent::start(AgentConfig {
        endpoints: fleet.endpoints,
        names: fleet.names,
        id: device.id,
        address: settings.relay.listen,
        seconds: fleet.seconds,
        spare: device.flags & Member::JOIN != 0,
        by_hand: device.flags & (Member::SHRINK | Member::DECLARE_LOSS) != 0,
        clock,
    })
    .context("cannot start the thread that keeps the lease")?;
    let length = pmnet_fleet::length(fleet.seconds);
    let (mut kernel, mut leaves) = (None, false);
    let served = loop {
        let words = Arc::new(LeaseWords::default());
        let mut now = settings.clone();
        let order = agent.order();
        obey(&mut now, order);
        now.relay.lease = Some(Lease {
            words: words.clone(),
            clock,
            length,
        });
        let run = if settings.kernel.is_some() {
            run_in_kernel(&now, order, &agent, stop, json, &mut kernel)
        } else if settings.direct.is_some() {
            let (wired, lease) = (now.relay.device.next, now.relay.lease.clone());
            direct::serve_if(now, stop, json, |log| {
                let lease = lease.as_ref().context("--fleet")?;
                may_run(lease, wired, log, order, &agent, stop)
            })
        } else {
            run_once(now, order, &agent, stop, json)
        };
        if let Err(error) = run {
            // It may have been refused for a place that it has no more.
            if !is_refusal(&error) || !ends_soon(&words, stop, length / PATIENCE)? {
                break Err(error);
            }
            tracing::warn!(
                "{error:#}. The chain in etcd is another one now: this device begins anew"
            );
        }
        if let Some(text) = agent.failure() {
            break Err(anyhow::anyhow!(text));
        }
        if agent.leaves() {
            leaves = true;
            break Ok(());
        }
        if !words.is_to_end() {
            break Ok(());
        }
    };
    if leaves {
        let id = settings.relay.device.id;
        tracing::warn!(
            "device {id} leaves its chain, as `pmnet ctl` was asked to see to, and ends. To let it come back: pmnet ctl add --device {id}"
        );
    }
    match kernel {
        // It may answer on without this process, until its deadline: the lease must last as long, and end by itself.
        Some(InKernel { found, was_serving }) => {
            kernel::leave(&settings, found, was_serving, served)
        }
        None => {
            if leaves && let Err(text) = agent.give_back() {
                tracing::warn!("etcd: {text}. The lease ends by itself");
            }
            served
        }
    }
}

/// What this process found in the kernel at first, and whether it served there.
struct InKernel {
    found: Found,
    was_serving: bool,
}

fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(DeviceError::Stopped(_)))
}

/// Whether the agent wants the run to end, or does within so many nanoseconds.
fn ends_soon(words: &LeaseWords, stop: &Stop, wait: u64) -> anyhow::Result<bool> {
    let until = Instant::now() + Duration::from_nanos(wait);
    while !words.is_to_end() {
        if Instant::now() >= until || stop.within(LOOK).context("cannot wait for etcd")? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The settings as the chain in etcd says, in place of what the command line does.
fn obey(settings: &mut Settings, order: Option<Order>) {
    let device = &mut settings.relay.device;
    device.leased = true;
    let Some(Order { next, shrink }) = order else {
        return;
    };
    device.next = next;
    device.flags &= Member::JOIN;
    if shrink.is_some() {
        device.flags |= Member::SHRINK;
    }
    device.word_epoch = shrink;
}

/// One run: until asked to end, by a person or by the agent.
fn run_once(
    settings: Settings,
    order: Option<Order>,
    agent: &Agent,
    stop: &Stop,
    json: bool,
) -> anyhow::Result<()> {
    let (log, _) = open_log(&settings)
        .with_context(|| format!("cannot use the log {}", settings.path.display()))?;
    let lease = settings.relay.lease.as_ref().context("--fleet")?;
    if !may_run(lease, settings.relay.device.next, &log, order, agent, stop)? {
        return Ok(log.close()?);
    }
    run_relay(settings.relay, log, None, stop, json, || ())
}

/// The same for a device in the kernel. Each run begins anew there, so that another device may join behind it.
fn run_in_kernel(
    settings: &Settings,
    order: Option<Order>,
    agent: &Agent,
    stop: &Stop,
    json: bool,
    state: &mut Option<InKernel>,
) -> anyhow::Result<()> {
    let taken = kernel::take(settings, true)?;
    let state = state.get_or_insert(InKernel {
        found: taken.found(),
        was_serving: false,
    });
    let lease = settings.relay.lease.as_ref().context("--fleet")?;
    let next = settings.relay.device.next;
    if !may_run(lease, next, taken.log(), order, agent, stop)? {
        return Ok(());
    }
    taken.run(settings, stop, json, || state.was_serving = true)
}

/// Tells the agent that the device runs with this log, and waits until etcd knows it as this process's. False: it is to end
/// before that.
fn may_run<M: Media>(
    lease: &Lease,
    next: SocketAddr,
    log: &Log<M>,
    order: Option<Order>,
    agent: &Agent,
    stop: &Stop,
) -> anyhow::Result<bool> {
    let facts = Facts {
        log: log.identity().log_uuid,
        incarnation: log.incarnation(),
    };
    let by_flags = Order { next, shrink: None };
    agent.attend(facts, lease.words.clone(), order.unwrap_or(by_flags));
    // Whoever else runs as this device is found before anybody hears of this one.
    while !agent.is_registered() && agent.failure().is_none() && !agent.leaves() {
        if stop.within(LOOK).context("cannot wait for etcd")? {
            return Ok(false);
        }
    }
    Ok(!lease.words.is_to_end())
}
