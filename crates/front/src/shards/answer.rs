//! Handles the answers of the links, and sends the replies to a client.

use bytes::Bytes;

use super::client::{Client, Common};
use super::end::{How, When};
use super::link::Owed;
use super::replies::{Slot, Wait};
use super::scan;
use super::state::{Gained, Outcome};
use super::subscribe::{Change, Subscriptions};
use super::trust::Trust;
use crate::client::Replying;
use crate::client::info::with_lines;

const LOST: &[u8] = b"-ERR pmnet: the front of the shard closed the connection\r\n";

impl Client {
    /// Sends to the client everything that has come and is next in order. Returns whether anything was sent.
    pub(super) fn pump(&mut self, common: &Common) -> bool {
        let mut any = false;
        loop {
            let mut moved = false;
            for shard in 0..self.backs.len() {
                moved |= self.sweep(shard);
            }
            moved |= self.answer(common);
            self.note_lost();
            any |= moved;
            if !moved {
                return any;
            }
        }
    }

    /// Takes from a link the frames that need not wait for their place in the order of replies.
    fn sweep(&mut self, shard: usize) -> bool {
        let mut moved = false;
        while !self.replies.is_congested() {
            let resp3 = self.backs.state.resp3();
            let Some(link) = self.backs.link(shard) else {
                break;
            };
            match link.take_early(resp3, self.replies.is_idle()) {
                Some((None, frame)) => self.replies.tell(&frame),
                Some((Some(owed), frame)) => self.hear(shard, owed, frame),
                None => break,
            }
            moved = true;
        }
        moved
    }

    /// Handles a link's answer to a question of the router.
    fn hear(&mut self, shard: usize, owed: Owed, frame: Bytes) {
        let outcome = Outcome::of(&frame);
        match (owed, outcome) {
            (Owed::Setup, Outcome::Error) => self.give_up(shard, Some(&frame)),
            (Owed::State(number), _) => {
                if &frame[..] == b"+RESET\r\n"
                    && let Some(link) = self.backs.link(shard)
                {
                    link.subscribed = [0; 2];
                }
                self.state_answered(number, shard, frame);
            }
            (Owed::Probe, Outcome::Error) => self.trust = Trust::Refused(frame),
            (Owed::Probe, Outcome::Success) => self.trust.learn(),
            (Owed::Setup | Owed::Nobody | Owed::Client, _) => {}
        }
    }

    /// Handles a link's answer to a change of the state.
    fn state_answered(&mut self, number: u64, shard: usize, answer: Bytes) {
        let Some(settled) = self.backs.state.answered(number, shard, answer) else {
            return;
        };
        match settled.gained {
            Gained::Nothing => {}
            Gained::Login => self.trust.learn(),
            Gained::Reset => {
                self.trust.reset();
                self.subscriptions = Subscriptions::default();
                self.transactions.drop_open();
                self.replying = Replying::On;
            }
        }
        for (shard, answer) in settled.answers {
            match (settled.outcome, Outcome::of(&answer)) {
                // An earlier change of the settings may have set an error for the next command.
                (Outcome::Success, Outcome::Success) => self.backs.forget_refusal(shard),
                (Outcome::Success, Outcome::Error) => self.give_up(shard, Some(&answer)),
                (Outcome::Error, Outcome::Success) => self.give_up(shard, None),
                (Outcome::Error, Outcome::Error) => {}
            }
        }
    }

    /// Gives up a link whose state differs from the client's settings. `why`: the error for the next command
    /// to this shard.
    fn give_up(&mut self, shard: usize, why: Option<&[u8]>) {
        let watches = self.transactions.watch_at(shard);
        let link = self.backs.give_up(shard, why);
        if link.is_some_and(|link| watches || link.is_subscribed()) {
            // Without this link the client would lose its subscriptions or its watch at this shard, so the client's
            // connection is closed.
            self.end.comes(When::Written, How::Lingering);
        }
    }

    /// Returns the next reply of a link that is for the client.
    fn reply_of(&mut self, shard: usize) -> Option<Bytes> {
        self.sweep(shard);
        let resp3 = self.backs.state.resp3();
        self.backs.link(shard)?.take_reply(resp3)
    }

