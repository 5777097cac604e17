use std::net::TcpListener;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use pmnet_wire::ClusterKey;
use pmnet_wire::packet::Identity;

use super::*;
use crate::line::{Ended, Line};
use crate::nic::{Readable, Whereto};

const OLD: ClusterKey = ClusterKey::new(*b"a key of cluster");
const NEW: ClusterKey = ClusterKey::new(*b"the next of them");
const OWN: Nonce = [1, 2];
const DEVICES: Nonce = [3, 4];

fn front(cluster: ClusterKey, name: &str) -> FrontKey {
    cluster.front(cluster.front_id(name.as_bytes())).unwrap()
}

fn web() -> FrontKey {
    front(OLD, "web")
}

fn keys() -> ClusterKeys {
    ClusterKeys::new(OLD)
}

fn whereto(qpn: u32) -> Whereto {
    Whereto {
        qpn,
        psn: 0xab_cdef,
        gid: *b"the address here",
    }
}

fn hello() -> Message {
    Message::Hello {
        shard: 3,
        epoch: 4,
        port: 51_001,
        mtu: 1024,
        client: whereto(17),
    }
}

fn welcome() -> Message {
    Message::Welcome {
        epoch: 4,
        copies: 1,
        slot_bytes: 2048,
        mtu: 1024,
        device: whereto(18),
        byte: Readable {
            at: 1 << 40,
            key: 9,
        },
    }
}

fn binding(key: FrontKey) -> Binding {
    Binding {
        acknowledged: 0,
        whose: Identity {
            token: 6,
            front: Some(key.id()),
        },
        key: Some(key),
    }
}

fn hear(host: &mut Host, bytes: &Bytes, keys: &ClusterKeys) -> Heard {
    host.hear(bytes, Some(keys), || Some(DEVICES))
}

/// Returns both ends of a connection, and the client's sealed HELLO.
fn greeting(key: FrontKey, keys: &ClusterKeys) -> (Caller, Host, Bytes) {
    let (mut caller, knock) = Caller::begin(Some(key), OWN, hello());
    let mut host = Host::default();
    let Heard::Answer(challenge) = hear(&mut host, &knock, keys) else {
        panic!("a front of this cluster is challenged");
    };
    let Told::Answer(hello) = caller.hear(&challenge) else {
        panic!("a challenge is answered");
    };
    (caller, host, hello)
}

/// Returns both ends of a connection that is up.
fn up() -> (Caller, Host) {
    let (mut caller, mut host, sealed) = greeting(web(), &keys());
    assert_eq!(hear(&mut host, &sealed, &keys()), Heard::Message(hello()));
    assert_eq!(
        caller.hear(&host.write(&welcome())),
        Told::Message(welcome())
    );
    (caller, host)
}

/// Returns the bytes with one bit changed, and the right checksum for them.
fn flipped(bytes: &Bytes, bit: usize) -> Bytes {
    let mut other = *bytes;
    other[bit / 8] ^= 1 << (bit % 8);
    let mac = mac_of(&other);
    with_mac(&other, mac)
}

#[test]
fn who_has_the_key_of_a_front_is_connected_and_binds_its_sessions() {
    let (mut caller, mut host) = up();
    assert_eq!(host.front(), Some(web().id()));
    for session in [5, 6] {
        let bind = caller.bind(session, &binding(web())).unwrap();
        let said = Message::Bind {
            session,
            token: 6,
            front: Some(web().id()),
        };
        assert_eq!(hear(&mut host, &bind, &keys()), Heard::Message(said));
        let bound = Message::Bound { session };
        assert_eq!(caller.hear(&host.write(&bound)), Told::Message(bound));
    }
}

#[test]
fn without_keys_messages_go_as_they_are() {
    let (mut caller, first) = Caller::begin(None, OWN, hello());
    assert_eq!(first, hello().write());
    let mut host = Host::default();
    let heard = host.hear(&first, None, || panic!("no nonce is needed"));
    assert_eq!(heard, Heard::Message(hello()));
    assert_eq!(host.write(&welcome()), welcome().write());
    assert_eq!(caller.hear(&welcome().write()), Told::Message(welcome()));
}

