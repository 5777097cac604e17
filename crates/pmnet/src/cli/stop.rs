//! A role that is asked to stop before it serves ends without an error.

/// Returns the error, unless it only says that the process was asked to stop before it could serve.
pub fn unless_asked_to_stop(error: anyhow::Error) -> anyhow::Result<()> {
    let asked = error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::Interrupted)
    });
    if asked { Ok(()) } else { Err(error) }
}
