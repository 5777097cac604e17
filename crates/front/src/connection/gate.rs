//! What the user of a connection may do: looked up before each command, and asked for where it is not known.
//!
//! A command that has to wait for an answer stays in the input, as does an `AUTH`, and everything behind it; it is looked at
//! again when the answer is there. What passes through to the store runs on a connection that has logged in as the user,
//! so Redis itself looks ([`super::direct`]). Everything else is executed by the pmnet server, which may do everything, or
//! answered here: so it is looked at here. A script could do more than it says, so it needs a user with all rights.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use pmnet_resp::{Arguments, reply};
use pmnet_wire::command::Protocol;

use super::busy::runs_code;
use super::mode::Mode;
use super::transaction::{Own, unknown_command, unknown_subcommand};
use super::{Connection, Later, Shared, StoreAddress, shown};
use crate::table::{Action, Facts, Local, Pass, Sub, Verdict};
use crate::upstream::{Time, Upstream};
use crate::users::{About, Access, Answer, Credentials, DEFAULT, Question, Ruling, Secret, Users};

const NOAUTH: &str = "NOAUTH Authentication required.";
const REMOTE: &str = "DENIED pmnet: this user needs no password, so it can be used from the front's own machine only. Give it a \
                      password in Redis (ACL SETUSER), or start the front with --requirepass-file or --anyone-may-connect";
const CHANGED: &str = "EXECABORT Transaction discarded because of: NOPERM the rights of this user changed since MULTI";
/// Commands that need no rights, not even a login.
const FREE: [&str; 4] = ["AUTH", "HELLO", "QUIT", "RESET"];

/// Who the client is, and what it has asked.
pub(super) struct Gate {
    address: IpAddr,
    /// Who it is, if it has logged in.
    user: Option<Login>,
    /// Where that user is in the list of this generation.
    place: Option<(u64, usize)>,
    questions: u64,
    stage: Stage,
    /// When the rights had changed last at the beginning of the present transaction.
    multi: u64,
    /// It has not logged in, and need not, as far as was last known.
    admitted: bool,
}

struct Login {
    credentials: Arc<Credentials>,
    /// How many lists of users had been asked for by then.
    asked: u64,
    /// Which of all logins it is.
    number: u64,
}

#[derive(Debug)]
enum Stage {
    Nothing,
    /// A newer list of users is needed.
    List,
    /// To be handed out.
    New(About),
    Asked,
    Answered(Answer),
}

/// What is known of a client's rights.
enum Standing {
    All {
        changed: u64,
    },
    /// Those of the user at this place.
    Some {
        at: usize,
    },
    NotLoggedIn,
    Remote,
    /// Its user is deleted.
    Gone,
    Unknown,
}

impl Gate {
    pub(super) fn new(address: IpAddr) -> Gate {
        Gate {
            address: address.to_canonical(),
            user: None,
            place: None,
            questions: 0,
            stage: Stage::Nothing,
            multi: 0,
            admitted: false,
        }
    }

    /// As if freshly connected.
    pub(super) fn reset(&mut self) {
        self.user = None;
        self.place = None;
        self.admitted = false;
    }

    /// Whether it may be that it has still to log in.
    pub(super) fn may_be_stranger(&self, users: &Users) -> bool {
        self.user.is_none() && !matches!(users.access, Access::Anyone)
    }

    /// Whether it needs no login, as far as was last known.
    pub(super) fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// Name of its user.
    pub(super) fn name(&self) -> &[u8] {
        self.user
            .as_ref()
            .map_or(DEFAULT, |login| &login.credentials.user)
    }

    /// Whether somebody has to answer before it goes on.
    pub(super) fn waits(&self) -> bool {
        !matches!(self.stage, Stage::Nothing | Stage::Answered(_))
    }

    /// Where its user is in the list of users.
    fn find(&mut self, users: &Users) -> Option<usize> {
        if let Some((generation, at)) = self.place
            && generation == users.generation
        {
            return Some(at);
        }
        let at = match &self.user {
            Some(login) => users.find(&login.credentials.user),
            None => users.default_user(),
        }?;
        self.place = Some((users.generation, at));
        Some(at)
    }

