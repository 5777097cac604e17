//! XDP programs that are no part of the product: what measurements compare it with, and what feeds it packets.
//!
//! Sources: `bpf/` of this crate. May not: be needed by a device that serves.

mod feeder;
pub mod plain;

pub use feeder::{Counted, Feeder, Target};

use aya::Ebpf;
use aya::programs::Xdp;

/// What there is to say where [`plain::is_built`] says no.
pub const NOT_BUILT: &str = "this pmnet-lab was built without programs for the kernel: install clang and libbpf-dev, then build \
     it and pmnet again";

/// A program of an object of ours.
fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut Xdp> {
    let program = ebpf.program_mut(name).expect("the object has this program");
    Ok(program.try_into()?)
}
