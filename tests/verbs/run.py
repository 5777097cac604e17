#!/usr/bin/env python3
"""Does the ordered queue over RDMA keep all messages that a NIC has acknowledged on its own, in order?

Boots Debian's kernels in QEMU (emulated: needs no virtualization), 6.1, and 6.12 if apt knows it, with soft-RoCE.

  tests/verbs/run.py                      both kernels: the order of slots, clients cut off, processes killed
  tests/verbs/run.py linux-image-amd64    packages by name
  tests/verbs/run.py --loss 2             two guests, one with the fronts and one with the head; the link between them loses 2 % of
                                       the packets in each direction
  tests/verbs/run.py --cuts 50            slots and log on devdax; QEMU is killed 50 times

  --seconds N     duration of the load for each kernel (60)
  --seed N        seed for the moments of faults (1)
  --unkeyed       no keys; without this flag all processes have keys
  --pmnet BINARY, --lab BINARY, --rude BINARY   (target/release/pmnet, pmnet-lab, examples/rude)

First `pmnet doctor --verbs` checks whether slots are taken in real-time order. Then two shards run in one guest, each
with a queue of its own. The first shard has one device with slots, and a server with a packet store. The second shard
has two devices, a server and Redis. A rude client is cut off in the middle of messages, and the other clients must
continue. Then devices, servers, Redis and fronts are killed (SIGKILL), and a device is stopped for seconds (SIGSTOP),
at random moments.

With --cuts, server and Redis are outside of the guest. Shortly before most power cuts the device is stopped (SIGSTOP),
so that messages that its NIC then acknowledges are only in the slots. Between the cuts, Redis is killed and started
again. The persistence domain changes from boot to boot.

Clients outside of the guests write increasing numbers to a key (SET). After each SET they remove one element of a list
(LTRIM, acknowledged early because of --assume-ok). So the value of the key shows a lost command, and the length of the
list shows a command that was lost or repeated. Other clients contend for a few registers and counters, through all
fronts of a shard. `pmnet-lab check` decides whether their history is linearizable.

With keys, the rude client has a key too. The rude client also sends a message without a MAC, and once requests a
connection without a key. At the end, the device refuses the key of a front (SIGHUP).

If QEMU is missing, it is installed (root, apt-get). Packages are kept in target/kernels, and the output of the guests
in target/verbs. The output ends with one line for each kernel. The exit code is 1 if a command was lost, repeated or
out of order, or if the test could not be made. Soft-RoCE shows only that the function is right; it shows nothing about
times.
"""

import argparse
import json
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent))
from guest import CACHE, ROOT, Machine, Redis, Trouble, alone, call, download, free_port, install_qemu, is_known, make_guest, nvdimms, unpack  # noqa: E402
from clients import REPLY_LIMIT, SETTLE_LIMIT, World  # noqa: E402

OUT = ROOT / "target" / "verbs"
USUAL, OTHER = "linux-image-amd64", "linux-image-6.12-amd64"
MODULES = ("crc32_generic", "ib_core", "ib_uverbs", "udp_tunnel", "ip6_udp_tunnel", "rdma_rxe", "virtio_pci", "virtio_net")
LOSS_MODULES, MEMORY_MODULES = ("sch_netem",), ("nfit", "nd_pmem", "dax_pmem", "device_dax")
# Packages with the libraries of a program that uses RDMA.
LIBRARIES = ("libibverbs1", "ibverbs-providers", "libnl-3-200", "libnl-route-3-200")
# Time limits in seconds.
BOOT_LIMIT, DOCTOR_LIMIT, START_LIMIT, CHECK_LIMIT = 180, 120, 30, 300
# Number of slots of a device. There are so few that they run out, and the NIC answers with RNR.
SLOTS = 8
# Number of connections of the rude client. A device has fewer connections than slots, so more of them would take the
# places of other clients.
RUDE = 6
# Path of the rude client's key in the guest, and the names of all clients with a key.
RUDE_KEY, NAMES = "/etc/keys/rude.key", ("front0", "front1", "front2", "rude")
# Size of each NVDIMM and of its labels, in MiB. The size of an NVDIMM without its labels must be a multiple of 16 MiB.
NVDIMM_MIB, LABELS_MIB = 130, 2
# The line of the result about latency, which an emulated machine cannot measure.
LATENCY = "latency: not measured, needs an RNIC; with one: pmnet-lab load --redis FRONT --clients 1 (docs/operate/verbs.md)"
DOMAINS = {"mem-ctrl": "death of the process", "cpu": "power loss"}