    fn standing(&mut self, users: &mut Users, now: Time, timeout: Time) -> Standing {
        let standing = self.look_up(users, now, timeout);
        self.admitted = matches!(standing, Standing::All { .. } | Standing::Some { .. });
        standing
    }

    fn look_up(&mut self, users: &mut Users, now: Time, timeout: Time) -> Standing {
        let all = Standing::All { changed: 0 };
        match users.access {
            Access::Anyone => return all,
            Access::Password(_) if self.user.is_some() => return all,
            Access::Password(_) => return Standing::NotLoggedIn,
            Access::Redis => {}
        }
        let remote = !self.address.is_loopback();
        if users.has_none() {
            return if remote { Standing::Remote } else { all };
        }
        if !users.is_known() {
            users.awaited = true;
            return Standing::Unknown;
        }
        let Some((at, user)) = self.find(users).and_then(|at| Some((at, users.user(at)?))) else {
            return match &self.user {
                Some(login) if users.answered <= login.asked => {
                    // It logged in after the list was made.
                    (users.wanted, users.awaited) = (true, true);
                    Standing::Unknown
                }
                Some(_) => Standing::Gone,
                None => Standing::NotLoggedIn,
            };
        };
        if self.user.is_none() && !user.is_open() {
            return Standing::NotLoggedIn;
        }
        if user.needs_no_password() && remote {
            return Standing::Remote;
        }
        // Whoever needs no login and may do everything may do so while Redis does not answer, too.
        let anybody = self.user.is_none() && user.may_everything();
        if !anybody && users.is_stale(now, timeout) {
            users.awaited = true;
            return Standing::Unknown;
        }
        if user.may_everything() {
            let changed = user.changed;
            return Standing::All { changed };
        }
        Standing::Some { at }
    }

    /// As whom a connection to the store has to log in for this client, tried in this order; none: as the front. Another client of
    /// its user may have shown a newer password.
    fn acts_as(&self, users: &Users, store: Option<&StoreAddress>) -> Vec<Arc<Credentials>> {
        if !users.are_asked_for() || users.has_none() {
            return Vec::new();
        }
        let own = store.map_or(DEFAULT, StoreAddress::user);
        if self.name() == own {
            return Vec::new();
        }
        let default = || Credentials {
            user: DEFAULT.into(),
            // It needs none, so any will do.
            password: Secret::new(b"none"),
        };
        let Some(login) = &self.user else {
            return vec![Arc::new(default())];
        };
        let newest = users.newest_login(self.name());
        let newer = newest.filter(|newest| !Arc::ptr_eq(newest, &login.credentials));
        let all = [Some(&login.credentials), newer];
        all.into_iter().flatten().map(Arc::clone).collect()
    }
}

impl Connection {
    /// Whether the client may run this command. If not, it has the error.
    ///
    /// # Errors
    /// [`Later`]: it is not known yet.
    pub(super) fn admit<U: Upstream>(
        &mut self,
        verdict: &Verdict,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        if matches!(shared.users.access, Access::Anyone) {
            return Ok(true);
        }
        // CLIENT is answered here, even while keys are watched.
        let own = self.mode.watches() && matches!(verdict.action, Action::Local(Local::Client));
        if self.is_passed_on() && !own && !self.goes_by_server_watching(verdict) {
            return Ok(true);
        }
        if let Action::Pass(_) = verdict.action {
            let acts_as = self.gate.acts_as(&shared.users, shared.store.as_ref());
            self.passing.set_acts_as(acts_as);
        }
        let standing = self
            .gate
            .standing(&mut shared.users, shared.now, shared.call_timeout);
        let facts = verdict.facts;
        match standing {
            Standing::All { changed } => self.admit_in_time(changed, facts, arguments, up, shared),
            _ if is_free(verdict, arguments) => Ok(true),
            Standing::Some { at } => self.rule(at, verdict, arguments, up, shared),
            Standing::NotLoggedIn => self.deny(reply::error(NOAUTH), facts, up, shared),
            Standing::Remote => {
                self.flush_pack(up, shared)?;
                self.reply(reply::error(REMOTE));
                self.end.cut_off();
                Ok(false)
            }
            Standing::Gone => {
                tracing::debug!(client = self.peer, "closing: its user is deleted");
                self.abandon();
                Ok(false)
            }
            // It runs on a connection that logs in as the client, even while Redis is busy and says nothing about users.
            Standing::Unknown
                if verdict.action == Action::Pass(Pass::Kill)
                    && self.gate.user.is_some()
                    && shared.users.is_known() =>
            {
                Ok(true)
            }
            Standing::Unknown => self.await_answer(Stage::List, facts, up, shared),
        }
    }

