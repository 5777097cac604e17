//! The sessions and the calls of a front, with their owners.

use bytes::Bytes;
use pmnet_client::{CallId, ClientNode, Refused, SessionHandle, Time};
use rustc_hash::FxHashMap;

use crate::connection::{Call, Way};

/// Number of sessions that UDP requests and the front itself share.
const SHARED_SESSIONS: usize = 8;
/// The longest time that the end of a session may take to reach the devices, in nanoseconds. If the message about the
/// end of the session is lost, the session expires at the devices.
const END_TIMEOUT: u64 = 5_000_000_000;

/// Name of a guest: the guest's index and serial number.
pub(super) type Name = (usize, u64);

/// The owner of a session.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    Guest(Name),
    Shared(usize),
}

/// The endpoint with its sessions and calls.
pub(super) struct Calls {
    pub(super) node: ClientNode,
    callers: FxHashMap<CallId, Name>,
    owners: FxHashMap<SessionHandle, Owner>,
    shared: [Option<SessionHandle>; SHARED_SESSIONS],
    /// Maximum time for a call, in nanoseconds.
    timeout: u64,
}

impl Calls {
    pub(super) fn new(node: ClientNode, timeout: u64) -> Calls {
        Calls {
            node,
            callers: FxHashMap::default(),
            owners: FxHashMap::default(),
            shared: [None; SHARED_SESSIONS],
            timeout,
        }
    }

    /// Sets the maximum time for later calls, in nanoseconds.
    pub(super) const fn set_timeout(&mut self, timeout: u64) {
        self.timeout = timeout;
    }

    /// Submits a call in a guest's own session.
    pub(super) fn submit_own(
        &mut self,
        now: Time,
        name: Name,
        session: &mut Option<SessionHandle>,
        call: Call,
    ) -> Result<CallId, Refused> {
        self.submit(now, name, Owner::Guest(name), session, call)
    }

    /// Submits a call in one of the shared sessions.
    pub(super) fn submit_shared(
        &mut self,
        now: Time,
        name: Name,
        call: Call,
    ) -> Result<CallId, Refused> {
        let at = usize::try_from(name.1).unwrap_or(0) % SHARED_SESSIONS;
        let mut session = self.shared[at];
        let submitted = self.submit(now, name, Owner::Shared(at), &mut session, call);
        self.shared[at] = session;
        submitted
    }

    fn submit(
        &mut self,
        now: Time,
        name: Name,
        owner: Owner,
        session: &mut Option<SessionHandle>,
        call: Call,
    ) -> Result<CallId, Refused> {
        let handle = match *session {
            Some(handle) => handle,
            None => self.open(now, owner, session)?,
        };
        let submitted = match self.send(now, handle, &call) {
            // The session was closed, but the event that says this has not come yet.
            Err(Refused::Closed) => {
                let handle = self.open(now, owner, session)?;
                self.send(now, handle, &call)
            }
            submitted => submitted,
        };
        let id = submitted?;
        self.callers.insert(id, name);
        Ok(id)
    }

    fn open(
        &mut self,
        now: Time,
        owner: Owner,
        session: &mut Option<SessionHandle>,
    ) -> Result<SessionHandle, Refused> {
        let handle = self.node.open(now)?;
        self.owners.insert(handle, owner);
        *session = Some(handle);
        Ok(handle)
    }

    fn send(&mut self, now: Time, session: SessionHandle, call: &Call) -> Result<CallId, Refused> {
        let Call {
            payload,
            key_hash,
            way,
        } = call;
        let (payload, deadline): (Bytes, Time) = (payload.clone(), now + self.timeout);
        match way {
            Way::Update => self.node.update(session, payload, *key_hash, deadline),
            Way::Read => self
                .node
                .bypass(session, payload, *key_hash, true, deadline),
            Way::Change => self
                .node
                .bypass(session, payload, *key_hash, false, deadline),
        }
    }

    /// Returns the guest that submitted a call that has ended.
    pub(super) fn caller(&mut self, call: CallId) -> Option<Name> {
        self.callers.remove(&call)
    }

    /// Forgets a session that was closed. Returns its owner.
    pub(super) fn closed(&mut self, session: SessionHandle) -> Option<Owner> {
        let owner = self.owners.remove(&session)?;
        if let Owner::Shared(at) = owner
            && self.shared[at] == Some(session)
        {
            self.shared[at] = None;
        }
        Some(owner)
    }

    /// Ends a session. Calls that were submitted in it still take effect.
    pub(super) fn end(&mut self, now: Time, session: SessionHandle) {
        self.owners.remove(&session);
        self.node.end(session, now + END_TIMEOUT);
    }

    /// Ends the shared sessions.
    pub(super) fn end_shared(&mut self, now: Time) {
        for at in 0..SHARED_SESSIONS {
            if let Some(session) = self.shared[at].take() {
                self.end(now, session);
            }
        }
    }
}
