#!/usr/bin/env python3
"""Does the ordered queue over RDMA keep what a NIC has acknowledged by itself, in order?

Boots Debian's kernels in QEMU (emulated: needs no virtualization), 6.1, and 6.12 if apt knows it, with soft-RoCE. First `pmnet doctor --verbs`
looks whether slots are taken in real-time order. Then a device with slots, its server and two fronts run in the guest. Clients outside
write through the fronts, while device and fronts are killed (SIGKILL), the device is stopped for seconds (SIGSTOP), and rude clients send messages that are longer than a slot, garbage and nothing, and
die in the middle of a message.

  tests/verbs/run.py                      both kernels
  tests/verbs/run.py linux-image-amd64    packages by name

  --seconds N     of load for each kernel (45)
  --seed N        of moments (1)
  --pmnet BINARY  (target/release/pmnet)
  --rude BINARY   (target/release/examples/rude)

Each client writes increasing numbers to a key (SET), and takes one element off a list (LTRIM, acknowledged early by --assume-ok) after each: what is lost
shows in the key, what is lost or there twice in the list's length. Two more clients write to a key by one front and then by the other, and
read it: what was acknowledged first must come first, across connections.

QEMU is installed if need be (root, apt-get); packages are kept in target/kernels, what the guest said in target/verbs. The last lines are one for
each kernel; the exit code is 1 if something was lost, twice, or out of order, or could not be tried. Soft-RoCE shows function only: it says nothing about time.
"""

import argparse
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.dont_write_bytecode = True
from guest import QEMU, ROOT, Redis, Trouble, alone, call, download, install_qemu, is_known, make_guest, unpack  # noqa: E402
from guest import CACHE  # noqa: E402

OUT = ROOT / "target" / "verbs"
USUAL, OTHER = "linux-image-amd64", "linux-image-6.12-amd64"
MODULES = ("crc32_generic", "ib_core", "ib_uverbs", "udp_tunnel", "ip6_udp_tunnel", "rdma_rxe", "virtio_pci", "virtio_net")
# Packages of a program that uses RDMA. The tool that makes a soft-RoCE device is the host's.
LIBRARIES = ("libibverbs1", "ibverbs-providers", "libnl-3-200", "libnl-route-3-200")
# Seconds.
BOOT_LIMIT, DOCTOR_LIMIT, SETTLE_LIMIT, REPLY_LIMIT = 120, 120, 90, 120
FRONTS, CLIENTS, ELEMENTS = 2, 3, 4000
# Few: they run out, and clients hear RNR.
SLOTS = 8


def rdma_files():
    """What is loaded at run time, and so is not among a program's libraries: path in the guest, path here."""
    folder = CACHE / "rdma.files"
    if not folder.exists():
        part = CACHE / "rdma.part"
        shutil.rmtree(part, ignore_errors=True)
        for name in LIBRARIES:
            call(["dpkg-deb", "-x", str(download(name)), str(part)], 60)
        part.rename(folder)
    files = {"etc/libibverbs.d/rxe.driver": folder / "etc/libibverbs.d/rxe.driver"}
    place = "usr/lib/x86_64-linux-gnu"
    for pattern in (f"{place}/libibverbs.so.*", f"{place}/libnl*.so.*", "lib/x86_64-linux-gnu/libnl*.so.*", f"{place}/libibverbs/librxe*.so"):
        for path in folder.glob(pattern):
            at = f"{place}/libibverbs/{path.name}" if "librxe" in path.name else f"lib/x86_64-linux-gnu/{path.name}"
            files[at] = path
    return files


