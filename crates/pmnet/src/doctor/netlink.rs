//! Asks the kernel for facts about a network interface that sysfs does not have. From rtnetlink: which XDP program is
//! attached, and the kind of the interface. From generic netlink (family `netdev`, Linux 6.3 and later): what the
//! driver can do with XDP. Neither question needs privilege.
//!
//! Invariant: a message is read only within the lengths that it states. If these lengths contradict each other, the
//! message counts as no answer.

use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send,
    socket_with,
};

/// Longest wait for an answer. The kernel answers at once, or not at all.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Size of the buffer for one answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

const HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
const LINK_HEADER_BYTES: usize = 16;

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
/// Mask for the type of an attribute, without the flags in the same field.
const NLA_TYPE_MASK: u16 = 0x3fff;

const RTM_GETLINK: u16 = 18;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
/// Type of the attribute with the network namespace of a link's other end. [`IFLA_TARGET_NETNSID`] is the type of the
/// attribute with the namespace that a question is about.
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_TARGET_NETNSID: u16 = 46;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;

/// How an XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attached {
    /// No program is attached.
    Nothing,
    /// The program runs in the driver.
    Native,
    /// The program runs in the kernel's network stack.
    Generic,
    /// The program runs in the hardware, or programs are attached in several modes.
    Otherwise,
}

/// rtnetlink's answer about an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// How an XDP program is attached.
    pub attached: Attached,
    /// Kind of a virtual interface: `veth`, `bridge`, …
    pub kind: Option<String>,
    /// The interface to which this interface is linked.
    pub linked: Option<Linked>,
}

/// The interface at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Linked {
    index: u32,
    /// The kernel's number for the interface's network namespace; `None`: the present namespace.
    namespace: Option<i32>,
}

/// The abilities of a driver with XDP, as bits of the kernel's `netdev` family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Features(pub u64);

impl Features {
    const BASIC: u64 = 1;
    const NAMES: [(u64, &'static str); 7] = [
        (Features::BASIC, "basic"),
        (1 << 1, "redirect"),
        (1 << 2, "transmit"),
        (Features::ZERO_COPY, "zero-copy"),
        (1 << 4, "hardware"),
        (1 << 5, "receive in parts"),
        (1 << 6, "transmit in parts"),
    ];
    const ZERO_COPY: u64 = 1 << 3;

    /// Returns whether a program can run in the driver.
    pub(super) fn native(self) -> bool {
        self.0 & Features::BASIC != 0
    }

    /// Returns whether AF_XDP sockets can receive without a copy.
    pub(super) fn zero_copy(self) -> bool {
        self.0 & Features::ZERO_COPY != 0
    }

    /// Returns the names of these abilities.
    pub(super) fn names(self) -> String {
        let names: Vec<&str> = Features::NAMES
            .iter()
            .filter(|(bit, _)| self.0 & bit != 0)
            .map(|(_, name)| *name)
            .collect();
        names.join(", ")
    }
}

/// Asks rtnetlink about the interface with this index.
pub(super) fn link(index: u32) -> Result<Link, Errno> {
    let mut body = [0; LINK_HEADER_BYTES];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let answer = ask(None, RTM_GETLINK, &body)?;
    parse_link(&answer).ok_or(Errno::BADMSG)
}

/// Returns the facts about the interface at the other end of a link. If this interface is in another namespace, the
/// question needs privilege in that namespace.
pub(super) fn linked(other: Linked) -> Result<Link, Errno> {
    let Some(namespace) = other.namespace else {
        return link(other.index);
    };
    let mut body = vec![0; LINK_HEADER_BYTES];
    body[4..8].copy_from_slice(&other.index.to_ne_bytes());
    push(&mut body, IFLA_TARGET_NETNSID, &namespace.to_ne_bytes());
    let answer = ask(None, RTM_GETLINK, &body)?;
    parse_link(&answer).ok_or(Errno::BADMSG)
}

/// Asks the family `netdev` what the driver can do. Fails with `NOENT` if the kernel does not have this family.
pub(super) fn features(index: u32) -> Result<Features, Errno> {
    let mut body = generic(CTRL_CMD_GETFAMILY);
    push(&mut body, CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let answer = ask(Some(netlink::GENERIC), GENL_ID_CTRL, &body)?;
    let family = attribute(&answer, GENERIC_HEADER_BYTES, CTRL_ATTR_FAMILY_ID);
    let family = family.and_then(|value| value.try_into().ok());
    let family = u16::from_ne_bytes(family.ok_or(Errno::BADMSG)?);
    let mut body = generic(NETDEV_CMD_DEV_GET);
    push(&mut body, NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes());
    let answer = ask(Some(netlink::GENERIC), family, &body)?;
    let bits = attribute(&answer, GENERIC_HEADER_BYTES, NETDEV_A_DEV_XDP_FEATURES);
    let bits = bits.and_then(|value| value.try_into().ok());
    Ok(Features(u64::from_ne_bytes(bits.ok_or(Errno::BADMSG)?)))
}

/// Sends one message, and returns the body of the answer.
fn ask(protocol: Option<Protocol>, kind: u16, body: &[u8]) -> Result<Vec<u8>, Errno> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        protocol,
    )?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_MAX))?;
    send(&socket, &message(kind, body), SendFlags::empty())?;
    let mut answer = vec![0; ANSWER_BYTES_MAX];
    let (bytes, _) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
    body_of(&answer[..bytes]).map(<[u8]>::to_vec)
}

fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + body.len()).expect("a short message");
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and port are 0. Both are unnecessary, because each socket is used for one question only.
    message.extend([0; 8]);
    message.extend(body);
    message
}

