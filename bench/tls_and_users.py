#!/usr/bin/env python3
"""Measures the cost of TLS and users: SET and GET of 100 bytes, sent to Redis directly and through the front of pmnet.
Prints a Markdown table.

Needs redis-server and redis-benchmark with TLS, openssl, and the product's binary (`make build`). Redis keeps its AOF
under --dir, which must be on a disk, and uses appendfsync always; the device keeps its log in memory. Each round
measures all set-ups one after the other, and the figures are medians over the rounds.
"""

import argparse
import csv
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "compat"))
import stack  # noqa: E402

USER, PASSWORD = "bench", "secret"
RIGHTS = f"{USER} on >{PASSWORD} ~* +get +set +ping +config|get"
LOGIN = ["--user", USER, "-a", PASSWORD]
TLS = ["--tls", "--insecure"]
# How a client connects, and its options of redis-benchmark.
WAYS = [("plain", []), ("a user of Redis", LOGIN), ("TLS", TLS), ("TLS and a user", TLS + LOGIN)]
TICKS = os.sysconf("SC_CLK_TCK")


class Stack(stack.Stack):
    """Redis with an AOF, a user and TLS; server and device of pmnet; one front without TLS and one front with TLS."""

    def __init__(self, binary, directory):
        self.aof = pathlib.Path(tempfile.mkdtemp(prefix="tls-", dir=directory))
        self.cert, self.key = self.aof / "cert.pem", self.aof / "key.pem"
        self.tls_port = stack.free_port(socket.SOCK_STREAM)
        self.tls_front = stack.free_port(socket.SOCK_STREAM)
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        make += ["-subj", "/CN=localhost", "-keyout", str(self.key), "-out", str(self.cert)]
        subprocess.run(make, check=True, capture_output=True)
        options = ["--appendonly", "yes", "--appendfsync", "always", "--dir", str(self.aof)]
        options += ["--tls-port", str(self.tls_port), "--tls-auth-clients", "no"]
        options += ["--tls-cert-file", str(self.cert), "--tls-key-file", str(self.key), "--tls-ca-cert-file", str(self.cert)]
        options += ["--user", *RIGHTS.split(" ")]
        super().__init__(binary, options=options)

    def _start_pmnet(self, binary):
        port = super()._start_pmnet(binary)
        plain = next(process for name, process in self.processes if name == "pmnet-redis")
        arguments = pathlib.Path(f"/proc/{plain.pid}/cmdline").read_text().split("\0")[:-1]
        arguments[arguments.index("--listen") + 1] = f"127.0.0.1:{self.tls_front}"
        arguments += ["--tls-cert", str(self.cert), "--tls-key", str(self.key)]
        process, log = self._spawn("pmnet-redis-tls", arguments)
        self._wait("pmnet-redis-tls", process, log, lambda: b"ready " in log.read_bytes())
        self.fronts = {False: plain.pid, True: process.pid}
        return port

    def close(self):
        super().close()
        shutil.rmtree(self.aof, ignore_errors=True)


def cpu_seconds(pid):
    """Returns the CPU time of a process, in seconds."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def run_once(port, options, test, clients, count):
    """Runs redis-benchmark once. Returns the rate in commands per second, and the median latency in microseconds."""
    command = ["redis-benchmark", "-p", str(port), "-t", test, "-c", str(clients), "-n", str(count), "-d", "100", "--csv"]
    done = subprocess.run(command + options, capture_output=True, text=True, timeout=300)
    rows = [row for row in csv.reader(done.stdout.splitlines()) if row and row[0].upper() == test.upper()]
    if done.returncode or not rows:
        raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return float(rows[0][1]), float(rows[0][4]) * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pmnet", help="the product's binary, by default target/release/pmnet")
    parser.add_argument("--dir", default="/var/tmp", help="where Redis keeps its AOF")
    parser.add_argument("--count", type=int, default=20_000, help="commands of a run")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    made = Stack(stack.binary_path(arguments.pmnet), arguments.dir)
    figures = {}
    try:
        for turn in range(arguments.rounds):
            # Every second round measures the set-ups in the opposite order.
            for name, options in WAYS[:: -1 if turn % 2 else 1]:
                tls = "--tls" in options
                ports = {"Redis": made.tls_port if tls else made.redis_port, "pmnet": made.tls_front if tls else made.port}
                for test in ("set", "get"):
                    for clients in (1, 16):
                        for where, port in ports.items():
                            before = cpu_seconds(made.fronts[tls])
                            rate, middle = run_once(port, options, test, clients, arguments.count)
                            used = (cpu_seconds(made.fronts[tls]) - before) * 1e6 / arguments.count
                            figures.setdefault((name, test, clients, where), []).append((rate, middle, used))
                print(f"{name}: {turn + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    finally:
        made.close()
    print("| way | command | clients | Redis: p50, µs | per second | pmnet: p50, µs | per second | front's processor time, µs each |")
    print("|---|---|---|---|---|---|---|---|")
    for name, _ in WAYS:
        for test in ("set", "get"):
            for clients in (1, 16):
                columns = []
                for where in ("Redis", "pmnet"):
                    rate, middle, used = (statistics.median(values) for values in zip(*figures[name, test, clients, where]))
                    columns += [f"{middle:.0f}", f"{rate:,.0f}"] + ([f"{used:.1f}"] if where == "pmnet" else [])
                print(f"| {name} | {test.upper()} | {clients} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
