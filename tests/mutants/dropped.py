#!/usr/bin/env python3
"""Leaves out each check and each statement of a crate, one at a time. Reports the changes that no test notices.

cargo-mutants changes operators and values (`make cargo-mutants`), but never leaves out a check or a call. This program
does. generate.py defines the possible changes.

All changes of a crate are compiled into it at once, in a copy of the tree. A change takes effect only if an environment
variable has its number. So the crate is compiled once, and not once for each change. A change that does not compile is
left out and counted. Each change is tried with the crate's own tests, until one of them fails or does not end.

  tests/mutants/dropped.py pmnet-proto                   all changes of one crate
  tests/mutants/dropped.py pmnet-proto --only admission  the changes whose name contains this word
  tests/mutants/dropped.py pmnet-proto --shard 2/8       the second of eight parts of the changes
  tests/mutants/dropped.py pmnet-proto --list

The exit code is 1 if there is a survivor that is not in survivors.toml.
"""

import argparse
import collections
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import run
import survivors
from generate import Source

NUMBER = "PMNET_MUTANT"
# The switch reads the number once. The switch is part of the crate itself, because the crate and its tests have no
# other crate in common.
SWITCH = """
#[doc(hidden)]
pub fn mutant(number: u32) -> bool {
    static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| std::env::var("%s").map_or(0, |text| text.parse().expect("a number"))) == number
}
""" % NUMBER
# A change may leave a variable or an import unused, so warnings are permitted.
ALLOW = "#![allow(warnings)] "
BUILDS_MAX = 30
MEMORY_MAX = 8 << 30


def around(change, number):
    """Returns the texts that are put before and after a change, so that the change takes effect only if it is
    selected."""
    if change.kind == "bound":
        return "({ let value = ", " } })"
    if change.kind == "statement":
        return f"if !crate::mutant({number}) {{ ", " }"
    if change.to == "true":
        return f"(crate::mutant({number}) || (", "))"
    return f"(!crate::mutant({number}) && (", "))"


def woven(text, changes):
    """Inserts all these changes (number, change) into the text. Returns the text, and (start, end, number) of each
    change; inner changes come later."""
    inserts = []
    for number, change in changes:
        before, behind = around(change, number)
        # At one position, ends come before beginnings. The outer change begins first and ends last.
        inserts.append((change.start, 1, -change.end, number, before))
        inserts.append((change.end, 0, -change.start, number, behind))
        if change.kind == "bound":
            inserts.append((change.middle, 0, 0, 0, f"; if crate::mutant({number}) {{ value }} else {{ value"))
    parts, places, at, length = [], {}, 0, 0
    for place, _, _, number, insert in sorted(inserts):
        parts += [text[at:place], insert]
        length += place - at
        at = place
        if number == 0:
            length += len(insert)
        elif number in places:
            length += len(insert)
            places[number] = (*places[number], length)
        else:
            places[number] = (length,)
            length += len(insert)
    parts.append(text[at:])
    return "".join(parts), sorted((*span, number) for number, span in places.items())


def sources(folder):
    """Returns the crate's source files, without tests."""
    for path in sorted(folder.glob("src/**/*.rs")):
        if not run.is_test(path, folder) and path.parent.name != "bin":
            yield path


