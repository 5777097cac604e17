#!/usr/bin/env python3
"""Does a machine with persistent memory still have all acknowledged writes after a power cut?

Boots Debian's kernel in QEMU (emulated: needs no virtualization), with two virtual NVDIMMs. Two devices of pmnet run in
the guest: one has its log on fsdax (ext4), the other on devdax. All other processes run outside: Redis, the servers,
the fronts and the clients, which remember the acknowledged writes. At a random moment under load, QEMU is killed.
Before most of these power cuts the servers are stopped for a while, so that only the NVDIMM has the last acknowledged
writes. Then the guest is booted again with the same memory, and Redis is compared with the acknowledged writes.

With packet stores (--of store) there is no Redis. Each device has its server in the guest: one server has its store on
fsdax, the other on devdax. With packet stores both logs are on fsdax. A power cut affects all logs and stores at once,
and the contents are read through the fronts.

  tests/nvdimm/run.py              10 power cuts of logs, and 10 of logs and packet stores
  tests/nvdimm/run.py --runs 200
  tests/nvdimm/run.py --of store   packet stores only

  --seed N        seed for moments, persistence domains and processors (1)
  --pmnet BINARY  the binary under test (target/release/pmnet)
  --unsafe        keep the first log in the page cache: the run must then find a loss

Each client writes increasing numbers to a key (SET). After each SET the client removes one element of a list (LTRIM,
acknowledged early because of --assume-ok). So the value of the key shows a lost write, and the length of the list shows
a write that is lost or applied twice. The persistence domain (caches saved or not) and the processor's flush
instructions change from boot to boot.

If QEMU is killed, no store to memory is lost. So this test covers the boot, the recovery and the real media, but cannot
find a missing flush. The crash enumeration of the log (make crash) uses the same code that flushes, and finds missing
flushes.

If QEMU is missing, it is installed (root, apt-get). Packages are kept in target/kernels, and the guest's output in
target/nvdimm. The last line is a summary. The exit code is 1 if a write was lost or applied twice, or if the test could
not be made.
"""

import argparse
import json
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.dont_write_bytecode = True
from guest import ROOT, Machine, Redis, Trouble, alone, download, free_port, install_qemu, make_guest, nvdimms, unpack  # noqa: E402

OUT = ROOT / "target" / "nvdimm"
KERNEL = "linux-image-amd64"
MODULES = ("crc32c_generic", "nfit", "nd_pmem", "dax_pmem", "device_dax", "ext4", "virtio_pci", "virtio_net")
# Size of each NVDIMM. The size without the labels, and the address of the second NVDIMM, must be multiples of 16 MiB.
NVDIMM_MIB, LABELS_MIB = 258, 2
# Time limits in seconds. On a busy machine, an emulated kernel needs up to a minute to start.
BOOT_LIMIT, CHECKS_LIMIT, SETTLE_LIMIT, START_LIMIT = 180, 400, 120, 30
# Number of clients of each front, and the time in milliseconds after which a command without a reply has an unknown
# outcome.
CLIENTS, DEADLINE_MS = 8, 60_000
# Seconds within which every reply must arrive.
SOCKET_LIMIT = 2 * DEADLINE_MS / 1000
# For each kind of contents of the persistent memory, the number of elements to which a client's list is filled before
# each cut. The client must not be able to remove all elements meanwhile. With the store in the guest, filling takes
# long, so these lists are shorter.
ELEMENTS = {"log": 200_000, "store": 2_000}
# Size of a packet store on fsdax in bytes.
STORE_SIZE = "160M"
DOMAINS = {"mem-ctrl": "memory_controller", "cpu": "cpu_cache"}
PROCESSORS = {"max": "clwb", "max,-clwb": "clflushopt", "max,-clwb,-clflushopt": "clflush"}


# ---- the guest ------------------------------------------------------------------------------------


class Nvdimms(Machine):
    """The guest's machine. While the machine is off, its persistent memory is kept."""

    def __init__(self, kernel, guest, folder, ports):
        super().__init__(OUT, kernel, guest)
        self.ports = ports
        self.memories = [folder / "nvdimm0", folder / "nvdimm1"]

    def start(self, name, domain, processor, **parameters):
        """Turns the machine on. The parameter `do` names the guest's task."""
        forward = ",".join(f"hostfwd=udp:127.0.0.1:{port}-10.0.2.15:{51001 + n}" for n, port in enumerate(self.ports))
        hardware = [
            "-M", f"q35,nvdimm=on,nvdimm-persistence={domain}", "-m", "512,slots=4,maxmem=4G", "-cpu", processor, "-smp", "1",
            "-netdev", f"user,id=net0,{forward}", "-device", "virtio-net-pci,netdev=net0,romfile=",
            *nvdimms(self.memories, NVDIMM_MIB, LABELS_MIB),
        ]  # fmt: skip
        self.boot(name, hardware, **parameters)


