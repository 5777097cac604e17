//! Drives a log through the operations of a script, and records its promises.

use std::sync::Arc;

use pmnet_log::{FrameSpace, Full, Log, LogError, NewEntry, Parameters, Scan, format};

use crate::medium::{Event, Recorder, State, Tape};
use crate::promise::{Content, Made, Promise};
use crate::support::{EXPECTED, IDENTITY, Random};

/// The smallest possible logs. They soon use their space again.
pub const LOGS: [Parameters; 2] = [
    Parameters::ring(ENTRIES, 4096),
    Parameters::buffers(ENTRIES, 16 * 2048, 2048),
];
pub const ENTRIES: u64 = 64;

/// One operation of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Make a log.
    Format,
    /// Scan, decide, repair.
    Recover,
    /// Append this many frames with payloads of this many bytes, or fewer if the log is full.
    Append(u64, usize),
    /// Append one update in this many fragments of this many bytes each.
    Fragments(u16, usize),
    /// Begin a persist.
    Start,
    /// Poll the persist. On this medium a persist never completes without waiting.
    Poll,
    /// Wait for the persist.
    Wait,
    /// `Start`, then `Wait`.
    Persist,
    /// Reclaim all durable orders except this number of the last ones.
    ReclaimBut(u64),
    /// Raise the epoch by this number.
    Epoch(u32),
    /// Set a lower epoch, then the current epoch. Both steps must have no effect.
    StaleEpoch,
    /// Discard all entries, and continue this many orders after the last order (negative: before it).
    Reset(i64),
    /// Clean shutdown.
    Close,
    /// The process dies. All its stores stay visible. With a seed, only some of them stay visible, which the seed
    /// chooses.
    Kill(Option<u64>),
    /// Power is lost. Each line that was not settled has its oldest possible content. With a seed, it has one of its
    /// possible contents, which the seed chooses.
    Power(Option<u64>),
}

/// A log on a recorder, and the current promise.
#[derive(Debug)]
pub struct Driver {
    /// State of the medium at the beginning of the tape.
    pub initial: State,
    parameters: Parameters,
    tape: Tape,
    events: Vec<Event>,
    image: Option<Vec<u8>>,
    log: Option<Log<Recorder>>,
    pub promise: Promise,
}

/// The result of a driver's run.
pub struct Recording {
    pub initial: State,
    pub events: Vec<Event>,
    /// Number of persists that the media counted.
    pub persists: u64,
}

impl Driver {
    /// Returns a driver over a medium in this state. `promise`: the promise that the log in it must already keep.
    pub fn new(initial: State, parameters: Parameters, promise: Promise) -> Driver {
        Driver {
            parameters,
            image: Some(initial.visible()),
            initial,
            tape: Tape::default(),
            events: Vec::new(),
            log: None,
            promise,
        }
    }

    pub fn log(&self) -> Option<&Log<Recorder>> {
        self.log.as_ref()
    }

    /// Returns the recording of everything that happened.
    pub fn finish(mut self) -> Recording {
        self.release();
        Recording {
            initial: self.initial,
            events: self.events,
            persists: self.tape.persists(),
        }
    }

    fn promised(&mut self) {
        self.tape
            .push(Event::Promise(Arc::new(self.promise.clone())));
    }

    fn medium(&mut self) -> Recorder {
        Recorder::new(
            self.image.take().expect("the medium is not in use"),
            Some(self.tape.clone()),
        )
    }

    /// Takes the medium back from the log.
    fn release(&mut self) {
        if let Some(log) = self.log.take() {
            self.image = Some(log.into_media().into_image());
        }
        self.events.append(&mut self.tape.take());
    }

    /// Returns the present state of the medium: all contents that it may have.
    pub fn state(&mut self) -> State {
        self.events.append(&mut self.tape.take());
        let mut state = self.initial.clone();
        for event in &self.events {
            state.apply(event);
        }
        state
    }

