//! Temporary errors: Redis has refused a call before any of its commands ran, so the call can be tried again.
//!
//! All other code takes the list of these errors from this module. The request script gets the list at the start of its
//! text (`passing_lua!`).

/// First words of the errors by which Redis refuses a command for the moment.
macro_rules! not_now {
    () => {
        "OOM READONLY LOADING BUSY MISCONF NOREPLICAS MASTERDOWN CLUSTERDOWN TRYAGAIN NOAUTH"
    };
}

/// Expands to the line of Lua that gives this list to a script, as one string.
macro_rules! passing_lua {
    () => {
        concat!(
            "local NOT_NOW = '",
            $crate::redis::passing::not_now!(),
            "'\n"
        )
    };
}

pub(crate) use {not_now, passing_lua};

fn code(error: &str) -> &str {
    error.split(' ').next().unwrap_or("")
}

/// Returns whether the error is temporary. The refused command may be pmnet's or a client's.
#[must_use]
pub fn is_not_now(error: &str) -> bool {
    not_now!().split(' ').any(|word| word == code(error))
}

/// Returns whether the error may be temporary, for a command that must not get lost. If the error may be temporary, the
/// whole batch waits and is tried again, in order. `NOPERM` counts as temporary: a mistake in an operator's ACL must
/// not lose promised updates.
#[must_use]
pub fn is_passing(error: &str) -> bool {
    is_not_now(error) || code(error) == "NOPERM"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_by_their_first_word() {
        for error in ["OOM command not allowed", "BUSY Redis is busy", "NOAUTH"] {
            assert!(is_not_now(error) && is_passing(error), "{error}");
        }
        let rights = "NOPERM User pmnet has no permissions";
        assert!(is_passing(rights) && !is_not_now(rights));
        for error in [
            "BUSYGROUP Consumer Group name already exists",
            "ERR BUSY",
            "WRONGTYPE x",
            "",
        ] {
            assert!(!is_passing(error), "{error}");
        }
    }

    #[test]
    fn a_script_is_told_the_list() {
        assert!(passing_lua!().starts_with("local NOT_NOW = 'OOM READONLY "));
        assert!(passing_lua!().ends_with(" NOAUTH'\n"));
    }
}
