//! Connections that may have the oldest slot, once it has been open for too long while later ones were complete (`docs/spec/verbs.md` §3, 2).
//!
//! When that is seen, later slots are complete, so the slot is taken: a connection that begins afterwards does not have it. If all who
//! may have it are gone, with all their completions, and it is still open, then no connection has it, and no client was told that its message is
//! here: it is a hole. (Some NICs make a completion in error for it, and some do not.)

/// See the module's text.
#[derive(Debug, Default)]
pub struct Suspects {
    slot: Option<u64>,
    who: Vec<u32>,
}

impl Suspects {
    /// The slot is open for too long, and these connections may have it. True: they are to be broken now; false: they are known.
    pub fn accuse(&mut self, slot: u64, who: impl Iterator<Item = u32>) -> bool {
        if self.slot == Some(slot) {
            return false;
        }
        self.slot = Some(slot);
        self.who = who.collect();
        true
    }

    /// Returns the slot that no connection has, if there is one. `blocked`: the oldest slot, if it is open and later ones are not. `is_gone`: the connection
    /// is destroyed, and all its completions are polled.
    pub fn settle(&mut self, blocked: Option<u64>, is_gone: impl Fn(u32) -> bool) -> Option<u64> {
        let slot = self.slot?;
        if blocked != Some(slot) {
            self.slot = None;
            return None;
        }
        if !self.who.iter().all(|&who| is_gone(who)) {
            return None;
        }
        self.slot.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_a_hole_when_all_who_may_have_it_are_gone_and_not_before() {
        let mut suspects = Suspects::default();
        assert_eq!(
            suspects.settle(Some(5), |_| true),
            None,
            "nobody was accused"
        );
        assert!(suspects.accuse(5, [1, 2].into_iter()));
        assert!(!suspects.accuse(5, [1, 2, 3].into_iter()), "3 came later");
        assert_eq!(suspects.settle(Some(5), |who| who == 1), None);
        assert_eq!(suspects.settle(Some(5), |who| who != 3), Some(5));
        assert_eq!(suspects.settle(Some(5), |_| true), None, "once");
    }

    #[test]
    fn a_completion_that_comes_late_ends_the_suspicion() {
        let mut suspects = Suspects::default();
        suspects.accuse(5, [1].into_iter());
        assert_eq!(suspects.settle(None, |_| true), None);
        assert_eq!(suspects.settle(Some(5), |_| true), None);
        suspects.accuse(5, [1].into_iter());
        assert_eq!(suspects.settle(Some(6), |_| true), None, "another slot");
        assert!(suspects.accuse(6, [].into_iter()));
        assert_eq!(
            suspects.settle(Some(6), |_| false),
            Some(6),
            "nobody may have it"
        );
    }
}
