//! A server as `pmnet ctl` sees it: it tells which chain its store has on record.

use std::net::SocketAddr;
use std::sync::Arc;

use pmnet_proto::keys::ClusterKeys;
use pmnet_udp::{Latest, ServerWords};

use super::door::Door;
use super::{Answered, Asked, ServerSaid, process};

/// The door of a server. It closes when this is dropped.
#[derive(Debug)]
pub struct ServerDoor(#[allow(dead_code, reason = "it closes when it is dropped")] Door);

impl ServerDoor {
    /// Listens, by TCP, at the address of the server. `words`: what its loop says. `keys`: only callers with such a key are answered.
    ///
    /// # Errors
    /// Another process listens there, or the system gives no thread or no random numbers.
    pub fn open(
        listen: SocketAddr,
        shard: u32,
        words: Arc<ServerWords>,
        keys: Option<Latest<ClusterKeys>>,
    ) -> std::io::Result<ServerDoor> {
        let process = process()?;
        let answer = move |asked| match asked {
            Asked::Who => {
                let on_record = words.on_record();
                Answered::Server(ServerSaid {
                    shard,
                    process: process.clone(),
                    listen,
                    epoch: on_record.epoch,
                    chain: on_record.chain,
                })
            }
            Asked::Wire { .. } | Asked::Leave { .. } => {
                Answered::Refused("this is the server: devices are wired".into())
            }
        };
        Door::open(listen, keys, answer).map(ServerDoor)
    }
}
