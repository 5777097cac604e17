//! Settings of TLS between a front and its clients, from the command line and the configuration.

use std::path::PathBuf;

use clap::ValueEnum;
use pmnet_cli::ConfigError;
use pmnet_tls::{Clients, ServerTls};
use serde::{Deserialize, Serialize};

/// Values of `--tls-clients`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlsClients {
    /// Clients must show a certificate of an authority in --tls-ca.
    Required,
    /// Clients may show a certificate. If they show one, it must be of an authority in --tls-ca.
    Optional,
    /// Clients are not asked for a certificate.
    No,
}

/// Files and options of TLS between a front and its clients.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    pub clients: Option<TlsClients>,
}

/// Returns the TLS settings of a front; `None`: the front does not use TLS.
pub fn server_tls(files: TlsFiles) -> Result<Option<ServerTls>, ConfigError> {
    let TlsFiles {
        certificate,
        key,
        ca,
        clients,
    } = files;
    let wrong = |text: &str| Err(ConfigError(text.to_owned()));
    let (certificate, key) = match (certificate, key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) if ca.is_none() && clients.is_none() => return Ok(None),
        _ => return wrong("for TLS both --tls-cert and --tls-key are needed"),
    };
    let clients = match (clients, ca) {
        (None | Some(TlsClients::No), None) => Clients::No,
        (None | Some(TlsClients::Required), Some(ca)) => Clients::Required(ca),
        (Some(TlsClients::Optional), Some(ca)) => Clients::Optional(ca),
        (Some(TlsClients::No), Some(_)) => {
            return wrong("--tls-clients no: there is nothing to check with --tls-ca");
        }
        (Some(_), None) => {
            return wrong(
                "--tls-clients: --tls-ca is missing, the authorities of their certificates",
            );
        }
    };
    let tls = ServerTls::new(&certificate, &key, &clients);
    tls.map(Some)
        .map_err(|error| ConfigError(format!("TLS: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_is_needed_is_an_error() {
        let file = || Some(PathBuf::from("/none/such"));
        assert!(matches!(server_tls(TlsFiles::default()), Ok(None)));
        for (certificate, key, ca, clients, said) in [
            (file(), None, None, None, "both --tls-cert and --tls-key"),
            (None, file(), None, None, "both --tls-cert and --tls-key"),
            (None, None, file(), None, "both --tls-cert and --tls-key"),
            (None, None, None, Some(TlsClients::No), "both --tls-cert"),
            (
                file(),
                file(),
                None,
                Some(TlsClients::Required),
                "--tls-ca is missing",
            ),
            (
                file(),
                file(),
                None,
                Some(TlsClients::Optional),
                "--tls-ca is missing",
            ),
            (
                file(),
                file(),
                file(),
                Some(TlsClients::No),
                "nothing to check",
            ),
            (file(), file(), None, None, "TLS: /none/such"),
        ] {
            let files = TlsFiles {
                certificate,
                key,
                ca,
                clients,
            };
            let error = server_tls(files).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
