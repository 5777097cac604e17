//! Attaches the pipeline to interfaces.
//!
//! Invariants: the link to an interface is pinned, so the pipeline stays attached when the process ends. A link that is
//! pinned already gets the new program without a gap. Spec: `docs/spec/pipeline.md` §6. May not: fall back to the
//! generic mode of XDP.

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::{ProgramError, XdpMode};

use super::error::KernelError;
use super::kernel::{Kernel, program};

impl Kernel {
    /// Attaches the pipeline to these interfaces of the calling thread's network namespace, and detaches it from all
    /// others. Where an earlier one is attached, it is replaced without a gap. `native`: in the driver; the generic mode is
    /// slow, and never chosen for you.
    ///
    /// # Errors
    /// [`KernelError::Attach`] says which one; [`KernelError::FileSystem`].
    pub fn attach(&mut self, interfaces: &[String], native: bool) -> Result<(), KernelError> {
        for interface in interfaces {
            self.attach_one(interface, native)
                .map_err(|error| KernelError::Attach {
                    interface: interface.clone(),
                    source: Box::new(error),
                })?;
        }
        self.pins.remove_links_but(interfaces)
    }

    fn attach_one(&mut self, interface: &str, native: bool) -> Result<(), KernelError> {
        let name = "pipeline";
        let failed = |source| KernelError::Program { name, source };
        let path = self.pins.link(interface);
        let program = program(&mut self.ebpf, name)?;
        if path.exists() {
            let link: FdLink = PinnedLink::from_pin(&path)?.into();
            match program.attach_to_link(link.try_into()?) {
                // The pin keeps the link alive.
                Ok(id) => {
                    drop(program.take_link(id).map_err(failed)?);
                    return Ok(());
                }
                Err(error) if is_severed(&error) => self.pins.remove_link(interface)?,
                Err(error) => return Err(failed(error)),
            }
        }
        let mode = if native {
            XdpMode::Driver
        } else {
            XdpMode::Skb
        };
        let id = program.attach(interface, mode).map_err(failed)?;
        let link: FdLink = program.take_link(id).map_err(failed)?.try_into()?;
        let pinned = link
            .pin(&path)
            .map_err(|error| KernelError::pin(path.display().to_string(), error))?;
        drop(pinned);
        Ok(())
    }
}

/// The interface of this link is gone. Another one may have its name now.
fn is_severed(error: &ProgramError) -> bool {
    matches!(error, ProgramError::SyscallError(error) if error.io_error.raw_os_error() == Some(libc::ENOLINK))
}
