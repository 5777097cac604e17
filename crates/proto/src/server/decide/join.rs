//! Devices that are no members and must join: the table under "Joining" in `docs/spec/protocol.md` §5. When this table
//! decides, lines 4 and 6a have already ensured that the devices before the joiners on the path have their registered
//! logs.

use pmnet_wire::record::{CHAIN_MAX, Member};

use super::{Decision, Line, Question, Reason, Rule, ids, is_part, on_path};

impl Question<'_> {
    fn before_joiners(&self) -> &[Member] {
        self.split_joiners().0
    }

    fn joiners(&self) -> &[Member] {
        self.split_joiners().1
    }

    fn only_joiners(&self) -> bool {
        self.before_joiners().is_empty()
    }

    /// Whether the joiner's log is empty and marked to serve, and the joiner has stated both in this epoch.
    const fn is_ready(&self, joiner: &Member) -> bool {
        let empty = joiner.tail == 0 && joiner.applied == 0;
        let marked = joiner.served == joiner.incarnation;
        empty && marked && joiner.word_epoch == self.epoch
    }

    /// Returns the members of the new chain before the joiners.
    fn stays(&self) -> Vec<Member> {
        let before = self.before_joiners();
        let kept = if self.says(Member::SHRINK) {
            0
        } else {
            self.members.len() - before.len()
        };
        let mut stays = self.members[..kept].to_vec();
        stays.extend(on_path(self.members, before));
        stays
    }
}

/// The table of joining.
pub const JOINING: &[Line] = &[
    Line {
        number: "J1",
        when: "only joiners; origin knows a higher A than the store",
        decides: "refuse: the log of another shard",
        rule: Rule::Here(|q| {
            let origin = q.origin();
            (q.only_joiners() && origin.applied > q.applied).then(|| {
                Decision::Refuse(Reason::JoinsWithAnotherShardsLog {
                    device: origin.device,
                    known: origin.applied,
                    applied: q.applied,
                    chain: ids(q.members),
                })
            })
        }),
    },
    Line {
        number: "J2",
        when: "only joiners; origin's log is not empty, not marked, or it has not heard of this epoch",
        decides: "hold, ERASE",
        rule: Rule::Here(|q| {
            (q.only_joiners() && !q.is_ready(q.origin())).then(|| {
                Decision::Erase(Reason::ErasesFirst {
                    device: q.origin().device,
                    chain: ids(q.members),
                })
            })
        }),
    },
    Line {
        number: "J3",
        when: "only joiners, otherwise",
        decides: "hold: ready; wire it",
        rule: Rule::Here(|q| {
            q.only_joiners().then(|| {
                Decision::Hold(Reason::ReadyToJoin {
                    device: q.origin().device,
                    chain: ids(q.members),
                })
            })
        }),
    },
    Line {
        number: "J4",
        when: "who is before them are not members in the order of the chain",
        decides: "refuse",
        rule: Rule::Here(|q| {
            let before = q.before_joiners();
            (!is_part(q.members, before)).then(|| {
                Decision::Refuse(Reason::DoesNotFitBeforeJoiners {
                    path: ids(before),
                    joiners: ids(q.joiners()),
                    chain: ids(q.members),
                })
            })
        }),
    },
    Line {
        number: "J5",
        when: "they are not the end of the chain, no SHRINK",
        decides: "hold, as 13",
        rule: Rule::Here(|q| {
            let is_end = ids(q.members).ends_with(&ids(q.before_joiners()));
            (!is_end && !q.says(Member::SHRINK)).then(|| {
                Decision::Hold(Reason::LeavesOutBeforeJoiners {
                    device: q.origin().device,
                    chain: ids(q.members),
                })
            })
        }),
    },
    Line {
        number: "J6",
        when: "some joiner's log is not empty, not marked, or it has not heard of this epoch",
        decides: "hold",
        rule: Rule::Here(|q| {
            let joiner = q.joiners().iter().find(|joiner| !q.is_ready(joiner))?;
            Some(Decision::Hold(Reason::JoinerIsNotReady {
                device: joiner.device,
                chain: ids(q.members),
            }))
        }),
    },
    Line {
        number: "J7",
        when: "SHRINK, and origin has joined and lacks something",
        decides: "hold, as 14a",
        rule: Rule::Here(|q| {
            (q.says(Member::SHRINK) && q.origin_lacks_something())
                .then(|| Decision::Hold(q.lacks()))
        }),
    },
    Line {
        number: "J8",
        when: "the last member on the path serves, or somebody else may append to its log",
        decides: "hold",
        rule: Rule::Here(|q| {
            let last = q.before_joiners().last()?;
            // While entries are appended to this log, the order up to which the joiner must catch up is unknown.
            (last.flags & Member::SERVING != 0).then(|| {
                Decision::Hold(Reason::JoinsAfterALogThatGoesOn {
                    joiners: ids(q.joiners()),
                    last: last.device,
                })
            })
        }),
    },
    Line {
        number: "J9",
        when: "a member on the path has a lower incarnation or serving mark than registered",
        decides: "wait",
        rule: Rule::Here(|q| q.is_old_path(q.before_joiners()).then_some(Decision::Wait)),
    },
    Line {
        number: "J10",
        when: "there would be more than 8 devices",
        decides: "hold",
        rule: Rule::Here(|q| {
            (q.stays().len() + q.joiners().len() > CHAIN_MAX).then(|| {
                Decision::Hold(Reason::TooMany {
                    joiners: ids(q.joiners()),
                    chain: ids(q.members),
                })
            })
        }),
    },
    Line {
        number: "J11",
        when: "otherwise",
        decides: "new chain = the chain (with SHRINK: the members on the path), then the joiners",
        rule: Rule::Here(|q| {
            let last = q.before_joiners().last()?;
            // Every entry that was acknowledged until now is applied, or is in the log of the device before the
            // joiners, and nothing is appended to that log. If that device itself has joined, it may still lack some of
            // these entries.
            let owed = q
                .registered(last)
                .filter(|member| member.flags & Member::JOINED != 0);
            let needs = last
                .tail
                .max(q.applied)
                .max(owed.map_or(0, |member| member.tail));
            let mut members = q.stays();
            members.extend(q.joiners().iter().map(|joiner| Member {
                tail: needs,
                flags: joiner.flags | Member::JOINED,
                ..*joiner
            }));
            let notice = Reason::Joins {
                from: ids(q.members),
                to: ids(&members),
                needs,
                applied: q.applied,
            };
            Some(Decision::Change { members, notice })
        }),
    },
];
