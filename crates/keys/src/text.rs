//! The text of a key file, which is TOML.

use crate::file::Wrong;
use crate::{Cluster, Front, FrontName, KeyFile, Refused, hex};
use pmnet_wire::{ClusterKey, FrontId, FrontKey, KEY_BYTES};
use serde::{Deserialize, Serialize};

/// Prefix of an id in the list of refused fronts. A name cannot begin with this prefix.
const ID: &str = "id:";

const OF_CLUSTER: &str = "\
# A cluster key of pmnet, for its devices and servers. A holder of it can speak as any of them.
# Never give it to a front or a program: make a key for each (pmnet key front NAME).
";
const OF_FRONT: &str = "\
# The key of one front, or one program, of pmnet. A holder of it can write any key of the store.
";

/// Fields that a file must have.
const NEEDED: [&str; 4] = ["kind", "key", "name", "id"];
/// The beginnings of the parser's messages, each with its replacement.
const FAULTS: [(&str, &str); 3] = [
    ("unknown field", "a name that no key file has"),
    (
        "unknown variant",
        "kind is neither \"cluster\" nor \"front\"",
    ),
    ("invalid type", "a value that is no text in quotes"),
];

/// The fields of a key file.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum Written {
    Cluster {
        key: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        accept: Option<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        refused: Vec<String>,
    },
    Front {
        name: String,
        id: String,
        key: String,
    },
}

/// Returns the keys in this text.
pub fn understand(text: &str) -> Result<KeyFile, Wrong> {
    let written = toml::from_str(text).map_err(|error| {
        let line = error
            .span()
            .map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        wrong(format!(
            "line {line}: {}: this is no key file (make one with pmnet key new, or pmnet key front)",
            fault(error.message())
        ))
    })?;
    match written {
        Written::Cluster {
            key,
            accept,
            refused,
        } => cluster(&key, accept.as_deref(), &refused).map(KeyFile::Cluster),
        Written::Front { name, id, key } => front(&name, &id, &key).map(KeyFile::Front),
    }
}

/// Returns the parser's error in pmnet's own words, because the parser's message may quote a line with a key.
fn fault(message: &str) -> String {
    let missing = |name: &&&str| message == format!("missing field `{name}`");
    if let Some(name) = NEEDED.iter().find(missing) {
        return format!("{name} is missing");
    }
    let known = FAULTS
        .iter()
        .find(|(begins, _)| message.starts_with(begins));
    known.map_or("it is no TOML", |(_, says)| says).into()
}

fn wrong(text: impl Into<String>) -> Wrong {
    Wrong::Text(text.into())
}

fn cluster(key: &str, accept: Option<&str>, refused: &[String]) -> Result<Cluster, Wrong> {
    let present = ClusterKey::new(bytes("key", key)?);
    let other = accept
        .map(|text| bytes("accept", text).map(ClusterKey::new))
        .transpose()?;
    if other == Some(present) {
        return Err(wrong("accept: it is the same key as key: leave it out"));
    }
    let refused = refused.iter().zip(1..);
    let refused = refused.map(|(text, number)| refused_front(number, text));
    Ok(Cluster {
        present,
        other,
        refused: refused.collect::<Result<_, _>>()?,
    })
}

/// Parses an entry in the list of refused fronts. `number`: the position of the entry, counted from 1.
fn refused_front(number: usize, text: &str) -> Result<Refused, Wrong> {
    let found = match text.strip_prefix(ID) {
        Some(digits) => id(digits).map(Refused::Id),
        None => FrontName::new(text).map(Refused::Name),
    };
    found.ok_or_else(|| {
        wrong(format!(
            "refused: number {number} of the list is neither the name of a front nor {ID} and 16 hexadecimal digits"
        ))
    })
}

fn front(name: &str, id_text: &str, key: &str) -> Result<Front, Wrong> {
    let name = FrontName::new(name)
        .ok_or_else(|| wrong("name: 1 to 64 letters, digits, '.', '_' and '-' are needed"))?;
    let id = id(id_text).ok_or_else(|| wrong("id: 16 hexadecimal digits are needed, not all 0"))?;
    let key = FrontKey::new(id, bytes("key", key)?);
    Ok(Front { name, key })
}

fn bytes(what: &str, text: &str) -> Result<[u8; KEY_BYTES], Wrong> {
    let bytes = hex::read(text).ok_or_else(|| {
        wrong(format!(
            "{what}: {} hexadecimal digits are needed, and it has {} characters",
            2 * KEY_BYTES,
            text.chars().count()
        ))
    })?;
    if bytes == [0; KEY_BYTES] {
        return Err(wrong(format!(
            "{what}: all its digits are 0, which anybody can guess"
        )));
    }
    Ok(bytes)
}

fn id(digits: &str) -> Option<FrontId> {
    hex::read(digits).and_then(|bytes| FrontId::new(u64::from_be_bytes(bytes)))
}

/// Returns a front's id as hexadecimal digits.
pub fn id_text(id: FrontId) -> String {
    hex::written(&id.get().to_be_bytes())
}

/// Returns the text of a key file with these keys.
pub fn written(file: &KeyFile) -> String {
    let (head, body) = match file {
        KeyFile::Cluster(cluster) => (
            OF_CLUSTER,
            Written::Cluster {
                key: hex::written(cluster.present.bytes()),
                accept: cluster.other.map(|key| hex::written(key.bytes())),
                refused: cluster.refused.iter().map(refused_text).collect(),
            },
        ),
        KeyFile::Front(front) => (
            OF_FRONT,
            Written::Front {
                name: front.name.to_string(),
                id: id_text(front.key.id()),
                key: hex::written(front.key.bytes()),
            },
        ),
    };
    let body = toml::to_string(&body).expect("texts and lists of texts can be written");
    format!("{head}{body}")
}

/// Returns the text of an entry in the list of refused fronts.
pub fn refused_text(refused: &Refused) -> String {
    match refused {
        Refused::Name(name) => name.to_string(),
        Refused::Id(id) => format!("{ID}{}", id_text(*id)),
    }
}
