//! The authentication of a door: both ends prove that they have the cluster key (`docs/spec/keys.md` §9).
//!
//! A conversation has four lines: the caller says that it has a key; the door sends a nonce; the caller sends its
//! question with a MAC; the door sends its answer with a MAC. The keys of the MACs are derived from the cluster key and
//! the nonces of both ends, one key for each direction. So a line is valid only in one conversation, and only at one
//! place in it.

use std::io;

use pmnet_proto::keys::{ClusterKey, ClusterKeys, DoorKeys, MacKey};
use pmnet_udp::Latest;
use serde::{Deserialize, Serialize};

use super::{Answered, Asked};

/// The refusal that a door with keys sends to a caller without a key.
const NEEDS_KEY: &str = "PM5127 this process has keys, and answers only a caller that has the key of the cluster: give pmnet ctl --key FILE, the file \
                         that devices and server have. Nothing has changed";
/// The error of a caller with a key if the door has no keys.
pub(super) const HAS_NO_KEY: &str =
    "PM5128 this process has no keys: leave --key out here, or start the process with its key";
/// The refusal that a door sends to a caller with another key.
const WRONG_KEY: &str = "PM5129 the question was made with another key than this process has, or was changed on its way: compare the key files \
                         (pmnet key show). Nothing has changed";

/// A nonce: a random number in two halves.
type Nonce = [u64; 2];

/// Makes a random nonce.
pub(super) fn nonce() -> io::Result<Nonce> {
    Ok([pmnet_udp::os_random()?, pmnet_udp::os_random()?])
}

/// A line of a caller with a key.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Call {
    /// The caller has a key, and asks for the door's nonce.
    Key,
    /// A question with its MAC.
    Sealed {
        /// Fingerprint of the caller's cluster key.
        cluster: u32,
        /// The caller's nonce.
        nonce: Nonce,
        mac: u64,
        /// The question, as JSON.
        text: String,
    },
}

/// A line of a door with keys.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reply {
    /// The door's nonce.
    Nonce(Nonce),
    /// An answer with its MAC.
    Sealed {
        mac: u64,
        /// The answer, as JSON.
        text: String,
    },
    /// The door refuses the question. The line has the form of [`Answered::Refused`], so that callers without a key can
    /// parse it. A refusal does not prove that its sender has the key.
    Refused(String),
}

/// How an answer is protected.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seal {
    /// The answer has no MAC, because the process has no keys.
    Open,
    /// The answer has a MAC under this key.
    With(MacKey),
}

impl Seal {
    /// Returns the line with the answer, without the newline.
    pub(super) fn line(self, answered: &Answered) -> Vec<u8> {
        match self {
            Seal::Open => crate::record::bytes(answered),
            Seal::With(key) => {
                let text = crate::record::bytes(answered);
                let mac = key.text(&text);
                let text = String::from_utf8_lossy(&text).into_owned();
                crate::record::bytes(&Reply::Sealed { mac, text })
            }
        }
    }
}

/// Next step of a door after it has read a line.
#[derive(Debug)]
pub(super) enum Then {
    /// The door sends this nonce, and waits for the next line.
    Greet(Nonce),
    /// The door answers this question.
    Answer(Asked, Seal),
    /// The door sends this line, and closes the connection.
    Refuse(Vec<u8>),
}

/// Returns the door's next step after this line. `greeted`: the nonce that the door has already sent to this caller.
///
/// # Errors
/// The operating system gives no random numbers.
pub(super) fn heard(
    keys: Option<&Latest<ClusterKeys>>,
    greeted: Option<Nonce>,
    line: &[u8],
) -> io::Result<Then> {
    let refuse = |text: &str| {
        Ok(Then::Refuse(
            Seal::Open.line(&Answered::Refused(text.into())),
        ))
    };
    let call = serde_json::from_slice::<Call>(line);
    let Some(keys) = keys else {
        return match (serde_json::from_slice::<Asked>(line), call) {
            (Ok(asked), _) => Ok(Then::Answer(asked, Seal::Open)),
            (_, Ok(_)) => refuse(HAS_NO_KEY),
            _ => refuse("what was asked is not understood: another version?"),
        };
    };
    match (greeted, call) {
        (None, Ok(Call::Key)) => Ok(Then::Greet(nonce()?)),
        (Some(own), Ok(call)) => match open(&keys.follow().0, own, &call) {
            Some((asked, seal)) => Ok(Then::Answer(asked, seal)),
            None => refuse(WRONG_KEY),
        },
        _ => refuse(NEEDS_KEY),
    }
}

/// Returns the question and the protection of its answer, if the MAC of the question is right.
fn open(keys: &ClusterKeys, own: Nonce, call: &Call) -> Option<(Asked, Seal)> {
    let Call::Sealed {
        cluster,
        nonce,
        mac,
        text,
    } = call
    else {
        return None;
    };
    let mut accepted = keys.accepted();
    let key = accepted.find(|key| key.fingerprint() == *cluster)?;
    let DoorKeys { to_door, to_caller } = key.door(*nonce, own);
    // The comparison takes constant time, as for packets.
    if to_door.text(text.as_bytes()) ^ mac != 0 {
        return None;
    }
    let asked = serde_json::from_str(text).ok()?;
    Some((asked, Seal::With(to_caller)))
}

