//! The name of a store: every written name can be read, and all other text is refused.

use pmnet_wire::StoreName;
use pmnet_wire::store_name::STORE_NAME_PART_BYTES_MAX;
use proptest::prelude::*;

fn part(least: usize) -> impl Strategy<Value = String> {
    proptest::string::string_regex(&format!("[!-%'-~]{{{least},128}}")).expect("a pattern")
}

fn name() -> impl Strategy<Value = StoreName> {
    (
        any::<std::net::IpAddr>(),
        any::<u16>(),
        part(1),
        part(1),
        part(0),
        any::<bool>(),
    )
        .prop_map(|(ip, port, run_id, records, owner, reads)| StoreName {
            address: (ip, port).into(),
            run_id,
            records,
            owner,
            reads,
        })
}

proptest! {
    #[test]
    fn what_is_written_is_read(name in name()) {
        prop_assert_eq!(StoreName::parse(name.to_string().as_bytes()), Ok(name));
    }

    /// Each name has only one spelling. So a damaged name is either another name or refused.
    #[test]
    fn what_is_accepted_is_canonical(name in name(), at: prop::sample::Index, byte: u8) {
        let mut text = name.to_string().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        if let Ok(read) = StoreName::parse(&text) {
            prop_assert_eq!(read.to_string().into_bytes(), text);
        }
    }

    #[test]
    fn any_bytes_are_judged_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(StoreName::parse(&bytes).is_err());
    }
}

#[test]
fn a_process_is_known_by_its_run_id() {
    let name = |address: &str, run_id: &str, owner: &str| StoreName {
        address: address.parse().expect("an address"),
        run_id: run_id.into(),
        records: "pmnet:{0}".into(),
        owner: owner.into(),
        reads: false,
    };
    let one = name("127.0.0.1:1", "a", "o-1");
    assert!(one.same_process(&name("127.0.0.2:1", "a", "o-2")));
    assert!(!one.same_process(&name("127.0.0.1:1", "b", "o-1")));
}

#[test]
fn every_part_is_there_and_no_longer_than_it_may_be() {
    let most = "x".repeat(STORE_NAME_PART_BYTES_MAX);
    let more = format!("{most}x");
    for (run_id, records, owner, good) in [
        ("a", "b", "c", true),
        ("a", "b", "", true),
        ("", "b", "c", false),
        ("a", "", "c", false),
        (&most[..], &most, &most, true),
        (&more, "b", "c", false),
        ("a", &more, "c", false),
        ("a", "b", &more, false),
        ("a", "b", "c&d", false),
        ("a", "b", "c d", false),
        ("a", "b", "\u{e9}", false),
    ] {
        let text = format!("redis://127.0.0.1:1/?run_id={run_id}&records={records}&owner={owner}");
        assert_eq!(StoreName::parse(text.as_bytes()).is_ok(), good, "{text}");
    }
}

/// A reader of a name must not have to wait for a resolver.
#[test]
fn an_address_in_a_name_is_a_number() {
    for (address, good) in [
        ("127.0.0.1:6379", true),
        ("[::1]:6379", true),
        ("localhost:6379", false),
        ("127.0.0.1", false),
        ("", false),
    ] {
        let text = format!("redis://{address}/?run_id=a&records=pmnet:{{0}}&owner=");
        assert_eq!(StoreName::parse(text.as_bytes()).is_ok(), good, "{address}");
    }
}
