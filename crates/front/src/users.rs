//! Access and rights: the front's clients log in as Redis's users, or all clients log in with one password, or no
//! client needs a login.
//!
//! Purpose: through pmnet no client may do what Redis would refuse to this client. Redis itself checks the password
//! ([`crate::store`]'s `rights`), lists its users and their rules twice a second, and answers whether a user may run a
//! command (`ACL DRYRUN`). [`Users`] keeps each permission until the next list arrives, even if that list is equal to
//! the list before. A refusal is never kept. Between two lists the front asks nothing about a user that may do
//! everything. About any other user, the front asks once for each combination of a command and its keys. If the rights
//! of a user do not depend on keys and channels, the front asks about most commands by name alone. Invariants: nothing
//! is allowed that Redis has not allowed under the present rules, as far as the front knows them. All tables are
//! bounded. A password appears in no log and no error. Not allowed here: sockets and clocks.

mod access;
mod failures;
mod list;
mod rights;

pub use access::Access;
pub(crate) use access::is_password;
pub(crate) use list::Reads;
pub use pmnet_tls::Secret;
pub(crate) use rights::{Place, Ruling, Users};

/// The user of a client that has not logged in.
pub(crate) const DEFAULT: &[u8] = b"default";
/// Redis's answer to a wrong password.
pub(crate) const WRONGPASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
/// Longest name of a user and longest password, in bytes.
pub(crate) const CREDENTIAL_BYTES_MAX: usize = 1024;

/// A user and the password of its login.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) user: Box<[u8]>,
    pub(crate) password: Secret,
}
