//! Says in the log when nothing comes back from the device, or when it takes no calls.
//!
//! Each call gives its client an error. But that does not tell the operator that no client is answered
//! at all: because of a wrong address, a wrong shard, or a chain that is too short.

use crate::upstream::{
    CROWDED, Call, CallId, Calls, Closed, Event, Outcome, Refused, Seen, SessionHandle, Submit,
    Time, Upstream, UpstreamCounters,
};

/// After how long without an answer it is said, in nanoseconds.
const SILENCE: Time = 5_000_000_000;
/// Shortest time until it is said again, in nanoseconds.
const AGAIN_AFTER: Time = 30_000_000_000;
const SECOND: Time = 1_000_000_000;

/// An endpoint, whether anything comes back from it, and how long that takes.
pub(super) struct Watched<U> {
    up: U,
    listening: Listening,
    /// `None`: calls are not timed.
    under_way: Option<UnderWay>,
    /// Time of this turn.
    now: Time,
    /// Copies that the last commit named.
    copies: u8,
}

impl<U: Upstream> Watched<U> {
    pub(super) fn new(up: U) -> Watched<U> {
        Watched {
            up,
            listening: Listening::default(),
            under_way: None,
            now: 0,
            copies: 0,
        }
    }

    /// Times calls from now on.
    pub(super) fn time_calls(&mut self) {
        self.under_way.get_or_insert_with(UnderWay::new);
    }

    /// Whether calls are timed.
    pub(super) const fn times_calls(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns the time since which nothing has come back although something was asked.
    pub(super) const fn unanswered_since(&self) -> Option<Time> {
        self.listening.asked
    }

    /// Returns the number of devices that the last commit named; 0: there was none.
    pub(super) const fn copies(&self) -> u8 {
        self.copies
    }

    /// Hands over how long the calls took that have ended since the last time.
    pub(super) fn take_took(&mut self) -> impl Iterator<Item = (Class, Time)> {
        let timed = self.under_way.iter_mut();
        timed.flat_map(|under_way| under_way.took.drain(..))
    }

    fn begin(&mut self, call: CallId, class: Class, now: Time) {
        if let Some(under_way) = &mut self.under_way {
            under_way.begin(call, class, now);
        }
    }

    /// Something that is no call of this endpoint has ended, after this time.
    pub(super) fn took(&mut self, class: Class, took: Time) {
        if let Some(under_way) = &mut self.under_way {
            under_way.took.push((class, took));
        }
    }

    fn end_call(&mut self, call: CallId) {
        if let Some(under_way) = &mut self.under_way {
            under_way.end(call, self.now);
        }
    }
}

/// Class of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Acknowledged early, by the devices.
    Early,
    /// Executed by the store, and changes it.
    Write,
    /// Executed by the store, and changes nothing.
    Read,
    /// Asked of the head.
    Head,
    /// Read from the store, directly.
    Store,
}

impl Class {
    const fn of(how: Submit) -> Class {
        match how {
            Submit::Update => Class::Early,
            Submit::Bypass { read_only: false } => Class::Write,
            Submit::Bypass { read_only: true } => Class::Read,
        }
    }
}

/// Calls under way that are timed, at most. Of more, those that began first are not timed.
const TIMED_MAX: usize = 1024;

/// Calls under way, by the last digits of their names: these are given in order.
struct UnderWay {
    began: Box<[Option<(CallId, Class, Time)>]>,
    /// Calls that have ended in this turn.
    took: Vec<(Class, Time)>,
}

impl UnderWay {
    fn new() -> UnderWay {
        UnderWay {
            began: vec![None; TIMED_MAX].into(),
            took: Vec::new(),
        }
    }

    fn place(&mut self, call: CallId) -> &mut Option<(CallId, Class, Time)> {
        let at = usize::try_from(call.0 % TIMED_MAX as u64).unwrap_or(0);
        &mut self.began[at]
    }

    fn begin(&mut self, call: CallId, class: Class, now: Time) {
        *self.place(call) = Some((call, class, now));
    }