    /// Returns the next reply of a link that is for the client, if the reply is the last reply of its command.
    fn last_reply_of(&mut self, shard: usize) -> Option<Bytes> {
        let reply = self.reply_of(shard)?;
        self.backs.link(shard)?.settle();
        Some(reply)
    }

    /// Sends the replies that have come, in order.
    fn answer(&mut self, common: &Common) -> bool {
        let mut moved = false;
        while !self.replies.is_congested() {
            let Some(mut slot) = self.replies.next() else {
                break;
            };
            let Some(reply) = self.reply_to(&mut slot, common) else {
                self.replies.put_back(slot);
                break;
            };
            moved = true;
            common.tally.answered(&slot.wait, slot.taken);
            self.replies.answered(&slot, &reply);
        }
        moved
    }

    fn reply_to(&mut self, slot: &mut Slot, common: &Common) -> Option<Bytes> {
        match &mut slot.wait {
            Wait::Ready(reply) => Some(std::mem::take(reply)),
            Wait::One(shard) => self.last_reply_of(*shard),
            Wait::Multi(shard, number) => {
                let reply = self.last_reply_of(*shard)?;
                if Outcome::of(&reply) == Outcome::Error {
                    self.transactions.not_begun(*number);
                }
                Some(reply)
            }
            Wait::Scan(shard) => {
                let shards = self.backs.len();
                let reply = self.last_reply_of(*shard)?;
                Some(scan::with_shard(&reply, *shard, shards))
            }
            Wait::Info(shard) => {
                let reply = self.last_reply_of(*shard)?;
                Some(with_lines(reply, &common.lines()))
            }
            Wait::All(merge, parts) => {
                for (shard, part) in parts.iter_mut().enumerate() {
                    if part.is_none() {
                        *part = self.last_reply_of(shard);
                    }
                }
                let all: Option<Vec<Bytes>> = parts.iter().cloned().collect();
                all.map(|parts| merge.of(&parts))
            }
            Wait::Subscribe(change) => self.subscribed(change, slot.silent),
            Wait::State(number) => self.backs.state.answer(*number),
        }
    }

    /// Sends confirmations of subscriptions to the client. Returns the bytes that remain to be sent after the last
    /// confirmation.
    fn subscribed(&mut self, change: &mut Change, silent: bool) -> Option<Bytes> {
        while let Some(shard) = change.next(self.backs.len()) {
            let frame = self.reply_of(shard)?;
            let link = self.backs.link(shard)?;
            let told = change.confirmed(frame, &mut self.subscriptions, &mut link.subscribed);
            if let Some(told) = told
                && (!silent || self.backs.state.resp3())
            {
                self.replies.tell(&told);
            }
        }
        for shard in change.shards() {
            if let Some(link) = self.backs.link(*shard) {
                link.settle();
            }
        }
        if change.is_half_done() {
            self.end.comes(When::Written, How::Lingering);
        }
        Some(change.take_error().unwrap_or_default())
    }

    /// Handles links that have ended. A link that was given up is dropped. If any other link ends, the
    /// client's connection is closed.
    fn note_lost(&mut self) {
        for shard in 0..self.backs.len() {
            let Some(link) = self.backs.ended(shard) else {
                continue;
            };
            if !link.closing {
                let owes = link.owed().is_some();
                let waits = self.replies.is_idle() || self.replies.wait_for(shard);
                let when = if waits || !(owes || self.end.eof) {
                    When::Written
                } else {
                    When::Answered
                };
                self.end.comes(when, How::Lingering);
                continue;
            }
            for owed in self.backs.drop_link(shard) {
                match owed {
                    Owed::State(number) => {
                        self.state_answered(number, shard, Bytes::from_static(LOST));
                    }
                    // The router sends no other command on a link that may be given up. If a command was sent
                    // nevertheless, the client's connection is closed.
                    Owed::Client | Owed::Probe => self.end.comes(When::Written, How::AtOnce),
                    Owed::Setup | Owed::Nobody => {}
                }
            }
        }
    }
}
