//! Commands of a client: where each goes.

use bytes::{Buf, Bytes, BytesMut};
use pmnet_resp::{Arguments, Parser, ProtocolError, Status, reply, write_bulk, write_header};

use super::answer::{OUT_BYTES_SOFT_MAX, Slot, Wait, shard_of_cursor};
use super::client::{Client, Common, Done, HOME, Trust};
use super::cluster;
use super::link::{KEPT_BYTES_MAX, Owed};
use super::merge::Merge;
use super::route::{CROSSSLOT, Kind, Place, kind, place_of, server_of};
use crate::client::SLOTS_MAX;
use crate::limits::REQUESTS;
use crate::table::Verdict;

impl Client {
    /// Takes whole commands, as long as there is room for what they bring. Whether it took any.
    pub(super) fn take_commands(&mut self, budget: &mut usize, common: &mut Common) -> bool {
        let mut input = std::mem::take(&mut self.input);
        let mut parser = std::mem::replace(&mut self.parser, Parser::new(REQUESTS));
        let mut any = false;
        while *budget > 0 && self.may_take() {
            match parser.poll_of(&input, self.trust != Trust::Yes) {
                Ok(Status::Complete) => {}
                Ok(Status::Incomplete) => {
                    self.starved = true;
                    break;
                }
                Err(ProtocolError::StrangerBulk | ProtocolError::StrangerMultibulk)
                    if self.refused.is_none() =>
                {
                    // It may be none.
                    if self.probe(common) == Done::Taken {
                        // It cannot be asked, and has been told so.
                        (self.ending, self.lingers) = (true, true);
                        input.clear();
                    }
                    break;
                }
                Err(error) => {
                    self.wait_for(Wait::Ready(reply::error(&format!("ERR {error}"))));
                    (self.ending, self.lingers) = (true, true);
                    input.clear();
                    break;
                }
            }
            let arguments = parser.arguments(&input);
            let slots = self.slots.len();
            if !arguments.is_empty() {
                match self.command(&arguments, parser.frame(&input), common) {
                    Done::Later => break,
                    Done::Taken => {}
                }
            }
            // That of RESET is always sent, as everything behind it is.
            let silent = (self.silent || self.skip) && !arguments.is(0, "RESET");
            for slot in self.slots.iter_mut().skip(slots) {
                slot.silent = silent;
            }
            if !arguments.is_empty() {
                self.skip = std::mem::take(&mut self.skips_next);
            }
            input.advance(parser.consume());
            *budget -= 1;
            any = true;
        }
        if input.is_empty() && input.capacity() > KEPT_BYTES_MAX {
            input = BytesMut::new();
        }
        (self.input, self.parser) = (input, parser);
        any
    }

    /// Whether the next command may be looked at.
    fn may_take(&self) -> bool {
        let changes = |slot: &Slot| matches!(slot.wait, Wait::State(_));
        !self.ending
            && !self.probing
            && !self.starved
            && self.slots.len() < SLOTS_MAX
            && self.out.len() <= OUT_BYTES_SOFT_MAX
            && !self.slots.back().is_some_and(changes)
    }

    /// A command, which has at least a name.
    pub(super) fn command(
        &mut self,
        arguments: &Arguments<'_>,
        frame: &[u8],
        common: &mut Common,
    ) -> Done {
        let verdict = common.table.verdict(arguments);
        let kind = kind(&verdict, arguments);
        if let Some(done) = self.as_subscriber(&kind, arguments) {
            return done;
        }
        if kind == Kind::Quit {
            self.wait_for(Wait::Ready(reply::OK));
            self.ending = true;
            return Done::Taken;
        }
        if self.transaction.is_some() {
            return self.in_transaction(&kind, &verdict, arguments, frame, common);
        }
        match kind {
            Kind::Keys => self.by_keys(&verdict, arguments, frame, common),
            Kind::Home | Kind::Exec | Kind::Discard => {
                self.forward(HOME, frame, Wait::One(HOME), common)
            }
            Kind::All(merge) => self.everywhere(merge, frame, common),
            Kind::Scan => self.scan(arguments, common),
            Kind::State => self.change_state(arguments, frame, common),
            Kind::Reply => self.reply(arguments, common),
            Kind::Subscribe => self.subscribe(arguments, frame, common),
            Kind::Publish => self.publish(arguments, frame, common),
            Kind::Multi => self.begin_transaction(frame, common),
            Kind::Watch => self.watch(&verdict, arguments, frame, common),
            Kind::Unwatch => self.unwatch(frame, common),
            Kind::Cluster => self.cluster(arguments, common),
            Kind::Own(answer) => match place_of(&verdict, arguments) {
                // Redis looks at the slots first.
                Place::Cross => self.own(CROSSSLOT, common),
                _ => self.own(answer, common),
            },
            // Answered above.
            Kind::Quit => Done::Taken,
        }
    }

