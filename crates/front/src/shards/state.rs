//! What a client has set for its connection: the same in each shard that it uses, also in one that it needs later.
//!
//! A command that changes it goes to all links that the client has, and no other command is taken before all of them have
//! answered. One that a store has a say in (a login, tracking) goes to all shards; there it is enough that one of them has said
//! something certain. That is the client's reply. A link that says something else is given up, and made again from what is
//! written here when it is needed next.

use std::collections::VecDeque;

use bytes::Bytes;
use pmnet_resp::{Arguments, reply, write_command};

use super::answer::Wait;
use super::client::{Client, Common, Done, HOME, Trust};
use super::link::Owed;

/// Changes of one client that not all links have answered, at most.
const ROUNDS_MAX: usize = 16;

/// What a command that changes the state has changed if it succeeds.
enum Effect {
    /// AUTH, HELLO.
    Hello {
        resp3: Option<bool>,
        login: Option<[Box<[u8]>; 2]>,
        name: Option<Box<[u8]>>,
    },
    /// CLIENT SETNAME.
    Name(Box<[u8]>),
    /// CLIENT TRACKING ON, as it was sent, or OFF.
    Tracking(Option<Bytes>),
    /// RESET.
    Reset,
}

impl Effect {
    fn of(arguments: &Arguments<'_>, frame: &[u8]) -> Effect {
        let own = |at: usize| Box::<[u8]>::from(arguments.get(at));
        if arguments.is(0, "RESET") {
            Effect::Reset
        } else if arguments.is(0, "AUTH") {
            let login = match arguments.len() {
                2 => [Box::from(crate::users::DEFAULT), own(1)],
                _ => [own(1), own(2)],
            };
            Effect::Hello {
                resp3: None,
                login: Some(login),
                name: None,
            }
        } else if arguments.is(1, "SETNAME") {
            Effect::Name(own(2))
        } else if arguments.is(0, "CLIENT") {
            let on = arguments.is(2, "ON");
            Effect::Tracking(on.then(|| Bytes::copy_from_slice(frame)))
        } else {
            let (mut login, mut name, mut at) = (None, None, 2);
            while at < arguments.len() {
                if arguments.is(at, "AUTH") {
                    login = Some([own(at + 1), own(at + 2)]);
                    at += 3;
                } else {
                    name = Some(own(at + 1));
                    at += 2;
                }
            }
            Effect::Hello {
                resp3: Some(arguments.get(1) == b"3"),
                login,
                name,
            }
        }
    }

    /// Whether all shards have to hear of it at once: each has users, and keys that change.
    fn is_for_all(&self) -> bool {
        matches!(
            self,
            Effect::Hello { login: Some(_), .. } | Effect::Tracking(Some(_))
        )
    }
}

/// A change under way.
struct Round {
    number: u64,
    effect: Effect,
    /// Links that have not answered.
    left: usize,
    /// Whether it has succeeded, once that is certain.
    outcome: Option<bool>,
    /// What the client is told, until it is.
    reply: Option<Bytes>,
    /// What links have answered before it was certain.
    answered: Vec<(usize, Bytes)>,
}

/// What a client has set.
#[derive(Default)]
pub(super) struct State {
    login: Option<[Box<[u8]>; 2]>,
    pub(super) resp3: bool,
    name: Box<[u8]>,
    tracking: Option<Bytes>,
    rounds: VecDeque<Round>,
    rounds_ever: u64,
}

impl State {
    /// The commands that bring a new link to this state.
    pub(super) fn replay(&self) -> Vec<Vec<u8>> {
        let mut words: Vec<&[u8]> = Vec::new();
        if self.login.is_some() || self.resp3 || !self.name.is_empty() {
            words.extend([&b"HELLO"[..], if self.resp3 { b"3" } else { b"2" }]);
        }
        if let Some([user, password]) = &self.login {
            words.extend([&b"AUTH"[..], user, password]);
        }
        if !self.name.is_empty() {
            words.extend([&b"SETNAME"[..], &self.name]);
        }
        let mut frames = Vec::new();
        if !words.is_empty() {
            let mut frame = Vec::new();
            write_command(&mut frame, &words);
            frames.push(frame);
        }
        frames.extend(self.tracking.iter().map(|frame| frame.to_vec()));
        frames
    }

    /// What the client is told about a change, once that is known.
    pub(super) fn answer(&mut self, number: u64) -> Option<Bytes> {
        let mut rounds = self.rounds.iter_mut();
        let reply = rounds.find(|round| round.number == number)?.reply.take();
        self.forget();
        reply
    }

    /// Rounds that are over.
    fn forget(&mut self) {
        self.rounds
            .retain(|round| round.left > 0 || round.reply.is_some());
    }
}

