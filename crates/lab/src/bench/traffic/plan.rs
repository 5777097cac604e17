//! The measurements of a run: its traffic, the variants of the switch, and the durations.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::bench::micro::cores;

/// Size in bytes of a datagram, and of a message of a round trip.
pub const MESSAGE_BYTES: usize = 64;
/// The MTU of an Ethernet in bytes.
pub const MTU: u16 = 1_500;
/// Updates per second of the client in [`Variant::Loaded`].
pub const LOAD_RATE: u32 = 1_000;

/// A variant of the switch. Variants differ in the programs at the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// No XDP program.
    Bare,
    /// A program that lets everything pass.
    Pass,
    /// `pmnet device --mode switch`, without updates.
    Device,
    /// The same program as in [`Variant::Pass`] on a second switch. A difference between the two is
    /// chance.
    Control,
    /// `pmnet device --mode switch --xdp-generic`, without updates.
    Generic,
    /// `pmnet device --mode switch`, and a client that updates during the traffic.
    Loaded,
    /// No XDP program. The links have the offloads of a new veth.
    Offloaded,
}

impl Variant {
    /// All variants except [`Variant::Loaded`], because its client takes CPU time from the traffic.
    pub const DEFAULT: [Variant; 6] = [
        Variant::Bare,
        Variant::Pass,
        Variant::Device,
        Variant::Control,
        Variant::Generic,
        Variant::Offloaded,
    ];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Variant::Bare => "bare",
            Variant::Pass => "pass",
            Variant::Device => "device",
            Variant::Control => "control",
            Variant::Generic => "generic",
            Variant::Loaded => "loaded",
            Variant::Offloaded => "offloaded",
        }
    }

    /// Returns a sentence that describes the variant.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Variant::Bare => "the switch (a bridge) without XDP",
            Variant::Pass => {
                "an XDP program that lets everything pass at both ports of the switch and at the \
                 client's interface: what XDP costs by itself"
            }
            Variant::Device => {
                "pmnet device --mode switch at both ports, and the passing program at the client's \
                 interface, which acknowledgements need; nobody updates"
            }
            Variant::Control => {
                "the same as pass, in a switch of its own: what it differs from pass by is chance, and \
                 so may be as much of what the device does"
            }
            Variant::Generic => {
                "the device with --xdp-generic, for interfaces and MTUs without native XDP"
            }
            Variant::Loaded => {
                "the device, and a client that sends 1,000 updates a second beside the traffic, and \
                 takes processor time from it"
            }
            Variant::Offloaded => {
                "the bare switch with the offloads of a new veth (gro off, tx on): 64 KiB segments \
                 without checksums cross it, as no wire would carry them"
            }
        }
    }

    /// Returns whether a device serves at the switch.
    #[must_use]
    pub const fn has_device(self) -> bool {
        matches!(self, Variant::Device | Variant::Generic | Variant::Loaded)
    }

    /// Returns whether the driver must support XDP with this MTU.
    #[must_use]
    pub const fn is_native(self) -> bool {
        matches!(
            self,
            Variant::Pass | Variant::Control | Variant::Device | Variant::Loaded
        )
    }
}

/// Traffic that does not belong to pmnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// TCP over IPv4, one stream.
    Tcp4,
    /// TCP over IPv4, four streams.
    #[value(name = "tcp4-x4")]
    #[serde(rename = "tcp4-x4")]
    Tcp4x4,
    /// TCP over IPv6, one stream.
    Tcp6,
    /// UDP over IPv4, with datagrams of 64 bytes to the shard's address.
    Udp,
    /// Round trips of 64 bytes over TCP.
    RoundTrip,
    /// TCP over IPv4, one stream, MTU 3000.
    #[value(name = "tcp-mtu3000")]
    #[serde(rename = "tcp-mtu3000")]
    TcpLarge,
    /// TCP over IPv4, one stream, MTU 9000.
    TcpJumbo,
}

/// The pattern of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A bulk transfer from client to server: as many bytes as TCP accepts.
    Bulk {
        /// Number of connections.
        streams: usize,
    },
    /// As many datagrams as one thread can send.
    Datagrams,
    /// Round trips of one message at a time.
    RoundTrip,
}