/// A caller's side of one conversation.
pub(super) struct Asking {
    keys: DoorKeys,
}

impl Asking {
    /// Returns the line with the question, and the state that can verify the answer.
    ///
    /// # Errors
    /// The operating system gives no random numbers.
    pub(super) fn begin(
        key: &ClusterKey,
        door: Nonce,
        asked: &Asked,
    ) -> io::Result<(Asking, Call)> {
        let own = nonce()?;
        let keys = key.door(own, door);
        let text = crate::record::bytes(asked);
        let mac = keys.to_door.text(&text);
        let call = Call::Sealed {
            cluster: key.fingerprint(),
            nonce: own,
            mac,
            text: String::from_utf8_lossy(&text).into_owned(),
        };
        Ok((Asking { keys }, call))
    }

    /// Returns the answer, if its MAC is right.
    pub(super) fn open(&self, mac: u64, text: &str) -> Option<Answered> {
        if self.keys.to_caller.text(text.as_bytes()) ^ mac != 0 {
            return None;
        }
        serde_json::from_str(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(byte: u8) -> ClusterKeys {
        ClusterKeys::new(ClusterKey::new([byte; 16]))
    }

    fn question(of: &ClusterKeys, door: Nonce) -> (Asking, Vec<u8>) {
        let (asking, call) = Asking::begin(&of.present, door, &Asked::Who).unwrap();
        (asking, crate::record::bytes(&call))
    }

    fn is_answered(locked: &Latest<ClusterKeys>, greeted: Option<Nonce>, line: &[u8]) -> bool {
        matches!(heard(Some(locked), greeted, line), Ok(Then::Answer(..)))
    }

    #[test]
    fn a_question_is_good_once_in_one_conversation_and_unchanged() {
        let own = keys(1);
        let locked = Latest::new(own.clone());
        let Ok(Then::Greet(nonce)) = heard(Some(&locked), None, b"\"key\"\n") else {
            panic!("a caller with a key is greeted");
        };
        let (asking, line) = question(&own, nonce);
        assert!(is_answered(&locked, Some(nonce), &line));
        // An attacker repeats the line in another conversation, or before the door has sent its nonce.
        let Ok(Then::Greet(other)) = heard(Some(&locked), None, b"\"key\"") else {
            panic!("greeted");
        };
        assert!(!is_answered(&locked, Some(other), &line));
        assert!(!is_answered(&locked, None, &line));
        // A change of any bit of the line makes the line invalid.
        for at in 0..line.len() {
            for bit in 0..8 {
                let mut bad = line.clone();
                bad[at] ^= 1 << bit;
                if let Ok(Then::Answer(asked, _)) = heard(Some(&locked), Some(nonce), &bad) {
                    // Some changes of the JSON text do not change its meaning: a blank, or another case of a letter in
                    // an escape.
                    assert_eq!(asked, Asked::Who, "{at} {bit}");
                }
            }
        }
        // The door refuses three lines: one with another key; a question without a key; the answer in place of a
        // question.
        assert!(!is_answered(
            &locked,
            Some(nonce),
            &question(&keys(2), nonce).1
        ));
        assert!(!is_answered(&locked, None, b"\"who\""));
        assert!(!is_answered(&locked, Some(nonce), b"\"who\""));
        let Ok(Then::Answer(_, seal)) = heard(Some(&locked), Some(nonce), &line) else {
            panic!("answered");
        };
        let answer = seal.line(&Answered::Done);
        assert!(!is_answered(&locked, Some(nonce), &answer));
        // The caller accepts only this answer.
        let Ok(Reply::Sealed { mac, text }) = serde_json::from_slice(&answer) else {
            panic!("sealed");
        };
        assert_eq!(asking.open(mac, &text), Some(Answered::Done));
        assert_eq!(asking.open(mac ^ 1, &text), None);
        assert_eq!(asking.open(mac, "\"done\" "), None);
        assert_eq!(question(&own, nonce).0.open(mac, &text), None);
    }

    #[test]
    fn a_door_takes_both_keys_of_a_rollover() {
        let (old, new) = (keys(1), keys(2));
        let both = ClusterKeys {
            other: Some(old.present),
            ..new.clone()
        };
        let locked = Latest::new(both);
        let nonce = [3, 4];
        for key in [&old, &new] {
            assert!(is_answered(&locked, Some(nonce), &question(key, nonce).1));
        }
        locked.replace(new);
        assert!(!is_answered(&locked, Some(nonce), &question(&old, nonce).1));
    }

    #[test]
    fn a_process_of_the_other_mode_gets_a_sentence() {
        let says = |keys: Option<&Latest<ClusterKeys>>, line: &[u8]| match heard(keys, None, line) {
            Ok(Then::Refuse(line)) => String::from_utf8(line).unwrap(),
            other => panic!("{other:?}"),
        };
        assert!(says(None, b"\"key\"").contains("has no keys"));
        let locked = Latest::new(keys(1));
        for line in [&b"\"who\""[..], b"GET / HTTP/1.1\r\n", b"", b"\xff"] {
            assert!(says(Some(&locked), line).contains("--key FILE"));
        }
    }
}
