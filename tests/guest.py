"""The parts that the test lanes with an emulated guest share: Debian's packages, QEMU, and the guest's file system
and machine.

tests/kernels, tests/nvdimm, tests/powercut and tests/verbs use this module. Packages are kept in target/kernels. Only
QEMU is ever installed.
"""

import fcntl
import lzma
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / "target" / "kernels"
QEMU = "qemu-system-x86_64"
# Time limits in seconds.
APT_LIMIT = 240


class Trouble(Exception):
    """An error. The text of the error says what failed, and gives advice."""


def alone(out, work):
    """Returns the result (good, line) of work(), or the reason why this machine cannot run it now."""
    # If this process is asked to end, it first turns off the machines.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    CACHE.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    # If two runs took place at the same time, they would overwrite each other's files.
    with (out / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False, "nothing was tried: this is running already; wait for it"
        try:
            if os.uname().machine != "x86_64":
                raise Trouble("only x86-64 machines are tried: run this on such a machine")
            return work()
        except Trouble as trouble:
            return False, f"ended early: {trouble} (what was said is in {out.relative_to(ROOT)})"


def call(command, limit, **more):
    """Runs a command that must succeed. Returns its standard output."""
    try:
        done = subprocess.run(command, timeout=limit, capture_output=True, text=True, check=False, **more)
    except FileNotFoundError as error:
        raise Trouble(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise Trouble(f"{' '.join(command)}: not done within {limit} s") from error
    if done.returncode != 0:
        raise Trouble(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def install_qemu():
    """Installs QEMU if it is missing."""
    if shutil.which(QEMU):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Trouble(f"{QEMU} is not installed: apt-get install qemu-system-x86")
    print("installing qemu-system-x86", flush=True)
    apt = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=60"]
    install = [*apt, "install", "--no-install-recommends", "qemu-system-x86"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        call(install, APT_LIMIT, env=environment)
    except Trouble:
        call([*apt, "update"], APT_LIMIT)
        call(install, APT_LIMIT, env=environment)


def is_known(package):
    """Returns whether apt can download this package."""
    return package in call(["apt-cache", "pkgnames", package], 60).split()


def download(package):
    """Returns the path of a package's file, from the cache or after a download."""
    if not is_known(package) and os.geteuid() == 0:
        call(["apt-get", "-q", "update"], APT_LIMIT)
    if not is_known(package):
        raise Trouble("apt does not know this package: apt-get update; apt-cache search linux-image")
    # A meta-package depends on the package that contains the kernel.
    depends = call(["apt-cache", "depends", package], 60)
    real = re.search(r"^\s*Depends: (linux-image-\d\S*)$", depends, re.MULTILINE)
    package = real[1] if real else package
    named = call(["apt-get", "download", "--print-uris", package], 60)
    name = re.search(r"^'[^']+' (\S+\.deb) ", named, re.MULTILINE)
    if not name:
        raise Trouble(f"apt-get names no file for {package}: {named.strip()}")
    path = CACHE / name[1]
    if not path.exists():
        print(f"downloading {package}", flush=True)
        # The download first goes to another folder, so that an incomplete download is not taken for a package.
        with tempfile.TemporaryDirectory(dir=CACHE) as part:
            call(["apt-get", "-q", "download", package], APT_LIMIT, cwd=part)
            (got,) = pathlib.Path(part).glob("*.deb")
            got.replace(path)
    return path


def unpack(package, wanted):
    """Returns name and contents of the first file in a package whose path matches."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
                for member in tar:
                    if member.isfile() and re.fullmatch(wanted, member.name):
                        return pathlib.PurePath(member.name).name, tar.extractfile(member).read()
        except tarfile.TarError as error:
            raise Trouble(f"{package}: {error}: delete it, it is downloaded again") from error
        finally:
            process.kill()
    raise Trouble(f"{package} has no file {wanted}")


def unpacked(packages):
    """Returns a folder with the files of packages, and of the libraries that they need. Nothing is installed."""
    folder = CACHE / ("-".join(packages) + ".files")
    if folder.exists():
        return folder
    only = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    depends = call(["apt-cache", "depends", "--recurse", *only, *packages], 60)
    names = {name for name in re.findall(r"^[a-z]\S*", depends, re.MULTILINE) if is_known(name)}
    # The C library is left out, because the guest gets that of this machine, with which the programs were built.
    wanted = [name for name in names if name in packages or (name.startswith("lib") and name != "libc6" and not re.search("perl|python", name))]
    with tempfile.TemporaryDirectory(dir=CACHE) as part:
        for name in sorted(wanted):
            call(["dpkg-deb", "-x", str(download(name)), part], 60)
        pathlib.Path(part).rename(folder)
        pathlib.Path(part).mkdir()
    return folder


def libraries(program, folder=None):
    """Returns the paths of the shared libraries that a program needs, with its loader. Libraries in the folder
    come first."""
    places = [folder / "lib" / "x86_64-linux-gnu", folder / "usr" / "lib" / "x86_64-linux-gnu"] if folder else []
    path = ":".join(str(place) for place in places)
    said = call(["ldd", str(program)], 60, env={**os.environ, "LD_LIBRARY_PATH": path})
    if "not found" in said:
        raise Trouble(f"{program}: a library is missing:\n{said}")
    return re.findall(r"(/\S+) \(0x", said)


def archive(files):
    """Returns a cpio archive ("newc") of (path, mode, content, device number)."""
    out = bytearray()
    for number, (path, mode, content, device) in enumerate([*files, ("TRAILER!!!", 0, b"", (0, 0))], 1):
        name = path.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name), 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        out += bytes(-len(out) % 4) + content
        out += bytes(-len(out) % 4)
    return bytes(out)


def modules(package, wanted):
    """Returns modules of a kernel's package and the modules on which they depend, in the order in which they must be
    loaded."""
    folder = CACHE / (package.stem + ".modules")
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as part:
            call(["dpkg-deb", "-x", str(package), part], 120)
            (pathlib.Path(part) / "lib" / "modules").rename(folder)
    files = {path.name.split(".")[0].replace("-", "_"): path for path in folder.rglob("*.ko*")}

    def content(name):
        raw = files[name].read_bytes()
        return lzma.decompress(raw) if files[name].suffix == ".xz" else raw

    order = []

    def add(name):
        # If no module has this name, the code is built into the kernel.
        if name in order or name not in files:
            return
        depends = re.search(rb"\0depends=([^\0]*)\0", content(name))
        for other in depends[1].decode().split(",") if depends else []:
            add(other.replace("-", "_"))
        order.append(name)

    for name in wanted:
        add(name.replace("-", "_"))
    return [(name, content(name)) for name in order]


def make_guest(out, init, programs, tools, package, wanted, more=None):
    """Makes a guest's file system, as a file in the folder `out`. The file system contains busybox, `init`,
    programs that were built on this machine (name: path), tools from Debian's packages (name: package), the
    libraries of both, modules of the kernel's package, and more files (path in the guest: path)."""
    _, busybox = unpack(download("busybox-static"), r"\./(usr/)?bin/busybox")
    folder = unpacked(sorted(set(tools.values()))) if tools else None
    files = {"bin/busybox": busybox, "init": init}
    files.update((path, file.read_bytes()) for path, file in (more or {}).items())
    needed = set()
    for name, path in programs.items():
        slim = out / name
        call(["strip", "--strip-debug", "-o", str(slim), str(path)], 60)
        files[f"usr/bin/{name}"] = slim.read_bytes()
        needed.update(libraries(path))
    for name in tools:
        found = [path for path in folder.rglob(name) if path.parent.name in ("bin", "sbin")]
        files[f"usr/bin/{name}"] = found[0].read_bytes()
        needed.update(libraries(found[0], folder))
    for library in needed:
        path = pathlib.Path(library)
        # A program contains the path of its loader. The other libraries are found by name.
        place = library.lstrip("/") if path.name.startswith("ld-linux") else f"lib/x86_64-linux-gnu/{path.name}"
        files[place] = path.read_bytes()
    for number, (name, content) in enumerate(modules(package, wanted)):
        files[f"modules/{number:02}-{name}.ko"] = content
    folders = {"dev", "proc", "sys", "tmp", "etc"}
    for path in files:
        folders.update(str(folder) for folder in pathlib.PurePath(path).parents if str(folder) != ".")
    entries = [(folder, 0o040755, b"", (0, 0)) for folder in sorted(folders)]
    entries += [(path, 0o100755, content, (0, 0)) for path, content in files.items()]
    # The device to which `init` writes, and files that tools of e2fsprogs search for.
    entries += [("dev/console", 0o020600, b"", (5, 1)), ("etc/mtab", 0o100644, b"", (0, 0))]
    guest = out / "guest.cpio"
    guest.write_bytes(archive(entries))
    return guest


def nvdimms(memories, mib, labels_mib):
    """Returns arguments of QEMU for persistent memory. Each memory is a file. A missing file is created. Sizes are
    in MiB, and include the memory's label area."""
    arguments = []
    for number, memory in enumerate(memories):
        if not memory.exists():
            with memory.open("wb") as file:
                file.truncate(mib << 20)
        backend = f"memory-backend-file,id=m{number},share=on,mem-path={memory},size={mib}M"
        arguments += ["-object", backend, "-device", f"nvdimm,id=n{number},memdev=m{number},label-size={labels_mib}M"]
    return arguments


class Machine:
    """A guest's machine. The machine is off until it is booted. The machine's files are in the folder `out`, whose
    name is also the name of the machine."""

    def __init__(self, out, kernel, guest):
        self.out, self.kernel, self.guest = out, kernel, guest
        self.process = self.log = self.door = None

    def boot(self, name, hardware, **parameters):
        """Turns the machine on. `hardware`: arguments of QEMU. `parameters`: parameters for the guest's `init`, each
        with the prefix pmnet_."""
        self.log, door, errors = self.out / f"{name}.log", self.out / f"{name}.door", self.out / f"{name}.qemu"
        door.unlink(missing_ok=True)
        words = "".join(f" pmnet_{key}={value}" for key, value in parameters.items())
        command = [
            QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            # KVM is never used, because the result must not depend on the host's kernel.
            "-accel", "tcg", *hardware,
            "-serial", f"file:{self.log}", "-serial", f"unix:{door},server=on,wait=off",
            "-kernel", str(self.kernel), "-initrd", str(self.guest),
            # Without this parameter, the kernel's test of its timer fails if other programs keep the processor busy.
            "-append", f"console=ttyS0 no_timer_check panic=-1 oops=panic loglevel=4{words}",
        ]  # fmt: skip
        self.log.write_bytes(b"")
        with errors.open("wb") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def said(self):
        """Returns the guest's output since it was turned on."""
        return self.log.read_text(errors="replace").replace("\r", "")

    def wait(self, texts, limit):
        """Waits until the guest's output has all of these patterns."""
        end = time.monotonic() + limit
        while True:
            said = self.said()
            trouble = re.search(r"^guest: trouble: (.*)|^.*(?:Kernel panic|Oops|BUG:).*", said, re.MULTILINE)
            if trouble:
                raise Trouble(f"the guest says: {trouble[0]}")
            missing = [text for text in texts if not re.search(text, said)]
            if not missing:
                return said
            if self.process.poll() is not None:
                raise Trouble(f"QEMU ended: {self.log.with_suffix('.qemu').read_text(errors='replace').strip()[-500:]}")
            if time.monotonic() > end:
                raise Trouble(f"the guest did not say {missing} within {limit} s")
            time.sleep(0.05)

    def tell(self, command):
        """Sends a line to the guest's `init`, through the second serial port."""
        if self.door is None:
            self.door = socket.socket(socket.AF_UNIX)
            self.door.connect(str(self.log.with_suffix(".door")))
        self.door.sendall(command.encode() + b"\n")

    def cut(self):
        """Turns the machine off at once, as a power cut does."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None
        if self.door:
            self.door.close()
            self.door = None

    def finish(self, limit):
        """Lets the guest turn off its machine. Keeps the guest's output."""
        said = self.wait(["guest: done\n"], limit)
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        self.cut()
        return said


def free_port(kind=socket.SOCK_STREAM):
    """Returns a port of 127.0.0.1 that no process uses at the moment."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Redis:
    """A connection to a Redis server, with the necessary parts of RESP."""

    def __init__(self, address, limit):
        self.socket = socket.create_connection(address, timeout=limit)
        self.reader = self.socket.makefile("rb")

    def ask(self, *words):
        """Sends one command and returns its reply. An error is a string that begins with `-`."""
        parts = [str(word).encode() for word in words]
        message = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self.socket.sendall(message)
        return self.reply()

    def reply(self):
        """Reads and returns the next reply."""
        line = self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection was closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.reader.read(int(rest) + 2)[:-2].decode()
        if kind == b":":
            return int(rest)
        return (line if kind == b"-" else rest).decode().strip()