class Machine:
    """A guest that runs."""

    def __init__(self, kernel, guest, name, what, ports=()):
        self.log = OUT / f"{name}.log"
        self.log.write_bytes(b"")
        self.door = OUT / f"{name}.door"
        self.door.unlink(missing_ok=True)
        forward = "".join(f",hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:{6380 + n}" for n, port in enumerate(ports))
        command = [
            QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "q35", "-m", "768",
            # Never KVM: what is tried here must not depend on the host's kernel.
            "-accel", "tcg", "-cpu", "max", "-smp", "2",
            "-netdev", f"user,id=net0{forward}", "-device", "virtio-net-pci,netdev=net0,romfile=",
            "-serial", f"file:{self.log}", "-serial", f"unix:{self.door},server=on,wait=off",
            "-kernel", str(kernel), "-initrd", str(guest),
            # The kernel's test of its timer fails where others keep the processor busy.
            "-append", f"console=ttyS0 no_timer_check panic=-1 oops=panic loglevel=4 pmnet_do={what} pmnet_slots={SLOTS}",
        ]  # fmt: skip
        with (OUT / "qemu.log").open("wb") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        self.socket = None

    def said(self):
        """What the guest said since it was turned on."""
        return self.log.read_text(errors="replace").replace("\r", "")

    def wait(self, texts, limit):
        """Waits until the guest has said all of these patterns."""
        end = time.monotonic() + limit
        while True:
            said = self.said()
            trouble = re.search(r"^guest: trouble: (.*)|^.*(?:Kernel panic|Oops|BUG:).*", said, re.MULTILINE)
            if trouble:
                raise Trouble(f"the guest says: {trouble[0]}")
            if all(re.search(text, said) for text in texts):
                return said
            if self.process.poll() is not None:
                raise Trouble(f"QEMU ended: {(OUT / 'qemu.log').read_text(errors='replace').strip()[-500:]}")
            if time.monotonic() > end:
                raise Trouble(f"the guest did not say {[text for text in texts if not re.search(text, said)]} within {limit} s")
            time.sleep(0.05)

    def tell(self, command):
        """The guest runs a command."""
        if self.socket is None:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(str(self.door))
        self.socket.sendall(command.encode() + b"\n")

    def end(self):
        """It is turned off."""
        self.process.kill()
        self.process.wait()
        if self.socket:
            self.socket.close()


class Client(threading.Thread):
    """Writes, one command after the other, and knows what was acknowledged."""

    def __init__(self, world, name, ports):
        super().__init__(daemon=True)
        self.world, self.name, self.ports = world, name, ports
        self.connections = {}
        self.acknowledged = self.unknown = 0
        self.trouble = None
        self.wrong = []

    def run(self):
        try:
            while not self.world.over.is_set():
                self.step()
        except Exception as error:  # pylint: disable=broad-except
            self.trouble = f"{self.name}: {error!r}"

    def ask(self, front, *words):
        """A command by a front: "ok", the reply of a read, or "unknown"; the connection is made again if the front was killed."""
        try:
            if front not in self.connections:
                self.connections[front] = Redis(("127.0.0.1", self.ports[front]), REPLY_LIMIT)
            reply = self.connections[front].ask(*words)
        except (ConnectionError, OSError):
            self.connections.pop(front, None)
            time.sleep(0.1)
            reply = "-ERR pmnet: outcome unknown"
        if isinstance(reply, str) and reply.startswith("-"):
            self.unknown += 1
            return "unknown"
        self.acknowledged += 1
        return "ok" if reply == "OK" else reply


class Counter(Client):
    """Writes numbers to a key of its own, and takes elements off a list."""

    def __init__(self, world, name, ports, front):
        super().__init__(world, name, ports)
        self.front, self.number = front, 0
        self.possible, self.taken, self.perhaps = {None}, 0, 0

    def step(self):
        """One SET and one LTRIM."""
        self.number += 1
        number = str(self.number)
        if self.ask(self.front, "SET", f"key:{self.name}", number) == "ok":
            self.possible = {number}
        else:
            self.possible.add(number)
        verdict = self.ask(self.front, "LTRIM", f"list:{self.name}", 1, -1)
        self.taken += verdict == "ok"
        self.perhaps += verdict != "ok"
        if self.taken + self.perhaps >= ELEMENTS:
            self.world.over.wait()

    def compare(self, redis):
        """What is not as it was acknowledged: sentences about loss, and about what is there twice."""
        value, left = redis.ask("GET", f"key:{self.name}"), redis.ask("LLEN", f"list:{self.name}")
        lost, twice = [], []
        # An update of unknown outcome may take effect after later ones of another session.
        unknown = self.unknown > 0
        if value not in self.possible and not (unknown and value is not None and int(value) <= self.number):
            lost.append(f"key:{self.name} is {value}, acknowledged was one of {sorted(map(str, self.possible))}")
        gone = ELEMENTS - left
        if gone < self.taken:
            lost.append(f"list:{self.name}: {gone} taken off, {self.taken} acknowledged")
        if gone > self.taken + self.perhaps:
            twice.append(f"list:{self.name}: {gone} taken off, {self.taken} acknowledged, {self.perhaps} unknown")
        return lost, twice