fn generic(command: u8) -> Vec<u8> {
    vec![command, 1, 0, 0]
}

fn push(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).expect("a short attribute");
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Returns the first message of an answer, without its header.
fn body_of(answer: &[u8]) -> Result<&[u8], Errno> {
    let header = answer.get(..HEADER_BYTES).ok_or(Errno::BADMSG)?;
    let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    let length = usize::try_from(length).map_err(|_| Errno::BADMSG)?;
    let body = answer.get(HEADER_BYTES..length).ok_or(Errno::BADMSG)?;
    if u16::from_ne_bytes([header[4], header[5]]) == NLMSG_ERROR {
        let code: [u8; 4] = body
            .get(..4)
            .and_then(|code| code.try_into().ok())
            .ok_or(Errno::BADMSG)?;
        return Err(Errno::from_raw_os_error(
            i32::from_ne_bytes(code).saturating_neg(),
        ));
    }
    Ok(body)
}

fn parse_link(body: &[u8]) -> Option<Link> {
    body.get(..LINK_HEADER_BYTES)?;
    let attached = attribute(body, LINK_HEADER_BYTES, IFLA_XDP)
        .and_then(|xdp| attribute(xdp, 0, IFLA_XDP_ATTACHED))
        .and_then(|value| value.first());
    let kind = attribute(body, LINK_HEADER_BYTES, IFLA_LINKINFO)
        .and_then(|info| attribute(info, 0, IFLA_INFO_KIND))
        .map(|name| {
            String::from_utf8_lossy(name)
                .trim_end_matches('\0')
                .to_owned()
        });
    let number = |kind| attribute(body, LINK_HEADER_BYTES, kind)?.try_into().ok();
    let linked = number(IFLA_LINK).map(|index| Linked {
        index: u32::from_ne_bytes(index),
        namespace: number(IFLA_LINK_NETNSID).map(i32::from_ne_bytes),
    });
    Some(Link {
        linked,
        attached: match attached {
            None | Some(0) => Attached::Nothing,
            Some(1) => Attached::Native,
            Some(2) => Attached::Generic,
            Some(_) => Attached::Otherwise,
        },
        kind,
    })
}

/// Skips `skip` bytes. Returns the value of the first attribute of this type in the remaining bytes.
fn attribute(body: &[u8], skip: usize, kind: u16) -> Option<&[u8]> {
    let mut rest = body.get(skip..)?;
    while let [a, b, c, d, ..] = *rest {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = rest.get(4..length)?;
        if u16::from_ne_bytes([c, d]) & NLA_TYPE_MASK == kind {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(parts: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, value) in parts {
            push(&mut body, *kind, value);
        }
        body
    }

    #[test]
    fn what_a_link_message_says() {
        let xdp = |mode: u8| nested(&[(IFLA_XDP_ATTACHED, &[mode])]);
        let info = nested(&[(IFLA_INFO_KIND, b"veth\0")]);
        for (mode, attached) in [
            (0, Attached::Nothing),
            (1, Attached::Native),
            (2, Attached::Generic),
            (3, Attached::Otherwise),
        ] {
            let mut body = vec![0; LINK_HEADER_BYTES];
            body.extend(nested(&[
                (3, b"eth0\0"),
                // With this flag the kernel marks a nested attribute.
                (IFLA_LINKINFO | 0x8000, &info),
                (IFLA_XDP, &xdp(mode)),
                (IFLA_LINK, &7_u32.to_ne_bytes()),
                (IFLA_LINK_NETNSID, &2_i32.to_ne_bytes()),
            ]));
            let kind = Some("veth".to_owned());
            let linked = Some(Linked {
                index: 7,
                namespace: Some(2),
            });
            let says = Link {
                attached,
                kind,
                linked,
            };
            assert_eq!(parse_link(&body), Some(says));
        }
        let bare = Link {
            attached: Attached::Nothing,
            kind: None,
            linked: None,
        };
        assert_eq!(parse_link(&[0; LINK_HEADER_BYTES]), Some(bare));
        assert_eq!(parse_link(&[0; 3]), None);
    }

    #[test]
    fn broken_messages_are_no_answer() {
        let error = message(NLMSG_ERROR, &(-2_i32).to_ne_bytes());
        assert_eq!(body_of(&error), Err(Errno::NOENT));
        assert_eq!(body_of(&message(7, b"body")), Ok(&b"body"[..]));
        let whole = message(7, b"body");
        for cut in 0..whole.len() {
            assert_eq!(body_of(&whole[..cut]), Err(Errno::BADMSG), "{cut}");
        }
        // Lengths that are invalid, or exceed the message.
        for length in [0_u16, 3, 200, u16::MAX] {
            let body = [&length.to_ne_bytes()[..], &5_u16.to_ne_bytes(), b"abcd"].concat();
            assert_eq!(attribute(&body, 0, 5), None, "{length}");
        }
        assert_eq!(attribute(b"ab", 4, 1), None);
    }

    #[test]
    fn features_in_words() {
        let some = Features(0b1011);
        assert!(some.native() && some.zero_copy());
        assert_eq!(some.names(), "basic, redirect, zero-copy");
        assert!(!Features(0).native() && !Features(1).zero_copy());
    }

    /// Every machine has a loopback interface. The driver of this interface cannot run XDP programs.
    #[test]
    fn the_loopback_interface() {
        let link = link(1).unwrap();
        assert_eq!(link.attached, Attached::Nothing);
        match features(1) {
            Ok(features) => assert!(!features.zero_copy()),
            // Kernels before 6.3 do not have this family.
            Err(error) => assert_eq!(error, Errno::NOENT),
        }
    }
}
