"""Compares the list of explained survivors with the results of a run.

survivors.toml has one row for each explained survivor:

  package  the crate
  mutant   its name, without line and column
  count    the number of survivors with this name, if there is more than one (cargo-mutants may give several mutants
           one name)
  why      why no test notices it: it changes nothing, or only times; or what a test would need

Usage: tests/mutants/survivors.py PACKAGE OUTCOMES     OUTCOMES: the file mutants.out/outcomes.json of `cargo mutants`
"""

import collections
import json
import pathlib
import re
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
LIST = HERE / "survivors.toml"
FIELDS = {"package", "mutant", "count", "why"}


def explained():
    """Returns all rows. Ends the program if a row is invalid."""
    rows = tomllib.loads(LIST.read_text()).get("survivor", [])
    wrong = [row for row in rows if row.keys() | {"count"} != FIELDS or not row["why"].strip()]
    twice = [key for key, times in collections.Counter((row["package"], row["mutant"]) for row in rows).items() if times > 1]
    if wrong or twice:
        sys.exit(f"{LIST.name}: each row has package, mutant and why, may have count, and is there once: {wrong or twice}")
    return rows


def judge(package, caught, survived):
    """Prints the differences between the list and a run. Returns whether there is a survivor without an
    explanation.

    Both arguments are lists of names. A row is not reported if the run did not try its mutant, because the run may
    have been partial."""
    have = collections.Counter(survived)
    rows = {row["mutant"]: row for row in explained() if row["package"] == package}
    unexplained = False
    for name, times in sorted(have.items()):
        allowed = rows[name].get("count", 1) if name in rows else 0
        if times > allowed:
            unexplained = True
            print(f"survived, and not explained ({times} of this name, {allowed} in {LIST.name}): {name}")
    for name, row in rows.items():
        if have[name] < row.get("count", 1) and name in set(caught) | set(have):
            print(f"explained as a survivor and caught ({have[name]} survive now): delete that, or lower its count: {name}")
    print(
        f"{len(caught)} caught, {len(survived)} survived, of these {sum(have[name] for name in rows)} explained in {LIST.name}"
    )
    return unexplained


def of_cargo_mutants(outcomes):
    """Returns (caught, survived, unviable), each with names without line and column."""
    found = {"caught": [], "survived": [], "unviable": []}
    kinds = {"CaughtMutant": "caught", "Timeout": "caught", "MissedMutant": "survived", "Unviable": "unviable"}
    for outcome in json.loads(pathlib.Path(outcomes).read_text())["outcomes"]:
        if outcome["scenario"] != "Baseline" and outcome["summary"] in kinds:
            name = re.sub(r":\d+:\d+:", ":", outcome["scenario"]["Mutant"]["name"], count=1)
            found[kinds[outcome["summary"]]].append(name)
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    found = of_cargo_mutants(sys.argv[2])
    print(f"{len(found['unviable'])} do not compile")
    return 1 if judge(sys.argv[1], found["caught"], found["survived"]) else 0


if __name__ == "__main__":
    sys.exit(main())
