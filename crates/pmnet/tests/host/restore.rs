//! A packet store is copied while it is in use, and the copy is restored. The tests check the contents of the copy, and
//! which copies are refused.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::chain::{Client, Places, Running, eventually, product, serves};

/// Number of clients that write.
const WRITERS: usize = 4;

/// The number of the last write that a client sent, and the number of its last write that was answered.
#[derive(Default)]
struct Progress {
    sent: AtomicU64,
    answered: AtomicU64,
}

/// Clients that write until they are stopped. Each sends a SET of one key, and then an INCR of another key. The answer
/// to the INCR proves that the SET was applied.
struct Load {
    over: Arc<AtomicBool>,
    progress: Vec<Arc<Progress>>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(places: &Places) -> Load {
        let over = Arc::new(AtomicBool::new(false));
        let progress: Vec<Arc<Progress>> = (0..WRITERS).map(|_| Arc::default()).collect();
        let at = places.front_at();
        let threads = progress.iter().enumerate().map(|(writer, progress)| {
            let (over, progress) = (over.clone(), progress.clone());
            let mut client = Client::connect(at).unwrap();
            std::thread::spawn(move || {
                let padding = "x".repeat(600);
                for number in 1_u64.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    progress.sent.store(number, Ordering::SeqCst);
                    let set = client
                        .call(&format!("SET set{writer} {number}{padding}"))
                        .unwrap();
                    assert_eq!(set, "+OK");
                    let counted = client.call(&format!("INCR count{writer}")).unwrap();
                    assert_eq!(counted, format!(":{number}"));
                    progress.answered.store(number, Ordering::SeqCst);
                }
            })
        });
        let threads = threads.collect();
        Load {
            over,
            progress,
            threads,
        }
    }

    fn answered(&self) -> Vec<u64> {
        self.progress
            .iter()
            .map(|one| one.answered.load(Ordering::SeqCst))
            .collect()
    }

    fn sent(&self) -> Vec<u64> {
        self.progress
            .iter()
            .map(|one| one.sent.load(Ordering::SeqCst))
            .collect()
    }

    /// Waits until each client has got `more` further answers.
    fn goes_on(&self, more: u64) {
        let from = self.answered();
        eventually("clients are answered", || {
            self.answered()
                .iter()
                .zip(&from)
                .all(|(now, from)| *now >= from + more)
        });
    }

    fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// Returns the two values in the store for each client: the number that it SET last, and the number of its INCRs.
fn content(places: &Places) -> Vec<(u64, u64)> {
    let mut client = Client::connect(places.front_at()).unwrap();
    let mut read = |key: String| {
        let head = client.call(&format!("GET {key}")).unwrap();
        assert!(head.starts_with('$') && head != "$-1", "{key}: {head}");
        let text = client.line().unwrap();
        text.trim_end_matches('x').parse::<u64>().unwrap()
    };
    let mut both = |writer| (read(format!("set{writer}")), read(format!("count{writer}")));
    (0..WRITERS).map(&mut both).collect()
}

fn store(args: &[&str]) -> Output {
    product().arg("store").args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{out}{err}")
}

fn backup(from: &Path, to: &Path) -> Output {
    store(&["backup", from.to_str().unwrap(), to.to_str().unwrap()])
}