# The faults, each with a description and a command for the guest.
FAULTS = {
    "device killed": "kill -9 $(cat /tmp/device0.pid)",
    "head of two killed": "kill -9 $(cat /tmp/device1.pid)",
    "device stopped for 3 s": "kill -STOP $(cat /tmp/device0.pid); sleep 3; kill -CONT $(cat /tmp/device0.pid)",
    "Redis killed": "kill -9 $(cat /tmp/redis.pid)",
    "front killed": "kill -9 $(cat /tmp/front1.pid)",
    "tail killed": "kill -9 $(cat /tmp/tail1.pid)",
    "rude client": f"rude rxe0 10.0.2.15 10.0.2.15:51000 {RUDE} $([ -e {RUDE_KEY} ] && echo {RUDE_KEY}) 2>&1 | named rude &",
    "server killed": "kill -9 $(cat /tmp/server0.pid)",
}


def rdma_files():
    """Returns files that are loaded at run time, and so are not among a program's libraries: path in the guest, path
    on this machine."""
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


def tool(name, package):
    """Returns the path of a program on this machine."""
    path = shutil.which(name)
    if not path:
        raise Trouble(f"there is no {name}: apt-get install {package}")
    return pathlib.Path(path)


def keys(pmnet):
    """Makes keys for a cluster, its fronts and the rude client. Returns path in the guest, path on this machine."""
    folder = OUT / "keys"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    cluster = folder / "cluster.key"
    call([str(pmnet), "key", "new", str(cluster)], 60)
    for name in NAMES:
        call([str(pmnet), "key", "front", name, "--of", str(cluster), str(folder / f"{name}.key")], 60)
    return {f"etc/keys/{path.name}": path for path in folder.iterdir()}


def network(ports=()):
    """Returns QEMU's arguments for the guest's first network interface. `ports`: the ports of the guest's fronts on
    this machine."""
    forward = "".join(f",hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:{6380 + n}" for n, port in enumerate(ports))
    return ["-netdev", f"user,id=net0{forward}", "-device", "virtio-net-pci,netdev=net0,romfile="]


def usual(ports=()):
    """Returns QEMU's arguments for a machine without persistent memory."""
    return ["-M", "q35", "-m", "768", "-cpu", "max", "-smp", "2", *network(ports)]


def ready(fronts, devices):
    """Returns patterns of the lines that a guest prints when all its processes serve."""
    return [f"guest: device{number}: ready device.*\n" for number in devices] + [f"guest: front{number}: ready redis.*\n" for number in fronts]


class Kernel:
    """The package of a kernel, and guests with this kernel."""

    def __init__(self, package, arguments):
        self.arguments, self.package = arguments, download(package)
        name, content = unpack(self.package, r"\./boot/vmlinuz-[^/]+")
        self.name = name.removeprefix("vmlinuz-")
        self.image = OUT / "kernel"
        self.image.write_bytes(content)
        self.keys = {} if arguments.unkeyed else keys(arguments.pmnet)
        self.keyed = "no" if arguments.unkeyed else "yes"

    def guest(self, modules=(), tools=None):
        """Returns a machine whose guest has the programs of this lane."""
        arguments = self.arguments
        programs = {"pmnet": arguments.pmnet, "rude": arguments.rude, "rdma": tool("rdma", "iproute2"), "tc": tool("tc", "iproute2")}
        programs["redis-server"] = tool("redis-server", "redis-server")
        init = (HERE / "init").read_bytes()
        return Machine(OUT, self.image, make_guest(OUT, init, programs, tools or {}, self.package, MODULES + modules, {**rdma_files(), **self.keys}))


