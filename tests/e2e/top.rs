//! `pmnet top` in a terminal, with real processes. The program must show all processes, name lost ones, fit into every
//! window, and restore the terminal at its end.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use pmnet_lab::harness::{Medium, Role, Scratch, StoreKind, Topology, find_program};
use rustix::process::{Pid, Signal, kill_process};

use crate::common;
use crate::status::{place, root, shown};
use crate::support::{eventually, front, ok};

const SOON: Duration = Duration::from_secs(20);
/// The lines before and after the screen in the handbook.
const MARKS: [&str; 2] = [
    "<!-- Captured: UPDATE=1 on the end-to-end test top::it_names_a_device_that_is_lost -->\n```text\n",
    "```\n<!-- End of the screen -->\n",
];

/// A terminal that runs one program.
struct Terminal(PathBuf);

impl Terminal {
    /// Starts this shell command in a window of 80 x 24 characters. Returns `None` if tmux is not installed.
    fn start(folder: &Path, name: &str, command: &str) -> Option<Terminal> {
        if find_program("tmux").is_none() {
            common::skip("tmux is not installed (tests/setup.sh)");
            return None;
        }
        let terminal = Terminal(folder.join(name));
        let output = terminal.tmux(&["new-session", "-d", "-x", "80", "-y", "24", command]);
        assert!(output.status.success(), "{output:?}");
        Some(terminal)
    }

    fn tmux(&self, args: &[&str]) -> Output {
        Command::new("tmux")
            .arg("-S")
            .arg(&self.0)
            .args(["-f", "/dev/null"])
            .args(args)
            .env("TERM", "xterm-256color")
            .env_remove("TMUX")
            .output()
            .unwrap()
    }

    /// Returns the contents of the screen. With `-e` in `more`, they include the attributes of the characters.
    fn screen(&self, more: &[&str]) -> String {
        let args = [&["capture-pane", "-p"], more].concat();
        String::from_utf8(self.tmux(&args).stdout).unwrap()
    }

