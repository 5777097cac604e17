#!/usr/bin/env python3
"""Measures long pipelines of mixed commands, sent to Redis directly and through the front of pmnet. Prints a Markdown
table.

Needs redis-py, redis-server and the product's binary (`make build`). Redis keeps its AOF under --dir, which must be on
a disk; the device keeps its log in memory. The two set-ups are measured alternately, and the figures are medians over
the rounds.
"""

import argparse
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

import redis

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "compat"))
import stack  # noqa: E402

VALUE = b"v" * 1024


def set_get(pipe, count):
    for _ in range(count // 2):
        pipe.set("key", VALUE)
        pipe.get("key")


def incr_get(pipe, count):
    for _ in range(count // 2):
        pipe.incr("a")
        pipe.get("b")


def getset(pipe, count):
    for _ in range(count // 2):
        pipe.execute_command("GETSET", "s", VALUE)


def blocks(pipe, count):
    for _ in range(count // 5):
        pipe.execute_command("MULTI")
        pipe.incr("a")
        pipe.incr("c")
        pipe.execute_command("EXEC")


def set_incr(pipe, count):
    for _ in range(count // 2):
        pipe.set("key", VALUE)
        pipe.incr("a")


WORKLOADS = [
    ("`SET k`, `GET k`, 1 KB, in turn", set_get),
    ("`INCR a`, `GET b`, in turn", incr_get),
    ("half as many `GETSET`, 1 KB", getset),
    ("a fifth as many `MULTI INCR INCR EXEC`", blocks),
    ("`SET` of 1 KB, `INCR`, in turn", set_incr),
]


class Redis(stack.Stack):
    """A Redis, alone or with pmnet, with an AOF in `directory`. `sync` is its appendfsync."""

    def __init__(self, binary, directory, sync):
        self.aof = tempfile.mkdtemp(prefix="pipelines-", dir=directory)
        options = ["--appendonly", "yes", "--appendfsync", sync, "--dir", self.aof]
        super().__init__(binary, options=options)

    def close(self):
        super().close()
        shutil.rmtree(self.aof, ignore_errors=True)


def run_once(connection, commands, count):
    pipe = connection.pipeline(transaction=False)
    commands(pipe, count)
    begun = time.perf_counter()
    replies = pipe.execute()
    took = time.perf_counter() - begun
    wrong = [reply for reply in replies if isinstance(reply, Exception)]
    if wrong:
        raise SystemExit(f"{commands.__name__}: {wrong[0]}")
    return took, replies[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pmnet", help="the product's binary, by default target/release/pmnet")
    parser.add_argument("--dir", default="/var/tmp", help="where Redis keeps its AOF")
    parser.add_argument("--count", type=int, default=10_000, help="commands in a pipeline")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sync", default="always,everysec", help="values of appendfsync")
    parser.add_argument("--only", help="workloads, by the names of their functions")
    arguments = parser.parse_args()
    binary = stack.binary_path(arguments.pmnet)
    chosen = [w for w in WORKLOADS if not arguments.only or w[1].__name__ in arguments.only.split(",")]
    print("| pipeline | `appendfsync` | Redis, ms | pmnet, ms | pmnet / Redis |\n|---|---|---|---|---|", flush=True)
    for sync in arguments.sync.split(","):
        direct, front = Redis(None, arguments.dir, sync), Redis(binary, arguments.dir, sync)
        try:
            connections = [redis.Redis(port=made.port, socket_timeout=300) for made in (direct, front)]
            for text, commands in chosen:
                took = ([], [])
                for _ in range(arguments.rounds):
                    last = []
                    for connection, times in zip(connections, took):
                        seconds, reply = run_once(connection, commands, arguments.count)
                        times.append(seconds * 1000)
                        last.append(reply)
                    if last[0] != last[1]:
                        raise SystemExit(f"{text}: {last[0]!r} directly, {last[1]!r} through the front")
                there, here = (statistics.median(times) for times in took)
                print(f"| {text} | {sync} | {there:,.0f} | {here:,.0f} | {here / there:.1f} |", flush=True)
        finally:
            direct.close()
            front.close()


if __name__ == "__main__":
    main()
