"""Makes mutants that cargo-mutants does not make: checks whose result is ignored, and statements that are left out.

This module parses only the parts of Rust that it needs: comments, strings and brackets, functions, `&&` and `||`,
`if`, and the ends of statements. If the module parses a position wrongly, the change does not compile, and is counted.

  kind       what is changed
  check      an operand of && becomes true, and an operand of || becomes false. A whole && becomes false, and so does
             the condition of an if or of .then; a condition without operators also becomes true. The condition of a
             search (filter, find, any …) becomes true or false
  bound      .min(…) or .max(…) is left out
  statement  a call or an assignment is left out, except += and similar ones (cargo-mutants changes these)
"""

import bisect
import collections
import re
from dataclasses import dataclass, replace

KINDS = frozenset({"check", "bound", "statement"})
OPEN, CLOSE = "([{", ")]}"
# The first words of statements that are neither calls nor assignments.
OTHER = re.compile(r"(?:let|return|break|continue|use|const|static|type|fn|pub|if|for|while|loop|match|unsafe|mod|impl|else|struct|enum|trait|extern)\b|#|\w+!|'")
# A `let` in a condition; and the words that can stand before a condition, or before an operand.
LET = r"(?:\bif|\bwhile|&&)\s+let\b"
BEFORE = re.compile(r"\b(?:if|while|return|match|in|else|move)$")


@dataclass(frozen=True)
class Change:
    """One change of a text: the part between start and end is replaced."""

    function: str
    kind: str
    start: int
    end: int
    to: str
    what: str
    # For a bound, the end of the value that is limited.
    middle: int = 0

    def name(self):
        return f"{self.function}: {self.what}"

    def of(self, text):
        return text[: self.start] + self.to + text[self.end :]


def masked(text):
    """Returns the text with all characters of comments, strings and character literals replaced by a blank (in
    strings by an x)."""
    token = re.compile(
        r'(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<raw>b?r(#*)".*?"\3)|(?P<string>b?"(?:\\.|[^"\\])*")|(?P<character>b?\'(?:\\[^\']*|[^\'\\])\')',
        re.DOTALL,
    )

    def blank(found):
        filling = " " if found.group("comment") else "x"
        return "".join(one if one == "\n" else filling for one in found.group())

    return token.sub(blank, text)


def pairs(text):
    """Returns the position of the counterpart of each bracket."""
    other, open_ones = {}, []
    for at, one in enumerate(text):
        if one in OPEN:
            open_ones.append(at)
        elif one in CLOSE and open_ones:
            begin = open_ones.pop()
            other[begin], other[at] = at, begin
    return other


def spans(text, other, head):
    """Returns (name, start, end) of each body in braces that follows a match of `head`."""
    for found in re.finditer(head, text):
        at = found.end()
        while at < len(text) and text[at] not in "{;":
            at = other.get(at, at) + 1 if text[at] in "([" else at + 1
        if at < len(text) and text[at] == "{" and at in other:
            yield found.groups()[-1] if found.groups() else "", at, other[at]


