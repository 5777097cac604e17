#!/usr/bin/env python3
"""Changes the source at one place at a time, and checks whether a test notices the change.

This program is for changes that no tool makes by itself: changes of the C code of the pipeline, of flushes, of the
order of two persists, and of numbers. cargo-mutants changes operators, values and match arms (`make cargo-mutants`),
and dropped.py leaves out checks and statements (`make dropped`). Changes of these kinds need no row.

The tables (*.toml in this folder) have one row for each mutant:

  name       what the source lacks with this change
  in         the file that is changed; or a folder, if the text may be in any of its files
  function   the function with the text; only needed if other functions have the text too
  from, to   the text that is replaced, which must occur exactly once, and its replacement; spaces and line ends
             do not count
  tests      names of COMMANDS, tried one after the other until one of them fails
  explained  only for a mutant that no test notices: why this is right, or what a test would need

`from` should be as short as possible: one statement, without the statements around it.

A copy of the tree is made once, in a scratch directory. The tree itself is never changed. Before anything runs, all
rows are checked: a row whose text does not occur exactly once would test nothing. If a mutant does not compile, or its
tests do not end in time, this is an error of its row, and the mutant does not count as caught. The last line is

  N caught, N survived, N errors

The exit code is 1 if there is an error, or a survivor without an explanation.

  tests/mutants/run.py                       all mutants
  tests/mutants/run.py --only repair         the mutants whose name contains this word
  tests/mutants/run.py --sample 20 --seed 1  this number of mutants, at random
  tests/mutants/run.py --list
  tests/mutants/run.py --check               only checks that the tables fit the tree; a part of make lint
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib

import survivors
from generate import Source

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# For each name: the command that builds a test, the command that runs it, and the time limit in seconds.
COMMANDS = {
    "format": (
        "cargo test --offline -p pmnet-log --lib --test format --test failures --no-run",
        "cargo test --offline -p pmnet-log --lib --test format --test failures",
        240,
    ),
    "enumerate": (
        "cargo test --offline -p pmnet-log --test enumerate --no-run",
        "cargo test --offline -p pmnet-log --test enumerate",
        240,
    ),
    "sim-slots": (
        "cargo test --offline -p pmnet-sim --test sim --no-run",
        "cargo test --offline -p pmnet-sim --test sim -- slots::",
        240,
    ),
    "slots": (
        "cargo test --offline -p pmnet-log --test slots --no-run",
        "cargo test --offline -p pmnet-log --test slots",
        240,
    ),
    "log": ("cargo test --offline -p pmnet-log --no-run", "cargo test --offline -p pmnet-log", 240),
    # The tests of the next three rows need root and clang.
    "kernel-hops": (
        "cargo test --offline --release -p pmnet-dataplane --test kernel --no-run",
        "cargo test --offline --release -p pmnet-dataplane --test kernel -- chain:: hold:: erase:: --test-threads=1",
        240,
    ),
    "kernel-lease": (
        "cargo test --offline --release -p pmnet-dataplane --test kernel --no-run",
        "cargo test --offline --release -p pmnet-dataplane --test kernel lease:: -- --test-threads=1",
        240,
    ),
    "kernel-several": (
        "cargo test --offline --release -p pmnet-dataplane --test kernel --no-run",
        "env PMNET_PACKETS=16000 cargo test --offline --release -p pmnet-dataplane --test kernel -- several:: attach:: --test-threads=1",
        240,
    ),
    "media": ("cargo test --offline -p pmnet-media --no-run", "cargo test --offline -p pmnet-media", 240),
    "packet-store": (
        "cargo test --offline -p pmnet-packet-store --no-run",
        "cargo test --offline -p pmnet-packet-store",
        240,
    ),
    "tail": ("cargo test --offline -p pmnet-tail --no-run", "cargo test --offline -p pmnet-tail", 240),
    "proto": ("cargo test --offline -p pmnet-proto --no-run", "cargo test --offline -p pmnet-proto", 240),
    "wire": ("cargo test --offline -p pmnet-wire --lib --no-run", "cargo test --offline -p pmnet-wire --lib", 240),
    "verbs": ("cargo test --offline -p pmnet-verbs --lib --no-run", "cargo test --offline -p pmnet-verbs --lib", 240),
    "fleet-hand": (
        "cargo test --offline -p pmnet-fleet --lib --no-run",
        "cargo test --offline -p pmnet-fleet --lib hand::",
        240,
    ),
    # These tests need redis-server.
    "store-fence": (
        "cargo test --offline -p pmnet-store --test store --no-run",
        "cargo test --offline -p pmnet-store --test store fence::",
        240,
    ),
    "sim": (
        "cargo build --offline --release -p pmnet-sim",
        "cargo run --offline --release -p pmnet-sim -- --seeds 3000",
        900,
    ),
}
BUILD_SECONDS_MAX = 900
FIELDS = {"name", "in", "function", "from", "to", "tests", "explained"}
OPTIONAL = {"function", "explained"}


def rows():
    """Returns all rows of all tables."""
    found = []
    for table in sorted(set(HERE.glob("*.toml")) - {survivors.LIST}):
        with open(table, "rb") as file:
            found += tomllib.load(file)["mutant"]
    return found


def wrong_form(row):
    """Returns the fault of an invalid row, with advice."""
    missing, unknown = FIELDS - OPTIONAL - row.keys(), row.keys() - FIELDS
    if missing:
        return f"give it {' and '.join(sorted(missing))}"
    if unknown:
        return f"nobody reads {' and '.join(sorted(unknown))}: delete that"
    if not row["tests"] or set(row["tests"]) - COMMANDS.keys():
        return f"name the tests that are to notice it, among {', '.join(COMMANDS)}"
    return None


def is_test(path, home):
    """Returns whether a file of this folder is a test. Tests are not part of the product."""
    return path.stem.endswith("tests") or "tests" in path.relative_to(home).parts


def places(row, tree):
    """Returns (file, start, end) of each occurrence of the row's text."""
    home = tree / row["in"]
    for path in [home] if home.is_file() else sorted(home.rglob("*.rs")):
        if home.is_dir() and is_test(path, home):
            continue
        text = path.read_text()
        found = [match.span() for match in pattern(row["from"]).finditer(text)]
        if found and "function" in row:
            source = Source(text)
            found = [span for span in found if source.function_at(span[0]) == row["function"]]
        yield from ((path, *span) for span in found)


