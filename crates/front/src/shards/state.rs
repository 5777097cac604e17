//! A client's settings for its connection. All shards that the client uses, now or later, have equal settings.
//!
//! A command that changes the settings goes to all links of the client, and no other command is taken before all of
//! them have answered. A command that needs the store (a login, tracking) goes to all shards. For such a command the
//! first definite answer of a shard is enough, and it becomes the client's reply. A link with a different answer is
//! given up. When the link is needed again, it is made anew with these settings.

use std::collections::VecDeque;

use bytes::Bytes;
use pmnet_resp::{Arguments, write_command};

/// Maximum number of changes of one client that some links have not answered.
const ROUNDS_MAX: usize = 16;

/// The change that a command makes to the settings if it succeeds.
pub(super) enum Effect {
    /// AUTH, HELLO.
    Hello {
        resp3: Option<bool>,
        login: Option<[Box<[u8]>; 2]>,
        name: Option<Box<[u8]>>,
    },
    /// The command CLIENT SETNAME, with the name.
    Name(Box<[u8]>),
    /// CLIENT TRACKING ON, as the client sent it, or OFF.
    Tracking(Option<Bytes>),
    /// The command RESET.
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

    /// Whether the change must be sent to all shards at once, because each shard has its own users and
    /// changed keys.
    pub(super) fn is_for_all(&self) -> bool {
        self.is_login() || matches!(self, Effect::Tracking(Some(_)))
    }

    /// Whether the change logs the client in.
    pub(super) fn is_login(&self) -> bool {
        matches!(self, Effect::Hello { login: Some(_), .. })
    }
}

/// A change under way.
struct Round {
    number: u64,
    effect: Effect,
    /// Number of links that have not answered.
    left: usize,
    stage: Stage,
}

enum Stage {
    /// The outcome is not certain yet. The value lists the links that have answered, with their answers.
    Open(Vec<(usize, Bytes)>),
    /// The outcome is certain. The second value is the reply for the client, until it is taken.
    Settled(Outcome, Option<Bytes>),
}

/// The kind of a shard's reply to a change.
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
    /// Links whose answers must still be compared with the outcome.
    pub(super) answers: Vec<(usize, Bytes)>,
    pub(super) gained: Gained,
}

/// The effect of a change on the rest of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gained {
    Nothing,
    /// The change has logged the client in.
    Login,
    /// The change has given the client the state of a new connection.
    Reset,
}

/// A client's settings.
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

    /// Notes that a change was sent to `left` links. Returns the number of the change.
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

    /// Returns the commands that give a new link these settings.
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

    /// Takes the client's reply to a change, once the outcome is certain.
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

    /// Takes a link's answer to a change. Returns the answers to compare with the outcome, once the outcome
    /// is certain.
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

    /// Forgets changes that are over.
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
