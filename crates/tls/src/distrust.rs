//! Reasons why two peers do not trust each other, as texts with advice.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

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

    const fn theirs(why: &CertificateError) -> Distrust {
        use CertificateError as Why;
        match why {
            Why::Expired
            | Why::ExpiredContext { .. }
            | Why::NotValidYet
            | Why::NotValidYetContext { .. } => Distrust::TheirsExpired,
            Why::UnknownIssuer | Why::BadSignature => Distrust::TheirsUnknown,
            Why::NotValidForName | Why::NotValidForNameContext { .. } => Distrust::TheirsName,
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
            Distrust::TheirsName => "its certificate is for another name: reach it by a name or an address that the certificate has, or renew the certificate with this one".into(),
            Distrust::Theirs => "its certificate cannot be used: look at it with openssl x509 -text".into(),
            Distrust::OursExpired => format!("it says that the certificate of this process is expired: renew the file of {certificate}"),
            Distrust::OursUnknown => format!("it does not know the authority of this process's certificate: give one of an authority that it trusts with {certificate}"),
            Distrust::Ours => format!("it misses a certificate of this process, or does not accept it (expired, or of another authority): give a valid one, of an authority that it trusts, with {certificate}"),
            Distrust::NoTls => "it speaks no TLS: write http://, or start it with a certificate".into(),
        }
    }
}
