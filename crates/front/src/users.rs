//! Access and rights: the front's clients log in as Redis's users, or all with one password, or need no login.
//!
//! Purpose: no client may do through pmnet what Redis would refuse it. Redis itself checks the password
//! ([`crate::store`]'s `rights`), lists its users and their rules twice a second, and says what a user may (`ACL DRYRUN`); here is what it
//! said ([`Users`]), as long as the user's rules are the same. A user with all rights costs a look-up; so does a
//! command of a user whose rules do not look at keys and channels. Any other question is asked once for each command and keys.
//! Invariants: nothing is allowed that Redis has not allowed under the present rules, as far as the front knows them; all
//! tables are bounded; a password is in no log and no error.
//! It may not touch sockets or clocks.

mod access;
mod failures;
mod list;
mod rights;

pub use access::{Access, Secret};
pub(crate) use list::Reads;
pub(crate) use rights::{Place, Ruling, Users};

/// The user of a client that has not logged in.
pub(crate) const DEFAULT: &[u8] = b"default";
/// Redis's answer to a wrong password.
pub(crate) const WRONGPASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
/// Longest name of a user and longest password, in bytes.
pub(crate) const CREDENTIAL_BYTES_MAX: usize = 1024;

/// A user, and how it has shown that it is that.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) user: Box<[u8]>,
    pub(crate) password: Secret,
}
