//! The binaries that the harness starts: the product, and this laboratory, which starts it.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// Environment variable with the path of the product, where it is not beside the laboratory.
pub const PRODUCT: &str = "PMNET_BINARY";

/// Where they are.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// `pmnet`: what is tested and measured.
    pub pmnet: PathBuf,
    /// `pmnet-lab`, through which everything is started (see [`super::exec_guarded`]).
    pub lab: PathBuf,
}

impl Binaries {
    /// Of a laboratory that runs alone: its own binary, and the product.
    ///
    /// # Errors
    /// One of them is not there.
    pub fn own() -> anyhow::Result<Binaries> {
        let lab = std::env::current_exe().context("cannot find the pmnet-lab binary")?;
        Binaries::beside(&lab)
    }

    /// This laboratory, and the product: in the folder of the laboratory, or where `PMNET_BINARY` says.
    ///
    /// # Errors
    /// The product is not there.
    pub fn beside(lab: &Path) -> anyhow::Result<Binaries> {
        let pmnet = match std::env::var_os(PRODUCT) {
            Some(path) => PathBuf::from(path),
            None => lab.with_file_name("pmnet"),
        };
        anyhow::ensure!(
            pmnet.is_file(),
            "there is no {}: build it (make build), or name it in {PRODUCT}",
            pmnet.display()
        );
        Ok(Binaries {
            pmnet,
            lab: lab.to_owned(),
        })
    }
}
