//! One connection of the front's own to Redis, with its socket, on which it asks about users one thing after the other.
//!
//! It is made when there is something to ask, and made again a moment after it was lost.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};

use bytes::Bytes;
use mio::{Registry, Token};
use pmnet_resp::reply;

use super::wire::Wire;
use crate::client::Shared;
use crate::store::rights::{Ask, ELSEWHERE, Link};
use crate::upstream::Time;

/// Part of a command's time for which Redis may say nothing while it is asked.
const SILENCES_PER_TIMEOUT: Time = 8;
/// Longest such time, in nanoseconds.
const SILENCE_MAX: Time = 1_000_000_000;
/// Until a connection that was lost is made again, in nanoseconds.
const PAUSE: Time = 100_000_000;

pub(super) struct Lane {
    pub(super) token: Token,
    pub(super) open: Option<Open>,
    /// What is to be asked, oldest first.
    pub(super) queue: VecDeque<Ask>,
    silence: Time,
    /// When Redis last said something, or was first asked after it had answered everything.
    heard: Time,
    /// Not before this time.
    pub(super) connect_after: Time,
    /// Why the last connection ended, until that is taken note of.
    pub(super) broken: Option<Broken>,
}

pub(super) struct Open {
    pub(super) link: Link,
    stream: Wire,
}

/// Why a connection is of no use.
pub(super) struct Broken {
    pub(super) why: String,
    pub(super) how: How,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Nobody listens there.
    Refused,
    /// The other end has closed it.
    Closed,
    /// It leads to another Redis than the server's.
    Elsewhere,
    Otherwise,
}

impl From<String> for Broken {
    fn from(why: String) -> Broken {
        let how = if why == ELSEWHERE {
            How::Elsewhere
        } else {
            How::Otherwise
        };
        Broken { why, how }
    }
}

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Broken {
        let how = match error.kind() {
            ErrorKind::ConnectionRefused => How::Refused,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => How::Closed,
            _ => How::Otherwise,
        };
        Broken {
            why: error.to_string(),
            how,
        }
    }
}

impl Lane {
    pub(super) fn new(token: Token, call_timeout: Time) -> Lane {
        Lane {
            token,
            open: None,
            queue: VecDeque::new(),
            silence: (call_timeout / SILENCES_PER_TIMEOUT).clamp(1, SILENCE_MAX),
            heard: 0,
            connect_after: 0,
            broken: None,
        }
    }

    pub(super) fn waits(&self) -> bool {
        !self.queue.is_empty() || self.open.as_ref().is_some_and(|open| open.link.waits())
    }

    /// By when Redis must have said something.
    pub(super) fn due(&self) -> Option<Time> {
        let due = self.heard.saturating_add(self.silence);
        self.waits().then_some(due)
    }

    pub(super) fn push(&mut self, ask: Ask, now: Time) {
        if !self.waits() {
            self.heard = now;
        }
        self.queue.push_back(ask);
    }

    pub(super) fn receive(
        &mut self,
        scratch: &mut [u8],
        shared: &Shared,
        answers: &mut Vec<(Ask, Bytes)>,
    ) {
        let mut failed = None;
        if let Some(Open { link, stream }) = &mut self.open {
            loop {
                match stream.read(scratch) {
                    Ok(0) => {
                        failed = Some(Broken {
                            why: "closed by Redis".to_owned(),
                            how: How::Closed,
                        });
                    }
                    Ok(count) => {
                        self.heard = shared.now;
                        let name = shared.name.as_ref();
                        match link.receive(&scratch[..count], name, answers) {
                            Ok(()) => continue,
                            Err(why) => failed = Some(why.into()),
                        }
                    }
                    Err(error) if is_not_yet(error.kind()) => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => failed = Some(error.into()),
                }
                break;
            }
        }
        if let Some(broken) = failed {
            self.give_up(broken, shared.now, answers);
        }
    }

    pub(super) fn send(&mut self, registry: &Registry, shared: &Shared) -> Result<(), Broken> {
        if !self.waits() {
            return Ok(());
        }
        if self.open.is_none() {
            let (Some(store), Some(_)) = (&shared.store, &shared.name) else {
                // The server has not said yet where Redis is.
                return Ok(());
            };
            let stream = Wire::connect(store.address, store.tls.as_ref(), registry, self.token)?;
            self.heard = shared.now;
            self.open = Some(Open {
                link: Link::new(store),
                stream,
            });
        }
        let Some(Open { link, stream }) = &mut self.open else {
            return Ok(());
        };
        while let Some(ask) = self.queue.pop_front_if(|ask| link.takes(ask)) {
            link.ask(ask);
        }
        while !link.unwritten().is_empty() {
            match stream.write(link.unwritten()) {
                Ok(0) => return Err("nothing written".to_owned().into()),
                Ok(count) => link.wrote(count),
                Err(error) if is_not_yet(error.kind()) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        match stream.flush() {
            Err(error) if !is_not_yet(error.kind()) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// One turn: sends what waits, or ends a connection that leads elsewhere or is silent; what was asked on it is answered.
    pub(super) fn turn(
        &mut self,
        now: Time,
        registry: &Registry,
        shared: &Shared,
        answers: &mut Vec<(Ask, Bytes)>,
    ) {
        let broken = if self.leads_astray(shared) {
            Some("the pmnet server uses another Redis now".to_owned().into())
        } else if self.open.is_some() && self.due().is_some_and(|due| now >= due) {
            Some("it does not answer in time".to_owned().into())
        } else if self.open.is_none() && now < self.connect_after {
            None
        } else {
            self.send(registry, shared).err()
        };
        if let Some(broken) = broken {
            self.give_up(broken, now, answers);
        }
    }

    /// Whether the connection leads elsewhere than to the store that the server uses now.
    pub(super) fn leads_astray(&self, shared: &Shared) -> bool {
        let (Some(open), Some(name), Some(store)) = (&self.open, &shared.name, &shared.store)
        else {
            return self.open.is_some();
        };
        let found = open.link.found.as_ref();
        open.link.address != store.address
            || found.is_some_and(|(run_id, _)| *run_id != name.run_id)
    }

    /// Ends the connection; whoever has asked is told. If Redis has closed it, what was asked is asked once more: it does so when it
    /// deletes the user that the connection was logged in as, which may be another than the one who asks.
    pub(super) fn give_up(&mut self, broken: Broken, now: Time, answers: &mut Vec<(Ask, Bytes)>) {
        let asked = self
            .open
            .take()
            .map(|open| open.link.end())
            .unwrap_or_default();
        self.connect_after = now.saturating_add(PAUSE);
        let error = reply::error(&format!(
            "ERR pmnet: the front cannot ask Redis who may do what ({}); the command was not executed",
            broken.why
        ));
        let waiting = std::mem::take(&mut self.queue);
        for mut ask in asked.into_iter().chain(waiting) {
            let Ask::Client(ticket) = &mut ask else {
                continue;
            };
            if broken.how == How::Closed && !std::mem::replace(&mut ticket.again, true) {
                self.queue.push_back(ask);
            } else {
                answers.push((ask, error.clone()));
            }
        }
        self.broken = Some(broken);
    }
}

fn is_not_yet(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::NotConnected)
}
