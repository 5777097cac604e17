//! A queue of slots with simulated clients, a NIC and a log, and the promises to the clients.

use std::collections::{BTreeMap, VecDeque};

use pmnet_log::Identity;
use pmnet_log::slots::{Oldest, Outcome, Posting, SlotParameters, SlotQueue, SlotScan, format};

use crate::decide::{Found, Verdict, decide};
use crate::medium::{LINE, Medium};

pub const IDENTITY: Identity = Identity {
    log_uuid: 0x1234_5678_9abc_def0_0fed_cba9_8765_4321,
    device: 3,
    shard: 1,
};
pub const PARAMETERS: SlotParameters = SlotParameters {
    slots: 4,
    slot_bytes: 128,
};
pub const CLIENTS: usize = 2;

/// Identity of a message: session and seq.
pub type Id = (u64, u64);

fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Returns a message of two lines: session, seq, checksum of all bytes, and a payload.
pub fn message((session, seq): Id) -> [u8; 2 * LINE] {
    let mut out = [0x55; 2 * LINE];
    out[..8].copy_from_slice(&session.to_le_bytes());
    out[8..16].copy_from_slice(&seq.to_le_bytes());
    out[16..20].fill(0);
    out[LINE..LINE + 8].copy_from_slice(&(session * 1000 + seq).to_le_bytes());
    let sum = crc(&out);
    out[16..20].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Contents of a slot, as a receiver reads them.
pub fn found(slot: &[u8]) -> Found {
    let mut blank = slot.to_vec();
    blank[16..20].fill(0);
    let word = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().unwrap());
    let sum = u32::from_le_bytes(slot[16..20].try_into().unwrap());
    if crc(&blank) != sum || word(8) == 0 {
        return Found::Nothing;
    }
    Found::Message {
        session: word(0),
        seq: word(8),
    }
}

pub fn blank() -> Medium {
    Medium::holding(vec![0; PARAMETERS.image_bytes()])
}

pub fn formatted() -> Medium {
    let mut medium = blank();
    format(&mut medium, IDENTITY, PARAMETERS).unwrap();
    medium
}

/// Connection of a client: the next message that it sends, and the NIC's state of the connection.
#[derive(Clone, Debug, Default)]
struct Connection {
    next: u64,
    /// Slot into which the message is being received, and which of its lines have arrived.
    taking: Option<(Posting, [bool; 2])>,
    placed: Vec<(u64, Posting)>,
}

/// When a message was first begun, and when it was acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    begun: u64,
    acknowledged: Option<u64>,
}

#[derive(Debug)]
pub struct World {
    pub queue: SlotQueue<Medium>,
    posted: VecDeque<Posting>,
    connections: [Connection; CLIENTS],
    completions: Vec<(u64, u32, Outcome)>,
    /// The entered messages, in order. The first `durable` of them are durable.
    log: Vec<Id>,
    durable: usize,
    /// Number of processed messages when the whole log was last durable. The cursor may rise to this number.
    entered: u64,
    times: BTreeMap<Id, Times>,
    clock: u64,
    /// Number of times that a later slot was complete while the oldest slot was open.
    pub overtaken: u64,
    pub holes: u64,
}

fn session(client: usize) -> u64 {
    u64::try_from(client).unwrap() + 7
}

impl World {
    /// Begins a run on this medium, with this log, all of which is durable.
    pub fn begin(medium: Medium, log: Vec<Id>, before: Option<World>) -> World {
        let queue = SlotScan::open(medium, Some(IDENTITY))
            .unwrap()
            .begin()
            .unwrap();
        let entered = queue.processed();
        let mut world = World {
            queue,
            posted: VecDeque::new(),
            connections: Default::default(),
            completions: Vec::new(),
            durable: log.len(),
            log,
            entered,
            times: BTreeMap::new(),
            clock: 0,
            overtaken: 0,
            holes: 0,
        };
        if let Some(before) = before {
            world.times = before.times;
            world.clock = before.clock;
            world.overtaken = before.overtaken;
            world.holes = before.holes;
        }
        for client in 0..CLIENTS {
            world.connect(client);
        }
        world
    }

