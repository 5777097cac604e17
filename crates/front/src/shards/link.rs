//! The link from one client to the front of one shard: a pair of sockets within the process, and the list of
//! owed replies.
//!
//! A reply stays in the link's buffer until all earlier replies of its client have been sent. So a push cannot overtake
//! the reply before it.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use pmnet_resp::{Scanner, read};

use crate::limits::REPLIES;
use crate::shell::socket::Socket;
use crate::shell::wire::Wire;

/// Maximum number of bytes of one link's replies that wait for earlier replies. Above this bound, the router sends no
/// further command on the link. Above this bound, the router also reads no more from the link, unless a single reply is
/// longer.
pub(super) const HELD_BYTES_SOFT_MAX: usize = 1024 * 1024;
/// Maximum number of bytes of one link's commands that are not sent yet. Above this bound, no further command is taken
/// for the link.
const UNSENT_BYTES_SOFT_MAX: usize = 1024 * 1024;
/// Capacity that an empty buffer keeps, in bytes.
pub(super) const KEPT_BYTES_MAX: usize = 64 * 1024;

/// The receiver of the next reply of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owed {
    /// The client, after all its earlier replies.
    Client,
    /// No receiver: the reply is discarded.
    Nobody,
    /// The router, which has sent this command to set up the link. An error means that the link is unusable.
    Setup,
    /// The change of the client's state that has this number.
    State(u64),
    /// The router, which has asked whether the client may do everything.
    Probe,
}

pub(super) struct Link {
    pub(super) socket: Socket,
    /// Whether no more bytes will come.
    ended: bool,
    input: BytesMut,
    scanner: Scanner,
    /// Length of the whole reply at the head of the input.
    head: Option<usize>,
    out: BytesMut,
    owed: VecDeque<Owed>,
    /// Number of owed replies that decide whether the link is usable.
    unsettled: usize,
    /// Whether the link is being given up. Such a link is dropped when the front has closed it.
    pub(super) closing: bool,
    shut: bool,
    /// Number of subscriptions according to the replies taken so far; subscriptions to shard channels count separately.
    pub(super) subscribed: [u64; 2],
}

impl Link {
    pub(super) fn new(wire: Wire) -> Link {
        Link {
            socket: Socket::new(wire),
            ended: false,
            input: BytesMut::new(),
            scanner: Scanner::new(REPLIES),
            head: None,
            out: BytesMut::new(),
            owed: VecDeque::new(),
            unsettled: 0,
            closing: false,
            shut: false,
            subscribed: [0; 2],
        }
    }

    /// Sends a command.
    pub(super) fn send(&mut self, frame: &[u8], owed: Owed) {
        self.out.extend_from_slice(frame);
        self.owed.push_back(owed);
        self.unsettled += usize::from(matches!(owed, Owed::Setup | Owed::State(_)));
    }

