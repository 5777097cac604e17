"""Reads the list of expected differences (expected.toml): the tests that fail only through the front, with reasons."""

import json
import pathlib
import re
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TABLE = HERE / "expected.toml"
DOCUMENTS = {
    name: f"docs/use/{name}.md"
    for name in ("limits", "commands", "transactions-and-scripts", "connections", "users-and-tls", "differences")
} | {"promise": "docs/concepts/promise.md"}
TEST_FIELDS = {"suite", "tests", "reason"}
RULE_FIELDS = {"name", "command", "direct", "front", "reason"}
# The fields that give a reason: a limit in a document, with a quotation; an artefact, if the test examines something
# that pmnet does not promise; or a known defect that must be fixed.
WHY_FIELDS = {"document", "quote", "artefact", "defect"}


class Wrong(Exception):
    """The list is invalid. The text has advice."""


class Expected:
    """The rows of the list. `test` rows are about tests of suites, and `difference` rows are about the differential
    tester."""

    def __init__(self, table=TABLE, server=None):
        """Selects the rows for `server`, a name in servers.py. Without a name, selects those for this machine's
        redis-server."""
        self.server = server
        with open(table, "rb") as file:
            self.rows = tomllib.load(file)
        unknown = self.rows.keys() - {"test", "difference"}
        if unknown:
            raise Wrong(f"{table.name}: nobody reads [[{min(unknown)}]]: name it test or difference")
        self.tests, self.rules = self.rows.get("test", []), self.rows.get("difference", [])
        for row in self.tests:
            check(row, TEST_FIELDS, {"servers"})
        for row in self.rules:
            check(row, RULE_FIELDS, {"goes_on", "same_but", "rare", "in_exec", "servers"})
        self.tests, self.rules = ([row for row in rows if self.concerns(row)] for rows in (self.tests, self.rules))

    def concerns(self, row):
        """Returns whether a row applies to this server. A row without `servers` applies to all servers."""
        return "servers" not in row or any(fits(self.server or "redis-server", name) for name in row["servers"])

    def own(self, rows):
        """Returns the rows that a run with this server must need. For a server other than this machine's, these are
        only the rows that name the server."""
        return [row for row in rows if self.server is None or "servers" in row]

    def why(self, suite, test):
        """Returns the row for a test that fails only through the front; None if there is none."""
        for row in self.tests:
            if row["suite"] == suite and any(fits(test, pattern) for pattern in row["tests"]):
                return row
        return None

    def rule_for(self, command, left, right, in_exec=False):
        """Returns the row for two replies that differ; None if there is none. The replies are texts in the form of
        resp.show."""
        for rule in self.rules:
            if rule.get("in_exec") and not in_exec:
                continue
            if (
                not re.fullmatch(rule["command"], command, re.I | re.S)
                or not fits(left, rule["direct"])
                or not fits(right, rule["front"])
            ):
                continue
            if "same_but" not in rule or re.sub(rule["same_but"], "", left) == re.sub(rule["same_but"], "", right):
                return rule
        return None


def fits(text, pattern):
    """Returns whether the text matches the pattern. In the pattern, * stands for any characters; no other character
    is special."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.S) is not None


def check(row, needed, optional):
    """Raises an error if a row is invalid, or if its quotation is not in its document."""
    name = row.get("name") or row.get("reason") or str(row)
    missing, unknown = needed - row.keys(), row.keys() - needed - optional - WHY_FIELDS
    if missing or unknown:
        raise Wrong(f"expected.toml, {name}: give it {sorted(missing)}, delete {sorted(unknown)}")
    if ("quote" in row) + ("artefact" in row) + ("defect" in row) != 1:
        raise Wrong(f"expected.toml, {name}: give it a document and a quote, or artefact = true, or defect = true")
    if "quote" in row:
        document = DOCUMENTS.get(row.get("document"))
        if document is None:
            raise Wrong(f"expected.toml, {name}: document is one of {', '.join(DOCUMENTS)}")
        if words(row["quote"]) not in words((ROOT / document).read_text()):
            raise Wrong(f"expected.toml, {name}: {document} does not say “{row['quote']}” any more: is the limit gone?")


def words(text):
    """Returns the text with blanks instead of line breaks."""
    return " ".join(text.split())


def without(text, tests, rules):
    """Returns the text of the list without these tests, given as (suite, pattern), and without these rules."""
    blocks = re.split(r"^(?=\[\[)", text, flags=re.M)
    kept = blocks[:1]
    for block in blocks[1:]:
        rows = tomllib.loads(block)
        if "difference" in rows:
            if rows["difference"][0]["name"] not in rules:
                kept.append(block)
            continue
        row = rows["test"][0]
        left = [pattern for pattern in row["tests"] if (row["suite"], pattern) not in tests]
        gone = [json.dumps(pattern, ensure_ascii=False) for pattern in row["tests"] if pattern not in left]
        if left:
            kept.append("".join(line for line in block.splitlines(True) if line.strip().rstrip(",") not in gone))
    return "".join(kept)
