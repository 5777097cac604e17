//! The rules of access to a front, as the command line and the configuration file give them.

use std::net::SocketAddr;
use std::path::PathBuf;

use pmnet_cli::{ConfigError, password};
use pmnet_front::{Access, Secret};
use serde::{Deserialize, Serialize, Serializer};

use super::keys::leave_no_dump;

/// A password in the configuration file. The text of the password is never shown.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Hidden(String);

// `Debug` is written by hand, so that no password gets into a log.
impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hidden(…)")
    }
}

// `Serialize` is written by hand, because a comparison of settings uses it and must treat all
// passwords as equal.
impl Serialize for Hidden {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("…")
    }
}

/// The settings about access to a front.
#[derive(Debug, Default)]
pub struct Said {
    pub users_of_redis: bool,
    pub anyone_may_connect: bool,
    pub requirepass: Option<Hidden>,
    pub requirepass_file: Option<PathBuf>,
}

impl Said {
    pub fn is_something(&self) -> bool {
        self.count() > 0
    }

    fn count(&self) -> usize {
        let ways = [
            self.users_of_redis,
            self.anyone_may_connect,
            self.requirepass.is_some(),
            self.requirepass_file.is_some(),
        ];
        ways.into_iter().filter(|way| *way).count()
    }
}

/// Returns the rules of access to a front that listens at `listen`.
pub fn access(said: Said, listen: SocketAddr) -> Result<Access, ConfigError> {
    if said.count() > 1 {
        return Err(ConfigError(
            "--users-of-redis, --requirepass-file (or requirepass) and --anyone-may-connect exclude each other: choose one"
                .into(),
        ));
    }
    if said.anyone_may_connect {
        return Ok(Access::Anyone);
    }
    let own = match (said.requirepass, said.requirepass_file) {
        (Some(Hidden(text)), _) if text.is_empty() => {
            return Err(ConfigError("requirepass is empty".into()));
        }
        (Some(Hidden(text)), _) => Some(text),
        (None, Some(path)) => Some(password("--requirepass-file", &path)?),
        (None, None) => None,
    };
    if let Some(text) = own {
        leave_no_dump();
        return Ok(Access::Password(Secret::new(text.as_bytes())));
    }
    if !said.users_of_redis && !listen.ip().to_canonical().is_loopback() {
        return Err(ConfigError(format!(
            "--listen {listen}: others than this machine can connect there, so say who may: --users-of-redis (whoever can log \
             in to Redis, with his rights there), --requirepass-file FILE (whoever knows one password), or \
             --anyone-may-connect"
        )));
    }
    Ok(Access::Redis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(listen: &str, said: Said) -> Result<Access, String> {
        access(said, listen.parse().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn who_may_connect_from_elsewhere_has_to_be_said() {
        for listen in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(
                matches!(at(listen, Said::default()), Ok(Access::Redis)),
                "{listen}"
            );
        }
        for listen in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            let error = at(listen, Said::default()).unwrap_err();
            assert!(error.contains("say who may: --users-of-redis"), "{error}");
            let users = Said {
                users_of_redis: true,
                ..Said::default()
            };
            assert!(matches!(at(listen, users), Ok(Access::Redis)));
            let anyone = Said {
                anyone_may_connect: true,
                ..Said::default()
            };
            assert!(matches!(at(listen, anyone), Ok(Access::Anyone)));
            let password = Said {
                requirepass: Some(Hidden("s3cret".into())),
                ..Said::default()
            };
            assert!(!format!("{password:?}").contains("s3cret"));
            assert!(matches!(at(listen, password), Ok(Access::Password(_))));
        }
    }

    #[test]
    fn one_way_is_chosen() {
        let both = Said {
            users_of_redis: true,
            anyone_may_connect: true,
            ..Said::default()
        };
        assert!(at("127.0.0.1:1", both).unwrap_err().contains("choose one"));
        let both = Said {
            requirepass: Some(Hidden("s3cret".into())),
            requirepass_file: Some("/none".into()),
            ..Said::default()
        };
        let error = at("127.0.0.1:1", both).unwrap_err();
        assert!(
            error.contains("choose one") && !error.contains("s3cret"),
            "{error}"
        );
        let empty = Said {
            requirepass: Some(Hidden(String::new())),
            ..Said::default()
        };
        assert!(at("127.0.0.1:1", empty).unwrap_err().contains("is empty"));
        let none = Said {
            requirepass_file: Some("/none/such".into()),
            ..Said::default()
        };
        assert!(at("127.0.0.1:1", none).is_err());
    }
}
