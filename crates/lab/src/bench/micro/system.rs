//! The systems that are compared. For each system: the node of each process, the attached programs, and the process
//! that answers. To add a system, add a name, a sentence and a recipe in this module.

use std::net::{Ipv4Addr, SocketAddrV4};

use clap::ValueEnum;
use serde::Serialize;

use crate::xdp::plain::Program;

/// The medium of a device's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// A file on tmpfs: acknowledged updates survive the end of a process.
    Dram,
    /// An ordinary file: acknowledged updates survive a power cut.
    File,
}

impl Medium {
    /// Returns the name that titles use.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Medium::Dram => "DRAM",
            Medium::File => "file",
        }
    }

    /// Returns the value for `--media`.
    #[must_use]
    pub const fn flag(self) -> &'static str {
        match self {
            Medium::Dram => "dram",
            Medium::File => "file",
        }
    }
}

/// A system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// The machine of the server only reflects packets. The measured latency is the minimum for any device.
    Limit,
    /// A machine between client and server only reflects packets. The measured latency is the minimum for a device on a
    /// machine between client and server.
    LimitRouter,
    /// Two machines in a row only forward, and a third one reflects. The measured latency is the minimum for a chain of
    /// three devices.
    #[value(name = "limit-router-3")]
    #[serde(rename = "limit-router-3")]
    LimitRouter3,
    /// The server answers. The NIC of the server's machine has a program that lets every packet pass.
    ClientServerNic,
    /// `pmnet device --mode nic`: the pipeline in the kernel of the server's machine, at its NIC.
    Nic,
    /// `pmnet device --mode nic`, with a server that reads the device's log directly. So no update goes through a
    /// socket.
    NicMapped,
    /// The server answers. The switch between client and server only forwards.
    ClientServer,
    /// `pmnet device --mode switch`: the pipeline in the kernel, at the ports of the switch.
    Switch,
    /// `pmnet device --mode router`: the pipeline in the kernel of a machine between client and
    /// server.
    Router,
    /// `pmnet device`, a process on a machine between client and server.
    Relay,
    /// `pmnet device --mode af-xdp`: a process that bypasses the kernel's network stack, and receives packets directly
    /// into its log.
    AfXdp,
    /// Two devices in the kernels of two machines in a row between client and server.
    #[value(name = "router-2")]
    #[serde(rename = "router-2")]
    Router2,
    /// Three devices in the kernels of three machines in a row between client and server.
    #[value(name = "router-3")]
    #[serde(rename = "router-3")]
    Router3,
    /// [`System::Nic`] with keys: each packet has a MAC.
    NicKeyed,
    /// [`System::Router`] with keys.
    RouterKeyed,
    /// [`System::Router3`] with keys.
    #[value(name = "router-3-keyed")]
    #[serde(rename = "router-3-keyed")]
    Router3Keyed,
}

/// The process that answers an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// No process answers: the packet of the update itself is reflected.
    Itself,
    /// The ideal handler, at the server's address.
    Handler,
    /// A device, which forwards the update to the server later.
    Device,
}

/// A device and its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// The node on which the device runs.
    pub node: &'static str,
    /// Flags of the device, except those for the log.
    pub flags: &'static [&'static str],
    /// The device's log is kernel memory, which remains until the device is removed from the kernel.
    pub in_kernel: bool,
    /// The server reads the device's log directly.
    pub server_reads_log: bool,
}

/// The instructions for setting up a system.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Number of switches between client and server.
    pub devices: u8,
    /// The attached programs, each with its node and interface.
    pub programs: &'static [(&'static str, &'static str, Program)],
    /// A program transmits packets to the client from XDP. A veth accepts such packets only if the veth itself has an
    /// XDP program.
    pub client_takes_xdp: bool,
    /// The device to which clients send.
    pub device: Option<Device>,
    /// The other devices of the chain, in order. The server at [`SERVER`] follows the last device.
    pub behind: &'static [Device],
    /// The address to which clients send their updates.
    pub target: SocketAddrV4,
    /// The process that answers.
    pub answers: Answers,
    /// The system's baseline: the same path with a device that only forwards. `None`: there is no baseline.
    pub baseline: Option<System>,
    /// Devices, server and clients have keys. Each packet then has a MAC, which its receiver verifies.
    pub keyed: bool,
}

