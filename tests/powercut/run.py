#!/usr/bin/env python3
"""Is a log or a packet store on a disk still intact after a power cut at any moment?

A guest (Debian's kernel, emulated) makes a file system on a disk that dm-log-writes records: every write, flush and FUA
write, in the order in which they become durable. A process in the guest writes a log or a packet store with the medium
`file`. After each persist the process reports what is durable, and the report becomes a mark in the record. Later the
record is replayed outside of the guest. The replay gives the state of the disk at *every* flush, FUA write and mark.
The replay also gives states between two marks, in which only some of the writes of a persist have reached the disk,
some of them only up to a sector. pmnet's own recovery reads and repairs the file in each state, and the result is
compared with the last mark. Some states are also booted: then the file system itself must recover first.

  tests/powercut/run.py              4 recordings: a log and a packet store, each on ext4 and xfs
  tests/powercut/run.py --runs 40    10 of each
  tests/powercut/run.py --of store   packet stores only

  --seed N        seed for the choice of states (1)
  --rounds N      bursts in a recording of a log; for a store, N / 3 transactions (200)
  --samples N     number of states between two marks (4)
  --booted N      number of states of each recording that are booted (1)

The file system reports where the blocks of the file lie (FIEMAP). The blocks never move, because the whole file is
written when it is made, and is only overwritten later. If QEMU is missing, it is installed (root, apt-get). Packages
are kept in target/kernels, and records in target/powercut. The last line is a summary. The exit code is 1 if a state is
wrong.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.dont_write_bytecode = True
from guest import QEMU, ROOT, Trouble, alone, call, download, install_qemu, make_guest, unpack  # noqa: E402

OUT = ROOT / "target" / "powercut"
KERNEL = "linux-image-amd64"
MODULES = ("crc32c_generic", "libcrc32c", "virtio_pci", "virtio_blk", "nvme", "dm_log_writes", "ext4", "xfs")
TOOLS = {
    "dmsetup": "dmsetup",
    "filefrag": "e2fsprogs",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
}
# The kinds of recordings. For each, the package whose test program writes and checks the file.
KINDS = {"log": "pmnet-media", "store": "pmnet-packet-store"}
# Approximate number of persists of a round. Each persist becomes a mark, and marks take most of the time.
PERSISTS = {"log": 1, "store": 3}
# The kinds of disks. device-mapper accepts FUA writes on top of each of them, so O_DSYNC becomes one FUA write for each
# range of blocks.
DISKS = {
    "virtio": ("virtio-blk-pci,romfile=,drive=d{0}", "/dev/vda", "/dev/vdb"),
    "nvme": ("nvme,serial=d{0},drive=d{0}", "/dev/nvme0n1", "/dev/nvme1n1"),
}
# Sizes of the disk and of the record in MiB. Disk and record are sparse files. An xfs file system needs 300 MiB.
DISK_MIB, RECORD_MIB = 320, 2048
# Time limits in seconds.
BUILD_LIMIT, BOOT_LIMIT = 1200, 1200
SECTOR, BLOCK = 512, 4096

# ---- the record of dm-log-writes (Documentation/admin-guide/device-mapper/log-writes.rst) -----------

MAGIC, VERSION = 0x6A736677736872, 1
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8

Entry = collections.namedtuple("Entry", "sector sectors flags data")


def entries(path):
    """Returns the entries of a record, in order. `data` is the written data, or the text of a mark."""
    with path.open("rb") as file:
        magic, version, count, size = struct.unpack("<QQQI", file.read(28))
        if (magic, version) != (MAGIC, VERSION):
            raise Trouble(f"{path} is no record of dm-log-writes: {magic:#x}, version {version}")
        at = size
        for _ in range(count):
            file.seek(at)
            sector, sectors, flags, length = struct.unpack("<QQQQ", file.read(32))
            at += size
            data = b""
            if flags & MARK:
                data = file.read(length)
                if b":" not in data:
                    # The target itself writes this entry when it is removed.
                    continue
            elif not flags & DISCARD and sectors:
                file.seek(at)
                data = file.read(sectors * size)
                if len(data) < sectors * size:
                    raise Trouble(f"{path} ends in the middle of a write")
                at += sectors * size
            # A record can use larger sectors than the replay, so positions and lengths are converted.
            yield Entry(sector * size // SECTOR, sectors * size // SECTOR, flags, data)


class Disk:
    """The contents of a disk. A block that was never written is zero."""

    def __init__(self, blocks=None):
        self.blocks = blocks if blocks is not None else {}

    def copy(self):
        """Returns a copy. Blocks can be shared, because they are never changed in place."""
        return Disk(dict(self.blocks))

    def write(self, sector, data):
        """Stores whole sectors."""
        at, done = sector * SECTOR, 0
        while done < len(data):
            number, within = divmod(at + done, BLOCK)
            part = data[done : done + BLOCK - within]
            old = self.blocks.get(number, bytes(BLOCK))
            self.blocks[number] = old[:within] + part + old[within + len(part) :]
            done += len(part)

    def apply(self, entry):
        """Replays one entry."""
        if entry.flags & DISCARD:
            self.write(entry.sector, bytes(entry.sectors * SECTOR))
        elif not entry.flags & MARK:
            self.write(entry.sector, entry.data)

    def read(self, extents):
        """Returns the contents of a file whose blocks are known."""
        return b"".join(self.blocks.get(block, bytes(BLOCK)) for first, count in extents for block in range(first, first + count))

    def save(self, path):
        """Writes the contents as a sparse file."""
        with path.open("wb") as file:
            file.truncate(DISK_MIB << 20)
            for number, block in self.blocks.items():
                file.seek(number * BLOCK)
                file.write(block)


# ---- the guest ------------------------------------------------------------------------------------


def boot(name, kernel, guest, disk, files, **parameters):
    """Runs the guest to its end. Returns its output."""
    log = OUT / f"{name}.log"
    device, *paths = DISKS[disk]
    more = "".join(f" pmnet_{key}={value}" for key, value in parameters.items())
    command = [
        QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        # KVM is never used, because the result must not depend on the host's kernel.
        "-M", "q35", "-m", "512", "-accel", "tcg", "-cpu", "max", "-smp", "1",
        "-serial", f"file:{log}", "-kernel", str(kernel), "-initrd", str(guest),
        # Without this parameter, the kernel's test of its timer fails if other programs keep the processor busy.
        "-append", f"console=ttyS0 no_timer_check panic=-1 oops=panic loglevel=4{more} pmnet_disk={paths[0]} pmnet_record={paths[1]}",
    ]  # fmt: skip
    for number, file in enumerate(files):
        command += ["-drive", f"if=none,id=d{number},format=raw,cache=unsafe,file={file}", "-device", device.format(number)]
    log.write_bytes(b"")
    try:
        call(command, BOOT_LIMIT, stdin=subprocess.DEVNULL)
    except Trouble as trouble:
        raise Trouble(f"{name}: {str(trouble)[-300:]}") from trouble
    said = log.read_text(errors="replace").replace("\r", "")
    trouble = re.search(r"^guest: trouble: (.*)|^.*(?:Kernel panic|Oops|BUG:).*", said, re.MULTILINE)
    if trouble or "guest: done" not in said:
        raise Trouble(f"{name}: the guest says: {trouble[0] if trouble else 'nothing at its end'}")
    return said


def build_tests(package):
    """Builds the test program of a package, which writes and checks the file."""
    command = ["cargo", "test", "--release", "--locked", "-p", package, "--test", "powercut", "--no-run"]
    said = call([*command, "--message-format=json"], BUILD_LIMIT, cwd=ROOT)
    for line in said.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message["target"]["name"] == "powercut":
            return pathlib.Path(message["executable"])
    raise Trouble(f"cargo names no program of {package} for --test powercut")


def extents(said):
    """Returns the positions of the file's blocks on the disk, from the output of filefrag."""
    found = re.findall(r"^ *\d+: +(\d+)\.\. +(\d+): +(\d+)\.\. +(\d+):", said, re.MULTILINE)
    rows = [tuple(map(int, row)) for row in found]
    if not rows or rows[0][0] != 0 or any(row[0] != before[1] + 1 for before, row in zip(rows, rows[1:])):
        raise Trouble("filefrag does not say where the file is")
    return [(first, last - first + 1) for _, _, first, last in rows]