    fn end(&mut self, call: CallId, now: Time) {
        let place = self.place(call);
        if let Some((_, class, began)) = place.take_if(|(timed, ..)| *timed == call) {
            self.took.push((class, now.saturating_sub(began)));
        }
    }
}

/// Whether calls are answered.
#[derive(Debug, Default)]
struct Listening {
    /// When the first call was submitted that nothing has come back for.
    asked: Option<Time>,
    /// A call was submitted since the silence was last said.
    asks_again: bool,
    /// When it was last said.
    said: Option<Time>,
    /// It was said that the chain is too short, and nothing was answered since.
    said_short: bool,
    /// Calls that were not sent since the device had no room for another session.
    crowded: u64,
    /// Sessions that the device ended by itself.
    let_go: u64,
}

impl Listening {
    fn ask(&mut self, now: Time) {
        self.asked.get_or_insert(now);
        self.asks_again = true;
    }

    /// Something came back; whether it was said before that nothing does.
    fn hear(&mut self) -> bool {
        self.asked = None;
        self.said.take().is_some()
    }

    /// When to say next that nothing comes back.
    fn due(&self) -> Option<Time> {
        let silent = self.asked.filter(|_| self.asks_again)?;
        let again = self.said.map_or(0, |said| said.saturating_add(AGAIN_AFTER));
        Some(silent.saturating_add(SILENCE).max(again))
    }

    /// For how many seconds nothing has come back, if that is to be said now.
    fn say(&mut self, now: Time) -> Option<u64> {
        self.due().filter(|due| *due <= now)?;
        self.said = Some(now);
        self.asks_again = false;
        Some(now.saturating_sub(self.asked?) / SECOND)
    }

    /// Whether it is to be said that the chain is too short.
    fn say_short(&mut self) -> bool {
        !std::mem::replace(&mut self.said_short, true)
    }
}

impl<U: Upstream> Calls for Watched<U> {
    fn open(&mut self, now: Time) -> Result<SessionHandle, Refused> {
        self.up.open(now)
    }

    fn submit(
        &mut self,
        now: Time,
        session: SessionHandle,
        call: Call<'_>,
    ) -> Result<CallId, Refused> {
        let class = Class::of(call.how);
        let call = self.up.submit(now, session, call)?;
        self.listening.ask(now);
        self.begin(call, class, now);
        Ok(call)
    }

    fn read(
        &mut self,
        now: Time,
        hashes: &[u64],
        replicas: bool,
        deadline: Time,
    ) -> Result<CallId, Refused> {
        let call = self.up.read(now, hashes, replicas, deadline)?;
        self.begin(call, Class::Head, now);
        Ok(call)
    }

    fn seen(&self) -> Seen {
        Seen {
            peer: self.up.peer(),
            copies: self.copies,
            unanswered_since: self.listening.asked,
        }
    }
}

impl<U: Upstream> Upstream for Watched<U> {
    fn open_mark(&mut self, now: Time) -> Result<SessionHandle, Refused> {
        self.up.open_mark(now)
    }

    fn end(&mut self, now: Time, session: SessionHandle) {
        self.up.end(now, session);
    }

    fn poll_event(&mut self) -> Option<Event> {
        let event = self.up.poll_event()?;
        match &event {
            Event::Read { call, .. } => self.end_call(*call),
            Event::Done {
                call,
                outcome: outcome @ (Outcome::Committed { .. } | Outcome::Reply(_)),
                ..
            } => {
                // At the server itself no device has it, which says nothing of the chain.
                if let Outcome::Committed {
                    copies: copies @ 1..,
                    ..
                } = outcome
                {
                    self.copies = *copies;
                }
                self.end_call(*call);
                self.listening.said_short = false;
                if self.listening.hear() {
                    tracing::info!("answers come by way of {} again", self.up.peer());
                }
            }
            Event::SessionClosed {
                reason: Closed::TooFewCopies { have },
                ..
            } => {
                self.listening.hear();
                if self.listening.say_short() {
                    tracing::warn!(
                        "PM3202 no command is accepted: {} serves with copies={have}, and --copies asks for more. Lower --copies, \
                         or bring the missing devices back",
                        self.up.peer()
                    );
                }
            }
            Event::Done {
                outcome: Outcome::Failed(why),
                ..
            } if *why == CROWDED => {
                self.listening.crowded += 1;
                // Less and less often, so that a flood of them does not flood the log.
                if self.listening.crowded.is_power_of_two() {
                    tracing::warn!(
                        commands = self.listening.crowded,
                        "PM3203 {why}: {} has as many sessions as it takes. Those of fronts that ended without a word make room within \
                         three minutes. Are there too many clients for one shard?",
                        self.up.peer()
                    );
                }
            }
            Event::SessionClosed {
                reason: reason @ Closed::LetGo(_),
                ..
            } => {
                self.listening.let_go += 1;
                if self.listening.let_go.is_power_of_two() {
                    tracing::warn!(
                        sessions = self.listening.let_go,
                        "PM3204 a session closed: {reason}"
                    );
                }
            }
            _ => {}
        }
        Some(event)
    }

