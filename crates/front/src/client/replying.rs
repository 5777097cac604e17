//! CLIENT REPLY: whether a client gets the replies to its commands.

use pmnet_resp::Arguments;

/// The replies that a client gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Replying {
    /// All replies.
    #[default]
    On,
    /// No reply.
    Off,
    /// All replies except the reply to the next command.
    SkipsNext,
    /// All replies except the reply to the present command.
    Skips,
    /// All replies. The command whose reply was discarded is over.
    Skipped,
}

impl Replying {
    /// Returns the state after a CLIENT REPLY; `None` if its argument is invalid.
    pub(crate) fn after(self, command: &Arguments<'_>) -> Option<Replying> {
        let is = |word| command.is(2, word);
        if is("ON") {
            Some(Replying::On)
        } else if is("OFF") || (is("SKIP") && self == Replying::Off) {
            Some(Replying::Off)
        } else {
            is("SKIP").then_some(Replying::SkipsNext)
        }
    }

    /// Whether the reply to the command that was taken last is discarded.
    pub(crate) fn is_silent(self) -> bool {
        !matches!(self, Replying::On | Replying::Skipped)
    }

    /// Notes that a command is over.
    pub(crate) fn command_over(&mut self) {
        *self = match *self {
            Replying::SkipsNext => Replying::Skips,
            Replying::Skips => Replying::Skipped,
            other => other,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::input::{Input, Sender};
    use pmnet_resp::Status;

    fn after(state: Replying, word: &str) -> Option<Replying> {
        let mut input = Input::default();
        input.receive(format!("CLIENT REPLY {word}\r\n").as_bytes());
        assert_eq!(input.poll(Sender::Known).unwrap(), Status::Complete);
        state.after(&input.arguments())
    }

    #[test]
    fn each_word_in_each_state() {
        use Replying::{Off, On, Skipped, Skips, SkipsNext};
        for state in [On, Off, SkipsNext, Skips, Skipped] {
            assert_eq!(after(state, "on"), Some(On), "{state:?}");
            assert_eq!(after(state, "OFF"), Some(Off), "{state:?}");
            assert_eq!(after(state, "MAYBE"), None, "{state:?}");
            let skips = if state == Off { Off } else { SkipsNext };
            assert_eq!(after(state, "SKIP"), Some(skips), "{state:?}");
        }
    }

    #[test]
    fn skip_is_about_one_command() {
        let mut state = Replying::SkipsNext;
        let mut silent = Vec::new();
        // The four calls stand for CLIENT REPLY SKIP itself, the next command, and two more commands.
        for _ in 0..4 {
            silent.push(state.is_silent());
            state.command_over();
        }
        assert_eq!(silent, [true, true, false, false]);
    }
}
