use super::*;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;

const KEY: &str = "000102030405060708090a0b0c0d0e0f";
const OTHER: &str = "ffeeddccbbaa99887766554433221100";

fn read(text: &str) -> Result<KeyFile, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.key");
    std::fs::write(&path, text).unwrap();
    set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    KeyFile::read(&path).map_err(|error| {
        let text = error.to_string();
        let begins = format!("key file {}: ", path.display());
        text.strip_prefix(&begins).expect(&text).to_owned()
    })
}

fn name(text: &str) -> FrontName {
    FrontName::new(text).unwrap()
}

#[test]
fn keys_that_were_drawn_are_written_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let (path, of_front) = (folder.path().join("c.key"), folder.path().join("web.key"));
    let mut cluster = Cluster::draw().unwrap();
    cluster.other = Some(Cluster::draw().unwrap().present);
    assert_ne!(Some(cluster.present), cluster.other, "drawn anew");
    let id = cluster.front(name("old")).key.id();
    cluster.refused = vec![Refused::Name(name("web-1")), Refused::Id(id)];
    KeyFile::Cluster(cluster.clone()).create(&path).unwrap();
    let again = Cluster::read(&path).unwrap();
    assert_eq!(
        (again.present, again.other),
        (cluster.present, cluster.other)
    );
    assert_eq!(again.refused, cluster.refused);

    let front = cluster.front(name("web"));
    KeyFile::Front(front.clone()).create(&of_front).unwrap();
    let again = Front::read(&of_front).unwrap();
    assert_eq!((again.name, again.key), (front.name, front.key));
    for path in [&path, &of_front] {
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    assert!(Cluster::read(&of_front).is_err() && Front::read(&path).is_err());
}

#[test]
fn a_file_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.key");
    let file = KeyFile::Cluster(Cluster::draw().unwrap());
    file.create(&path).unwrap();
    let before = std::fs::read(&path).unwrap();
    let again = KeyFile::Cluster(Cluster::draw().unwrap()).create(&path);
    assert!(matches!(again.unwrap_err().wrong, Wrong::Exists));
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_file_that_others_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.key");
    KeyFile::Cluster(Cluster::draw().unwrap())
        .create(&path)
        .unwrap();
    for (mode, is_private) in [
        (0o600, true),
        (0o400, true),
        (0o700, true),
        (0o640, false),
        (0o604, false),
        (0o620, false),
        (0o601, false),
        (0o644, false),
    ] {
        set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        match KeyFile::read(&path) {
            Ok(_) => assert!(is_private, "{mode:o}"),
            Err(error) => {
                assert!(!is_private, "{mode:o}");
                let says = format!("(mode {mode:04o}): chmod 600");
                assert!(error.to_string().contains(&says), "{error}");
            }
        }
    }
}

#[test]
fn a_refused_name_counts_for_both_keys() {
    let text =
        format!("kind = \"cluster\"\nkey = \"{KEY}\"\naccept = \"{OTHER}\"\nrefused = [\"web\"]");
    let Ok(KeyFile::Cluster(cluster)) = read(&text) else {
        panic!("{text}");
    };
    let keys = cluster.keys();
    let ids = [keys.present, keys.other.unwrap()].map(|key| key.front_id(b"web"));
    assert_eq!(keys.refused, ids);
}

#[test]
fn another_text_is_refused_and_its_key_is_not_shown() {
    let cluster = |rest: &str| format!("kind = \"cluster\"\n{rest}");
    let front = |name: &str, id: &str| {
        format!("kind = \"front\"\nname = \"{name}\"\nid = \"{id}\"\nkey = \"{KEY}\"")
    };
    let short = &KEY[1..];
    for (text, says) in [
        (String::new(), "line 1: kind is missing"),
        ("kind = \"other\"".into(), "kind is neither"),
        (cluster(""), "key is missing"),
        (
            cluster(&format!("key = \"{short}\"")),
            "key: 32 hexadecimal digits are needed, and it has 31",
        ),
        (cluster(&format!("key = \"{KEY}0\"")), "and it has 33"),
        (
            cluster(&format!("key = \"{short}x\"")),
            "32 hexadecimal digits",
        ),
        (
            cluster(&format!("key = \"{short}\u{e9}\"")),
            "32 hexadecimal digits",
        ),
        (
            cluster(&format!("key = \"{KEY}\"\nkex = \"{KEY}\"")),
            "a name that no key file has",
        ),
        (cluster(&format!("key = \"{KEY}\" \"{KEY}\"")), "line 2"),
        (
            cluster(&format!("key = \"{KEY}\"\naccept = \"{KEY}\"")),
            "the same key",
        ),
        (
            cluster(&format!("key = \"{KEY}\"\naccept = \"{short}\"")),
            "accept: 32",
        ),
        (
            cluster(&format!("key = \"{KEY}\"\nrefused = [\"a b\"]")),
            "refused: number 1 of the list",
        ),
        (
            cluster(&format!("key = \"{KEY}\"\nrefused = [\"id:12\"]")),
            "refused: number 1 of the list",
        ),
        (front("a/b", "0000000000000001"), "name: 1 to 64"),
        (front("", "0000000000000001"), "name: 1 to 64"),
        (front("web", "0000000000000000"), "not all 0"),
        (front("web", "1"), "16 hexadecimal"),
        ("#".repeat(256 * 1024 + 1), "more than 262144 bytes"),
    ] {
        let error = read(&text).expect_err(&text);
        assert!(error.contains(says), "{error}");
        assert!(!error.contains(short), "it shows the key: {error}");
    }
    let missing = KeyFile::read(Path::new("/none/such")).unwrap_err();
    assert!(missing.to_string().starts_with("key file /none/such: "));
    assert!(!format!("{:?}", Cluster::draw().unwrap()).contains("key: ["));
}