#[test]
fn keys_beside_none_are_refused_with_the_reason_on_both_sides() {
    let refused = |why| Message::Refused { why, epoch: 0 }.write();
    let (mut unkeyed, first) = Caller::begin(None, OWN, hello());
    let heard = hear(&mut Host::default(), &first, &keys());
    assert_eq!(heard, Heard::Refuse(Refusal::NeedsKey));
    let told = unkeyed.hear(&refused(Refusal::NeedsKey));
    assert_eq!(told, Told::Refused(Refusal::NeedsKey));

    let (mut keyed, knock) = Caller::begin(Some(web()), OWN, hello());
    let heard = Host::default().hear(&knock, None, || None);
    assert_eq!(heard, Heard::Refuse(Refusal::HasNoKey));
    let told = keyed.hear(&refused(Refusal::HasNoKey));
    assert_eq!(told, Told::Refused(Refusal::HasNoKey));
    // The client does not believe a WELCOME without a MAC, or an unsealed refusal that has nothing to do with keys.
    for message in [welcome().write(), refused(Refusal::Epoch)] {
        let (mut keyed, _) = Caller::begin(Some(web()), OWN, hello());
        assert_eq!(keyed.hear(&message), Told::Unproven);
    }
}

#[test]
fn another_key_is_refused() {
    // This key has the id of one front and the bytes of another front's key.
    let forged = FrontKey::new(web().id(), *front(OLD, "other").bytes());
    let (mut caller, mut host, sealed) = greeting(forged, &keys());
    let heard = hear(&mut host, &sealed, &keys());
    assert_eq!(heard, Heard::Refuse(Refusal::WrongKey));
    let refused = Message::Refused {
        why: Refusal::WrongKey,
        epoch: 0,
    };
    let told = caller.hear(&refused.write());
    assert_eq!(told, Told::Refused(Refusal::WrongKey));
    // A client with that key does not believe the device's answer.
    let (mut caller, mut host, _) = greeting(forged, &keys());
    assert_eq!(caller.hear(&host.write(&welcome())), Told::Unproven);

    let knock_of = |key| Caller::begin(Some(key), OWN, hello()).1;
    let stranger = hear(&mut Host::default(), &knock_of(front(NEW, "web")), &keys());
    assert_eq!(stranger, Heard::Refuse(Refusal::OtherCluster));
    let without_web = ClusterKeys {
        refused: vec![web().id()],
        ..keys()
    };
    let refused = hear(&mut Host::default(), &knock_of(web()), &without_web);
    assert_eq!(refused, Heard::Refuse(Refusal::FrontRefused));
}

#[test]
fn a_rollover_accepts_both_keys_and_then_the_new_one_only() {
    let both = ClusterKeys {
        other: Some(OLD),
        ..ClusterKeys::new(NEW)
    };
    let after = ClusterKeys::new(NEW);
    for key in [web(), front(NEW, "web")] {
        let (_, mut host, sealed) = greeting(key, &both);
        assert_eq!(hear(&mut host, &sealed, &both), Heard::Message(hello()));
    }
    // The old key is forgotten between KNOCK and HELLO.
    let (_, mut host, sealed) = greeting(web(), &both);
    let heard = hear(&mut host, &sealed, &after);
    assert_eq!(heard, Heard::Refuse(Refusal::OtherCluster));
    let (_, knock) = Caller::begin(Some(web()), OWN, hello());
    let heard = hear(&mut Host::default(), &knock, &after);
    assert_eq!(heard, Heard::Refuse(Refusal::OtherCluster));
}