    /// Scans, decides and repairs. `Ok(false)`: the image was refused, and the promise allows this.
    pub fn recover(&mut self) -> Result<bool, String> {
        let medium = self.medium();
        let repaired = Scan::open(medium, Some(EXPECTED)).and_then(|scan| {
            let decision = scan.decide();
            scan.repair(decision)
        });
        match repaired {
            Ok(log) => {
                self.promise.check(&log)?;
                self.promise.adopt(&log);
                self.log = Some(log);
                self.promised();
                Ok(true)
            }
            Err(error) => {
                self.events.append(&mut self.tape.take());
                let untouched = self
                    .events
                    .iter()
                    .all(|event| !matches!(event, Event::Store(..)));
                if self.promise.may_refuse(&error) && untouched {
                    return Ok(false);
                }
                Err(format!(
                    "refused ({error}), untouched: {untouched}, {:?}",
                    self.promise.facts
                ))
            }
        }
    }

    /// Runs one operation. The step's promise is on the tape when this call returns.
    pub fn step(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Format => self.format(),
            Op::Recover => self
                .recover()?
                .then_some(())
                .ok_or("a script recovers only what can be recovered".into()),
            Op::Kill(seed) => {
                self.release();
                let mut random = Random(seed.unwrap_or(0));
                let left = self.state().killed(|count| match seed {
                    None => count,
                    Some(_) => random.index(count + 1),
                });
                self.crash(left);
                Ok(())
            }
            Op::Power(seed) => {
                self.release();
                let state = self.state();
                let mut random = Random(seed.unwrap_or(0));
                let lines: Vec<_> = state
                    .dirty_lines()
                    .into_iter()
                    .map(|line| {
                        let possible = state.possible(line);
                        let at = seed.map_or(0, |_| random.index(possible.len()));
                        (line, possible[at])
                    })
                    .collect();
                self.crash(State::clean(state.image(&lines)));
                Ok(())
            }
            Op::Close => self.close(),
            op => self.on_log(op),
        }
    }

    fn crash(&mut self, left: State) {
        self.image = Some(left.visible());
        self.events.push(Event::Crash(Box::new(left)));
    }

    fn format(&mut self) -> Result<(), String> {
        self.promise.facts.made = Made::Begun;
        self.promised();
        let mut medium = self.medium();
        let made = format(&mut medium, &IDENTITY, &self.parameters);
        self.image = Some(medium.into_image());
        made.map_err(|error| error.to_string())?;
        self.promise.facts.made = Made::Yes;
        self.promised();
        self.events.append(&mut self.tape.take());
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        let log = self.log.take().expect("the script has a log");
        let (applied, last) = (log.applied(), log.last());
        // The medium is dropped together with the log. The image can be computed from the tape.
        log.close().map_err(|error| error.to_string())?;
        let facts = &mut self.promise.facts;
        (facts.promised, facts.released, facts.stated) = (last, applied, last);
        self.promised();
        self.release();
        let image = self.state().visible();
        self.image = Some(image.clone());
        let report = Scan::open(Recorder::new(image, None), Some(EXPECTED))
            .map(|scan| scan.report().clone())
            .map_err(|error| error.to_string())?;
        if (report.applied_hint, report.durable_hint) != (applied, last) {
            return Err(format!("closed at {applied}, {last}: {report:?}"));
        }
        Ok(())
    }

    fn on_log(&mut self, op: Op) -> Result<(), String> {
        let mut log = self.log.take().expect("the script has a log");
        let done = self.with(&mut log, op);
        if done.is_ok() {
            self.promise.facts.released = log.tail().released;
            self.promised();
            while let Some(number) = log.poll_released() {
                log.give_back_buffer(number);
            }
        }
        self.log = Some(log);
        done
    }

    fn with(&mut self, log: &mut Log<Recorder>, op: Op) -> Result<(), String> {
        let told = |error: LogError| error.to_string();
        match op {
            Op::Append(count, len) => {
                for _ in 0..count {
                    if !self.append(log, len, (0, 1)) {
                        break;
                    }
                }
            }
            Op::Fragments(count, len) => {
                for index in 0..count {
                    if !self.append(log, len, (index, count)) {
                        break;
                    }
                }
            }
            Op::Start => {
                log.persist_start().map_err(told)?;
            }
            Op::Poll | Op::Wait => {
                log.persist_poll(op == Op::Wait).map_err(told)?;
            }
            Op::Persist => {
                log.persist_start().map_err(told)?;
                log.persist_poll(true).map_err(told)?;
            }
            Op::ReclaimBut(kept) => log.reclaim(log.durable().saturating_sub(kept)),
            Op::Epoch(by) => {
                self.promise.facts.epoch_tried = log.epoch() + by;
                self.promised();
                log.set_epoch(log.epoch() + by).map_err(told)?;
                self.promise.facts.epoch = log.epoch();
                log.mark_served().map_err(told)?;
                self.promise.facts.served = log.served();
                self.promise.facts.stated = log.durable();
            }
            Op::StaleEpoch => {
                log.set_epoch(log.epoch()).map_err(told)?;
                if log.epoch() > 0 && log.set_epoch(log.epoch() - 1).is_ok() {
                    return Err("a lower epoch was taken".into());
                }
            }
            Op::Reset(by) => {
                let target = log.last().saturating_add_signed(by);
                self.promise.facts.resetting = Some(target);
                self.promised();
                log.reset_to(target).map_err(told)?;
                self.promise.reset(target);
            }
            Op::Format | Op::Recover | Op::Close | Op::Kill(_) | Op::Power(_) => {
                unreachable!("done without a log")
            }
        }
        self.promise.facts.promised = log.durable();
        self.promise.facts.applied = self.promise.facts.applied.max(log.applied());
        Ok(())
    }

    fn append(&mut self, log: &mut Log<Recorder>, len: usize, fragment: (u16, u16)) -> bool {
        let order = log.last() + 1;
        let stamp = self.promise.facts.contents << 16 | u64::from(log.incarnation());
        let mut random = Random(stamp);
        let header = [order.to_le_bytes(), stamp.to_le_bytes()].concat();
        let payload = random.bytes(len);
        let new = NewEntry {
            session: random.next(),
            seq: random.next(),
            kind: 1,
            fragment_index: fragment.0,
            fragment_count: fragment.1,
        };
        let content = Content {
            new,
            frame: [&header[..], &payload].concat(),
            header_len: header.len(),
            epoch: log.epoch(),
            incarnation: log.incarnation(),
            durable: log.durable(),
            applied: log.applied(),
        };
        let before = self.promise.clone();
        self.promise.insert(order, content);
        self.promise.facts.last = order;
        self.promised();
        let crc = crc32c::crc32c(&payload);
        let buffers = self.parameters.space != FrameSpace::Ring;
        // Two of three frames stay in the buffer into which they were received.
        let lent = (buffers && !order.is_multiple_of(3))
            .then(|| log.lend_buffer())
            .flatten();
        let appended = match lent {
            None => log.append(&new, &header, &payload, crc),
            Some(number) => {
                let start = usize::try_from(number).unwrap() * 2048 + random.index(600);
                let came = [&vec![0xaa; header.len()][..], &payload].concat();
                log.deposit(start, &came);
                let appended =
                    log.append_in_place(&new, &header, &(start..start + came.len()), crc);
                if appended.is_err() {
                    log.give_back_buffer(number);
                }
                appended
            }
        };
        match appended {
            Ok(given) => {
                assert_eq!(given, order, "orders are dense");
                true
            }
            Err(full) => {
                assert_ne!(full, Full::TooLarge, "scripts append what can fit");
                self.promise = before;
                // A refused append changes nothing, but the number of changes must stay unique.
                self.promise.facts.contents += 1;
                false
            }
        }
    }
}
