//! Measures all variants in turn, in several rounds.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use serde::Serialize;

use super::pace::{Pace, Sample};
use super::plan::{Kind, MTU, Plan, Variant, Workload};
use super::share::{Share, median};
use super::stand::Stand;
use super::{load, tcp, udp};
use crate::demo::view::View;
use crate::harness::Scratch;
use crate::testbed::Network;

/// The figures of one variant of the switch under one workload.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The traffic.
    pub workload: Workload,
    /// The variant.
    pub variant: Variant,
    /// MTU of all links, in bytes.
    pub mtu: u16,
    /// Unit of the figures. If the unit is a time, lower is better.
    pub unit: &'static str,
    /// The figure: the median over the rounds.
    pub figure: f64,
    /// One figure per round, in the order of the rounds.
    pub rounds: Vec<f64>,
    /// The ratio of the figure to that of [`Variant::Pass`].
    pub of_pass: Option<Share>,
    /// The ratio of the figure to that of [`Variant::Bare`].
    pub of_bare: Option<Share>,
    /// Number of bytes that arrived and were checked, in all rounds.
    pub bytes: u64,
    /// Datagrams sent per second, as the median over the rounds; `None` for workloads without
    /// datagrams.
    pub sent: Option<f64>,
    /// 99th percentile of round trips in microseconds, as the median over the rounds.
    pub p99_us: Option<f64>,
    /// Number of updates that were acknowledged during the traffic, over all rounds; `None` if no
    /// client sent updates.
    pub acknowledged: Option<u64>,
}

/// A variant that is impossible with an MTU on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// The variant.
    pub variant: Variant,
    /// MTU of all links, in bytes.
    pub mtu: u16,
    /// The error message of the device or of the kernel.
    pub reason: String,
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Title: the measurement and the machine.
    pub title: String,
    /// Notes for readers of the figures.
    pub notes: Vec<String>,
    /// The measured cells.
    pub cells: Vec<Cell>,
    /// Variants that are impossible with an MTU on this machine.
    pub refused: Vec<Refused>,
}

/// Measures all cells of the plan.
pub fn all(
    plan: &Plan,
    folder: &Path,
    stop: &AtomicBool,
    view: &View,
) -> anyhow::Result<(Vec<Cell>, Vec<Refused>)> {
    let scratch = Scratch::new(folder, "traffic")?;
    let (mut cells, mut refused) = (Vec::new(), Vec::new());
    for workloads in plan.workloads.chunk_by(|a, b| a.mtu() == b.mtu()) {
        let mtu = workloads.first().map_or(MTU, |workload| workload.mtu());
        let stands = stands(plan, mtu, stop, &scratch, view, &mut refused)?;
        for workload in workloads {
            let run = Run {
                plan,
                workload: *workload,
                stop,
                view,
            };
            cells.extend(run.rounds(&stands)?);
        }
    }
    Ok((cells, refused))
}

/// Sets up all variants. Some drivers do not support XDP with every MTU: variants that are
/// impossible are left out and reported.
fn stands(
    plan: &Plan,
    mtu: u16,
    stop: &AtomicBool,
    scratch: &Scratch,
    view: &View,
    refused: &mut Vec<Refused>,
) -> anyhow::Result<Vec<(Variant, Stand)>> {
    let mut stands = Vec::new();
    for (number, variant) in plan.variants.iter().enumerate() {
        view.step(&format!("setting up {} (MTU {mtu})", variant.name()), 0);
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        match Stand::build(*variant, mtu, number, scratch) {
            Ok(stand) => stands.push((*variant, stand)),
            Err(error) if mtu != MTU && variant.is_native() => refused.push(Refused {
                variant: *variant,
                mtu,
                reason: reason(&format!("{error:#}")),
            }),
            Err(error) => {
                let what = format!("cannot set up {} with MTU {mtu}", variant.name());
                return Err(error.context(what));
            }
        }
    }
    Ok(stands)
}

/// Returns the last line of the output of a process that failed. If there is no output, returns the
/// whole error.
fn reason(error: &str) -> String {
    let said = error.lines().rev().find(|line| line.starts_with("pmnet: "));
    let said = said.unwrap_or(error);
    said.strip_prefix("pmnet: ").unwrap_or(said).to_owned()
}

/// The settings of the runs of one workload.
struct Run<'a> {
    plan: &'a Plan,
    workload: Workload,
    stop: &'a AtomicBool,
    view: &'a View,
}

