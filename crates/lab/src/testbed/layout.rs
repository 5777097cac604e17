//! The layout of a testbed: its nodes and their links. This module only describes the layout, and
//! creates nothing.
//!
//! ```text
//! client1 ─┐
//! client2 ─┴─ device1 ── device2 ── server     a line of switches, one layer-2 segment
//! client1 ── server                            without a device: a direct link
//! client1 ── tap1 ── device1 ── tap2 ── server  with a tap in each link
//! ```
//!
//! A device is a Linux bridge with an address of its own. The bridge forwards packets for other
//! nodes, and can also be an addressed hop. If there are several clients and no device, a bridge
//! named `hub` connects them. A tap is a bridge without an address. An adversary in a tap sees each
//! packet of its link, and can send to both ends.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Serialize;

/// Maximum number of clients of a testbed.
pub const CLIENTS_MAX: u8 = 32;
/// Maximum number of devices of a testbed.
pub const DEVICES_MAX: u8 = 3;

/// Name of the interface of clients and servers.
pub const END_INTERFACE: &str = "eth0";
/// Name of the interface that has the address of a device.
pub const BRIDGE: &str = "br0";
/// Last byte of the first device's address. Clients have addresses from 1 on, and devices from 101
/// on.
const DEVICE_FIRST: u8 = 101;
const SERVER: u8 = 200;

/// A machine of the testbed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The name of the machine: `client1`, `device1`, `server`, `hub`.
    pub name: String,
    /// The name of its network namespace.
    pub namespace: String,
    /// The interface that has the addresses of the machine.
    pub interface: &'static str,
    /// IPv4 address of the machine in a /24 network; `None` for the hub.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address of the machine in a /64 network; `None` for the hub.
    pub ipv6: Option<Ipv6Addr>,
    /// Names of the bridge's ports. Each port is named after the node at the other end of its link.
    /// Empty for a client or a server.
    pub ports: Vec<String>,
}

/// A veth pair, which joins two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Node name and interface name of both ends, the client's side first.
    pub ends: [(String, String); 2],
}

/// A whole testbed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// Clients first, then devices, then the server, then the hub if there is one.
    pub nodes: Vec<Node>,
    /// The veth pairs.
    pub links: Vec<Link>,
}

impl Layout {
    /// Returns a layout with `clients` clients (1 to [`CLIENTS_MAX`]), `devices` switches in a row
    /// (0 to [`DEVICES_MAX`]) and a server. A number outside of its range is changed to the nearest
    /// bound. The name of a namespace is `prefix`, followed by the name of the node.
    #[must_use]
    pub fn new(prefix: &str, clients: u8, devices: u8) -> Layout {
        let clients = clients.clamp(1, CLIENTS_MAX);
        let devices = devices.min(DEVICES_MAX);
        let mut layout = Layout {
            nodes: Vec::new(),
            links: Vec::new(),
        };
        let mut add = |name: String, interface, last: Option<u8>| {
            layout.nodes.push(Node {
                namespace: format!("{prefix}{name}"),
                name,
                interface,
                ipv4: last.map(|last| Ipv4Addr::new(10, 51, 0, last)),
                ipv6: last.map(ipv6),
                ports: Vec::new(),
            });
        };
        for client in 1..=clients {
            add(format!("client{client}"), END_INTERFACE, Some(client));
        }
        for device in 1..=devices {
            let last = DEVICE_FIRST + device - 1;
            add(format!("device{device}"), BRIDGE, Some(last));
        }
        add("server".into(), END_INTERFACE, Some(SERVER));
        if devices == 0 && clients > 1 {
            add("hub".into(), BRIDGE, None);
        }
        let first = match (devices, clients) {
            (0, 1) => "server",
            (0, _) => "hub",
            _ => "device1",
        };
        for client in 1..=clients {
            layout.join(&format!("client{client}"), first);
        }
        for device in 1..=devices {
            let next = if device < devices {
                format!("device{}", device + 1)
            } else {
                "server".into()
            };
            layout.join(&format!("device{device}"), &next);
        }
        if first == "hub" {
            layout.join("hub", "server");
        }
        layout
    }