# ---- outside ---------------------------------------------------------------------------------------


class Client(threading.Thread):
    """A client that sends one command after the other, and remembers the acknowledged ones."""

    def __init__(self, world, front, name):
        super().__init__(daemon=True)
        self.world, self.front, self.name = world, front, name
        self.key, self.list = f"key:{name}", f"list:{name}"
        self.number = 0
        # The numbers that the key may have: the last acknowledged one, and later ones with unknown outcome.
        self.possible = {None}
        # Numbers of elements: added to the list, certainly removed, and perhaps removed.
        self.filled = self.taken = self.perhaps = 0
        # A command with unknown outcome may still take effect. If a later command was acknowledged, the unknown command
        # can no longer take effect, because a client's commands keep their order.
        self.open = False
        self.acknowledged = self.unknown = 0
        self.trouble = None

    def run(self):
        try:
            redis = Redis(self.front, SOCKET_LIMIT)
            while not self.world.over.is_set():
                if self.world.pause.is_set():
                    self.world.idle(self)
                    continue
                self.step(redis)
        except Exception as error:  # pylint: disable=broad-except
            self.trouble = f"{self.name}: {error!r}"

    def step(self, redis):
        """Sends one SET and one LTRIM."""
        self.number += 1
        number = str(self.number)
        verdict = self.judge(redis.ask("SET", self.key, number))
        if verdict == "ok":
            self.possible = {number}
        elif verdict == "unknown":
            self.possible.add(number)
        verdict = self.judge(redis.ask("LTRIM", self.list, 1, -1))
        self.taken += verdict == "ok"
        self.perhaps += verdict == "unknown"

    def judge(self, reply):
        """Notes whether a command has taken effect."""
        if reply == "OK":
            self.acknowledged += 1
            self.open = False
            return "ok"
        if reply.startswith("-ERR pmnet: outcome unknown"):
            self.unknown += 1
            self.open = True
            return "unknown"
        if reply.startswith("-ERR pmnet: deadline passed before the call could be sent"):
            return "none"
        raise Trouble(f"the front answered {reply!r}")


