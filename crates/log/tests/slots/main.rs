//! Slots that a NIC acknowledges by itself: lives of a queue with a crash at every moment, and every image that it may leave
//! (`docs/spec/verbs.md` §5); bytes and checks of the image.

mod decide;
mod image;
mod lives;
mod medium;
mod ring;
mod world;
