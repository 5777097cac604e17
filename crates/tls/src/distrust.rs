//! Reasons why two peers do not trust each other, as texts with advice.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, OtherError};
use webpki::Error as Refusal;

/// An error of TLS inside an [`std::io::Error`]. [`Distrust`] recognises TLS errors by this type.
#[derive(Debug, thiserror::Error)]
#[error("TLS: {0}")]
pub(crate) struct Failure(pub(crate) Error);

/// The reason why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distrust {
    /// The peer's certificate has expired, or is not valid yet.
    TheirsExpired,
    /// The peer's certificate was issued by an unknown authority.
    TheirsUnknown,
    /// The peer's certificate does not have the name under which the peer was reached.
    TheirsName,
    /// The peer's certificate is that of an authority (CA:TRUE), or is older than version 3 of X.509.
    TheirsKind,
    /// The peer's certificate cannot be used for another reason.
    Theirs,
    /// The peer reports that this process's certificate has expired.
    OursExpired,
    /// The peer reports that this process's certificate was issued by an unknown authority.
    OursUnknown,
    /// The peer requires a certificate, or another certificate than this process has shown.
    Ours,
    /// The peer does not speak TLS.
    NoTls,
}

/// The names of the flags that the texts mention.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    /// Flag for the file of the authorities that this process trusts.
    pub ca: &'static str,
    /// Flag for the certificate of this process.
    pub certificate: &'static str,
}

impl Distrust {
    /// Returns the reason for this failure; `None` if its cause is not a lack of trust.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Distrust> {
        let inner = error.get_ref()?;
        let tls = inner
            .downcast_ref::<Error>()
            .or_else(|| inner.downcast_ref::<Failure>().map(|failure| &failure.0))?;
        match tls {
            Error::InvalidCertificate(why) => Some(Distrust::theirs(why)),
            Error::AlertReceived(alert) => Distrust::ours(*alert),
            Error::InvalidMessage(_) => Some(Distrust::NoTls),
            _ => None,
        }
    }

    fn theirs(why: &CertificateError) -> Distrust {
        use CertificateError as Why;
        match why {
            Why::Expired
            | Why::ExpiredContext { .. }
            | Why::NotValidYet
            | Why::NotValidYetContext { .. } => Distrust::TheirsExpired,
            Why::UnknownIssuer | Why::BadSignature => Distrust::TheirsUnknown,
            Why::NotValidForName | Why::NotValidForNameContext { .. } => Distrust::TheirsName,
            Why::Other(OtherError(why)) if is_of_wrong_kind(why.downcast_ref()) => {
                Distrust::TheirsKind
            }
            _ => Distrust::Theirs,
        }
    }

    const fn ours(alert: AlertDescription) -> Option<Distrust> {
        use AlertDescription as Alert;
        match alert {
            Alert::CertificateExpired => Some(Distrust::OursExpired),
            Alert::UnknownCA => Some(Distrust::OursUnknown),
            Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::AccessDenied => Some(Distrust::Ours),
            _ => None,
        }
    }

    /// Returns a text with the problem and with advice.
    #[must_use]
    pub fn sentence(self, flags: Flags) -> String {
        let Flags { ca, certificate } = flags;
        match self {
            Distrust::TheirsExpired => "its certificate is expired, or not valid yet: renew it there, or set this machine's clock".into(),
            Distrust::TheirsUnknown => format!("its certificate is of an authority that this process does not trust: give the certificate of that authority with {ca}"),
            Distrust::TheirsName => "its certificate is for another name: reach it by a name or an address that the certificate has as a subject alternative name, or renew the certificate with this one".into(),
            Distrust::TheirsKind => "its certificate is that of an authority (CA:TRUE), or is older than version 3 of X.509: give it an X.509 v3 certificate with CA:FALSE and a subject alternative name".into(),
            Distrust::Theirs => "its certificate cannot be used: look at it with openssl x509 -text".into(),
            Distrust::OursExpired => format!("it says that the certificate of this process is expired: renew the file of {certificate}"),
            Distrust::OursUnknown => format!("it does not know the authority of this process's certificate: give one of an authority that it trusts with {certificate}"),
            Distrust::Ours => format!("it misses a certificate of this process, or does not accept it (expired, or of another authority): give a valid one, of an authority that it trusts, with {certificate}"),
            Distrust::NoTls => "it speaks no TLS: write http://, or start it with a certificate".into(),
        }
    }
}

/// Returns whether a certificate is of a kind that no peer may have.
const fn is_of_wrong_kind(why: Option<&Refusal>) -> bool {
    use Refusal::{CaUsedAsEndEntity, UnsupportedCertVersion};
    matches!(why, Some(CaUsedAsEndEntity | UnsupportedCertVersion))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, UnixTime};

    use super::*;
    use crate::stream::certificates::files;

    /// A certificate of version 1, from `openssl x509 -req -signkey` without a file of extensions.
    const VERSION_1: &[u8] = b"-----BEGIN CERTIFICATE-----\n\
MIIBIzCBywIUKlIKj8f5Kwz4YK4yQaQsgZnRu0cwCgYIKoZIzj0EAwIwFDESMBAG\n\
A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyODE0MzcwMFoYDzIxMjYxMTA0MTQzNzAw\n\
WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n\
AAT2ZELTKpN/YrOL964nSNMBUhCxRIyAcTbjzyJJ5Gp6yxly4E5XZGoz7KLs12dH\n\
2yn9VP9djP0jvKdmEglw95cAMAoGCCqGSM49BAMCA0cAMEQCIHgqqfyKLCoYmm0d\n\
p0HAydtdvx2ws6E5pYSZbR4/iLgUAiBRvWql1p1MLcsNW63O159IIR0zwCGjtEC5\n\
SJLXEUCo8A==\n\
-----END CERTIFICATE-----";

    const FLAGS: Flags = Flags {
        ca: "ca=FILE",
        certificate: "cert=FILE",
    };

    #[test]
    fn a_certificate_of_an_authority_or_of_version_1_is_explained() {
        let files = files();
        let ca = CertificateDer::from_pem_file(files.path("ca.pem")).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone()).unwrap();
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), crate::provider());
        let verifier = verifier.build().unwrap();
        let name = "localhost".try_into().unwrap();
        let old = CertificateDer::from_pem_slice(VERSION_1).unwrap();
        for (shown, named) in [(ca, "CaUsedAsEndEntity"), (old, "UnsupportedCertVersion")] {
            let result = verifier.verify_server_cert(&shown, &[], &name, &[], UnixTime::now());
            let error = io::Error::other(Failure(result.unwrap_err()));
            assert!(error.to_string().contains(named), "{error}");
            let why = Distrust::of(&error);
            assert_eq!(why, Some(Distrust::TheirsKind), "{error}");
            let sentence = why.unwrap().sentence(FLAGS);
            assert!(
                sentence.contains("X.509 v3 certificate with CA:FALSE"),
                "{sentence}"
            );
        }
    }
}
