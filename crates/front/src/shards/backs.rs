//! The shards as one client uses them: a link to each shard that the client uses, and the client's settings, which hold
//! for all shards.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bytes::Bytes;
use mio::{Registry, Token};
use pmnet_resp::reply;

use super::link::{Link, Owed};
use super::merge::Merge;
use super::replies::Wait;
use super::state::{Effect, State};
use crate::shell::wire::Wire;
use crate::shell::{Entrance, Handed};

/// The shard that answers commands without keys: the first shard.
pub(super) const HOME: usize = 0;

/// The reason why a command is not forwarded.
#[derive(Debug)]
pub(super) enum Stop {
    /// The command stays in the input until its client's state changes.
    Later,
    /// The command is answered with this reply.
    Answered(Bytes),
    /// The command has this answer of the router itself. The answer may be given only once the client is known to have
    /// all rights.
    Own(Bytes),
}

/// The source of a command's reply, or the reason why the command is not forwarded.
pub(super) type Taken = Result<Wait, Stop>;

/// The fronts of all shards, and the registry for the links to them.
pub(super) struct Fronts {
    pub(super) entrances: Vec<Entrance>,
    pub(super) registry: Registry,
}

/// A client's identity, as all fronts know it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    /// The address to which the client connected.
    pub(super) local: Option<SocketAddr>,
}

/// One shard as a client uses it.
#[derive(Default)]
struct Back {
    link: Option<Box<Link>>,
    /// The error for the next command to this shard. The error states why the link was given up.
    refusal: Option<Bytes>,
}

pub(super) struct Backs {
    pub(super) who: Who,
    fronts: Arc<Fronts>,
    /// Token of the link to the first shard. The tokens of the other links follow.
    token: usize,
    backs: Vec<Back>,
    pub(super) state: State,
    /// The shard whose keys were used last.
    pub(super) last: usize,
    /// A shard whose link is full. Some bytes of this link must be written before the next command can be taken.
    full: Option<usize>,
}

impl Backs {
    pub(super) fn new(who: Who, token: usize, fronts: Arc<Fronts>) -> Backs {
        let shards = fronts.entrances.iter();
        Backs {
            who,
            token,
            backs: shards.map(|_| Back::default()).collect(),
            fronts,
            state: State::default(),
            last: HOME,
            full: None,
        }
    }

    /// Returns the number of shards.
    pub(super) fn len(&self) -> usize {
        self.backs.len()
    }

    /// Returns the link to a shard, if there is one.
    pub(super) fn link(&mut self, shard: usize) -> Option<&mut Link> {
        self.backs[shard].link.as_deref_mut()
    }

    pub(super) fn links(&mut self) -> impl Iterator<Item = &mut Link> {
        let links = self.backs.iter_mut();
        links.filter_map(|back| back.link.as_deref_mut())
    }