    fn shows(&self, text: &str) {
        let mut screen = String::new();
        let deadline = std::time::Instant::now() + SOON;
        while std::time::Instant::now() < deadline {
            screen = self.screen(&[]);
            if screen.contains(text) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("no {text:?} within {SOON:?}:\n{screen}");
    }

    /// Returns the process that the shell in the window has started.
    fn program(&self) -> Pid {
        let output = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let shell = String::from_utf8(output.stdout).unwrap();
        let shell = shell.trim();
        let children = format!("/proc/{shell}/task/{shell}/children");
        let children = std::fs::read_to_string(children).unwrap();
        let child = children.split_whitespace().next().expect("a program");
        Pid::from_raw(child.parse().unwrap()).unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

fn top(at: &str) -> String {
    format!("{} top --at {at} --interval 0.5", common::pmnet().display())
}

/// Returns a shell command that runs `command`, and then prints its exit code and the terminal's settings.
fn and_then_says(command: &str) -> String {
    format!("sh -c '{command}; echo ended $?; stty -a; sleep 1000'")
}

fn is_set_back(terminal: &Terminal, code: u8) {
    terminal.shows(&format!("ended {code}"));
    terminal.shows("icanon");
    let screen = terminal.screen(&[]);
    for changed in ["-icanon", "-echo ", "DEVICES"] {
        assert!(!screen.contains(changed), "{changed}:\n{screen}");
    }
}

#[test]
fn it_names_a_device_that_is_lost() {
    let mut topology = shown(Topology::new(StoreKind::Packet, 3, Medium::Dram));
    topology
        .device_args
        .extend(["--copies", "3"].map(String::from));
    let mut cluster = common::start("top-lost", topology).unwrap();
    let roles = [
        Role::Front,
        Role::Device(0),
        Role::Device(1),
        Role::Device(2),
        Role::Server,
    ];
    let places = roles.map(|role| place(cluster.process(role).unwrap()));
    let at = places.map(|place| place.to_string()).join(",");
    let scratch = Scratch::new(common::folder(), "top-lost-terminal").unwrap();
    let command = and_then_says(&top(&at));
    let Some(terminal) = Terminal::start(scratch.disk(), "a", &command) else {
        return;
    };
    let chain = cluster.process(Role::Device(1)).unwrap().stdout();
    let id = chain
        .split("id=")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .unwrap_or_else(|| panic!("no id: {chain}"))
        .to_owned();
    terminal.shows("5 processes, 5 ready");
    for text in ["FRONTS", "DEVICES", "SERVERS", "head", "3 of 3", "3/3"] {
        terminal.shows(text);
    }
    // A rate is shown only while there are operations.
    let mut client = front(&cluster);
    eventually("acknowledgements are counted", SOON, || {
        for _ in 0..200 {
            assert_eq!(client.call(&["SET", "a", "1"]).unwrap(), ok());
        }
        let screen = terminal.screen(&[]);
        let head = screen.lines().find(|line| line.contains(" head "));
        let acks = head.and_then(|line| line.split_whitespace().nth(4));
        acks.is_some_and(|acks| acks != "-" && acks != "0")
    });
    cluster.kill(Role::Device(1)).unwrap();
    // The front notices the loss when a client writes.
    let _ = client.call(&["SET", "a", "2"]);
    let screen = |terminal: &Terminal| terminal.screen(&["-J"]);
    terminal.shows("1 not answering");
    terminal.shows("What to do:");
    let said = screen(&terminal);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains(&format!("device {id}")), "{said}");
    assert!(said.contains("PmnetDown"), "{said}");
    document(&terminal.screen(&[]));
    // The screen must work in a window of any size, even if nothing fits.
    for (width, height) in [("40", "10"), ("12", "3"), ("200", "50"), ("80", "24")] {
        terminal.tmux(&["resize-window", "-x", width, "-y", height]);
        terminal.shows("pmnet top");
        for line in terminal.screen(&[]).lines() {
            assert!(line.chars().count() <= width.parse().unwrap(), "{line}");
        }
    }
    terminal.tmux(&["send-keys", "r"]);
    terminal.shows("sorted by rate");
    terminal.tmux(&["send-keys", "q"]);
    is_set_back(&terminal, 0);
    drop(terminal);
    // The contents of the screen are printed once, as text.
    let output = Command::new(common::pmnet())
        .args(["top", "--once", "--interval", "0.2", "--at", &at])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in [
        "1 not answering",
        "PmnetDown",
        &format!("device {id} of the chain of shard 0 is lost"),
        "DEVICES",
        "SERVERS",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    ends_by_a_signal(&scratch, &at);
}

/// A signal must end `pmnet top` as the key `q` does. Without colours in its settings, `pmnet top` must not use any.
fn ends_by_a_signal(scratch: &Scratch, at: &str) {
    let begin = |name: &str, prefix: &str| {
        let command = and_then_says(&format!("{prefix}{}", top(at)));
        let terminal = Terminal::start(scratch.disk(), name, &command).unwrap();
        terminal.shows("not answering");
        terminal
    };
    let is_red = |terminal: &Terminal| {
        let screen = terminal.screen(&["-e"]);
        screen.contains("[31m") || screen.contains("38;5;1m")
    };
    let coloured = begin("b", "");
    assert!(is_red(&coloured), "{:?}", coloured.screen(&["-e"]));
    kill_process(coloured.program(), Signal::TERM).unwrap();
    is_set_back(&coloured, 0);
    let plain = begin("c", "NO_COLOR=1 ");
    assert!(!is_red(&plain), "{:?}", plain.screen(&["-e"]));
}

/// Writes the screen into the handbook, if an environment variable demands it.
fn document(screen: &str) {
    let path = root().join("docs/operate/monitoring.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let from = page.find(MARKS[0]).expect("the screen's place") + MARKS[0].len();
    let to = page.find(MARKS[1]).expect("the screen's end");
    if std::env::var_os("UPDATE").is_some() {
        let lines: String = screen
            .lines()
            .map(|line| format!("{}\n", line.trim_end()))
            .collect();
        // Removes empty lines at the end of the window.
        let (mut lines, three) = (lines.trim_end().to_owned(), "\n\n\n");
        while lines.contains(three) {
            lines = lines.replace(three, "\n\n");
        }
        let page = format!("{}{lines}\n{}", &page[..from], &page[to..]);
        std::fs::write(&path, page).unwrap();
    }
}

#[test]
fn a_command_line_that_cannot_be_gets_a_sentence() {
    for (args, says) in [
        (&["top"][..], "no process is named"),
        (&["top", "--at", "127.0.0.1"], "host:port is needed"),
        (&["top", "--at", "127.0.0.1:1"], "stdout is no terminal"),
        (
            &["top", "--at", "127.0.0.1:1", "--interval", "0"],
            "--interval 0: it must be from",
        ),
        (&["top", "--config", "/none/such"], "/none/such"),
    ] {
        let output = Command::new(common::pmnet()).args(args).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(says), "{args:?}: {text}");
    }
}
