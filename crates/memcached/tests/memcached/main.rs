//! The front without its sockets: what it understands, and what it answers, over a real packet store.

#[path = "../../../../tests/shared/memcached.rs"]
mod shared;
#[path = "../../../../tests/shared/skip.rs"]
mod skip;

mod bench;
mod beside;
mod bounds;
mod parser;
mod replies;
