//! XDP programs that are not part of the product: baselines of measurements, and a program that feeds packets to the
//! product's pipeline.
//!
//! Sources: `bpf/` of this crate. No device needs these programs.

mod feeder;
pub mod plain;

pub use feeder::{Counted, Feeder, Target};

use aya::Ebpf;
use aya::programs::Xdp;

/// The message for a binary for which [`plain::is_built`] returns false.
pub const NOT_BUILT: &str = "this pmnet-lab was built without programs for the kernel: install clang and libbpf-dev, then build \
     it and pmnet again";

/// Returns a program from one of this module's object files.
fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut Xdp> {
    let program = ebpf.program_mut(name).expect("the object has this program");
    Ok(program.try_into()?)
}
