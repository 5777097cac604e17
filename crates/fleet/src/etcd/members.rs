//! The members of an etcd cluster, and the settings for access to them.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use pmnet_tls::{ClientTls, authorities_file};
use ureq::tls::{Certificate, ClientCert, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

/// The members of one etcd cluster, with the settings for access to them.
#[derive(Clone, Debug)]
pub struct Members {
    pub(super) urls: Vec<String>,
    pub(super) access: Access,
}

/// Certificates and user for requests to etcd. By default: the system's authorities, no certificate and no
/// user.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// File with the certificates of the authorities that sign etcd's certificates; `None`: the system's authorities.
    pub ca: Option<PathBuf>,
    /// Files with the certificate and the private key of this process.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The user as which this process logs in at etcd.
    pub login: Option<Login>,
}

/// A user of etcd. The password is read whenever etcd requires it, so a new password needs no restart.
#[derive(Clone, Debug)]
pub struct Login {
    /// Name of the user.
    pub user: String,
    /// File with the password.
    pub password_file: PathBuf,
    /// Function that returns the password in a file, or an error text.
    pub read: fn(&Path) -> Result<String, String>,
}

impl Login {
    pub(super) fn password(&self) -> Result<String, String> {
        (self.read)(&self.password_file)
    }
}

/// HTTP or HTTPS. All members have the same scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Members {
    /// Parses the value of `--etcd`, `https://HOST:PORT[,…]` or `http://HOST:PORT[,…]`, and reads all files once to
    /// check them.
    ///
    /// # Errors
    /// A text: an address is invalid, or a file cannot be used.
    pub fn new(text: &str, access: Access) -> Result<Members, String> {
        let parsed: Vec<(Scheme, String)> =
            text.split(',').map(endpoint).collect::<Result<_, _>>()?;
        let is_tls = parsed.iter().any(|(scheme, _)| *scheme == Scheme::Https);
        if is_tls && parsed.iter().any(|(scheme, _)| *scheme == Scheme::Http) {
            return Err(format!(
                "--etcd {text}: write https:// for all members, or http:// for all"
            ));
        }
        let members = Members {
            urls: parsed.into_iter().map(|(_, url)| url).collect(),
            access,
        };
        if is_tls {
            members.access.tls()?;
        } else if members.access.ca.is_some() || members.access.identity.is_some() {
            return Err(format!(
                "--etcd {text}: http:// speaks no TLS. Write https://, or leave --etcd-ca, --etcd-cert and --etcd-key out"
            ));
        }
        if let Some(login) = &members.access.login {
            let elsewhere = members.urls.iter().find(|url| !is_on_this_machine(url));
            if let (Some(url), false) = (elsewhere, is_tls) {
                return Err(format!(
                    "--etcd {url}: over http:// everybody on the path would read the password of --etcd-user, and could change the chain with it. Write \
                     https:// (docs/operate/healing.md), or leave --etcd-user and --etcd-password-file out"
                ));
            }
            login.password()?;
        }
        Ok(members)
    }

    /// Returns one value for each member, with these settings.
    #[must_use]
    pub fn each(&self) -> Vec<Members> {
        let alone = |url: &String| Members {
            urls: vec![url.clone()],
            access: self.access.clone(),
        };
        self.urls.iter().map(alone).collect()
    }

    /// Returns the addresses.
    #[must_use]
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    pub(super) fn is_tls(&self) -> bool {
        self.urls.iter().any(|url| url.starts_with(HTTPS))
    }
}

impl Access {
    /// Returns the paths of the files that TLS needs.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let identity = self.identity.iter().flat_map(|(cert, key)| [cert, key]);
        self.ca.iter().chain(identity).map(PathBuf::as_path)
    }

    /// Reads the files for TLS.
    pub(super) fn tls(&self) -> Result<TlsConfig, String> {
        let identity = self.identity.as_ref();
        let identity = identity.map(|(cert, key)| (cert.as_path(), key.as_path()));
        // `ClientTls` also checks that the key belongs to the certificate. ureq does not check this.
        ClientTls::new("localhost", self.ca.as_deref(), identity)
            .map_err(|error| format!("TLS with etcd: {error}"))?;
        let ca = authorities_file(self.ca.as_deref()).map_err(|error| error.to_string())?;
        let builder = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(pmnet_tls::provider())
            .root_certs(RootCerts::new_with_certs(&certificates(&pem(ca)?)))
            .client_cert(identity.map(client_cert).transpose()?);
        Ok(builder.build())
    }
}