    /// Returns a layout with one client, `devices` switches in a row, a server, and a tap in each
    /// link. A number of devices outside of 1 to [`DEVICES_MAX`] is changed to the nearest bound.
    #[must_use]
    pub fn tapped(prefix: &str, devices: u8) -> Layout {
        let devices = devices.clamp(1, DEVICES_MAX);
        let mut layout = Layout::new(prefix, 1, devices);
        layout.links.clear();
        for node in &mut layout.nodes {
            node.ports.clear();
        }
        for tap in 1..=devices + 1 {
            let name = format!("tap{tap}");
            layout.nodes.push(Node {
                namespace: format!("{prefix}{name}"),
                name: name.clone(),
                interface: BRIDGE,
                ipv4: None,
                ipv6: None,
                ports: Vec::new(),
            });
            let near = match tap {
                1 => "client1".to_owned(),
                _ => format!("device{}", tap - 1),
            };
            let far = match tap {
                last if last > devices => "server".to_owned(),
                _ => format!("device{tap}"),
            };
            layout.join(&near, &name);
            layout.join(&name, &far);
        }
        layout
    }

    /// Returns the node with this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }

    fn join(&mut self, near: &str, far: &str) {
        let ends = [(near, far), (far, near)].map(|(here, there)| {
            let node = self
                .nodes
                .iter_mut()
                .find(|node| node.name == here)
                .expect("only nodes are joined");
            let interface = if node.interface == BRIDGE {
                node.ports.push(there.to_owned());
                there
            } else {
                END_INTERFACE
            };
            (here.to_owned(), interface.to_owned())
        });
        self.links.push(Link { ends });
    }
}

/// Returns the IPv6 address for the last byte of the IPv4 address, read as hexadecimal digits:
/// `fd51::101`.
fn ipv6(last: u8) -> Ipv6Addr {
    let digits = u16::from(last / 100) << 8 | u16::from(last / 10 % 10) << 4 | u16::from(last % 10);
    Ipv6Addr::new(0xfd51, 0, 0, 0, 0, 0, 0, digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_devices() {
        let layout = Layout::new("x-", 2, 3);
        let names: Vec<_> = layout.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "client1", "client2", "device1", "device2", "device3", "server"
            ]
        );
        let device = layout.node("device1").unwrap();
        assert_eq!(device.namespace, "x-device1");
        assert_eq!(device.ports, ["client1", "client2", "device2"]);
        assert_eq!(device.ipv4.unwrap().to_string(), "10.51.0.101");
        assert_eq!(device.ipv6.unwrap().to_string(), "fd51::101");
        assert_eq!(
            layout.node("server").unwrap().ipv6.unwrap().to_string(),
            "fd51::200"
        );
        let last = layout.links.last().unwrap();
        assert_eq!(last.ends[0], ("device3".into(), "server".into()));
        assert_eq!(last.ends[1], ("server".into(), "eth0".into()));
    }

    #[test]
    fn without_devices() {
        let direct = Layout::new("x-", 1, 0);
        assert_eq!(direct.nodes.len(), 2);
        assert_eq!(direct.links.len(), 1);
        let hub = Layout::new("x-", 3, 0);
        let node = hub.node("hub").unwrap();
        assert_eq!(node.ports, ["client1", "client2", "client3", "server"]);
        assert!(node.ipv4.is_none());
    }

    #[test]
    fn a_tap_in_each_link() {
        let layout = Layout::tapped("x-", 2);
        let device = layout.node("device1").unwrap();
        assert_eq!(device.ports, ["tap1", "tap2"]);
        assert_eq!(layout.node("tap2").unwrap().ports, ["device1", "device2"]);
        assert_eq!(layout.node("tap3").unwrap().ports, ["device2", "server"]);
        assert_eq!(layout.links.len(), 6);
    }

    #[test]
    fn names_addresses_and_interfaces_are_unique_and_fit() {
        let layout = Layout::new("x-", u8::MAX, u8::MAX);
        let count = usize::from(CLIENTS_MAX + DEVICES_MAX) + 1;
        assert_eq!(layout.nodes.len(), count);
        let addresses: std::collections::BTreeSet<_> =
            layout.nodes.iter().map(|node| node.ipv4).collect();
        assert_eq!(addresses.len(), count);
        let ends: std::collections::BTreeSet<_> =
            layout.links.iter().flat_map(|link| &link.ends).collect();
        assert_eq!(ends.len(), layout.links.len() * 2);
        // The kernel allows 15 bytes for an interface name, without the final zero.
        assert!(ends.iter().all(|(_, interface)| interface.len() <= 15));
    }
}
