//! Logs that the device gives no answer, or that it accepts no calls.
//!
//! Each call returns an error to its client. But these errors do not tell the operator that *no* client gets an answer.
//! The cause may be a wrong address, a wrong shard, or a chain that is too short.

use crate::upstream::{
    CROWDED, Call, CallId, Calls, Closed, Event, Outcome, Refused, Seen, SessionHandle, Submit,
    Time, Upstream, UpstreamCounters,
};

/// Time without an answer after which the silence is logged, in nanoseconds.
const SILENCE: Time = 5_000_000_000;
/// Shortest time between two log messages about the silence, in nanoseconds.
const AGAIN_AFTER: Time = 30_000_000_000;
const SECOND: Time = 1_000_000_000;

/// An endpoint, whether it gets answers, and how long its calls take.
pub(super) struct Watched<U> {
    up: U,
    listening: Listening,
    /// Start times of the calls under way; `None`: calls are not timed.
    under_way: Option<UnderWay>,
    /// Time of the present turn.
    now: Time,
    /// Number of copies that the last commit named.
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

    /// Returns the time since which calls have been outstanding without any answer.
    pub(super) const fn unanswered_since(&self) -> Option<Time> {
        self.listening.asked
    }

    /// Returns the number of devices that the last commit named; 0: there was no commit.
    pub(super) const fn copies(&self) -> u8 {
        self.copies
    }

    /// Takes class and duration of the calls that have ended since the last call of this function.
    pub(super) fn take_took(&mut self) -> impl Iterator<Item = (Class, Time)> {
        let timed = self.under_way.iter_mut();
        timed.flat_map(|under_way| under_way.took.drain(..))
    }

    fn begin(&mut self, call: CallId, class: Class, now: Time) {
        if let Some(under_way) = &mut self.under_way {
            under_way.begin(call, class, now);
        }
    }

    /// Notes that an operation has ended which is not a call of this endpoint: a read from the store. `took`: the
    /// duration of the operation.
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

/// The class of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// An update, acknowledged early by the devices.
    Early,
    /// A command that the store executes and that changes the store.
    Write,
    /// A command that the store executes and that changes nothing.
    Read,
    /// A READ that the head answers.
    Head,
    /// A read that the front sends to the store itself.
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

/// Maximum number of calls under way that are timed. If there are more calls, the oldest calls are not timed.
const TIMED_MAX: usize = 1024;

/// Calls under way, by their number modulo [`TIMED_MAX`]. Call numbers are consecutive integers.
struct UnderWay {
    began: Box<[Option<(CallId, Class, Time)>]>,
    /// Class and duration of the calls that have ended in this turn.
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

/// When calls were last answered, and which messages about missing answers were logged.
#[derive(Debug, Default)]
struct Listening {
    /// The time when the first outstanding call was submitted, if no answer has come since then.
    asked: Option<Time>,
    /// Whether a call was submitted since the silence was last logged.
    asks_again: bool,
    /// The time when the silence was last logged.
    said: Option<Time>,
    /// Whether an answer has come since the start of the front.
    heard: bool,
    /// Whether a call was given up before the first answer came.
    gave_up: bool,
    /// Whether it was logged that the chain is too short, and no call has been answered since.
    said_short: bool,
    /// Number of calls that were not sent because the device could take no further session.
    crowded: u64,
    /// Number of sessions that the device ended by itself.
    let_go: u64,
    /// Number of sessions that were not begun because the server would skip their updates.
    other_payloads: u64,
}

impl Listening {
    fn ask(&mut self, now: Time) {
        self.asked.get_or_insert(now);
        self.asks_again = true;
    }

    /// Notes an answer. Returns whether the silence had been logged before.
    fn hear(&mut self) -> bool {
        self.asked = None;
        self.heard = true;
        self.said.take().is_some()
    }

    /// Returns the time when the silence must be logged next.
    fn due(&self) -> Option<Time> {
        let silent = self.asked.filter(|_| self.asks_again)?;
        let again = self.said.map_or(0, |said| said.saturating_add(AGAIN_AFTER));
        if self.said.is_none() && self.gave_up && !self.heard {
            return Some(silent);
        }
        Some(silent.saturating_add(SILENCE).max(again))
    }

    /// If the silence must be logged now, returns how many seconds it has lasted.
    fn say(&mut self, now: Time) -> Option<u64> {
        self.due().filter(|due| *due <= now)?;
        self.said = Some(now);
        self.asks_again = false;
        Some(now.saturating_sub(self.asked?) / SECOND)
    }

    /// Returns whether the front must log that the chain is too short.
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

    fn end_reads(&mut self, now: Time) {
        self.up.end_reads(now);
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
                // A commit with 0 copies means that the update is at the server and in no device, which says
                // nothing about the chain.
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
                // The refusal is logged at counts that are powers of two, so that many refusals do not flood the log.
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
            Event::SessionClosed {
                reason: reason @ Closed::OtherPayloads(_),
                ..
            } => {
                self.listening.hear();
                self.listening.other_payloads += 1;
                if self.listening.other_payloads.is_power_of_two() {
                    tracing::error!(
                        sessions = self.listening.other_payloads,
                        "PM3214 no command is accepted by way of {}: {reason}",
                        self.up.peer()
                    );
                }
            }
            Event::Done {
                outcome: Outcome::Unknown | Outcome::Failed(_),
                ..
            } => self.listening.gave_up = true,
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
            let peer = self.up.peer();
            if let Some(key) = self.up.key().filter(|_| !self.listening.heard) {
                let (id, print) = (key.get(), key.get() >> 32);
                tracing::warn!(
                    "PM3213 no device has answered for {seconds} s, by way of {peer}. A device does not answer a key that it does not know. Look whether this \
                     front's key (id {id:016x}, of the cluster {print:08x}) is of the devices' cluster (`pmnet key show`), and not refused: the device's \
                     log says so (PM1117, PM1118, PM1115). If it says nothing, check that --via is the first device of the chain and --shard its shard, \
                     that this device's log says `serving`, and that the server runs"
                );
                return;
            }
            tracing::warn!(
                "PM3201 no answer for {seconds} s by way of {peer}. Check that --via is the first device of the chain and \
                 --shard its shard, that this device's log says `serving`, and that the server runs"
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
        // No call was submitted since the silence was logged.
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

    /// If no device knows the front's key, no call is ever answered. In this case the silence is logged as soon as the
    /// first call is given up.
    #[test]
    fn silence_from_the_start_is_said_when_a_call_is_given_up() {
        let mut listening = Listening::default();
        listening.ask(SECOND);
        listening.gave_up = true;
        assert_eq!(listening.say(2 * SECOND), Some(1));
        listening.ask(3 * SECOND);
        assert_eq!(listening.say(4 * SECOND), None, "less often from then on");
        listening.hear();
        listening.ask(40 * SECOND);
        assert_eq!(listening.say(41 * SECOND), None, "a call can be slow");
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
