//! Kinds of payloads (`docs/spec/wire.md` §6): those of the updates of a session, and those that a server takes.
//!
//! A server skips updates of another kind than its store takes, although their client was told that they are durable.
//! So a client states its kind in the OPEN, the server states the kinds that it takes in each recover-reply, and the
//! head refuses an OPEN whose kind the server does not take.

/// A set of kinds, with one bit for each kind. Empty: not stated, as in packets of earlier versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Payloads(u64);

impl Payloads {
    /// The empty set: no kind is stated.
    pub const NOT_SAID: Payloads = Payloads(0);
    /// Commands for a store: all forms but `program`.
    pub const COMMANDS: Payloads = Payloads(1);
    /// Bytes for a program that takes the place of a store: form `program`.
    pub const PROGRAM: Payloads = Payloads(2);
    /// All kinds that this version knows.
    pub const ALL: Payloads = Payloads(Payloads::COMMANDS.0 | Payloads::PROGRAM.0);

    /// Returns the set with this number. Bits that this version does not know stand for kinds of a later version.
    #[must_use]
    pub const fn from_wire(number: u64) -> Payloads {
        Payloads(number)
    }

    /// Returns the number of the set on the wire.
    #[must_use]
    pub const fn on_wire(self) -> u64 {
        self.0
    }

    /// Whether a server that takes these kinds certainly skips the payloads of a client that sends the kinds `sent`.
    /// This is so if both sets are stated and have no kind in common.
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