class Crate:
    """A crate in a copy of the tree. All its changes are compiled into it."""

    def __init__(self, package, tree, target):
        self.package, self.tree, self.target = package, tree, target
        self.folder = tree / "crates" / package.removeprefix("pmnet-")
        self.texts, self.changes, self.file_of = {}, {}, {}
        for path in sources(self.folder):
            text = path.read_text()
            self.texts[path] = text
            for change in Source(text).changes():
                number = len(self.changes) + 1
                self.changes[number], self.file_of[number] = change, path

    def name(self, number):
        return f"{self.file_of[number].relative_to(self.tree)}: {self.changes[number].name()}"

    def write(self, numbers):
        """Inserts the changes. Returns their positions by file."""
        by_file = collections.defaultdict(list)
        for number in numbers:
            by_file[self.file_of[number]].append((number, self.changes[number]))
        places = {}
        for path, text in self.texts.items():
            new, places[path] = woven(text, by_file[path])
            if path == self.folder / "src/lib.rs":
                new = ALLOW + new + SWITCH
                places[path] = [(start + len(ALLOW), end + len(ALLOW), number) for start, end, number in places[path]]
            if path.read_text() != new:
                path.write_text(new)
        return places

    def cargo(self, command, seconds):
        """Runs cargo. Returns (whether it succeeded, executables of tests, places of errors)."""
        command = ["cargo", *command, "--offline", "--locked", "-p", self.package, "--message-format", "json"]
        environment = dict(os.environ, CARGO_TARGET_DIR=str(self.target))
        done = subprocess.run(command, cwd=self.tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds)
        programs, errors = [], []
        for line in done.stdout.splitlines():
            message = json.loads(line)
            if message["reason"] == "compiler-artifact" and message.get("executable") and message["profile"]["test"]:
                programs.append(message["executable"])
            if message["reason"] == "compiler-message" and message["message"]["level"] == "error":
                spans = [span for span in message["message"]["spans"] if span["is_primary"]]
                errors += [(self.tree / span["file_name"], span["byte_start"], message["message"]["rendered"]) for span in spans]
        if done.returncode != 0 and not errors:
            sys.exit(f"does not compile, and not because of a change:\n{done.stderr[-3000:]}")
        return done.returncode == 0, programs, errors

    def blamed(self, errors, places):
        """Returns the changes to which an error belongs: the innermost change around it, or all changes of its
        function."""
        numbers = set()
        for path, at, said in errors:
            text = path.read_text()
            at = len(text.encode()[:at].decode())
            around_it = [(end - start, number) for start, end, number in places.get(path, []) if start <= at <= end]
            if around_it:
                numbers.add(min(around_it)[1])
                continue
            # The error is about a variable that a removed statement would have set. The error does not name the
            # statement.
            source = Source(text)
            body = next(((start, end) for start, end, _ in reversed(source.functions) if start - 400 <= at <= end), None)
            inside = [number for start, end, number in places.get(path, []) if body and body[0] <= start and end <= body[1]]
            if not inside:
                sys.exit(f"does not compile, and no change is to blame:\n{said}")
            numbers.update(inside)
        return numbers

    def build(self):
        """Builds the tests. Returns (test programs, numbers of the changes in them)."""
        numbers = set(self.changes)
        places = self.write(numbers)
        # `cargo check` comes first, because it finds most changes that do not compile, without generating code.
        for command in (["check", "--lib"], ["test", "--lib", "--tests", "--no-run"]):
            for _ in range(BUILDS_MAX):
                well, programs, errors = self.cargo(command, run.BUILD_SECONDS_MAX * 2)
                if well:
                    break
                numbers -= self.blamed(errors, places)
                places = self.write(numbers)
            else:
                sys.exit(f"does not compile after {BUILDS_MAX} times of leaving out what does not")
        return programs, sorted(numbers)


def limited(seconds):
    """Limits the CPU time and the memory of a test. CPU time does not depend on other load."""

    def set_limits():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    return set_limits


def tried(program, number, folder, seconds):
    """Runs a test program. Returns (exit code, or None if the program was ended; seconds of CPU time)."""
    environment = dict(os.environ, CARGO_MANIFEST_DIR=str(folder), RUST_BACKTRACE="0", **{NUMBER: str(number)})
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [program, "--test-threads", "2"], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, preexec_fn=limited(seconds),
    )
    try:
        # A test that only waits uses no CPU time, so the elapsed time is also limited. The limit is long, because other
        # programs may use all processors.
        code = process.wait(timeout=60 + 20 * seconds)
    except subprocess.TimeoutExpired:
        code = None
        os.killpg(process.pid, 9)
        process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return code, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="names that contain one of these words")
    parser.add_argument("--shard", metavar="K/N", default="1/1", help="every Nth, from the Kth on")
    parser.add_argument("--list", action="store_true", help="only list the changes")
    parser.add_argument("--target", metavar="DIR", help="where to build; kept (default: in the scratch directory)")
    parser.add_argument("--minutes", type=float, default=240, help="none is begun after so long, from the end of the build on")
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        scratch = pathlib.Path(scratch)
        tree = scratch / "tree"
        tree.mkdir()
        run.copy_tree(tree, False)
        crate = Crate(options.package, tree, pathlib.Path(options.target).resolve() if options.target else scratch / "target")
        part, parts = map(int, options.shard.split("/"))
        chosen = [number for number in crate.changes if not options.only or any(word in crate.name(number) for word in options.only)]
        chosen = chosen[part - 1 :: parts]
        if options.list:
            for number in chosen:
                print(crate.name(number))
            return 0
        programs, able = crate.build()
        print(f"{options.package}: {len(crate.changes)} changes, {len(crate.changes) - len(able)} do not compile; built in {time.monotonic() - begun:.0f} s", flush=True)
        # Without a change all tests must pass. Otherwise a failure would prove nothing. Fast tests run first.
        costs = []
        for program in programs:
            code, cost = tried(program, 0, crate.folder, 600)
            if code != 0:
                sys.exit(f"{program} fails without any change")
            costs.append((cost, program))
        begun = time.monotonic()
        results = {"caught": [], "survived": []}
        able = set(able)
        chosen = [number for number in chosen if number in able]
        costs.sort()
        left = 0
        for number in chosen:
            if time.monotonic() - begun > options.minutes * 60:
                left += 1
                continue
            verdict = "survived"
            for cost, program in costs:
                code, _ = tried(program, number, crate.folder, int(5 + 4 * cost))
                if code != 0:
                    verdict = "caught"
                    break
            results[verdict].append(crate.name(number))
            if verdict == "survived":
                print(f"survived  {crate.name(number)}", flush=True)
        print(f"{len(chosen) - left} of {len(crate.changes)} tried{f', no time for {left}' if left else ''}")
        return 1 if survivors.judge(options.package, results["caught"], results["survived"]) or left else 0


if __name__ == "__main__":
    sys.exit(main())
