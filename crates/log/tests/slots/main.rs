//! Slots into which a NIC puts messages that it acknowledges by itself (`docs/spec/verbs.md` §5). The tests run a queue
//! with a crash at every moment, and try every image that the crash may leave. They also check the bytes of the image,
//! and the checks that an open makes.

mod decide;
mod image;
mod lives;
mod medium;
mod ring;
mod world;
