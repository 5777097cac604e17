#!/usr/bin/env python3
"""Measures SET and GET of 100 bytes through `pmnet memcached` and with a memcached. Prints a Markdown table.

Needs gcc, memcached, redis-server, and the product `pmnet` (`make build`). The device keeps its log in memory. Redis
keeps its AOF under --dir, which must be on a disk, and uses appendfsync always. memcached is not durable. Each round
measures all set-ups one after the other, every second round in the opposite order. The figures are medians of the
rounds.
"""

import argparse
import pathlib
import socket
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def free_port(kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET, kind) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Stack:
    """The processes of one row, and the port at which clients connect."""

    def __init__(self):
        self.processes = []
        self.port = free_port()

    def start(self, *command, ready=False):
        command = [str(word) for word in command]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.processes.append(process)
        if ready and not any(line.startswith("ready") for line in process.stdout):
            raise SystemExit(f"it ends: {' '.join(command)}")

    def wait(self, port):
        for _ in range(100):
            try:
                return socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"nobody listens at {port}")

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
            process.wait()


def memcached():
    stack = Stack()
    stack.start("memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", stack.port, "-U", 0, "-t", 2)
    stack.wait(stack.port)
    return stack


def front(pmnet, memory, disk, packet):
    stack = Stack()
    server, device = (f"127.0.0.1:{free_port(socket.SOCK_DGRAM)}" for _ in range(2))
    if packet:
        store = f"packet:{memory}/store"
    else:
        port = free_port()
        stack.start("redis-server", "--port", port, "--appendonly", "yes", "--appendfsync", "always", "--dir", disk, "--save", "")
        stack.wait(port)
        store = f"redis://127.0.0.1:{port}"
    stack.start(pmnet, "server", "--listen", server, "--store", store)
    name = "packet" if packet else "redis"
    stack.start(pmnet, "device", "--listen", device, "--next", server, "--log", f"{memory}/{name}.pmlog", "--media", "dram", ready=True)
    stack.start(pmnet, "memcached", "--listen", f"127.0.0.1:{stack.port}", "--via", device, ready=True)
    return stack


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pmnet", default=ROOT / "target/release/pmnet", type=pathlib.Path)
    parser.add_argument("--dir", default=ROOT / "target", help="folder on a disk")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--commands", type=int, default=20000, help="of one measurement, of all clients together")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory, tempfile.TemporaryDirectory(dir=args.dir) as disk:
        load = f"{memory}/load"
        subprocess.run(["gcc", "-O2", "-pthread", "-o", load, ROOT / "bench/memcached.c"], check=True)
        rows = {"memcached": memcached(), "the front, over Redis": front(args.pmnet, memory, disk, packet=False)}
        rows["the front, over a packet store in memory"] = front(args.pmnet, memory, disk, packet=True)
        found = {}
        try:
            for number in range(args.rounds):
                for what, clients in (("set", 1), ("get", 1), ("set", 16), ("get", 16)):
                    for name in list(rows)[:: 1 if number % 2 == 0 else -1]:
                        command = [load, str(rows[name].port), what, str(clients), str(args.commands // clients)]
                        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                        found.setdefault((what, clients, name), []).append([int(word) for word in told])
        finally:
            for stack in rows.values():
                stack.stop()
    print("| | p50, µs | p99, µs | commands/s |\n|---|---|---|---|")
    for what, clients in (("set", 1), ("set", 16), ("get", 1), ("get", 16)):
        print(f"| **`{what}`, {clients} client{'s' if clients > 1 else ''}** | | | |")
        for name in rows:
            p50, p99, rate = (statistics.median(column) for column in zip(*found[what, clients, name]))
            print(f"| {name} | {p50 / 1000:.0f} | {p99 / 1000:.0f} | {rate:,.0f} |")


if __name__ == "__main__":
    main()