def doctor(machine, name):
    """Runs the doctor in the guest. Returns two numbers that the doctor has counted: messages, and completions
    before that of an earlier slot. Fails if the doctor has seen a violation of the order."""
    machine.boot(f"{name}-doctor", usual(), do="doctor")
    try:
        said = machine.finish(BOOT_LIMIT + DOCTOR_LIMIT)
    finally:
        machine.cut()
    good = re.search(r"(\d+) messages of \d+ connections are in their slots in real-time order; (\d+) completions", said)
    if not good:
        line = re.search(r"^guest: doctor: .*", said, re.MULTILINE)
        raise Trouble(f"the doctor refuses soft-RoCE: {line[0] if line else 'it says nothing'}")
    return int(good[1]), int(good[2])


def linearizable(arguments, world, name):
    """Returns whether the history is linearizable, and a sentence about it."""
    path = OUT / f"{name}.jsonl"
    world.write_history(path)
    command = [str(arguments.lab), "check", "--json", "--history", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_LIMIT, check=False)
    try:
        (verdict,) = json.loads(done.stdout)["histories"]
    except (ValueError, KeyError) as error:
        raise Trouble(f"{' '.join(command)}: {done.stderr.strip()[-500:]}") from error
    keys, operations = len(verdict["keys"]), verdict["operations"]
    if operations == 0:
        raise Trouble("the history is empty")
    word = "linearizable" if verdict["linearizable"] else f"NOT linearizable ({verdict['not_linearizable']} keys; {verdict['undecided']} undecided)"
    return verdict["linearizable"], f"{operations} operations of contending clients, {keys} keys: {word}"


def counters(said):
    """Returns the counters of the NIC."""
    return {name: int(number) for name, number in re.findall(r"^guest: counter (\S+) (\d+)", said, re.MULTILINE)}


def blocked(said):
    """Returns how often the oldest slot was open for too long."""
    return len(re.findall(r"PM1706", said))


def recovered(said):
    """Returns the number of updates that recoveries have found only in slots."""
    return sum(int(number) for number in re.findall(r"entered=(\d+)", said))


def cut_off(machine, world, keyed):
    """Cuts off a rude client in the middle of messages. Returns a sentence, and the faults."""
    time.sleep(1)
    for client in world.clients():
        client.longest = 0.0
    unknown, before = world.unknown(), blocked(machine.said())
    machine.tell(FAULTS["rude client"])
    said = machine.wait([r"guest: rude: .*\n"], SETTLE_LIMIT)
    world.wait_for_each(SETTLE_LIMIT)
    told = re.search(
        r"(\d+) messages longer than a slot; (\d+) cut off in the middle of a message, (\d+) of them disconnected; (\d+) cut off and gone; (\d+) without a MAC, (\d+) of them disconnected; "
        r"(\d+) without a key, (\d+) of them refused; (\d+) connections that send nothing",
        said,
    )
    if not told:
        raise Trouble(f"the rude client says {re.findall('guest: rude: .*', said)}")
    long, cut, ended, gone, forged, found, keyless, refused, silent = map(int, told.groups())
    open_slots, wrong = blocked(said) - before, []
    # If the NIC has refused a message of a client (RNR), the message holds no slot, so the client need not be
    # disconnected. If a message did hold a slot and its client stayed connected, all other clients would wait.
    if ended == 0:
        wrong.append(f"of {cut} clients that were cut off in the middle of a message none was disconnected")
    if (forged, found, keyless, refused) != ((1,) * 4 if keyed else (0,) * 4):
        wrong.append(f"{forged} messages without a MAC, {found} connections ended for it; {keyless} clients without a key, {refused} refused")
    if open_slots == 0:
        wrong.append("no slot was open for too long: this says nothing about a client that is cut off")
    if (more := world.unknown() - unknown) > 0:
        wrong.append(f"{more} commands of other clients had no outcome within their deadline")
    longest = max(client.longest for client in world.clients())
    line = (
        f"{cut} clients cut off in the middle of a message, {ended} of them held a slot and were disconnected, {gone} cut off and gone, {long} messages longer than a slot, {forged} without a MAC, {refused} without a key refused, {silent} connections that sent nothing: {open_slots} times the oldest slot open for too long; "
        f"every other client went on within its deadline, after {longest:.1f} s at most"
    )
    return line, wrong


