//! Shares of fronts in the log and in the table of sessions (`docs/spec/protocol.md` §4, "Shares").

use super::keys::{front_named, hop_key, keyed, sealed, serving_with};
use super::support::device::{Bench, ROOM, client, from_client, from_hop, server};
use super::support::{SHARD, Sent, only};
use pmnet_proto::device::{DeviceConfig, Room, Verdict};
use pmnet_proto::time::SECOND;
use pmnet_wire::packet::{Identity, LetGo, Nack, NotLogged};
use pmnet_wire::{FrontKey, Header, Kind, MacKey};

/// Number of entries that the log can hold.
const ENTRIES: u64 = 64;

/// A session of a front, with its client's state.
struct Client {
    front: FrontKey,
    token: u64,
    session: u64,
    seq: u64,
}

impl Client {
    /// The tokens are even, because an odd token belongs to a mark.
    fn new(front: &str, number: u64) -> Client {
        Client {
            front: front_named(front),
            token: 0x1_0000 + 2 * number,
            session: 0,
            seq: 0,
        }
    }

    fn key(&self) -> MacKey {
        self.front.session(SHARD, self.token).to_head
    }

    fn identity(&self) -> Vec<u8> {
        let front = Some(self.front.id());
        let token = self.token;
        Identity { token, front }.write().to_vec()
    }

    fn open(&self) -> (Header, Vec<u8>) {
        let open = Header {
            session: 0,
            tag: 0,
            ..from_client(Kind::Open, 0)
        };
        let said = self.identity();
        (sealed(self.key(), &open, &said), said)
    }

    fn packet(&self, kind: Kind) -> Header {
        let header = Header {
            session: self.session,
            ..from_client(kind, self.seq + 1)
        };
        sealed(self.key(), &header, b"")
    }
}

/// A head that is alone in its chain, with a log of [`ENTRIES`].
struct Head {
    bench: Bench,
}

impl Head {
    fn new(config: DeviceConfig) -> Head {
        let bench = serving_with(1, config, &[]);
        let mut head = Head { bench };
        head.turn();
        head
    }

    fn with_sessions(sessions_max: usize) -> Head {
        Head::new(DeviceConfig {
            sessions_max,
            ..keyed(1, 1)
        })
    }

    fn room(&self) -> Room {
        let (last, _, _, applied) = self.bench.device.cursors();
        Room {
            entries: ENTRIES - (last - applied),
            entries_max: ENTRIES,
            ..ROOM
        }
    }

    /// Ends a burst as the node does, and returns the sent packets.
    fn turn(&mut self) -> Vec<Sent> {
        let (last, ..) = self.bench.device.cursors();
        self.bench.tick();
        self.bench.room = self.room();
        let (now, room) = (self.bench.now, self.bench.room);
        while self.bench.device.poll_own_entry(now, room).is_some() {}
        let (own, ..) = self.bench.device.cursors();
        self.bench.device.persisted(last.max(own));
        self.bench.room = self.room();
        self.bench.device.weigh(now, self.bench.room);
        self.bench.finish()
    }

    /// The server has applied this many more entries.
    fn apply(&mut self, entries: u64) {
        let (.., applied) = self.bench.device.cursors();
        let order = applied + entries;
        let applied = Header {
            order,
            tag: 0,
            ..from_hop(Kind::Applied, 0)
        };
        let applied = sealed(hop_key(0), &applied, b"");
        self.bench.answer(server(), &applied, b"");
        self.turn();
    }

    /// The client begins its session, or is refused.
    fn begin(&mut self, who: &mut Client) -> Result<(), NotLogged> {
        let (open, said) = who.open();
        match self.bench.give(client(), &open, &said) {
            Verdict::Append(entry) => {
                who.session = entry.order;
                self.turn();
                Ok(())
            }
            other => {
                assert_eq!(other, Verdict::Done);
                let sent = only(self.bench.take());
                self.turn();
                assert_eq!(sent.header.kind, Kind::NotLogged);
                Err(NotLogged::read(&sent.header))
            }
        }
    }

