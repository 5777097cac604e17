//! The results of an attack.

use std::collections::BTreeMap;
use std::fmt;

use pmnet_wire::Kind;
use serde::Serialize;

use super::clients::Reads;
use super::doors::{DoorKind, DoorReport};
use super::packets::Trick;
use super::stand::{Cache, Metrics, Mode};
use super::tap::Sent;
use crate::check::Verdict;

/// The results of one attack.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How the devices processed packets.
    pub mode: Mode,
    /// Which updates the head showed to readers.
    pub cache: Cache,
    /// Number of devices in the chain.
    pub devices: u8,
    /// Kinds of packets that the adversary saw.
    pub kinds: Vec<String>,
    /// The reports of front, devices and server.
    pub roles: Vec<RoleReport>,
    /// States that changed while no client wrote, as text. Must be empty.
    pub moved: Vec<String>,
    /// Entries that the taps saw while no client wrote. Each text says whether the front asked for
    /// the entry.
    pub entries: Vec<String>,
    /// Roles whose process ended.
    pub ended: Vec<String>,
    /// Keys in the database that no client wrote.
    pub invented: u64,
    /// The reports of TCP doors and status ports; empty without keys.
    pub doors: Vec<DoorReport>,
    /// The results of the clients that read their own writes.
    pub reads: Reads,
    /// Verdict on the checked load.
    pub verdict: Verdict,
}

/// The packets that a role received, and the role's counters of dropped packets.
#[derive(Clone, Debug, Serialize)]
pub struct RoleReport {
    /// The name of the role.
    pub role: String,
    /// Number of the adversary's packets to this role, by trick.
    pub sent: BTreeMap<&'static str, u64>,
    /// Number of kinds that the adversary's packets to this role had.
    pub kinds: usize,
    /// Number of packets that the role dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Number of datagrams that were lost because the buffer of the role's socket was full.
    pub overrun: u64,
}

/// The counters of a role at one moment.
pub(super) struct Look {
    /// Values of the role's status port.
    pub metrics: Metrics,
    /// Number of datagrams that were lost because a socket buffer of its machine was full.
    pub overrun: u64,
}

impl RoleReport {
    /// Returns the report of a role that has not received any packet.
    pub(super) fn new(role: &str) -> RoleReport {
        RoleReport {
            role: role.to_owned(),
            sent: BTreeMap::new(),
            kinds: 0,
            dropped: BTreeMap::new(),
            overrun: 0,
        }
    }

    /// Returns the number of packets that the role had to drop and did not count.
    #[must_use]
    pub fn uncounted(&self) -> u64 {
        let repeated = Trick::Repeated.name();
        let others = self.sent.iter().filter(|(trick, _)| **trick != repeated);
        let to_be_dropped: u64 = others.map(|(_, count)| count).sum();
        let counted: u64 = self.dropped.values().sum();
        to_be_dropped.saturating_sub(counted + self.overrun)
    }

    /// Adds the growth of the counters from `before` to `after`.
    pub(super) fn count(&mut self, (before, after): (&Look, &Look)) {
        self.overrun += after.overrun - before.overrun;
        for (name, value) in &after.metrics {
            let Some(reason) = reason(name) else {
                continue;
            };
            let was = before.metrics.get(name).copied().unwrap_or(0.0);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a count"
            )]
            let more = (value - was).max(0.0) as u64;
            if more > 0 {
                *self.dropped.entry(reason).or_default() += more;
            }
        }
    }
}

/// Returns the reason for a drop that the name of a counter contains.
fn reason(name: &str) -> Option<String> {
    let (metric, labels) = name.split_once('{').unwrap_or((name, ""));
    if metric.ends_with("_foreign_total") {
        return Some("foreign".to_owned());
    }
    // Packets that the pipeline in the kernel dropped.
    if metric == "pmnet_kernel_packets_total" && labels.contains("event=\"forged\"") {
        return Some("forged".to_owned());
    }
    if !metric.ends_with("_dropped_total") {
        return None;
    }
    let (_, reason) = labels.split_once("reason=\"")?;
    let (reason, _) = reason.split_once('"')?;
    Some(reason.to_owned())
}

