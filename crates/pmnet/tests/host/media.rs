//! Tests of logs that other programs truncate, of file systems without enough space, and of a
//! kernel that forbids io_uring.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use rustix::process::{Signal, geteuid};

use crate::chain::{Client, Places, Running, product, serves};
use crate::skip::skip;

/// The log is truncated while a device uses it, as `copytruncate` of logrotate does.
#[test]
fn a_log_that_is_truncated_ends_its_device_with_a_sentence_and_nothing_is_acknowledged() {
    for media in ["file", "dram"] {
        let places = Places::new();
        let store = places.store();
        let _server = Running::logged(places.server(&store), &places.path("server.err"));
        let device = places.device_with(&places.device_at(), &places.server_at(), media);
        let mut device = Running::logged(device, &places.path("device.err"));
        let mut front = places.front(&places.device_at());
        front.args(["--deadline-ms", "1500"]);
        let _front = Running::logged(front, &places.path("front.err"));
        serves(places.front_at());
        let log = std::fs::OpenOptions::new()
            .write(true)
            .open(places.path("device.pmlog"));
        log.unwrap().set_len(0).unwrap();
        let mut client = Client::connect(places.front_at()).unwrap();
        let reply = client.call("SET late v").unwrap();
        assert!(reply.starts_with("-ERR pmnet: "), "{media}: {reply}");
        let status = device.wait();
        let says = device.log();
        assert!(
            says.contains("logrotate?") && says.contains("Treat the device as lost"),
            "{says}"
        );
        assert!(!says.contains("panicked"), "{says}");
        match media {
            "file" => assert_eq!(status.code(), Some(1)),
            _ => assert_eq!(status.signal(), Some(Signal::BUS.as_raw())),
        }
    }
}

fn in_small_tmpfs(command: &Command, places: &Places, size: &str) -> Command {
    let mut inside = Command::new("unshare");
    inside
        .args(["--mount", "sh", "-c"])
        // The device starts twice. At the second start the log exists already.
        .arg(
            "mount -t tmpfs -o size=$1 none \"$0\" && shift && \
             { \"$@\" & } && pid=$! && sleep 2 && kill -TERM $pid; wait $pid && exec \"$@\"",
        )
        .arg(places.path("shm"))
        .arg(size)
        .arg(command.get_program())
        .args(command.get_args());
    inside
}

/// In a container of Docker, /dev/shm has 64 MiB.
#[test]
fn a_log_of_no_particular_size_is_made_smaller_where_there_is_little_room() {
    if !geteuid().is_root() {
        return skip("a small file system in memory needs root");
    }
    let places = Places::new();
    std::fs::create_dir(places.path("shm")).unwrap();
    let store = places.store();
    let device = |more: &[&str]| {
        let mut device = places.device_of_any_size("shm/device.pmlog", "dram");
        device.args(more);
        in_small_tmpfs(&device, &places, "64m")
    };
    let mut asked = Running::logged(device(&["--log-size", "64M"]), &places.path("asked.err"));
    assert_eq!(asked.wait().code(), Some(1));
    assert!(
        asked.log().contains("no room for 75505664 bytes"),
        "{}",
        asked.log()
    );

    let _server = Running::logged(places.server(&store), &places.path("server.err"));
    let mut device = Running::logged(device(&[]), &places.path("device.err"));
    device.says("there is no room for a log of the usual size");
    device.says("read the log");
    assert_eq!(device.log().matches("made a new log").count(), 1);
    let _front = Running::logged(places.front(&places.device_at()), &places.path("front.err"));
    serves(places.front_at());
}