    /// Whether the link still has to confirm that it has the client's settings.
    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled > 0
    }

    /// Whether the bytes that wait on the link have reached a bound.
    pub(super) fn is_full(&self) -> bool {
        self.out.len() > UNSENT_BYTES_SOFT_MAX || self.input.len() > HELD_BYTES_SOFT_MAX
    }

    /// Whether the client is subscribed to anything on this link.
    pub(super) fn is_subscribed(&self) -> bool {
        self.subscribed != [0; 2]
    }

    /// Whether no more bytes will come, and all replies were taken.
    pub(super) fn is_over(&mut self) -> bool {
        self.ended && self.has_head().is_none()
    }

    /// Takes a frame that need not wait for earlier replies. `Some`: the frame is a reply for the router. `None`: the
    /// frame is for the client at once, because it is a message, or the error that a front sends before it closes.
    /// `idle`: whether the client waits for no reply.
    pub(super) fn take_early(&mut self, resp3: bool, idle: bool) -> Option<(Option<Owed>, Bytes)> {
        self.has_head()?;
        let owed = self.owed();
        if self.is_pushed(resp3) || (owed.is_none() && idle) {
            return self.take().map(|frame| (None, frame));
        }
        if matches!(owed, None | Some(Owed::Client)) {
            return None;
        }
        let frame = self.take()?;
        Some((self.settle(), frame))
    }

    /// Takes the next reply that is for the client.
    pub(super) fn take_reply(&mut self, resp3: bool) -> Option<Bytes> {
        if self.owed() != Some(Owed::Client) || self.is_pushed(resp3) {
            return None;
        }
        self.take()
    }

    /// Returns the receiver of the reply at the head; `None`: no reply is owed.
    pub(super) fn owed(&self) -> Option<Owed> {
        self.owed.front().copied()
    }

    /// Returns the owed replies that will never come.
    pub(super) fn into_owed(self) -> VecDeque<Owed> {
        self.owed
    }

    /// Notes that the first owed reply has come, and returns its receiver.
    pub(super) fn settle(&mut self) -> Option<Owed> {
        let owed = self.owed.pop_front();
        if matches!(owed, Some(Owed::Setup | Owed::State(_))) {
            self.unsettled -= 1;
        }
        owed
    }

    /// Reads from the socket as much as the bounds allow.
    pub(super) fn fill(&mut self, scratch: &mut [u8]) {
        while self.socket.readable
            && !self.ended
            && (self.input.len() <= HELD_BYTES_SOFT_MAX || self.has_head().is_none())
        {
            match self.socket.read(scratch) {
                Ok(None) => break,
                Ok(Some(count)) => self.input.extend_from_slice(&scratch[..count]),
                Err(_) => self.ended = true,
            }
        }
    }

    /// Whether there are unread bytes that may be read now.
    pub(super) fn has_more(&self) -> bool {
        self.socket.readable && !self.ended && self.input.len() <= HELD_BYTES_SOFT_MAX
    }

    /// Returns the length of the complete reply at the head.
    fn has_head(&mut self) -> Option<usize> {
        if self.head.is_none() && !self.input.is_empty() {
            match self.scanner.poll(&self.input) {
                Ok(found) => self.head = found,
                Err(error) => {
                    tracing::warn!(%error, "PM3323 a front answers with something that is no reply");
                    self.input.clear();
                    self.ended = true;
                }
            }
        }
        self.head
    }

    /// Takes the reply at the head.
    fn take(&mut self) -> Option<Bytes> {
        let length = self.has_head()?;
        self.head = None;
        let reply = self.input.split_to(length).freeze();
        shrink(&mut self.input);
        Some(reply)
    }

    /// Whether the reply at the head of the input is a push. In RESP2, an array that is a message counts as a push,
    /// too. A reply in RESP3 never counts as a RESP2 message.
    fn is_pushed(&mut self, resp3: bool) -> bool {
        let Some(length) = self.has_head() else {
            return false;
        };
        let frame = &self.input[..length];
        let replies = resp3 && self.owed() == Some(Owed::Client);
        let may_be_message = self.is_subscribed() && !replies;
        match frame.first() {
            Some(b'>') => !CONFIRMS.contains(&kind(frame)),
            Some(b'*') if may_be_message => MESSAGES.contains(&kind(frame)),
            _ => false,
        }
    }

    /// Sends as many of the waiting bytes as possible.
    pub(super) fn flush(&mut self) {
        if !self.ended && self.socket.write(&mut self.out).is_err() {
            // The output is dropped, but the front's answers can still be read.
            self.out.clear();
            self.socket.writable = false;
        }
        shrink(&mut self.out);
        if self.closing {
            self.finish();
        }
    }

    /// Closes the sending side once everything is sent.
    pub(super) fn finish(&mut self) {
        if self.out.is_empty() && !self.shut {
            self.shut = true;
            // The front then answers the outstanding commands, and closes the link.
            let _ = self.socket.wire.end();
        }
    }
}

/// Frees the memory of an empty buffer if it is more than [`KEPT_BYTES_MAX`].
pub(super) fn shrink(buffer: &mut BytesMut) {
    if buffer.is_empty() && buffer.capacity() > KEPT_BYTES_MAX {
        *buffer = BytesMut::new();
    }
}

/// Returns the kind of a push, or of an array that is a message in RESP2.
fn kind(frame: &[u8]) -> &[u8] {
    let Some(line) = frame.iter().position(|byte| *byte == b'\n') else {
        return b"";
    };
    read::bulk_at_head(&frame[line + 1..]).unwrap_or_default()
}

/// Kinds of frames that confirm a change of subscriptions, and so are replies.
pub(super) const CONFIRMS: [&[u8]; 6] = [
    b"subscribe",
    b"unsubscribe",
    b"psubscribe",
    b"punsubscribe",
    b"ssubscribe",
    b"sunsubscribe",
];
/// Kinds of messages to a subscriber with RESP2.
const MESSAGES: [&[u8]; 3] = [b"message", b"pmessage", b"smessage"];

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn link_with(bytes: &[u8]) -> Link {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        let mut link = Link::new(Wire::pair(ours, None).unwrap());
        link.fill(&mut [0; 1024]);
        link
    }

    #[test]
    fn messages_are_told_from_replies() {
        for (bytes, subscribed, pushed) in [
            (
                &b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"[..],
                0,
                true,
            ),
            (b">2\r\n$10\r\ninvalidate\r\n_\r\n", 0, true),
            (b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", 1, false),
            (b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", 1, true),
            (b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", 0, false),
            (b"*2\r\n$4\r\npong\r\n$0\r\n\r\n", 1, false),
            (b"+OK\r\n", 1, false),
            (b"*0\r\n", 1, false),
        ] {
            let mut link = link_with(bytes);
            link.subscribed = [subscribed, 0];
            assert_eq!(
                link.is_pushed(false),
                pushed,
                "{}",
                String::from_utf8_lossy(bytes)
            );
            link.owed.push_back(Owed::Client);
            assert_eq!(link.is_pushed(true), pushed && bytes.starts_with(b">"));
            assert_eq!(link.take().as_deref(), Some(bytes));
            assert_eq!(link.take(), None);
        }
    }

    #[test]
    fn half_a_reply_is_none_and_rubbish_ends_the_link() {
        let mut link = link_with(b"$5\r\nab");
        assert_eq!(link.take(), None);
        assert!(!link.ended);
        let mut link = link_with(b"what?\r\n");
        assert_eq!(link.take(), None);
        assert!(link.ended);
    }
}