    fn register(&mut self, registry: &mio::Registry, token: mio::Token) -> std::io::Result<()> {
        self.up.register(registry, token)
    }

    fn take_other_socket(&mut self) -> bool {
        self.up.take_other_socket()
    }

    fn receive(&mut self, now: Time) -> bool {
        self.now = now;
        self.up.receive(now)
    }

    fn flush(&mut self, now: Time) {
        self.now = now;
        self.up.flush(now);
        if let Some(seconds) = self.listening.say(now) {
            tracing::warn!(
                "PM3201 no answer for {seconds} s by way of {}. Check that --via is the first device of the chain and \
                 --shard its shard, that this device's log says `serving`, and that the server runs",
                self.up.peer()
            );
        }
    }

    fn next_timeout(&self) -> Option<Time> {
        self.up
            .next_timeout()
            .into_iter()
            .chain(self.listening.due())
            .min()
    }

    fn peer(&self) -> String {
        self.up.peer()
    }

    fn counters(&self) -> UpstreamCounters {
        self.up.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_said_after_a_while_and_again_while_somebody_asks() {
        let mut listening = Listening::default();
        assert_eq!((listening.due(), listening.say(99 * SECOND)), (None, None));
        let begin = 100 * SECOND;
        listening.ask(begin);
        listening.ask(begin + SECOND);
        assert_eq!(listening.say(begin + SILENCE - 1), None);
        assert_eq!(listening.say(begin + SILENCE), Some(5));
        // No call was submitted since.
        assert_eq!(listening.due(), None);
        listening.ask(begin + 6 * SECOND);
        assert_eq!(listening.due(), Some(begin + SILENCE + AGAIN_AFTER));
        assert_eq!(listening.say(begin + 34 * SECOND), None);
        assert_eq!(listening.say(begin + 36 * SECOND), Some(36));
        listening.ask(begin + 37 * SECOND);
        assert!(listening.hear(), "it was said that nothing comes back");
        assert_eq!(listening.due(), None);
        listening.ask(begin + 40 * SECOND);
        assert_eq!(listening.due(), Some(begin + 45 * SECOND));
        assert!(!listening.hear());
    }

    #[test]
    fn a_call_is_timed_unless_many_began_after_it() {
        let mut under_way = UnderWay::new();
        under_way.begin(CallId(1), Class::Early, 100);
        under_way.begin(CallId(2), Class::Read, 200);
        under_way.end(CallId(2), 250);
        under_way.end(CallId(2), 260);
        under_way.end(CallId(1), 300);
        assert_eq!(under_way.took, [(Class::Read, 50), (Class::Early, 200)]);
        under_way.begin(CallId(3), Class::Write, 400);
        under_way.begin(CallId(3 + TIMED_MAX as u64), Class::Head, 500);
        under_way.end(CallId(3), 600);
        under_way.end(CallId(3 + TIMED_MAX as u64), 600);
        assert_eq!(under_way.took[2..], [(Class::Head, 100)]);
    }

    #[test]
    fn a_chain_that_is_too_short_is_said_once() {
        let mut listening = Listening::default();
        assert_eq!(
            [(); 3].map(|()| listening.say_short()),
            [true, false, false]
        );
    }
}