    fn connect(&mut self, client: usize) {
        let mut next = 1;
        while self.acknowledged((session(client), next)) {
            next += 1;
        }
        self.connections[client] = Connection {
            next,
            ..Connection::default()
        };
    }

    fn acknowledged(&self, id: Id) -> bool {
        self.times
            .get(&id)
            .is_some_and(|times| times.acknowledged.is_some())
    }

    /// Carries out the event that `choice` stands for, if it is possible now.
    pub fn step(&mut self, choice: u64) {
        self.clock += 1;
        let client = usize::from(choice & 1 == 1);
        match choice / 2 % 16 {
            0..=2 => self.take(client),
            3..=6 => self.write(client, choice / 32 % 2 == 1),
            7 => self.drain(client),
            8 | 9 => self.complete(choice / 32),
            10 | 11 => self.hand_on(),
            12 => self.persist_log(),
            13 => self.keep(choice / 32 % 2 == 1),
            14 => self.post(),
            _ if (choice / 32).is_multiple_of(4) => self.cut(client),
            _ => self.post(),
        }
    }

    fn take(&mut self, client: usize) {
        if self.connections[client].taking.is_some() {
            return;
        }
        let Some(posting) = self.posted.pop_front() else {
            return;
        };
        let connection = &mut self.connections[client];
        let id = (session(client), connection.next);
        connection.taking = Some((posting, [false; 2]));
        let begun = self.clock;
        self.times.entry(id).or_insert(Times {
            begun,
            acknowledged: None,
        });
    }

    fn write(&mut self, client: usize, second: bool) {
        let connection = &mut self.connections[client];
        let Some((posting, lines)) = &mut connection.taking else {
            return;
        };
        let bytes = message((session(client), connection.next));
        let line = usize::from(if lines.contains(&true) {
            lines[0]
        } else {
            second
        });
        lines[line] = true;
        let part = line * LINE..(line + 1) * LINE;
        let start = posting.place.start + part.start;
        pmnet_log::Media::store(self.queue.media_mut(), start, &bytes[part]);
        if *lines == [true; 2] {
            let (posting, _) = connection.taking.take().expect("it is being received");
            let from = u32::try_from(client).unwrap();
            let outcome = Outcome::Message(u32::try_from(bytes.len()).unwrap());
            self.completions.push((posting.number, from, outcome));
            connection.placed.push((connection.next, posting));
            connection.next += 1;
        }
    }

    /// Makes all placed messages of a client durable, as a NIC does by a read after its writes. Then the NIC
    /// acknowledges the messages.
    fn drain(&mut self, client: usize) {
        for (seq, posting) in std::mem::take(&mut self.connections[client].placed) {
            // If the slot was posted again, its message is durable in the log.
            let bytes = message((session(client), seq));
            let medium = self.queue.media_mut();
            if pmnet_log::Media::bytes(medium)[posting.place.clone()] == bytes {
                medium.drain(posting.place);
            }
            let clock = self.clock;
            let times = self.times.get_mut(&(session(client), seq)).unwrap();
            times.acknowledged.get_or_insert(clock);
        }
    }

    fn cut(&mut self, client: usize) {
        if let Some((posting, _)) = self.connections[client].taking.take() {
            let from = u32::try_from(client).unwrap();
            self.completions
                .push((posting.number, from, Outcome::Error));
        }
        self.connect(client);
    }

    fn complete(&mut self, choice: u64) {
        if self.completions.is_empty() {
            return;
        }
        let count = u64::try_from(self.completions.len()).unwrap();
        let at = usize::try_from(choice % count).unwrap();
        let (number, from, outcome) = self.completions.swap_remove(at);
        self.queue.complete(number, from, outcome).unwrap();
        self.overtaken += u64::from(self.queue.blocked().is_some());
    }

