//! Authorities, certificates and keys, each in a file. Tests include this source file by its path.

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};

/// The folder with the files. The folder is removed when this value is dropped.
pub struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    /// Returns the path of the file with this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the paths of the certificate and the key with this name.
    pub fn pair(&self, name: &str) -> (PathBuf, PathBuf) {
        (
            self.path(&format!("{name}.pem")),
            self.path(&format!("{name}.key")),
        )
    }
}

/// Makes two authorities, `ca` and `other`, and certificates for `localhost`. `ca` issues `server`, `client`, `old`
/// (expired) and `nameless` (without a common name). `other` issues `stranger`.
pub fn files() -> Files {
    let files = Files {
        folder: tempfile::tempdir().expect("a folder"),
    };
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        std::fs::write(files.path(&format!("{name}.pem")), issuer.pem()).expect("written");
        issuer
    };
    let (ca, other) = (authority("ca"), authority("other"));
    for (name, issuer) in [
        ("server", &ca),
        ("client", &ca),
        ("stranger", &other),
        ("old", &ca),
        ("nameless", &ca),
    ] {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        if name == "nameless" {
            params.distinguished_name = DistinguishedName::new();
        }
        if name == "old" {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, issuer).expect("a certificate");
        let (certificate_path, key_path) = files.pair(name);
        std::fs::write(certificate_path, certificate.pem()).expect("written");
        std::fs::write(key_path, key.serialize_pem()).expect("written");
    }
    files
}
