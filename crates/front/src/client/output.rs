//! The requests of a client to the front, beside the bytes for its two sockets.
//!
//! One rule: after each [`advance`](super::Connection::advance), and whatever else has changed a connection, [`poll_output`](super::Connection::poll_output) is called
//! until there is nothing more.

use std::net::SocketAddr;

use super::back::batch::StoreRead;
use super::client_command::ClientsAsk;
use crate::store::rights::Question;
use crate::upstream::{CallId, SessionHandle};

/// Something that a client wants of the front.
#[derive(Debug)]
pub enum Output {
    /// The front's mark is to be open.
    OpenMark,
    /// It matters which store the server works on: the server is to be asked now and then.
    NameStore,
    /// A Redis was found that the server did not name. The server must check before it names one again.
    DoubtStore,
    /// A command came that the table does not have: the store is to be asked which it has.
    LearnCommands,
    /// The head was asked with this call.
    AskedHead(CallId),
    /// It waits until the front has said this of its clients.
    Clients(ClientsAsk),
    /// It uses another session from now on, or none.
    Session(Option<SessionHandle>),
    /// Its next command comes after the changes of subscriptions that are under way.
    BehindSubscriptions,
    /// This change of its subscriptions is under way, counted since it came, or none.
    Subscribing(Option<u64>),
    /// Whether it waits for keys of an embedded store.
    Waiting(Waiting),
    /// Its connection to the store is another one, with this number, or there must be none.
    Direct(Option<(u64, SocketAddr)>),
    /// This is to be read from the store.
    Read(StoreRead),
    /// This is to be asked about its user.
    Ask(Question),
}

/// Whether a client waits for keys of an embedded store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// It does not.
    #[default]
    No,
    /// It is trying, or about to.
    Tries,
    /// It has found nothing, and waits to be woken.
    Rests,
}

/// The values that the front was told last.
#[derive(Default)]
pub(super) struct Reported {
    session: Option<SessionHandle>,
    change: Option<u64>,
    waiting: Waiting,
    direct: Option<u64>,
}

impl Reported {
    /// The front knows that there is no session any more.
    pub(super) fn session_closed(&mut self) {
        self.session = None;
    }

    pub(super) fn session(&mut self, now: Option<SessionHandle>) -> Option<Output> {
        changed(&mut self.session, now).then_some(Output::Session(now))
    }

    pub(super) fn change(&mut self, now: Option<u64>) -> Option<Output> {
        changed(&mut self.change, now).then_some(Output::Subscribing(now))
    }

    pub(super) fn waiting(&mut self, now: Waiting) -> Option<Output> {
        changed(&mut self.waiting, now).then_some(Output::Waiting(now))
    }

    pub(super) fn direct(&mut self, now: Option<(u64, SocketAddr)>) -> Option<Output> {
        let number = now.map(|(number, _)| number);
        changed(&mut self.direct, number).then_some(Output::Direct(now))
    }
}

fn changed<T: PartialEq>(before: &mut T, now: T) -> bool {
    let changed = *before != now;
    *before = now;
    changed
}

/// Requests that were not handed out yet.
#[derive(Default)]
pub(super) struct Wishes {
    mark: bool,
    name: bool,
    doubt: bool,
    commands: bool,
    asked_head: Option<CallId>,
    behind_subscriptions: bool,
}

impl Wishes {
    pub(super) fn open_mark(&mut self) {
        self.mark = true;
    }

    pub(super) fn name_store(&mut self) {
        self.name = true;
    }

    pub(super) fn doubt_store(&mut self) {
        self.doubt = true;
    }

    pub(super) fn learn_commands(&mut self) {
        self.commands = true;
    }

    pub(super) fn asked_head(&mut self, call: CallId) {
        self.asked_head = Some(call);
    }

    pub(super) fn come_behind_subscriptions(&mut self) {
        self.behind_subscriptions = true;
    }

    /// The next of those that do not wait for others.
    pub(super) fn take(&mut self) -> Option<Output> {
        let took = std::mem::take::<bool>;
        if took(&mut self.mark) {
            return Some(Output::OpenMark);
        }
        if took(&mut self.name) {
            return Some(Output::NameStore);
        }
        if took(&mut self.doubt) {
            return Some(Output::DoubtStore);
        }
        if took(&mut self.commands) {
            return Some(Output::LearnCommands);
        }
        self.asked_head.take().map(Output::AskedHead)
    }

    /// Whether the next command comes after changes of subscriptions.
    pub(super) fn take_behind_subscriptions(&mut self) -> Option<Output> {
        std::mem::take(&mut self.behind_subscriptions).then_some(Output::BehindSubscriptions)
    }
}
