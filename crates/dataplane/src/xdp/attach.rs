//! Attaches the pipeline to interfaces.
//!
//! Invariants: the device's folder has a mark for an interface from before the device is attached to it until after it
//! is detached. So a process that ends the device finds all its interfaces. Other devices at the same interface stay as
//! they are ([`super::beside`]). Spec: `docs/spec/pipeline.md` §6 and §9. May not: fall back to the generic mode of
//! XDP.

use super::beside::{Interface, Member, Steps};
use super::error::KernelError;
use super::kernel::{Kernel, program};

impl Kernel {
    /// Attaches the pipeline to these interfaces of the calling thread's network namespace, and detaches it from all
    /// others. An earlier pipeline of the device is replaced without a gap. `native`: in the driver. The generic mode
    /// is slow, and is used only on request.
    ///
    /// # Errors
    /// [`KernelError::Attach`] names the interface; so do [`KernelError::PortTaken`] and similar errors about other
    /// devices at it; [`KernelError::FileSystem`].
    pub fn attach(&mut self, interfaces: &[String], native: bool) -> Result<(), KernelError> {
        self.attach_by_steps(interfaces, native, &mut |_| ())
    }

    /// Attaches the pipeline as [`Kernel::attach`], and calls `step` before each step.
    ///
    /// # Errors
    /// The errors of [`Kernel::attach`].
    #[doc(hidden)]
    pub fn attach_by_steps(
        &mut self,
        interfaces: &[String],
        native: bool,
        step: Steps<'_>,
    ) -> Result<(), KernelError> {
        for interface in interfaces {
            self.attach_one(interface, native, step)
                .map_err(|error| match error {
                    // These errors name the interface themselves.
                    KernelError::PortTaken { .. }
                    | KernelError::Crowded(_)
                    | KernelError::OtherMode(_)
                    | KernelError::Contended(_) => error,
                    error => KernelError::Attach {
                        interface: interface.clone(),
                        source: Box::new(error),
                    },
                })?;
        }
        self.pins.leave_all_but(interfaces, step)
    }

    fn attach_one(&mut self, name: &str, native: bool, step: Steps<'_>) -> Result<(), KernelError> {
        let interface = Interface::named(name)?;
        let member = Member {
            port: self.port,
            device: self.pins.name(),
        };
        step("mark");
        let is_new = self.pins.mark(name, &interface, step)?;
        let pipeline = program(&mut self.ebpf, "pipeline")?;
        let joined = interface.join(name, &member, pipeline, !native, step);
        if joined.is_err() && is_new {
            // If the removal of the mark fails too, the first error is reported.
            let _ = self.pins.unmark(name);
        }
        joined
    }
}
