//! `libpmnet`, installed as a package installs it, with programs in C and C++ that are compiled
//! with the installed files.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Process, Ready, Scratch, Spec, find_program};

use super::{Chain, READY_MAX};
use crate::common::{self, skip};

/// Maximum run time of a program that must end by itself.
const RUN_MAX: Duration = Duration::from_secs(100);
/// Time between two kills.
const LIFE: Duration = Duration::from_millis(40);
/// Minimum number of kills of the program during one client's work. After these kills, the device
/// is killed too.
const KILLS_MIN: u32 = 4;

pub fn source() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .canonicalize()
            .unwrap()
    });
    &ROOT
}

pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

pub fn text(output: Output) -> String {
    String::from_utf8(output.stdout).unwrap()
}

/// The library, installed with `make install-lib` below a root folder of its own.
pub struct Installed {
    scratch: Scratch,
}

impl Installed {
    pub fn new(name: &str) -> Installed {
        let scratch = Scratch::new(common::folder(), name).unwrap();
        let built = common::pmnet().parent().unwrap();
        let library = built.join("libpmnet.so");
        assert!(
            library.is_file(),
            "there is no {}: cargo build -p pmnet-capi, with the profile of this test",
            library.display()
        );
        run(Command::new("make")
            .arg("--no-print-directory")
            .arg("-C")
            .arg(source())
            .arg("install-lib")
            .arg("PREFIX=/usr")
            .arg(format!("LIB_FROM={}", built.display()))
            .arg(format!("DESTDIR={}", scratch.disk().display())));
        Installed { scratch }
    }

    /// Returns the root folder, in which programs are compiled too.
    pub fn folder(&self) -> &Path {
        self.scratch.disk()
    }

    fn usr(&self) -> PathBuf {
        self.scratch.disk().join("usr")
    }

    /// Returns the words that `pkg-config` prints for the library below this root.
    fn pkg_config(&self, words: &[&str]) -> Vec<String> {
        let folder = self.usr().join("lib/pkgconfig");
        let mut command = Command::new("pkg-config");
        command
            .env("PKG_CONFIG_LIBDIR", folder)
            .env("PKG_CONFIG_SYSROOT_DIR", self.scratch.disk())
            .env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1")
            .env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1");
        let said = text(run(command.args(words).arg("pmnet")));
        said.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program with the installed library. Returns `None` if the compiler or a sanitizer
    /// is not installed.
    fn compile(&self, compiler: &str, flags: &[&str], file: &Path) -> Option<PathBuf> {
        if find_program(compiler).is_none() {
            skip(&format!("{compiler} is not installed"));
            return None;
        }
        let name = file.file_stem().unwrap().to_str().unwrap();
        let program = self.scratch.disk().join(format!(
            "{name}-{compiler}{}",
            flags.concat().replace([',', '='], "-")
        ));
        if flags.iter().any(|flag| flag.starts_with("-fsanitize")) {
            let empty = self.scratch.disk().join("empty.c");
            std::fs::write(&empty, "int main(void) { return 0; }\n").unwrap();
            let mut command = Command::new(compiler);
            command.args(flags).arg("-o").arg(&program).arg(&empty);
            if !command.output().unwrap().status.success() {
                skip(&format!("{compiler} has no {flags:?}"));
                return None;
            }
        }
        let standard = if file.extension().is_some_and(|end| end == "cc") {
            "-std=c++17"
        } else {
            "-std=gnu11"
        };
        run(Command::new(compiler)
            .args([
                standard,
                "-g",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
            ])
            .args(flags)
            .arg("-o")
            .arg(&program)
            .arg(file)
            .args(self.flags()));
        Some(program)
    }

    /// Returns the compiler flags that a program needs to use the library and to find it at run
    /// time.
    pub fn flags(&self) -> Vec<String> {
        let mut flags = self.pkg_config(&["--cflags", "--libs"]);
        flags.push(format!("-Wl,-rpath,{}", self.usr().join("lib").display()));
        flags
    }

    pub fn example(&self, compiler: &str, name: &str) -> Option<PathBuf> {
        self.compile(compiler, &[], &source().join("examples/c").join(name))
    }
}

/// Returns whether the compilers and tools for these tests are installed.
pub fn has_tools() -> bool {
    for tool in ["gcc", "make", "pkg-config"] {
        if find_program(tool).is_none() {
            skip(&format!("{tool} is not installed"));
            return false;
        }
    }
    true
}

/// Returns the names of the functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = source().join("crates/capi/include/pmnet.h");
    let header = std::fs::read_to_string(header).unwrap();
    // In a comment, () follows the name of a function. In a declaration, its parameters follow.
    let calls = header
        .match_indices('(')
        .filter(|(at, _)| !header[*at..].starts_with("()"));
    calls
        .map(|(at, _)| {
            let before = &header[..at];
            let begin = before.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            before[begin.map_or(0, |at| at + 1)..].to_owned()
        })
        .filter(|name| name.starts_with("pmnet_"))
        .collect()
}

