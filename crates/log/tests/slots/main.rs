//! Slots that a NIC acknowledges by itself: the runs of a queue with a crash at every moment, and every image that the
//! crash may leave (`docs/spec/verbs.md` §5); bytes and checks of the image.

mod decide;
mod image;
mod lives;
mod medium;
mod ring;
mod world;
