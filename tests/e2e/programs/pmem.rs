//! PMDK's data structures (PMNet §VI): a server that uses the persistent maps of libpmemobj's examples. The server is
//! compiled twice: in its original form, and for pmnet.
//!
//! The pool lies in memory, and libpmemobj is told to treat it as persistent memory. So the pool survives the kill of
//! any process, but no power cut.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pmnet_lab::harness::{Process, Ready, Spec};

use super::library::{
    Installed, asked, client, client_at, durable, has_tools, kill_while, piped, run, source,
};
use super::{Chain, READY_MAX, place};
use crate::common::{self, skip};

/// Path of the sources of the maps in Debian's libpmemobj-dev.
const EXAMPLES: &str = "/usr/share/doc/libpmemobj-dev/examples";
const MAPS: [&str; 5] = ["btree", "ctree", "rbtree", "hashmap_tx", "skiplist"];
/// The sources of the maps.
const SOURCES: [&str; 11] = [
    "map/map.c",
    "map/map_btree.c",
    "map/map_ctree.c",
    "map/map_rbtree.c",
    "map/map_hashmap_tx.c",
    "map/map_skiplist.c",
    "tree_map/btree_map.c",
    "tree_map/ctree_map.c",
    "tree_map/rbtree_map.c",
    "hashmap/hashmap_tx.c",
    "list_map/skiplist_map.c",
];
/// The maps need only this definition of a header that the package lacks.
const EX_COMMON: &str = "#include <stdint.h>
static inline unsigned char find_last_set_64(uint64_t value)
{
	return value ? (unsigned char)(63 - __builtin_clzll(value)) : 255;
}
";
/// Maximum number of lines that are changed for pmnet. The paper changed 7.
const CHANGED_MAX: usize = 12;

/// Returns the number of lines between each `#ifdef PMNET` and the end of its branch.
fn changed(source: &str) -> usize {
    let mut inside = false;
    let mut count = 0;
    for line in source.lines() {
        match line {
            "#ifdef PMNET" => inside = true,
            "#else" | "#endif" => inside = false,
            _ => count += usize::from(inside),
        }
    }
    count
}

/// Compiles the server in its original form, and for pmnet.
fn compile(installed: &Installed) -> (PathBuf, PathBuf) {
    let folder = installed.folder().join("maps");
    run(Command::new("cp").arg("-r").arg(EXAMPLES).arg(&folder));
    std::fs::write(folder.join("ex_common.h"), EX_COMMON).unwrap();
    let include = ["", "map", "tree_map", "hashmap", "list_map"]
        .map(|part| format!("-isystem{}", folder.join(part).display()));
    // Warnings about the sources in the package are ignored.
    run(Command::new("gcc")
        .current_dir(&folder)
        .args(["-std=gnu11", "-g", "-O1", "-w", "-c"])
        .args(&include)
        .args(SOURCES));
    let objects = SOURCES.map(|file| {
        let name = Path::new(file).file_stem().unwrap();
        folder.join(name).with_extension("o")
    });
    let build = |name: &str, flags: &[String]| {
        let program = installed.folder().join(name);
        run(Command::new("gcc")
            .args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"])
            .args(&include)
            .arg("-o")
            .arg(&program)
            .arg(source().join("examples/c/kv_pmem.c"))
            .args(&objects)
            .arg("-lpmemobj")
            .args(flags));
        program
    };
    let mut flags = installed.flags();
    flags.push("-DPMNET".into());
    (build("kv-plain", &[]), build("kv-pmnet", &flags))
}

fn launch(chain: &Chain, program: &Path, map: &str, listen: &str) -> Process {
    let pool = chain.scratch.memory().join("kv.pool");
    let spec = Spec {
        name: format!("kv-{map}"),
        binaries: common::binaries().clone(),
        program: Some("/usr/bin/env".into()),
        args: vec![
            "PMEM_IS_PMEM_FORCE=1".into(),
            program.into(),
            map.into(),
            pool.into(),
            listen.into(),
        ],
        ready: Ready::Line,
    };
    Process::start(spec, chain.scratch.disk(), READY_MAX).unwrap()
}

#[test]
fn five_maps_of_pmdk_lose_nothing_and_do_nothing_twice() {
    if !has_tools() {
        return;
    }
    if !Path::new(EXAMPLES).is_dir() {
        skip("libpmemobj-dev is not installed");
        return;
    }
    let code = std::fs::read_to_string(source().join("examples/c/kv_pmem.c")).unwrap();
    let lines = changed(&code);
    println!("{lines} lines are pmnet's (the paper: 7)");
    assert!((1..=CHANGED_MAX).contains(&lines), "{lines}");
    let installed = Installed::new("pmem");
    let (plain, ours) = compile(&installed);
    let call = installed.example("gcc", "client.c").unwrap();
    for map in MAPS {
        const TIMES: u64 = 600;
        let mut chain = Chain::launch("pmem");
        let listen = chain.server.to_string();
        let mut server = launch(&chain, &ours, map, &listen);
        let mut sums = [0; 2];
        for (round, key) in ["1", "2"].into_iter().enumerate() {
            let add = format!("add {key} 3");
            // A second client writes other keys, so that the map has more keys.
            let set = format!("set {} {round}", 100 + round);
            let beside = piped(&mut client(&call, &chain, &["update", &set, "100"]));
            let (via, times) = (chain.via, TIMES.to_string());
            let updated = kill_while(&mut chain, &mut server, &mut || {
                client_at(&call, via, &["update", &add, &times])
            });
            sums[round] = 3 * TIMES * durable(updated, TIMES) + 1;
            durable(vec![beside.wait_with_output().unwrap()], 100);
            assert_eq!(
                asked(&call, &chain, &["ask", &format!("add {key} 1")]),
                "ok"
            );
        }
        let get = |key: &str| asked(&call, &chain, &["read", &format!("get {key}")]);
        for (key, sum) in ["1", "2"].into_iter().zip(sums) {
            assert_eq!(get(key), sum.to_string(), "{map}");
        }
        for round in 0..2 {
            assert_eq!(get(&(100 + round).to_string()), round.to_string(), "{map}");
        }
        assert_eq!(get("9"), "", "{map}");
    }

    // The original server replies to each request, and has no protection against repeated requests.
    let chain = Chain::launch("pmem-plain");
    let at = place();
    let _server = launch(&chain, &plain, "btree", &at.to_string());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    socket.connect(at).unwrap();
    for (request, wanted) in [("add 5 2", "ok"), ("get 5", "2"), ("nonsense", "error")] {
        socket.send(request.as_bytes()).unwrap();
        let mut reply = [0; 64];
        let length = socket.recv(&mut reply).unwrap();
        assert_eq!(&reply[..length], wanted.as_bytes());
    }
}