    /// The client sends an update, in a burst of its own. False: the update was refused.
    fn write(&mut self, who: &mut Client) -> bool {
        self.send(who, Kind::Update)
    }

    fn send(&mut self, who: &mut Client, kind: Kind) -> bool {
        let verdict = self.bench.give(client(), &who.packet(kind), b"");
        let admitted = matches!(verdict, Verdict::Append(_));
        if admitted {
            who.seq += 1;
        } else {
            let refused = only(self.bench.take());
            assert_eq!(refused.header.kind, Kind::NotLogged);
        }
        self.turn();
        admitted
    }

    /// Sends updates until an update is refused; returns the number of admitted updates.
    fn flood(&mut self, who: &mut Client) -> u64 {
        (0..).take_while(|_| self.write(who)).count() as u64
    }
}

fn opened(head: &mut Head, front: &str, number: u64) -> Client {
    let mut client = Client::new(front, number);
    head.begin(&mut client).expect("there is room");
    client
}

#[test]
fn one_front_alone_may_use_the_whole_log() {
    let mut head = Head::new(keyed(1, 1));
    let mut alone = opened(&mut head, "flood", 1);
    assert_eq!(head.flood(&mut alone), ENTRIES - 1, "besides its OPEN");
    assert_eq!(head.bench.device.counters().over_share, 0);
}

#[test]
fn a_front_that_floods_leaves_the_others_their_share() {
    let mut head = Head::new(keyed(1, 1));
    let mut others = opened(&mut head, "web", 1);
    let mut floods: Vec<_> = (2..6).map(|at| opened(&mut head, "flood", at)).collect();
    let admitted: u64 = floods.iter_mut().map(|one| head.flood(one)).sum();
    // The log also holds five OPENs. A front that holds half of the log gets nothing of the log's last quarter.
    assert_eq!(admitted, ENTRIES * 3 / 4 - 5);
    assert!(head.bench.device.counters().over_share >= 4);
    let all = head.bench.device.most_over_share();
    assert_eq!(all.expect("refused").0, front_named("flood").id());
    // The other front gets the free entries, and all entries that become free, until it holds half of the log.
    let mut held = 1;
    for _turn in 0..ENTRIES {
        while head.write(&mut others) {
            held += 1;
        }
        if held >= ENTRIES / 2 {
            break;
        }
        assert!(!floods.iter_mut().any(|one| head.write(one)));
        head.apply(1);
        held -= u64::from(head.bench.device.cursors().3 == 1);
    }
    assert_eq!(held, ENTRIES / 2);
    // When entries of the flood are applied, the flood gets only what the other front leaves free.
    let before = head.bench.device.counters().admitted;
    for _turn in 0..4 {
        head.apply(1);
        floods.iter_mut().for_each(|one| {
            head.flood(one);
        });
    }
    let more = head.bench.device.counters().admitted - before;
    assert!(more <= 4, "{more}");
}

/// An END frees a place in the table, and each session has only one END in the log. So an END is admitted even if its
/// front is over its share.
#[test]
fn an_end_of_a_front_over_its_share_is_taken() {
    let mut head = Head::new(keyed(1, 1));
    let _others = opened(&mut head, "web", 1);
    let mut flood = opened(&mut head, "flood", 2);
    head.flood(&mut flood);
    assert!(head.send(&mut flood, Kind::End));
}

/// Regression of a first draft: if one front had filled the log alone, another front's first OPEN was never admitted.
/// The second front held no entries, so the first front did not count as over its share.
#[test]
fn a_newcomer_gets_into_a_log_that_one_front_has_filled() {
    let mut head = Head::new(keyed(1, 1));
    let mut flood = opened(&mut head, "flood", 1);
    head.flood(&mut flood);
    let mut newcomer = Client::new("web", 2);
    assert!(head.begin(&mut newcomer).is_err(), "there is no room");
    head.apply(1);
    assert!(!head.write(&mut flood), "another front waits");
    head.begin(&mut newcomer)
        .expect("it has less than its share");
    // The newcomer has given up, so the first front may use the whole log again.
    let mut gone = Client::new("gone", 3);
    head.apply(1);
    assert!(head.begin(&mut gone).is_ok());
}

