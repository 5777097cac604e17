//! The rights of a connection's user. The front looks up the rights before each command, and asks Redis for rights that
//! it does not know.
//!
//! If a command, or an `AUTH`, has to wait for an answer, it stays in the input, and so do all later commands. When the
//! answer has come, the command is checked again. A command that passes through to the store runs on a connection that
//! is logged in as the user, so Redis itself checks the rights ([`super::back::passing`]). All other commands are
//! executed by the pmnet server, which has all rights, or by the front, so the front checks the rights. A script could
//! do more than its arguments say, so it needs a user with all rights.

pub(super) mod admit;
mod login;

use std::net::IpAddr;
use std::sync::Arc;

use super::Shared;
use crate::store::StoreAddress;
use crate::store::rights::{About, Answer, Question};
use crate::upstream::Time;
use crate::users::{Access, Credentials, DEFAULT, Ruling, Secret, Users};

/// The client's user, and its questions to Redis.
pub(crate) struct Rights {
    address: IpAddr,
    /// The user, if the client has logged in.
    user: Option<Login>,
    /// The user's place in the list of users, with the generation of that list.
    place: Option<(u64, usize)>,
    questions: u64,
    stage: Asking,
    /// Whether a SORT may read its own key, and Redis is being asked about the keys in BY and GET.
    asks_others: bool,
    /// Number of lists of users that had been requested when the list first forbade the present command.
    refused: Option<u64>,
    /// Time of the last change of the rights, as known when the present transaction began.
    multi: u64,
    /// Whether the client has not logged in, and by the last known list of users need not log in.
    admitted: bool,
    /// Number of lists of users that had been requested when the client connected.
    came: u64,
    /// The value of [`Users::of_store`] for which the second field holds, and whether the client needed no login when
    /// it connected. As in Redis, a client that needed no login when it connected never needs one later.
    let_in: Option<(u64, bool)>,
}

struct Login {
    credentials: Arc<Credentials>,
    /// Number of lists of users that had been requested at the login.
    asked: u64,
    /// Number of this login among all logins of the front.
    number: u64,
}

/// The question that a command waits for.
#[derive(Debug)]
pub(super) enum Asking {
    Nothing,
    /// A newer list of users is needed.
    List,
    /// The question must be given to the front.
    New(About),
    Asked,
    Answered(Answer),
}

impl Asking {
    /// Whether the question is about a password.
    pub(super) fn is_login(&self) -> bool {
        matches!(self, Asking::New(About::Login { .. }))
    }
}

/// The present knowledge of a client's rights.
enum Standing {
    All {
        changed: u64,
    },
    /// The rights of the user at this place of the list.
    Some {
        at: usize,
    },
    NotLoggedIn,
    Remote,
    /// The user is deleted.
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

    /// Sets the rights back to those of a new connection.
    pub(crate) fn reset(&mut self, users: &Users) {
        self.user = None;
        self.place = None;
        self.admitted = false;
        self.came = users.asked;
        self.let_in = None;
    }

    /// Whether the client may still have to log in.
    pub(super) fn may_be_stranger(&self, users: &Users) -> bool {
        self.user.is_none() && !matches!(users.access, Access::Anyone)
    }

    /// Whether the client needs no login, by the last known list of users.
    pub(super) fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// Returns the name of the client's user.
    pub(super) fn name(&self) -> &[u8] {
        self.user
            .as_ref()
            .map_or(DEFAULT, |login| &login.credentials.user)
    }

    /// Whether the client's command waits for an answer.
    pub(crate) fn waits(&self) -> bool {
        !matches!(self.stage, Asking::Nothing | Asking::Answered(_))
    }

    /// Takes out Redis's answer about the next command.
    fn take_ruling(&mut self) -> Option<Ruling> {
        match std::mem::replace(&mut self.stage, Asking::Nothing) {
            Asking::Answered(Answer::May(ruling)) => Some(ruling),
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// Drops the answer about the next command.
    fn forget_ruling(&mut self) {
        self.take_ruling();
    }

    /// Notes that the command is over. A later answer about this command is ignored.
    pub(super) fn command_over(&mut self) {
        self.stage = Asking::Nothing;
        self.asks_others = false;
        self.refused = None;
    }

    /// Whether a command that the list of users forbids needs a newer list, because the right may have been given in
    /// the meantime.
    fn needs_newer_list(&mut self, users: &mut Users) -> bool {
        let asked = *self.refused.get_or_insert(users.asked);
        let older = users.answered <= asked;
        users.wanted |= older;
        users.awaited |= older;
        older
    }

    /// Returns the place of the client's user in the list of users.
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
                    // The client logged in after Redis made the list.
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
        // A client that needs no login and has all rights keeps them while Redis does not answer.
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

    /// Whether the client needed no login when it connected.
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

    /// Returns the logins that a connection to the store must try for this client, in this order. If the list is empty,
    /// the front's login is used. Another client of the same user may have logged in with a newer password.
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
            // The user needs no password, so any password will do.
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
    /// Returns the credentials of the client's login, and the number of that login among all; `None`: the
    /// client has not logged in.
    pub(crate) fn login(&self) -> Option<(&Credentials, u64)> {
        let login = self.user.as_ref()?;
        Some((&login.credentials, login.number))
    }

    /// Returns the client's next question to Redis about the client's own user. Returns each question once.
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

    /// Takes Redis's answer to the question of this number.
    pub(crate) fn answered(&mut self, number: u64, answer: Answer) {
        if matches!(self.stage, Asking::Asked) && self.questions == number {
            self.stage = Asking::Answered(answer);
        }
    }

    /// Notes that the list of users has come or has changed. Returns whether the client must be disconnected, because
    /// its user is deleted.
    pub(crate) fn users_changed(&mut self, shared: &mut Shared) -> bool {
        if matches!(self.stage, Asking::List) {
            self.stage = Asking::Nothing;
        }
        // The previous list is forgotten at the next change, so the answer of the previous list is read now.
        self.was_let_in(&shared.users);
        matches!(self.standing(shared), Standing::Gone)
    }

    /// Makes the client's command wait for the answer to a question. A question that is under way continues:
    /// a client has one question at a time.
    pub(super) fn ask(&mut self, stage: Asking) {
        if !matches!(self.stage, Asking::Asked | Asking::New(_)) {
            self.stage = stage;
        }
    }

    /// Makes the client's command wait for a newer list of users, whatever it waited for before.
    pub(super) fn await_list(&mut self) {
        self.stage = Asking::List;
    }

    /// Ends the wait of the client's command.
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

    /// Returns the known state of a client with this address. `user`: the user as which the client has logged in.
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
        // A store without users needs no password.
        users.store_has_none();
        assert_eq!(standing(&mut users, "127.0.0.1", None), "all");
        assert_eq!(standing(&mut users, "10.0.0.1", None), "remote");
    }

    #[test]
    fn who_has_not_logged_in_or_is_not_known_may_nothing() {
        for default in ["on #aa ~* &* +@all", "off nopass ~* &* +@all"] {
            let mut users = users(Access::Redis, &[&format!("user default {default}")]);
            assert_eq!(standing(&mut users, "127.0.0.1", None), "not logged in");
            // Only one list of users has come, and the client logged in before it came.
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
