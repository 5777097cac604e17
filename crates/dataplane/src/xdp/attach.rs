//! Attaches the pipeline to interfaces.
//!
//! Invariants: the device's folder has a mark for each interface of the device. The mark is made before the device is
//! attached to the interface, and is removed after the device is detached. So a process that ends the device finds all
//! its interfaces. Other devices at the same interface are not affected ([`super::beside`]). Spec:
//! `docs/spec/pipeline.md` §6 and §9. This module must not fall back to the generic mode of XDP.

use super::beside::{Interface, Member, Steps};
use super::error::KernelError;
use super::kernel::{Kernel, program};

impl Kernel {
    /// Attaches the pipeline to these interfaces of the calling thread's network namespace, and detaches it from all
    /// others. An earlier pipeline of the device is replaced without a gap. `native`: true: the driver's mode of XDP;
    /// false: the generic mode, which is slow.
    ///
    /// # Errors
    /// [`KernelError::Attach`], or [`KernelError::PortTaken`] and similar errors about other devices at an interface;
    /// all these name the interface. [`KernelError::FileSystem`].
    pub fn attach(&mut self, interfaces: &[String], native: bool) -> Result<(), KernelError> {
        self.attach_by_steps(interfaces, native, &mut |_| ())
    }

    /// Attaches the pipeline like [`Kernel::attach`], and calls `step` before each step.
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
            // The first error is reported, even if the removal of the mark fails, too.
            let _ = self.pins.unmark(name);
        }
        joined
    }
}
