//! Tests of the front without its sockets, with a real packet store: the commands that the front understands, and its
//! answers.

#[path = "../../../../tests/shared/memcached.rs"]
mod shared;
#[path = "../../../../tests/shared/skip.rs"]
mod skip;

mod bench;
mod beside;
mod bounds;
mod parser;
mod replies;
