#!/usr/bin/env python3
"""Checks that an unmodified client gets the same replies from a Redis behind pmnet as from a Redis alone.

Suites:
  scenarios   several clients, long pipelines, raw bytes, settings: both sides must do the same
  differ      random commands on one connection: all replies must be equal, byte by byte
  redis       Redis's own test suite
  redis-py    redis-py's own tests, with RESP2 and RESP3
  go-redis    go-redis' own tests
  clients     every command, sent by ioredis, node-redis and Jedis

A test that fails only through the front must have a row in expected.toml with a reason. If another test fails only
through the front, the exit code is 1. Rows whose tests pass are listed, so that they can be removed.

  tests/compat/run.py                     all suites, then docs/use/compatibility.md
  tests/compat/run.py --only redis --only differ     some suites; their results are kept in target/compat/results for the page
  tests/compat/run.py --quick             scenarios and differ, within a minute; a part of make test
  tests/compat/run.py --store NAME        all suites with another server than this machine's Redis (servers.py list)
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import differ
import go_redis_suite
import other_clients
import redis_py_suite
import redis_suite
import report
import scenarios
import servers
from expected import TABLE, Expected, Wrong, fits, without
from progress import Bar
from stack import ROOT, TARGET, Stack, Trouble, binary_path, stop_all

# Time limit of a suite in seconds. Tests that have not ended by then count as not run.
SUITE_SECONDS_MAX = {"scenarios": 600, "differ": 1200, "redis": 2400, "redis-py": 1500, "go-redis": 1200, "clients": 600}
UNIT_SECONDS_MAX = 900
DIFFER_REPLIES = 1_000_000
QUICK_REPLIES = 20_000
QUICK_SECONDS_MAX = 35
QUICK_SEEDS = (1, 2, 3)
# Smaller limits for each of the other servers in make test, because the behaviour that all servers share is tested
# before.
QUICK_STORE_REPLIES = 4_000
QUICK_STORE_SECONDS_MAX = 8
QUICK_STORE_SEEDS = (1,)
# Number of units of Redis's suite that run at the same time, because a unit mostly waits.
UNITS_AT_ONCE = 2


class Suite:
    """The results of one suite for both sides: {test: None if it passed, otherwise its output}."""

    def __init__(self, name, version):
        self.name, self.version = name, version
        self.direct, self.front, self.notes = {}, {}, []
        self.seconds = 0
        # For the differential tester: the number of compared replies, and how often each rule was needed.
        self.replies, self.kinds = 0, []

    def keep(self, path, binary):
        """Writes the results to a file, with the binary's digest and the server."""
        path.write_text(json.dumps({"binary": digest(binary), **vars(self)}, indent=1) + "\n")

    @classmethod
    def kept(cls, path, binary):
        """Returns the results in the file; None if they belong to another binary."""
        found = json.loads(path.read_text()) if path.is_file() else {}
        if found.pop("binary", None) != digest(binary):
            return None
        suite = cls(found["name"], found["version"])
        vars(suite).update(found)
        return suite

    def only_front(self):
        """Returns {test: its output} of the tests that pass on Redis alone and fail through the front."""
        return {test: self.front.get(test) or "it did not run" for test in redis_suite.only_front(self.direct, self.front)}

    def confirm(self, expected, again):
        """Runs unexpected failures again. `again(test)` returns the output of the second run; None if it passed."""
        for test in [test for test in self.only_front() if expected.why(self.name, test) is None]:
            said = self.front.get(test) or "it did not run"
            if again(test) is None:
                self.front[test] = None
                first = " / ".join(said.splitlines()[:3])[:400]
                self.notes.append(f"not stable: {test} failed once through the front and passed when tried again: {first}")


def digest(binary):
    """Returns a value that identifies the build of a binary."""
    return hashlib.sha256(binary.read_bytes()).hexdigest()


def run_scenarios(options, expected):
    """Runs the scenarios, as a Suite."""
    suite = Suite("scenarios", "")
    names = [name for name in scenarios.EVERY if not (options.quick and name in scenarios.SLOW)]
    bar = Bar("scenarios", len(names))

    def each(name, found):
        suite.direct[name], suite.front[name] = None, None if found is None else "\n".join(found)
        bar.show(len(suite.direct), name)

    scenarios.run_all(options.binary, names, each)
    bar.end(len(names))
    suite.confirm(expected, lambda test: again_as_scenario(options, test))
    return suite