/// The copy has every write that was acknowledged before the copy began, and has it once. Writes that came later are
/// executed once after the restore. A wrong copy is refused, and changes nothing.
#[test]
fn a_copy_made_under_load_has_all_that_was_acknowledged_before() {
    let places = Places::new();
    let (file, copy) = (places.path("store"), places.path("monday"));
    let url = format!("packet:{}?size=64M", file.display());
    let [server, device, front] = places.start_all(&url);
    serves(places.front_at());
    let load = Load::start(&places);
    load.goes_on(50);
    let before = load.answered();
    let made = backup(&file, &copy);
    let after = load.sent();
    assert!(made.status.success(), "{}", text(&made));
    load.goes_on(50);
    load.stop();
    let newest = content(&places);
    for process in [front, device, server] {
        process.stop();
    }
    let verified = store(&["verify", copy.to_str().unwrap()]);
    assert!(verified.status.success(), "{}", text(&verified));
    let kept = places.path("kept");
    std::fs::rename(&file, &kept).unwrap();

    // An incomplete copy is refused.
    let whole = std::fs::read(&copy).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let mut server = Running::logged(places.server(&url), &places.path("server.err"));
    assert!(!server.wait().success(), "{}", server.log());
    assert!(
        server.log().contains(file.to_str().unwrap()),
        "{}",
        server.log()
    );
    // A copy of another shard's store is refused.
    std::fs::copy(&copy, &file).unwrap();
    let mut other = places.server(&url);
    other.args(["--shard", "1"]);
    let mut server = Running::logged(other, &places.path("server.err"));
    assert!(!server.wait().success(), "{}", server.log());
    assert!(
        server.log().contains("belongs to shard 0"),
        "{}",
        server.log()
    );
    // If the copy is older than what the device knows, the device does not serve. With the newest store the device
    // serves again.
    let server = Running::logged(places.server(&url), &places.path("server.err"));
    let mut device = Running::logged(
        places.device(&places.server_at()),
        &places.path("device.err"),
    );
    device.says("but the store's watermark is");
    assert!(
        device.log().contains("it lost data: restore it"),
        "{}",
        device.log()
    );
    server.signal(rustix::process::Signal::TERM);
    drop((server, device));
    std::fs::rename(&kept, &file).unwrap();
    let running = places.start_all(&url);
    serves(places.front_at());
    assert_eq!(content(&places), newest);
    let [server, device, front] = running;
    for process in [front, device, server] {
        process.stop();
    }

    // The following steps are those of the guide.
    std::fs::copy(&copy, &file).unwrap();
    std::fs::rename(places.path("device.pmlog"), places.path("device.old")).unwrap();
    let _server = Running::logged(places.server(&url), &places.path("server.err"));
    let mut device = places.device(&places.server_at());
    device.arg("--declare-data-loss");
    let _device = Running::logged(device, &places.path("device.err"));
    let _front = Running::logged(places.front(&places.device_at()), &places.path("front.err"));
    serves(places.front_at());
    let restored = content(&places);
    println!(
        "answered before {before:?}, restored {restored:?}, sent before the end {after:?}, newest {newest:?}"
    );
    for (writer, (set, count)) in restored.iter().enumerate() {
        let range = before[writer]..=after[writer];
        assert!(
            range.contains(set) && range.contains(count),
            "{range:?}: {set} {count}"
        );
        // A client sends each INCR after its SET.
        assert!(set == count || *set == count + 1, "{set} {count}");
    }
    let mut client = Client::connect(places.front_at()).unwrap();
    for (writer, (_, count)) in restored.iter().enumerate() {
        for more in 1..=20 {
            let counted = client.call(&format!("INCR count{writer}")).unwrap();
            assert_eq!(counted, format!(":{}", count + more));
        }
    }
}

/// A device's region contains the device's log, which changes all the time. So the region can be copied only while no
/// process uses it. The device then continues with the copy.
#[test]
fn a_region_is_copied_when_its_device_is_stopped_and_refused_before() {
    let places = Places::new();
    let (file, copy) = (places.path("region"), places.path("monday"));
    let url = format!("packet:{}?size=256M", file.display());
    let device = || {
        let mut command = product();
        command.args(["device", "--listen", &places.device_at(), "--store", &url]);
        Running::logged(command, &places.path("device.err"))
    };
    let first = device();
    let front = Running::start(places.front(&places.device_at()));
    serves(places.front_at());
    let load = Load::start(&places);
    load.goes_on(30);
    let refused = backup(&file, &copy);
    let said = text(&refused);
    assert!(
        !refused.status.success() && said.contains("a device has this region open"),
        "{said}"
    );
    assert!(
        said.contains("stop the device, or take a snapshot"),
        "{said}"
    );
    assert!(!copy.exists(), "{said}");
    load.goes_on(30);
    load.stop();
    let newest = content(&places);
    first.stop();
    let made = backup(&file, &copy);
    assert!(made.status.success(), "{}", text(&made));
    // A server refuses the region as a store of its own.
    let alone = format!("packet:{}", copy.display());
    let mut server = Running::logged(places.server(&alone), &places.path("server.err"));
    assert!(!server.wait().success(), "{}", server.log());
    assert!(
        server.log().contains("a log has packet buffers in it"),
        "{}",
        server.log()
    );
    std::fs::rename(&copy, &file).unwrap();
    front.stop();
    let _device = device();
    let _front = Running::start(places.front(&places.device_at()));
    serves(places.front_at());
    assert_eq!(content(&places), newest);
}