/// The key stands at a wrong place of the file. A parser's message would quote the key.
#[test]
fn an_error_quotes_nothing_of_the_file() {
    let digits = "31415926535897932384626433832795";
    for (text, says) in [
        (format!("kind = \"{KEY}\""), "kind is neither"),
        (
            format!("{KEY} = \"x\"\nkind = \"cluster\""),
            "no key file has",
        ),
        (
            format!("kind = \"front\"\n{KEY} = \"x\""),
            "no key file has",
        ),
        (format!("kind = \"cluster\"\nkey = {digits}"), "line "),
        (
            format!("kind = \"cluster\"\nkey = {digits}e4"),
            "no text in quotes",
        ),
        (format!("kind = \"cluster\"\nkey = {KEY}"), "line 2"),
        (
            format!("kind = \"cluster\"\n{KEY} = 1\n{KEY} = 2"),
            "line 3",
        ),
        (
            format!("kind = \"cluster\"\nkey = \"{OTHER}\"\nrefused = [\"web\", \"{KEY} \"]"),
            "refused: number 2",
        ),
        (
            format!("kind = \"cluster\"\nkey = \"{OTHER}\"\nrefused = \"{KEY}\""),
            "no text in quotes",
        ),
    ] {
        let error = read(&text).expect_err(&text);
        assert!(error.contains(says), "{says}: {error}");
        for part in [&KEY[..6], &digits[..6], &OTHER[..6]] {
            assert!(!error.contains(part), "{text}: {error}");
        }
    }
}

#[test]
fn a_key_of_zeros_is_refused() {
    let zeros = "0".repeat(32);
    for text in [
        format!("kind = \"cluster\"\nkey = \"{zeros}\""),
        format!("kind = \"cluster\"\nkey = \"{KEY}\"\naccept = \"{zeros}\""),
        format!("kind = \"front\"\nname = \"web\"\nid = \"0000000000000001\"\nkey = \"{zeros}\""),
    ] {
        let error = read(&text).expect_err(&text);
        assert!(error.contains("all its digits are 0"), "{error}");
    }
}

/// A pipe without a writer must not block the process.
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, 0o600.into(), 0).unwrap();
    let (done, waits) = std::sync::mpsc::channel();
    for path in [pipe, folder.path().to_owned(), "/dev/zero".into()] {
        let (done, at) = (done.clone(), path.clone());
        std::thread::spawn(move || done.send(KeyFile::read(&at).map(drop)));
        let read = waits.recv_timeout(std::time::Duration::from_secs(10));
        let wrong = read.expect("it hangs").unwrap_err().wrong;
        assert!(
            matches!(wrong, Wrong::NoFile),
            "{}: {wrong}",
            path.display()
        );
    }
}

/// The owner of the file could read and change the key of a process that runs as root.
#[test]
fn a_file_of_another_user_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.key");
    KeyFile::Cluster(Cluster::draw().unwrap())
        .create(&path)
        .unwrap();
    let own = rustix::process::geteuid().as_raw();
    match std::os::unix::fs::chown(&path, Some(own + 1), None) {
        Ok(()) => {
            let wrong = KeyFile::read(&path).unwrap_err().wrong;
            assert!(matches!(wrong, Wrong::Owner { .. }), "{wrong}");
        }
        // Only root can change the owner of a file, and only root can read the files of other
        // users.
        Err(error) => assert_ne!(own, 0, "{error}"),
    }
}

#[test]
fn a_copy_of_what_a_group_can_read_is_for_its_owner_alone_and_takes_the_place_of_an_older_one() {
    let folder = tempfile::tempdir().unwrap();
    let (mounted, own) = (folder.path().join("mounted"), folder.path().join("c.key"));
    // An interrupted call has left this copy behind.
    std::fs::write(folder.path().join("c.key.new"), "half").unwrap();
    for _ in 0..2 {
        let cluster = Cluster::draw().unwrap();
        let _ = std::fs::remove_file(&mounted);
        KeyFile::Cluster(cluster.clone()).create(&mounted).unwrap();
        set_permissions(&mounted, Permissions::from_mode(0o440)).unwrap();
        assert!(Cluster::read(&mounted).is_err(), "used as it is");
        KeyFile::copy(&mounted, &own).unwrap();
        assert_eq!(Cluster::read(&own).unwrap().present, cluster.present);
    }
    let before = std::fs::read(&own).unwrap();
    for (mode, text) in [(0o444, KEY), (0o440, "no keys")] {
        set_permissions(&mounted, Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&mounted, text).unwrap();
        set_permissions(&mounted, Permissions::from_mode(mode)).unwrap();
        KeyFile::copy(&mounted, &own).unwrap_err();
    }
    assert_eq!(
        std::fs::read(&own).unwrap(),
        before,
        "a bad one changes nothing"
    );
    let there = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(there, 2, "nothing else is left");
}