impl Client {
    /// A command that changes the state.
    pub(super) fn change_state(
        &mut self,
        arguments: &Arguments<'_>,
        frame: &[u8],
        common: &mut Common,
    ) -> Done {
        // What was sent before is answered under the old state.
        if !self.slots.is_empty() || self.state.rounds.len() >= ROUNDS_MAX {
            return Done::Later;
        }
        let effect = Effect::of(arguments, frame);
        if matches!(effect, Effect::Hello { login: Some(_), .. }) && self.subscriptions.is_any() {
            // Each shard that it has subscribed at would say so, and no other.
            return self.own(reply::error(
                "ERR pmnet: unsubscribe before logging in: subscriptions have the rights of their user",
            ), common);
        }
        let shards: Vec<usize> = (0..self.links.len())
            .filter(|shard| effect.is_for_all() || *shard == HOME || self.links[*shard].is_some())
            .collect();
        for shard in &shards {
            if let Err(done) = self.open(*shard, common) {
                return done;
            }
        }
        self.state.rounds_ever += 1;
        let number = self.state.rounds_ever;
        for shard in &shards {
            self.refusals[*shard] = None;
            if let Some(link) = &mut self.links[*shard] {
                link.send(frame, Owed::State(number));
            }
        }
        self.state.rounds.push_back(Round {
            number,
            effect,
            left: shards.len(),
            outcome: None,
            reply: None,
            answered: Vec::new(),
        });
        self.wait_for(Wait::State(number));
        Done::Taken
    }

    /// One of the links has answered.
    pub(super) fn state_answered(&mut self, number: u64, shard: usize, answer: Bytes) {
        let mut rounds = self.state.rounds.iter_mut();
        let Some(round) = rounds.find(|round| round.number == number) else {
            return;
        };
        round.left -= 1;
        let succeeded = !answer.starts_with(b"-");
        let certain = succeeded || !answer.starts_with(b"-ERR pmnet: ");
        match round.outcome {
            None if round.left == 0 || (certain && round.effect.is_for_all()) => {
                round.outcome = Some(succeeded);
                round.reply = Some(answer);
                let others = std::mem::take(&mut round.answered);
                if succeeded {
                    let effect = std::mem::replace(&mut round.effect, Effect::Reset);
                    self.apply(effect);
                }
                for (shard, answer) in others {
                    self.compare(shard, succeeded, &answer);
                }
            }
            None => round.answered.push((shard, answer)),
            Some(outcome) => self.compare(shard, outcome, &answer),
        }
        self.state.forget();
    }

    /// A link has answered; the client was told that the change has succeeded, or has not.
    fn compare(&mut self, shard: usize, outcome: bool, answer: &[u8]) {
        match (outcome, !answer.starts_with(b"-")) {
            // It may be on its way out because of what was set before.
            (true, true) => self.refusals[shard] = None,
            (true, false) => self.give_up(shard, Some(answer)),
            (false, true) => self.give_up(shard, None),
            (false, false) => {}
        }
    }

    fn apply(&mut self, effect: Effect) {
        let state = &mut self.state;
        match effect {
            Effect::Hello { resp3, login, name } => {
                state.resp3 = resp3.unwrap_or(state.resp3);
                if login.is_some() {
                    state.login = login;
                    self.trust = Trust::Yes;
                }
                state.name = name.unwrap_or_else(|| std::mem::take(&mut state.name));
            }
            Effect::Name(name) => state.name = name,
            Effect::Tracking(frame) => state.tracking = frame,
            Effect::Reset => {
                (state.login, state.tracking) = (None, None);
                (state.resp3, state.name) = (false, Box::default());
                self.reset();
            }
        }
    }

    /// Gives a link up that is not as the client wants it; `why`: the next command for it is told so.
    pub(super) fn give_up(&mut self, shard: usize, why: Option<&[u8]>) {
        let Some(link) = &mut self.links[shard] else {
            return;
        };
        link.give_up();
        let subscribed = link.subscribed != [0; 2];
        if subscribed || self.watched.is_some_and(|(_, own)| own == shard) {
            // What it was subscribed to, or watched there, would be forgotten.
            (self.ending, self.done, self.lingers) = (true, true, true);
        }
        self.refusals[shard] = why.map(|why| {
            let why = String::from_utf8_lossy(why.strip_prefix(b"-").unwrap_or(why));
            reply::error(&format!(
                "ERR pmnet: shard {} does not take what this connection has set (AUTH, HELLO, CLIENT): {}",
                shard + 1,
                why.trim_end()
            ))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_set_again() {
        let text = |state: &State| -> Vec<String> {
            let frames = state.replay();
            frames
                .iter()
                .map(|frame| String::from_utf8_lossy(frame).replace("\r\n", " "))
                .collect()
        };
        let mut state = State::default();
        assert!(text(&state).is_empty());
        state.name = Box::from(&b"n"[..]);
        assert_eq!(text(&state), ["*4 $5 HELLO $1 2 $7 SETNAME $1 n "]);
        state.resp3 = true;
        state.login = Some([Box::from(&b"u"[..]), Box::from(&b"p"[..])]);
        state.tracking = Some(Bytes::from_static(b"tracking"));
        assert_eq!(
            text(&state),
            [
                "*7 $5 HELLO $1 3 $4 AUTH $1 u $1 p $7 SETNAME $1 n ",
                "tracking"
            ]
        );
    }
}
