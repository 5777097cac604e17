//! Slots into which a NIC puts messages that it acknowledges by itself (`docs/spec/verbs.md` §5): runs of a queue with
//! a crash at every moment and every image that the crash may leave; and the bytes and checks of the image.

mod decide;
mod image;
mod lives;
mod medium;
mod ring;
mod world;
