//! `pmnet controller`: removes devices that have lost their lease from the chain, and lets spares join.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use pmnet_cli::ConfigError;
use pmnet_fleet::{Advice, Controller, ControllerConfig, Plan, Step};
use serde_json::{Value, json};

use super::common::{InFleet, STATUS_HELP};
use super::process::Process;
use super::ready::Line;
use crate::status::{ControllerBoard, ControllerNumbers};

const EXAMPLES: &str = "\
Examples:
  pmnet controller --fleet prod \\
      --etcd http://10.0.0.7:2379,http://10.0.0.8:2379
  pmnet controller --fleet prod --etcd http://10.0.0.7:2379 --copies 3 --json

When the lease of a device and the margin after it have ended, the controller declares the device stopped in etcd, \
if another device has a lease and holds everything. Then the controller writes a chain without the stopped device to \
etcd. The devices of the fleet read this chain and change their next hops without a restart of their processes. A \
device that runs with --fleet and --join, and is not a member, is a spare. It joins when the chain is shorter than \
before, or shorter than --copies.

Run two or three controllers on different machines. Each step is one transaction in etcd, so the controllers do not \
disturb each other. Without a controller the chain in etcd does not change: the devices continue, and an operator \
must remove a lost device by hand. Controllers never remove the last device that holds everything. Only an operator \
can declare its data lost (--declare-data-loss).

--json: stdout gets one object for each completed step (step), and one object every 5 seconds while a step waits for \
an operator or for etcd (waits). The exit code is 0 if the controller ends on request.";

/// Time after which the controller logs again that etcd does not answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of devices in a chain.
const COPIES_MAX: usize = 8;

/// The command line of `pmnet controller`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ControllerArgs {
    #[command(flatten)]
    place: InFleet,
    /// Number of devices that the chain shall have if there are enough spares. It counts until `pmnet ctl` changes the
    /// number [default: the chain's greatest length so far].
    #[arg(long, value_name = "R")]
    copies: Option<usize>,
    /// Compact etcd's whole history, except the last five minutes. Use it only if etcd does not compact by itself
    /// (--auto-compaction-retention) and serves no other programs.
    #[arg(long)]
    compact_etcd: bool,
    /// Address of the status port.
    #[arg(long, value_name = "HOST:PORT", help = STATUS_HELP)]
    status: Option<String>,
    /// Print one JSON object a line on stdout: for the start, and for each change that was made.
    #[arg(long)]
    json: bool,
}

/// Takes steps until the process is asked to end.
pub fn main(args: &ControllerArgs) -> anyhow::Result<bool> {
    if let Some(copies) = args
        .copies
        .filter(|copies| !(1..=COPIES_MAX).contains(copies))
    {
        return Err(ConfigError(format!("--copies {copies}: 1 to {COPIES_MAX}")).into());
    }
    let (members, names) = args.place.in_etcd()?;
    let config = ControllerConfig {
        members,
        names,
        copies: args.copies,
        compacts: args.compact_etcd,
    };
    let line = Line::alone(args.json);
    let process = Process::open("controller", args.status.as_deref(), line, None)?;
    let part = process.alone()?;
    let stop = part.stop()?;
    let board = ControllerBoard::new(args.place.fleet.clone(), args.place.shard);
    let board = Arc::new(board);
    part.show(board.clone());
    let mut numbers = ControllerNumbers::default();
    let mut controller = Controller::new(config);
    let mut said = Said::default();
    let mut ready = false;
    loop {
        let turned = controller.turn();
        count(&mut numbers, &turned);
        if turned.is_ok() && !ready {
            ready = true;
            let fields = [
                ("fleet", json!(args.place.fleet)),
                ("shard", json!(args.place.shard)),
            ];
            part.announce("controller", &fields);
        }
        let done = matches!(turned, Ok(Advice::Do(_)));
        let answered = turned.is_ok();
        said.say(turned, args.json)?;
        let waits = said.waits.as_ref().map(|(text, _)| text.as_str());
        numbers.waits = u64::from(waits.is_some());
        board.turn(numbers, answered, waits);
        if answered && let Some(text) = controller.look_after_etcd() {
            tracing::warn!("{text}");
            if args.json {
                print_line(&json!({ "etcd": text }))?;
            }
        }
        // After a step, the controller reads the state again without a pause.
        let pause = if done {
            Duration::ZERO
        } else {
            controller.pause()
        };
        if stop.within(pause).context("cannot wait")? {
            return Ok(true);
        }
    }
}