impl Workload {
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Workload::Tcp4 => "tcp4",
            Workload::Tcp4x4 => "tcp4-x4",
            Workload::Tcp6 => "tcp6",
            Workload::Udp => "udp",
            Workload::RoundTrip => "round-trip",
            Workload::TcpLarge => "tcp-mtu3000",
            Workload::TcpJumbo => "tcp-jumbo",
        }
    }

    /// Returns the name for readers.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Workload::Tcp4 => "TCP, IPv4, one stream",
            Workload::Tcp4x4 => "TCP, IPv4, four streams",
            Workload::Tcp6 => "TCP, IPv6, one stream",
            Workload::Udp => "UDP, IPv4, 64 B",
            Workload::RoundTrip => "TCP round trip, 64 B",
            Workload::TcpLarge => "TCP, IPv4, MTU 3000",
            Workload::TcpJumbo => "TCP, IPv4, MTU 9000",
        }
    }

    /// Returns the MTU of all links, in bytes.
    #[must_use]
    pub const fn mtu(self) -> u16 {
        match self {
            Workload::TcpLarge => 3_000,
            Workload::TcpJumbo => 9_000,
            _ => MTU,
        }
    }

    /// Returns the pattern of the traffic.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Workload::Tcp4x4 => Kind::Bulk { streams: 4 },
            Workload::Udp => Kind::Datagrams,
            Workload::RoundTrip => Kind::RoundTrip,
            _ => Kind::Bulk { streams: 1 },
        }
    }

    /// Returns whether the traffic uses IPv6.
    #[must_use]
    pub const fn is_ipv6(self) -> bool {
        matches!(self, Workload::Tcp6)
    }

    /// Returns the unit of the figure. If the unit is a time, lower is better.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self.kind() {
            Kind::Bulk { .. } => "Gbit/s",
            Kind::Datagrams => "packets/s",
            Kind::RoundTrip => "p50 µs",
        }
    }

    /// Returns whether a lower figure is better.
    #[must_use]
    pub const fn less_is_better(self) -> bool {
        matches!(self.kind(), Kind::RoundTrip)
    }
}

/// The combinations and durations of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The variants of the switch, each once.
    pub variants: Vec<Variant>,
    /// The workloads, each once. Workloads with the same MTU follow each other.
    pub workloads: Vec<Workload>,
    /// Duration of the measurement in one run.
    pub duration: Duration,
    /// Duration of the warm-up.
    pub warmup: Duration,
    /// Number of runs of each combination.
    pub rounds: usize,
}

impl Plan {
    /// Returns the number of runs if all variants can be set up.
    #[must_use]
    pub fn steps(&self) -> u64 {
        let runs = self.workloads.len() * self.variants.len() * self.rounds;
        u64::try_from(runs).unwrap_or(u64::MAX)
    }

    /// Returns the title of the result.
    #[must_use]
    pub fn title(&self) -> String {
        format!(
            "Traffic of others through a switch, veth on one machine with {} cores",
            cores()
        )
    }

    /// Returns notes that readers of the figures need.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let variants = self.variants.iter();
        let mut notes: Vec<String> = variants
            .map(|variant| format!("{}: {}", variant.name(), variant.meaning()))
            .collect();
        notes.push(
            "offloads, except in offloaded, are those that XDP on veth needs, the same everywhere: \
             gro on, tx off (checksums in software, and with them TSO off: packets cross one by one)"
                .into(),
        );
        notes.push(format!(
            "of pass, of bare: how much is left of what that variant did in the same round, median \
             (95 % confidence interval of the median) over {} rounds of {:.2} s in both orders; below 1 is slower, also for \
             round trips",
            self.rounds,
            self.duration.as_secs_f64()
        ));
        notes.push(
            "client and server are threads pinned to different cores; those of a round trip never \
             sleep, so no wake-up hides the path"
                .into(),
        );
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line_and_of_json() {
        let json = |value: serde_json::Value| value.as_str().unwrap().to_owned();
        for variant in Variant::value_variants() {
            let name = variant.name();
            assert_eq!(variant.to_possible_value().unwrap().get_name(), name);
            assert_eq!(json(serde_json::to_value(variant).unwrap()), name);
        }
        for workload in Workload::value_variants() {
            let name = workload.name();
            assert_eq!(workload.to_possible_value().unwrap().get_name(), name);
            assert_eq!(json(serde_json::to_value(workload).unwrap()), name);
        }
    }

    #[test]
    fn traffic_of_one_mtu_is_together() {
        let all = Workload::value_variants();
        let groups: Vec<u16> = all
            .chunk_by(|a, b| a.mtu() == b.mtu())
            .map(|group| group[0].mtu())
            .collect();
        assert_eq!(groups, [MTU, 3_000, 9_000]);
    }
}
