//! Decides what a RECOVER means for the chain, by the table of `docs/spec/protocol.md` §5, line for line.
//!
//! The decision is a pure function. A test compares the texts of each [`Line`] with the document, and the decisions
//! with the texts.

mod join;
mod reason;

pub use join::JOINING;
pub use reason::Reason;

use pmnet_wire::record::Member;

/// The meaning of a RECOVER for the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The chain stays. The record may have to store a new incarnation.
    Keep(Vec<Member>),
    /// A new epoch begins, with these members.
    Change {
        /// Devices, head first.
        members: Vec<Member>,
        /// Text for the operator.
        notice: Reason,
    },
    /// There is no decision yet, because a device on the path has restarted and must register first. The server sends
    /// no answer, and the device asks again.
    Wait,
    /// The decision needs an order of the operator. The device asks again, and shows the operator the reason.
    Hold(Reason),
    /// As with [`Decision::Hold`], the device asks again and shows the reason. In addition, the device is no member,
    /// and must erase its log before it joins.
    Erase(Reason),
    /// The device must not serve. The text of the reason says why, and what the operator must do.
    Refuse(Reason),
}

/// One line of a table. The first line that applies decides.
#[derive(Debug)]
pub struct Line {
    /// Number of the line in the document.
    pub number: &'static str,
    /// Condition of the line, in the document's words.
    pub when: &'static str,
    /// Decision of the line, in the document's words. The text begins with the decision's name.
    pub decides: &'static str,
    rule: Rule,
}

type Decide = fn(&Question<'_>) -> Option<Decision>;

#[derive(Debug)]
enum Rule {
    /// The function returns the decision if the line applies.
    Here(Decide),
    /// If the function returns true, this other table decides.
    In(fn(&Question<'_>) -> bool, &'static [Line]),
}

/// A RECOVER, and the state by which it is judged.
pub(super) struct Question<'a> {
    /// The present chain, head first; empty: the shard is new.
    members: &'a [Member],
    /// The path of the RECOVER, beginning with the device that asks.
    path: &'a [Member],
    /// The present epoch.
    epoch: u32,
    /// A, the last applied order.
    applied: u64,
    had_sessions: bool,
}

impl Question<'_> {
    const fn origin(&self) -> &Member {
        &self.path[0]
    }

    fn registered(&self, came: &Member) -> Option<&Member> {
        self.members
            .iter()
            .find(|member| member.device == came.device)
    }

    /// Whether the operator has made this statement for the present epoch. So a repeated or late statement has no
    /// effect.
    const fn says(&self, flag: u32) -> bool {
        let origin = self.origin();
        origin.flags & flag != 0 && origin.word_epoch == self.epoch
    }

    const fn declared(&self) -> bool {
        self.says(Member::DECLARE_LOSS)
    }

    const fn is_new(&self) -> bool {
        self.members.is_empty()
    }

    const fn is_virgin(&self) -> bool {
        self.applied == 0 && !self.had_sessions
    }

    fn has_registered_log(&self, came: &Member) -> bool {
        let registered = self.registered(came);
        registered.is_some_and(|member| member.log_uuid == came.log_uuid)
    }

    fn has_another_log(&self, came: &Member) -> bool {
        let registered = self.registered(came);
        registered.is_some_and(|member| member.log_uuid != came.log_uuid)
    }

    fn is_old_copy(&self, came: &Member) -> bool {
        let registered = self.registered(came);
        registered.is_some_and(|member| !lives_on(member, came))
    }

    /// Whether a device on the path has restarted since it added its row to the path, so that the row may no longer be
    /// true.
    fn is_old_path(&self, path: &[Member]) -> bool {
        path.iter().any(|came| self.is_old_copy(came))
    }

    fn origin_lacks_something(&self) -> bool {
        let origin = self.origin();
        let registered = self.registered(origin);
        registered.is_some_and(|member| !is_synced(member, origin.tail, self.applied))
    }

    /// Returns the reason why the device that asks, which has joined, may not be the head.
    fn lacks(&self) -> Reason {
        let origin = self.origin();
        Reason::Lacks {
            device: origin.device,
            tail: origin.tail,
            must_hold: self.registered(origin).map_or(0, |member| member.tail),
            applied: self.applied,
            chain: ids(self.members),
        }
    }

    /// Splits the path into the devices before the joiners, and the joiners at its end.
    fn split_joiners(&self) -> (&[Member], &[Member]) {
        let joins =
            |came: &&Member| self.registered(came).is_none() && came.flags & Member::JOIN != 0;
        let joiners = self.path.iter().rev().take_while(joins).count();
        self.path.split_at(self.path.len() - joiners)
    }

    /// Whether the path ends with the whole chain.
    fn grows_at_its_head(&self) -> bool {
        ids(self.path).ends_with(&ids(self.members))
    }

    fn is_forming(&self) -> bool {
        let all_empty = self.path.iter().all(|came| came.tail == 0);
        self.grows_at_its_head() && self.is_virgin() && all_empty
    }

    /// Whether the path has some of the members, in the order of the chain and with their registered logs, and leaves
    /// out the others.
    fn leaves_some_out(&self) -> bool {
        is_part(self.members, self.path)
            && self.path.iter().all(|came| self.has_registered_log(came))
    }

    /// Returns the origin (the device that asks) and the next device on the path, if the next device's log is longer.
    /// Without a fault this is impossible: the next device got all its entries from the origin's log, and nothing is
    /// appended to the origin's log before the origin serves.
    fn next_log_is_longer(&self) -> Option<(&Member, &Member)> {
        let [origin, next, ..] = self.path else {
            return None;
        };
        let both_registered = self.has_registered_log(origin) && self.has_registered_log(next);
        let stands_still = origin.flags & Member::SERVING == 0;
        let longer = origin.tail.max(self.applied) < next.tail;
        (!self.declared() && stands_still && both_registered && longer).then_some((origin, next))
    }
}

