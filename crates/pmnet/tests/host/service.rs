//! Tests of the messages to a service manager, whose socket the test opens, and of flags from the environment.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::chain::{Places, Running, pmnet, product};

/// Waits for a message that contains this text.
fn hears(socket: &UnixDatagram, what: &str) -> String {
    let until = Instant::now() + Duration::from_secs(15);
    let mut buffer = [0; 4096];
    let mut heard = Vec::new();
    while Instant::now() < until {
        if let Ok(count) = socket.recv(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
            if text.contains(what) {
                return text;
            }
            heard.push(text);
        }
    }
    panic!("no {what} in {heard:?}");
}

fn server(places: &Places, socket: &str) -> Command {
    let mut server = Command::new("sh");
    server
        // The variable that the manager sets contains the id of the process to which the watchdog belongs.
        .args(["-c", "WATCHDOG_PID=$$ exec \"$@\"", "sh"])
        .arg(pmnet())
        .arg("server")
        .env("PMNET_SERVER_LISTEN", "127.0.0.1:0")
        .env("PMNET_SERVER_STORE", "mysql://nobody")
        .env("NOTIFY_SOCKET", places.path(socket));
    server
}

/// The flags come from the environment. A flag on the command line takes precedence over its variable.
#[test]
fn a_manager_hears_that_a_role_serves_and_lives() {
    let places = Places::new();
    let socket = UnixDatagram::bind(places.path("notify")).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let mut server = server(&places, "notify");
    server
        .args(["--store", "null:"])
        .env("WATCHDOG_USEC", "300000");
    let running = Running::logged(server, &places.path("server.err"));
    let said = hears(&socket, "READY=1");
    assert!(said.contains("STATUS=server listen=127.0.0.1:"), "{said}");
    hears(&socket, "WATCHDOG=1");
    hears(&socket, "WATCHDOG=1");
    running.stop();
}

/// A role that serves reports a reload. Afterwards its status is the ready line again. A device that still waits for
/// its server must not send READY, because the manager would take it for the end of the start.
#[test]
fn a_reload_makes_no_role_ready() {
    let places = Places::new();
    let socket = UnixDatagram::bind(places.path("notify")).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let mut waiting = places.device("127.0.0.1:9");
    waiting.env("NOTIFY_SOCKET", places.path("notify"));
    let mut waiting = Running::logged(waiting, &places.path("device.err"));
    waiting.says("made a new log");
    waiting.signal(Signal::HUP);
    waiting.says("SIGHUP: ");
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        let mut buffer = [0; 4096];
        if let Ok(count) = socket.recv(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
            assert!(!text.contains("READY=1"), "{text}");
        }
    }
    waiting.stop();
    let mut server = server(&places, "notify");
    server.args(["--store", "null:"]);
    let running = Running::logged(server, &places.path("server.err"));
    let said = hears(&socket, "READY=1");
    running.signal(Signal::HUP);
    // A unit with Type=notify-reload needs both fields in one message.
    let begun = hears(&socket, "RELOADING=1");
    assert!(begun.contains("MONOTONIC_USEC="), "{begun}");
    assert_eq!(hears(&socket, "READY=1"), said);
    running.stop();
}

#[test]
fn a_variable_counts_where_no_flag_is_given() {
    let places = Places::new();
    let output = server(&places, "none").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("mysql://nobody"),
        "{text}"
    );
}

#[test]
fn a_file_is_checked_and_nothing_is_started() {
    let places = Places::new();
    let path = places.path("pmnet.toml");
    let check = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let output = product()
            .arg("check")
            .arg("--config")
            .arg(&path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    };
    let log = places.path("never.pmlog");
    let device = format!(
        "[device]\nlisten = \"127.0.0.1:51000\"\nnext = \"127.0.0.1:51500\"\nmedia = \"dram\"\nlog = \"{}\"\n",
        log.display()
    );
    let server = "[server]\nlisten = \"127.0.0.1:51500\"\nstore = \"null:\"\n";
    let (code, text) = check(&format!("{device}{server}"));
    assert!(
        code == Some(0) && text.contains("[server], [device]"),
        "{text}"
    );
    assert!(!log.exists());
    for (wrong, why) in [
        (
            "[server]\nlisten = \"127.0.0.1:51500\"\nstore = \"mysql://x\"\n",
            "[server]: --store",
        ),
        (
            "[device]\nlisten = \"127.0.0.1:51000\"\n",
            "[device]: --next is missing",
        ),
        (
            "[redis]\nlisten = \"127.0.0.1:6380\"\nvia = \"127.0.0.1:51000\"\ncopies = 99\n",
            "[redis]: --copies 99",
        ),
        (
            "[memcached]\nlisten = \"127.0.0.1:11211\"\nvia = \"127.0.0.1:51000\"\nstatus = \"unix:x\"\n",
            "[memcached]: --status unix:x",
        ),
        (
            "[redis]\nlisten = \"127.0.0.1:6380\"\nvia = \"127.0.0.1:51000\"\nassume-ok = [\"INCR\"]\n",
            "[redis]: --assume-ok: INCR cannot be acknowledged early",
        ),
        (
            "[redis]\nlisten = \"127.0.0.1:6380\"\nvia = \"127.0.0.1:51000\"\nassume-ok = [\"FOO\"]\n",
            "[redis]: --assume-ok: there is no command \"FOO\"",
        ),
        (
            "[redis]\nlisten = \"127.0.0.1:6380\"\nvia = \"127.0.0.1:51000\"\ndirect = \"redis://u%zz@h\"\n",
            "[redis]: --direct: ",
        ),
        ("[devise]\n", "devise"),
        ("", "the configuration has no role"),
        (
            "log-filter = \"info\"\n[run]\n",
            "the configuration has no role",
        ),
    ] {
        let (code, text) = check(wrong);
        assert!(code == Some(2) && text.contains(why), "{code:?} {text}");
    }
    // The address of a packet store is checked, and no store is made.
    let store = places.path("never.store");
    let packet = |more: &str| {
        let url = format!("packet:{}", store.display());
        format!("[server]\nlisten = \"127.0.0.1:51500\"\nstore = \"{url}{more}\n")
    };
    let (code, text) = check(&packet("?size=64M\""));
    assert!(code == Some(0), "{text}");
    let bare = "[server]\nlisten = \"127.0.0.1:51500\"\nstore = \"packet:\"\n";
    for (wrong, why) in [
        (packet("?size=1T\""), "size=1T: a number of bytes"),
        (packet("?siz=3\""), "siz=3: an unknown setting"),
        (packet("\"\nstore-sync = \"none\""), "PM2121"),
        (bare.to_owned(), "the path is missing"),
    ] {
        let (code, text) = check(&wrong);
        assert!(code == Some(2) && text.contains(why), "{code:?} {text}");
    }
    assert!(!store.exists());
}
