//! One connection to Redis on which the front asks about users, without its socket.
//!
//! First the front logs in as itself and asks who is at the other end: only the Redis that the pmnet server uses knows who a client
//! is. Then it asks one thing after the other. There are two such connections: a password is tried on one of its own, because a
//! connection that has logged in as a client may do only what that client may.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use pmnet_resp::{ReplyLimits, Scanner, read, write_command};
use pmnet_wire::StoreName;

use super::StoreAddress;
use super::identity::{ask_run_id, run_id_of, version_of};
use crate::upstream::Time;
use crate::users::{Credentials, Place, Ruling, Secret};

/// Why a connection to another Redis is of no use.
pub(crate) const ELSEWHERE: &str = "it is not the store that the pmnet server uses";
/// Questions without an answer, at most.
const ASKED_MAX: usize = 256;
/// The first Redis that may leave a wrong password without an answer.
const SILENT_VERSION: (u32, u32) = (7, 2);
/// What Redis may answer: a list of all users is the longest.
const REPLIES: ReplyLimits = ReplyLimits {
    line_bytes: 64 * 1024,
    bulk_bytes: 1024 * 1024,
    reply_bytes: 16 * 1024 * 1024,
};

/// What a connection wants to know of Redis.
#[derive(Debug)]
pub(crate) enum About {
    /// Whether this is the password of this user; of the user `default` if none is named.
    Login {
        user: Option<Box<[u8]>>,
        password: Secret,
    },
    /// Whether this user may do something.
    May {
        user: Box<[u8]>,
        /// In which database.
        database: u32,
        question: Vec<u8>,
        place: Place,
    },
}

/// A question of a connection; it has one at a time.
#[derive(Debug)]
pub(crate) struct Question {
    /// [`Connection::id`](crate::client::Connection::id).
    pub(crate) connection: u64,
    /// Which of its questions.
    pub(crate) number: u64,
    pub(crate) about: About,
}

/// The answer to a question.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Redis's reply to AUTH; or an error of the front.
    Login(Bytes),
    May(Ruling),
}

/// A question, and the place of the client whose it is.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) client: usize,
    pub(crate) question: Question,
    /// It is asked for the second time.
    pub(crate) again: bool,
}

/// What is asked.
#[derive(Debug)]
pub(crate) enum Ask {
    /// For the list of users: which of these questions this is, and when it was asked.
    List(u64, Time),
    Client(Ticket),
    /// For this database; what is asked next is about commands there.
    Select(u32),
    /// To be logged in as this user from now on.
    Witness(Arc<Credentials>),
    /// For a sign of life, without any right.
    Poke,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greeting {
    Login,
    Info,
}

/// The connection.
pub(crate) struct Link {
    pub(crate) address: SocketAddr,
    outbox: Vec<u8>,
    inbox: BytesMut,
    scanner: Scanner,
    greeting: VecDeque<Greeting>,
    /// Run id of the process at the other end, and its version.
    pub(crate) found: Option<(String, (u32, u32))>,
    asked: VecDeque<Ask>,
    /// The database that is selected by what was asked last.
    database: u32,
}

impl Link {
    pub(crate) fn new(store: &StoreAddress) -> Link {
        let (mut outbox, mut greeting) = (Vec::new(), VecDeque::new());
        if let Some(auth) = store.auth() {
            write_command(&mut outbox, &auth);
            greeting.push_back(Greeting::Login);
        }
        ask_run_id(&mut outbox);
        greeting.push_back(Greeting::Info);
        Link {
            address: store.address,
            outbox,
            inbox: BytesMut::new(),
            scanner: Scanner::new(REPLIES),
            greeting,
            found: None,
            asked: VecDeque::new(),
            database: 0,
        }
    }

    /// Whether this may be asked now.
    ///
    /// A password is tried alone. Redis 7.2 to 8.6 do not answer a wrong password while an earlier answer is still to be sent. The next
    /// answer, to the login of another client, would then be taken for the answer to this one.
    pub(crate) fn takes(&self, ask: &Ask) -> bool {
        let is_silent = |(_, version): &(String, (u32, u32))| *version >= SILENT_VERSION;
        let follows = !self.found.as_ref().is_some_and(is_silent)
            || !(tries_password(ask) || self.asked.back().is_some_and(tries_password));
        self.greeting.is_empty()
            && self.asked.len() < ASKED_MAX
            && (self.asked.is_empty() || follows)
    }

    /// Whether an answer is to come.
    pub(crate) fn waits(&self) -> bool {
        !self.greeting.is_empty() || !self.asked.is_empty()
    }

