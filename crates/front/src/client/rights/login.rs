//! Logging in: AUTH, and HELLO with AUTH.

use std::sync::Arc;

use bytes::Bytes;
use pmnet_resp::reply;

use super::admit::Admission;
use super::{Asking, Login, Rights, Standing};
use crate::client::Shared;
use crate::client::back::passing::Passing;
use crate::store::rights::{About, Answer};
use crate::upstream::Time;
use crate::users::{Access, Credentials, DEFAULT, Secret, is_password};

const HELLO_NOAUTH: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> \
                            option can be used to authenticate the client and select the RESP protocol version at the same time";

impl Rights {
    /// Logs in by AUTH, or by the AUTH of HELLO. Returns the reply to the login.
    ///
    /// # Errors
    /// The question that Redis has to answer first.
    pub(in crate::client) fn log_in(
        &mut self,
        user: Option<&[u8]>,
        password: &[u8],
        passing: &mut Passing,
        shared: &mut Shared,
    ) -> Result<Bytes, Asking> {
        let name = user.unwrap_or(DEFAULT);
        let wrong = reply::error(crate::users::WRONGPASS);
        let none_set = reply::error(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        );
        let too_long = name.len().max(password.len()) > crate::users::CREDENTIAL_BYTES_MAX;
        if let Asking::Answered(Answer::Login(_)) = &self.stage
            && let Asking::Answered(Answer::Login(answer)) =
                std::mem::replace(&mut self.stage, Asking::Nothing)
        {
            return Ok(self.logged_in(answer, name, password, passing, shared));
        }
        if passing.subscriptions() > 0 {
            return Ok(reply::error(
                "ERR pmnet: unsubscribe before logging in: subscriptions have the rights of their user",
            ));
        }
        if passing.has_state() {
            return Ok(reply::error(
                "ERR pmnet: commands of this client have set a state of its connection, which a login would lose: send RESET before \
                 it, or log in on another connection",
            ));
        }
        if shared.users.holds_logins(self.address, shared.now) {
            return Ok(reply::error(
                "ERR pmnet: too many failed logins from this address; try again in a second",
            ));
        }
        let answer = match &shared.users.access {
            _ if too_long => wrong,
            Access::Password(secret) => {
                // The passwords are compared in any case, so that the time does not reveal whether the user
                // exists.
                let right = is_password(secret, password);
                if right && name == DEFAULT {
                    reply::OK
                } else {
                    wrong
                }
            }
            // The reply is that of a Redis whose only user needs no password.
            Access::Anyone if user.is_none() => return Ok(none_set),
            Access::Anyone => {
                if name == DEFAULT {
                    reply::OK
                } else {
                    wrong
                }
            }
            Access::Redis if shared.users.has_none() && user.is_none() => {
                return Ok(none_set);
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
                return Err(Asking::New(about));
            }
        };
        Ok(self.logged_in(answer, name, password, passing, shared))
    }

    /// Takes the result of a password check by Redis or by the front.
    fn logged_in(
        &mut self,
        answer: Bytes,
        name: &[u8],
        password: &[u8],
        passing: &mut Passing,
        shared: &mut Shared,
    ) -> Bytes {
        if answer == reply::OK {
            let credentials = Arc::new(Credentials {
                user: name.into(),
                password: Secret::new(password),
            });
            let number = shared.users.note_login(&credentials);
            self.user = Some(Login {
                credentials,
                asked: shared.users.asked,
                number,
            });
            self.place = None;
            // The client's connection to the store was made for the previous user.
            passing.drop_direct();
        } else if answer.starts_with(b"-WRONGPASS") {
            shared.users.login_failed(self.address, shared.now);
        }
        answer
    }

    /// Decides whether a HELLO without AUTH is accepted from this client.
    pub(in crate::client) fn greets(&mut self, shared: &mut Shared) -> Admission {
        match self.standing(shared) {
            Standing::NotLoggedIn => Admission::Answered(reply::error(HELLO_NOAUTH)),
            Standing::Unknown if self.user.is_none() => Admission::Awaits(Asking::List),
            // At the next command it will be known whether the client may use the front.
            _ => Admission::Admitted,
        }
    }

    /// Whether the client still has to log in before it may send large commands; `None`: not known yet.
    pub(in crate::client) fn is_stranger(
        &mut self,
        begun: Time,
        shared: &mut Shared,
    ) -> Option<bool> {
        match self.standing(shared) {
            Standing::NotLoggedIn | Standing::Remote => Some(true),
            Standing::Unknown if self.user.is_none() => {
                (shared.now >= shared.deadline(begun)).then_some(true)
            }
            _ => Some(false),
        }
    }
}