class Source:
    """A Rust file, with the possible changes in it."""

    def __init__(self, text):
        self.text = text
        self.masked = masked(text)
        self.other = pairs(self.masked)
        self.functions = sorted((start, end, name) for name, start, end in spans(self.masked, self.other, r"\bfn\s+(\w+)"))
        self.starts = [start for start, _, _ in self.functions]
        # The tables of the protocol are constants that contain functions.
        self.constants = [
            (found.end(), self.after(found.end(), False), found.group(1))
            for found in re.finditer(r"\b(?:const|static)\s+(\w+)\s*:[^=;{]*=", self.masked)
        ]
        # Tests are not part of the product, so they are left out.
        self.left_out = [(start, end) for _, start, end in spans(self.masked, self.other, r"#\[cfg\(test\)\]()")]

    def function_at(self, at):
        """Returns the innermost function around the position, if it is part of the product."""
        if any(start <= at < end for start, end in self.left_out):
            return None
        for number in range(bisect.bisect(self.starts, at) - 1, -1, -1):
            start, end, name = self.functions[number]
            if start < at < end:
                return name
        return next((name for start, end, name in self.constants if start <= at < end), None)

    def before(self, at, stop_at_and):
        """Returns the start of the operand that ends before `at`; None if it is the right side of an `if let`."""
        text = self.masked
        while at > 0:
            one = text[at - 1]
            if one in ")]" and at - 1 in self.other:
                at = self.other[at - 1]
                continue
            two = text[at - 2 : at]
            field = one == ":" and text[at - 2] != ":" and text[at] != ":"
            if field or one in "([{},;|" or (two == "&&" and stop_at_and):
                return at
            if two == "=>":
                return at
            if two in ("==", "!=", "<=", ">="):
                at -= 2
                continue
            if one == "=":
                return None if re.search(LET + r"[^;=]*$", text[max(0, at - 400) : at - 1]) else at
            if BEFORE.search(text[max(0, at - 8) : at]) and not re.match(r"\w", text[at]):
                return at
            at -= 1
        return at

    def after(self, at, stop_at_and):
        """Returns the end of the operand that begins at `at`."""
        text = self.masked
        while at < len(text):
            one = text[at]
            if one in "([" and at in self.other:
                at = self.other[at] + 1
                continue
            two = text[at : at + 2]
            if one in "{})];," or two == "||" or two == "=>" or (two == "&&" and stop_at_and):
                return at
            at += 1
        return at

    def change(self, kind, start, end, to, label):
        """Returns the change of this part, without the blanks around it, if the part is in a function."""
        while start < end and self.masked[start].isspace():
            start += 1
        while end > start and self.masked[end - 1].isspace():
            end -= 1
        function = self.function_at(start)
        if function is None or start == end:
            return None
        plain = "".join(one if kept != " " or one.isspace() else " " for one, kept in zip(self.text[start:end], self.masked[start:end]))
        return Change(function, kind, start, end, to, f"{label} {' '.join(plain.split())}")

    def operands(self):
        for found in re.finditer(r"&&|\|\|", self.masked):
            before = self.masked[: found.start()].rstrip()
            # The two characters are not an operator, but belong to a closure without arguments, or to a reference to a
            # reference.
            if not re.search(r"[\w)\]?]$", before) or BEFORE.search(before[-8:]):
                continue
            is_and = found.group() == "&&"
            for start, end in (
                (self.before(found.start(), is_and), found.start()),
                (found.end(), self.after(found.end(), is_and)),
            ):
                if start is not None and not re.match(r"\s*let\b", self.masked[start:end]):
                    yield self.change("check", start, end, "true" if is_and else "false", "without")
                    # A condition with a `let` cannot become false as a whole, because its name would then be unknown.
                    if is_and and re.search(LET + r"[^;]*$", self.masked[max(0, found.start() - 400) : found.start()]):
                        yield self.change("check", start, end, "false", "never")
            start, end = self.before(found.start(), False), self.after(found.end(), False)
            if is_and and start is not None and not re.search(r"\blet\b", self.masked[start:end]):
                yield self.change("check", start, end, "false", "never")

    def conditions(self):
        for found in re.finditer(r"\bif\s", self.masked):
            end = self.after(found.end(), False)
            while self.masked[end : end + 2] == "||":
                end = self.after(end + 2, False)
            condition = self.masked[found.end() : end]
            # cargo-mutants changes the conditions of match arms. In a condition with ||, each operand is left out
            # separately.
            if self.masked[end : end + 1] != "{" or re.search(r"\blet\b", condition) or "||" in condition:
                continue
            yield self.change("check", found.end(), end, "false", "never if")
            if "&&" not in condition:
                yield self.change("check", found.end(), end, "true", "always if")

    def choices(self):
        for found in re.finditer(r"\s*\.then(?:_some)?\(", self.masked):
            start = self.before(found.start(), True)
            if start is None:
                continue
            condition = self.masked[start : found.start()]
            yield self.change("check", start, found.start(), "false", "never")
            if "&&" not in condition and "||" not in condition:
                yield self.change("check", start, found.start(), "true", "always")

    def filters(self):
        head = r"\.(filter|find|position|take_while|skip_while|retain|pop_front_if|all|any|is_some_and)\(\s*(?:move\s*)?\|[^|]*\|"
        for found in re.finditer(head, self.masked):
            anyway = found.group(1) in ("any", "is_some_and")
            end = self.after(found.end(), False)
            body = self.masked[found.end() : end]
            if self.masked[end : end + 1] in "),}" and "&&" not in body:
                yield self.change("check", found.end(), end, "false", f"{found.group(1)} nothing, not")
                if not anyway:
                    yield self.change("check", found.end(), end, "true", f"{found.group(1)} anything, not only")

    def bounds(self):
        for found in re.finditer(r"\s*\.(?:min|max)\((?=[^)])", self.masked):
            start = found.start()
            while start > 0 and self.masked[start - 2 : start] != ".." and (re.match(r"[\w.:?)\]]", self.masked[start - 1]) or re.match(r"\s+\.", self.masked[start - 1 :])):
                start = self.other.get(start - 1, start - 1)
            start += len(re.match(r"\s*", self.masked[start:]).group())
            end = self.other[found.end() - 1] + 1
            function = self.function_at(start)
            if function is not None and start < found.start():
                what = " ".join(self.text[start:end].split())
                to = self.text[start : found.start()]
                yield Change(function, "bound", start, end, to, f"without the bound of {what}", found.start())

    def statements(self):
        for found in re.finditer(r"(?<=[{};])\s*(?=[\w*(])", self.masked):
            start = end = found.end()
            while end < len(self.masked) and self.masked[end] not in ";,})]":
                end = self.other.get(end, end) + 1 if self.masked[end] in OPEN else end + 1
            body = self.masked[start:end]
            if self.masked[end : end + 1] != ";" or OTHER.match(body) or "=>" in body:
                continue
            if re.search(r"[-+*/&^%]=(?!=)|<<=|>>=", body):
                continue
            if body.endswith(")") or body.endswith("?") or re.search(r"(?<![=!<>])=(?!=)", body):
                yield self.change("statement", start, end + 1, "", "without")

    def changes(self, kinds=KINDS):
        """Returns all changes of these kinds, each once, in the order of the text."""
        found = {}
        every = []
        if "bound" in kinds:
            every += self.bounds()
        if "check" in kinds:
            every += [*self.operands(), *self.conditions(), *self.choices(), *self.filters()]
        if "statement" in kinds:
            every += self.statements()
        for change in filter(None, every):
            found.setdefault((change.start, change.end, change.to), change)
        names = collections.Counter()
        for place in sorted(found):
            change = found[place]
            names[change.name()] += 1
            number = names[change.name()]
            found[place] = change if number == 1 else replace(change, what=f"{change.what} (number {number})")
        return [found[place] for place in sorted(found)]
