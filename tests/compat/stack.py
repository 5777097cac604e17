"""Processes on the loopback interface: a Redis, with or without pmnet."""

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

# This machine's redis-server, found before servers.py changes PATH.
MACHINE_REDIS = shutil.which("redis-server") or "redis-server"
# Time limit in seconds within which a process must report that it serves.
START_SECONDS_MAX = 15
START_TRIES = 3
# Seconds between the request to end and the kill of a process.
END_SECONDS_MAX = 3
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
# Both sides have these settings. Persistence is off, because these tests do not examine it.
REDIS_OPTIONS = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--databases", "16"]


class Trouble(Exception):
    """A program is missing or did not start. The text has advice."""


# Processes that were started and have not ended yet.
LIVE = set()
STOPPING = threading.Event()
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()


def binary_path(given):
    """Returns the path of the product's binary: the given path, or that of `make build`."""
    path = pathlib.Path(given) if given else TARGET / "release" / "pmnet"
    if not os.access(path, os.X_OK):
        raise Trouble(f"there is no {path}: run `cargo build --release --locked -p pmnet`, or give --pmnet")
    if shutil.which("redis-server") is None:
        raise Trouble("there is no redis-server: apt-get install redis-server")
    return path.resolve()


def stop_with_parent():
    """Runs in the new process. Makes the kernel end the new process when this program ends in any way."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def popen(command, **options):
    """Starts a process in a process group of its own. `end` ends the whole group."""
    if STOPPING.is_set():
        raise Trouble("stopped")
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=stop_with_parent, **options)
    LIVE.add(process)
    return process


def stop_all():
    """Ends all remaining processes, including those of other threads, and prevents new ones."""
    STOPPING.set()
    for process in list(LIVE):
        end(process)


def end(process):
    """Ends the process, and all processes in its group."""
    LIVE.discard(process)
    for number, seconds in ((signal.SIGTERM, END_SECONDS_MAX), (signal.SIGKILL, END_SECONDS_MAX)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGKILL or not group_lives(process.pid):
            return


def start_logged(command, folder, log, **environment):
    """Starts a program in `folder`. The output of the program goes to `log`. `environment`: variables in
    addition to this process's own."""
    with open(log, "wb") as out:
        return popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, **environment),
        )


def run_for(seconds, command, folder, log, **environment):
    """Runs a program with a time limit."""
    process = start_logged(command, folder, log, **environment)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass
    finally:
        end(process)


def group_lives(group):
    """Returns whether the group still has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def free_port(kind):
    """Returns a port of the loopback interface that is free at the moment."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Stack:
    """An empty Redis. If `binary` is given, also a server, a device and a front of pmnet.

    `port` is the port for clients, and `redis_port` is the port of Redis itself.
    """

    def __init__(self, binary=None, redis="redis-server", options=()):
        self.processes = []
        shared = pathlib.Path("/dev/shm")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="compat-", dir=shared if shared.is_dir() else None))
        try:
            for left in reversed(range(START_TRIES)):
                try:
                    self._start(binary, redis, list(options))
                    break
                except Trouble:
                    # Another process may have taken the port after it was found free.
                    if left == 0:
                        raise
                    self._end_all()
        except BaseException:
            self.close()
            raise

    def _start(self, binary, redis, options):
        self.redis_port = self.port = self._start_redis(redis, options)
        if binary is not None:
            self.port = self._start_pmnet(str(binary))

    def _end_all(self):
        for _, process in reversed(self.processes):
            end(process)
        self.processes = []
        # The next attempt must start without the log and without Redis's data.
        for left in self.folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    def _spawn(self, name, command):
        log = self.folder / f"{name}.log"
        with open(log, "wb") as out:
            process = popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        self.processes.append((name, process))
        return process, log

    def _wait(self, name, process, log, ready):
        until = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < until:
            if ready():
                return
            if process.poll() is not None:
                break
            time.sleep(0.02)
        said = log.read_text(errors="replace")[-2000:]
        raise Trouble(f"{name} did not start; it says:\n{said}")

    def _start_redis(self, redis, options):
        port = free_port(socket.SOCK_STREAM)
        command = [redis, "--port", str(port), "--dir", str(self.folder), *REDIS_OPTIONS, *options]
        process, log = self._spawn("redis-server", command)
        self._wait("redis-server", process, log, lambda: answers(port))
        return port

    def _start_pmnet(self, binary):
        server, device = free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_DGRAM)
        front = free_port(socket.SOCK_STREAM)
        roles = {
            "server": ["--listen", f"127.0.0.1:{server}", "--store", f"redis://127.0.0.1:{self.redis_port}"],
            "device": [
                *("--listen", f"127.0.0.1:{device}", "--next", f"127.0.0.1:{server}"),
                *("--log", str(self.folder / "device.plog"), "--media", "dram"),
            ],
            "redis": ["--listen", f"127.0.0.1:{front}", "--via", f"127.0.0.1:{device}", "--spin-us", "0"],
        }
        for role, arguments in roles.items():
            name = f"pmnet-{role}"
            process, log = self._spawn(name, [binary, role, *arguments])
            self._wait(name, process, log, lambda log=log: b"ready " in log.read_bytes())
        # The front prints its ready line before its first session is open. So the stack is ready only after a
        # command was answered.
        request, reply = b"SET compat:ready 1\r\nDEL compat:ready\r\n", b"+OK\r\n:1\r\n"
        self._wait(name, process, log, lambda: answers(front, request, reply))
        return front

    def died(self):
        """Returns the names of the processes that have ended."""
        return [name for name, process in self.processes if process.poll() is not None]

    def logs(self):
        """Returns the end of the output of each process of pmnet."""
        text = []
        for name, _ in self.processes:
            log = (self.folder / f"{name}.log").read_text(errors="replace")
            text.append(f"--- {name}\n{log[-1500:]}")
        return "\n".join(text)

    def close(self):
        """Ends all processes and removes the folder."""
        self._end_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def answers(port, request=b"PING\r\n", reply=b"+PONG\r\n"):
    """Returns whether the server at this port answers the request with exactly this reply."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
            client.settimeout(12)
            client.sendall(request)
            got = b""
            while len(got) < len(reply):
                part = client.recv(4096)
                if not part:
                    return False
                got += part
            return got == reply
    except OSError:
        return False