/// The address of the server, or of the handler that takes its place.
pub const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 51, 0, 200), 51_500);
/// The address of a device on a machine of its own.
const HOP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 51, 0, 101), 51_000);
/// The address of the device on the third machine in a row.
const THIRD_HOP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 51, 0, 103), 51_000);
/// The address of a device at the server's NIC.
const NIC: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 51, 0, 200), 51_000);

impl System {
    /// The systems that are measured by default. Their chains have one device (R = 1).
    pub const DEFAULT: [System; 9] = [
        System::Limit,
        System::ClientServerNic,
        System::Nic,
        System::NicMapped,
        System::ClientServer,
        System::Switch,
        System::Router,
        System::Relay,
        System::AfXdp,
    ];

    /// Returns the system that is the minimum for this system.
    #[must_use]
    pub const fn limit(self) -> System {
        match self {
            System::Router3 | System::Router3Keyed => System::LimitRouter3,
            _ => System::Limit,
        }
    }

    /// Returns the name of the system on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            System::Limit => "limit",
            System::LimitRouter => "limit-router",
            System::LimitRouter3 => "limit-router-3",
            System::ClientServerNic => "client-server-nic",
            System::Nic => "nic",
            System::NicMapped => "nic-mapped",
            System::ClientServer => "client-server",
            System::Switch => "switch",
            System::Router => "router",
            System::Relay => "relay",
            System::AfXdp => "af-xdp",
            System::Router2 => "router-2",
            System::Router3 => "router-3",
            System::NicKeyed => "nic-keyed",
            System::RouterKeyed => "router-keyed",
            System::Router3Keyed => "router-3-keyed",
        }
    }

    /// Returns the name for titles. If the system has a log, medium and R follow.
    #[must_use]
    pub fn title(self, medium: Medium) -> String {
        let medium = match self.recipe().device {
            None => return format!("{} (no log)", self.name()),
            Some(device) if device.in_kernel => Medium::Dram,
            Some(_) => medium,
        };
        let copies = 1 + self.recipe().behind.len();
        format!("{} ({}, R = {copies})", self.name(), medium.title())
    }

    /// Returns a sentence that describes the system.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            System::Limit => {
                "the server's NIC sends each packet straight back (XDP_TX): no log, no server"
            }
            System::LimitRouter => "a machine in between sends each packet straight back",
            System::LimitRouter3 => {
                "two machines in between send each packet on (XDP_REDIRECT), a third one sends it back: what the way alone \
                 takes in a chain of three"
            }
            System::ClientServerNic => {
                "client and server are linked directly, and an ideal handler answers; what a \
                 device at the server's NIC is compared with"
            }
            System::ClientServer => {
                "the same with a switch (a bridge) in between, which only forwards; what a device \
                 in a switch and a relay are compared with"
            }
            System::Nic => {
                "the pipeline in the kernel at the server's NIC: log in memory, acknowledgement by \
                 XDP_TX, the server gets the update later"
            }
            System::NicMapped => {
                "the same, and the server reads the log where it lies instead of being sent the update"
            }
            System::Switch => {
                "the pipeline in the kernel at the ports of that switch; clients send to the server"
            }
            System::Router => {
                "the pipeline in the kernel on a machine in between, to which clients send"
            }
            System::Relay => "pmnet device, a process, on that machine",
            System::AfXdp => {
                "the same process with AF_XDP sockets: it receives into the log, past the kernel's network stack"
            }
            System::Router2 => {
                "a chain of two devices in the kernel, of machines in a row in between; clients send to the first"
            }
            System::Router3 => "a chain of three of them",
            System::NicKeyed => "as nic, with keys: each packet has a MAC",
            System::RouterKeyed => "as router, with keys",
            System::Router3Keyed => "as router-3, with keys",
        }
    }

    /// Returns whether the system has a log.
    #[must_use]
    pub const fn has_device(self) -> bool {
        self.recipe().device.is_some()
    }

    /// Returns the system's recipe.
    #[must_use]
    pub const fn recipe(self) -> Recipe {
        match self {
            System::Limit => Recipe {
                devices: 0,
                programs: &[("server", "eth0", Program::Reflect)],
                client_takes_xdp: true,
                device: None,
                behind: &[],
                target: SERVER,
                answers: Answers::Itself,
                baseline: None,
                keyed: false,
            },
            System::LimitRouter => Recipe {
                devices: 1,
                programs: &[("device1", "client1", Program::Reflect)],
                client_takes_xdp: true,
                device: None,
                behind: &[],
                target: HOP,
                answers: Answers::Itself,
                baseline: None,
                keyed: false,
            },
            System::LimitRouter3 => Recipe {
                devices: 3,
                programs: &[
                    ("device1", "client1", Program::Cross("device2")),
                    ("device1", "device2", Program::Cross("client1")),
                    ("device2", "device1", Program::Cross("device3")),
                    ("device2", "device3", Program::Cross("device1")),
                    ("device3", "device2", Program::Reflect),
                ],
                client_takes_xdp: true,
                device: None,
                behind: &[],
                target: THIRD_HOP,
                answers: Answers::Itself,
                baseline: None,
                keyed: false,
            },
            System::ClientServerNic => Recipe {
                devices: 0,
                programs: &[],
                client_takes_xdp: false,
                device: None,
                behind: &[],
                target: SERVER,
                answers: Answers::Handler,
                baseline: None,
                keyed: false,
            },
            System::Nic => at_nic(false),
            System::NicMapped => at_nic(true),
            System::Switch => Recipe {
                devices: 1,
                programs: &[],
                client_takes_xdp: true,
                device: Some(Device {
                    node: "device1",
                    flags: &[
                        "--mode",
                        "switch",
                        "--ports",
                        "client1,server",
                        "--address",
                        "10.51.0.101",
                        "--listen",
                        "10.51.0.200:51500",
                        "--next",
                        "10.51.0.200:51500",
                    ],
                    in_kernel: true,
                    server_reads_log: false,
                }),
                behind: &[],
                target: SERVER,
                answers: Answers::Device,
                baseline: Some(System::ClientServer),
                keyed: false,
            },
            System::ClientServer => Recipe {
                devices: 1,
                programs: &[],
                client_takes_xdp: false,
                device: None,
                behind: &[],
                target: SERVER,
                answers: Answers::Handler,
                baseline: None,
                keyed: false,
            },
            System::Router => Recipe {
                devices: 1,
                programs: &[],
                client_takes_xdp: true,
                device: Some(Device {
                    node: "device1",
                    flags: &[
                        "--mode",
                        "router",
                        "--dev",
                        "client1",
                        "--listen",
                        "10.51.0.101:51000",
                        "--next",
                        "10.51.0.200:51500",
                    ],
                    in_kernel: true,
                    server_reads_log: false,
                }),
                behind: &[],
                target: HOP,
                answers: Answers::Device,
                baseline: Some(System::ClientServer),
                keyed: false,
            },
            System::Relay => Recipe {
                devices: 1,
                programs: &[],
                client_takes_xdp: false,
                device: Some(Device {
                    node: "device1",
                    flags: &[
                        "--listen",
                        "10.51.0.101:51000",
                        "--next",
                        "10.51.0.200:51500",
                    ],
                    in_kernel: false,
                    server_reads_log: false,
                }),
                behind: &[],
                target: HOP,
                answers: Answers::Device,
                baseline: Some(System::ClientServer),
                keyed: false,
            },
            System::AfXdp => Recipe {
                devices: 1,
                programs: &[],
                client_takes_xdp: false,
                device: Some(Device {
                    node: "device1",
                    flags: &[
                        "--mode",
                        "af-xdp",
                        "--dev",
                        "client1,server",
                        "--listen",
                        "10.51.0.101:51000",
                        "--next",
                        "10.51.0.200:51500",
                    ],
                    in_kernel: false,
                    server_reads_log: false,
                }),
                behind: &[],
                target: HOP,
                answers: Answers::Device,
                baseline: Some(System::ClientServer),
                keyed: false,
            },
            System::Router2 => chain(2, &[SECOND_OF_TWO]),
            System::Router3 => chain(3, &[SECOND, THIRD]),
            System::NicKeyed => keyed(System::Nic.recipe()),
            System::RouterKeyed => keyed(System::Router.recipe()),
            System::Router3Keyed => keyed(System::Router3.recipe()),
        }
    }
}