def judge(arguments, world, name):
    """Judges the run after its end. Returns a sentence about it, and a list of faults."""
    world.end()
    lost, twice = world.compare()
    good, history = linearizable(arguments, world, name)
    line = f"{world.acknowledged()} commands acknowledged, {world.unknown()} unknown; {history}; lost {len(lost)}, twice {len(twice)}"
    wrong = [*lost, *twice, *([] if good else [history])]
    if world.acknowledged() == 0:
        wrong.append("nothing was acknowledged")
    return line, wrong


def refuse(machine):
    """The device refuses the key of a front that is running. Device and front must log the refusal. Returns a
    sentence."""
    machine.tell("refuse front1")
    machine.wait([r"guest: device0:.*PM1709.*list of refused fronts", r"guest: front1:.*PM3009.*list of refused fronts"], SETTLE_LIMIT)
    return "the key of a front refused at the end: both ends say so"


def load(machine, name, arguments):
    """Runs clients while faults happen. Returns a sentence, and the faults that were found."""
    ports = [free_port() for _ in range(3)]
    world = World([ports[:2], ports[2:]])
    dice = random.Random(arguments.seed)
    made = dict.fromkeys(FAULTS, 0)
    machine.boot(name, usual(ports), do="both", slots=SLOTS, keys="no" if arguments.unkeyed else "yes")
    try:
        machine.wait(ready(range(3), range(2)), BOOT_LIMIT)
        world.start()
        rude, wrong = cut_off(machine, world, not arguments.unkeyed)
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end or 0 in made.values():
            time.sleep(dice.uniform(1, 3))
            fault = list(FAULTS)[sum(made.values()) % len(FAULTS)]
            machine.tell(FAULTS[fault])
            made[fault] += 1
            time.sleep(4 if "stopped" in fault else dice.uniform(1, 3))
        line, more = judge(arguments, world, name)
        refused = "" if arguments.unkeyed else f"{refuse(machine)}; "
        # When the device ends, it logs the counters of its NIC and its connections.
        machine.tell("kill $(cat /tmp/device0.pid)")
        machine.wait(["what the NIC and its connections did"], SETTLE_LIMIT)
        machine.tell("break")
        said = machine.finish(SETTLE_LIMIT)
    finally:
        world.over.set()
        machine.cut()
    wrong += more
    rnrs = counters(said).get("rcvd_rnr_err", 0)
    if rnrs == 0:
        wrong.append("no client heard RNR: this says nothing about a queue without slots")
    faults = ", ".join(f"{fault} {number}" for fault, number in made.items())
    return f"{rude}; {refused}faults: {faults}; {rnrs} RNRs, {recovered(said)} updates found in slots alone; {line}", wrong


def whole(kernel):
    """Tests the order of slots, clients that are cut off, and faults."""
    machine = kernel.guest()
    messages, overtaken = doctor(machine, kernel.name)
    line, wrong = load(machine, kernel.name, kernel.arguments)
    if overtaken == 0:
        wrong.append("no completion overtook an earlier slot: this says nothing about order")
    return f"doctor: {messages} messages in order, {overtaken} completions overtook an earlier slot; {line}", wrong


