//! Persists that are waited for.

use std::ops::Range;

use pmnet_log::{Media, MediaError};

/// Persists `ranges` and waits until they are durable.
pub(crate) fn persist_now<M: Media>(
    media: &mut M,
    ranges: &[Range<usize>],
) -> Result<(), MediaError> {
    media.persist_start(ranges)?;
    match media.persist_poll(true)? {
        true => Ok(()),
        false => Err(MediaError::Failed),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::RawFd;

    use super::*;

    /// Memory of this process, in which every persist is complete at once.
    pub struct Plain(pub Vec<u8>);

    impl Media for Plain {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
        fn store(&mut self, offset: usize, bytes: &[u8]) {
            self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        fn persist_start(&mut self, _: &[Range<usize>]) -> Result<(), MediaError> {
            Ok(())
        }
        fn persist_poll(&mut self, _: bool) -> Result<bool, MediaError> {
            Ok(true)
        }
        fn wakeup_fd(&self) -> Option<RawFd> {
            None
        }
        fn survives(&self) -> &'static str {
            "nothing"
        }
        fn name(&self) -> &'static str {
            "plain"
        }
    }
}