#[test]
fn who_waits_is_forgotten_when_it_does_not_come_again() {
    let mut head = Head::new(keyed(1, 1));
    let mut flood = opened(&mut head, "flood", 1);
    head.flood(&mut flood);
    assert!(head.begin(&mut Client::new("web", 2)).is_err());
    head.apply(1);
    assert!(!head.write(&mut flood));
    head.bench.now = head.bench.now + 10 * SECOND;
    head.turn();
    assert_eq!(head.flood(&mut flood), 1, "it is alone again");
}

#[test]
fn a_front_over_its_share_of_the_log_begins_no_session() {
    let mut head = Head::new(keyed(1, 1));
    let _others = opened(&mut head, "web", 1);
    let mut flood = opened(&mut head, "flood", 2);
    head.flood(&mut flood);
    let refused = head.begin(&mut Client::new("flood", 3));
    assert_eq!(refused.unwrap_err().why, 0, "not for want of a place");
    assert_eq!(head.bench.device.counters().over_share_opens, 1);
    head.begin(&mut Client::new("web", 4)).expect("another may");
}

#[test]
fn a_front_with_many_sessions_leaves_places_to_others() {
    let mut head = Head::with_sessions(16);
    let _others = opened(&mut head, "web", 1);
    let mut begun = 0;
    while head.begin(&mut Client::new("flood", 10 + begun)).is_ok() {
        begun += 1;
        head.apply(1);
    }
    assert_eq!(begun, 11, "with another front's one, three quarters of all");
    let counters = *head.bench.device.counters();
    assert_eq!((counters.over_share_opens, counters.crowded_opens), (1, 0));
    for number in 2..6 {
        opened(&mut head, "web", 100 + number);
    }
}

/// Sessions do not end by themselves. So for each session that the other front may have, the head ends a session of a
/// front that is over its share.
#[test]
fn a_newcomer_gets_places_of_a_front_that_has_them_all() {
    let mut head = Head::with_sessions(8);
    let floods: Vec<_> = (0..8)
        .map(|at| {
            head.apply(u64::from(at > 0));
            opened(&mut head, "flood", at)
        })
        .collect();
    let mut newcomer = Client::new("web", 100);
    let refused = head.begin(&mut newcomer).unwrap_err();
    assert_eq!(refused.why, NotLogged::CROWDED);
    let counters = head.bench.device.counters();
    assert_eq!(counters.over_share_sessions, 1);
    // The END of the first session is applied.
    head.apply(2);
    head.begin(&mut newcomer).expect("a place is free");
    let none = head.begin(&mut Client::new("flood", 200)).unwrap_err();
    assert_eq!(none.why, NotLogged::CROWDED, "not for who had it");
    // The client of the ended session is told the reason.
    let first = &floods[0];
    let ping = Header {
        session: first.session,
        ..from_client(Kind::Ping, 0)
    };
    let said = first.identity();
    let ping = sealed(first.key(), &ping, &said);
    let over = only(head.bench.answer(client(), &ping, &said));
    let why = Nack::read(&over.header).why;
    assert_eq!(LetGo::from_byte(why), Some(LetGo::OverShare));
}

/// A front for which no row is free shares a row with other fronts, and is served. A front that has entries or sessions
/// keeps its row.
#[test]
fn more_fronts_than_rows_are_served() {
    let mut head = Head::new(keyed(1, 1));
    for number in 0..100 {
        let name = format!("front-{number}");
        let mut client = opened(&mut head, &name, number);
        head.apply(1);
        assert!(head.write(&mut client), "{number}");
        head.apply(1);
    }
    assert_eq!(head.bench.device.sessions(), 100);
}

#[test]
fn without_keys_nobody_has_a_share() {
    let mut bench = Bench::head(1);
    bench.room = Room {
        entries: 1,
        entries_max: 2,
        ..ROOM
    };
    bench.device.weigh(bench.now, bench.room);
    bench.admit(&super::support::device::update(1), b"payload");
    assert_eq!(bench.device.counters().over_share, 0);
}
