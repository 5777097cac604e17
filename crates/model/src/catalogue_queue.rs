//! The configurations of the ordered queue over RDMA verbs (docs/spec/verbs.md).

use crate::catalogue::BASE;
use crate::configuration::Call::{Read, Write};
use crate::configuration::Configuration;
use crate::queue::{Event, Goal, Queue};

const QUEUE: Queue = Queue {
    slots: 2,
    cuts: 0,
    event: Event::None,
    goals: &[Goal::Finished, Goal::Overtaken],
};

/// Returns the small configurations.
pub(crate) fn quick() -> Vec<Configuration> {
    let of = |name, about, programs, window, crashes, queue| Configuration {
        name,
        about,
        programs,
        window,
        crashes,
        goals: &[],
        queue: Some(queue),
        ..BASE
    };
    vec![
        of(
            "queue",
            "verbs: two clients write and read, slots are used again",
            [&[Write, Read], &[Write, Read]],
            1,
            0,
            Queue {
                goals: &[Goal::Finished, Goal::Overtaken, Goal::Reused],
                ..QUEUE
            },
        ),
        of(
            "queue-cut",
            "verbs: connections are cut, perhaps in the middle of a message",
            [&[Write, Write], &[Read]],
            2,
            0,
            Queue {
                cuts: 2,
                goals: &[Goal::Finished, Goal::Overtaken, Goal::Hole, Goal::Resent],
                ..QUEUE
            },
        ),
        of(
            "queue-dies",
            "verbs: a client dies, perhaps in the middle of a message",
            [&[Write, Write], &[Write, Read]],
            2,
            0,
            Queue {
                event: Event::Dies,
                goals: &[Goal::Finished, Goal::Overtaken, Goal::Hole],
                ..QUEUE
            },
        ),
        of(
            "queue-power",
            "verbs: power is lost",
            [&[Write, Write], &[Write]],
            2,
            1,
            Queue {
                goals: &[Goal::Finished, Goal::Overtaken, Goal::Recovered],
                ..QUEUE
            },
        ),
        of(
            "queue-copies",
            "verbs: R = 2, the head is lost with its medium",
            [&[Write, Write], &[Write, Read]],
            2,
            0,
            Queue {
                event: Event::HeadLost,
                goals: &[Goal::Finished, Goal::Overtaken, Goal::GoneOn],
                ..QUEUE
            },
        ),
        of(
            "queue-moves",
            "verbs: another device takes over, the old one's NIC goes on",
            [&[Write, Write], &[Write, Read]],
            2,
            0,
            Queue {
                event: Event::Moves,
                goals: &[Goal::Finished, Goal::Overtaken, Goal::GoneOn],
                ..QUEUE
            },
        ),
        of(
            "queue-expires",
            "verbs: the server ends a session, whose client may be there",
            [&[Write, Write], &[Write, Read]],
            2,
            0,
            Queue {
                event: Event::Expires,
                goals: &[Goal::Finished, Goal::Overtaken, Goal::Ended],
                ..QUEUE
            },
        ),
        of(
            "queue-forgets",
            "verbs: a client's key is removed, power is lost",
            [&[Write, Write], &[Write]],
            2,
            1,
            Queue {
                event: Event::Forgets,
                goals: &[
                    Goal::Finished,
                    Goal::Overtaken,
                    Goal::Recovered,
                    Goal::Ended,
                ],
                ..QUEUE
            },
        ),
    ]
}

/// Larger searches.
pub(crate) fn full() -> Vec<Configuration> {
    let of = |name, about, programs, crashes, queue| Configuration {
        name,
        about,
        programs,
        window: 2,
        crashes,
        goals: &[],
        queue: Some(queue),
        quick: false,
        ..BASE
    };
    const THREE: Queue = Queue { slots: 3, ..QUEUE };
    vec![
        of(
            "queue-cut-large",
            "verbs: connections are cut, perhaps in the middle of a message; both clients write",
            [&[Write, Write], &[Write, Read]],
            0,
            Queue {
                cuts: 2,
                goals: &[Goal::Finished, Goal::Overtaken, Goal::Hole, Goal::Resent],
                ..QUEUE
            },
        ),
        of(
            "queue-power-large",
            "verbs: power is lost, a client reads",
            [&[Write, Write], &[Write, Read]],
            1,
            Queue {
                goals: &[Goal::Finished, Goal::Overtaken, Goal::Recovered],
                ..QUEUE
            },
        ),
        of(
            "queue-large",
            "verbs: a connection is cut, power is lost",
            [&[Write, Write], &[Read]],
            1,
            Queue {
                cuts: 1,
                goals: &[
                    Goal::Finished,
                    Goal::Overtaken,
                    Goal::Reused,
                    Goal::Hole,
                    Goal::Resent,
                    Goal::Recovered,
                ],
                ..QUEUE
            },
        ),
        of(
            "queue-power-twice",
            "verbs: power is lost twice, also in the middle of a recovery",
            [&[Write, Write], &[Write]],
            2,
            Queue {
                goals: &[Goal::Finished, Goal::Recovered],
                ..QUEUE
            },
        ),
        of(
            "queue-dies-large",
            "verbs: three slots, a client dies, power is lost",
            [&[Write], &[Write, Write]],
            1,
            Queue {
                event: Event::Dies,
                goals: &[Goal::Finished, Goal::Hole, Goal::Recovered],
                ..THREE
            },
        ),
        of(
            "queue-moves-large",
            "verbs: another device takes over, connections are cut, power is lost",
            [&[Write], &[Write, Read]],
            1,
            Queue {
                cuts: 1,
                event: Event::Moves,
                goals: &[Goal::Finished, Goal::GoneOn, Goal::Recovered],
                ..QUEUE
            },
        ),
    ]
}
