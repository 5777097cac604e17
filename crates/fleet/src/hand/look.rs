//! One query of a whole shard: the processes that answer, and their answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use pmnet_proto::keys::ClusterKey;

use super::door::ask_patiently;
use super::{Answered, Asked, DeviceSaid, ServerSaid};

/// Maximum number of addresses that are asked for one query.
const ASKED_MAX: usize = 24;

/// The answers to one query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// The server's answer. The address in the answer is the one at which the server was reached.
    pub server: Option<ServerSaid>,
    /// The answers of devices, by id.
    pub devices: BTreeMap<u32, DeviceSaid>,
    /// One text for each address that gave no answer, or at which another program answered, with the reason.
    pub silent: Vec<String>,
}

/// Asks the processes at these addresses and at their next hops. The addresses `listen` and `next` in the result are
/// translated, so that the caller can reach the processes there. `patience`: longest wait for each connection.
///
/// # Errors
/// A text: the answers come from more than one shard.
pub fn look(
    at: &[SocketAddr],
    shard: u32,
    key: Option<&ClusterKey>,
    patience: Duration,
) -> Result<Looked, String> {
    if at.iter().collect::<BTreeSet<_>>().len() > ASKED_MAX {
        return Err(format!(
            "more than {ASKED_MAX} addresses: name the devices of one shard only"
        ));
    }
    let mut looked = Looked::default();
    let mut waiting = at.to_vec();
    let mut asked = BTreeSet::new();
    loop {
        let mut round = Vec::new();
        for at in waiting.drain(..) {
            if asked.len() < ASKED_MAX && asked.insert(at) {
                round.push(at);
            }
        }
        if round.is_empty() {
            return Ok(looked);
        }
        for (at, answer) in who(&round, key, patience) {
            match answer {
                Ok(Answered::Device(said)) => {
                    let mut said = *said;
                    said.listen = reached(said.listen, at);
                    said.next = reached(said.next, at);
                    said.flag = reached(said.flag, at);
                    waiting.push(said.next);
                    looked.take_device(said, shard)?;
                }
                Ok(Answered::Server(mut said)) => {
                    said.listen = reached(said.listen, at);
                    looked.take_server(said, shard)?;
                }
                Ok(Answered::Refused(text)) => looked.silent.push(format!("{at}: {text}")),
                Ok(other) => looked.silent.push(format!("{at} says {other:?}")),
                Err(why) => looked.silent.push(why),
            }
        }
    }
}

/// Asks all addresses at the same time, so several silent processes take no longer than one silent process.
fn who(
    at: &[SocketAddr],
    key: Option<&ClusterKey>,
    patience: Duration,
) -> Vec<(SocketAddr, Result<Answered, String>)> {
    std::thread::scope(|scope| {
        let ask = |at: SocketAddr| move || ask_patiently(at, &Asked::Who, key, patience);
        let asking: Vec<_> = at.iter().map(|at| (*at, scope.spawn(ask(*at)))).collect();
        let join = |(at, asking): (SocketAddr, std::thread::ScopedJoinHandle<'_, _>)| {
            let answer = asking.join();
            (
                at,
                answer.unwrap_or_else(|_| Err(format!("asking {at} failed"))),
            )
        };
        asking.into_iter().map(join).collect()
    })
}

/// Translates the address `told`, which the process at `by` has reported, for use on another machine. Loopback and
/// wildcard addresses become the address of `by`.
fn reached(told: SocketAddr, by: SocketAddr) -> SocketAddr {
    let own = told.ip().is_unspecified() || (told.ip().is_loopback() && !by.ip().is_loopback());
    if own {
        SocketAddr::new(by.ip(), told.port())
    } else {
        told
    }
}

impl Looked {
    pub(super) fn take_device(&mut self, said: DeviceSaid, shard: u32) -> Result<(), String> {
        if said.who.shard != shard {
            return Err(format!(
                "PM5123 device {} at {} is of shard {}, and shard {shard} was asked for (--shard)",
                said.who.id, said.listen, said.who.shard
            ));
        }
        if let Some(other) = self.devices.get(&said.who.id)
            && other.who.process != said.who.process
        {
            return Err(format!(
                "PM5124 both the device at {} and that at {} say that they are device {}: give one of them another --id",
                other.listen, said.listen, said.who.id
            ));
        }
        self.devices.entry(said.who.id).or_insert(said);
        Ok(())
    }

    pub(super) fn take_server(&mut self, said: ServerSaid, shard: u32) -> Result<(), String> {
        if said.shard != shard {
            return Err(format!(
                "PM5125 the server at {} is of shard {}, and shard {shard} was asked for (--shard)",
                said.listen, said.shard
            ));
        }
        if let Some(other) = &self.server
            && other.process != said.process
        {
            return Err(format!(
                "PM5126 two servers answer, at {} and at {}: name the devices of one shard",
                other.listen, said.listen
            ));
        }
        self.server.get_or_insert(said);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_as_they_are_reached() {
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        for (told, by, is) in [
            ("0.0.0.0:1", "10.0.0.2:7", "10.0.0.2:1"),
            ("127.0.0.1:1", "10.0.0.2:7", "10.0.0.2:1"),
            ("127.0.0.1:1", "127.0.0.1:7", "127.0.0.1:1"),
            ("10.0.0.3:1", "10.0.0.2:7", "10.0.0.3:1"),
            ("10.0.0.3:1", "127.0.0.1:7", "10.0.0.3:1"),
        ] {
            assert_eq!(reached(at(told), at(by)), at(is), "{told} {by}");
        }
    }
}