impl Report {
    /// Adds the adversary's packets to the report of each role.
    pub(super) fn with_sent(mut self, sent: &Sent) -> Report {
        for role in &mut self.roles {
            let own = sent.iter().filter(|((to, ..), _)| *to == role.role);
            let mut kinds = std::collections::BTreeSet::new();
            for ((_, trick, kind), count) in own {
                *role.sent.entry(trick.name()).or_default() += count;
                kinds.extend(kind.map(Kind::number));
            }
            role.kinds = kinds.len();
        }
        self
    }

    /// Returns whether the attack had no effect.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let is_unmoved = self.moved.is_empty() && self.entries.is_empty();
        let is_untouched = is_unmoved && self.ended.is_empty() && self.invented == 0;
        let are_closed = self.doors.iter().all(|door| door.opened.is_empty());
        let is_shown = self.reads.wrong.is_empty();
        is_untouched && are_closed && is_shown && self.verdict.is_clean()
    }

    fn write_doors(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for door in &self.doors {
            let answers = door.answers.iter();
            let answers: Vec<_> = answers.map(|(said, n)| format!("{said} {n}")).collect();
            let kind = match door.kind {
                DoorKind::Ctl => "door",
                DoorKind::Status => "status",
            };
            writeln!(f, "{:<9} {kind}: {}", door.role, answers.join(", "))?;
            for opened in &door.opened {
                writeln!(f, "OPENED: {} {kind} answered {opened}", door.role)?;
            }
        }
        Ok(())
    }

    /// Returns the number of all packets of the adversary.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.roles.iter().flat_map(|role| role.sent.values()).sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} packets of an adversary with a tap in each of {} links; kinds that it saw: {}",
            self.sent(),
            self.devices + 1,
            self.kinds.join(", ")
        )?;
        write!(f, "{:<9}", "")?;
        for trick in Trick::ALL {
            write!(f, "{:>11}", trick.name())?;
        }
        writeln!(f, "{:>7}", "kinds")?;
        for role in &self.roles {
            write!(f, "{:<9}", role.role)?;
            for trick in Trick::ALL {
                let sent = role.sent.get(trick.name()).copied().unwrap_or(0);
                write!(f, "{sent:>11}")?;
            }
            writeln!(f, "{:>7}", role.kinds)?;
        }
        writeln!(f, "dropped and counted:")?;
        for role in &self.roles {
            let reasons: Vec<String> = role
                .dropped
                .iter()
                .map(|(reason, count)| format!("{reason} {count}"))
                .collect();
            let overrun = match role.overrun {
                0 => String::new(),
                count => format!("; no room in its socket {count}"),
            };
            let uncounted = match role.uncounted() {
                0 => String::new(),
                count => format!("; UNCOUNTED {count}"),
            };
            let reasons = reasons.join(", ");
            writeln!(f, "{:<9} {reasons}{overrun}{uncounted}", role.role)?;
        }
        self.write_doors(f)?;
        for moved in &self.moved {
            writeln!(f, "MOVED while no client wrote: {moved}")?;
        }
        for entry in &self.entries {
            writeln!(f, "ENTRY while no client wrote: {entry}")?;
        }
        for role in &self.ended {
            writeln!(f, "ENDED: {role}")?;
        }
        if self.invented > 0 {
            writeln!(f, "INVENTED: {} keys that no client wrote", self.invented)?;
        }
        for wrong in &self.reads.wrong {
            writeln!(f, "READ WRONG: {wrong}")?;
        }
        let Reads { answered, hits, .. } = self.reads;
        writeln!(
            f,
            "--cache {}: {answered} reads of what was written before, {hits} hits in the head's log",
            self.cache.word()
        )?;
        write!(f, "beside it: {}", self.verdict)
    }
}
