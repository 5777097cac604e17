//! What a client has set for its connection: the same in each shard that it uses, also in one that it needs later.
//!
//! A command that changes it goes to all links that the client has, and no other command is taken before all of them have
//! answered. One that a store has a say in (a login, tracking) goes to all shards; there it is enough that one of them has said
//! something certain. That is the client's reply. A link that says something else is given up, and made again from what is
//! written here when it is needed next.

use std::collections::VecDeque;

use bytes::Bytes;
use pmnet_resp::{Arguments, write_command};

/// Changes of one client that not all links have answered, at most.
const ROUNDS_MAX: usize = 16;

/// What a command that changes the state has changed if it succeeds.
pub(super) enum Effect {
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
    pub(super) fn of(arguments: &Arguments<'_>, frame: &[u8]) -> Effect {
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
    pub(super) fn is_for_all(&self) -> bool {
        self.is_login() || matches!(self, Effect::Tracking(Some(_)))
    }

    /// Whether it logs the client in.
    pub(super) fn is_login(&self) -> bool {
        matches!(self, Effect::Hello { login: Some(_), .. })
    }
}

/// A change under way.
struct Round {
    number: u64,
    effect: Effect,
    /// Links that have not answered.
    left: usize,
    stage: Stage,
}

enum Stage {
    /// It is not certain whether it has succeeded. Links, and what they have answered.
    Open(Vec<(usize, Bytes)>),
    /// It is. With what the client is told, until it is.
    Settled(Outcome, Option<Bytes>),
}

/// Kind of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Success,
    Error,
}

impl Outcome {
    pub(super) fn of(reply: &[u8]) -> Outcome {
        if reply.starts_with(b"-") {
            Outcome::Error
        } else {
            Outcome::Success
        }
    }
}

/// A change whose outcome is certain.
pub(super) struct Settled {
    pub(super) outcome: Outcome,
    /// Links whose answers have still to be compared with the outcome.
    pub(super) answers: Vec<(usize, Bytes)>,
    pub(super) gained: Gained,
}

/// Effect of a change on the rest of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gained {
    Nothing,
    /// It has logged in.
    Login,
    /// It is as if freshly connected.
    Reset,
}

/// What a client has set.
#[derive(Default)]
pub(super) struct State {
    login: Option<[Box<[u8]>; 2]>,
    resp3: bool,
    name: Box<[u8]>,
    tracking: Option<Bytes>,
    rounds: VecDeque<Round>,
    rounds_ever: u64,
}

impl State {
    /// Whether the client speaks RESP3.
    pub(super) fn resp3(&self) -> bool {
        self.resp3
    }

    /// Whether no further change may begin.
    pub(super) fn is_full(&self) -> bool {
        self.rounds.len() >= ROUNDS_MAX
    }

    /// A change was sent to `left` links: returns its number.
    pub(super) fn begin(&mut self, effect: Effect, left: usize) -> u64 {
        self.rounds_ever += 1;
        self.rounds.push_back(Round {
            number: self.rounds_ever,
            effect,
            left,
            stage: Stage::Open(Vec::new()),
        });
        self.rounds_ever
    }

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
        let round = rounds.find(|round| round.number == number)?;
        let Stage::Settled(_, reply) = &mut round.stage else {
            return None;
        };
        let reply = reply.take();
        self.forget();
        reply
    }

    /// A link has answered a change. `None`: that changes nothing yet.
    pub(super) fn answered(&mut self, number: u64, shard: usize, answer: Bytes) -> Option<Settled> {
        let mut rounds = self.rounds.iter_mut();
        let round = rounds.find(|round| round.number == number)?;
        round.left -= 1;
        let said = Outcome::of(&answer);
        let certain = said == Outcome::Success || !answer.starts_with(b"-ERR pmnet: ");
        let settled = match &mut round.stage {
            Stage::Open(answers) if round.left == 0 || (certain && round.effect.is_for_all()) => {
                let answers = std::mem::take(answers);
                round.stage = Stage::Settled(said, Some(answer));
                let gained = match said {
                    Outcome::Success => {
                        let effect = std::mem::replace(&mut round.effect, Effect::Reset);
                        self.apply(effect)
                    }
                    Outcome::Error => Gained::Nothing,
                };
                Some(Settled {
                    outcome: said,
                    answers,
                    gained,
                })
            }
            Stage::Open(answers) => {
                answers.push((shard, answer));
                None
            }
            Stage::Settled(outcome, _) => Some(Settled {
                outcome: *outcome,
                answers: vec![(shard, answer)],
                gained: Gained::Nothing,
            }),
        };
        self.forget();
        settled
    }

    fn apply(&mut self, effect: Effect) -> Gained {
        match effect {
            Effect::Hello { resp3, login, name } => {
                self.resp3 = resp3.unwrap_or(self.resp3);
                self.name = name.unwrap_or_else(|| std::mem::take(&mut self.name));
                if login.is_some() {
                    self.login = login;
                    return Gained::Login;
                }
            }
            Effect::Name(name) => self.name = name,
            Effect::Tracking(frame) => self.tracking = frame,
            Effect::Reset => {
                (self.login, self.tracking) = (None, None);
                (self.resp3, self.name) = (false, Box::default());
                return Gained::Reset;
            }
        }
        Gained::Nothing
    }

    /// Forgets rounds that are over.
    fn forget(&mut self) {
        let told = |stage: &Stage| matches!(stage, Stage::Settled(_, None));
        self.rounds
            .retain(|round| round.left > 0 || !told(&round.stage));
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