impl Run<'_> {
    fn rounds(&self, stands: &[(Variant, Stand)]) -> anyhow::Result<Vec<Cell>> {
        let mut samples: Vec<Vec<Sample>> = stands.iter().map(|_| Vec::new()).collect();
        for round in 0..self.plan.rounds {
            let mut order: Vec<usize> = (0..stands.len()).collect();
            // The order of the variants alternates, so that it does not affect the result.
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let (variant, stand) = &stands[index];
                let what = format!("{}: {}", self.workload.title(), variant.name());
                let number = round + 1;
                let text = format!("{what}, round {number} of {}", self.plan.rounds);
                self.view.step(&text, 1);
                samples[index].push(self.one(*variant, &stand.network).context(what)?);
            }
        }
        let rows = stands.iter().zip(&samples);
        let mut cells: Vec<Cell> = rows
            .map(|((variant, _), samples)| cell(self.workload, *variant, samples))
            .collect();
        compare(&mut cells);
        Ok(cells)
    }

    fn one(&self, variant: Variant, network: &Network) -> anyhow::Result<Sample> {
        if variant != Variant::Loaded {
            return self.traffic(network);
        }
        let (sample, acknowledged) = load::beside(network, self.stop, || self.traffic(network))?;
        Ok(Sample {
            acknowledged: Some(acknowledged),
            ..sample
        })
    }

    fn traffic(&self, network: &Network) -> anyhow::Result<Sample> {
        let server = network.layout().node("server").context("a server")?;
        let address: Option<IpAddr> = if self.workload.is_ipv6() {
            server.ipv6.map(Into::into)
        } else {
            server.ipv4.map(Into::into)
        };
        let address = address.context("an address")?;
        let pace = Pace {
            warmup: self.plan.warmup,
            duration: self.plan.duration,
            stop: self.stop,
        };
        match self.workload.kind() {
            Kind::Bulk { streams } => tcp::bulk(&tcp::connect(network, address, streams)?, pace),
            Kind::Datagrams => {
                let (near, far) = udp::connect(network, address)?;
                udp::flood(&near, &far, pace)
            }
            Kind::RoundTrip => {
                let pairs = tcp::connect(network, address, 1)?;
                tcp::round_trips(pairs.first().context("a connection")?, pace)
            }
        }
    }
}

fn cell(workload: Workload, variant: Variant, samples: &[Sample]) -> Cell {
    let rounds: Vec<f64> = samples.iter().map(|sample| sample.figure).collect();
    let middle = |figure: fn(&Sample) -> Option<f64>| {
        let figures: Vec<f64> = samples.iter().filter_map(figure).collect();
        median(&figures)
    };
    let acknowledged = samples.iter().map(|sample| sample.acknowledged);
    Cell {
        workload,
        variant,
        mtu: workload.mtu(),
        unit: workload.unit(),
        figure: median(&rounds).unwrap_or(0.0),
        of_pass: None,
        of_bare: None,
        bytes: samples.iter().map(|sample| sample.bytes).sum(),
        sent: middle(|sample| sample.sent),
        p99_us: middle(|sample| sample.p99_us),
        acknowledged: acknowledged.sum(),
        rounds,
    }
}

/// Computes the ratios to the baselines.
fn compare(cells: &mut [Cell]) {
    let rounds_of = |cells: &[Cell], variant| {
        let found = cells.iter().find(|cell| cell.variant == variant);
        found.map_or_else(Vec::new, |cell| cell.rounds.clone())
    };
    let [pass, bare] = [Variant::Pass, Variant::Bare].map(|variant| rounds_of(cells, variant));
    for cell in cells {
        let of =
            |baseline: &[f64]| Share::of(&cell.rounds, baseline, cell.workload.less_is_better());
        let (of_pass, of_bare) = (of(&pass), of(&bare));
        cell.of_pass = of_pass.filter(|_| cell.variant != Variant::Pass);
        cell.of_bare = of_bare.filter(|_| cell.variant != Variant::Bare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(figures: &[f64]) -> Vec<Sample> {
        let sample = |figure: &f64| Sample {
            figure: *figure,
            bytes: 10,
            ..Sample::default()
        };
        figures.iter().map(sample).collect()
    }

    #[test]
    fn figures_are_medians_and_shares_are_of_rounds() {
        for (workload, expected) in [(Workload::Tcp4, 0.5), (Workload::RoundTrip, 2.0)] {
            let mut cells = vec![
                cell(workload, Variant::Pass, &samples(&[2.0, 8.0, 4.0])),
                cell(workload, Variant::Device, &samples(&[1.0, 4.0, 2.0])),
            ];
            compare(&mut cells);
            let device = &cells[1];
            assert!((device.figure - 2.0).abs() < 1e-9);
            assert_eq!(device.bytes, 30);
            let share = device.of_pass.unwrap();
            assert!((share.median - expected).abs() < 1e-9, "{share:?}");
            assert!((share.low - share.high).abs() < 1e-9);
            assert_eq!((device.of_bare, cells[0].of_pass), (None, None));
        }
    }

    #[test]
    fn acknowledgements_are_added_where_there_are_any() {
        let mut with = samples(&[1.0, 1.0]);
        assert_eq!(
            cell(Workload::Tcp4, Variant::Device, &with).acknowledged,
            None
        );
        for sample in &mut with {
            sample.acknowledged = Some(7);
        }
        let cell = cell(Workload::Tcp4, Variant::Loaded, &with);
        assert_eq!(cell.acknowledged, Some(14));
    }

    #[test]
    fn the_reason_is_the_last_word_of_the_process() {
        let error =
            "device ended (exit status: 1), it said (more in x):\nINFO a log\npmnet: cannot attach";
        assert_eq!(reason(error), "cannot attach");
        assert_eq!(reason("no such interface"), "no such interface");
    }
}
