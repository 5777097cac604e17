//! One connection to Redis on which the front asks about users, without its socket.
//!
//! First the front logs in as itself and asks who is at the other end: only the Redis that the pmnet server uses knows who a client
//! is. Then it asks one thing after the other. There are two such connections: a password is tried on one of its own, because a
//! connection that has logged in as a client may do only what that client may.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use pmnet_resp::{ReplyLimits, read, write_command};
use pmnet_wire::StoreName;

use super::StoreAddress;
use super::identity::{ASK_RUN_ID, NO_RUN_ID, run_id_of, version_of};
use super::line::{ELSEWHERE, Line, UNASKED};
use crate::shell::socket::Unwritten;
use crate::upstream::Time;
use crate::users::{Credentials, Place, Ruling, Secret};

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
pub struct Question {
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

/// What was sent: the greeting comes first.
#[derive(Debug)]
enum Sent {
    Login,
    Info,
    Ask(Ask),
}

/// The connection.
pub(crate) struct RightsLine {
    line: Line<Sent>,
    /// Run id of the process at the other end, and its version.
    pub(crate) found: Option<(String, (u32, u32))>,
    /// The database that is selected by what was asked last.
    database: u32,
}

impl RightsLine {
    pub(crate) fn new(store: &StoreAddress) -> RightsLine {
        let mut line = Line::new(store, REPLIES);
        line.log_in(store, Sent::Login);
        line.ask(Sent::Info, &ASK_RUN_ID);
        RightsLine {
            line,
            found: None,
            database: 0,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.line.address
    }

    /// The process at the other end, if it has said who it is.
    pub(crate) fn run_id(&self) -> Option<&str> {
        self.found.as_ref().map(|(run_id, _)| &run_id[..])
    }

    /// Whether this may be asked now.
    ///
    /// A password is tried alone. Redis 7.2 to 8.6 do not answer a wrong password while an earlier answer is still to be sent. The next
    /// answer, to the login of another client, would then be taken for the answer to this one.
    pub(crate) fn takes(&self, ask: &Ask) -> bool {
        let is_silent = |(_, version): &(String, (u32, u32))| *version >= SILENT_VERSION;
        let asked = self.line.asked();
        let tries = |sent: &Sent| matches!(sent, Sent::Ask(ask) if tries_password(ask));
        let follows = !self.found.as_ref().is_some_and(is_silent)
            || !(tries_password(ask) || asked.back().is_some_and(tries));
        // All is asked after the greeting has its answers.
        let greeted = self.found.is_some();
        greeted && asked.len() < ASKED_MAX && (asked.is_empty() || follows)
    }

    /// Whether an answer is to come.
    pub(crate) fn waits(&self) -> bool {
        !self.line.asked().is_empty()
    }

    pub(crate) fn ask(&mut self, ask: Ask) {
        if let Ask::Client(ticket) = &ask
            && let About::May { database, .. } = ticket.question.about
            && database != self.database
        {
            self.database = database;
            self.ask(Ask::Select(database));
        }
        let out = self.line.outbox();
        match &ask {
            Ask::List(..) => write_command(out, &["ACL", "LIST"]),
            Ask::Client(ticket) => match &ticket.question.about {
                About::Login {
                    user: Some(user),
                    password,
                } => write_command(out, &[&b"AUTH"[..], user, &password.bytes()]),
                About::Login {
                    user: None,
                    password,
                } => write_command(out, &[&b"AUTH"[..], &password.bytes()]),
                About::May { question, .. } => out.extend_from_slice(question),
            },
            Ask::Select(database) => write_command(out, &["SELECT", &database.to_string()]),
            Ask::Witness(user) => {
                write_command(out, &[&b"AUTH"[..], &user.user, &user.password.bytes()]);
            }
            Ask::Poke => write_command(out, &["HELLO"]),
        }
        self.line.sent(Sent::Ask(ask));
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
        self.line.receive(bytes);
        while let Some(value) = self.line.next().map_err(|error| error.to_string())? {
            match self.line.answered() {
                Some(Sent::Ask(Ask::Select(database))) => {
                    // The questions after it would be about another database.
                    if value != "+OK\r\n" {
                        return Err(format!("database {database} cannot be selected"));
                    }
                }
                Some(Sent::Ask(ask)) => answers.push((ask, value)),
                Some(greeting) => self.greeted(&greeting, &value, name)?,
                None => return Err(UNASKED.into()),
            }
        }
        Ok(())
    }

    fn greeted(
        &mut self,
        greeting: &Sent,
        value: &[u8],
        name: Option<&StoreName>,
    ) -> Result<(), String> {
        if let Some(error) = read::error(value) {
            return Err(format!("the front itself cannot log in: {error}"));
        }
        if matches!(greeting, Sent::Info) {
            let run_id = run_id_of(value).ok_or(NO_RUN_ID)?;
            if name.is_none_or(|name| name.run_id != run_id) {
                return Err(ELSEWHERE.into());
            }
            self.found = Some((run_id, version_of(value).unwrap_or_default()));
        }
        Ok(())
    }

    /// The connection is given up: what had no answer.
    pub(crate) fn end(self) -> impl Iterator<Item = Ask> {
        let asked = self.line.into_asked().into_iter();
        asked.filter_map(|sent| match sent {
            Sent::Ask(ask) => Some(ask),
            Sent::Login | Sent::Info => None,
        })
    }
}

impl Unwritten for RightsLine {
    fn unwritten(&self) -> &[u8] {
        self.line.unwritten()
    }

    fn wrote(&mut self, count: usize) {
        self.line.wrote(count);
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
            let mut link = RightsLine::new(&store);
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