    /// What it sends runs on a connection of its own, where Redis looks.
    fn is_passed_on(&self) -> bool {
        self.mode.watches()
            || self.mode.monitors()
            || (self.passing.subscriptions() > 0 && self.settings.protocol == Protocol::Resp2)
    }

    /// The user may run the command, under rules that `changed` then last.
    fn admit_in_time<U: Upstream>(
        &mut self,
        changed: u64,
        facts: Option<&'static Facts>,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        match facts.map(|facts| facts.name) {
            Some("MULTI") if self.mode.transaction().is_none() => self.gate.multi = changed,
            Some("EXEC") if self.mode.transaction().is_some() && self.gate.multi != changed => {
                self.mode = Mode::Ordinary;
                self.flush_pack(up, shared)?;
                self.reply(reply::error(CHANGED));
                return Ok(false);
            }
            // The store would name the user of the pmnet server.
            Some("ACL") if arguments.is(1, "WHOAMI") && arguments.len() == 2 => {
                let name = reply::bulk(self.gate.name());
                if self.mode.transaction().is_some() {
                    self.queue_own(Own::Reply(name))?;
                    return Ok(false);
                }
                self.flush_pack(up, shared)?;
                self.reply(name);
                return Ok(false);
            }
            _ => {}
        }
        Ok(true)
    }

    /// Whether the user at this place may run the command.
    fn rule<U: Upstream>(
        &mut self,
        at: usize,
        verdict: &Verdict,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        let facts = verdict.facts;
        let queues = self.mode.transaction().is_some();
        let Some(user) = shared.users.user(at) else {
            return self.await_answer(Stage::List, facts, up, shared);
        };
        let (changed, all_keys) = (user.changed, user.sees_all_keys());
        if matches!(verdict.action, Action::Pass(_)) && !queues {
            return Ok(true);
        }
        let ruling = if let Stage::Answered(Answer::May(_)) = &self.gate.stage
            && let Stage::Answered(Answer::May(ruling)) =
                std::mem::replace(&mut self.gate.stage, Stage::Nothing)
        {
            ruling
        } else if let Err((major, minor)) = shared.users.can_be_asked() {
            let error = reply::error(&format!(
                "ERR pmnet: Redis {major}.{minor} does not say what a user may do: with it only users that may do everything \
                 (~* &* +@all) can use the front; Redis 7.0 and newer say it"
            ));
            return self.deny(error, facts, up, shared);
        } else {
            let place = user.place(facts, arguments);
            match user.ruling(&place) {
                Some(ruling) => ruling.clone(),
                None => {
                    let about = About::May {
                        user: user.name.clone(),
                        question: user.question(facts, arguments),
                        place,
                    };
                    return self.await_answer(Stage::New(about), facts, up, shared);
                }
            }
        };
        match ruling {
            Ruling::Denied(error) if facts.is_none() && error.starts_with(b"-ERR Command ") => {
                self.deny(unknown_command(arguments), facts, up, shared)
            }
            Ruling::Denied(error)
                if matches!(verdict.sub, Sub::Unknown) && error.starts_with(b"-ERR Command ") =>
            {
                self.deny(unknown_subcommand(arguments), facts, up, shared)
            }
            Ruling::Denied(error) => self.deny(error, facts, up, shared),
            Ruling::Allowed => {
                if let Some(error) = beyond_its_arguments(facts, arguments, all_keys) {
                    return self.deny(error, facts, up, shared);
                }
                self.admit_in_time(changed, facts, arguments, up, shared)
            }
        }
    }

    /// Answers a command that is not run with an error, as Redis does: inside MULTI, the transaction fails as well.
    pub(super) fn deny<U: Upstream>(
        &mut self,
        error: Bytes,
        facts: Option<&'static Facts>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        self.make_room_for_reply(up, shared)?;
        if facts.is_some_and(|facts| facts.name == "EXEC") && self.mode.take_transaction().is_some()
        {
            let why = String::from_utf8_lossy(error.strip_prefix(b"-").unwrap_or(&error));
            let text = format!(
                "EXECABORT Transaction discarded because of: {}",
                why.trim_end()
            );
            self.reply(reply::error(&text));
            return Ok(false);
        }
        self.fail_transaction();
        self.reply(error);
        Ok(false)
    }

    /// The command waits, as long as it has time.
    fn await_answer<U: Upstream>(
        &mut self,
        stage: Stage,
        facts: Option<&'static Facts>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        // What is in front of it does not wait.
        self.flush_pack(up, shared)?;
        let logs_in = matches!(stage, Stage::New(About::Login { .. }));
        if !logs_in && let Some(busy) = shared.busy.error(shared.now).cloned() {
            // Redis says nothing about rights now, but it would say this.
            self.gate.stage = Stage::Nothing;
            return self.deny(busy, facts, up, shared);
        }
        if self.gate_is_overdue(shared) {
            self.gate.stage = Stage::Nothing;
            self.times.answered = 0;
            let error = reply::error(&format!(
                "ERR pmnet: it is not known what this client may do: the front could not ask Redis{}; the command was not \
                 executed",
                because(&shared.users.trouble)
            ));
            return self.deny(error, facts, up, shared);
        }
        // It has one question at a time: that is its answer which is under way.
        if !matches!(self.gate.stage, Stage::Asked | Stage::New(_)) {
            self.gate.stage = stage;
        }
        Err(Later::Rights)
    }

    /// Whether its command has waited for an answer as long as it may.
    pub(super) fn gate_is_overdue(&self, shared: &Shared) -> bool {
        shared.now >= self.times.begun.saturating_add(shared.call_timeout)
    }

    /// AUTH, or that of HELLO: the reply; `None` if the client has one.
    ///
    /// # Errors
    /// [`Later`]: Redis has not answered yet.
    pub(super) fn log_in<U: Upstream>(
        &mut self,
        user: Option<&[u8]>,
        password: &[u8],
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<Option<Bytes>, Later> {
        let name = user.unwrap_or(DEFAULT);
        let wrong = reply::error(crate::users::WRONGPASS);
        let none_set = reply::error(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        );
        let too_long = name.len().max(password.len()) > crate::users::CREDENTIAL_BYTES_MAX;
        if let Stage::Answered(Answer::Login(_)) = &self.gate.stage
            && let Stage::Answered(Answer::Login(answer)) =
                std::mem::replace(&mut self.gate.stage, Stage::Nothing)
        {
            return Ok(Some(self.logged_in(answer, name, password, shared)));
        }
        if self.passing.subscriptions() > 0 {
            return Ok(Some(reply::error(
                "ERR pmnet: unsubscribe before logging in: subscriptions have the rights of their user",
            )));
        }
        if shared.users.holds_logins(self.gate.address, shared.now) {
            return Ok(Some(reply::error(
                "ERR pmnet: too many failed logins from this address; try again in a second",
            )));
        }
        let answer = match &shared.users.access {
            _ if too_long => wrong,
            Access::Password(secret) => {
                // Compared in any case, so that the time does not tell the user's name.
                let right = secret.is(password);
                if right && name == DEFAULT {
                    reply::OK
                } else {
                    wrong
                }
            }
            // As a Redis whose only user needs no password.
            Access::Anyone if user.is_none() => return Ok(Some(none_set)),
            Access::Anyone => {
                if name == DEFAULT {
                    reply::OK
                } else {
                    wrong
                }
            }
            Access::Redis if shared.users.has_none() && user.is_none() => {
                return Ok(Some(none_set));
            }
            Access::Redis if shared.users.has_none() => {
                if name == DEFAULT {
                    reply::OK
                } else {
                    wrong
                }
            }
            Access::Redis => {
                let about = About::Login {
                    user: user.map(Into::into),
                    password: Secret::new(password),
                };
                self.await_answer(Stage::New(about), None, up, shared)?;
                return Ok(None);
            }
        };
        Ok(Some(self.logged_in(answer, name, password, shared)))
    }

    /// Redis, or the front, has looked at the password.
    fn logged_in(
        &mut self,
        answer: Bytes,
        name: &[u8],
        password: &[u8],
        shared: &mut Shared,
    ) -> Bytes {
        if answer == reply::OK {
            let credentials = Arc::new(Credentials {
                user: name.into(),
                password: Secret::new(password),
            });
            let number = shared.users.note_login(&credentials);
            self.gate.user = Some(Login {
                credentials,
                asked: shared.users.asked,
                number,
            });
            self.gate.place = None;
            // It was made for another user.
            self.passing.direct = None;
        } else if answer.starts_with(b"-WRONGPASS") {
            shared.users.login_failed(self.gate.address, shared.now);
        }
        answer
    }

    /// Whether a client that has not logged in may be let in by HELLO without AUTH.
    ///
    /// # Errors
    /// [`Later`]: it is not known yet.
    pub(super) fn is_logged_in<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        let standing = self
            .gate
            .standing(&mut shared.users, shared.now, shared.call_timeout);
        match standing {
            Standing::NotLoggedIn => Ok(false),
            Standing::Unknown if self.gate.user.is_none() => {
                self.flush_pack(up, shared)?;
                if self.gate_is_overdue(shared) {
                    return Ok(false);
                }
                self.gate.stage = Stage::List;
                Err(Later::Rights)
            }
            // What comes next finds out.
            _ => Ok(true),
        }
    }

    /// Whether it has still to log in, and to show who it is before it sends much.
    ///
    /// # Errors
    /// [`Later`]: it is not known yet.
    pub(super) fn is_stranger<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        let logged_in = self.is_logged_in(up, shared)?;
        let standing = self
            .gate
            .standing(&mut shared.users, shared.now, shared.call_timeout);
        Ok(!logged_in || matches!(standing, Standing::Remote))
    }

    /// As whom it has logged in, if it has; and which of all logins that was.
    pub(crate) fn login(&self) -> Option<(&Credentials, u64)> {
        let login = self.gate.user.as_ref()?;
        Some((&login.credentials, login.number))
    }

    /// Its next question to Redis about itself, once.
    pub(crate) fn take_question(&mut self) -> Option<Question> {
        if !matches!(self.gate.stage, Stage::New(_)) {
            return None;
        }
        let Stage::New(about) = std::mem::replace(&mut self.gate.stage, Stage::Asked) else {
            return None;
        };
        self.gate.questions += 1;
        Some(Question {
            connection: self.id,
            number: self.gate.questions,
            about,
        })
    }

    /// Whether it waits until it is known what its client may do.
    pub(crate) fn waits_for_rights(&self) -> bool {
        self.gate.waits()
    }

    /// Redis has answered the question of this number.
    pub(crate) fn question_answered(&mut self, number: u64, answer: Answer) {
        if matches!(self.gate.stage, Stage::Asked) && self.gate.questions == number {
            self.gate.stage = Stage::Answered(answer);
        }
    }

    /// The list of users came or changed. Whether its user is gone, and it with that.
    pub(crate) fn users_changed(&mut self, shared: &mut Shared) -> bool {
        if matches!(self.gate.stage, Stage::List) {
            self.gate.stage = Stage::Nothing;
        }
        let standing = self
            .gate
            .standing(&mut shared.users, shared.now, shared.call_timeout);
        matches!(standing, Standing::Gone)
    }
}