def again_as_scenario(options, name):
    """Runs a scenario again, and returns its output."""
    found = scenarios.run_all(options.binary, [name], lambda *_: None)[name]
    return None if found is None else "\n".join(found)


def run_differ(options, expected):
    """Runs the differential tester, as a Suite. This Suite has one test for each kind of difference that no rule
    explains."""
    suite = Suite("differ", f"seed {options.seed}")
    seeds, seconds = (options.seed,), SUITE_SECONDS_MAX["differ"]
    if options.quick:
        seeds = QUICK_STORE_SEEDS if options.store else QUICK_SEEDS
        seconds = QUICK_STORE_SECONDS_MAX if options.store else QUICK_SECONDS_MAX
    for seed in seeds:
        settings = argparse.Namespace(
            seed=seed, episode=None, replies=options.replies // len(seeds), seconds=seconds // len(seeds)
        )
        with Stack() as direct, Stack(options.binary) as front:
            grammar = differ.describe(direct.port)
            pair = differ.Pair(direct.port, front.port)
            found = differ.hunt(pair, grammar, settings, expected, Bar("differ", settings.replies))
            died = direct.died() + front.died()
        suite.replies += found.replies
        suite.kinds += [
            {"rule": kind["rule"]["name"] if kind["rule"] else None, "times": kind["times"]} for kind in found.kinds.values()
        ]
        for kind in found.unexplained():
            test = f"{kind['times']} x {differ.title(kind, seed)}"
            suite.direct[test], suite.front[test] = None, differ.describe_kind(kind)
        if died:
            test = f"seed {seed}: processes live on"
            suite.direct[test], suite.front[test] = None, f"died: {', '.join(died)}"
    return suite


def run_redis(options, expected):
    """Runs Redis's own suite."""
    tree = redis_suite.fetch(options.cache)
    suite = Suite("redis", redis_suite.version(tree))
    until = time.monotonic() + SUITE_SECONDS_MAX["redis"]
    names = redis_suite.units(tree)
    bar = Bar("redis", len(names))
    done = []

    def one(name):
        log = options.logs / name.replace("/", "-")
        for old in options.logs.glob(f"{log.name}.*.log"):
            old.unlink()
        deadline = min(until, time.monotonic() + UNIT_SECONDS_MAX)
        unit = redis_suite.Unit(tree, name, lambda front: Stack(options.binary if front else None), log, deadline)
        direct, front = unit.compare(lambda test: expected.why("redis", test) is not None)
        suite.direct.update(direct)
        suite.front.update(front)
        done.append(name)
        bar.show(len(done), f"{len(suite.direct)} tests, {len(suite.only_front())} fail only through the front")
        return unit

    with ThreadPoolExecutor(UNITS_AT_ONCE) as pool:
        try:
            units = {unit.name: unit for unit in pool.map(one, names)}
        except BaseException:
            # The pool waits for all threads, so not only this thread but all threads must be stopped.
            pool.shutdown(wait=False, cancel_futures=True)
            stop_all()
            raise
    bar.end(len(names), f"{len(suite.direct)} tests")

    def again(test):
        unit = units[test.split(": ", 1)[0]]
        unit.deadline = time.monotonic() + 60
        return unit.run(True, only=test).get(test, "it did not run")

    suite.confirm(expected, again)
    return suite


def run_redis_py(options, expected):
    """Runs redis-py's tests, with both protocols."""
    place = redis_py_suite.fetch(options.cache)
    suite = Suite("redis-py", redis_py_suite.VERSION)
    until = time.monotonic() + SUITE_SECONDS_MAX["redis-py"]
    turns = [(protocol, side) for protocol in (2, 3) for side in ("direct", "front")]
    bar = Bar("redis-py", len(turns))
    for number, (protocol, side) in enumerate(turns):
        bar.show(number, f"RESP{protocol} {side}", last=True)
        with Stack(options.binary if side == "front" else None) as stack:
            log = options.logs / f"redis-py-{protocol}-{side}.log"
            getattr(suite, side).update(redis_py_suite.run(place, stack.port, protocol, log, until))
    bar.end(len(turns))

    def again(test):
        with Stack(options.binary) as stack:
            log = options.logs / "redis-py-again.log"
            return redis_py_suite.run(place, stack.port, int(test[4]), log, time.monotonic() + 90, test).get(
                test, "it did not run"
            )

    suite.confirm(expected, again)
    return suite


