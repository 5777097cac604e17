//! Tests the messages of `make demo` and `make test` on a machine that lacks a program. The tests
//! run `tests/setup.sh` with other programs in PATH.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Programs that the script itself needs.
const TOOLS: &[&str] = &["sh", "dirname", "sed", "sort", "head"];

/// Runs `tests/setup.sh WHAT`. PATH has only these programs, each of which prints a line. Returns
/// exit code and output.
fn setup(what: &str, programs: &[(&str, &str)], ci: bool) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    for tool in TOOLS {
        let path = pmnet_cli::find_program(tool).unwrap_or_else(|| panic!("there is no {tool}"));
        std::os::unix::fs::symlink(path, folder.path().join(tool)).unwrap();
    }
    for (name, says) in programs {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(folder.path().join("sh"));
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/setup.sh"))
        .arg(what)
        .env("PATH", folder.path())
        .env_remove("CARGO")
        .env_remove("CI");
    if ci {
        command.env("CI", "1");
    }
    let output = command.output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().count() <= 1, "one sentence: {text}");
    (output.status.code(), text)
}

#[test]
fn without_rust_or_with_an_old_one_it_says_what_to_install() {
    let cc = ("cc", "cc 12");
    let (code, text) = setup("rust", &[cc], false);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no cargo: install Rust 1."), "{text}");
    for old in ["cargo 1.63.0", "cargo 1.9.0 (x 2016-05-26)", "nothing"] {
        let (code, text) = setup("rust", &[cc, ("cargo", old)], false);
        assert_eq!(code, Some(1), "{old}: {text}");
        assert!(text.contains("too old: install Rust 1."), "{text}");
    }
    for new in [env!("CARGO_PKG_RUST_VERSION"), "1.1000.0", "2.0.0"] {
        let cargo = format!("cargo {new} (x 2030-01-01)");
        let (code, text) = setup("rust", &[cc, ("cargo", &cargo)], false);
        assert_eq!((code, text.as_str()), (Some(0), ""), "{new}");
        let (code, text) = setup("rust", &[("cargo", &cargo)], false);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("no C compiler"), "{text}");
    }
}

#[test]
fn another_redis_is_an_error_in_ci_only() {
    let server = |version: &str| format!("Redis server v={version} sha=00000000:0 bits=64");
    let known = server("7.4.1");
    for ci in [false, true] {
        let (code, text) = setup("redis", &[("redis-server", &known)], ci);
        assert_eq!((code, text.as_str()), (Some(0), ""));
        // Every test that needs Redis reports its absence itself.
        let (code, text) = setup("redis", &[], ci);
        assert_eq!((code, text.as_str()), (Some(0), ""));
        for other in ["6.2.14", "8.0.1", "70.0.0"] {
            let (code, text) = setup("redis", &[("redis-server", &server(other))], ci);
            assert_eq!(code, Some(i32::from(ci)), "{text}");
            assert!(text.contains("written for Redis 7"), "{text}");
        }
    }
}