/// What Redis runs without looking at rights, or refuses whoever sends it.
fn is_free(verdict: &Verdict, arguments: &Arguments<'_>) -> bool {
    let free = |facts: &Facts| FREE.contains(&facts.name);
    verdict.facts.is_some_and(free) || !verdict.arity_fits(arguments)
}

/// The error for a command that does more than its arguments say, which the pmnet server would do with its own rights.
fn beyond_its_arguments(
    facts: Option<&Facts>,
    arguments: &Arguments<'_>,
    all_keys: bool,
) -> Option<Bytes> {
    let name = facts?.name;
    // Code could do more than its user may.
    if runs_code(facts) {
        return Some(reply::error(&format!(
            "ERR pmnet: {} is possible only for a user that may do everything (~* &* +@all): the rights of others would not \
             hold for what the code does",
            shown(arguments)
        )));
    }
    if !name.starts_with("SORT") || all_keys {
        return None;
    }
    let has = |word: &str| (2..arguments.len()).any(|at| arguments.is(at, word));
    let option = ["BY", "GET"].into_iter().find(|option| has(option))?;
    Some(reply::error(&format!(
        "ERR {option} option of SORT denied due to insufficient ACL permissions"
    )))
}

fn because(trouble: &str) -> String {
    if trouble.is_empty() {
        String::new()
    } else {
        format!(" ({trouble})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmnet_resp::{write_bulk, write_header};

    fn users(access: Access, lines: &[&str]) -> Users {
        let mut users = Users::new(access);
        let mut list = Vec::new();
        write_header(&mut list, lines.len());
        for line in lines {
            write_bulk(&mut list, line.as_bytes());
        }
        users.take_list(1, 0, &list.into()).unwrap();
        users
    }

    /// What is known of a client with this address, logged in as this user if there is one.
    fn standing(users: &mut Users, address: &str, user: Option<&str>) -> &'static str {
        let mut gate = Gate::new(address.parse().unwrap());
        gate.user = user.map(|user| {
            let credentials = Credentials {
                user: user.as_bytes().into(),
                password: Secret::new(b""),
            };
            Login {
                credentials: Arc::new(credentials),
                asked: 0,
                number: 1,
            }
        });
        match gate.standing(users, 1, 10) {
            Standing::All { .. } => "all",
            Standing::Some { .. } => "some",
            Standing::NotLoggedIn => "not logged in",
            Standing::Remote => "remote",
            Standing::Gone => "gone",
            Standing::Unknown => "unknown",
        }
    }

    #[test]
    fn who_needs_no_password_comes_from_this_machine() {
        let lines = [
            "user default on nopass ~* &* +@all",
            "user open on nopass ~a &* +@all",
            "user bob on #aa ~* &* +@all",
        ];
        let mut users = users(Access::Redis, &lines);
        for local in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(standing(&mut users, local, None), "all", "{local}");
            assert_eq!(standing(&mut users, local, Some("open")), "some", "{local}");
        }
        for remote in ["10.0.0.1", "2001:db8::1", "::ffff:10.0.0.1", "0.0.0.0"] {
            for user in [None, Some("default"), Some("open")] {
                assert_eq!(
                    standing(&mut users, remote, user),
                    "remote",
                    "{remote} {user:?}"
                );
            }
            assert_eq!(standing(&mut users, remote, Some("bob")), "all", "{remote}");
        }
        // A store without users is one that needs no password.
        users.store_has_none();
        assert_eq!(standing(&mut users, "127.0.0.1", None), "all");
        assert_eq!(standing(&mut users, "10.0.0.1", None), "remote");
    }

    #[test]
    fn who_has_not_logged_in_or_is_not_known_may_nothing() {
        for default in ["on #aa ~* &* +@all", "off nopass ~* &* +@all"] {
            let mut users = users(Access::Redis, &[&format!("user default {default}")]);
            assert_eq!(standing(&mut users, "127.0.0.1", None), "not logged in");
            // Of the first list; it logged in before that.
            assert_eq!(standing(&mut users, "127.0.0.1", Some("bob")), "gone");
            users.forget();
            for user in [None, Some("bob")] {
                assert_eq!(standing(&mut users, "127.0.0.1", user), "unknown");
            }
        }
        let mut none = users(Access::Password(Secret::new(b"x")), &[]);
        assert_eq!(standing(&mut none, "127.0.0.1", None), "not logged in");
        assert_eq!(standing(&mut none, "10.0.0.1", Some("default")), "all");
        let mut anyone = users(Access::Anyone, &[]);
        assert_eq!(standing(&mut anyone, "10.0.0.1", None), "all");
    }
}
