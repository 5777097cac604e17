//! Measures all rows in turn, in several rounds. Figures are medians over the rounds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;

use super::packet::Packet;
use super::plan::{Plan, Tags};
use super::stand::Stand;
use crate::bench::micro::{cpus, pin};
use crate::demo::view::View;

/// Payload in bytes of the updates in all rows except those that compare payloads.
const PAYLOAD_BYTES: usize = 100;

/// One kind of packet with one payload and one number of sessions.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The kind of packet.
    pub packet: Packet,
    /// The kind of tag with which packets authenticate their sender.
    pub tags: Tags,
    /// Size in bytes of the update's payload, or of the data that takes its place.
    pub payload_bytes: usize,
    /// Number of sessions. Successive packets belong to different sessions.
    pub sessions: usize,
    /// Number of measured packets in all rounds.
    pub packets: u64,
    /// Nanoseconds per packet, median over the rounds.
    pub ns: f64,
    /// The shortest time of any round with the pipeline, minus the shortest time of any round
    /// without the pipeline.
    pub ns_min: f64,
    /// Time for supplying a packet, which was subtracted, in nanoseconds; median over the rounds.
    pub subtracted_ns: f64,
    /// Packets per second that one core can handle if it does no other work.
    pub per_second: f64,
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The measurement and the machine.
    pub title: String,
    /// Notes for readers of the figures.
    pub notes: Vec<String>,
    /// The measured rows.
    pub rows: Vec<Row>,
}

/// The properties of a row.
#[derive(Clone, Copy)]
struct Cell {
    packet: Packet,
    payload_bytes: usize,
}

fn cells(plan: &Plan, ipv6: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &packet in &plan.packets {
        if (packet == Packet::Update6) != ipv6 {
            continue;
        }
        let payloads = match packet {
            Packet::Update => plan.payloads.clone(),
            Packet::Arp => vec![0],
            _ => vec![PAYLOAD_BYTES],
        };
        cells.extend(payloads.into_iter().map(|payload_bytes| Cell {
            packet,
            payload_bytes,
        }));
    }
    cells
}

/// Returns the number of rows of the plan.
pub fn steps(plan: &Plan) -> u64 {
    let rows = [false, true].map(|ipv6| cells(plan, ipv6).len());
    let each = plan.sessions.len() * plan.tags.len();
    u64::try_from(rows.iter().sum::<usize>() * each).unwrap_or(u64::MAX)
}

/// Measures all rows, on the first core that this process may use.
pub fn all(plan: &Plan, stop: &AtomicBool, view: &View) -> anyhow::Result<Vec<Row>> {
    pin(cpus().first().copied());
    let mut rows = Vec::new();
    let mut number = 0;
    for &sessions in &plan.sessions {
        for ipv6 in [false, true] {
            let cells = cells(plan, ipv6);
            if cells.is_empty() {
                continue;
            }
            let mut stands = Vec::new();
            for &tags in &plan.tags {
                number += 1;
                let stand = Stand::new(plan, tags, ipv6, sessions, number)
                    .context("cannot set up a device to be measured")?;
                stands.push((tags, stand));
            }
            for cell in cells {
                let Cell {
                    packet,
                    payload_bytes,
                } = cell;
                let name = format!(
                    "{}, {payload_bytes} B, {sessions} session(s)",
                    packet.name()
                );
                view.step(&name, u64::try_from(stands.len()).unwrap_or(1));
                rows.extend(
                    one(&mut stands, plan, cell, sessions, stop).with_context(|| name.clone())?,
                );
            }
        }
    }
    Ok(rows)
}

/// Measures one row. The devices of the row take turns from round to round.
fn one(
    stands: &mut [(Tags, Stand)],
    plan: &Plan,
    cell: Cell,
    sessions: usize,
    stop: &AtomicBool,
) -> anyhow::Result<Vec<Row>> {
    let mut samples = vec![Vec::with_capacity(plan.rounds); stands.len()];
    for number in 0..plan.rounds {
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        for ((_, stand), samples) in stands.iter_mut().zip(&mut samples) {
            samples.push(round(stand, plan, cell, number)?);
        }
    }
    let rows = stands.iter().zip(&samples);
    let rows = rows.map(|((tags, _), samples)| row(cell, *tags, sessions, plan.batch, samples));
    Ok(rows.collect())
}

/// Makes one round with both programs. Both programs get the same packets. The order of the
/// programs alternates from round to round.
fn round(
    stand: &mut Stand,
    plan: &Plan,
    cell: Cell,
    number: usize,
) -> anyhow::Result<(Duration, Duration)> {
    let Cell {
        packet,
        payload_bytes,
    } = cell;
    if number == 0 || packet.appends() {
        stand.prepare(packet, payload_bytes, plan.batch)?;
    }
    // After this first run, both programs find the packets in the same CPU caches.
    stand.run_nothing(plan.batch)?;
    Ok(if number.is_multiple_of(2) {
        let without = stand.run_nothing(plan.batch)?;
        (stand.run_pipeline(packet, plan.batch)?, without)
    } else {
        let with = stand.run_pipeline(packet, plan.batch)?;
        (with, stand.run_nothing(plan.batch)?)
    })
}

/// Computes a row. `samples`: for each round, the time per packet with and without the pipeline.
fn row(
    cell: Cell,
    tags: Tags,
    sessions: usize,
    batch: u32,
    samples: &[(Duration, Duration)],
) -> Row {
    let nanos = |time: &Duration| time.as_secs_f64() * 1e9;
    let pick = |figure: &dyn Fn(&(Duration, Duration)) -> f64, least: bool| {
        let mut values: Vec<f64> = samples.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        let at = if least { 0 } else { values.len() / 2 };
        values.get(at).copied().unwrap_or(0.0)
    };
    let ns = pick(&|(with, without)| nanos(with) - nanos(without), false);
    Row {
        packet: cell.packet,
        tags,
        payload_bytes: cell.payload_bytes,
        sessions,
        packets: u64::from(batch) * u64::try_from(samples.len()).unwrap_or(u64::MAX),
        ns,
        ns_min: pick(&|(with, _)| nanos(with), true) - pick(&|(_, without)| nanos(without), true),
        subtracted_ns: pick(&|(_, without)| nanos(without), false),
        // The clock counts whole nanoseconds, so the time can be 0.
        per_second: 1e9 / ns.max(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_subtracted_belongs_to_the_same_round() {
        let samples = [(190, 50), (400, 260), (210, 80), (160, 40), (175, 30)]
            .map(|(with, without)| (Duration::from_nanos(with), Duration::from_nanos(without)));
        let cell = Cell {
            packet: Packet::Update,
            payload_bytes: 100,
        };
        let row = row(cell, Tags::Token, 1, 1000, &samples);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 0.001, "{a} {b}");
        near(row.ns, 140.0);
        near(row.ns_min, 130.0);
        near(row.subtracted_ns, 50.0);
        near(row.per_second, 1e9 / 140.0);
        assert_eq!(row.packets, 5000);
    }
}
