//! Redis Sentinel: the answer of one Sentinel about a master (`super::masters` asks all Sentinels).

use pmnet_resp::read;
use pmnet_server::StoreError;

use super::cluster;
use super::connection::Connection;
use super::masters::Master;
use super::url::RedisUrl;

/// Asks a Sentinel for the master of this name.
///
/// # Errors
/// The reason why there is no answer.
pub fn ask(
    place: &(String, u16),
    name: &str,
    url: &RedisUrl,
    link: &mut Option<Connection>,
) -> Result<Master, String> {
    let link = match link {
        Some(link) => link,
        None => link.insert(open(place, url)?),
    };
    let reply = link.call(&[b"SENTINEL", b"MASTER", name.as_bytes()]);
    let reply = reply.map_err(StoreError::into_text)?;
    if let Some(error) = read::error(&reply) {
        return Err(refusal(error));
    }
    parse(&reply).ok_or_else(|| "its answer is not understood".into())
}

/// Connects, and logs in if there is a password for Sentinels.
///
/// # Errors
/// The reason why there is no connection.
pub fn open(place: &(String, u16), url: &RedisUrl) -> Result<Connection, String> {
    cluster::log_in(&url.guide(place)?).map_err(|error| refusal(&error))
}

/// Returns a Sentinel's error. If the error is about the Sentinel's users, the text says what the operator can do.
fn refusal(error: &str) -> String {
    let about_users = ["NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH"];
    if about_users.iter().any(|code| error.starts_with(code)) {
        format!(
            "{error} Give the Sentinels' password with --sentinel-password-file, and a user with sentinel_user=NAME in --store"
        )
    } else {
        error.to_owned()
    }
}

/// Reads a reply that lists names and values alternately.
fn parse(reply: &[u8]) -> Option<Master> {
    let fields = read::elements(reply)?;
    let value = |name: &str| {
        let pairs = fields.chunks_exact(2);
        let texts = pairs.map(|pair| Some((read::text(pair[0])?, read::text(pair[1])?)));
        let found = texts.flatten().find(|(key, _)| *key == name.as_bytes());
        found.and_then(|(_, value)| std::str::from_utf8(value).ok())
    };
    Some(Master {
        host: value("ip").filter(|host| !host.is_empty())?.to_owned(),
        port: value("port")?.parse().ok().filter(|port| *port != 0)?,
        epoch: value("config-epoch")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master(port: u16, epoch: u64) -> Master {
        Master {
            host: "10.0.0.2".into(),
            port,
            epoch,
        }
    }

    #[test]
    fn an_answer_is_read_and_what_is_none_is_not() {
        let reply = |pairs: &[(&str, &str)]| {
            let mut text = format!("*{}\r\n", pairs.len() * 2);
            for word in pairs.iter().flat_map(|(name, value)| [name, value]) {
                text += &format!("${}\r\n{word}\r\n", word.len());
            }
            text.into_bytes()
        };
        let whole = [
            ("name", "m"),
            ("ip", "10.0.0.2"),
            ("port", "6379"),
            ("flags", "master"),
            ("config-epoch", "7"),
        ];
        assert_eq!(parse(&reply(&whole)), Some(master(6379, 7)));
        for (at, bad) in [(1, ""), (2, "0"), (2, "70000"), (4, "x")] {
            let mut pairs = whole;
            pairs[at].1 = bad;
            assert_eq!(parse(&reply(&pairs)), None, "{bad}");
        }
        for foreign in [&b"+OK\r\n"[..], b"*0\r\n", b"*1\r\n$1\r\nx\r\n"] {
            assert_eq!(parse(foreign), None);
        }
    }
}
