//! The device's fast path in the kernel, and the other programs in the kernel.
//!
//! - Life of a device: `open`, `detach`, `stage`, `spill`, `pins`.
//! - The pipeline: `load`, `kernel` (runs its programs), `fast_path` (the device's interface).
//! - At interfaces: `attach`, `beside` (the devices at one interface), `dispatcher`, `links`.
//! - State that the pipeline shares with user space: `shared` (the fields), `names`, `maps`, `sessions` and `rows`,
//!   `chain`, `reads` (the index), `image` (the log).
//! - Readers in other processes: `status`, `reader`.
//!
//! Spec: `docs/spec/pipeline.md`. This module must not decide anything that the machine decides.

mod attach;
mod beside;
mod chain;
mod detach;
mod dispatcher;
mod error;
mod fast_path;
mod folder;
mod image;
mod interface;
mod kernel;
mod links;
mod load;
mod maps;
mod names;
mod open;
mod pins;
mod reader;
mod reads;
mod rows;
mod sessions;
mod shared;
mod spill;
mod stage;
mod status;
mod words;

pub use detach::{Detached, detach};
pub use dispatcher::Dispatcher;
pub use error::{KernelError, OpenError};
pub use image::MapMedia;
pub use interface::hardware_address;
pub use kernel::{Kernel, XDP_DROP, XDP_PASS, XDP_TX};
pub use load::{KernelConfig, Own};
pub use open::{Found, OpenConfig, Opened, open};
pub use pins::Pins;
pub use reader::LogReader;
pub use shared::DEVICES_MAX;
pub use status::Status;
