//! The binaries that the harness starts: the product, and `pmnet-lab`. The harness starts every
//! program through `pmnet-lab`.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// Environment variable with the path of the product, if the product is not in the folder of
/// `pmnet-lab`.
pub const PRODUCT: &str = "PMNET_BINARY";

/// Paths of the binaries.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// `pmnet`, the product under test.
    pub pmnet: PathBuf,
    /// `pmnet-lab`, which starts every other program (see [`super::exec_guarded`]).
    pub lab: PathBuf,
}

impl Binaries {
    /// Returns the running `pmnet-lab`, and the product.
    ///
    /// # Errors
    /// Fails if one of the binaries does not exist.
    pub fn own() -> anyhow::Result<Binaries> {
        let lab = std::env::current_exe().context("cannot find the pmnet-lab binary")?;
        Binaries::beside(&lab)
    }

    /// Returns this `pmnet-lab`, and the product in its folder or at the path in `PMNET_BINARY`.
    ///
    /// # Errors
    /// Fails if the product does not exist.
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