    /// Makes the link to a shard, unless it exists.
    pub(super) fn open(&mut self, shard: usize) -> Result<(), Stop> {
        match &self.backs[shard].link {
            Some(link) if link.closing => return Err(Stop::Later),
            Some(_) => return Ok(()),
            None => {}
        }
        match self.connect(shard) {
            Ok(mut link) => {
                for frame in self.state.replay() {
                    link.send(&frame, Owed::Setup);
                }
                self.backs[shard].link = Some(Box::new(link));
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, shard = shard + 1, "PM3324 cannot connect a client to its shard");
                Err(Stop::Answered(reply::error(&format!(
                    "ERR pmnet: the router cannot connect to shard {} ({error}); the command was not executed. Is its limit \
                     of open files (ulimit -n) high enough?",
                    shard + 1
                ))))
            }
        }
    }

    fn connect(&self, shard: usize) -> std::io::Result<Link> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut ours = Wire::pair(ours, None)?;
        ours.register(&self.fronts.registry, Token(self.token + shard))?;
        self.fronts.entrances[shard].hand_over(Handed {
            id: self.who.id,
            peer: self.who.peer,
            local: self.who.local,
            stream: theirs,
        });
        Ok(Link::new(ours))
    }

    /// Makes sure that there is a link to the shard that takes commands.
    pub(super) fn ready(&mut self, shard: usize) -> Result<(), Stop> {
        if let Some(error) = self.backs[shard].refusal.take() {
            return Err(Stop::Answered(error));
        }
        self.open(shard)?;
        match &self.backs[shard].link {
            Some(link) if link.is_full() => {
                self.full = Some(shard);
                Err(Stop::Later)
            }
            Some(link) if !link.is_unsettled() => Ok(()),
            _ => Err(Stop::Later),
        }
    }

    /// Sends a command on the link to a shard, if the link exists.
    pub(super) fn send(&mut self, shard: usize, frame: &[u8], owed: Owed) {
        if let Some(link) = self.link(shard) {
            link.send(frame, owed);
        }
    }

    /// Sends a command to one shard.
    pub(super) fn forward(&mut self, shard: usize, frame: &[u8]) -> Taken {
        self.ready(shard)?;
        self.send(shard, frame, Owed::Client);
        Ok(Wait::One(shard))
    }

    /// Sends a command to all shards.
    pub(super) fn forward_to_all(&mut self, frame: &[u8], merge: Merge) -> Taken {
        let shards = self.len();
        for shard in 0..shards {
            self.ready(shard)?;
        }
        for shard in 0..shards {
            self.send(shard, frame, Owed::Client);
        }
        let merge = match merge {
            // The search for a shard's answer begins at another shard each time.
            Merge::Found(_) => {
                self.last = (self.last + 1) % shards;
                Merge::Found(self.last)
            }
            other => other,
        };
        Ok(Wait::All(merge, vec![None; shards]))
    }

    /// Sends a command that changes the client's state.
    pub(super) fn change_state(&mut self, effect: Effect, frame: &[u8]) -> Taken {
        let concerns = |(shard, back): &(usize, &Back)| {
            effect.is_for_all() || *shard == HOME || back.link.is_some()
        };
        let shards = self.backs.iter().enumerate().filter(concerns);
        let shards: Vec<usize> = shards.map(|(shard, _)| shard).collect();
        for shard in &shards {
            self.open(*shard)?;
        }
        let number = self.state.begin(effect, shards.len());
        for shard in shards {
            self.forget_refusal(shard);
            self.send(shard, frame, Owed::State(number));
        }
        Ok(Wait::State(number))
    }

    /// Drops the error for the next command.
    pub(super) fn forget_refusal(&mut self, shard: usize) {
        self.backs[shard].refusal = None;
    }

    /// Gives up a link whose state differs from the client's settings. `why`: the error for the next command
    /// to this shard. Returns the link, if there is one.
    pub(super) fn give_up(&mut self, shard: usize, why: Option<&[u8]>) -> Option<&Link> {
        let Back { link, refusal } = &mut self.backs[shard];
        let link = link.as_deref_mut()?;
        link.closing = true;
        *refusal = why.map(|why| {
            let why = String::from_utf8_lossy(why.strip_prefix(b"-").unwrap_or(why));
            reply::error(&format!(
                "ERR pmnet: shard {} does not take what this connection has set (AUTH, HELLO, CLIENT): {}",
                shard + 1,
                why.trim_end()
            ))
        });
        Some(link)
    }

    /// Returns the link to a shard if the link has ended and everything that came from it was sent to the client.
    pub(super) fn ended(&mut self, shard: usize) -> Option<&mut Link> {
        let link = self.link(shard)?;
        link.is_over().then_some(link)
    }

    /// Drops the link to a shard. Returns the owed replies of this link.
    pub(super) fn drop_link(&mut self, shard: usize) -> VecDeque<Owed> {
        let link = self.backs[shard].link.take();
        link.map_or_else(VecDeque::new, |link| link.into_owed())
    }

    /// Drops all links. The fronts see that their connections are closed.
    pub(super) fn drop_links(&mut self) {
        for back in &mut self.backs {
            back.link = None;
        }
    }

    /// Whether a link has unread bytes that may be read now.
    pub(super) fn have_more(&self) -> bool {
        let mut links = self.backs.iter().flat_map(|back| &back.link);
        links.any(|link| link.has_more())
    }

    /// Whether a link takes commands again after it was too full for a command.
    pub(super) fn have_drained(&mut self) -> bool {
        self.full.take().is_some_and(|shard| {
            let link = &self.backs[shard].link;
            link.as_ref().is_none_or(|link| !link.is_full())
        })
    }
}
