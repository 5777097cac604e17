//! CLIENT REPLY: whether a client gets the replies to its commands.

use pmnet_resp::Arguments;

/// Which replies a client gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Replying {
    /// All of them.
    #[default]
    On,
    /// None.
    Off,
    /// All but that to the next command.
    SkipsNext,
    /// All but that to this command.
    Skips,
    /// That command is over.
    Skipped,
}

impl Replying {
    /// Returns the state after a CLIENT REPLY; `None` if there is none such.
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

    /// Whether the reply to the command that was taken last is thrown away.
    pub(crate) fn is_silent(self) -> bool {
        !matches!(self, Replying::On | Replying::Skipped)
    }

    /// A command is over.
    pub(crate) fn command_over(&mut self) {
        *self = match *self {
            Replying::SkipsNext => Replying::Skips,
            Replying::Skips => Replying::Skipped,
            other => other,
        };
    }
}