fn client_cert((cert, key): (&Path, &Path)) -> Result<ClientCert, String> {
    let key_of = |item| match item {
        Ok(PemItem::PrivateKey(key)) => Some(key),
        _ => None,
    };
    let found = parse_pem(&pem(key)?).find_map(key_of);
    let found = found.ok_or_else(|| format!("{}: there is no key in it", key.display()))?;
    Ok(ClientCert::new_with_certs(
        &certificates(&pem(cert)?),
        found,
    ))
}

fn pem(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the certificates that can be parsed. Some systems have certificates that no library can parse.
fn certificates(pem: &[u8]) -> Vec<Certificate<'static>> {
    let certificate = |item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    parse_pem(pem).filter_map(certificate).collect()
}

/// Beginning of the address of a member with TLS.
pub(super) const HTTPS: &str = "https://";

/// Returns whether a member's address is on this machine. Names are not resolved, because a query to DNS leaves this
/// machine.
fn is_on_this_machine(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, host)| host);
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse();
    let is_loopback = ip.is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback());
    is_loopback || host.eq_ignore_ascii_case("localhost")
}

/// Parses one address.
fn endpoint(text: &str) -> Result<(Scheme, String), String> {
    let one = text.trim().trim_end_matches('/');
    let bad = || {
        format!(
            "--etcd {one}: it must be https://HOST:2379, or http://HOST:2379 for an etcd without TLS"
        )
    };
    let http = one.strip_prefix("http://").map(|host| (Scheme::Http, host));
    let https = || one.strip_prefix(HTTPS).map(|host| (Scheme::Https, host));
    let (scheme, host) = http.or_else(https).ok_or_else(bad)?;
    let whole = host.rsplit_once(':').is_some_and(|(name, port)| {
        !name.is_empty() && !name.contains(['/', '@']) && port.parse::<u16>().is_ok()
    });
    if whole {
        Ok((scheme, one.to_owned()))
    } else {
        Err(bad())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_understood_or_get_a_sentence() {
        let parse = |text: &str| Members::new(text, Access::default());
        let urls = parse("http://a:1, http://[::1]:2379/").unwrap();
        assert_eq!(urls.urls(), ["http://a:1", "http://[::1]:2379"]);
        for bad in [
            "",
            "a:1",
            "ftp://a:1",
            "https://a",
            "http://a",
            "http://:1",
            "http://a:x",
            "http://a/b:1",
            "http://u@a:1",
            "http://a:1,https://b:1",
        ] {
            assert!(parse(bad).unwrap_err().contains("--etcd"), "{bad}");
        }
        let access = Access {
            ca: Some("/none/such".into()),
            ..Access::default()
        };
        let error = Members::new("https://a:1", access.clone()).unwrap_err();
        assert!(error.contains("/none/such"), "{error}");
        let error = Members::new("http://a:1", access).unwrap_err();
        assert!(error.contains("http:// speaks no TLS"), "{error}");
    }

    #[test]
    fn a_password_goes_to_another_machine_with_tls_only() {
        let access = || Access {
            login: Some(Login {
                user: "u".into(),
                password_file: "/none/such".into(),
                read: |_| Ok("secret".into()),
            }),
            ..Access::default()
        };
        for here in [
            "http://127.0.0.1:2379",
            "http://127.9.9.9:2379,http://[::1]:2379",
            "http://[::ffff:127.0.0.1]:2379",
            "http://localhost:2379",
            "http://LocalHost:2379",
            "https://10.0.0.7:2379",
        ] {
            assert!(Members::new(here, access()).is_ok(), "{here}");
        }
        for elsewhere in [
            "http://10.0.0.7:2379",
            "http://etcd:2379",
            "http://127.evil.example:2379",
            "http://localhost.evil.example:2379",
            "http://127.0.0.1:2379,http://10.0.0.7:2379",
            "http://[fd00::1]:2379",
        ] {
            let error = Members::new(elsewhere, access()).unwrap_err();
            assert!(error.contains("would read the password"), "{error}");
            assert!(Members::new(elsewhere, Access::default()).is_ok());
        }
    }
}
