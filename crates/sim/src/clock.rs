//! The clock of a computer.
//!
//! Fault model: a clock never goes back. It may stand still for a while and then continue from its last value, and it
//! may jump forward by seconds. The protocol's machines get only these clocks. Histories are judged by the time of the
//! world. In worlds with leases, a clock may also be slow or fast, and a device's clock does not stand still.

use pmnet_proto::Time;
use pmnet_proto::time::Nanos;

/// A clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    ahead: Nanos,
    behind: Nanos,
    stands_at: Option<Time>,
    longest_jump: Nanos,
    /// Rate of the clock: by how many millionths it is fast; negative: slow.
    rate: i64,
}

impl Clock {
    /// Returns the local time of the clock at the given time of the world.
    pub(crate) fn local(&self, world: Time) -> Time {
        let gained = i128::from(world.0) * i128::from(self.rate) / 1_000_000;
        let world = Time(u64::try_from(i128::from(world.0) + gained).expect("a clock that goes"));
        let going = (world + self.ahead).since(Time(self.behind));
        self.stands_at.unwrap_or(Time(going))
    }

    /// Returns a clock that is fast by `rate` millionths (negative: slow).
    pub(crate) fn of_rate(rate: i64) -> Clock {
        Clock {
            rate,
            ..Clock::default()
        }
    }

    /// Lets the clock jump forward.
    pub(crate) fn jump(&mut self, nanos: Nanos) {
        if self.stands_at.is_none() {
            self.ahead += nanos;
            self.longest_jump = self.longest_jump.max(nanos);
        }
    }

    /// Makes the clock stand still (`still`), or run again.
    pub(crate) fn stand(&mut self, world: Time, still: bool) {
        match (still, self.stands_at) {
            (true, None) => self.stands_at = Some(self.local(world)),
            (false, Some(at)) => {
                self.stands_at = None;
                self.behind += self.local(world).since(at);
            }
            _ => {}
        }
    }

    /// Returns the longest jump so far.
    pub(crate) const fn longest_jump(&self) -> Nanos {
        self.longest_jump
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back() {
        let mut clock = Clock::default();
        let mut last = Time(0);
        for step in 0..1000 {
            let world = Time(step * 10);
            match step % 7 {
                0 => clock.stand(world, true),
                3 => clock.stand(world, false),
                5 => clock.jump(100),
                _ => {}
            }
            let now = clock.local(world);
            assert!(now >= last, "{now:?} after {last:?}");
            last = now;
        }
        assert!(last > Time(1000 / 7 * 100), "jumps count: {last:?}");
    }
}
