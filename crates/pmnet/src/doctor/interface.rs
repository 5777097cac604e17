//! The facts about a network interface that matter for a device in the kernel: driver, queues, XDP.

use std::path::Path;

use pmnet_dataplane::direct::knows_busy_poll;
use rustix::io::Errno;

use super::netlink::{self, Attached, Features, Link};
use super::{Finding, Level, read};

/// Largest MTU with which all common drivers support native XDP. With a larger MTU, some drivers (such as veth) refuse
/// native XDP.
const NATIVE_MTU_MAX: u32 = 3506;

/// Facts about an interface.
struct Interface {
    name: String,
    driver: Option<String>,
    mtu: Option<u32>,
    receive_queues: usize,
    transmit_queues: usize,
    link: Result<Link, Errno>,
    features: Result<Features, Errno>,
    /// `napi_defer_hard_irqs` and `gro_flush_timeout` (nanoseconds). These two determine for how long the kernel leaves
    /// packets to a polling process before it uses interrupts.
    deferred: Option<(u64, u64)>,
}

/// Returns the reason why packets that an XDP program sends at this interface are lost: the interface is a veth, and
/// the other end has no program. `None`: no such reason is known.
pub(crate) fn vanishing(name: &str) -> Option<String> {
    let interface = look(name)?;
    let link = interface.link.ok()?;
    if link.kind.as_deref() != Some("veth") {
        return None;
    }
    let found = match link.linked.map(netlink::linked) {
        Some(Ok(other)) if other.attached == Attached::Native => return None,
        Some(Ok(_)) => "its other end has none",
        _ => "nobody can see from here whether its other end has one",
    };
    Some(format!(
        "PM1422 {name} is a veth: what an XDP program sends there vanishes, unless the other end has a program in its driver, too; {found}"
    ))
}

/// Returns the findings about an interface.
pub(super) fn findings(name: &str) -> Vec<Finding> {
    match look(name) {
        Some(interface) => vec![
            basics(&interface),
            vanishing(name).map_or_else(|| xdp(&interface), |text| {
                Finding::bad(
                    Level::Warn,
                    "XDP",
                    text,
                    "pmnet status and the log of the device count answers that the driver did not take",
                )
            }),
            zero_copy(&interface),
            busy_poll(&interface, knows_busy_poll()),
        ],
        None => vec![Finding::bad(
            Level::Fail,
            "interface",
            format!("there is no interface {name}"),
            "ip link shows those that are there, in this network namespace",
        )],
    }
}

fn look(name: &str) -> Option<Interface> {
    // The name must be valid as a file name below /sys, and must not be a path.
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return None;
    }
    let folder = Path::new("/sys/class/net").join(name);
    let attribute = |what: &str| read(&folder.join(what).display().to_string());
    let index: u32 = attribute("ifindex")?.parse().ok()?;
    let link = netlink::link(index);
    let driver = std::fs::read_link(folder.join("device/driver"))
        .ok()
        .and_then(|driver| Some(driver.file_name()?.to_str()?.to_owned()))
        .or_else(|| link.as_ref().ok()?.kind.clone());
    let queues = |kind: &str| {
        let entries = std::fs::read_dir(folder.join("queues"))
            .into_iter()
            .flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| name.starts_with(kind)).count()
    };
    Some(Interface {
        name: name.to_owned(),
        driver,
        mtu: attribute("mtu").and_then(|text| text.parse().ok()),
        receive_queues: queues("rx-"),
        transmit_queues: queues("tx-"),
        link,
        features: netlink::features(index),
        deferred: attribute("napi_defer_hard_irqs")
            .and_then(|text| text.parse().ok())
            .zip(attribute("gro_flush_timeout").and_then(|text| text.parse().ok())),
    })
}

fn basics(interface: &Interface) -> Finding {
    let mtu = interface
        .mtu
        .map_or("unknown".into(), |mtu| mtu.to_string());
    let found = format!(
        "{}: driver {}, MTU {mtu}, {} receive and {} transmit queues",
        interface.name,
        interface.driver.as_deref().unwrap_or("unknown"),
        interface.receive_queues,
        interface.transmit_queues
    );
    if interface.mtu.is_some_and(|mtu| mtu > NATIVE_MTU_MAX) {
        return Finding::bad(
            Level::Warn,
            "interface",
            found,
            format!(
                "many drivers refuse native XDP above {NATIVE_MTU_MAX} bytes: set a smaller MTU for --mode nic, router or switch"
            ),
        );
    }
    Finding::ok("interface", found)
}

fn xdp(interface: &Interface) -> Finding {
    let attached = match &interface.link {
        Ok(link) => match link.attached {
            Attached::Nothing => "no program attached".into(),
            Attached::Native => "a program attached in the driver".into(),
            Attached::Generic => "a program attached in the generic mode".into(),
            Attached::Otherwise => "programs attached in the hardware, or in several ways".into(),
        },
        Err(error) => format!("cannot find out whether a program is attached: {error}"),
    };
    let name = &interface.name;
    match interface.features {
        Ok(features) if features.native() => Finding::ok(
            "XDP",
            format!("{name}: native ({}); {attached}", features.names()),
        ),
        Ok(_) => Finding::bad(
            Level::Warn,
            "XDP",
            format!("{name}: the driver has no native XDP; {attached}"),
            "--mode nic, router and switch would need --xdp-generic, which is slow: use another interface, or the relay \
             (the default mode)",
        ),
        Err(error) => Finding::bad(
            Level::Warn,
            "XDP",
            format!("{name}: {attached}; {}", unknown(error)),
            "start the device: it says so if the driver has no native XDP",
        ),
    }
}

