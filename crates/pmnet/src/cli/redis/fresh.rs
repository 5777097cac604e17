//! Files of a front that are read again at SIGHUP: its certificates, and the file of its password.

use pmnet_cli::password;
use pmnet_front::{Access, FrontConfig, Secret};

use super::RedisArgs;
use crate::cli::process::Part;
use crate::cli::tls::server_tls;

/// Reads the files of these fronts again at each SIGHUP. All fronts have the same settings of TLS and access. Existing
/// connections do not change.
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
        .filter_map(|front| match &front.access {
            Access::Password(secret) => Some(secret.clone()),
            Access::Redis | Access::Anyone => None,
        })
        .collect();
    if let Some(path) = args.requirepass_file.clone() {
        part.on_reload("the password (--requirepass-file)", move || {
            let new = password("--requirepass-file", &path).map_err(|error| error.0)?;
            secrets
                .iter()
                .for_each(|secret| secret.replace(new.as_bytes()));
            Ok(())
        });
    }
}
