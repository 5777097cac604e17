//! The door of a server, for `pmnet ctl`: the server reports the chain that its store has on record.

use std::net::SocketAddr;
use std::sync::Arc;

use pmnet_proto::keys::ClusterKeys;
use pmnet_udp::{Latest, ServerWords};

use super::door::Door;
use super::{Answered, Asked, ServerSaid, process};

/// The door of a server. The door closes when this value is dropped.
#[derive(Debug)]
pub struct ServerDoor(#[allow(dead_code, reason = "it closes when it is dropped")] Door);

impl ServerDoor {
    /// Opens the door at the server's TCP address. `words`: the messages to the server's loop. `keys`: if present, the
    /// door answers only callers with one of these keys.
    ///
    /// # Errors
    /// Another process listens at the address, or the operating system cannot start a thread or gives no random
    /// numbers.
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
