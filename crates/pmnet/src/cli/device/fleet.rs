//! `pmnet device --fleet`: a device that answers only while it has a lease in etcd.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use pmnet_cli::ConfigError;
use pmnet_client::{Clock, Stop};
use pmnet_dataplane::relay::{Lease, LeaseWords, RelayConfig};
use pmnet_fleet::{
    Agent, AgentConfig, Facts, LEASE_SECONDS, LEASE_SECONDS_USUAL, Members, Names, Order,
};
use pmnet_proto::time::Nanos;
use pmnet_wire::record::Member;

use super::args::{DeviceArgs, Mode};
use super::hand::next_id;
use super::supervisor::{Orders, Then, is_refusal, obey};
use crate::cli::process::Part;

/// Interval at which the device checks whether etcd has answered.
const LOOK: Duration = Duration::from_millis(20);
/// Divisor of a lease's length. A device that the server has refused waits for the quotient, because it may get a new
/// place in the chain.
const PATIENCE: u64 = 3;

/// Settings of a device in a fleet.
#[derive(Clone, Debug)]
pub struct FleetSettings {
    members: Members,
    fleet: String,
    names: Names,
    seconds: u64,
}

impl FleetSettings {
    /// Returns the settings for another shard of the fleet.
    pub fn of_shard(&self, shard: u32) -> Result<FleetSettings, ConfigError> {
        Ok(FleetSettings {
            names: Names::new(&self.fleet, shard).map_err(ConfigError)?,
            ..self.clone()
        })
    }

    /// Returns the settings of the fleet; `None` without `--fleet`.
    pub fn new(
        args: &DeviceArgs,
        listen: SocketAddr,
    ) -> Result<Option<FleetSettings>, ConfigError> {
        let Some(name) = args.fleet.clone() else {
            return match (args.etcd().nothing(), args.lease_seconds) {
                (Ok(()), None) => Ok(None),
                _ => Err(ConfigError(
                    "--etcd and --lease-seconds belong to --fleet: give the fleet's name".into(),
                )),
            };
        };
        match args.mode {
            None | Some(Mode::Relay | Mode::AfXdp | Mode::Verbs) => {}
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
        if args.server_reads_log {
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
        let seconds = args.lease_seconds.unwrap_or(LEASE_SECONDS_USUAL);
        if !LEASE_SECONDS.contains(&seconds) {
            return Err(ConfigError(format!(
                "--lease-seconds {seconds}: {} to {}",
                LEASE_SECONDS.start(),
                LEASE_SECONDS.end()
            )));
        }
        let (members, names) = args.etcd().of(&name, args.shard.unwrap_or(0))?;
        Ok(Some(FleetSettings {
            members,
            fleet: name,
            names,
            seconds,
        }))
    }
}

/// One run of the device: the messages to its loop, and its next hop.
struct Run {
    words: Arc<LeaseWords>,
    order: Order,
}

/// Orders from etcd. While the device is in the chain in etcd, that chain determines its next hop. The device answers
/// only while it has a lease in etcd.
pub struct FleetOrders {
    agent: Agent,
    clock: Clock,
    /// Length of a lease in nanoseconds.
    length: Nanos,
    id: u32,
    run: Run,
    leaves: bool,
}

impl FleetOrders {
    /// Starts the agent that renews the lease.
    pub fn begin(
        fleet: &FleetSettings,
        relay: &RelayConfig,
        part: &Part<'_>,
    ) -> anyhow::Result<FleetOrders> {
        let clock = Clock::boottime();
        let device = &relay.device;
        let agent = Agent::start(AgentConfig {
            members: fleet.members.clone(),
            names: fleet.names.clone(),
            id: device.id,
            address: relay.listen,
            seconds: fleet.seconds,
            spare: device.flags & Member::JOIN != 0,
            by_hand: device.flags & (Member::SHRINK | Member::DECLARE_LOSS) != 0,
            clock,
            status: part.status_record(relay.listen.ip()),
        })
        .context("cannot start the thread that keeps the lease")?;
        Ok(FleetOrders {
            agent,
            clock,
            length: pmnet_fleet::length(fleet.seconds),
            id: device.id,
            run: Run {
                words: Arc::default(),
                order: Order {
                    next: device.next,
                    next_id: next_id(device),
                    shrink: None,
                },
            },
            leaves: false,
        })
    }

    /// Waits for a part of a lease's length ([`PATIENCE`]). Returns whether the agent ends the run in this time.
    fn ends_soon(&self, stop: &Stop) -> anyhow::Result<bool> {
        let until = Instant::now() + Duration::from_nanos(self.length / PATIENCE);
        while !self.run.words.is_to_end() {
            if Instant::now() >= until || stop.within(LOOK).context("cannot wait for etcd")? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Orders for FleetOrders {
    fn wire(&mut self, relay: &mut RelayConfig) {
        let words = Arc::new(LeaseWords::default());
        relay.device.leased = true;
        let order = self.agent.order();
        if let Some(order) = order {
            obey(&mut relay.device, order);
        }
        relay.lease = Some(Lease {
            words: words.clone(),
            clock: self.clock,
            length: self.length,
        });
        let order = order.unwrap_or(Order {
            next: relay.device.next,
            next_id: next_id(&relay.device),
            shrink: None,
        });
        self.run = Run { words, order };
    }

    /// Tells the agent that the device runs with this log. Waits until etcd's record of the device names this process.
    /// Returns false if the device must end before that.
    fn may_serve(&mut self, log: Facts, stop: &Stop) -> anyhow::Result<bool> {
        let Run { words, order } = &self.run;
        let agent = &self.agent;
        agent.attend(log, words.clone(), *order);
        // If another process has this id, the agent notices it before the device serves.
        while !agent.is_registered() && agent.failure().is_none() && !agent.leaves() {
            if stop.within(LOOK).context("cannot wait for etcd")? {
                return Ok(false);
            }
        }
        Ok(!words.is_to_end())
    }

    fn after(&mut self, run: anyhow::Result<()>, stop: &Stop) -> anyhow::Result<Then> {
        if let Err(error) = run {
            // The server may have refused the device because of a place in the chain that the device no longer has.
            if !is_refusal(&error) || !self.ends_soon(stop)? {
                return Err(error);
            }
            tracing::warn!(
                "PM1607 {error:#}. The chain in etcd is another one now: this device begins anew"
            );
        }
        if let Some(text) = self.agent.failure() {
            return Err(anyhow::anyhow!(text));
        }
        if self.agent.leaves() {
            self.leaves = true;
            tracing::warn!(
                "PM1608 device {id} leaves its chain and ends, as asked for with `pmnet ctl`. To let it come back: pmnet ctl add --device {id}",
                id = self.id
            );
            return Ok(Then::End);
        }
        Ok(match self.run.words.is_to_end() {
            true => Then::Again,
            false => Then::End,
        })
    }

    fn ended(self: Box<Self>) {
        if self.leaves
            && let Err(text) = self.agent.give_back()
        {
            tracing::warn!("PM1609 etcd: {text}. The lease ends by itself");
        }
    }
}