/// If a process exceeds the memory limit of its container, the kernel kills it without a message.
#[test]
fn a_log_fits_the_memory_limit_or_is_refused() {
    let Some(group) = Group::with_limit(64 << 20) else {
        return skip("no control group with a limit of memory can be made here");
    };
    for media in ["file", "dram"] {
        let places = Places::new();
        let store = places.store();
        let device = |more: &[&str]| {
            let mut device = places.device_of_any_size("device.pmlog", media);
            device.args(more);
            group.command(&device)
        };
        let mut asked = Running::logged(device(&["--log-size", "64M"]), &places.path("asked.err"));
        assert_eq!(asked.wait().code(), Some(1));
        assert!(
            asked
                .log()
                .contains("of which this process may use 67108864"),
            "{}",
            asked.log()
        );
        assert!(!places.path("device.pmlog").exists());

        let _server = Running::logged(places.server(&store), &places.path("server.err"));
        let mut device = Running::logged(device(&[]), &places.path("device.err"));
        device.says("memory limit 67108864");
        let _front = Running::logged(places.front(&places.device_at()), &places.path("front.err"));
        serves(places.front_at());
    }
    let mut doctor = product();
    doctor.arg("doctor");
    let doctor = group.command(&doctor).output().unwrap();
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(text.contains("64 MiB (control group)"), "{text}");
}

/// A control group. The group is removed when this value is dropped.
struct Group(std::path::PathBuf);

impl Group {
    fn with_limit(bytes: u64) -> Option<Group> {
        let name = format!("pmnet-host-test-{}", std::process::id());
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = |kind: &str| {
            let line = own
                .lines()
                .find(|line| line.split(':').nth(1) == Some(kind))?;
            line.splitn(3, ':')
                .nth(2)
                .map(|path| path.trim_matches('/').to_owned())
        };
        let (folder, file) = match path("memory") {
            Some(path) => (
                std::path::Path::new("/sys/fs/cgroup/memory").join(path),
                "memory.limit_in_bytes",
            ),
            None => (
                std::path::Path::new("/sys/fs/cgroup").join(path("")?),
                "memory.max",
            ),
        };
        let group = Group(folder.join(name));
        std::fs::create_dir(&group.0).ok()?;
        std::fs::write(group.0.join(file), bytes.to_string()).ok()?;
        Some(group)
    }

    fn command(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.0.join("cgroup.procs"))
            .arg(command.get_program())
            .args(command.get_args());
        inside
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The processes of the group have ended, but for a moment the kernel may still count them.
        for _ in 0..50 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(crate::chain::LOOK);
        }
    }
}

/// The default seccomp profile of Docker forbids io_uring. No file of the system shows this.
const WITHOUT_IO_URING: &str = r"
import ctypes, os, struct, sys
def line(code, jt, jf, k): return struct.pack('HBBI', code, jt, jf, k)
program = line(0x20, 0, 0, 0)
for number in (425, 426, 427):
    program += line(0x15, 0, 1, number) + line(0x06, 0, 0, 0x00050001)
program += line(0x06, 0, 0, 0x7fff0000)
text = ctypes.create_string_buffer(program)
class Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('text', ctypes.c_void_p)]
it = Program(len(program) // 8, ctypes.cast(text, ctypes.c_void_p))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(it), 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
";

#[test]
fn io_uring_that_is_forbidden_is_noticed_and_done_without() {
    let forbidden = |command: &Command| {
        let mut inside = Command::new("python3");
        inside
            .args(["-c", WITHOUT_IO_URING])
            .arg(command.get_program())
            .args(command.get_args());
        inside
    };
    if Command::new("python3").arg("--version").output().is_err() {
        return skip("there is no python3");
    }
    let mut doctor = product();
    doctor.args(["doctor", "--log-folder", "/tmp"]);
    let doctor = forbidden(&doctor).output().unwrap();
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let line = text
        .lines()
        .find(|line| line.contains(" io_uring "))
        .unwrap();
    assert!(
        line.starts_with("warn") && line.contains("cannot be used: Operation not permitted"),
        "{text}"
    );
    assert!(
        text.contains("in the seccomp profile of the container"),
        "{text}"
    );

    let places = Places::new();
    let store = places.store();
    let _server = Running::logged(places.server(&store), &places.path("server.err"));
    let device = places.device_with(&places.device_at(), &places.server_at(), "file");
    let mut device = Running::logged(forbidden(&device), &places.path("device.err"));
    let _front = Running::logged(places.front(&places.device_at()), &places.path("front.err"));
    serves(places.front_at());
    device.says("io_uring cannot be used (Operation not permitted");
}
