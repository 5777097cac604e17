//! Logging in: AUTH, and HELLO with AUTH.

use std::sync::Arc;

use bytes::Bytes;
use pmnet_resp::reply;

use super::{Asking, Login, Standing};
use crate::client::{Connection, Later, Shared};
use crate::store::rights::{About, Answer};
use crate::upstream::Upstream;
use crate::users::{Access, Credentials, DEFAULT, Secret};

const HELLO_NOAUTH: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> \
                            option can be used to authenticate the client and select the RESP protocol version at the same time";

impl Connection {
    /// AUTH, or that of HELLO: the reply; `None` if the client has one.
    ///
    /// # Errors
    /// [`Later`]: Redis has not answered yet.
    pub(in crate::client) fn log_in<U: Upstream>(
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
        if let Asking::Answered(Answer::Login(_)) = &self.rights.stage
            && let Asking::Answered(Answer::Login(answer)) =
                std::mem::replace(&mut self.rights.stage, Asking::Nothing)
        {
            return Ok(Some(self.logged_in(answer, name, password, shared)));
        }
        if self.passing.subscriptions() > 0 {
            return Ok(Some(reply::error(
                "ERR pmnet: unsubscribe before logging in: subscriptions have the rights of their user",
            )));
        }
        if self.passing.has_state() {
            return Ok(Some(reply::error(
                "ERR pmnet: commands of this client have set a state of its connection, which a login would lose: send RESET before \
                 it, or log in on another connection",
            )));
        }
        if shared.users.holds_logins(self.rights.address, shared.now) {
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
                self.await_answer(Asking::New(about), None, up, shared)?;
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
            self.rights.user = Some(Login {
                credentials,
                asked: shared.users.asked,
                number,
            });
            self.rights.place = None;
            // It was made for another user.
            self.passing.drop_direct();
        } else if answer.starts_with(b"-WRONGPASS") {
            shared.users.login_failed(self.rights.address, shared.now);
        }
        answer
    }

    /// Whether a client may be let in by HELLO without AUTH. If not, it has the error.
    ///
    /// # Errors
    /// [`Later`]: it is not known yet.
    pub(in crate::client) fn may_greet<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        match self
            .rights
            .standing(&mut shared.users, shared.now, shared.call_timeout)
        {
            Standing::NotLoggedIn => {
                self.reply(reply::error(HELLO_NOAUTH));
                Ok(false)
            }
            Standing::Unknown if self.rights.user.is_none() => {
                self.await_answer(Asking::List, None, up, shared)
            }
            // What comes next finds out.
            _ => Ok(true),
        }
    }

    /// Whether it has still to log in, and to show who it is before it sends much.
    ///
    /// # Errors
    /// [`Later`]: it is not known yet.
    pub(in crate::client) fn is_stranger<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        let standing = self
            .rights
            .standing(&mut shared.users, shared.now, shared.call_timeout);
        if matches!(standing, Standing::Unknown)
            && self.rights.user.is_none()
            && !self.rights_are_overdue(shared)
        {
            self.flush_pack(up, shared)?;
            self.rights.stage = Asking::List;
            return Err(Later::Rights);
        }
        let is_stranger = self.rights.user.is_none() && matches!(standing, Standing::Unknown);
        Ok(is_stranger || matches!(standing, Standing::NotLoggedIn | Standing::Remote))
    }
}