def lossy(kernel):
    """Tests two guests whose link loses packets."""
    head, fronts = kernel.guest(LOSS_MODULES), Machine(OUT, kernel.image, OUT / "guest.cpio")
    ports, wire, loss = [free_port() for _ in range(2)], free_port(), kernel.arguments.loss
    world = World([ports])
    link = {number: ["-netdev", f"socket,id=net1,{how}=127.0.0.1:{wire}", "-device", f"virtio-net-pci,netdev=net1,romfile=,mac=52:54:00:00:01:0{number}"] for number, how in ((1, "listen"), (2, "connect"))}
    try:
        head.boot(f"{kernel.name}-head", [*usual(), *link[1]], do="head", here="10.1.0.1", loss=loss, slots=SLOTS, keys=kernel.keyed)
        head.wait(["guest: kernel"], BOOT_LIMIT)
        fronts.boot(f"{kernel.name}-fronts", [*usual(ports), *link[2]], do="fronts", here="10.1.0.2", head="10.1.0.1", loss=loss, keys=kernel.keyed)
        head.wait(ready((), (0,)), BOOT_LIMIT)
        fronts.wait(ready(range(2), ()), BOOT_LIMIT)
        world.start()
        dice, kills = random.Random(kernel.arguments.seed), 0
        end = time.monotonic() + kernel.arguments.seconds
        while time.monotonic() < end:
            time.sleep(dice.uniform(5, 15))
            head.tell(FAULTS["device killed"])
            kills += 1
        line, wrong = judge(kernel.arguments, world, f"{kernel.name}-loss")
        for machine in (head, fronts):
            machine.tell("break")
        said = [machine.finish(SETTLE_LIMIT) for machine in (head, fronts)]
    finally:
        world.over.set()
        head.cut()
        fronts.cut()
    dropped = [sum(map(int, re.findall(r"guest: netem: .*dropped (\d+)", text))) for text in said]
    again = counters(said[0]).get("duplicate_request", 0) + counters(said[0]).get("out_of_seq_request", 0)
    if 0 in dropped or again == 0:
        wrong.append(f"{dropped} packets dropped, {again} RoCE packets out of sequence: this says nothing about loss")
    return (
        f"{loss} % of packets lost in either direction: {dropped[0]} from the head, {dropped[1]} from the fronts; {again} RoCE packets out of sequence or again; "
        f"{kills} times device killed; {blocked(said[0])} times the oldest slot open for too long; {line}"
    ), wrong