/// Whether `now` can be the log of `registered`, in its registered state or in a later state. An old copy of the log
/// has a lower serving mark, because the server registered the newer mark before the device served. The number of the
/// copy's starts does not matter.
pub(super) const fn lives_on(registered: &Member, now: &Member) -> bool {
    registered.incarnation <= now.incarnation && registered.served <= now.served
}

/// Whether this member holds all entries that were acknowledged in earlier epochs and are not applied. A joined member
/// does so once it holds, or the store has applied, each order up to the order in its record. `tail`: last order of the
/// member's log.
const fn is_synced(registered: &Member, tail: u64, applied: u64) -> bool {
    let joined = registered.flags & Member::JOINED != 0;
    !joined || applied >= registered.tail || tail >= registered.tail
}

/// Returns the members on a path as the record must have them: with their present incarnations, and with the orders up
/// to which they must catch up.
fn on_path(members: &[Member], path: &[Member]) -> Vec<Member> {
    let with_need = |came: &Member| {
        let joined = |m: &&Member| m.device == came.device && m.flags & Member::JOINED != 0;
        members
            .iter()
            .find(joined)
            .map_or(*came, |registered| Member {
                tail: registered.tail,
                flags: came.flags | Member::JOINED,
                ..*came
            })
    };
    path.iter().map(with_need).collect()
}

/// Whether these devices are members, in the order of the chain.
fn is_part(members: &[Member], path: &[Member]) -> bool {
    let mut rest = members.iter();
    path.iter()
        .all(|came| rest.any(|member| member.device == came.device))
}

fn ids(list: &[Member]) -> Vec<u32> {
    list.iter().map(|member| member.device).collect()
}

/// Decides what the RECOVER of `path[0]` means. `members`: the present chain; empty: the shard is new. `epoch`: the
/// epoch of the present chain. `applied`: A. `had_sessions`: whether the shard has ever had a session.
#[must_use]
pub fn decide(
    members: &[Member],
    path: &[Member],
    epoch: u32,
    applied: u64,
    had_sessions: bool,
) -> Decision {
    line(members, path, epoch, applied, had_sessions).1
}

/// Decides like [`decide`], and also returns the deciding line of [`TABLE`] or [`JOINING`].
#[must_use]
pub fn line(
    members: &[Member],
    path: &[Member],
    epoch: u32,
    applied: u64,
    had_sessions: bool,
) -> (&'static Line, Decision) {
    let question = Question {
        members,
        path,
        epoch,
        applied,
        had_sessions,
    };
    first(TABLE, &question)
}

/// Returns the first line that applies, and its decision.
fn first(table: &'static [Line], question: &Question<'_>) -> (&'static Line, Decision) {
    let applies = |line: &'static Line| match line.rule {
        Rule::Here(decide) => Some((line, decide(question)?)),
        Rule::In(applies, table) => applies(question).then(|| first(table, question)),
    };
    table
        .iter()
        .find_map(applies)
        .expect("the last line of a table always applies")
}

