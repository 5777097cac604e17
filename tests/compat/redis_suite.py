"""Runs Redis's own test suite, from the source package of the installed Redis, in its external mode."""

import os
import pathlib
import random
import re
import shutil
import subprocess
import time

from stack import Trouble, end, popen

# Tests that are left out on both sides. These tests need DEBUG or replicas of their own, which the front refuses
# (docs/use/commands.md, The matrix).
TAGS = "-needs:debug -needs:repl -large-memory"
# Time limit of one run of a unit in seconds.
UNIT_SECONDS_MAX = 400
# Seconds without output after which a test counts as hanging, and as failed. The unit then runs again without the test.
SILENT_SECONDS_MAX = 120
# Number of hanging tests after which the rest of a unit is given up.
HANGS_MAX = 6
# Maximum number of runs in which the tests that failed alone are left out, and number of tests that are run alone in
# each such run.
PASSES_MAX = 4
ALONE_MAX = 40
START_TRIES = 3
FETCH_SECONDS_MAX = 120
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
OUTCOME = re.compile(r"^\[(ok|err|skip|ignore|exception)\]: (.*)$")
NEEDS = "for Redis's own suite install: apt-get install tcl redis-tools dpkg-dev"


def fetch(cache):
    """Returns the folder of the suite. The source package of the installed Redis is downloaded once."""
    for program in ("tclsh", "redis-cli", "redis-benchmark", "dpkg-source", "apt-get"):
        if shutil.which(program) is None:
            raise Trouble(f"there is no {program}; {NEEDS}")
    folder = cache / "redis-source"
    tree = folder / "tree"
    if (tree / "runtest").is_file():
        return tree
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    sources = folder / "sources.sources"
    sources.write_text(source_entries())
    # apt uses package lists of its own, so that the system's lists stay unchanged.
    apt = ["apt-get", "-q", "-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=/dev/null"]
    apt += ["-o", f"Dir::State::lists={lists}", "-o", "APT::Sandbox::User="]
    package = folder / "package"
    package.mkdir(exist_ok=True)
    for arguments in (["update"], ["source", "--download-only", "redis"]):
        said = subprocess.run(
            apt + arguments,
            cwd=package,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=FETCH_SECONDS_MAX,
            text=True,
        )
        if said.returncode != 0:
            raise Trouble(f"apt-get {' '.join(arguments)} failed; is there a Debian to reach?\n{said.stdout[-1500:]}")
    dsc = sorted(package.glob("redis_*.dsc"))
    if not dsc:
        raise Trouble(f"apt-get source gave no package: remove {folder} and try again")
    unpacked = folder / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    # Debian's patches of the tests are applied, because Debian's Redis has the same patches.
    command = ["dpkg-source", "--no-check", "-x", str(dsc[-1]), str(unpacked)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=FETCH_SECONDS_MAX)
    for program in ("redis-server", "redis-cli", "redis-benchmark"):
        (unpacked / "src" / program).symlink_to(shutil.which(program))
    unpacked.rename(tree)
    return tree