    pub(crate) fn ask(&mut self, ask: Ask) {
        if let Ask::Client(ticket) = &ask
            && let About::May { database, .. } = ticket.question.about
            && database != self.database
        {
            self.database = database;
            self.ask(Ask::Select(database));
        }
        let out = &mut self.outbox;
        match &ask {
            Ask::List(..) => write_command(out, &["ACL", "LIST"]),
            Ask::Client(ticket) => match &ticket.question.about {
                About::Login {
                    user: Some(user),
                    password,
                } => write_command(out, &[&b"AUTH"[..], user, password.bytes()]),
                About::Login {
                    user: None,
                    password,
                } => write_command(out, &[&b"AUTH"[..], password.bytes()]),
                About::May { question, .. } => out.extend_from_slice(question),
            },
            Ask::Select(database) => write_command(out, &["SELECT", &database.to_string()]),
            Ask::Witness(user) => {
                write_command(out, &[&b"AUTH"[..], &user.user, user.password.bytes()]);
            }
            Ask::Poke => write_command(out, &["HELLO"]),
        }
        self.asked.push_back(ask);
    }

    pub(crate) fn unwritten(&self) -> &[u8] {
        &self.outbox
    }

    pub(crate) fn wrote(&mut self, count: usize) {
        self.outbox.drain(..count.min(self.outbox.len()));
    }

    /// Takes in bytes from Redis. `answers`: what was asked, with the reply.
    ///
    /// # Errors
    /// Why the connection is of no use.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        name: Option<&StoreName>,
        answers: &mut Vec<(Ask, Bytes)>,
    ) -> Result<(), String> {
        self.inbox.extend_from_slice(bytes);
        while let Some(length) = self
            .scanner
            .poll(&self.inbox)
            .map_err(|error| error.to_string())?
        {
            let value = self.inbox.split_to(length).freeze();
            if let Some(greeting) = self.greeting.pop_front() {
                self.greeted(greeting, &value, name)?;
            } else if let Some(ask) = self.asked.pop_front() {
                if let Ask::Select(database) = ask {
                    // The questions after it would be about another database.
                    if value != "+OK\r\n" {
                        return Err(format!("database {database} cannot be selected"));
                    }
                    continue;
                }
                answers.push((ask, value));
            } else {
                return Err("it sent what nobody asked for".into());
            }
        }
        Ok(())
    }

    fn greeted(
        &mut self,
        greeting: Greeting,
        value: &[u8],
        name: Option<&StoreName>,
    ) -> Result<(), String> {
        if let Some(error) = read::error(value) {
            return Err(format!("the front itself cannot log in: {error}"));
        }
        if greeting == Greeting::Login {
            return Ok(());
        }
        let run_id =
            run_id_of(value).ok_or("its INFO has no run_id, so it cannot be recognised")?;
        if name.is_none_or(|name| name.run_id != run_id) {
            return Err(ELSEWHERE.into());
        }
        self.found = Some((run_id, version_of(value).unwrap_or_default()));
        Ok(())
    }

    /// The connection is given up: what had no answer.
    pub(crate) fn end(self) -> VecDeque<Ask> {
        self.asked
    }
}

/// Whether the answer may be that a password is wrong.
fn tries_password(ask: &Ask) -> bool {
    match ask {
        Ask::Client(ticket) => matches!(ticket.question.about, About::Login { .. }),
        Ask::Witness(_) => true,
        Ask::List(..) | Ask::Select(_) | Ask::Poke => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_of_another_redis() {
        let store = StoreAddress::parse("redis://u:secret@127.0.0.1:1").unwrap();
        let name = |run_id: &str| StoreName {
            address: ([127, 0, 0, 1], 1).into(),
            run_id: run_id.into(),
            records: "pmnet:{0}".into(),
            owner: String::new(),
            reads: false,
        };
        let info = "run_id:a\r\nredis_version:7.0.15";
        let hello = format!("+OK\r\n${}\r\n{info}\r\n", info.len());
        let greet = |name: Option<&StoreName>, said: &[u8]| {
            let mut link = Link::new(&store);
            assert!(!link.takes(&Ask::Poke) && link.waits());
            let result = link.receive(said, name, &mut Vec::new());
            (result, link.takes(&Ask::Poke))
        };
        let (result, room) = greet(Some(&name("a")), hello.as_bytes());
        assert_eq!((result, room), (Ok(()), true));
        for (name, said) in [
            (Some(name("b")), hello.as_str()),
            (None, hello.as_str()),
            (Some(name("a")), "-WRONGPASS x\r\n"),
            (Some(name("a")), "+OK\r\n-NOPERM x\r\n"),
        ] {
            let (result, _) = greet(name.as_ref(), said.as_bytes());
            let error = result.unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