def wrong_text(row, tree):
    """Returns the fault of a row that does not fit the tree, with advice."""
    if not (tree / row["in"]).exists():
        return f"there is no {row['in']}: find with `git log --follow` where it went, and name that"
    if not tokens(row["from"]):
        return "`from` is empty: name the text that is replaced"
    if tokens(row["from"]) == tokens(row["to"]):
        return "`to` is the same as `from`: leave out what the row is named for"
    where = row["in"] + (f", function {row['function']}" if "function" in row else "")
    found = len(list(places(row, tree)))
    if found == 0:
        return (
            f"its text is not in {where} any more: write `from` and `to` anew for how the check is written now, or, if "
            "there is no such check any more, delete the row and say why in the commit message"
        )
    if found > 1:
        return f"its text is {found} times in {where}: name the file in `in`, or the `function`, or more of the text"
    return None


def complaints(found, tree):
    """Returns one sentence for each invalid row."""
    names, changes = set(), {}
    for row in found:
        name = row.get("name", f"a row without a name: {row}")
        wrong = wrong_form(row)
        if wrong is None and name in names:
            wrong = "another row has this name: choose another one"
        if wrong is None:
            wrong = wrong_text(row, tree)
        if wrong is None:
            change = (row["in"], row.get("function"), *tokens(row["from"]), None, *tokens(row["to"]))
            if change in changes:
                wrong = f"{changes[change]} is the same change: delete one of them"
            changes[change] = name
        names.add(name)
        if wrong is not None:
            yield f"{name}: {wrong}"


def stop_if_wrong(found, tree):
    """If there are invalid rows, ends the program with a sentence about each."""
    wrong = list(complaints(found, tree))
    if wrong:
        sys.exit("\n".join([*wrong, f"{len(wrong)} of {len(found)} rows in {HERE.relative_to(ROOT)}/*.toml are wrong"]))


def tokens(text):
    """Returns the words and signs of the text, without its layout."""
    return re.findall(r"\w+|[^\w\s]", text)


def pattern(text):
    """Returns a pattern that matches the text in any layout."""
    found = tokens(text)
    parts = [re.escape(found[0])]
    for before, token in zip(found, found[1:]):
        both_words = re.match(r"\w", before) and re.match(r"\w", token)
        parts.append((r"\s+" if both_words else r"\s*") + re.escape(token))
    return re.compile("".join(parts))


def copy_tree(to, committed):
    """Copies the tracked files and the new files, in their present or in their committed state."""
    if committed:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-m", "-C", to], input=archive.stdout, check=True)
        return
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    for name in filter(None, names.decode().split("\0")):
        source = ROOT / name
        if source.is_file():
            target = to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            # The copies get the present time, because the target directory may have been built from older files.
            shutil.copy(source, target)