def source_entries():
    """Returns apt sources for source packages, which are made from the system's sources for binary packages."""
    found = []
    for path in sorted(pathlib.Path("/etc/apt/sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            if re.search(r"^Types:.*\bdeb\b", stanza, re.M) and "debian.org" in stanza:
                found.append(re.sub(r"^Types:.*$", "Types: deb-src", stanza, flags=re.M).strip())
    for path in (pathlib.Path("/etc/apt/sources.list"), *sorted(pathlib.Path("/etc/apt/sources.list.d").glob("*.list"))):
        if path.is_file():
            for kind, options, rest in re.findall(r"^(deb)\s+(\[[^]]*\]\s+)?(\S*debian\S*\s.*)$", path.read_text(), re.M):
                words = rest.split()
                signed = re.search(r"signed-by=([^\s\]]+)", options)
                stanza = ["Types: deb-src", f"URIs: {words[0]}", f"Suites: {words[1]}", f"Components: {' '.join(words[2:])}"]
                found.append("\n".join(stanza + ([f"Signed-By: {signed[1]}"] if signed else [])))
    if not found:
        raise Trouble("the system's package lists name no Debian: Redis's own suite comes from its source package")
    return "\n\n".join(found) + "\n"


def version(tree):
    """Returns the version of the suite, with Debian's revision."""
    package = sorted((tree.parent / "package").glob("redis_*.dsc"))
    return package[-1].stem.removeprefix("redis_") if package else "?"


def units(tree):
    """Returns the units that can run against a server that they did not start."""
    listed = subprocess.run(
        ["tclsh", "tests/test_helper.tcl", "--list-tests"],
        cwd=tree,
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
        check=True,
    )
    # unit/cluster/* and integration/* start servers of their own, except the tests of these two programs.
    kept = ("integration/redis-cli", "integration/redis-benchmark")
    return [unit for unit in listed.stdout.split() if unit.startswith("unit/") or unit in kept]


class Unit:
    """One unit of the suite. The unit runs on Stacks that `make_stack(front)` returns. Results are {test: None or
    its output}."""

    def __init__(self, tree, name, make_stack, log, deadline):
        self.tree, self.name, self.make_stack, self.log, self.deadline = tree, name, make_stack, log, deadline

    def compare(self, is_expected):
        """Returns (results of Redis alone, results through the front).

        A failed test can make other tests fail, because it leaves a connection in MULTI, or a script that never ends.
        So a test that fails only through the front is run alone, unless its failure is expected. Then the other tests
        run again, without the tests that failed alone.
        """
        direct, front = self.run(False), self.run(True)
        culprits = {}
        for _ in range(PASSES_MAX):
            failed = [test for test in only_front(direct, front) if test not in culprits]
            if not failed or time.monotonic() > self.deadline:
                break
            found = {test: front.get(test) or "it did not run" for test in failed if is_expected(test)}
            for test in [test for test in failed if test not in found][:ALONE_MAX]:
                if time.monotonic() < self.deadline:
                    alone = self.run(True, only=test).get(test, "")
                    if alone is not None and self.run(False, only=test).get(test, "") is None:
                        found[test] = alone
            # A test that depends on other tests cannot be run alone. Before the first failing test, no test has failed,
            # so its result counts.
            found = found or {failed[0]: front.get(failed[0]) or "it did not run"}
            culprits.update(found)
            without = list(culprits)
            rest, reference = self.run(True, without=without), self.run(False, without=without)
            for test in direct:
                if test not in culprits and reference.get(test, "") is None:
                    front[test] = rest.get(test, "it did not run")
                elif test not in culprits and front.get(test, "") is not None and test in reference:
                    # The test depends on a test that was left out: it also fails with Redis alone if that test is left
                    # out.
                    front[test] = NOT_TOLD
        front.update(culprits)
        return direct, {test: said for test, said in front.items() if said != NOT_TOLD}

    def run(self, front, only=None, without=()):
        """Returns results of the whole unit, of one test, or of all except some tests. A hanging test is left out in
        the next attempt."""
        hung, results = [], {}
        for _ in range(HANGS_MAX):
            with self.make_stack(front) as stack:
                text = self.run_once(stack.port, front, only, [*without, *hung])
            results = read_outcomes(self.name, text)
            now = [f"{self.name}: {name}" for name in re.findall(r"=> \(IN PROGRESS\) (.*)", text)]
            now = [test for test in now if test not in hung]
            hung += now
            results.update((test, "it hangs") for test in hung)
            if not now or time.monotonic() > self.deadline:
                break
        return results

    def run_once(self, port, front, only, without):
        """Runs the suite, and returns its output."""
        for _ in range(START_TRIES):
            text = self.run_program(port, front, only, without)
            # Meanwhile another process took the server's port.
            if "[ready]" in text:
                break
        return text

    def run_program(self, port, front, only, without):
        seconds = max(5, min(UNIT_SECONDS_MAX, self.deadline - time.monotonic()))
        command = ["tclsh", "tests/test_helper.tcl", "--host", "127.0.0.1", "--port", str(port), "--tags", TAGS]
        command += [
            "--ignore-digest",
            "--durable",
            "--dont-clean",
            "--timeout",
            str(SILENT_SECONDS_MAX),
            "--single",
            self.name,
        ]
        # First port from which the suite searches for free ports. The suite also uses the ports that are higher by
        # 10,000. All these ports are below the range from which the system gives ports to clients.
        command += ["--baseport", str(random.randrange(11_000, 22_000, 64))]
        command += ["--only", self.title(only)] if only else []
        for test in without:
            command += ["--skiptest", self.title(test)]
        with open(f"{self.log}.{'front' if front else 'direct'}.log", "ab") as out:
            begin = out.tell()
            process = popen(
                command, cwd=self.tree, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment()
            )
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                out.write(f"\n[err]: did not end within {UNIT_SECONDS_MAX} s\n".encode())
            finally:
                end(process)
        with open(out.name, "rb") as out:
            out.seek(begin)
            return COLOURS.sub("", out.read().decode(errors="replace"))

    def title(self, test):
        """Returns the name that the suite itself uses for the test."""
        return re.sub(r" \(time \d+\)$", "", test.removeprefix(f"{self.name}: "))


# The suffix that distinguishes a name which occurred before in its unit.
AGAIN = " (time %d)"
NOT_TOLD = "it cannot be told"


def only_front(direct, front):
    """Returns the tests that pass on Redis alone and fail through the front, in their order."""
    return [test for test, said in direct.items() if said is None and front.get(test, "") is not None]


def environment():
    """Returns the environment without variables that would change the output of the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("REDISCLI_")}


def read_outcomes(unit, text):
    """Returns {test: None or its output}. A repeated name gets a number."""
    results, seen, said = {}, {}, None
    for line in text.splitlines():
        if line.strip() == "The End":
            break
        found = OUTCOME.match(line)
        if not found:
            if said is not None and line and not line.startswith("["):
                results[said] += "\n" + line
            else:
                said = None
            continue
        outcome, name = found.groups()
        said = None
        if outcome == "ok":
            name = re.sub(r" \(\d+ ms\)$", "", name)
        elif outcome == "err":
            name = re.sub(r" in tests/\S+\.tcl$", "", name)
        elif outcome == "exception":
            name = "ends with an exception"
        else:
            continue
        seen[name] = seen.get(name, 0) + 1
        key = f"{unit}: {name}" + (AGAIN % seen[name] if seen[name] > 1 else "")
        results[key] = None if outcome == "ok" else ""
        if outcome != "ok":
            said = key
            if outcome == "exception":
                results[key] = found[2]
    return results
