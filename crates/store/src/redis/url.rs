//! Parses the address of a Redis. There are three forms. `redis://[[user]:password@]host[:port][/0][?wait_replicas=N]`
//! (with TLS `rediss://…[?ca=FILE&cert=FILE&key=FILE]`) is a Redis.
//! `redis+sentinel://[[user]:password@]host[:port],…/NAME[?wait_replicas=N]` is the master that Sentinels name.
//! `redis+cluster://[[user]:password@]host[:port],…/SLOTS[?wait_replicas=N]` is the master of a Redis Cluster that
//! serves these slots. `rediss+sentinel://` and `rediss+cluster://` use TLS to all hosts that are named or found.

use pmnet_tls::{ClientTls, Secret};
use pmnet_wire::percent_decode;
use pmnet_wire::slots::parse_slots;

use super::masters::{ASKED_MAX, Guides, Wanted, endpoint};
use crate::{OpenError, Passwords};

/// Port of a Redis server if the URL names no port.
const PORT_DEFAULT: u16 = 6379;
/// Port of a Sentinel if the URL names no port.
const SENTINEL_PORT_DEFAULT: u16 = 26379;
/// Maximum number of replicas for which a URL may ask writes to wait.
pub const WAIT_REPLICAS_MAX: u32 = 64;

/// A parsed store address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    /// Host name or address; an IPv6 address is without its brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// ACL user, if one is named.
    pub user: Option<String>,
    /// Password, if one is given.
    pub password: Option<Secret>,
    /// Number of replicas that must have a batch before it counts as durable; 0: no replica is needed.
    pub wait_replicas: u32,
    /// Settings of TLS, if it is used.
    pub tls: Option<ClientTls>,
    /// The name that all certificates must have. `None`: each certificate must have the host name by which its server
    /// is reached.
    pub tls_name: Option<String>,
    /// Processes to ask for the master's host and port, if Sentinels or nodes name the master.
    pub guides: Option<Guides>,
}

impl RedisUrl {
    /// Returns the settings for another Redis, at `host` and `port`. User and password stay the same; for TLS, the
    /// other Redis's certificate must name `host`.
    ///
    /// # Errors
    /// If no certificate can have that name, a sentence that says this.
    pub fn at(&self, host: &str, port: u16) -> Result<RedisUrl, String> {
        let renamed = |tls: &ClientTls| match self.tls_name {
            None => tls.named(host),
            Some(_) => Ok(tls.clone()),
        };
        let tls = self.tls.as_ref().map(renamed).transpose();
        Ok(RedisUrl {
            host: host.to_owned(),
            port,
            tls: tls.map_err(|error| error.to_string())?,
            ..self.clone()
        })
    }

    /// Returns the settings for a connection to one of the processes that are asked for the master. A Sentinel has
    /// users of its own.
    ///
    /// # Errors
    /// The errors of [`RedisUrl::at`].
    pub fn guide(&self, (host, port): &(String, u16)) -> Result<RedisUrl, String> {
        let mut url = self.at(host, *port)?;
        if let Some(Guides {
            wanted: Wanted::Named(_),
            user,
            password,
            ..
        }) = &self.guides
        {
            (url.user, url.password) = (user.clone(), password.clone());
        }
        Ok(url)
    }