def run_go_redis(options, expected):
    """Runs go-redis' tests."""
    folder = go_redis_suite.fetch(options.cache)
    suite = Suite("go-redis", go_redis_suite.VERSION)
    until = time.monotonic() + SUITE_SECONDS_MAX["go-redis"]
    bar = Bar("go-redis", 2)
    for number, side in enumerate(("direct", "front")):
        bar.show(number, side, last=True)
        with Stack(options.binary if side == "front" else None) as stack:
            getattr(suite, side).update(go_redis_suite.run(folder, stack.port, options.logs / f"go-redis-{side}.log", until))
    bar.end(2)

    def again(test):
        with Stack(options.binary) as stack:
            log = options.logs / "go-redis-again.log"
            return go_redis_suite.run(folder, stack.port, log, time.monotonic() + 90, test).get(test, "it did not run")

    suite.confirm(expected, again)
    return suite


def run_clients(options, expected):
    """Runs the clients without tests of their own, with every command."""
    suite = Suite("clients", "")
    with Stack() as direct, Stack(options.binary) as front:
        commands = other_clients.commands(differ.describe(direct.port))
        programs = other_clients.fetch(options.cache)
        suite.notes += programs.missing
        suite.version = ", ".join(program.version for program in programs.found)
        bar = Bar("clients", max(1, len(programs.found)))
        for number, program in enumerate(programs.found):
            bar.show(number, program.version, last=True)
            left, right = (other_clients.run(program, stack.port, commands) for stack in (direct, front))
            other_clients.compare(program, commands, left, right, suite, expected)
        bar.end(max(1, len(programs.found)))
    return suite


RUNS = {
    "scenarios": run_scenarios,
    "differ": run_differ,
    "redis": run_redis,
    "redis-py": run_redis_py,
    "go-redis": run_go_redis,
    "clients": run_clients,
}


