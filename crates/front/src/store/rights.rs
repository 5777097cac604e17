//! One connection to Redis on which the front asks about users, without its socket.
//!
//! First the front logs in as itself and asks which store is at the other end. Only the Redis that the pmnet server
//! uses has the right list of users. Then the front asks its questions, each after the answer to the previous question.
//! The front has two such connections. The second connection checks passwords, because a connection that is logged in
//! as a client has only that client's rights.

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

/// Maximum number of questions without an answer.
const ASKED_MAX: usize = 256;
/// The first Redis version that may give no answer to a wrong password.
const SILENT_VERSION: (u32, u32) = (7, 2);
/// Limits of Redis's answers. The longest answer is the list of all users.
const REPLIES: ReplyLimits = ReplyLimits {
    line_bytes: 64 * 1024,
    bulk_bytes: 1024 * 1024,
    reply_bytes: 16 * 1024 * 1024,
};

/// The subject of a client's question to Redis.
#[derive(Debug)]
pub(crate) enum About {
    /// Whether this is the password of `user`, or of the user `default` if `user` is `None`.
    Login {
        user: Option<Box<[u8]>>,
        password: Secret,
    },
    /// Whether this user may run a command.
    May {
        user: Box<[u8]>,
        /// The database in which the command would run.
        database: u32,
        question: Vec<u8>,
        place: Place,
    },
}

/// A question of a client. A client has one question at a time.
#[derive(Debug)]
pub struct Question {
    /// The client's connection: [`Connection::id`](crate::client::Connection::id).
    pub(crate) connection: u64,
    /// Number of the question among the questions of its client.
    pub(crate) number: u64,
    pub(crate) about: About,
}

/// The answer to a question.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Redis's reply to AUTH, or an error of the front.
    Login(Bytes),
    May(Ruling),
}

/// A client's question, with the index of the client.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) client: usize,
    pub(crate) question: Question,
    /// Whether the question is being asked for the second time.
    pub(crate) again: bool,
}

/// A question on the connection.
#[derive(Debug)]
pub(crate) enum Ask {
    /// A question for the list of users: its number, and its time.
    List(u64, Time),
    Client(Ticket),
    /// Selects this database. The question after this one is about a command in this database.
    Select(u32),
    /// Logs in as this user. The connection then stays logged in as this user.
    Witness(Arc<Credentials>),
    /// Asks for a sign of life. The question needs no right.
    Poke,
}

/// A command that was sent on the connection. The commands of the greeting are sent first.
#[derive(Debug)]
enum Sent {
    Login,
    Info,
    Ask(Ask),
}

/// A connection on which the front asks about users.
pub(crate) struct RightsLine {
    line: Line<Sent>,
    /// Run id and version of the process at the other end.
    pub(crate) found: Option<(String, (u32, u32))>,
    /// The database that the last question has selected.
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

    /// Returns the run id of the process at the other end, if known.
    pub(crate) fn run_id(&self) -> Option<&str> {
        self.found.as_ref().map(|(run_id, _)| &run_id[..])
    }

    /// Whether this question may be asked now.
    ///
    /// While a password is checked, no other question may be outstanding on the connection. Redis 7.2 to 8.6 give no
    /// answer to a wrong password while an earlier answer is still to be sent. The front would then take the next
    /// answer, to the login of another client, for the answer to the wrong password.
    pub(crate) fn takes(&self, ask: &Ask) -> bool {
        let is_silent = |(_, version): &(String, (u32, u32))| *version >= SILENT_VERSION;
        let asked = self.line.asked();
        let tries = |sent: &Sent| matches!(sent, Sent::Ask(ask) if tries_password(ask));
        let follows = !self.found.as_ref().is_some_and(is_silent)
            || !(tries_password(ask) || asked.back().is_some_and(tries));
        // Questions are asked only after the greeting is answered.
        let greeted = self.found.is_some();
        greeted && asked.len() < ASKED_MAX && (asked.is_empty() || follows)
    }

    /// Whether an answer is outstanding.
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

    /// Takes bytes from Redis. The answered questions are added to `answers`, with their replies.
    ///
    /// # Errors
    /// The reason why the connection is unusable.
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
                    // Without the SELECT, later questions would be about another database.
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

    /// Gives the connection up. Returns the questions without an answer.
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

/// Whether the answer to this question may be that a password is wrong.
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