class Baton(Client):
    """Writes to a key by one front, then by the other, and reads it."""

    def __init__(self, world, name, ports):
        super().__init__(world, name, ports)
        self.generation, self.number = 0, 0
        self.last = None

    def step(self):
        """A write, and sometimes a read."""
        key = f"baton:{self.name}:{self.generation}"
        self.number += 1
        if self.ask(self.number % FRONTS, "SET", key, self.number) != "ok":
            # It may take effect at any time: this key is not looked at again.
            self.generation += 1
            self.last = None
            return
        self.last = str(self.number)
        if self.number % 5 == 0:
            found = self.ask(self.number // 5 % FRONTS, "GET", key)
            if found not in ("unknown", self.last):
                self.wrong.append(f"{key} is {found} after {self.last} was acknowledged")


class World:
    """The clients."""

    def __init__(self, ports):
        self.over = threading.Event()
        counters = [(front, number) for front in range(FRONTS) for number in range(CLIENTS)]
        self.counters = [Counter(self, f"{front}:{number}", ports, front) for front, number in counters]
        self.batons = [Baton(self, str(number), ports) for number in range(2)]
        self.ports = ports

    def clients(self):
        """All of them."""
        return [*self.counters, *self.batons]

    def probe(self, limit):
        """A connection to the first front, once all before was applied."""
        end = time.monotonic() + limit
        while True:
            try:
                redis = Redis(("127.0.0.1", self.ports[0]), REPLY_LIMIT)
                if isinstance(redis.ask("INCR", "probe"), int):
                    return redis
            except (ConnectionError, OSError):
                pass
            if time.monotonic() > end:
                raise Trouble("the shard does not serve")
            time.sleep(0.2)

    def fill(self, redis):
        """Fills the lists."""
        for client in self.counters:
            while (have := redis.ask("LLEN", f"list:{client.name}")) < ELEMENTS:
                redis.ask("RPUSH", f"list:{client.name}", *["x"] * min(2000, ELEMENTS - have))


def free_port():
    """A port of 127.0.0.1 that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


FAULTS = {
    "device killed": "kill -9 $(cat /tmp/device.pid)",
    "device stopped": "kill -STOP $(cat /tmp/device.pid); sleep 3; kill -CONT $(cat /tmp/device.pid)",
    "front killed": "kill -9 $(cat /tmp/front1.pid)",
    "rude clients": "rude rxe0 10.0.2.15 10.0.2.15:51000 6 2>&1 | named rude",
}


def doctor(kernel, guest, name):
    """How many messages, completions before those of earlier slots, and violations the doctor has seen."""
    machine = Machine(kernel, guest, f"{name}-doctor", "doctor")
    try:
        said = machine.wait(["guest: done\n"], BOOT_LIMIT + DOCTOR_LIMIT)
    finally:
        machine.end()
    good = re.search(r"(\d+) messages of \d+ connections are in their slots in real-time order; (\d+) completions", said)
    if not good:
        line = re.search(r"^guest: doctor: .*", said, re.MULTILINE)
        raise Trouble(f"the doctor refuses soft-RoCE: {line[0] if line else 'it says nothing'}")
    return int(good[1]), int(good[2])


def load(kernel, guest, name, arguments):
    """Clients, with faults; a sentence, and what was wrong."""
    ports = [free_port() for _ in range(FRONTS)]
    machine = Machine(kernel, guest, name, "serve", ports)
    world = World(ports)
    dice = random.Random(arguments.seed)
    made = dict.fromkeys(FAULTS, 0)
    try:
        machine.wait(["guest: device: ready device.*\n", *[f"guest: front{n}: ready redis.*\n" for n in range(FRONTS)]], BOOT_LIMIT)
        world.fill(world.probe(SETTLE_LIMIT))
        for client in world.clients():
            client.start()
        end = time.monotonic() + arguments.seconds
        order = list(FAULTS)
        while time.monotonic() < end:
            time.sleep(dice.uniform(1, 4))
            fault = order[sum(made.values()) % len(order)]
            machine.tell(FAULTS[fault])
            made[fault] += 1
            time.sleep(4 if fault == "device stopped" else dice.uniform(1, 3))
        world.over.set()
        for client in world.clients():
            client.join(REPLY_LIMIT)
            if client.is_alive():
                raise Trouble(f"a command of client {client.name} did not end")
            if client.trouble:
                raise Trouble(client.trouble)
        redis = world.probe(SETTLE_LIMIT)
        lost, twice = [], []
        for client in world.counters:
            found = client.compare(redis)
            lost += found[0]
            twice += found[1]
        disorder = [text for client in world.batons for text in client.wrong]
        # The device says at its end what it did since its start.
        machine.tell("kill $(cat /tmp/device.pid)")
        machine.wait(["what the NIC and its connections did"], SETTLE_LIMIT)
        # The shell reads no more.
        machine.tell("break")
        said = machine.wait(["guest: done\n"], SETTLE_LIMIT)
    finally:
        world.over.set()
        machine.end()
    counter = dict(re.findall(r"^guest: counter (\S+) (\d+)", said, re.MULTILINE))
    rnrs = int(counter.get("rcvd_rnr_err", 0))
    holes = [int(number) for number in re.findall(r"holes: (\d+)", said)]
    broken = len(re.findall(r"in the middle of a message for too long", said))
    recovered = sum(int(number) for number in re.findall(r"entered=(\d+)", said))
    acknowledged = sum(client.acknowledged for client in world.clients())
    unknown = sum(client.unknown for client in world.clients())
    faults = ", ".join(f"{number} times {fault}" for fault, number in made.items())
    line = (
        f"{acknowledged} commands acknowledged, {unknown} unknown, {faults}; {rnrs} RNRs, {recovered} updates found in slots alone, {broken} times the oldest slot open for too long, {sum(holes)} holes at the end; "
        f"out of order {len(disorder)}, lost {len(lost)}, twice {len(twice)}"
    )
    wrong = [*disorder, *lost, *twice]
    if rnrs == 0:
        wrong.append("no client heard RNR: this says nothing about a queue without slots")
    if acknowledged == 0:
        wrong.append("nothing was acknowledged")
    return line, wrong


def attempt(package, arguments):
    """Tries one kernel; whether all is well, and a line about it."""
    deb = download(package)
    name, content = unpack(deb, r"\./boot/vmlinuz-[^/]+")
    name = name.removeprefix("vmlinuz-")
    kernel = OUT / "kernel"
    kernel.write_bytes(content)
    rdma = shutil.which("rdma")
    if not rdma:
        raise Trouble("there is no tool rdma: apt-get install iproute2")
    programs = {"pmnet": arguments.pmnet, "rude": arguments.rude, "rdma": pathlib.Path(rdma)}
    guest = make_guest(OUT, (HERE / "init").read_bytes(), programs, {}, deb, MODULES, rdma_files())
    print(f"booting {name}", flush=True)
    messages, overtaken = doctor(kernel, guest, name)
    line, wrong = load(kernel, guest, name, arguments)
    if overtaken == 0:
        wrong.append("no completion overtook an earlier slot: this says nothing about order")
    for text in wrong[:20]:
        print(f"    | {text}")
    return not wrong, f"{name}: doctor: {messages} messages in order, {overtaken} completions overtook an earlier slot; {line}"


def work(arguments):
    """All kernels."""
    install_qemu()
    for program in (arguments.pmnet, arguments.rude):
        if not program.exists():
            raise Trouble(f"there is no {program}: make verbs builds it")
    good, lines = True, []
    for package in arguments.kernels or [USUAL] + ([OTHER] if is_known(OTHER) else []):
        well, line = attempt(package, arguments)
        good &= well
        lines.append(f"{'ok    ' if well else 'FAILED'} {line}")
    return good, "\n".join(lines)


def main():
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL")
    parser.add_argument("--seconds", type=int, default=45)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pmnet", type=pathlib.Path, default=ROOT / "target" / "release" / "pmnet")
    parser.add_argument("--rude", type=pathlib.Path, default=ROOT / "target" / "release" / "examples" / "rude")
    arguments = parser.parse_args()
    good, line = alone(OUT, lambda: work(arguments))
    print(line)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