class Outside:
    """Redis and the server for a guest that loses its power."""

    def __init__(self, pmnet, folder, keyed):
        self.folder, self.port = folder, free_port()
        self.redis = self.start_redis()
        command = [str(pmnet), "server", "--listen", "127.0.0.1:0", "--store", f"redis://127.0.0.1:{self.port}", "--json"]
        command += ["--key", str(OUT / "keys" / "cluster.key")] if keyed else ["--insecure"]
        with (OUT / "server.log").open("wb") as log:
            self.server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        line = self.server.stdout.readline()
        if not line:
            raise Trouble("the server ended: see target/verbs/server.log")
        self.listen = int(json.loads(line)["listen"].rsplit(":", 1)[1])

    def start_redis(self):
        """This Redis loses nothing when it is killed, because it syncs every command."""
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        with (OUT / "redis.log").open("ab") as log:
            redis = subprocess.Popen([*command, "--dir", str(self.folder)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + START_LIMIT
        while True:
            try:
                Redis(("127.0.0.1", self.port), REPLY_LIMIT)
                return redis
            except OSError as error:
                if time.monotonic() > end:
                    raise Trouble(f"redis-server does not answer: {error}") from error
                time.sleep(0.05)

    def restart_redis(self):
        """Kills Redis, and starts it again."""
        self.redis.kill()
        self.redis.wait()
        self.redis = self.start_redis()

    def stop(self):
        """Ends the server and Redis."""
        for process in (self.server, self.redis):
            process.kill()
            process.wait()


def persistent(memories, domain, ports=()):
    """Returns QEMU's arguments for a machine with two NVDIMMs."""
    hardware = ["-M", f"q35,nvdimm=on,nvdimm-persistence={domain}", "-m", "768,slots=4,maxmem=4G", "-cpu", "max", "-smp", "2"]
    return [*hardware, *network(ports), *nvdimms(memories, NVDIMM_MIB, LABELS_MIB)]


def cuts(machine, world, memories, outside, arguments):
    """Makes power cuts under load. Returns what was seen, and the faults."""
    dice, seen, wrong = random.Random(arguments.seed), {"cuts": 0, "slots": 0, "entered": 0, "redis": 0}, []
    ports = world.shards[0]
    while True:
        domain, begun = dice.choice(sorted(DOMAINS)), time.monotonic()
        machine.boot("persistent", persistent(memories, domain, ports), do="persistent", next=f"10.0.2.2:{outside.listen}", slots=SLOTS, keys="no" if arguments.unkeyed else "yes")
        said = machine.wait([*ready(range(2), (0,)), "entered="], BOOT_LIMIT)
        seen["entered"] += recovered(said)
        survives = re.search(r'guest: device0: ready device.*survives="?([^"]*)', said)
        if not survives or not survives[1].startswith(DOMAINS[domain]):
            raise Trouble(f"nvdimm-persistence={domain}: the device says survives={survives and survives[1]}")
        if seen["cuts"] == 0:
            world.start()
        else:
            lost, twice = world.compare()
            wrong += [*lost, *twice]
            world.resume()
        if wrong or seen["cuts"] == arguments.cuts:
            return seen, wrong
        booted, before = time.monotonic() - begun, world.acknowledged()
        time.sleep(dice.uniform(0.5, 2))
        stops, alone_in_slots = dice.random() < 0.75, 0
        if dice.random() < 0.3:
            outside.restart_redis()
            seen["redis"] += 1
        if stops:
            machine.tell("kill -STOP $(cat /tmp/device0.pid); echo guest: stopped")
            machine.wait(["guest: stopped"], SETTLE_LIMIT)
            at_stop = world.acknowledged()
            time.sleep(dice.uniform(0.1, 1))
            alone_in_slots = world.acknowledged() - at_stop
        machine.cut()
        seen["cuts"] += 1
        seen["slots"] += alone_in_slots
        # Makes the clients pause, and waits until the messages from before the cut are processed.
        world.rest()
        shutil.copy(machine.log, OUT / "persistent.before.log")
        words = f"{alone_in_slots} of them while the device was stopped" if stops else "the device ran"
        print(f"cut {seen['cuts']}: {domain}, up after {booted:.0f} s, {world.acknowledged() - before} acknowledged, {words}", flush=True)


def powerless(kernel):
    """Kills QEMU, with slots and log on devdax."""
    machine = kernel.guest(MEMORY_MODULES, {"ndctl": "ndctl"})
    world = World([[free_port() for _ in range(2)]])
    with tempfile.TemporaryDirectory(dir=OUT) as folder:
        folder = pathlib.Path(folder)
        memories = [folder / "nvdimm0", folder / "nvdimm1"]
        outside = Outside(kernel.arguments.pmnet, folder, not kernel.arguments.unkeyed)
        try:
            machine.boot("prepare", persistent(memories, "mem-ctrl"), do="prepare")
            machine.finish(BOOT_LIMIT)
            seen, wrong = cuts(machine, world, memories, outside, kernel.arguments)
            line, more = judge(kernel.arguments, world, f"{kernel.name}-cuts") if not wrong else ("ended early", [])
        finally:
            world.over.set()
            machine.cut()
            outside.stop()
    wrong += more
    if seen["entered"] == 0:
        wrong.append("no recovery found an update in slots alone: this says nothing about slots")
    return (
        f"{seen['cuts']} kills of QEMU with slots and log on devdax, {seen['slots']} commands acknowledged while the device was stopped, {seen['entered']} updates found in slots alone, "
        f"{seen['redis']} times Redis killed; {line}"
    ), wrong


def attempt(package, arguments):
    """Tries one kernel. Returns whether all tests passed, and a line about it."""
    kernel = Kernel(package, arguments)
    print(f"booting {kernel.name}", flush=True)
    line, wrong = (lossy if arguments.loss else powerless if arguments.cuts else whole)(kernel)
    for text in wrong[:20]:
        print(f"    | {text}")
    return not wrong, f"{kernel.name}, {'without keys' if arguments.unkeyed else 'with keys'}: {line}"


def work(arguments):
    """Tries all kernels."""
    install_qemu()
    for program in (arguments.pmnet, arguments.lab, arguments.rude):
        if not program.exists():
            raise Trouble(f"there is no {program}: make verbs builds it")
    good, lines = True, []
    for package in arguments.kernels or [USUAL] + ([OTHER] if is_known(OTHER) else []):
        well, line = attempt(package, arguments)
        good &= well
        lines.append(f"{'ok    ' if well else 'FAILED'} {line}")
    return good, "\n".join([*lines, LATENCY])


def main():
    """The text at the head of this file is the description of the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loss", type=float, default=0)
    parser.add_argument("--cuts", type=int, default=0)
    parser.add_argument("--unkeyed", action="store_true")
    release = ROOT / "target" / "release"
    for name, path in (("pmnet", release / "pmnet"), ("lab", release / "pmnet-lab"), ("rude", release / "examples" / "rude")):
        parser.add_argument(f"--{name}", type=pathlib.Path, default=path)
    arguments = parser.parse_args()
    good, line = alone(OUT, lambda: work(arguments))
    print(line)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
