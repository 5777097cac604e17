//! The device's fast path in the kernel, and what else runs there (`docs/spec/pipeline.md`).

mod error;
mod feeder;
mod image;
mod interface;
mod kernel;
mod open;
mod pins;
pub mod plain;
mod reader;
mod rows;
mod shared;
mod stage;
mod status;

pub use error::KernelError;
pub use feeder::{Counted, FRAME_BYTES_MAX, Feeder, Target};
pub use image::MapMedia;
pub use interface::hardware_address;
pub use kernel::{Kernel, KernelConfig, Own, XDP_DROP, XDP_PASS, XDP_TX};
pub use open::{Detached, Found, OpenConfig, OpenError, Opened, detach, open};
pub use pins::Pins;
pub use reader::LogReader;
pub use status::Status;
