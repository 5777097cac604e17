//! The error of an invalid command line or configuration.

/// The command line or the configuration is wrong. The text explains the fault. The program ends with exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);
