//! The rights of a connection's user: looked up before each command, and asked for where they are not known.
//!
//! A command that has to wait for an answer stays in the input, as does an `AUTH`, and everything after it; it is looked at
//! again when the answer is there. What passes through to the store runs on a connection that has logged in as the user,
//! so Redis itself looks ([`super::back::passing`]). Everything else is executed by the pmnet server, which may do everything, or
//! answered here: so it is looked at here. A script could do more than it says, so it needs a user with all rights.

pub(super) mod admit;
mod login;

use std::net::IpAddr;
use std::sync::Arc;

use super::Shared;
use crate::store::StoreAddress;
use crate::store::rights::{About, Answer, Question};
use crate::upstream::Time;
use crate::users::{Access, Credentials, DEFAULT, Ruling, Secret, Users};

/// Who the client is, and what it has asked.
pub(crate) struct Rights {
    address: IpAddr,
    /// Who it is, if it has logged in.
    user: Option<Login>,
    /// Where that user is in the list of this generation.
    place: Option<(u64, usize)>,
    questions: u64,
    stage: Asking,
    /// The SORT may read its key; now the keys in BY and GET are asked about.
    asks_others: bool,
    /// How many lists of users had been asked for when the command was first to be refused because of what the list says.
    refused: Option<u64>,
    /// When the rights had changed last at the beginning of the present transaction.
    multi: u64,
    /// It has not logged in, and need not, as far as was last known.
    admitted: bool,
    /// How many lists of users had been asked for when it came.
    came: u64,
    /// Whether it needed no login when it came: then it needs none later, as in Redis. As far as that is known, of these
    /// [`Users::of_store`].
    let_in: Option<(u64, bool)>,
}

struct Login {
    credentials: Arc<Credentials>,
    /// How many lists of users had been asked for by then.
    asked: u64,
    /// Which of all logins it is.
    number: u64,
}

/// The question that a command waits for.
#[derive(Debug)]
pub(super) enum Asking {
    Nothing,
    /// A newer list of users is needed.
    List,
    /// To be handed out.
    New(About),
    Asked,
    Answered(Answer),
}

impl Asking {
    /// Whether it asks about a password.
    pub(super) fn is_login(&self) -> bool {
        matches!(self, Asking::New(About::Login { .. }))
    }
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

impl Rights {
    pub(super) fn new(address: IpAddr) -> Rights {
        Rights {
            address: address.to_canonical(),
            user: None,
            place: None,
            questions: 0,
            stage: Asking::Nothing,
            asks_others: false,
            refused: None,
            multi: 0,
            admitted: false,
            came: 0,
            let_in: None,
        }
    }

    /// As if freshly connected.
    pub(crate) fn reset(&mut self, users: &Users) {
        self.user = None;
        self.place = None;
        self.admitted = false;
        self.came = users.asked;
        self.let_in = None;
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

    /// Whether its command waits for an answer.
    pub(crate) fn waits(&self) -> bool {
        !matches!(self.stage, Asking::Nothing | Asking::Answered(_))
    }

    /// Redis's answer about the command that comes next, once.
    fn take_ruling(&mut self) -> Option<Ruling> {
        match std::mem::replace(&mut self.stage, Asking::Nothing) {
            Asking::Answered(Answer::May(ruling)) => Some(ruling),
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// The command that comes next need not be asked about any more.
    fn forget_ruling(&mut self) {
        self.take_ruling();
    }

    /// The command that was asked about is over: an answer that comes now is about nothing.
    pub(super) fn command_over(&mut self) {
        self.stage = Asking::Nothing;
        self.asks_others = false;
        self.refused = None;
    }

    /// Whether a command that the list of users forbids needs a newer list: the right may have been given meanwhile.
    fn needs_newer_list(&mut self, users: &mut Users) -> bool {
        let asked = *self.refused.get_or_insert(users.asked);
        let older = users.answered <= asked;
        users.wanted |= older;
        users.awaited |= older;
        older
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

    fn standing(&mut self, shared: &mut Shared) -> Standing {
        self.standing_in(&mut shared.users, shared.now, shared.call_timeout)
    }

    fn standing_in(&mut self, users: &mut Users, now: Time, timeout: Time) -> Standing {
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
        if self.user.is_none() && !user.is_open() && (remote || !self.was_let_in(users)) {
            return Standing::NotLoggedIn;
        }
        if user.needs_no_password() && remote {
            return Standing::Remote;
        }
        // A client that needs no login and may do everything may do so while Redis does not answer, too.
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

    /// Whether it needed no login when it came.
    fn was_let_in(&mut self, users: &Users) -> bool {
        if let Some((store, let_in)) = self.let_in
            && store == users.of_store
        {
            return let_in;
        }
        let let_in = users.was_open(self.came);
        self.let_in = let_in.map(|let_in| (users.of_store, let_in));
        let_in.unwrap_or(false)
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

impl Rights {
    /// Returns the credentials with which it has logged in, and the number of that login among all; `None`: it has not.
    pub(crate) fn login(&self) -> Option<(&Credentials, u64)> {
        let login = self.user.as_ref()?;
        Some((&login.credentials, login.number))
    }

    /// Its next question to Redis about itself, once.
    pub(super) fn take_question(&mut self, connection: u64) -> Option<Question> {
        if !matches!(self.stage, Asking::New(_)) {
            return None;
        }
        let Asking::New(about) = std::mem::replace(&mut self.stage, Asking::Asked) else {
            return None;
        };
        self.questions += 1;
        Some(Question {
            connection,
            number: self.questions,
            about,
        })
    }

    /// Redis has answered the question of this number.
    pub(crate) fn answered(&mut self, number: u64, answer: Answer) {
        if matches!(self.stage, Asking::Asked) && self.questions == number {
            self.stage = Asking::Answered(answer);
        }
    }

    /// The list of users came or changed. Whether its user is gone, and it with that.
    pub(crate) fn users_changed(&mut self, shared: &mut Shared) -> bool {
        if matches!(self.stage, Asking::List) {
            self.stage = Asking::Nothing;
        }
        // The list before this change is forgotten at the next one.
        self.was_let_in(&shared.users);
        matches!(self.standing(shared), Standing::Gone)
    }

    /// Its command waits for this, unless a question of its own is under way: it has one at a time.
    pub(super) fn ask(&mut self, stage: Asking) {
        if !matches!(self.stage, Asking::Asked | Asking::New(_)) {
            self.stage = stage;
        }
    }

    /// Its command waits for a newer list of users, whatever it has waited for.
    pub(super) fn await_list(&mut self) {
        self.stage = Asking::List;
    }

    /// Its command waits no longer.
    pub(super) fn stop_asking(&mut self) {
        self.stage = Asking::Nothing;
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
        let mut rights = Rights::new(address.parse().unwrap());
        rights.user = user.map(|user| {
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
        match rights.standing_in(users, 1, 10) {
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
