//! `--key` and `--insecure` of the roles: which keys a process has, and whether it may run without keys.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use pmnet_cli::{ConfigError, on_reload};
use pmnet_client::Latest;
use pmnet_keys::{Cluster, Front, KeyFileError};
use pmnet_proto::keys::ClusterKeys;
use pmnet_wire::FrontKey;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// A role's settings about its keys.
#[derive(Clone, Debug, Default)]
pub struct KeyArgs {
    /// Path of the role's key file (`--key`).
    pub key: Option<PathBuf>,
    /// The role may run without a key even if other machines can reach it (`--insecure`).
    pub insecure: bool,
}

/// The path of a key file, and the keys that were read from it.
#[derive(Clone, Debug)]
pub struct InUse<T> {
    path: PathBuf,
    read: fn(&Path) -> Result<T, KeyFileError>,
    pub keys: Latest<T>,
}

/// The keys of devices and servers.
pub type OfCluster = InUse<ClusterKeys>;
/// The key of a front.
pub type OfFront = InUse<FrontKey>;

/// Returns a role's settings about its key. Each role has these fields itself, like the fields about etcd.
macro_rules! key_args {
    ($role:expr) => {
        $crate::cli::keys::KeyArgs::of($role.key.clone(), $role.insecure)
    };
}
pub(in crate::cli) use key_args;

impl KeyArgs {
    /// Makes the settings from the values of `--key` and `--insecure`.
    pub const fn of(key: Option<PathBuf>, insecure: bool) -> KeyArgs {
        KeyArgs { key, insecure }
    }

    /// Merges these flags with the configuration file: a setting that the flags do not give comes from the file. A key
    /// in the flags takes precedence over `insecure` in the file. But if the flags have `insecure` and the file has a
    /// key, both count, which is an error ([`KeyArgs::of_cluster`]).
    pub fn over(self, file: KeyArgs) -> KeyArgs {
        KeyArgs {
            insecure: self.insecure || (file.insecure && self.key.is_none()),
            key: self.key.or(file.key),
        }
    }

    /// Returns the hosts with which a process may exchange packets.
    pub const fn reach(&self) -> Reach {
        if self.key.is_some() || self.insecure {
            Reach::Everywhere
        } else {
            Reach::ThisMachine
        }
    }

    /// Reads the cluster's key. `None`: the process may run without a key, because all of `reached_by` are loopback
    /// addresses, or because `--insecure` is given.
    pub fn of_cluster(&self, reached_by: &[SocketAddr]) -> Result<Option<OfCluster>, ConfigError> {
        self.read(reached_by, |path| Ok(Cluster::read(path)?.keys()))
    }

    /// Reads the front's key. `None`: the front may run without a key, because all `devices` are on this machine, or
    /// because `--insecure` is given.
    pub fn of_front(&self, devices: &[SocketAddr]) -> Result<Option<OfFront>, ConfigError> {
        self.read(devices, |path| Ok(Front::read(path)?.key))
    }

    fn read<T: Clone>(
        &self,
        addresses: &[SocketAddr],
        read: fn(&Path) -> Result<T, KeyFileError>,
    ) -> Result<Option<InUse<T>>, ConfigError> {
        let Some(path) = &self.key else {
            return self.reach().check(addresses).map(|()| None);
        };
        if self.insecure {
            return Err(ConfigError(
                "--insecure says that there is no key, and --key names one: leave one of them out (it may stand in the environment, PMNET_…_INSECURE, \
                 or in the configuration file)"
                    .into(),
            ));
        }
        leave_no_dump();
        let keys = read(path).map_err(|error| ConfigError(format!("--key: {error}")))?;
        let (path, keys) = (path.clone(), Latest::new(keys));
        Ok(Some(InUse { path, read, keys }))
    }
}

/// The hosts with which a process may exchange packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All hosts: the process has a key, or the operator has stated trust in the hosts.
    Everywhere,
    /// Only this machine, because the process has no key.
    ThisMachine,
}

impl Reach {
    /// Returns the first address with which the process may not exchange packets.
    pub fn beyond(self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let is_elsewhere = |at: &&SocketAddr| !at.ip().to_canonical().is_loopback();
        match self {
            Reach::Everywhere => None,
            Reach::ThisMachine => addresses.iter().find(is_elsewhere).copied(),
        }
    }

    /// Returns an error if the process may not exchange packets with one of these addresses.
    pub fn check(self, addresses: &[SocketAddr]) -> Result<(), ConfigError> {
        self.beyond(addresses).map_or(Ok(()), |at| {
            Err(ConfigError(format!(
                "--key is missing, and {at} is not an address of this machine alone: without keys, every host that can send packets there can write, \
                 and pass for a device. Make keys with pmnet key (docs/operate/keys.md) and give --key FILE to all processes of the shard; or state \
                 with --insecure that all these hosts are trusted"
            )))
        })
    }

    /// Returns the new addresses of a front's devices, if the front may exchange packets with all of them. Otherwise
    /// logs that the front does not use the new addresses.
    pub fn now(self, devices: Vec<SocketAddr>) -> Option<Vec<SocketAddr>> {
        let Some(at) = self.beyond(&devices) else {
            return Some(devices);
        };
        tracing::warn!(
            "PM3008 device {at} is not on this machine, and this front has no key: it goes on with the devices that it knows. Give it --key FILE, \
             or state with --insecure that all these hosts are trusted"
        );
        None
    }
}