#[test]
fn a_recorded_conversation_is_worth_nothing() {
    let (_, knock) = Caller::begin(Some(web()), OWN, hello());
    let (mut caller, mut host, sealed) = greeting(web(), &keys());
    let recorded = host.write(&welcome());
    // The HELLO is repeated in another connection with the same KNOCK, for which the device has another nonce.
    let mut other = Host::default();
    let heard = other.hear(&knock, Some(&keys()), || Some([3, 5]));
    assert!(matches!(heard, Heard::Answer(_)));
    let heard = hear(&mut other, &sealed, &keys());
    assert_eq!(heard, Heard::Refuse(Refusal::WrongKey));
    // The HELLO comes without a KNOCK, and it comes twice.
    let heard = hear(&mut Host::default(), &sealed, &keys());
    assert_eq!(heard, Heard::Refuse(Refusal::NeedsKey));
    assert_eq!(hear(&mut host, &sealed, &keys()), Heard::Message(hello()));
    let heard = hear(&mut host, &sealed, &keys());
    assert_eq!(heard, Heard::Refuse(Refusal::WrongKey));
    // The WELCOME comes to a client that has another nonce.
    let (mut later, _) = Caller::begin(Some(web()), [1, 3], hello());
    let challenge = Message::Challenge { nonce: DEVICES };
    assert!(matches!(later.hear(&challenge.write()), Told::Answer(_)));
    assert_eq!(later.hear(&recorded), Told::Unproven);
    // The client's own message comes back to it.
    assert_eq!(caller.hear(&sealed), Told::Unproven);
}

#[test]
fn a_bind_and_its_answer_are_good_once_and_in_their_order() {
    let (mut caller, mut host) = up();
    let first = caller.bind(5, &binding(web())).unwrap();
    let second = caller.bind(6, &binding(web())).unwrap();
    let mut skipped = host.clone();
    let heard = hear(&mut skipped, &second, &keys());
    assert_eq!(heard, Heard::Refuse(Refusal::WrongKey));
    assert!(matches!(
        hear(&mut host, &first, &keys()),
        Heard::Message(_)
    ));
    let mut again = host.clone();
    let heard = hear(&mut again, &first, &keys());
    assert_eq!(heard, Heard::Refuse(Refusal::WrongKey));
    let bound = host.write(&Message::Bound { session: 5 });
    assert!(matches!(caller.hear(&bound), Told::Message(_)));
    assert_eq!(caller.hear(&bound), Told::Unproven);
}

/// A man in the middle could otherwise insert his own QP, byte to read, epoch or number of copies.
#[test]
fn each_bit_of_hello_and_welcome_counts() {
    let (caller, host, sealed) = greeting(web(), &keys());
    let answer = host.clone().write(&welcome());
    // The checksum is computed anew, so its bits do not count.
    for bit in (0..MESSAGE_BYTES * 8).filter(|bit| !(12..16).contains(&(bit / 8))) {
        let heard = hear(&mut host.clone(), &flipped(&sealed, bit), &keys());
        let accepted = matches!(heard, Heard::Message(_) | Heard::Answer(_));
        assert!(!accepted, "bit {bit} of HELLO: {heard:?}");
        let told = caller.clone().hear(&flipped(&answer, bit));
        let accepted = matches!(told, Told::Message(_) | Told::Answer(_));
        assert!(!accepted, "bit {bit} of WELCOME: {told:?}");
    }
}

#[test]
fn a_session_is_bound_with_the_key_of_its_own_front() {
    let both = ClusterKeys {
        other: Some(OLD),
        ..ClusterKeys::new(NEW)
    };
    let renewed = front(NEW, "web");
    let (mut caller, mut host, sealed) = greeting(renewed, &both);
    assert!(matches!(hear(&mut host, &sealed, &both), Heard::Message(_)));
    // A session that the front opened with its old key.
    let bind = caller.bind(5, &binding(web())).unwrap();
    assert!(matches!(hear(&mut host, &bind, &both), Heard::Message(_)));
    // The BIND names another front, whose key the client does not have.
    let mut of_another = binding(renewed);
    of_another.whose.front = Some(front(NEW, "other").id());
    let stolen = caller.clone().bind(6, &of_another).unwrap();
    let heard = hear(&mut host.clone(), &stolen, &both);
    assert_eq!(heard, Heard::Refuse(Refusal::WrongKey));
    // The cluster no longer has the old key. The session is now unknown, and the connection continues.
    let after = ClusterKeys::new(NEW);
    let bind = caller.bind(7, &binding(web())).unwrap();
    let Heard::Answer(unknown) = hear(&mut host, &bind, &after) else {
        panic!("an answer");
    };
    let said = Message::Unknown { session: 7 };
    assert_eq!(caller.hear(&unknown), Told::Message(said));
    let bind = caller.bind(8, &binding(renewed)).unwrap();
    assert!(matches!(hear(&mut host, &bind, &after), Heard::Message(_)));
}

