//! One session of a program, with the operations of Table I of the PMNet paper (see protocol.md §8): start, update,
//! bypass, end. A program either makes calls that block, or starts many calls and takes their results later.

use crate::node::ClientNode;
use bytes::Bytes;
use pmnet_proto::Time;
use pmnet_proto::client::{
    CallId, ClientConfig, Closed, Event, Outcome, ReadAnswer, Refused, SessionHandle,
};
use pmnet_udp::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The reason why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Io(#[from] io::Error),
    /// The call was not accepted.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The session is closed.
    #[error("the session is closed: {0}")]
    Closed(Closed),
    /// The call has no effect, and will never have one.
    #[error("failed: {0}")]
    Failed(&'static str),
    /// The deadline passed, or the session was closed, before the outcome was known. The call takes effect once or not
    /// at all.
    #[error(
        "outcome unknown: the deadline passed, or the session was closed; it may or may not take effect, at most once"
    )]
    Unknown,
    /// A read was requested at a moment at which its answer could miss effects of the session's own calls.
    #[error(
        "a call of this session is under way, or its outcome is unknown: read when all have ended, or by a bypass"
    )]
    NotClean,
    /// No device answered a read in time.
    #[error("the device has not answered the read in time: ask by a bypass")]
    NoAnswer,
    /// The caller has given up ([`Session::give_up_if`]). The call takes effect once or not at all.
    #[error("outcome unknown: given up; it may or may not take effect, at most once")]
    Interrupted,
}

/// Interval at which a blocked call checks whether it must be given up. The check is needed because a signal that
/// arrives just before a wait does not end the wait.
const PATIENCE: Duration = Duration::from_millis(200);

/// A function that decides whether a blocked call must be given up.
struct GiveUp(Box<dyn FnMut() -> bool + Send>);

impl fmt::Debug for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GiveUp")
    }
}

/// The result of a successful call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The update is durable in this number of devices. 0: the log was full, and the server has applied the update.
    Committed(u8),
    /// The server's reply to a bypass.
    Reply(Bytes),
}

/// A call that was started and has ended.
#[derive(Debug)]
pub struct Finished {
    /// The token by which the caller knows the call.
    pub token: u64,
    /// The result of the call.
    pub result: Result<Answer, SessionError>,
}

/// One session, with a socket of its own.
///
/// A call that blocks returns within the deadline that [`Session::start`] got. A call that was started also ends within
/// this deadline, and [`Session::next`] returns it as a [`Finished`]. Started calls are sent by the next call of
/// [`Session::next`]; until then the descriptor is readable. At most [`ClientConfig::queue_max`] calls can be in
/// flight.
#[derive(Debug)]
pub struct Session {
    endpoint: ClientNode,
    session: SessionHandle,
    clock: Clock,
    deadline: Duration,
    closed: Option<Closed>,
    /// The calls in flight, with their tokens. `None`: the call that blocks.
    calls: HashMap<CallId, Option<u64>>,
    finished: VecDeque<Finished>,
    /// The call that blocks, with its result as soon as the call has ended.
    own: Option<(CallId, Result<Answer, SessionError>)>,
    /// A call has had an unknown outcome, and no bypass was answered since then.
    doubtful: bool,
    /// The read in flight, with its answer if that has arrived.
    reading: Option<(CallId, Option<ReadAnswer>)>,
    polled: Option<Polled>,
    give_up: Option<GiveUp>,
}

/// The reason why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slept {
    Enough,
    Signal,
}

/// The descriptor that the caller polls. The descriptor is readable if the socket is readable, or if a timer is due.
#[derive(Debug)]
struct Polled {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// Time for which the timer is set.
    set: Option<Time>,
}

impl Polled {
    fn new(socket: BorrowedFd<'_>) -> io::Result<Polled> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let polled = Polled {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            set: None,
        };
        polled.add(socket)?;
        polled.add(polled.timer.as_fd())?;
        Ok(polled)
    }

    fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Makes the descriptor readable at this time, or earlier.
    fn set(&mut self, at: Option<Time>, now: Time) -> io::Result<()> {
        // The timer's descriptor is never read. After the timer has expired, the descriptor stays readable until the
        // timer is set again.
        if self.set == at {
            return Ok(());
        }
        // The value zero would switch the timer off.
        let left = at.map_or(Duration::ZERO, |at| {
            Duration::from_nanos(at.since(now).max(1))
        });
        let spec = |time: Duration| Timespec::try_from(time).map_err(io::Error::other);
        let value = Itimerspec {
            it_interval: spec(Duration::ZERO)?,
            it_value: spec(left)?,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)?;
        self.set = at;
        Ok(())
    }
}