@contextlib.contextmanager
def alone(cache, name):
    """Locks the files of this suite, so that no other run uses them."""
    with open(cache / f"{name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Trouble("it runs already, for somebody else with this target folder: wait for that") from None
        yield


def judge(suite, expected):
    """Prints the suite's results through the front. Returns the number of unexpected failures."""
    passed = sum(said is None for said in suite.direct.values())
    only = suite.only_front()
    new = {test: said for test, said in only.items() if expected.why(suite.name, test) is None}
    print(f"{suite.name:<10} {suite.version}: {len(suite.direct)} tests, {passed} pass on Redis, {len(only)} of them not")
    print(f"           through the front; {len(only) - len(new)} of these are expected  {suite.seconds:.0f} s")
    for test, said in new.items():
        print(f"  NEW {test}\n" + "\n".join(f"      {line}" for line in said.splitlines()[:40]))
    for note in suite.notes:
        print(f"  {note}")
    return len(new)


def no_longer(suites, expected):
    """Returns the rows that are no longer needed: {(suite, pattern)}, {name of a rule}."""
    failing = {suite.name: suite.only_front() for suite in suites}
    tests = {
        (row["suite"], pattern)
        for row in expected.own(expected.tests)
        for pattern in row["tests"]
        if row["suite"] in failing and not any(fits(test, pattern) for test in failing[row["suite"]])
    }
    used = {kind["rule"] for suite in suites for kind in suite.kinds}
    rules = {
        rule["name"]
        for rule in expected.own(expected.rules)
        if "differ" in failing 
        and rule["name"] not in used
        and not rule.get("rare")
    }
    return tests, rules


def tell_what_passes(suites, expected, prune):
    """Prints the failures that no longer occur. If the option for this is given, removes the rows of these failures
    from the list."""
    tests, rules = no_longer(suites, expected)
    for suite, pattern in sorted(tests):
        print(f"  passes now: {suite}: {pattern}")
    for rule in sorted(rules):
        print(f"  nothing differs like this now: {rule}")
    if prune:
        TABLE.write_text(without(TABLE.read_text(), tests, rules))
        print(f"took {len(tests)} tests and {len(rules)} rules out of {TABLE.name}")
    elif tests or rules:
        print("  take them out of expected.toml with --prune")


def write_page(options, expected):
    """Writes the page if all suites have results for this binary, even from different runs, or if an option demands
    it."""
    suites = [Suite.kept(options.results / f"{name}.json", options.binary) for name in RUNS]
    lacking = [name for name, suite in zip(RUNS, suites) if suite is None]
    if lacking and not options.page:
        print(f"docs/use/compatibility.md stays as it is: there are no results of {', '.join(lacking)} for this binary")
        return
    found = [suite for suite in suites if suite is not None]
    report.write(ROOT / "docs/use/compatibility.md", found, lacking, expected, options.seed)
    print("wrote docs/use/compatibility.md")


def skipped(why):
    """Prints the line with which the Rust tests report a skip. tests/run.sh counts both."""
    print(f"test result: ok. 1 passed; 0 failed\nSKIPPED: {' '.join(why.split())}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], choices=RUNS, help="only these suites; may be given again")
    parser.add_argument("--quick", action="store_true", help="scenarios and differ, within a minute")
    parser.add_argument("--check", action="store_true", help="only look whether expected.toml and the documents fit")
    parser.add_argument("--page", action="store_true", help="write the page also if suites have no results yet")
    parser.add_argument("--prune", action="store_true", help="take out of expected.toml what no longer fails")
    parser.add_argument("--seed", type=int, default=1, help="of the differential tester")
    parser.add_argument("--replies", type=int, help=f"of the differential tester (default: {DIFFER_REPLIES:,})")
    parser.add_argument("--store", metavar="NAME", help="another server than this machine's redis-server (servers.py)")
    parser.add_argument("--pmnet", metavar="FILE", help="the binary (default: target/release/pmnet)")
    options = parser.parse_args()
    expected = Expected(server=options.store)
    if options.check:
        print(f"{len(expected.tests)} rows about tests, {len(expected.rules)} about differences: each has its reason")
        return 0
    quick = QUICK_STORE_REPLIES if options.store else QUICK_REPLIES
    options.replies = options.replies or (quick if options.quick else DIFFER_REPLIES)
    if options.store:
        try:
            os.environ.update(servers.environment(options.store))
        except servers.Missing as missing:
            if not options.quick or os.environ.get("CI"):
                raise Trouble(f"{options.store} is not to be had here: {missing}") from None
            return skipped(f"{options.store} is not to be had here: {missing}")
    if options.quick and shutil.which("redis-server") is None:
        return skipped("there is no redis-server to compare with")
    options.binary = binary_path(options.pmnet)
    options.cache = TARGET / "compat"
    place = options.cache / options.store if options.store else options.cache
    options.logs = place / "logs"
    options.results = place / "results"
    for folder in (options.logs, options.results):
        folder.mkdir(parents=True, exist_ok=True)
    chosen = options.only or (["scenarios", "differ"] if options.quick else list(RUNS))
    suites, missing, new = [], [], 0
    for name in [name for name in RUNS if name in chosen]:
        begun = time.monotonic()
        try:
            with alone(options.cache, name):
                suite = RUNS[name](options, expected)
        except (Trouble, subprocess.TimeoutExpired) as trouble:
            print(f"{name:<10} could not run: {trouble}", flush=True)
            missing.append(name)
            continue
        suite.seconds = time.monotonic() - begun
        if not options.quick:
            suite.keep(options.results / f"{name}.json", options.binary)
        suites.append(suite)
        new += judge(suite, expected)
    if not options.quick:
        tell_what_passes(suites, expected, options.prune)
        if not options.store:
            write_page(options, Expected())
    if missing:
        print(f"not run: {', '.join(missing)}")
    print(
        f"{new} failures through the front only are not in expected.toml"
        if new
        else "every failure through the front only is expected"
    )
    return 1 if new or missing else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    try:
        sys.exit(main())
    except (Trouble, Wrong) as trouble:
        sys.exit(str(trouble))
    except KeyboardInterrupt:
        sys.exit("stopped")
