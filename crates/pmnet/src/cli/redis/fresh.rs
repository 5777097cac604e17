//! The files that a front reads again at SIGHUP: its certificates and its password files.

use std::path::PathBuf;

use pmnet_front::{Access, FrontConfig, Secret};

use super::RedisArgs;
use crate::cli::passwords::secret;
use crate::cli::process::Part;
use crate::cli::tls::server_tls;

/// At each SIGHUP, reads the files of these fronts again. All of the fronts have the same settings for TLS and access.
/// Existing connections do not change.
pub fn keep_fresh<'a>(
    part: &Part<'_>,
    args: &RedisArgs,
    fronts: impl Iterator<Item = &'a FrontConfig> + Clone,
) {
    let presents: Vec<_> = fronts
        .clone()
        .filter_map(|front| front.tls.clone())
        .collect();
    let files = args.tls_files();
    if !presents.is_empty() {
        part.on_reload(
            "the certificate (--tls-cert, --tls-key, --tls-ca)",
            move || {
                let new = server_tls(files.clone()).map_err(|error| error.0)?;
                if let Some(new) = new {
                    presents.iter().for_each(|present| present.replace(&new));
                }
                Ok(())
            },
        );
    }
    let secrets: Vec<Secret> = fronts
        .clone()
        .filter_map(|front| match &front.access {
            Access::Password(secret) => Some(secret.clone()),
            Access::Redis | Access::Anyone => None,
        })
        .collect();
    keep_password(
        part,
        "--requirepass-file",
        args.requirepass_file.as_ref(),
        secrets,
    );
    let secrets = fronts.filter_map(|front| front.direct_password.clone());
    let file = args.direct_password_file.as_ref();
    keep_password(part, "--direct-password-file", file, secrets.collect());
}

/// At each SIGHUP, reads a password file again. `in_use`: the places that use the password.
fn keep_password(part: &Part<'_>, flag: &'static str, file: Option<&PathBuf>, in_use: Vec<Secret>) {
    let Some(path) = file.cloned() else {
        return;
    };
    part.on_reload(&format!("the password ({flag})"), move || {
        let new = secret(flag, &path).map_err(|error| error.0)?;
        in_use.iter().for_each(|secret| secret.replace_by(&new));
        Ok(())
    });
}
