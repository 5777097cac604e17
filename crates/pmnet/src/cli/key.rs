//! `pmnet key`: makes key files, and shows the contents of a key file.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use pmnet_cli::{ConfigError, tell, tell_all};
use pmnet_keys::{Cluster, Front, FrontName, KeyFile, id_text, key_text, refused_text};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  pmnet key new /etc/pmnet/cluster.key
  pmnet key front web --of /etc/pmnet/cluster.key web.key
  pmnet key show web.key
  pmnet key new next.key
  pmnet key both --send cluster.key --accept next.key step1.key
  pmnet key copy /run/secrets/cluster.key /run/pmnet/cluster.key

All devices and servers of a cluster have the same file. Each front and each program has its own file. Only the \
owner can read the files, and only `copy` overwrites an existing file. docs/operate/keys.md says how to distribute \
keys, and how to change them while everything runs.";

/// The command line of `pmnet key`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct KeyCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a new cluster key, for devices and servers.
    New {
        /// The new file.
        file: PathBuf,
        /// Print one JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Make the key of a front or of a program. The key is computed from the cluster's key and the name.
    Front {
        /// Name of the front or program: 1 to 64 letters, digits, '.', '_' and '-'.
        name: String,
        /// The new file.
        file: PathBuf,
        /// The file of the cluster.
        #[arg(long, value_name = "FILE")]
        of: PathBuf,
        /// Print one JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Make a cluster's file with two keys, for a step of the change from one key to the other.
    Both {
        /// The new file.
        file: PathBuf,
        /// The file with the key under which devices and servers are to send.
        #[arg(long, value_name = "FILE")]
        send: PathBuf,
        /// The file with the key that devices and servers are to accept in addition.
        #[arg(long, value_name = "FILE")]
        accept: PathBuf,
        /// Print one JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Copy a key file that its group can read, such as a mounted secret, to a file that only the owner can read.
    Copy {
        /// The existing file. Only its owner and its group may have the right to read it.
        from: PathBuf,
        /// The copy. A file with this name is replaced.
        file: PathBuf,
        /// Print one JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Show the fingerprints and names of the keys in a file.
    Show {
        /// The file.
        file: PathBuf,
        /// Also show the secret keys themselves. Make sure that no other person sees or records the terminal.
        #[arg(long)]
        keys: bool,
        /// Print one JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub fn main(command: &KeyCommand) -> anyhow::Result<bool> {
    match &command.what {
        What::New { file, json } => {
            let cluster =
                Cluster::draw().context("the operating system gives no random numbers")?;
            create(file, KeyFile::Cluster(cluster), *json)?;
        }
        What::Front {
            name,
            file,
            of,
            json,
        } => {
            let name = front_name(name)?;
            let front = Cluster::read(of)?.front(name);
            create(file, KeyFile::Front(front), *json)?;
        }
        What::Both {
            file,
            send,
            accept,
            json,
        } => {
            let both = both(Cluster::read(send)?, Cluster::read(accept)?)?;
            create(file, KeyFile::Cluster(both), *json)?;
        }
        What::Copy { from, file, json } => {
            say(file, &KeyFile::copy(from, file)?, false, *json);
        }
        What::Show { file, keys, json } => {
            say(file, &KeyFile::read(file)?, *keys, *json);
        }
    }
    Ok(true)
}

fn front_name(text: &str) -> Result<FrontName, ConfigError> {
    FrontName::new(text).ok_or_else(|| {
        ConfigError(format!(
            "{text:?}: the name of a front has 1 to 64 letters, digits, '.', '_' and '-'"
        ))
    })
}

/// Returns the contents of a cluster file that sends under the key of `send`, and also accepts the key of `accept`.
/// Every front that one of the two files refuses is refused.
fn both(send: Cluster, accept: Cluster) -> Result<Cluster, ConfigError> {
    if send.present == accept.present {
        let text = "--send and --accept have the same key: nothing would change";
        return Err(ConfigError(text.into()));
    }
    let mut both = send;
    both.other = Some(accept.present);
    for refused in accept.refused {
        if !both.refused.contains(&refused) {
            both.refused.push(refused);
        }
    }
    Ok(both)
}

fn create(path: &Path, file: KeyFile, json: bool) -> anyhow::Result<()> {
    file.create(path)?;
    say(path, &file, false, json);
    Ok(())
}

fn say(path: &Path, file: &KeyFile, keys: bool, json: bool) {
    let about = match file {
        KeyFile::Cluster(cluster) => of_cluster(cluster, keys),
        KeyFile::Front(front) => of_front(front, keys),
    };
    if json {
        let mut object = about;
        object["file"] = json!(path.display().to_string());
        tell(format_args!("{object}"));
    } else {
        tell_all(format_args!("{}", as_text(path, &about)));
    }
}

fn of_cluster(cluster: &Cluster, keys: bool) -> Value {
    let mut about = json!({
        "kind": "cluster",
        "cluster": format!("{:08x}", cluster.present.fingerprint()),
        "accepts": cluster.other.map(|key| format!("{:08x}", key.fingerprint())),
        "refused": cluster.refused.iter().map(refused_text).collect::<Vec<_>>(),
    });
    if keys {
        about["key"] = json!(key_text(cluster.present.bytes()));
        about["accepted_key"] = json!(cluster.other.map(|key| key_text(key.bytes())));
    }
    about
}

fn of_front(front: &Front, keys: bool) -> Value {
    let mut about = json!({
        "kind": "front",
        "cluster": format!("{:08x}", front.cluster()),
        "name": front.name.as_str(),
        "id": id_text(front.key.id()),
    });
    if keys {
        about["key"] = json!(key_text(front.key.bytes()));
    }
    about
}

/// Returns the fields of `about` as text, one field a line.
fn as_text(path: &Path, about: &Value) -> String {
    let mut text = format!("file          {}\n", path.display());
    for (field, called) in [
        ("kind", "key of a"),
        ("name", "name"),
        ("id", "id"),
        ("cluster", "cluster"),
        ("accepts", "accepts"),
        ("key", "key"),
        ("accepted_key", "accepted key"),
    ] {
        if let Some(value) = about[field].as_str() {
            text += &format!("{called:<14}{value}\n");
        }
    }
    for refused in about["refused"].as_array().into_iter().flatten() {
        text += &format!("refused front {}\n", refused.as_str().unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_only_if_that_is_asked_for() {
        let cluster = Cluster::draw().unwrap();
        let secret = key_text(cluster.present.bytes());
        let front = cluster.front(front_name("web").unwrap());
        let of_its_own = key_text(front.key.bytes());
        for (about, secret, keys) in [
            (of_cluster(&cluster, false), &secret, false),
            (of_cluster(&cluster, true), &secret, true),
            (of_front(&front, false), &of_its_own, false),
            (of_front(&front, true), &of_its_own, true),
        ] {
            let text = as_text(Path::new("a.key"), &about) + &about.to_string();
            assert_eq!(text.contains(secret), keys, "{text}");
            let print = format!("{:08x}", cluster.present.fingerprint());
            assert!(text.contains(&print), "{text}");
        }
    }

    #[test]
    fn a_file_of_two_keys_sends_under_the_first_and_refuses_what_either_refuses() {
        let refusing = |names: &[&str]| {
            let text = names.iter().map(|name| front_name(name).unwrap());
            Cluster {
                refused: text.map(pmnet_keys::Refused::Name).collect(),
                ..Cluster::draw().unwrap()
            }
        };
        let (one, other) = (refusing(&["a"]), refusing(&["a", "b"]));
        let found = both(one.clone(), other.clone()).unwrap();
        assert_eq!(found.present, one.present);
        assert_eq!(found.other, Some(other.present));
        assert_eq!(found.refused, other.refused);
        assert!(both(one.clone(), one).is_err());
    }
}