const fn keyed(recipe: Recipe) -> Recipe {
    Recipe {
        keyed: true,
        ..recipe
    }
}

/// The program at the server's end of a chain. With this program, the veth accepts packets that the devices transmit
/// from XDP.
const CHAIN_PROGRAMS: &[(&str, &str, Program)] = &[("server", "eth0", Program::Pass)];

/// Returns a device in the kernel that is part of a longer chain.
const fn in_chain(node: &'static str, flags: &'static [&'static str]) -> Device {
    Device {
        node,
        flags,
        in_kernel: true,
        server_reads_log: false,
    }
}

/// The first device of a chain; [`SECOND`] or [`SECOND_OF_TWO`] follows it.
const FIRST: Device = in_chain(
    "device1",
    &[
        "--mode",
        "router",
        "--dev",
        "client1,device2",
        "--listen",
        "10.51.0.101:51000",
        "--next",
        "10.51.0.102:51000",
        "--id",
        "1",
    ],
);
const SECOND_OF_TWO: Device = in_chain(
    "device2",
    &[
        "--mode",
        "router",
        "--dev",
        "device1,server",
        "--listen",
        "10.51.0.102:51000",
        "--next",
        "10.51.0.200:51500",
        "--id",
        "2",
    ],
);
const SECOND: Device = in_chain(
    "device2",
    &[
        "--mode",
        "router",
        "--dev",
        "device1,device3",
        "--listen",
        "10.51.0.102:51000",
        "--next",
        "10.51.0.103:51000",
        "--id",
        "2",
    ],
);
const THIRD: Device = in_chain(
    "device3",
    &[
        "--mode",
        "router",
        "--dev",
        "device2,server",
        "--listen",
        "10.51.0.103:51000",
        "--next",
        "10.51.0.200:51500",
        "--id",
        "3",
    ],
);

const fn chain(devices: u8, behind: &'static [Device]) -> Recipe {
    Recipe {
        devices,
        programs: CHAIN_PROGRAMS,
        client_takes_xdp: true,
        device: Some(FIRST),
        behind,
        target: HOP,
        answers: Answers::Device,
        baseline: Some(System::ClientServer),
        keyed: false,
    }
}

const fn at_nic(server_reads_log: bool) -> Recipe {
    Recipe {
        devices: 0,
        programs: &[],
        client_takes_xdp: true,
        device: Some(Device {
            node: "server",
            flags: &[
                "--mode",
                "nic",
                "--dev",
                "eth0",
                "--listen",
                "10.51.0.200:51000",
                "--next",
                "10.51.0.200:51500",
            ],
            in_kernel: true,
            server_reads_log,
        }),
        behind: &[],
        target: NIC,
        answers: Answers::Device,
        baseline: Some(System::ClientServerNic),
        keyed: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Layout;

    #[test]
    fn recipes_name_what_their_layout_has() {
        for system in System::value_variants() {
            let recipe = system.recipe();
            let layout = Layout::new("x-", 1, recipe.devices);
            for (node, interface, _) in recipe.programs {
                let end = ((*node).to_owned(), (*interface).to_owned());
                let there = layout.links.iter().any(|link| link.ends.contains(&end));
                assert!(there, "{system:?}: {end:?}");
            }
            let addressed = |address: Ipv4Addr| {
                let mut nodes = layout.nodes.iter();
                nodes.any(|node| node.ipv4 == Some(address))
            };
            assert!(addressed(*recipe.target.ip()), "{system:?}");
            assert_eq!(recipe.device.is_some(), recipe.answers == Answers::Device);
            for device in recipe.device.iter().chain(recipe.behind) {
                assert!(layout.node(device.node).is_some());
                let own: &[&str] = if device.in_kernel {
                    &["--name", "x"]
                } else {
                    &["--log", "x", "--media", "dram"]
                };
                let words = [&["pmnet", "device"], own, device.flags].concat();
                assert!(pmnet::cli::is_command_line(&words), "{words:?}");
                assert!(device.in_kernel || !device.server_reads_log);
            }
        }
    }
}