# ---- the states -----------------------------------------------------------------------------------


class States:
    """The file in the states of a recording. Each state has the number up to which everything must be present."""

    def __init__(self, folder, places, marks):
        self.folder, self.places, self.marks = folder, places, marks
        self.seen, self.lines, self.counts = set(), [], collections.Counter()

    def add(self, kind, disk, mark):
        """Adds a state. `mark`: the number of the last mark, up to which everything must be present."""
        self.counts[kind] += 1
        image = disk.read(self.places)
        durable = self.marks[mark][0]
        most = self.most(mark)
        key = hash((image, durable, most))
        if key in self.seen:
            return
        self.seen.add(key)
        path = self.folder / f"state{len(self.lines)}"
        path.write_bytes(image)
        self.lines.append((kind, f"{durable} {most} {path}"))

    def most(self, mark):
        """The latest state that is permitted. For a log: the order that was reclaimed when the process made the next
        mark. For a store: its next transaction."""
        durable, _ = self.marks[mark]
        return self.marks[mark + 1][1] if mark + 1 < len(self.marks) else durable

    def check(self, tests):
        """Returns sentences about the faults."""
        whole, wrong = 0, []
        for at in range(0, len(self.lines), 1000):
            part = [line for _, line in self.lines[at : at + 1000]]
            listed = self.folder / "list"
            listed.write_text("\n".join(part))
            command = [str(tests), "--exact", "child", "--nocapture"]
            done = subprocess.run(
                command, env={**os.environ, "PMNET_POWERCUT": f"check:{listed}"}, capture_output=True, text=True, timeout=600
            )
            whole += len(re.findall(r"(?:^|\W)whole /", done.stdout))
            wrong += re.findall(r"WRONG .*", done.stdout)
            if done.returncode != 0:
                wrong.append(f"the check ended: {done.stderr.strip()[-500:]}")
        if not wrong and whole != len(self.lines):
            wrong.append(f"only {whole} of {len(self.lines)} states were checked")
        return wrong