/// Adds a turn to the counters.
fn count(numbers: &mut ControllerNumbers, turned: &Result<Advice, String>) {
    match turned {
        Ok(advice) => {
            numbers.answered += 1;
            match advice {
                Advice::Do(Step::Adopt(_)) => numbers.adopt += 1,
                Advice::Do(Step::Stop { .. }) => numbers.stop += 1,
                Advice::Do(Step::Wire(_)) => numbers.wire += 1,
                Advice::Do(Step::LeftOut { .. }) => numbers.left_out += 1,
                Advice::Well | Advice::Wait(_) => {}
            }
        }
        Err(_) => numbers.failed += 1,
    }
}

/// The last message that the controller has logged, with its time.
#[derive(Default)]
struct Said {
    waits: Option<(String, Instant)>,
    hears: bool,
}

impl Said {
    fn say(&mut self, turned: Result<Advice, String>, json: bool) -> anyhow::Result<()> {
        let text = match turned {
            Ok(Advice::Do(step)) => {
                tracing::info!("{}", as_text(&step));
                if json {
                    print_line(&as_json(&step))?;
                }
                None
            }
            Ok(Advice::Well) => None,
            Ok(Advice::Wait(text)) => Some(text),
            Err(text) => Some(format!(
                "PM4006 etcd: {text}. Until it answers, no device is left out and none joins"
            )),
        };
        let Some(text) = text else {
            if self.waits.take().is_some() || !self.hears {
                tracing::info!("etcd answers, and nothing waits for a person");
            }
            self.hears = true;
            return Ok(());
        };
        let again = self
            .waits
            .as_ref()
            .is_none_or(|(before, at)| *before != text || at.elapsed() >= PATIENCE);
        if again {
            tracing::warn!("{text}");
            if json {
                print_line(&json!({ "waits": text }))?;
            }
            self.waits = Some((text, Instant::now()));
        }
        Ok(())
    }
}

fn print_line(value: &Value) -> anyhow::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}")
        .and_then(|()| out.flush())
        .map_err(|error| {
            anyhow!("PM4007 stdout has no reader any more, and --json was given: {error}")
        })
}

fn as_text(step: &Step) -> String {
    match step {
        Step::Adopt(plan) => format!(
            "PM4001 epoch {}: the chain is {:?} ({} copies wanted)",
            plan.epoch,
            plan.ids(),
            plan.copies
        ),
        Step::Stop { device, beside, .. } => format!(
            "PM4002 device {device} is declared stopped: its lease is gone for good; device {beside} holds everything"
        ),
        Step::Wire(plan) => match plan.joiner() {
            Some(joiner) => format!(
                "PM4003 epoch {}: device {joiner} is to join, the chain to become {:?}",
                plan.epoch,
                plan.ids()
            ),
            None => format!(
                "PM4004 epoch {}: the chain is to become {:?}",
                plan.epoch,
                plan.ids()
            ),
        },
        Step::LeftOut { device, epoch } => {
            format!(
                "PM4005 device {device} was left out of the chain of epoch {epoch}, and may join anew"
            )
        }
    }
}

fn as_json(step: &Step) -> Value {
    let chain = |name: &str, plan: &Plan| {
        json!({
            "step": name, "epoch": plan.epoch, "chain": plan.ids(), "joins": plan.joiner(),
            "copies_wanted": plan.copies,
        })
    };
    match step {
        Step::Adopt(plan) => chain("adopt", plan),
        Step::Wire(plan) => chain("wire", plan),
        Step::Stop { device, beside, .. } => {
            json!({ "step": "stop", "device": device, "beside": beside })
        }
        Step::LeftOut { device, epoch } => {
            json!({ "step": "left-out", "device": device, "epoch": epoch })
        }
    }
}