fn zero_copy(interface: &Interface) -> Finding {
    let name = &interface.name;
    match interface.features {
        Ok(features) if features.zero_copy() => Finding::ok(
            "zero-copy",
            format!("{name}: AF_XDP sockets without a copy"),
        ),
        Ok(_) => Finding::bad(
            Level::Warn,
            "zero-copy",
            format!("{name}: the driver offers none"),
            "AF_XDP sockets there copy each packet; nothing else of pmnet needs it",
        ),
        Err(error) => Finding::bad(
            Level::Warn,
            "zero-copy",
            format!("{name}: {}", unknown(error)),
            "see the driver's documentation",
        ),
    }
}

fn busy_poll(interface: &Interface, known: bool) -> Finding {
    let name = &interface.name;
    match interface.deferred {
        Some((irqs, nanos)) if known && irqs > 0 && nanos > 0 => Finding::ok(
            "busy-poll",
            format!(
                "{name}: interrupts wait for who polls (napi_defer_hard_irqs {irqs}, gro_flush_timeout {nanos})"
            ),
        ),
        Some(_) if known => Finding::ok(
            "busy-poll",
            format!(
                "{name}: this kernel can (--mode af-xdp --busy-poll), but interrupts do not wait for who polls: that takes \
                 napi_defer_hard_irqs (2) and gro_flush_timeout (200000) in /sys/class/net/{name}"
            ),
        ),
        _ => Finding::bad(
            Level::Warn,
            "busy-poll",
            format!("{name}: not with this kernel"),
            "--mode af-xdp --busy-poll needs Linux 5.11 or later with CONFIG_NET_RX_BUSY_POLL; nothing else needs it",
        ),
    }
}

fn unknown(error: Errno) -> String {
    if error == Errno::NOENT {
        "what the driver can do is not told by kernels before 6.3".into()
    } else {
        format!("what the driver can do cannot be found out: {error}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(features: Result<Features, Errno>, attached: Attached, mtu: u32) -> Interface {
        Interface {
            name: "eth0".into(),
            driver: Some("igb".into()),
            mtu: Some(mtu),
            receive_queues: 4,
            transmit_queues: 2,
            link: Ok(Link {
                attached,
                kind: None,
                linked: None,
            }),
            features,
            deferred: Some((0, 0)),
        }
    }

    #[test]
    fn busy_polling_is_told_by_kernel_and_interface() {
        let mut one = interface(Ok(Features(0)), Attached::Nothing, 1500);
        let can = busy_poll(&one, true);
        assert!(can.level == Level::Ok && can.found.contains("do not wait"));
        one.deferred = Some((2, 200_000));
        let waits = busy_poll(&one, true);
        assert!(waits.level == Level::Ok && waits.found.contains("interrupts wait for who polls"));
        for old in [busy_poll(&one, false), {
            one.deferred = None;
            busy_poll(&one, true)
        }] {
            assert!(
                old.level == Level::Warn && old.advice.is_some(),
                "{}",
                old.found
            );
        }
    }

    #[test]
    fn a_good_driver_an_old_one_and_one_that_is_not_known() {
        let good = interface(Ok(Features(0b1111)), Attached::Native, 1500);
        assert_eq!(
            basics(&good).found,
            "eth0: driver igb, MTU 1500, 4 receive and 2 transmit queues"
        );
        assert!(
            [basics(&good), xdp(&good), zero_copy(&good)]
                .iter()
                .all(|one| one.level == Level::Ok)
        );
        assert!(
            xdp(&good)
                .found
                .ends_with("; a program attached in the driver")
        );
        let old = interface(Ok(Features(0)), Attached::Nothing, 9000);
        for one in [basics(&old), xdp(&old), zero_copy(&old)] {
            assert_eq!(one.level, Level::Warn);
            assert!(one.advice.is_some());
        }
        let unknown = interface(Err(Errno::NOENT), Attached::Generic, 1500);
        assert!(xdp(&unknown).found.contains("before 6.3"));
        assert!(zero_copy(&unknown).found.contains("before 6.3"));
        let refused = interface(Err(Errno::PERM), Attached::Otherwise, 1500);
        assert!(xdp(&refused).found.contains("cannot be found out"));
    }

    #[test]
    fn interfaces_that_are_not_there() {
        for name in ["", "absent0", "../lo", ".", "a/b"] {
            let found = findings(name);
            assert_eq!((found.len(), found[0].level), (1, Level::Fail), "{name:?}");
        }
        let loopback = findings("lo");
        assert_eq!(loopback.len(), 4);
        assert!(loopback.iter().all(|one| one.level != Level::Fail));
    }
}