def replay(record, places, folder, dice, samples):
    """Returns all states of a record, and some complete disks with the numbers that must be present."""
    recorded = list(entries(record))
    marks = [tuple(map(int, entry.data.decode().split(":"))) for entry in recorded if entry.flags & MARK]
    if len(marks) < 10:
        raise Trouble(f"the record has {len(marks)} marks only")
    states = States(folder, places, marks)
    disk, mark, before, since, disks = Disk(), -1, None, [], []
    for entry in recorded:
        if entry.flags & MARK:
            if mark >= 0:
                between(states, before, since, mark, dice, samples)
            mark += 1
            states.add("mark", disk, mark)
            before, since = disk.copy(), []
            if dice.random() < 0.2:
                disks.append((before, mark))
            continue
        disk.apply(entry)
        since.append(entry)
        if mark >= 0 and entry.flags & (FLUSH | FUA):
            states.add("fua" if entry.flags & FUA else "flush", disk, mark)
    return states, disks


def between(states, before, since, mark, dice, samples):
    """States between two marks: some of the writes of one persist have reached the disk, and one of them only up to
    a sector."""
    writes = [entry for entry in since if entry.data]
    for _ in range(samples if writes else 0):
        disk = before.copy()
        torn = dice.randrange(len(writes))
        for number, entry in enumerate(writes):
            if number == torn:
                for at in range(entry.sectors):
                    if dice.random() < 0.5:
                        disk.write(entry.sector + at, entry.data[at * SECTOR : (at + 1) * SECTOR])
            elif dice.random() < 0.5:
                disk.apply(entry)
        states.add("between", disk, mark)


def run(arguments):
    """Makes all recordings and checks. Returns whether all states are right, and a line about it."""
    install_qemu()
    package = download(KERNEL)
    _, content = unpack(package, r"\./boot/vmlinuz-[^/]+")
    kernel = OUT / "kernel"
    kernel.write_bytes(content)
    kinds = [arguments.of] if arguments.of else list(KINDS)
    programs = {kind: build_tests(KINDS[kind]) for kind in kinds}
    guest = make_guest(OUT, (HERE / "init").read_bytes(), programs, TOOLS, package, MODULES)
    dice, counts, booted, wrong = random.Random(arguments.seed), collections.Counter(), 0, []
    for number in range(arguments.runs):
        system, disk_kind = ("ext4", "xfs")[number % 2], ("virtio", "nvme")[number // (2 * len(kinds)) % 2]
        of = kinds[number // 2 % len(kinds)]
        tests, rounds = programs[of], max(arguments.rounds // PERSISTS[of], 1)
        with tempfile.TemporaryDirectory(dir=OUT) as name:
            folder = pathlib.Path(name)
            files = [folder / "disk", folder / "record"]
            for file, size in zip(files, (DISK_MIB, RECORD_MIB)):
                with file.open("wb") as made:
                    made.truncate(size << 20)
            said = boot("record", kernel, guest, disk_kind, files, do="record", of=of, fs=system, rounds=rounds)
            states, disks = replay(files[1], extents(said), folder, dice, arguments.samples)
            found = states.check(tests)
            for disk, mark in dice.sample(disks, min(arguments.booted, len(disks))):
                disk.save(files[0])
                promised = {"durable": states.marks[mark][0], "most": states.most(mark)}
                said = boot("look", kernel, guest, disk_kind, files[:1], do="look", of=of, fs=system, **promised)
                booted += 1
                if "whole /mnt/it" not in said:
                    found += re.findall(r"WRONG .*", said) or ["the guest did not check it"]
            counts.update(states.counts)
            wrong += [f"run {number + 1}, {of}, {system} on {disk_kind}: {one}" for one in found]
            counted = ", ".join(f"{count} {kind}" for kind, count in sorted(states.counts.items()))
            print(f"run {number + 1}: {of}, {system} on {disk_kind}: {counted}, {len(states.lines)} different; {len(found)} wrong", flush=True)
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    line = f"{arguments.runs} recordings ({' and '.join(kinds)}), states: {counted}; {booted} booted; {len(wrong)} wrong"
    return not wrong, line + "".join(f"\n  {one}" for one in wrong[:10])


def main():
    """The text at the head of this file is the description of the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--booted", type=int, default=1)
    parser.add_argument("--of", choices=list(KINDS), help="record only this")
    arguments = parser.parse_args()
    good, line = alone(OUT, lambda: run(arguments))
    print(f"{'ok    ' if good else 'FAILED'} {line}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