/// The table of protocol.md §5.
pub const TABLE: &[Line] = &[
    Line {
        number: "0",
        when: "no chain yet; origin is to join (JOIN), loss not declared",
        decides: "hold: there is nothing to join",
        rule: Rule::Here(|q| {
            let joins = q.origin().flags & Member::JOIN != 0;
            (q.is_new() && joins && !q.declared()).then(|| {
                Decision::Hold(Reason::NothingToJoin {
                    device: q.origin().device,
                })
            })
        }),
    },
    Line {
        number: "1",
        when: "no chain yet; some log on the path has been used, loss not declared",
        decides: "refuse: the store is empty or was emptied",
        rule: Rule::Here(|q| {
            let used = |came: &Member| came.tail > 0 || came.applied > 0;
            (q.is_new() && q.path.iter().any(used) && !q.declared()).then(|| {
                Decision::Refuse(Reason::EmptyStore {
                    device: q.origin().device,
                    tail: q.origin().tail,
                })
            })
        }),
    },
    Line {
        number: "2",
        when: "no chain yet; not virgin, loss not declared",
        decides: "refuse: records were deleted",
        rule: Rule::Here(|q| {
            (q.is_new() && !q.is_virgin() && !q.declared()).then_some(Decision::Refuse(
                Reason::RecordsDeleted { applied: q.applied },
            ))
        }),
    },
    Line {
        number: "3",
        when: "no chain yet",
        decides: "new chain = path",
        rule: Rule::Here(|q| {
            q.is_new().then(|| Decision::Change {
                members: q.path.to_vec(),
                notice: Reason::NewShard { chain: ids(q.path) },
            })
        }),
    },
    Line {
        number: "4",
        when: "origin is a member with another log identity, loss not declared",
        decides: "refuse: medium lost or swapped",
        rule: Rule::Here(|q| {
            (q.has_another_log(q.origin()) && !q.declared()).then_some(Decision::Refuse(
                Reason::AnotherLog {
                    device: q.origin().device,
                },
            ))
        }),
    },
    Line {
        number: "5",
        when: "origin is a member with a lower incarnation or a lower serving mark than registered, loss not declared",
        decides: "refuse: log rolled back",
        rule: Rule::Here(|q| {
            let registered = q.registered(q.origin())?;
            (!lives_on(registered, q.origin()) && !q.declared()).then(|| {
                Decision::Refuse(Reason::RolledBack {
                    device: q.origin().device,
                    now: q.origin().into(),
                    registered: registered.into(),
                })
            })
        }),
    },
    Line {
        number: "6",
        when: "origin is a member that knows a higher A than the store, loss not declared",
        decides: "refuse: store lost data",
        rule: Rule::Here(|q| {
            let origin = q.origin();
            q.registered(origin)?;
            (origin.applied > q.applied && !q.declared()).then_some(Decision::Refuse(
                Reason::StoreLostData {
                    device: origin.device,
                    known: origin.applied,
                    applied: q.applied,
                },
            ))
        }),
    },
    Line {
        number: "6a",
        when: "another member on the path comes with another log than registered, loss not declared",
        decides: "hold: its log must be put back",
        rule: Rule::Here(|q| {
            let other = q.path[1..].iter().find(|came| q.has_another_log(came))?;
            // The origin has no fault, so it is not refused. The RECOVER of the other device will be refused.
            (!q.declared()).then_some(Decision::Hold(Reason::AnotherLogOnThePath {
                device: other.device,
            }))
        }),
    },
    Line {
        number: "6b",
        when: "as 7, and the next device's own log is an old copy (5)",
        decides: "hold: an old copy says nothing of the log before it",
        rule: Rule::Here(|q| {
            let (_, next) = q.next_log_is_longer()?;
            // The origin has no fault. The RECOVER of the next device will be refused.
            q.is_old_copy(next)
                .then_some(Decision::Hold(Reason::OldCopyOnThePath {
                    device: next.device,
                }))
        }),
    },
    Line {
        number: "7",
        when: "origin does not serve yet; the log of the next device on the path goes beyond A and beyond the end of origin's; \
               both are the registered logs; loss not declared",
        decides: "refuse: the end of origin's log was damaged, or it is an old copy",
        rule: Rule::Here(|q| {
            let (origin, next) = q.next_log_is_longer()?;
            Some(Decision::Refuse(Reason::EndDamaged {
                device: origin.device,
                tail: origin.tail,
                next: next.device,
                next_tail: next.tail,
            }))
        }),
    },
    Line {
        number: "8",
        when: "path is the chain, or, without SHRINK, the end of the chain; same logs; the conditions of 5 and 6 do not hold",
        decides: "keep; remember origin's incarnation and serving mark",
        rule: Rule::Here(keep),
    },
    Line {
        number: "9",
        when: "loss declared",
        decides: "new chain = path, with a notice that says DATA LOSS",
        rule: Rule::Here(|q| {
            q.declared().then(|| Decision::Change {
                members: q.path.to_vec(),
                notice: Reason::LossDeclared {
                    device: q.origin().device,
                    from: ids(q.members),
                    to: ids(q.path),
                    applied: q.applied,
                },
            })
        }),
    },
    Line {
        number: "9a",
        when: "the path ends with devices that are no members and are to join (JOIN)",
        decides: "see \"Joining\" below",
        rule: Rule::In(|q| !q.split_joiners().1.is_empty(), JOINING),
    },
    Line {
        number: "10",
        when: "the chain is the end of the path; virgin, every log on the path empty; a member's incarnation differs from the \
               registered one",
        decides: "wait: that device must register first",
        rule: Rule::Here(|q| {
            // A path that was sent before a restart of one of its devices must not decide.
            let differs = |came: &Member| {
                q.registered(came)
                    .is_some_and(|m| m.incarnation != came.incarnation || !lives_on(m, came))
            };
            (q.is_forming() && q.path.iter().any(differs)).then_some(Decision::Wait)
        }),
    },
    Line {
        number: "11",
        when: "as 10, but all incarnations agree; same logs",
        decides: "new chain = path (a chain in formation grows at its head)",
        rule: Rule::Here(|q| {
            let other_logs = q.path.iter().any(|came| q.has_another_log(came));
            (q.is_forming() && !other_logs).then(|| Decision::Change {
                members: q.path.to_vec(),
                notice: Reason::Grows {
                    from: ids(q.members),
                    to: ids(q.path),
                },
            })
        }),
    },
    Line {
        number: "12",
        when: "the chain is the end of the path, otherwise",
        decides: "refuse: at its head a chain grows only before the first session",
        rule: Rule::Here(|q| {
            q.grows_at_its_head().then(|| {
                Decision::Refuse(Reason::NoMember {
                    device: q.origin().device,
                    chain: ids(q.members),
                })
            })
        }),
    },
    Line {
        number: "13",
        when: "members left out, the rest in order, same logs; no SHRINK",
        decides: "hold: the operator must state that those left out are stopped",
        rule: Rule::Here(|q| {
            (q.leaves_some_out() && !q.says(Member::SHRINK)).then(|| {
                let path = ids(q.path);
                let gone = |id: &u32| !path.contains(id);
                Decision::Hold(Reason::LeavesOut {
                    device: q.origin().device,
                    gone: ids(q.members).into_iter().filter(gone).collect(),
                    chain: ids(q.members),
                })
            })
        }),
    },
    Line {
        number: "14",
        when: "as 13, but with SHRINK; a member on the path has a lower incarnation or serving mark than registered",
        decides: "wait: an old path",
        // If the server accepted such a path, the chain record would lose the newer incarnation of a device. If the
        // device's log were later replaced by an old copy, the server would not notice.
        rule: Rule::Here(|q| {
            (q.leaves_some_out() && q.is_old_path(q.path)).then_some(Decision::Wait)
        }),
    },
    Line {
        number: "14a",
        when: "as 13, but with SHRINK; origin has joined, and lacks something (\"Joining\")",
        decides: "hold: it may not be the head",
        rule: Rule::Here(|q| {
            (q.leaves_some_out() && q.origin_lacks_something()).then(|| Decision::Hold(q.lacks()))
        }),
    },
    Line {
        number: "15",
        when: "as 13, but with SHRINK, otherwise",
        decides: "new chain = path",
        rule: Rule::Here(|q| {
            q.leaves_some_out().then(|| Decision::Change {
                members: on_path(q.members, q.path),
                notice: Reason::Shrinks {
                    from: ids(q.members),
                    to: ids(q.path),
                },
            })
        }),
    },
    Line {
        number: "16",
        when: "otherwise",
        decides: "refuse: wiring does not fit",
        rule: Rule::Here(|q| {
            Some(Decision::Refuse(Reason::DoesNotFit {
                path: ids(q.path),
                chain: ids(q.members),
            }))
        }),
    },
];

fn keep(q: &Question<'_>) -> Option<Decision> {
    let origin = q.origin();
    // A restarted follower sends a path without the devices before it, and the chain stays. If the operator states that
    // the devices before it are stopped, this path makes the follower the head instead (lines 13 to 15).
    let comes_back = origin.flags & Member::SHRINK == 0 || q.path.len() == q.members.len();
    // Without a declared loss, lines 5 and 6 have already ensured this. With a declared loss, they do not apply, and an
    // old copy of the right log must not be accepted as if nothing were missing.
    let whole = !q.is_old_copy(origin) && origin.applied <= q.applied;
    let same_logs = q.path.iter().all(|came| q.has_registered_log(came));
    if !(whole && comes_back && same_logs && ids(q.members).ends_with(&ids(q.path))) {
        return None;
    }
    let mut kept = q.members.to_vec();
    for member in &mut kept {
        if member.device == origin.device {
            (member.incarnation, member.served) = (origin.incarnation, origin.served);
        }
        if let Some(came) = q.path.iter().find(|came| came.device == member.device) {
            member.size = came.size;
        }
    }
    Some(Decision::Keep(kept))
}