impl Session {
    /// Opens a session. Every later call ends within `deadline`.
    ///
    /// # Errors
    /// The socket cannot be opened. Whether the device can be reached becomes known only at the first call.
    pub fn start(config: ClientConfig, deadline: Duration) -> Result<Session, SessionError> {
        let clock = Clock::start();
        let mut endpoint = ClientNode::bind(config)?;
        let session = endpoint.open(clock.now())?;
        Ok(Session {
            endpoint,
            session,
            clock,
            deadline,
            closed: None,
            calls: HashMap::new(),
            finished: VecDeque::new(),
            own: None,
            doubtful: false,
            reading: None,
            polled: None,
            give_up: None,
        })
    }

    /// Returns the descriptor that the caller must poll. When the descriptor is readable, the caller must call
    /// [`Session::next`] until it returns `None`. The descriptor stays valid for the whole session.
    ///
    /// # Errors
    /// The operating system has no free descriptor.
    pub fn poll_fd(&mut self) -> io::Result<BorrowedFd<'_>> {
        if self.polled.is_none() {
            self.polled = Some(Polled::new(self.endpoint.as_fd())?);
            self.arm()?;
        }
        let polled = self.polled.as_ref().expect("it was made above");
        Ok(polled.epoll.as_fd())
    }

    fn until(&self) -> Time {
        self.after(self.deadline)
    }

    fn after(&self, wait: Duration) -> Time {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Time(self.clock.now().0.saturating_add(nanos))
    }

    /// Sends an update, and waits until all devices of the chain hold it. Returns the number of these devices. 0: the
    /// log was full, and the server has applied the update.
    ///
    /// # Errors
    /// [`SessionError`] if the result of the update is not certain.
    pub fn update(&mut self, payload: Bytes, key_hash: u64) -> Result<u8, SessionError> {
        let call = self.submit_update(payload, key_hash)?;
        match self.wait(call)? {
            Answer::Committed(copies) => Ok(copies),
            Answer::Reply(_) => Err(SessionError::Unknown),
        }
    }

    /// Sends a bypass. Returns the server's reply.
    ///
    /// # Errors
    /// [`SessionError`] if there is no reply.
    pub fn bypass(
        &mut self,
        payload: Bytes,
        key_hash: u64,
        read_only: bool,
    ) -> Result<Bytes, SessionError> {
        let call = self.submit_bypass(payload, key_hash, read_only)?;
        match self.wait(call)? {
            Answer::Reply(reply) => Ok(reply),
            Answer::Committed(_) => Err(SessionError::Unknown),
        }
    }

    /// Starts an update. [`Session::next`] returns its result, with `token`.
    ///
    /// # Errors
    /// [`SessionError::Refused`], [`SessionError::Closed`] or [`SessionError::Io`]: the update was not
    /// started.
    pub fn update_start(
        &mut self,
        payload: Bytes,
        key_hash: u64,
        token: u64,
    ) -> Result<(), SessionError> {
        self.wake()?;
        let call = self.submit_update(payload, key_hash)?;
        self.calls.insert(call, Some(token));
        Ok(())
    }

    /// Starts a bypass. [`Session::next`] returns its result, with `token`.
    ///
    /// # Errors
    /// [`SessionError::Refused`], [`SessionError::Closed`] or [`SessionError::Io`]: the bypass was not
    /// started.
    pub fn bypass_start(
        &mut self,
        payload: Bytes,
        key_hash: u64,
        read_only: bool,
        token: u64,
    ) -> Result<(), SessionError> {
        self.wake()?;
        let call = self.submit_bypass(payload, key_hash, read_only)?;
        self.calls.insert(call, Some(token));
        Ok(())
    }

    /// Makes the descriptor readable, so that the caller calls [`Session::next`], which sends the new call. The
    /// descriptor is made readable before the call is submitted. So if the operating system refuses, the call was not
    /// started.
    fn wake(&mut self) -> Result<(), SessionError> {
        if let Some(polled) = &mut self.polled {
            polled.set(Some(Time(0)), self.clock.now())?;
        }
        Ok(())
    }

    fn submit_update(&mut self, payload: Bytes, key_hash: u64) -> Result<CallId, SessionError> {
        let until = self.until();
        let call = self.endpoint.update(self.session, payload, key_hash, until);
        call.map_err(|refused| self.refusal(refused))
    }

    fn submit_bypass(
        &mut self,
        payload: Bytes,
        key_hash: u64,
        read_only: bool,
    ) -> Result<CallId, SessionError> {
        let until = self.until();
        let call = self
            .endpoint
            .bypass(self.session, payload, key_hash, read_only, until);
        call.map_err(|refused| self.refusal(refused))
    }

    fn refusal(&self, refused: Refused) -> SessionError {
        match (refused, self.closed) {
            (Refused::Closed, Some(reason)) => SessionError::Closed(reason),
            _ => SessionError::Refused(refused),
        }
    }

    /// Returns the next call that has ended. `None`: no call ended within `wait`, or a signal arrived.
    ///
    /// # Errors
    /// [`SessionError::Closed`] after the session was closed and all its calls were returned; [`SessionError::Io`].
    pub fn next(&mut self, wait: Duration) -> Result<Option<Finished>, SessionError> {
        let until = self.after(wait);
        let mut waited = false;
        loop {
            // The first turn does not wait, because even a caller with `wait` 0 must send and receive.
            let slept = self.turn(if waited { until } else { Time(0) })?;
            if let Some(finished) = self.finished.pop_front() {
                self.arm()?;
                return Ok(Some(finished));
            }
            if let Some(reason) = self.closed {
                return Err(SessionError::Closed(reason));
            }
            if self.clock.now() >= until || slept == Slept::Signal {
                self.arm()?;
                return Ok(None);
            }
            waited = true;
        }
    }

    /// Returns a call that has already ended. Does not send or receive. If one [`Session::next`] has ended several
    /// calls, the caller takes the remaining calls with this function.
    pub fn more(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// Asks the head for the newest update of a key. If the head has none, the answer is the order up to which the
    /// server must have applied the log to know the key (reads.md §2). Without a key, the answer is the order that all
    /// keys need.
    ///
    /// # Errors
    /// [`SessionError::NotClean`], [`SessionError::NoAnswer`] or [`SessionError::Refused`].
    pub fn read(&mut self, key_hash: Option<u64>) -> Result<ReadAnswer, SessionError> {
        self.submit_read(key_hash)?;
        let answer = loop {
            match self.take_reading() {
                Some(answer) => break answer,
                None => self
                    .block(self.until())
                    .inspect_err(|_| self.reading = None)?,
            }
        };
        self.arm()?;
        answer
    }

    /// Starts a read, as [`Session::read`] does, and does not wait. Calls that are started later do not affect its
    /// answer.
    ///
    /// # Errors
    /// As for [`Session::read`]; also [`SessionError::NotClean`] if another read is in flight.
    pub fn read_start(&mut self, key_hash: Option<u64>) -> Result<(), SessionError> {
        self.wake()?;
        self.submit_read(key_hash)
    }

    fn submit_read(&mut self, key_hash: Option<u64>) -> Result<(), SessionError> {
        if let Some(reason) = self.closed {
            return Err(SessionError::Closed(reason));
        }
        if self.doubtful || !self.calls.is_empty() || self.reading.is_some() {
            return Err(SessionError::NotClean);
        }
        let (now, until) = (self.clock.now(), self.until());
        let asked = self.endpoint.read(now, key_hash.as_slice(), false, until)?;
        self.reading = Some((asked, None));
        Ok(())
    }

    /// Returns the answer to the started read, if [`Session::next`] has received it.
    ///
    /// # Errors
    /// [`SessionError::NoAnswer`] if no device answered.
    pub fn read_ended(&mut self) -> Result<Option<ReadAnswer>, SessionError> {
        self.take_reading().transpose()
    }

    fn take_reading(&mut self) -> Option<Result<ReadAnswer, SessionError>> {
        let (_, answer) = self.reading.take_if(|(_, answer)| answer.is_some())?;
        Some(match answer {
            None | Some(ReadAnswer::None) => Err(SessionError::NoAnswer),
            Some(answer) => Ok(answer),
        })
    }

    /// Ends the session, after all calls that were started.
    ///
    /// # Errors
    /// The socket failed. [`SessionError::Closed`] if the session has ended with a loss (protocol.md §3), because no
    /// later call could report the loss. If the head cannot be reached, this is no error: the session expires at the
    /// devices.
    pub fn end(mut self) -> Result<(), SessionError> {
        self.end_start()?;
        loop {
            match self.closed {
                None => self.block(self.until())?,
                Some(reason @ (Closed::DataLoss { .. } | Closed::TooFewCopies { .. })) => {
                    return Err(SessionError::Closed(reason));
                }
                Some(_) => return Ok(()),
            }
        }
    }

    /// Begins to end the session, as [`Session::end`] does, and does not wait. Afterwards [`Session::next`] returns the
    /// started calls, and finally [`Closed::Ended`] as an error.
    ///
    /// # Errors
    /// [`SessionError::Io`] if the socket failed.
    pub fn end_start(&mut self) -> Result<(), SessionError> {
        self.wake()?;
        self.endpoint.end(self.session, self.until());
        Ok(())
    }

    /// From now on, while a call blocks, `is_over` is called at each signal and several times a second. If `is_over`
    /// returns true, the call ends with [`SessionError::Interrupted`]. [`Session::next`] does not call `is_over`,
    /// because `next` returns at each signal.
    pub fn give_up_if(&mut self, is_over: impl FnMut() -> bool + Send + 'static) {
        self.give_up = Some(GiveUp(Box::new(is_over)));
    }

    /// Waits for packets during a call that blocks.
    fn block(&mut self, until: Time) -> Result<(), SessionError> {
        let until = match &self.give_up {
            Some(_) => self.after(PATIENCE).min(until),
            None => until,
        };
        let slept = self.turn(until)?;
        if let Some(GiveUp(is_over)) = &mut self.give_up
            && (slept == Slept::Signal || self.clock.now() >= until)
            && is_over()
        {
            return Err(SessionError::Interrupted);
        }
        Ok(())
    }

    /// Waits for the end of a call that blocks. If the operating system fails meanwhile, or the caller gives up, the
    /// call stays in flight. The end of this call must not be taken for the end of the next call.
    fn wait(&mut self, call: CallId) -> Result<Answer, SessionError> {
        self.calls.insert(call, None);
        loop {
            if let Some((_, result)) = self.own.take_if(|(ended, _)| *ended == call) {
                self.arm()?;
                return result;
            }
            if let Err(error) = self.block(self.until()) {
                self.calls.remove(&call);
                self.doubtful = true;
                return Err(error);
            }
        }
    }

    /// Handles an event.
    fn note(&mut self, event: Event) {
        match event {
            Event::Done { call, outcome, .. } => {
                let Some(token) = self.calls.remove(&call) else {
                    return;
                };
                let result = match outcome {
                    Outcome::Committed { copies } => Ok(Answer::Committed(copies)),
                    Outcome::Reply(reply) => {
                        self.doubtful = false;
                        Ok(Answer::Reply(reply))
                    }
                    Outcome::Failed(reason) => Err(SessionError::Failed(reason)),
                    Outcome::Unknown => {
                        self.doubtful = true;
                        Err(SessionError::Unknown)
                    }
                };
                match token {
                    Some(token) => self.finished.push_back(Finished { token, result }),
                    None => self.own = Some((call, result)),
                }
            }
            Event::Read { call, answer } => {
                if let Some((asked, kept)) = &mut self.reading
                    && *asked == call
                {
                    *kept = Some(answer);
                }
            }
            Event::SessionClosed { session, reason } if session == self.session => {
                self.closed = Some(reason);
            }
            _ => {}
        }
    }

    /// Sends and receives. If no packet has arrived, waits for packets until `until`.
    fn turn(&mut self, until: Time) -> Result<Slept, SessionError> {
        let slept = self.wait_for_packets(until)?;
        while let Some(event) = self.endpoint.poll_event() {
            self.note(event);
        }
        Ok(slept)
    }

    fn wait_for_packets(&mut self, until: Time) -> Result<Slept, SessionError> {
        let now = self.clock.now();
        self.endpoint.flush(now)?;
        if self.endpoint.take_other_socket()
            && let Some(polled) = &self.polled
        {
            polled.add(self.endpoint.as_fd())?;
        }
        let (received, _) = self.endpoint.receive(now)?;
        if received > 0 || until <= now {
            // The received packets may allow more packets to be sent.
            self.endpoint.flush(now)?;
            return Ok(Slept::Enough);
        }
        let next = self
            .endpoint
            .next_timeout()
            .map_or(until, |at| at.min(until));
        let timeout = Timespec::try_from(Duration::from_nanos(next.since(now))).ok();
        let socket = self.endpoint.as_fd();
        let slept = match poll(&mut [PollFd::new(&socket, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) => Slept::Enough,
            Err(rustix::io::Errno::INTR) => Slept::Signal,
            Err(error) => return Err(SessionError::Io(error.into())),
        };
        self.endpoint.receive(self.clock.now())?;
        Ok(slept)
    }

    /// Sets the polled descriptor's timer to the next due time. If a call has already ended, this time is now.
    fn arm(&mut self) -> io::Result<()> {
        let Some(polled) = &mut self.polled else {
            return Ok(());
        };
        let next = if self.finished.is_empty() {
            self.endpoint.next_timeout()
        } else {
            Some(Time(0))
        };
        polled.set(next, self.clock.now())
    }
}