class World:
    """Redis, the servers, the fronts and the clients."""

    def __init__(self, pmnet, folder, of):
        self.pmnet, self.folder, self.of = pmnet, folder, of
        # The connection with which a client's data are read: a connection to Redis or, if the store is in the guest, to
        # the client's front.
        self.redis, self.looks = None, {}
        self.processes, self.servers, self.fronts, self.clients = [], [], [], []
        self.over, self.pause = threading.Event(), threading.Event()
        self.waiting, self.condition = set(), threading.Condition()
        self.redis_port = free_port()

    def idle(self, client):
        """During a pause, a client waits here."""
        with self.condition:
            self.waiting.add(client)
            self.condition.notify_all()
            self.condition.wait_for(lambda: not self.pause.is_set() or self.over.is_set())
            self.waiting.discard(client)

    def spawn(self, name, *command):
        """Starts a process. The output of the process goes to a file."""
        log = (OUT / f"{name}.log").open("wb")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        self.processes.append(process)
        return process

    def ready(self, name, *command):
        """Starts a role of pmnet. Returns the process, and the address at which it listens."""
        process = self.spawn(name, str(self.pmnet), *command, "--json")
        line = process.stdout.readline()
        if not line:
            raise Trouble(f"{name} ended: see {(OUT / name).relative_to(ROOT)}.log")
        host, port = json.loads(line)["listen"].rsplit(":", 1)
        return process, (host, int(port))

    def start_servers(self):
        """Starts Redis, and a server for each device. Returns the ports of the servers."""
        store = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.redis_port), "--save", "", "--appendonly", "no"]
        self.spawn("redis", *store, "--dir", str(self.folder), "--daemonize", "no")
        end = time.monotonic() + START_LIMIT
        while True:
            try:
                self.redis = Redis(("127.0.0.1", self.redis_port), SOCKET_LIMIT)
                break
            except OSError as error:
                if time.monotonic() > end:
                    raise Trouble(f"redis-server does not answer: {error}") from error
                time.sleep(0.05)
        ports = []
        for shard in range(2):
            store = f"redis://127.0.0.1:{self.redis_port}"
            server, address = self.ready(
                f"server{shard}", "server", "--listen", "127.0.0.1:0", "--store", store, "--shard", str(shard)
            )
            self.servers.append(server)
            ports.append(address[1])
        return ports

    def start_fronts(self, ports):
        """For each device, starts a front with its clients."""
        for shard, port in enumerate(ports):
            options = ["--listen", "127.0.0.1:0", "--via", f"127.0.0.1:{port}", "--shard", str(shard)]
            options += ["--assume-ok", "LTRIM", "--deadline-ms", str(DEADLINE_MS)]
            _, address = self.ready(f"front{shard}", "redis", *options)
            self.fronts.append(address)
            self.clients += [Client(self, address, f"{shard}:{number}") for number in range(CLIENTS)]

    def look(self, client):
        """Returns the connection with which a client's data are read."""
        if self.redis:
            return self.redis
        if client.front not in self.looks:
            self.looks[client.front] = Redis(client.front, SOCKET_LIMIT)
        return self.looks[client.front]

    def fill(self):
        """Fills the lists while no client writes."""
        most = ELEMENTS[self.of]
        for client in self.clients:
            look = self.look(client)
            missing = most - look.ask("LLEN", client.list)
            for at in range(0, missing, 10_000):
                part = min(10_000, missing - at)
                if (reply := look.ask("RPUSH", client.list, *["x"] * part)) != most - missing + at + part:
                    raise Trouble(f"{client.list} cannot be filled: {reply!r}")
            client.filled += max(missing, 0)

    def settle(self):
        """Makes the clients pause, and waits until all acknowledged commands are applied."""
        self.pause.set()
        with self.condition:
            everybody = self.condition.wait_for(
                lambda: len(self.waiting) + sum(not client.is_alive() for client in self.clients) >= len(self.clients),
                SETTLE_LIMIT,
            )
        for client in self.clients:
            if client.trouble:
                raise Trouble(client.trouble)
        if not everybody:
            raise Trouble("a client's command did not end")
        for front in self.fronts:
            # The read is executed after all acknowledged commands.
            end = time.monotonic() + SETTLE_LIMIT
            while not isinstance(reply := Redis(front, SOCKET_LIMIT).ask("INCR", "probe"), int):
                if time.monotonic() > end:
                    raise Trouble(f"the server does not apply: {reply}")

    def compare(self):
        """Returns one sentence for each difference between Redis and the acknowledged commands."""
        wrong = []
        for client in self.clients:
            value = self.look(client).ask("GET", client.key)
            if value not in client.possible:
                wrong.append(f"{client.key} is {value}, acknowledged was one of {sorted(map(str, client.possible))}")
            taken = client.filled - self.look(client).ask("LLEN", client.list)
            if not client.taken <= taken <= client.taken + client.perhaps:
                wrong.append(f"{client.list}: {taken} taken off, {client.taken} acknowledged, {client.perhaps} unknown")
            if not client.open:
                client.possible, client.taken, client.perhaps = {value}, taken, 0
        return wrong

    def resume(self):
        """Lets the clients continue."""
        with self.condition:
            self.pause.clear()
            self.condition.notify_all()

    def hold_servers(self, stopped):
        """Stops the servers, or lets them continue."""
        for server in self.servers:
            server.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)

    def acknowledged(self):
        """Returns the number of acknowledged commands of all clients so far."""
        return sum(client.acknowledged for client in self.clients)

    def stop(self):
        """Ends all processes that were started."""
        self.over.set()
        with self.condition:
            self.condition.notify_all()
        for process in reversed(self.processes):
            process.kill()
            process.wait()


# ---- the runs --------------------------------------------------------------------------------------


def ready_lines(of):
    """Returns patterns of the guest's lines when all its processes serve. Each pattern matches a whole line."""
    if of == "log":
        return ["guest: fsdax: ready device.*\n", "guest: devdax: ready device.*\n"]
    devices = [f"guest: device{number}: ready device.*\n" for number in range(2)]
    return [*devices, "guest: fsdax: ready server.*\n", "guest: devdax: ready server.*\n"]


def cuts(machine, world, arguments, nexts):
    """Makes the power cuts. Returns the number of cuts, and the faults."""
    dice = random.Random(arguments.seed)
    only_in_log = 0
    for run in range(arguments.runs + 1):
        domain, processor = dice.choice(sorted(DOMAINS)), dice.choice(sorted(PROCESSORS))
        started = time.monotonic()
        parameters = {"unsafe": arguments.unsafe} | {f"next{n}": port for n, port in enumerate(nexts)}
        machine.start("serve", domain, processor, do="serve", of=world.of, size=STORE_SIZE, **parameters)
        said = machine.wait(ready_lines(world.of), BOOT_LIMIT)
        booted = time.monotonic() - started
        if not arguments.unsafe:
            check_words(said, domain, processor)
        if run == 0:
            world.start_fronts(machine.ports)
        else:
            world.settle()
            wrong = world.compare()
            if wrong:
                return run, only_in_log, wrong
        if run == arguments.runs:
            break
        world.pause.set()
        world.fill()
        if run == 0:
            for client in world.clients:
                client.start()
        world.resume()
        before = world.acknowledged()
        time.sleep(dice.uniform(0.2, 2.0))
        held = bool(world.servers) and dice.random() < 0.75
        at_stop = world.acknowledged()
        if held:
            world.hold_servers(True)
            time.sleep(dice.uniform(0.1, 1.5))
        machine.cut()
        after = world.acknowledged()
        world.hold_servers(False)
        only_in_log += (after - at_stop) * held
        words = f"{after - at_stop} of them while the servers were stopped" if held else "the servers ran"
        print(
            f"cut {run + 1}: {domain}, {PROCESSORS[processor]}, up after {booted:.0f} s, {after - before} acknowledged, {words}",
            flush=True,
        )
        shutil.copy(machine.log, OUT / "serve.before.log")
    machine.cut()
    return arguments.runs, only_in_log, []