/// Prevents that the kernel writes dumps of this process's memory, and that unprivileged processes read the memory.
/// Must be called before a key or a password is read. By default the kernel permits both.
pub fn leave_no_dump() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::debug!(%error, "a dump of this process would show its keys and passwords");
    }
}

impl<T: Clone + Send + 'static> InUse<T> {
    /// From now on, reads the file again at each SIGHUP. If the file is wrong, the present keys stay in use.
    pub fn read_again_on_hangup(&self) {
        let Self { path, read, keys } = self.clone();
        on_reload(&format!("key file {}", path.display()), move || {
            let read = read(&path)
                .map_err(|error| format!("PM6033 {error}. The keys stay as they were"))?;
            keys.replace(read);
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmnet_keys::{FrontName, KeyFile};

    fn here() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 2], 51_000))
    }

    fn elsewhere() -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 51_000))
    }

    #[test]
    fn a_process_that_others_can_reach_has_a_key_or_says_that_it_is_insecure() {
        let (none, insecure) = (
            KeyArgs::default(),
            KeyArgs {
                insecure: true,
                ..KeyArgs::default()
            },
        );
        let everywhere = SocketAddr::from(([0, 0, 0, 0], 1));
        assert!(none.of_cluster(&[here(), here()]).unwrap().is_none());
        for at in [elsewhere(), everywhere] {
            let error = none.of_front(&[here(), at]).unwrap_err().to_string();
            assert!(error.contains("--key is missing") && error.contains("--insecure"));
            assert!(error.contains(&at.to_string()), "{error}");
            assert!(insecure.of_front(&[at]).unwrap().is_none());
        }
    }

    /// etcd on this machine names devices on other machines.
    #[test]
    fn a_front_without_a_key_is_told_of_devices_on_this_machine_only() {
        let none = KeyArgs::default().reach();
        assert_eq!(none.now(vec![here()]), Some(vec![here()]));
        assert_eq!(none.now(vec![here(), elsewhere()]), None);
        assert!(none.check(&[here()]).is_ok());
        let error = none.check(&[here(), elsewhere()]).unwrap_err().to_string();
        assert!(error.contains("10.0.0.1:51000"), "{error}");
        for args in [
            KeyArgs::of(Some("/k".into()), false),
            KeyArgs::of(None, true),
        ] {
            assert_eq!(args.reach().now(vec![elsewhere()]), Some(vec![elsewhere()]));
        }
    }

    /// An old service unit still sets the variable for `--insecure`, although the file has a key now.
    #[test]
    fn insecure_takes_no_key_away() {
        let key = || KeyArgs::of(Some("/none/such".into()), false);
        let insecure = || KeyArgs::of(None, true);
        let error = insecure().over(key()).of_cluster(&[]).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("--insecure says that there is no key"),
            "{error}"
        );
        let file = KeyArgs::of(Some("/another".into()), true);
        for below in [insecure(), file, KeyArgs::default()] {
            let found = key().over(below);
            assert_eq!(found.key, Some("/none/such".into()));
            assert!(!found.insecure);
        }
        assert!(KeyArgs::default().over(insecure()).insecure);
    }

    #[test]
    fn a_process_with_a_key_leaves_no_dump_of_its_memory() {
        let _ = KeyArgs::of(Some("/none/such".into()), false).of_cluster(&[]);
        let found = rustix::process::dumpable_behavior().unwrap();
        assert_eq!(found, DumpableBehavior::NotDumpable);
    }

    #[test]
    fn each_role_takes_the_file_that_is_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let (of_cluster, of_front) = (folder.path().join("c.key"), folder.path().join("f.key"));
        let cluster = Cluster::draw().unwrap();
        KeyFile::Cluster(cluster.clone())
            .create(&of_cluster)
            .unwrap();
        let front = cluster.front(FrontName::new("web").unwrap());
        KeyFile::Front(front.clone()).create(&of_front).unwrap();
        let with = |path: &Path| KeyArgs {
            key: Some(path.to_owned()),
            insecure: false,
        };
        let found = with(&of_cluster).of_cluster(&[elsewhere()]).unwrap();
        assert_eq!(found.unwrap().keys.follow().0.present, cluster.present);
        let found = with(&of_front).of_front(&[elsewhere()]).unwrap();
        assert_eq!(found.unwrap().keys.follow().0, front.key);
        let wrong = with(&of_front).of_cluster(&[]).unwrap_err().to_string();
        assert!(wrong.contains("key of the front web"), "{wrong}");
        let wrong = with(&of_cluster).of_front(&[]).unwrap_err().to_string();
        assert!(wrong.contains("no front may have"), "{wrong}");
        let missing = with(Path::new("/none/such")).of_front(&[]).unwrap_err();
        assert!(
            missing
                .to_string()
                .starts_with("--key: key file /none/such")
        );
        let both = KeyArgs {
            insecure: true,
            ..with(&of_front)
        };
        assert!(both.of_front(&[]).is_err());
    }
}
