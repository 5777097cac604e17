//! Flags about connections to etcd, which several commands share. A role with a section in the configuration file has
//! the same keys in that section.

use std::path::PathBuf;

use clap::Args;
use pmnet_cli::{ConfigError, password};
use pmnet_fleet::{Access, Login, Members, Names};

use super::keys::leave_no_dump;

/// Help of `--etcd`.
pub const ETCD_HELP: &str = "With --fleet: the members of etcd, https://HOST:2379 (http:// without TLS), with commas between them";
pub const ETCD_CA_HELP: &str = "With https://: certificates (PEM) of the authorities that etcd's certificate may come from [default: those of the system]";
pub const ETCD_CERT_HELP: &str = "Certificate (PEM) to show to etcd. The files of --etcd-cert, --etcd-key and --etcd-ca are read again when they change";
pub const ETCD_KEY_HELP: &str = "Key of --etcd-cert (PEM)";
pub const ETCD_USER_HELP: &str = "User of etcd [default: none]";
pub const ETCD_PASSWORD_HELP: &str =
    "File whose first line is the password of --etcd-user. It is read again at each login to etcd";

/// The flags about etcd.
#[derive(Clone, Debug, Default, Args)]
pub struct EtcdArgs {
    /// URLs of etcd's members.
    #[arg(long, value_name = "URL,…", help = ETCD_HELP)]
    pub etcd: Option<String>,
    /// File with the certificates of the authorities that sign etcd's certificates.
    #[arg(long, value_name = "FILE", help = ETCD_CA_HELP)]
    pub etcd_ca: Option<PathBuf>,
    /// File with the certificate of this process.
    #[arg(long, value_name = "FILE", help = ETCD_CERT_HELP)]
    pub etcd_cert: Option<PathBuf>,
    /// File with the private key of `etcd_cert`.
    #[arg(long, value_name = "FILE", help = ETCD_KEY_HELP)]
    pub etcd_key: Option<PathBuf>,
    /// Name of the user as which this process logs in at etcd.
    #[arg(long, value_name = "NAME", help = ETCD_USER_HELP)]
    pub etcd_user: Option<String>,
    /// File with the password of `etcd_user`.
    #[arg(long, value_name = "FILE", help = ETCD_PASSWORD_HELP)]
    pub etcd_password_file: Option<PathBuf>,
}

/// Returns a role's settings about etcd. Each role has these fields itself and no flattened [`EtcdArgs`], because serde
/// accepts unknown keys in a section with flattened fields.
macro_rules! etcd_args {
    ($role:expr) => {
        $crate::cli::etcd::EtcdArgs {
            etcd: $role.etcd.clone(),
            etcd_ca: $role.etcd_ca.clone(),
            etcd_cert: $role.etcd_cert.clone(),
            etcd_key: $role.etcd_key.clone(),
            etcd_user: $role.etcd_user.clone(),
            etcd_password_file: $role.etcd_password_file.clone(),
        }
    };
}
pub(in crate::cli) use etcd_args;

impl EtcdArgs {
    /// Merges these flags with `below`: a setting that the flags do not give comes from `below`.
    pub fn over(self, below: EtcdArgs) -> EtcdArgs {
        EtcdArgs {
            etcd: self.etcd.or(below.etcd),
            etcd_ca: self.etcd_ca.or(below.etcd_ca),
            etcd_cert: self.etcd_cert.or(below.etcd_cert),
            etcd_key: self.etcd_key.or(below.etcd_key),
            etcd_user: self.etcd_user.or(below.etcd_user),
            etcd_password_file: self.etcd_password_file.or(below.etcd_password_file),
        }
    }

    /// Returns an error if any setting about etcd is given. This function is for commands without `--fleet`, where such
    /// a setting has no effect.
    pub fn nothing(&self) -> Result<(), ConfigError> {
        let files = [
            &self.etcd_ca,
            &self.etcd_cert,
            &self.etcd_key,
            &self.etcd_password_file,
        ];
        if self.etcd.is_none() && self.etcd_user.is_none() && files.iter().all(|it| it.is_none()) {
            return Ok(());
        }
        Err(ConfigError(
            "--etcd belongs to --fleet: give the fleet's name".into(),
        ))
    }

    /// Returns the members of etcd, and the names of the keys of a shard of this fleet.
    pub fn of(&self, fleet: &str, shard: u32) -> Result<(Members, Names), ConfigError> {
        let members = self.members()?;
        let names = Names::new(fleet, shard).map_err(ConfigError)?;
        Ok((members, names))
    }

    /// Returns the members of etcd.
    pub fn members(&self) -> Result<Members, ConfigError> {
        let wrong = |text: &str| Err(ConfigError(text.to_owned()));
        let Some(etcd) = &self.etcd else {
            return wrong(
                "--etcd is missing: give it, or etcd = … in the role's section of --config",
            );
        };
        let identity = match (&self.etcd_cert, &self.etcd_key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            _ => return wrong("a certificate needs its key: give --etcd-cert and --etcd-key"),
        };
        let login = match (&self.etcd_user, &self.etcd_password_file) {
            (Some(user), Some(file)) => Some(Login {
                user: user.clone(),
                password_file: file.clone(),
                read: |file| {
                    leave_no_dump();
                    password("--etcd-password-file", file).map_err(|error| error.to_string())
                },
            }),
            (None, None) => None,
            _ => return wrong("give --etcd-user and --etcd-password-file, or neither"),
        };
        let access = Access {
            ca: self.etcd_ca.clone(),
            identity,
            login,
        };
        Members::new(etcd, access).map_err(ConfigError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_is_needed_is_an_error() {
        let file = || Some(PathBuf::from("/none/such"));
        let args = EtcdArgs {
            etcd: Some("https://a:1".into()),
            ..EtcdArgs::default()
        };
        for (args, said) in [
            (EtcdArgs::default(), "--etcd is missing"),
            (
                EtcdArgs {
                    etcd_cert: file(),
                    ..args.clone()
                },
                "--etcd-cert and --etcd-key",
            ),
            (
                EtcdArgs {
                    etcd_user: Some("u".into()),
                    ..args.clone()
                },
                "--etcd-user and --etcd-password-file",
            ),
            (
                EtcdArgs {
                    etcd_ca: file(),
                    ..args.clone()
                },
                "/none/such",
            ),
        ] {
            let error = args.members().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
            let below = EtcdArgs::default().over(args.clone());
            assert_eq!(below.nothing().is_err(), args.nothing().is_err());
        }
        assert!(args.nothing().is_err());
    }
}
