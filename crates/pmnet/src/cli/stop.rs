//! Treats a role that is asked to stop before it serves as ended without an error.

/// Returns the error. If the error only says that the process was asked to stop before it served,
/// returns success.
pub fn unless_asked_to_stop(error: anyhow::Error) -> anyhow::Result<()> {
    let asked = error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::Interrupted)
    });
    if asked { Ok(()) } else { Err(error) }
}