    fn hand_on(&mut self) {
        match self.queue.oldest() {
            None => return,
            Some(Oldest::Hole { .. }) => self.holes += 1,
            Some(Oldest::Message { bytes, .. }) => {
                let Found::Message { session, seq } = found(bytes) else {
                    panic!("a completion without a message");
                };
                assert_eq!(bytes, message((session, seq)));
                if seq == self.last(session) + 1 {
                    self.log.push((session, seq));
                }
            }
        }
        self.queue.advance();
    }

    fn last(&self, session: u64) -> u64 {
        last(&self.log, session)
    }

    fn persist_log(&mut self) {
        self.durable = self.log.len();
        self.entered = self.queue.processed();
    }

    fn keep(&mut self, end: bool) {
        let begun = self.queue.keep_start(self.entered).unwrap();
        if end || !begun {
            assert!(self.queue.keep_poll(true).unwrap());
        }
    }

    fn post(&mut self) {
        self.posted.extend(self.queue.post());
    }

    /// Recovers from every image that a crash may leave, with the shortest possible log and with the whole log. Returns
    /// the number of images, and one image with the resulting log.
    pub fn crash(&mut self, pick: u64) -> (usize, Medium, Vec<Id>) {
        let images = self.queue.media_mut().images();
        let count = images.len();
        let chosen = usize::try_from(pick).unwrap() % count;
        let mut left = None;
        for (at, image) in images.into_iter().enumerate() {
            for log in [&self.log[..self.durable], &self.log[..]] {
                let after = self.recover(&image, log, at % 8 == chosen % 8);
                if at == chosen {
                    left = Some((Medium::holding(image.clone()), after));
                }
            }
        }
        let (medium, log) = left.expect("one was chosen");
        (count, medium, log)
    }

    fn recover(&self, image: &[u8], log: &[Id], again: bool) -> Vec<Id> {
        let scan = SlotScan::open(Medium::holding(image.to_vec()), Some(IDENTITY)).unwrap();
        let log = entered(&scan, log);
        self.check(&log);
        if !again {
            return log;
        }
        // While the cursor is written there is another crash. No message may count twice.
        let queue = scan.begin().unwrap();
        for image in queue.into_media().images() {
            let scan = SlotScan::open(Medium::holding(image), None).unwrap();
            let second = entered(&scan, &log);
            assert!(second.starts_with(&log));
            self.check(&second);
        }
        log
    }

    fn check(&self, log: &[Id]) {
        let at = |id: &Id| log.iter().position(|other| other == id);
        for (id, times) in &self.times {
            let Some(acknowledged) = times.acknowledged else {
                continue;
            };
            let place = at(id).unwrap_or_else(|| panic!("{id:?} was acknowledged and is lost"));
            for (later, other) in &self.times {
                if other.begun > acknowledged && at(later).is_some_and(|after| after < place) {
                    panic!("{later:?} was begun behind the acknowledgement of {id:?}: {log:?}");
                }
            }
        }
        for id in log {
            assert!(self.times.contains_key(id), "nobody sent {id:?}");
            assert_eq!(log.iter().filter(|other| *other == id).count(), 1);
        }
    }
}

fn last(log: &[Id], session: u64) -> u64 {
    let of = log.iter().filter(|(of, _)| *of == session);
    of.map(|(_, seq)| *seq).max().unwrap_or(0)
}

/// Returns the log, followed by all messages in the slots that count.
fn entered(scan: &SlotScan<Medium>, log: &[Id]) -> Vec<Id> {
    let slots: Vec<Found> = scan.slots().map(found).collect();
    let mut table: BTreeMap<u64, u64> = (0..CLIENTS)
        .map(|client| (session(client), last(log, session(client))))
        .collect();
    let verdicts = decide(&slots, &mut table);
    let new = slots.iter().zip(verdicts);
    let new = new.filter_map(|(found, verdict)| match (found, verdict) {
        (Found::Message { session, seq }, Verdict::Enter) => Some((*session, *seq)),
        _ => None,
    });
    log.iter().copied().chain(new).collect()
}