def run(command, tree, target, seconds, log):
    """Runs a command, with its output in `log`. Returns the exit code, or None after the time limit."""
    environment = dict(
        os.environ,
        CARGO_TARGET_DIR=str(target),
        # Each mutant is compiled, so a fast build is more important than a fast program.
        CARGO_PROFILE_RELEASE_LTO="off",
        CARGO_PROFILE_RELEASE_DEBUG="0",
        CARGO_PROFILE_DEV_DEBUG="0",
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS="16",
        CARGO_INCREMENTAL="1",
        RUST_BACKTRACE="0",
    )
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command.split(), cwd=tree, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def noticed_by(log):
    """Returns the names of the first failed tests, as far as the output has them."""
    text = pathlib.Path(log).read_text(errors="replace")
    failed = re.findall(r"^test (\S+) ... FAILED$", text, re.MULTILINE)
    return ", ".join(failed[:3]) or "its exit code"


def judge(row, tree, target, log):
    """Tries one mutant, and restores the file. Returns (verdict, detail)."""
    [(path, start, end)] = places(row, tree)
    before = path.read_text()
    path.write_text(before[:start] + row["to"] + before[end:])
    try:
        for test in row["tests"]:
            build, command, seconds = COMMANDS[test]
            if run(build, tree, target, BUILD_SECONDS_MAX, log) != 0:
                return "error", f"does not compile ({test})"
            code = run(command, tree, target, seconds, log)
            if code is None:
                return "error", f"{test} did not end within {seconds} s"
            if code != 0:
                return "caught", f"{test}: {noticed_by(log)}"
        return "survived", row.get("explained", "NOT EXPLAINED")
    finally:
        path.write_text(before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="names that contain one of these words")
    parser.add_argument("--sample", type=int, metavar="N", help="only so many of them, at random")
    parser.add_argument("--seed", type=int, default=1, help="which ones those are")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--check", action="store_true", help="only check the tables against the tree")
    parser.add_argument("--skip", action="append", default=[], metavar="TEST", help="leave out these tests")
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    parser.add_argument("--committed", action="store_true", help="the tree as it was committed last")
    parser.add_argument("--target", metavar="DIR", help="where to build; kept (default: in the scratch directory)")
    parser.add_argument("--minutes", type=float, default=240, help="no mutant is begun after so long; those left are errors")
    options = parser.parse_args()
    every = rows()
    if options.check:
        stop_if_wrong(every, ROOT)
        print(f"{len(every)} mutants: the text of each is there, once; {len(survivors.explained())} survivors of other tools explained")
        return 0
    chosen = [row for row in every if not options.only or any(word in row.get("name", "") for word in options.only)]
    if options.sample:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    for row in chosen:
        row["tests"] = [test for test in row["tests"] if test not in options.skip]
    if options.list:
        for row in chosen:
            print(f"{row['name']:60} {row['in']:30} {' '.join(row['tests'])}")
        return 0
    if not chosen:
        sys.exit("no mutant has such a name")

    # On SIGTERM this program ends its processes, and removes its scratch directory.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    end = time.monotonic() + options.minutes * 60
    results = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        scratch = pathlib.Path(scratch)
        tree, log = scratch / "tree", scratch / "log"
        target = pathlib.Path(options.target).resolve() if options.target else scratch / "target"
        tree.mkdir()
        copy_tree(tree, options.committed)
        stop_if_wrong(every, tree)
        # Without a mutant all tests must pass. Otherwise a failure would prove nothing.
        for test in sorted({test for row in chosen for test in row["tests"]}):
            build, command, seconds = COMMANDS[test]
            if run(build, tree, target, BUILD_SECONDS_MAX, log) != 0 or run(command, tree, target, seconds, log) != 0:
                sys.stderr.write(log.read_text(errors="replace")[-4000:])
                sys.exit(f"{test} fails without any mutant: see above")
            print(f"{'no mutant':60} passes    {test}", flush=True)
        for row in chosen:
            if time.monotonic() < end:
                begun = time.monotonic()
                verdict, detail = judge(row, tree, target, log)
                seconds = round(time.monotonic() - begun)
            else:
                verdict, detail, seconds = "error", "not tried: no time left", 0
            if verdict == "error" and log.is_file():
                sys.stderr.write("".join(f"    | {line}\n" for line in log.read_text(errors="replace").splitlines()[-15:]))
            if verdict == "caught" and "explained" in row:
                detail += " (explained as a survivor: delete that)"
            results.append({"name": row["name"], "verdict": verdict, "detail": detail, "seconds": seconds})
            print(f"{row['name']:60} {verdict:9} {detail}", flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    count = {verdict: sum(r["verdict"] == verdict for r in results) for verdict in ("caught", "survived", "error")}
    explained = {row["name"] for row in chosen if "explained" in row}
    unexplained = [r["name"] for r in results if r["verdict"] == "survived" and r["name"] not in explained]
    if unexplained:
        print("survived and not explained: " + ", ".join(unexplained))
    print(f"{count['caught']} caught, {count['survived']} survived, {count['error']} errors")
    return 1 if count["error"] or unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