#[test]
fn what_is_installed_is_what_the_header_and_the_pages_say() {
    if !has_tools() {
        return;
    }
    let installed = Installed::new("installed");
    let library = installed.usr().join("lib/libpmnet.so");
    let symbols = text(run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&library)));
    let exported: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .map(|name| name.split('@').next().unwrap().to_owned())
        .collect();
    assert!(declared().len() > 20);
    assert_eq!(exported, declared());

    let dynamic = text(run(Command::new("readelf").arg("-d").arg(&library)));
    assert!(
        dynamic.contains("Library soname: [libpmnet.so.0]"),
        "{dynamic}"
    );
    for name in declared() {
        let page = installed.usr().join(format!("share/man/man3/{name}.3"));
        let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            text.contains(&format!(".Fn {name}")) || text.contains(&format!(".Fo {name}")),
            "{name}"
        );
    }
    let version = installed.pkg_config(&["--modversion"]);
    assert_eq!(version, [env!("CARGO_PKG_VERSION")]);

    // A statically linked program must run without the shared library.
    let program = installed.scratch.disk().join("client-static");
    let archive = installed.usr().join("lib/libpmnet.a");
    let with: Vec<String> = installed.pkg_config(&["--static", "--libs-only-l"]);
    run(Command::new("gcc")
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source().join("examples/c/client.c"))
        .args(installed.pkg_config(&["--cflags"]))
        .arg(archive)
        .args(with.iter().filter(|word| *word != "-lpmnet")));
    let usage = Command::new(&program).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
}

/// Returns the programs in section EXAMPLES of a man page.
fn examples(page: &Path) -> Vec<String> {
    let page = std::fs::read_to_string(page).unwrap();
    let literal = page.split(".Bd -literal\n").skip(1);
    let programs = literal.map(|rest| rest.split_once("\n.Ed\n").unwrap().0);
    programs.map(|text| text.to_owned() + "\n").collect()
}

#[test]
fn the_examples_of_the_pages_compile() {
    if !has_tools() {
        return;
    }
    let installed = Installed::new("pages");
    let pages = installed.usr().join("share/man/man3");
    let mut compiled = 0;
    for name in ["pmnet_client.3", "pmnet_server.3"] {
        for program in examples(&pages.join(name)) {
            let file = installed.folder().join(format!("example{compiled}.c"));
            std::fs::write(&file, program).unwrap();
            // The functions of the program's store are not defined here, so the example is compiled
            // as a shared library.
            let flags = ["-shared", "-fPIC"];
            for compiler in ["gcc", "clang"] {
                installed.compile(compiler, &flags, &file);
            }
            compiled += 1;
        }
    }
    assert_eq!(compiled, 3);
}

#[test]
fn every_misuse_gets_its_code_with_and_without_sanitizers() {
    if !has_tools() {
        return;
    }
    let installed = Installed::new("misuse");
    let file = source().join("crates/capi/tests/c/misuse.c");
    for (compiler, flags) in [
        ("gcc", &[][..]),
        ("clang", &[]),
        (
            "gcc",
            &["-fsanitize=address,undefined", "-fno-sanitize-recover"],
        ),
        ("gcc", &["-fsanitize=thread"]),
    ] {
        let Some(program) = installed.compile(compiler, flags, &file) else {
            continue;
        };
        let chain = Chain::launch("misuse");
        // The threads of the library are not instrumented, so their accesses would be reported as
        // races.
        let quiet = chain.scratch.disk().join("tsan");
        std::fs::write(&quiet, "called_from_lib:libpmnet.so\n").unwrap();
        let mut command = Command::new(&program);
        command
            .env("TSAN_OPTIONS", format!("suppressions={}", quiet.display()))
            .args([chain.server.to_string(), chain.via.to_string()]);
        let output = killed_after(RUN_MAX, &mut command);
        let (status, said) = (output.status, String::from_utf8_lossy(&output.stderr));
        assert!(status.success(), "{compiler} {flags:?}: {status}\n{said}");
    }
}

