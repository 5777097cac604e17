//! The requests of a client to the front, besides the bytes for the client's two sockets.
//!
//! Rule: after each [`advance`](super::Connection::advance) and after any other change of a connection,
//! [`poll_output`](super::Connection::poll_output) must be called until it returns `None`.

use std::net::SocketAddr;

use super::back::batch::StoreRead;
use super::client_command::ClientsAsk;
use crate::store::rights::Question;
use crate::upstream::{CallId, SessionHandle};

/// A request of a client to the front.
#[derive(Debug)]
pub enum Output {
    /// The front's mark must be opened.
    OpenMark,
    /// The client depends on the store on which the server works, so the server must be asked for the store's name from
    /// time to time.
    NameStore,
    /// The client found a Redis that the server did not name. The server must check its store before it names a store
    /// again.
    DoubtStore,
    /// The client sent a command that the table does not have: the store must be asked for its commands.
    LearnCommands,
    /// The head was asked with this call.
    AskedHead(CallId),
    /// The client waits for the front's answer about its clients.
    Clients(ClientsAsk),
    /// From now on the client uses another session, or no session.
    Session(Option<SessionHandle>),
    /// The client's next command must follow the changes of subscriptions that are under way.
    BehindSubscriptions,
    /// The client's change of subscriptions that is under way, by its number since the client connected; `None`: no
    /// change is under way.
    Subscribing(Option<u64>),
    /// Whether the client waits for keys of an embedded store.
    Waiting(Waiting),
    /// The client needs a new connection to the store, with this number and address; `None`: it must have no
    /// connection.
    Direct(Option<(u64, SocketAddr)>),
    /// The commands in this value must be read from the store.
    Read(StoreRead),
    /// This question about the client's user must be asked.
    Ask(Question),
}

/// Whether a client waits for keys of an embedded store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// The client does not wait.
    #[default]
    No,
    /// The client's command is being tried, or is about to be.
    Tries,
    /// The command has found nothing, and waits to be woken.
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
    /// Notes that the front knows of the end of the session.
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

/// Requests of the client that the front has not taken yet.
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

    /// Returns the next of the requests that do not depend on others.
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

    /// Returns the request of a command that must follow changes of subscriptions, if there is one.
    pub(super) fn take_behind_subscriptions(&mut self) -> Option<Output> {
        std::mem::take(&mut self.behind_subscriptions).then_some(Output::BehindSubscriptions)
    }
}