    /// Parses the URL of a Redis; returns `None` if the URL is that of another store. `passwords` take the place of
    /// passwords in the URL.
    ///
    /// # Errors
    /// [`OpenError::Url`] with the reason; a password is never repeated.
    pub fn read(url: &str, passwords: &Passwords) -> Result<Option<RedisUrl>, OpenError> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Ok(None);
        };
        let mut read = match scheme {
            "redis" => RedisUrl::parse(rest, false)?,
            "rediss" => RedisUrl::parse(rest, true)?,
            "redis+sentinel" => RedisUrl::parse_sentinel(rest, false)?,
            "redis+cluster" => RedisUrl::parse_cluster(rest, false)?,
            "rediss+sentinel" => RedisUrl::parse_sentinel(rest, true)?,
            "rediss+cluster" => RedisUrl::parse_cluster(rest, true)?,
            _ => return Ok(None),
        };
        if let Some(password) = &passwords.store {
            read.password = Some(password.clone());
        }
        read.take_sentinel_password(passwords.sentinel.as_ref())?;
        Ok(Some(read))
    }

    fn take_sentinel_password(&mut self, password: Option<&Secret>) -> Result<(), OpenError> {
        let wrong = |why: &str| Err(OpenError::Url { why: why.into() });
        match (&mut self.guides, password) {
            (Some(guides), Some(password)) if matches!(guides.wanted, Wanted::Named(_)) => {
                guides.password = Some(password.clone());
                Ok(())
            }
            (_, Some(_)) => {
                wrong("--sentinel-password-file: only redis+sentinel:// asks Sentinels")
            }
            (Some(guides), None) if guides.user.is_some() => {
                wrong("sentinel_user needs its password: give it with --sentinel-password-file")
            }
            (_, None) => Ok(()),
        }
    }

    /// Parses the text after `redis+sentinel://`. Until the Sentinels have answered, host and port are those of the
    /// first Sentinel.
    ///
    /// # Errors
    /// [`OpenError::Url`] with the reason; the password is never repeated.
    pub fn parse_sentinel(rest: &str, secure: bool) -> Result<RedisUrl, OpenError> {
        RedisUrl::parse_guided(rest, secure, SENTINEL_PORT_DEFAULT, |name| {
            if name.is_empty() || name.contains('/') {
                return Err(
                    "the master's name is missing: redis+sentinel://HOST:PORT,HOST:PORT/NAME"
                        .into(),
                );
            }
            Ok(Wanted::Named(name.to_owned()))
        })
    }

    /// Parses the text after `redis+cluster://`. Until the nodes have answered, host and port are those of the first
    /// node.
    ///
    /// # Errors
    /// The errors of [`RedisUrl::parse_sentinel`].
    pub fn parse_cluster(rest: &str, secure: bool) -> Result<RedisUrl, OpenError> {
        RedisUrl::parse_guided(rest, secure, PORT_DEFAULT, |slots| {
            if slots.is_empty() {
                return Err(
                    "the slots of the shard are missing: redis+cluster://HOST:PORT,HOST:PORT/0-5460".into(),
                );
            }
            let slots = parse_slots(slots).map_err(|error| error.to_string())?;
            Ok(Wanted::Slots(slots))
        })
    }

    /// Parses `HOST:PORT,HOST:PORT/WANTED`. WANTED is the master's name (Sentinel) or the shard's slots (Cluster). A host without a port gets `port`.
    fn parse_guided(
        rest: &str,
        secure: bool,
        port: u16,
        wanted: impl Fn(&str) -> Result<Wanted, String>,
    ) -> Result<RedisUrl, OpenError> {
        let wrong = |why: String| OpenError::Url { why };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (credentials, place) = rest
            .rsplit_once('@')
            .map_or((None, rest), |(c, p)| (Some(c), p));
        let (hosts, name) = place.split_once('/').unwrap_or((place, ""));
        let wanted = wanted(name).map_err(wrong)?;
        let mut places = Vec::new();
        for host in hosts.split(',') {
            let parsed = RedisUrl::parse(host.trim(), false)?;
            let bare = parsed.host.len() + 2 * usize::from(host.contains('[')) == host.trim().len();
            let place = (parsed.host, if bare { port } else { parsed.port });
            if places.contains(&place) {
                return Err(wrong(format!(
                    "{} is named twice: each counts once when a majority is asked for",
                    endpoint(&place)
                )));
            }
            places.push(place);
        }
        if places.len() > ASKED_MAX {
            return Err(wrong(format!(
                "{} hosts are named: at most {ASKED_MAX}",
                places.len()
            )));
        }
        let credentials = credentials.map_or_else(String::new, |text| format!("{text}@"));
        let first = hosts.split(',').next().unwrap_or_default().trim();
        let (user, query) = match &wanted {
            Wanted::Named(_) => sentinel_user(query)?,
            Wanted::Slots(_) => (None, query.to_owned()),
        };
        let url = RedisUrl::parse(&format!("{credentials}{first}?{query}"), secure)?;
        Ok(RedisUrl {
            guides: Some(Guides {
                places,
                wanted,
                user,
                password: None,
            }),
            ..url
        })
    }

    /// Parses the text after `redis://`, or with `secure` the text after `rediss://`.
    ///
    /// # Errors
    /// [`OpenError::Url`] with the reason; the password is never repeated.
    pub fn parse(rest: &str, secure: bool) -> Result<RedisUrl, OpenError> {
        let wrong = |why: String| OpenError::Url { why };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (credentials, place) = rest
            .rsplit_once('@')
            .map_or((None, rest), |(c, p)| (Some(c), p));
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        if !matches!(path, "" | "0") {
            return Err(wrong(format!(
                "the database /{path} cannot be chosen here: pmnet keeps its records in database 0, \
                 and clients choose theirs with SELECT"
            )));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, after) = v6
                    .split_once(']')
                    .ok_or_else(|| wrong("an IPv6 address must end with ']'".into()))?;
                (
                    host,
                    after.strip_prefix(':').or((after.is_empty()).then_some("")),
                )
            }
            None => {
                let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
                (host, Some(port))
            }
        };
        let port = match port {
            Some("") => PORT_DEFAULT,
            Some(port) => port.parse().ok().filter(|&p| p != 0).ok_or_else(|| {
                wrong(format!(
                    "{port:?} is no TCP port (IPv6 addresses go in brackets)"
                ))
            })?,
            None => return Err(wrong("only :PORT may follow ']'".into())),
        };
        if host.is_empty() {
            return Err(wrong("the host is missing: redis://HOST:PORT".into()));
        }
        let (user, password) = match credentials {
            None => (None, None),
            Some(text) => {
                let (user, password) = text.split_once(':').unwrap_or(("", text));
                let decode = |s: &str| {
                    percent_decode(s)
                        .ok_or_else(|| wrong("bad %-escape in user or password".into()))
                };
                (
                    (!user.is_empty()).then(|| decode(user)).transpose()?,
                    Some(Secret::new(decode(password)?.as_bytes())),
                )
            }
        };
        let (mut wait_replicas, mut tls_name) = (0, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("wait_replicas", n)) => {
                    wait_replicas = n.parse().ok().filter(|&n| n <= WAIT_REPLICAS_MAX).ok_or_else(|| {
                        wrong(format!("wait_replicas wants a number from 0 to {WAIT_REPLICAS_MAX}, not {n:?}"))
                    })?;
                }
                Some(("ca" | "cert" | "key", _)) if secure => {}
                Some(("name", name)) if secure => tls_name = Some(name.to_owned()),
                _ => {
                    return Err(wrong(format!(
                        "unknown option {pair:?}; known: wait_replicas=N, and with rediss:// ca=FILE, cert=FILE, key=FILE, name=NAME"
                    )));
                }
            }
        }
        let tls = secure.then(|| ClientTls::of_query(host, query));
        let tls = tls.transpose().map_err(|error| wrong(error.to_string()))?;
        Ok(RedisUrl {
            host: host.to_owned(),
            port,
            user,
            password,
            wait_replicas,
            tls,
            tls_name,
            guides: None,
        })
    }

    /// Returns `host:port`, with brackets around an IPv6 address.
    pub fn endpoint(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Returns the user for Sentinels if the query names one, and the rest of the query.
fn sentinel_user(query: &str) -> Result<(Option<String>, String), OpenError> {
    let mut user = None;
    let mut rest = Vec::new();
    for option in query.split('&') {
        match option.strip_prefix("sentinel_user=") {
            None => rest.push(option),
            Some(name) => {
                user = Some(percent_decode(name).ok_or_else(|| OpenError::Url {
                    why: "bad %-escape in sentinel_user".into(),
                })?);
            }
        }
    }
    Ok((user, rest.join("&")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Option<Secret> {
        Some(Secret::new(text.as_bytes()))
    }

    #[test]
    fn accepts_the_documented_forms() {
        let plain = RedisUrl::parse("localhost", false).unwrap();
        assert_eq!(
            (plain.host.as_str(), plain.port, plain.password),
            ("localhost", 6379, None)
        );
        let full = RedisUrl::parse("u:p%40%3a@[::1]:7000/0?wait_replicas=2", false).unwrap();
        assert_eq!(full.endpoint(), "[::1]:7000");
        assert_eq!(
            (full.user.as_deref(), full.password),
            (Some("u"), secret("p@:"))
        );
        assert_eq!(full.wait_replicas, 2);
        assert_eq!(
            RedisUrl::parse(":pw@h:1/", false).unwrap().password,
            secret("pw")
        );
    }

    #[test]
    fn sentinels_and_a_master_are_read() {
        let url =
            RedisUrl::parse_sentinel("u:p%40@a:1, b,[::1]:3,[::2]/prod?wait_replicas=2", false);
        let url = url.unwrap();
        let set = url.guides.unwrap();
        assert_eq!(set.wanted, Wanted::Named("prod".into()));
        assert_eq!(set.places_text(), "a:1,b:26379,[::1]:3,[::2]:26379");
        assert_eq!(
            (url.user.as_deref(), url.password, url.wait_replicas),
            (Some("u"), secret("p@"), 2)
        );
        let many: Vec<String> = (0..17).map(|number| format!("h{number}")).collect();
        let many = many.join(",") + "/m";
        let twice = RedisUrl::parse_sentinel("h,g,h:26379/m", false).unwrap_err();
        assert!(
            twice.to_string().contains("h:26379 is named twice"),
            "{twice}"
        );
        for bad in [
            "", "a:1", "a:1/", "a:1/x/y", "/m", "a:1,/m", "a:0/m", "a/m?x=1", &many,
        ] {
            assert!(RedisUrl::parse_sentinel(bad, false).is_err(), "{bad}");
        }
        let error = RedisUrl::parse_sentinel(":s3cret@h:x/m", false)
            .unwrap_err()
            .to_string();
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[test]
    fn sentinels_have_a_user_of_their_own_and_everything_has_tls() {
        let read = |url: &str, sentinel: Option<&str>| {
            let passwords = Passwords {
                store: secret("p"),
                sentinel: sentinel.and_then(secret),
            };
            RedisUrl::read(url, &passwords).map(Option::unwrap)
        };
        let url = "redis+sentinel://u:@a,b/m?sentinel_user=s%40&wait_replicas=1";
        let url = read(url, Some("q")).unwrap();
        let login = |url: &RedisUrl| (url.user.clone(), url.password.clone());
        let both = |user: &str, password: &str| (Some(user.to_owned()), secret(password));
        let place = ("b".to_owned(), 1);
        assert_eq!(login(&url.at("c", 2).unwrap()), both("u", "p"));
        assert_eq!(login(&url.guide(&place).unwrap()), both("s@", "q"));
        assert_eq!(url.wait_replicas, 1);
        // If the URL names no user or password for Sentinels, no login is sent to the Sentinels. In particular,
        // Sentinels never get the password of Redis.
        let url = read("redis+sentinel://u:@a/m", None).unwrap();
        assert_eq!(login(&url.guide(&place).unwrap()), (None, None));
        let url = read("redis+cluster://u:@a/0-9", None).unwrap();
        assert_eq!(login(&url.guide(&place).unwrap()), both("u", "p"));
        for (bad, sentinel) in [
            ("redis+sentinel://a/m?sentinel_user=s", None),
            ("redis+sentinel://a/m?sentinel_user=%zz", Some("q")),
            ("redis+sentinel://a/m?ca=/none/such", None),
            ("rediss+sentinel://a/m?ca=/none/such", None),
            ("rediss+cluster://a/1?ca=/none/such", None),
            ("redis+cluster://a/1?sentinel_user=s", None),
            ("redis+cluster://a/1", Some("q")),
            ("redis://a", Some("q")),
        ] {
            let error = read(bad, sentinel).unwrap_err().to_string();
            assert!(!error.contains("\"q\""), "{bad}: {error}");
        }
    }

    #[test]
    fn nodes_of_a_cluster_and_slots_are_read() {
        let url = RedisUrl::parse_cluster(":p@a:7000,b/0-99,300?wait_replicas=1", false).unwrap();
        let set = url.guides.unwrap();
        assert_eq!(set.places_text(), "a:7000,b:6379");
        assert_eq!(set.wanted, Wanted::Slots(vec![0..=99, 300..=300]));
        assert_eq!(set.home(), Some(0));
        assert_eq!((url.password, url.wait_replicas), (secret("p"), 1));
        for (bad, says) in [
            ("", "are missing"),
            ("a:1", "are missing"),
            ("a:1/", "are missing"),
            ("a:1/x", "numbers and ranges"),
            ("a:1/9-8", "ends before"),
            ("a:1/16384", "from 0 to 16383"),
            ("a:0/1", "no TCP port"),
            ("/1", "host is missing"),
        ] {
            let error = RedisUrl::parse_cluster(bad, false).unwrap_err().to_string();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }

    #[test]
    fn refuses_the_rest_and_keeps_the_password_to_itself() {
        for bad in [
            "",
            ":1",
            "h:0",
            "h:x",
            "h:70000",
            "h/1",
            "::1:6379",
            "[::1",
            "[::1]x",
            "h?x=1",
            "h?wait_replicas=-1",
            "a:%zz@h",
        ] {
            assert!(RedisUrl::parse(bad, false).is_err(), "{bad}");
        }
        let error = RedisUrl::parse(":s3cret@h:x", false)
            .unwrap_err()
            .to_string();
        assert!(!error.contains("s3cret"), "{error}");
    }
}
