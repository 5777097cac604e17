//! Vectors of keys: their derivation, a sealed packet of every kind, and these packets with changes after they were
//! sealed (`docs/spec/keys.md`).

use super::packets::{self, EPOCH, HEAD, Named, SHARD, SHARD_TOKEN, TOKEN};
use super::vector::{hex, long, packet_fields};
use pmnet_wire::{ClusterKey, FrontKey, HEADER_LEN, Header, Kind, Life, MacKey, Packet};
use serde_json::{Value, json};

const CLUSTER: [u8; 16] = *b"a key of cluster";
const NAME: &str = "web";
const LIFE: Life = Life {
    shard: SHARD,
    token: SHARD_TOKEN,
};

/// Nonces of a client and of a device for an RDMA connection.
const RDMA_NONCES: [[u64; 2]; 2] = [
    [0x0102_0304_0506_0708, 0x090a_0b0c_0d0e_0f10],
    [0x1112_1314_1516_1718, 0x191a_1b1c_1d1e_1f20],
];

fn cluster() -> ClusterKey {
    ClusterKey::new(CLUSTER)
}

fn front() -> FrontKey {
    let id = cluster().front_id(NAME.as_bytes());
    cluster().front(id).expect("an id of this cluster")
}

/// Returns the key of a packet of [`packets::kinds`], by its kind and sender.
fn key_of(header: &Header) -> MacKey {
    let session = front().session(SHARD, TOKEN);
    match header.kind {
        Kind::Open | Kind::Update | Kind::End | Kind::Read => session.to_head,
        Kind::Bypass if header.device == 0 => session.to_head,
        Kind::Ping if header.session != 0 => session.to_head,
        Kind::OpenReply
        | Kind::Ack
        | Kind::Nack
        | Kind::NotLogged
        | Kind::Response
        | Kind::Hit
        | Kind::Miss
        | Kind::Pong => session.to_client,
        Kind::Recover | Kind::RecoverReply => cluster().asking(SHARD, HEAD),
        Kind::Append
        | Kind::Durable
        | Kind::Applied
        | Kind::Retrans
        | Kind::StaleEpoch
        | Kind::Bypass
        | Kind::Ping => cluster().hop(LIFE, EPOCH, header.device),
    }
}

/// Returns a packet as it is sent with keys: the payload of OPEN, of its entry, and of a session's PING names the
/// session's token and front.
fn with_identity((name, header, payload): Named) -> Named {
    let says = name == "append_open"
        || header.kind == Kind::Open
        || header.kind == Kind::Ping && header.session != 0;
    let identity = [TOKEN.to_be_bytes(), front().id().get().to_be_bytes()].concat();
    (name, header, if says { identity } else { payload })
}

/// Returns every vector of the file.
pub fn all() -> Vec<Value> {
    let mut vectors = derived();
    for (name, header, payload) in packets::kinds().into_iter().map(with_identity) {
        let key = key_of(&header);
        let sealed = key.seal(&header.for_payload(&payload), &payload);
        let bytes = [&sealed.emit()[..], &payload].concat();
        let packet = Packet::parse(&bytes).expect("a sealed packet parses");
        vectors.push(json!({
            "name": name,
            "key": hex(key.bytes()),
            "hex": hex(&bytes),
            "fields": packet_fields(&packet),
        }));
        for (change, bytes) in forged(&bytes) {
            vectors.push(json!({
                "name": format!("{name}_{change}"),
                "key": hex(key.bytes()),
                "hex": hex(&bytes),
                "reject": "key",
            }));
        }
    }
    vectors
}

/// Returns changed copies of a sealed packet, each with right checksums.
fn forged(sealed: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let flips = [
        ("another_flag", 4),
        ("another_session", 31),
        ("another_order", 47),
        ("another_tag", 87),
    ];
    let mut forged: Vec<_> = flips
        .into_iter()
        .map(|(name, at)| (name, flipped(sealed, at)))
        .collect();
    if sealed.len() > HEADER_LEN {
        forged.push(("another_payload", flipped(sealed, sealed.len() - 1)));
    }
    forged
}

fn flipped(sealed: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = sealed.to_vec();
    bytes[at] ^= 1;
    let (header, payload) = bytes.split_at_mut(HEADER_LEN);
    header[72..76].copy_from_slice(&pmnet_wire::crc(payload).to_be_bytes());
    packets::right_header_crc(&mut bytes);
    bytes
}

fn derived() -> Vec<Value> {
    let (cluster, front) = (cluster(), front());
    let session = front.session(SHARD, TOKEN);
    let rdma = front.rdma(RDMA_NONCES[0], RDMA_NONCES[1]);
    vec![
        json!({
            "name": "front_key",
            "cluster_key": hex(cluster.bytes()),
            "front": NAME,
            "front_id": long(front.id().get()),
            "derived": hex(front.bytes()),
        }),
        json!({
            "name": "session_keys",
            "front_key": hex(front.bytes()),
            "shard": SHARD,
            "token": long(TOKEN),
            "to_head": hex(session.to_head.bytes()),
            "to_client": hex(session.to_client.bytes()),
        }),
        json!({
            "name": "hop_key",
            "cluster_key": hex(cluster.bytes()),
            "shard": SHARD,
            "shard_token": long(SHARD_TOKEN),
            "epoch": EPOCH,
            "sender": HEAD,
            "derived": hex(cluster.hop(LIFE, EPOCH, HEAD).bytes()),
        }),
        json!({
            "name": "hop_key_of_the_server",
            "cluster_key": hex(cluster.bytes()),
            "shard": SHARD,
            "shard_token": long(SHARD_TOKEN),
            "epoch": EPOCH,
            "sender": 0,
            "derived": hex(cluster.hop(LIFE, EPOCH, 0).bytes()),
        }),
        json!({
            "name": "asking_key",
            "cluster_key": hex(cluster.bytes()),
            "shard": SHARD,
            "sender": HEAD,
            "derived": hex(cluster.asking(SHARD, HEAD).bytes()),
        }),
        json!({
            "name": "rdma_keys",
            "front_key": hex(front.bytes()),
            "client_nonce": RDMA_NONCES[0].map(long),
            "device_nonce": RDMA_NONCES[1].map(long),
            "to_device": hex(rdma.to_device.bytes()),
            "to_client": hex(rdma.to_client.bytes()),
        }),
    ]
}