    fn by_keys(
        &mut self,
        verdict: &Verdict,
        arguments: &Arguments<'_>,
        frame: &[u8],
        common: &mut Common,
    ) -> Done {
        let shard = match place_of(verdict, arguments) {
            Place::Anywhere => HOME,
            Place::Cross => return self.own(CROSSSLOT, common),
            Place::Slot(slot) => match server_of(slot, &common.map) {
                Ok(shard) => {
                    self.last = shard;
                    shard
                }
                Err(error) => return self.own(error, common),
            },
        };
        self.forward(shard, frame, Wait::One(shard), common)
    }

    fn everywhere(&mut self, merge: Merge, frame: &[u8], common: &mut Common) -> Done {
        let shards = self.links.len();
        for shard in 0..shards {
            if let Err(done) = self.ready(shard, common) {
                return done;
            }
        }
        for shard in 0..shards {
            self.send(shard, frame, Owed::Client);
        }
        let merge = match merge {
            // Another shard each time.
            Merge::Found(_) => Merge::Found(self.next_begin()),
            other => other,
        };
        self.wait_for(Wait::All(merge, vec![None; shards]));
        Done::Taken
    }

    fn next_begin(&mut self) -> usize {
        self.last = (self.last + 1) % self.links.len();
        self.last
    }

    /// SCAN: the cursor says in which shard, and where there.
    fn scan(&mut self, arguments: &Arguments<'_>, common: &mut Common) -> Done {
        let digits = arguments.get(1);
        let cursor = std::str::from_utf8(digits)
            .ok()
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|text| text.parse().ok());
        let Some(cursor) = cursor else {
            return self.own(reply::error("ERR invalid cursor"), common);
        };
        let (shard, inner) = shard_of_cursor(cursor, self.links.len());
        let mut frame = Vec::new();
        write_header(&mut frame, arguments.len());
        for (at, argument) in arguments.iter().enumerate() {
            if at == 1 {
                write_bulk(&mut frame, inner.to_string().as_bytes());
            } else {
                write_bulk(&mut frame, argument);
            }
        }
        self.forward(shard, &frame, Wait::Scan(shard), common)
    }

    /// CLIENT REPLY: here, so that the fronts always answer.
    fn reply(&mut self, arguments: &Arguments<'_>, common: &mut Common) -> Done {
        if arguments.is(2, "ON") {
            // Its own reply is sent.
            let (silent, skip) = (self.silent, self.skip);
            (self.silent, self.skip) = (false, false);
            let done = self.own(reply::OK, common);
            if done == Done::Later {
                (self.silent, self.skip) = (silent, skip);
            }
            return done;
        }
        if arguments.is(2, "OFF") {
            self.silent = true;
        } else if arguments.is(2, "SKIP") {
            self.skips_next = !self.silent;
        } else {
            return self.own(reply::error("ERR syntax error"), common);
        }
        Done::Taken
    }

    fn cluster(&mut self, arguments: &Arguments<'_>, common: &mut Common) -> Done {
        let Some(at) = self.local_addr() else {
            self.done = true;
            return Done::Taken;
        };
        let answer = cluster::answer(arguments, &common.map, at, self.state.resp3);
        self.own(answer, common)
    }

    /// Of a client that is subscribed and speaks RESP2, little is taken.
    fn as_subscriber(&mut self, kind: &Kind, arguments: &Arguments<'_>) -> Option<Done> {
        if self.state.resp3 || matches!(kind, Kind::Subscribe | Kind::Quit) {
            return None;
        }
        if arguments.is(0, "RESET") && *kind == Kind::State {
            return None;
        }
        if self.is_changing() {
            return Some(Done::Later);
        }
        if !self.subscriptions.is_any() {
            return None;
        }
        let answer = if arguments.is(0, "PING") && arguments.len() <= 2 {
            let mut out = Vec::new();
            write_header(&mut out, 2);
            write_bulk(&mut out, b"pong");
            write_bulk(&mut out, arguments.get(1));
            Bytes::from(out)
        } else if let Kind::Own(error) = kind
            && error.starts_with(b"-ERR unknown command")
        {
            error.clone()
        } else {
            let name = crate::client::shown(arguments).to_ascii_lowercase();
            reply::error(&format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this \
                 context"
            ))
        };
        self.wait_for(Wait::Ready(answer));
        Some(Done::Taken)
    }
}
