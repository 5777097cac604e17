//! Kinds of payloads (`docs/spec/wire.md` §6): those of the updates of a session, and those that a server takes.
//!
//! A server skips an update of another kind, and its client was told that it is durable. So a client says the kind in its
//! OPEN, a server says what it takes in each recover-reply, and the head refuses an OPEN that does not fit.

/// A set of kinds, one bit each. Empty: not said, as by earlier versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Payloads(u64);

impl Payloads {
    /// Nothing is said.
    pub const NOT_SAID: Payloads = Payloads(0);
    /// Commands for a store: all forms but `program`.
    pub const COMMANDS: Payloads = Payloads(1);
    /// Bytes for a program of one's own: form `program`.
    pub const PROGRAM: Payloads = Payloads(2);
    /// All kinds that this version knows.
    pub const ALL: Payloads = Payloads(Payloads::COMMANDS.0 | Payloads::PROGRAM.0);

    /// The set with this number. Bits that this version does not know are kinds of a later one.
    #[must_use]
    pub const fn from_wire(number: u64) -> Payloads {
        Payloads(number)
    }

    /// Its number on the wire.
    #[must_use]
    pub const fn on_wire(self) -> u64 {
        self.0
    }

    /// Whether a server that takes these certainly skips what a client with `sent` sends: both are said, and have no kind in
    /// common.
    #[must_use]
    pub const fn exclude(self, sent: Payloads) -> bool {
        self.0 != 0 && sent.0 != 0 && self.0 & sent.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::Payloads;

    #[test]
    fn only_kinds_that_are_said_exclude_others() {
        let (none, commands, program) = (Payloads::NOT_SAID, Payloads::COMMANDS, Payloads::PROGRAM);
        let both = Payloads::ALL;
        let later = Payloads::from_wire(1 << 63);
        for (takes, sent) in [
            (commands, program),
            (program, commands),
            (later, commands),
            (both, later),
        ] {
            assert!(takes.exclude(sent), "{takes:?} {sent:?}");
        }
        for takes in [none, commands, program, both, later] {
            assert!(!takes.exclude(takes), "{takes:?}");
            assert!(!takes.exclude(none) && !none.exclude(takes), "{takes:?}");
        }
        assert!(!both.exclude(program) && !both.exclude(commands));
        assert_eq!(Payloads::from_wire(later.on_wire()), later);
    }
}