#[test]
fn messages_out_of_turn_are_refused() {
    let (_, knock) = Caller::begin(Some(web()), OWN, hello());
    let (mut caller, mut host, _) = greeting(web(), &keys());
    assert_eq!(
        hear(&mut host, &knock, &keys()),
        Heard::Refuse(Refusal::WrongKey)
    );
    let (_, mut host, _) = greeting(web(), &keys());
    // Before HELLO, the answer to a BIND does not tell whether its front is known.
    let stranger = caller.bind(5, &binding(front(NEW, "web"))).unwrap();
    assert!(matches!(
        hear(&mut host, &stranger, &keys()),
        Heard::Refuse(_)
    ));
    let bound = Message::Bound { session: 5 }.write();
    assert_eq!(hear(&mut Host::default(), &bound, &keys()), Heard::Garbage);
    assert_eq!(
        hear(&mut Host::default(), &[7; MESSAGE_BYTES], &keys()),
        Heard::Garbage
    );
    let (_, knock) = Caller::begin(Some(web()), OWN, hello());
    let no_nonce = Host::default().hear(&knock, Some(&keys()), || None);
    assert_eq!(no_nonce, Heard::Garbage);
}

/// A sealed HELLO equals the bytes in the specification (verbs.md §4), which another program has computed.
#[test]
fn a_sealed_hello_has_these_bytes() {
    let (_, _, sealed) = greeting(web(), &keys());
    let text: String = sealed.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(text, SEALED_HELLO);
}

/// Client and device exchange their first messages by TCP on this machine. Another client disconnects in the middle of
/// its HELLO.
#[test]
fn client_and_device_meet_by_tcp_and_half_a_hello_is_none() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = || {
        let other = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, _) = listener.accept().unwrap();
        [own, other].map(|stream| {
            stream.set_nonblocking(true).unwrap();
            Line::new(TcpStream::from_std(stream))
        })
    };
    let [mut device, mut client] = connect();
    let (mut caller, first) = Caller::begin(Some(web()), OWN, hello());
    let mut host = Host::default();
    client.send(&first).unwrap();
    let knock = next(&mut device).unwrap();
    let Heard::Answer(challenge) = hear(&mut host, &knock, &keys()) else {
        panic!("challenged");
    };
    device.send(&challenge).unwrap();
    let Told::Answer(sealed) = caller.hear(&next(&mut client).unwrap()) else {
        panic!("answered");
    };
    client.send(&sealed).unwrap();
    let heard = hear(&mut host, &next(&mut device).unwrap(), &keys());
    assert_eq!(heard, Heard::Message(hello()));
    device.send(&host.write(&welcome())).unwrap();
    let told = caller.hear(&next(&mut client).unwrap());
    assert_eq!(told, Told::Message(welcome()));

    let [mut device, mut client] = connect();
    std::io::Write::write_all(client.stream(), &sealed[..MESSAGE_BYTES - 1]).unwrap();
    drop(client);
    assert_eq!(next(&mut device), Err(Ended::Closed));
}

fn next(line: &mut Line) -> Result<Bytes, Ended> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        if let Some(bytes) = line.next()? {
            return Ok(bytes);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("nothing came");
}

const SEALED_HELLO: &str = concat!(
    "504d4e455452515001010000bd90a0a600000003000000040000040000000011",
    "00abcdef74686520616464726573732068657265c73900000000000000000000",
    "0000000000000000000000000000000000000000000000006ce9cafe880b454f",
);