def check_words(said, domain, processor):
    """Checks whether the devices flush as this machine requires."""
    flush = "none" if domain == "cpu" else PROCESSORS[processor]
    found = re.findall(r'flush="?(\w+)', said)
    if len(found) < 2 or set(found) != {flush}:
        raise Trouble(f"{domain}, {processor}: the devices say flush={found}, not {flush}")
    if f"domains {DOMAINS[domain]} {DOMAINS[domain]}" not in said:
        raise Trouble(f"the guest's kernel does not say {DOMAINS[domain]}")
    if said.count("survives=power loss") < 2:
        raise Trouble("a device does not say that its log survives a power cut")


def run(arguments, folder):
    """Makes the runs for all kinds of contents of the persistent memory. Prints one line for each."""
    install_qemu()
    if not shutil.which("redis-server"):
        raise Trouble("redis-server is not installed: apt-get install redis-server")
    package = download(KERNEL)
    name, content = unpack(package, r"\./boot/vmlinuz-[^/]+")
    kernel = OUT / "kernel"
    kernel.write_bytes(content)
    init = (HERE / "init").read_bytes()
    programs = {"pmnet": arguments.pmnet}
    guest = make_guest(OUT, init, programs, {"ndctl": "ndctl", "mkfs.ext4": "e2fsprogs"}, package, MODULES)
    good, lines = True, []
    for of in [arguments.of] if arguments.of else list(ELEMENTS):
        place = folder / of
        place.mkdir()
        machine = Nvdimms(kernel, guest, place, [free_port(socket.SOCK_DGRAM) for _ in range(2)])
        print(f"making namespaces on {name.removeprefix('vmlinuz-')}", flush=True)
        well, line = run_one(arguments, machine, World(arguments.pmnet, place, of))
        good, lines = good and well, [*lines, line]
        if not well:
            break
    return good, "; ".join(lines)


def run_one(arguments, machine, world):
    """Makes the power cuts for one kind of contents. Returns a line about them."""
    of = world.of
    try:
        machine.start("prepare", "mem-ctrl", "max", do="prepare")
        machine.finish(BOOT_LIMIT)
        nexts = world.start_servers() if of == "log" else []
        done, only_in_log, wrong = cuts(machine, world, arguments, nexts)
        acknowledged, unknown = world.acknowledged(), sum(client.unknown for client in world.clients)
        what = "two logs (fsdax, devdax)" if of == "log" else "two logs and two packet stores (fsdax, devdax)"
        facts = f"{done} power cuts of {what}, {acknowledged} writes acknowledged, {unknown} unknown"
        if of == "log":
            facts += f"; {only_in_log} acknowledged while the servers were stopped"
        if wrong:
            return False, f"{facts}: {'; '.join(wrong[:5])}"
        world.stop()
        machine.start("checks", "mem-ctrl", "max", do="checks", of=of, method="clwb")
        checks = re.findall(r"^guest: check (.*): (ok|FAILED.*)$", machine.finish(CHECKS_LIMIT), re.MULTILINE)
        failed = [f"{check}: {verdict}" for check, verdict in checks if verdict != "ok"]
        if failed or not checks:
            return False, f"{facts}: all there; of {len(checks)} checks in the guest failed: {'; '.join(failed) or 'all'}"
        return True, f"{facts}: all there, once; {len(checks)} checks in the guest passed"
    finally:
        machine.cut()
        world.stop()


def main():
    """The text at the head of this file is the description of the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unsafe", action="store_true")
    parser.add_argument("--of", choices=list(ELEMENTS), help="cut the power of this only")
    parser.add_argument("--pmnet", type=pathlib.Path, default=ROOT / "target" / "release" / "pmnet")
    arguments = parser.parse_args()
    if arguments.unsafe:
        arguments.of = "log"

    def work():
        with tempfile.TemporaryDirectory(dir=OUT) as folder:
            return run(arguments, pathlib.Path(folder))

    good, line = alone(OUT, work)
    if arguments.unsafe:
        # If a device finds its log older than the server's data, it reports the loss and ends. The report also counts
        # as a loss.
        good = "acknowledged was one of" in line or "taken off" in line or "the device on fsdax ended" in line
    print(f"{'ok    ' if good else 'FAILED'} {line}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