/// Runs a command, and kills it after this time. Returns its stderr; its stdout is discarded.
pub fn killed_after(longest: Duration, command: &mut Command) -> Output {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() >= longest {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// Starts a server program at the chain's address.
pub fn launch(chain: &Chain, name: &str, program: &Path, place: &Path) -> Process {
    let spec = Spec {
        name: name.into(),
        binaries: common::binaries().clone(),
        program: Some(program.into()),
        args: vec![chain.server.to_string().into(), place.into()],
        ready: Ready::Line,
    };
    Process::start(spec, chain.scratch.disk(), READY_MAX).unwrap()
}

/// Starts the work of a client again and again, until the server program was killed often enough
/// meanwhile. Sometimes also kills the device.
pub fn kill_while(
    chain: &mut Chain,
    server: &mut Process,
    work: &mut dyn FnMut() -> Command,
) -> Vec<Output> {
    let begun = Instant::now();
    let mut kills = 0;
    let mut done = Vec::new();
    while kills < KILLS_MIN {
        let mut child = piped(&mut work());
        while child.try_wait().unwrap().is_none() {
            assert!(
                begun.elapsed() < RUN_MAX,
                "the client does not end\n{}",
                server.stderr()
            );
            thread::sleep(LIFE);
            server.relaunch().unwrap();
            server.wait_ready(READY_MAX).unwrap();
            kills += 1;
            if kills % KILLS_MIN == 0 {
                chain.device.relaunch().unwrap();
                // The device serves only after the server has answered it.
                chain.device.wait_ready(READY_MAX).unwrap();
            }
        }
        done.push(child.wait_with_output().unwrap());
    }
    println!("{kills} kills in {:?}", begun.elapsed());
    done
}

/// Starts a command. The output of the command is read after its end.
pub fn piped(command: &mut Command) -> Child {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    piped.spawn().unwrap()
}

/// Checks that all updates of each client are durable. Returns the number of clients.
pub fn durable(clients: Vec<Output>, times: u64) -> u64 {
    let count = clients.len() as u64;
    for client in clients {
        let why = String::from_utf8_lossy(&client.stderr).into_owned();
        assert_eq!(
            text(client),
            format!("durable {times} of {times}\n"),
            "{why}"
        );
    }
    count
}

pub fn client(program: &Path, chain: &Chain, words: &[&str]) -> Command {
    client_at(program, chain.via, words)
}

/// Runs a client of the device at this address.
pub fn client_at(program: &Path, via: SocketAddr, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg(via.to_string()).args(words);
    command
}

pub fn asked(program: &Path, chain: &Chain, words: &[&str]) -> String {
    let reply = text(run(&mut client(program, chain, words)));
    reply.trim_end_matches('\n').to_owned()
}

/// A counter and its clients, in any language, must count exactly once while processes die.
pub fn counts_once(name: &str, counter: &Path, call: &Path) {
    const TIMES: u64 = 3000;
    let mut chain = Chain::launch(name);
    let folder = chain.scratch.disk().to_owned();
    let mut server = launch(&chain, "counter", counter, &folder);
    let (via, times) = (chain.via, TIMES.to_string());
    let (mut added, mut taken) = (0, 0);
    for _ in 0..2 {
        // A client sends updates while processes die. Another client sends a request that changes
        // data.
        let asking = piped(&mut client_at(call, via, &["ask", "take"]));
        let updated = kill_while(&mut chain, &mut server, &mut || {
            client_at(call, via, &["update", "+3", &times])
        });
        added += 3 * TIMES * durable(updated, TIMES);
        let asked = asking.wait_with_output().unwrap();
        let why = String::from_utf8_lossy(&asked.stderr).into_owned();
        assert!(asked.status.success(), "{why}");
        taken += text(asked).trim().parse::<u64>().unwrap();
    }
    let left: u64 = asked(call, &chain, &["read", "get"]).parse().unwrap();
    let last: u64 = asked(call, &chain, &["ask", "take"]).parse().unwrap();
    assert_eq!(left, last);
    assert_eq!(asked(call, &chain, &["ask", "take"]), "0");
    assert_eq!(taken + last, added);
    assert!(server.stop().unwrap(), "{}", server.stderr());
}

#[test]
fn a_counter_in_c_counts_once_whatever_is_killed() {
    if !has_tools() {
        return;
    }
    let installed = Installed::new("counter");
    for compiler in ["gcc", "clang"] {
        let Some(counter) = installed.example(compiler, "counter.c") else {
            continue;
        };
        let call = installed.example(compiler, "client.c").unwrap();
        counts_once("counter", &counter, &call);
    }
}

#[test]
fn a_store_in_cpp_keeps_what_was_acknowledged() {
    if !has_tools() {
        return;
    }
    let installed = Installed::new("echo");
    for compiler in ["g++", "clang++"] {
        let Some(echo) = installed.example(compiler, "echo.cc") else {
            continue;
        };
        let Some(call) = installed.example("gcc", "client.c") else {
            continue;
        };
        let mut chain = Chain::launch("echo");
        let file = chain.scratch.disk().join("echo.journal");
        let mut server = launch(&chain, "echo", &echo, &file);
        for round in 0..3 {
            let value = format!("a value of round {round}");
            let put = format!("key{round} {value}");
            let via = chain.via;
            let updated = kill_while(&mut chain, &mut server, &mut || {
                client_at(&call, via, &["update", &put, "1500"])
            });
            durable(updated, 1500);
            assert_eq!(
                asked(&call, &chain, &["read", &format!("key{round}")]),
                value
            );
        }
        assert_eq!(asked(&call, &chain, &["ask", "key0"]), "a value of round 0");
        assert_eq!(asked(&call, &chain, &["ask", "none"]), "");
        assert!(server.stop().unwrap(), "{}", server.stderr());
    }
}
