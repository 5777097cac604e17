//! One of the front's own connections to Redis, with its socket. On this connection the front asks questions about
//! users, each after the answer to the previous question.
//!
//! The connection is made when there is a question. After a loss it is made again after a short pause.

use std::collections::VecDeque;
use std::io::ErrorKind;

use bytes::Bytes;
use mio::event::Event;
use mio::{Registry, Token};
use pmnet_resp::reply;

use super::dial::{Dialed, Patience, leads_astray};
use super::socket::Ended;
use crate::client::Shared;
use crate::store::line::ELSEWHERE;
use crate::store::rights::{Ask, RightsLine};
use crate::upstream::Time;

/// Divisor of a command's time that gives the longest silence of Redis while a question is outstanding.
const SILENCES_PER_TIMEOUT: Time = 8;
/// Upper bound of the silence of Redis while a question is outstanding, in nanoseconds.
const SILENCE_MAX: Time = 1_000_000_000;

pub(super) struct Lane {
    pub(super) token: Token,
    pub(super) open: Option<Dialed<RightsLine>>,
    /// Questions to be asked, oldest first.
    pub(super) queue: VecDeque<Ask>,
    patience: Patience,
    /// The reason why the last connection ended, until the front has handled the end.
    pub(super) broken: Option<Broken>,
}

/// Why a connection is unusable.
pub(super) struct Broken {
    pub(super) why: String,
    pub(super) how: How,
}

/// The way in which a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// No process listens at the address.
    Refused,
    /// The other end has closed the connection.
    Closed,
    /// The connection leads to another Redis than the server's.
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
        Ended::Failed(error).into()
    }
}

impl From<Ended> for Broken {
    fn from(ended: Ended) -> Broken {
        let how = match &ended {
            Ended::Closed => How::Closed,
            Ended::Unwritten => How::Otherwise,
            Ended::Failed(error) => match error.kind() {
                ErrorKind::ConnectionRefused => How::Refused,
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => How::Closed,
                _ => How::Otherwise,
            },
        };
        Broken {
            why: ended.why("closed by Redis"),
            how,
        }
    }
}

fn silence(call_timeout: Time) -> Time {
    (call_timeout / SILENCES_PER_TIMEOUT).clamp(1, SILENCE_MAX)
}

impl Lane {
    pub(super) fn new(token: Token, call_timeout: Time) -> Lane {
        Lane {
            token,
            open: None,
            queue: VecDeque::new(),
            patience: Patience::new(silence(call_timeout)),
            broken: None,
        }
    }

    /// Sets the longest time of a call, from which the longest silence of Redis follows.
    pub(super) fn set_call_timeout(&mut self, call_timeout: Time) {
        self.patience.set_silence(silence(call_timeout));
    }

    pub(super) fn waits(&self) -> bool {
        !self.queue.is_empty() || self.open.as_ref().is_some_and(|open| open.line.waits())
    }

    /// Returns the time by which Redis must answer.
    pub(super) fn due(&self) -> Option<Time> {
        self.waits().then(|| self.patience.due())
    }

    /// Returns the earliest time at which the connection may be made again.
    pub(super) fn connect_after(&self) -> Time {
        self.patience.connect_after()
    }

    pub(super) fn push(&mut self, ask: Ask, now: Time) {
        if !self.waits() {
            self.patience.hear(now);
        }
        self.queue.push_back(ask);
    }

    /// Notes an event, and takes the received bytes.
    pub(super) fn receive(
        &mut self,
        event: &Event,
        scratch: &mut [u8],
        shared: &Shared,
        answers: &mut Vec<(Ask, Bytes)>,
    ) {
        let Some(open) = &mut self.open else {
            return;
        };
        open.note(event);
        let patience = &mut self.patience;
        let received = open.receive(scratch, usize::MAX, |line, bytes| {
            patience.hear(shared.now);
            let received = line.receive(bytes, shared.name.as_ref(), answers);
            received.map_err(Broken::from)
        });
        if let Err(broken) = received {
            self.give_up(broken, shared.now, answers);
        }
    }

    pub(super) fn send(&mut self, registry: &Registry, shared: &Shared) -> Result<(), Broken> {
        if !self.waits() {
            return Ok(());
        }
        if self.open.is_none() {
            let (Some(store), Some(_)) = (&shared.store, &shared.name) else {
                // The server has not named the address of Redis yet.
                return Ok(());
            };
            let line = RightsLine::new(store);
            self.open = Some(Dialed::connect(line, store, registry, self.token)?);
            self.patience.hear(shared.now);
        }
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        while let Some(ask) = self.queue.pop_front_if(|ask| open.line.takes(ask)) {
            open.line.ask(ask);
        }
        Ok(open.send()?)
    }

    /// Takes one turn: sends the waiting questions, or ends a connection that leads to another store or is
    /// silent. The questions of a connection that ends are answered with an error.
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
        } else if self.open.is_none() && now < self.patience.connect_after() {
            None
        } else {
            self.send(registry, shared).err()
        };
        if let Some(broken) = broken {
            self.give_up(broken, now, answers);
        }
    }

    fn leads_astray(&self, shared: &Shared) -> bool {
        let line = self.open.as_ref().map(|open| &open.line);
        line.is_some_and(|line| leads_astray(line.address(), line.run_id(), None, shared))
    }

    /// Ends the connection and answers the questions with an error. If Redis has closed the connection, each client's
    /// question is asked once more, because Redis closes a connection when it deletes the connection's user. The
    /// connection's user may be another user than the one about whom the client asks.
    pub(super) fn give_up(&mut self, broken: Broken, now: Time, answers: &mut Vec<(Ask, Bytes)>) {
        let asked = self.open.take().map(|open| open.line.end());
        self.patience.lose(now);
        let error = reply::error(&format!(
            "ERR pmnet: the front cannot ask Redis who may do what ({}); the command was not executed",
            broken.why
        ));
        let waiting = std::mem::take(&mut self.queue);
        for mut ask in asked.into_iter().flatten().chain(waiting) {
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
