#!/usr/bin/env python3
"""Sends the same random commands to a Redis, and to a Redis behind pmnet. Compares all replies byte by byte.

An episode has a few hundred commands. An episode begins with an empty database and a new connection. The commands are
sent in pipelines of random length, some of them inside MULTI. The seed and the number determine an episode. The first
reply that differs ends the episode. The tester then removes as many commands as possible while the difference still
occurs.

  tests/compat/differ.py --replies 20000 --seed 7
  tests/compat/differ.py --seed 7 --episode 12        one episode again
  tests/compat/differ.py --itself                     two Redis: nothing may differ
"""

import argparse
import itertools
import json
import pathlib
import random
import re
import signal
import sys
import time

from expected import Expected, Wrong
from grammar import LIBRARY, Grammar, mode, populate
from progress import Bar
from resp import Client, exchange, request, show, spell
from stack import MACHINE_REDIS, Stack, Trouble, binary_path

COMMANDS_IN_EPISODE = 250
# Deadline in seconds for the replies of one pipeline. This deadline is longer than the front's own deadline, after
# which the front answers with an error.
ANSWER_SECONDS_MAX = 20
# Maximum number of attempts to remove commands from one difference, and the time limit for them in seconds.
SHRINK_TRIES_MAX = 120
SHRINK_SECONDS_MAX = 15
# Maximum number of kinds of differences that are reduced. Further kinds are only counted.
KINDS_MAX = 200
# Maximum number of characters of a reply that rules examine and that --json prints.
SHOWN_MAX = 2000
RESET = [[b"FLUSHALL"], [b"SCRIPT", b"FLUSH"], [b"FUNCTION", b"FLUSH"]]
# Maximum number of commands that are shown of a difference that could not be reduced.
SHOWN_COMMANDS_MAX = 25
NEAR_MAX = 6000


class Steps:
    """An episode: its commands, in pipelines, and the protocol of its connection."""

    def __init__(self, protocol, pipelines):
        self.protocol, self.pipelines = protocol, pipelines

    def commands(self):
        """Returns all commands, in order."""
        return [command for pipeline in self.pipelines for command in pipeline]


def episode(grammar, seed, number):
    """Returns the episode with this number."""
    rng = random.Random(f"{seed}/{number}")
    protocol = rng.choice((2, 3))
    commands = [populate(rng) for _ in range(20)]
    while len(commands) < COMMANDS_IN_EPISODE:
        roll = rng.random()
        if roll < 0.05:
            commands += transaction(grammar, rng)
        elif roll < 0.06:
            commands += [[b"FUNCTION", b"LOAD", b"REPLACE", LIBRARY]]
        else:
            commands += with_aftermath(grammar.command(rng))
    pipelines = []
    while commands:
        length = rng.choice((1, 1, 2, 5, 20, 60))
        pipelines.append(commands[:length])
        del commands[:length]
    return Steps(protocol, pipelines)


def transaction(grammar, rng):
    """Returns MULTI, random commands and EXEC; sometimes with WATCH before them, or with DISCARD at the end."""
    body = []
    for _ in range(rng.choice((0, 1, 2, 3, 6))):
        body += with_aftermath(grammar.command(rng))
    before = [[b"WATCH", rng.choice((b"s1", b"none", b"h1"))]] if rng.random() < 0.2 else []
    if before and rng.random() < 0.5:
        before += with_aftermath(grammar.command(rng))
    return before + [[b"MULTI"], *body, [rng.choice((b"EXEC",) * 9 + (b"DISCARD",))]]


def with_aftermath(command):
    """Returns the command, and perhaps a second command. If the command removes or keeps random elements, the
    second command deletes the key, because the remaining data would differ. If the command may let a key expire,
    the second command reads the key, because Redis counts an expired key until a client reads it."""
    words = [word.upper() for word in command]
    if len(command) > 1 and (words[0] in (b"SPOP", b"ZREMRANGEBYLEX") or words[0] == b"ZRANGESTORE" and b"BYLEX" in words):
        return [command, [b"DEL", command[1]]]
    if len(command) > 1 and (words[0] in (b"EXPIREAT", b"PEXPIREAT") or b"EXAT" in words or b"PXAT" in words):
        return [command, [b"TYPE", command[1]]]
    return [command]


def same(how, left, right):
    """Returns whether two replies are equal under this kind of comparison."""
    if left == right:
        return True
    if is_error(left) or is_error(right):
        return False
    if how == "exact":
        return False
    if how == "unordered":
        return flat(left) == flat(right)
    if how == "near":
        return is_near(left, right)
    if how == "scan":
        return same_scan(left, right)
    if how == "kind":
        return sign(left) == sign(right)
    if isinstance(left, list) and isinstance(right, list):
        return left[0] == right[0] and len(left) == len(right) and all(map(same_shape, left[1:], right[1:]))
    return same_shape(left, right)


def same_shape(left, right):
    """Returns whether both replies have the same shape."""
    if isinstance(left, list) and isinstance(right, list):
        return left[0] == right[0] and len(left) == len(right) and all(map(same_shape, left[1:], right[1:]))
    return sign(left) == sign(right)


def same_scan(left, right):
    """Returns whether two replies of an iteration (SCAN) may come from equal data. If both replies have all
    elements, the elements must be equal. Otherwise the elements may differ."""
    if not same_shape(left[:2], right[:2]) or len(left) != len(right):
        return False
    whole = left[1] == right[1] == b"$1\r\n0"
    return flat(left[2]) == flat(right[2]) if whole else left[2][0] == right[2][0]


def sign(reply):
    """Returns the kind of a reply. Null is a kind of its own."""
    if isinstance(reply, list):
        return reply[0]
    return b"null" if reply in (b"$-1", b"*-1", b"_") else reply[:1]


def is_error(reply):
    """Returns whether the reply is an error."""
    return not isinstance(reply, list) and reply[:1] in b"-!"


def flat(reply):
    """Returns a value that is equal for replies that differ only in the order of their elements."""
    return sorted(map(repr, map(flat, reply))) if isinstance(reply, list) else reply


def is_near(left, right):
    """Returns whether both replies are times to live, or points in time, that differ by a few seconds at most."""
    if sign(left) != b":" or sign(right) != b":":
        return False
    left, right = int(left[1:]), int(right[1:])
    return (left < 0) == (right < 0) and abs(left - right) <= NEAR_MAX


class Comparison:
    """Compares the replies on one connection with those on another. For this comparison, the object keeps the
    commands that MULTI has queued."""

    def __init__(self):
        self.queued = None

    def differing(self, command, left, right):
        """Returns the differences in these replies, each as (command, reply, reply). For EXEC, returns those of the
        queued commands."""
        name = command[0].upper()
        if self.queued is not None:
            if name == b"EXEC":
                queued, self.queued = self.queued, None
                return differing_in_exec(queued, left, right)
            if name in (b"DISCARD", b"RESET"):
                self.queued = None
            elif left == b"+QUEUED":
                self.queued.append(command)
            return [] if left == right else [(command, left, right)]
        if name == b"MULTI" and left == b"+OK":
            self.queued = []
        return [] if same(mode(command), left, right) else [(command, left, right)]


def differing_in_exec(queued, left, right):
    """Returns the differences in the replies to EXEC."""
    if not isinstance(left, list) or not isinstance(right, list) or not len(left) == len(right) == len(queued) + 1:
        return [] if left == right else [([b"EXEC"], left, right)]
    found = zip(queued, left[1:], right[1:])
    return [(command, one, other) for command, one, other in found if not same(mode(command), one, other)]


class Difference:
    """Two replies that differ, with the commands that were sent before."""

    def __init__(self, commands, pipelined, protocol, about):
        self.commands, self.pipelined, self.protocol = commands, pipelined, protocol
        # The command and its two replies. If the last sent command is EXEC, this may be a command that EXEC executed.
        self.about, self.left, self.right = about
        self.where = None

    def signature(self):
        """Returns a value that is equal for differences which probably have the same cause."""
        words = [word.upper() for word in self.about[:2]]
        name = words[0].decode("latin-1")
        if name in WITH_SUBCOMMANDS and len(words) > 1:
            name += " " + words[1].decode("latin-1")
        right = kind_of(self.right)
        if right.startswith("-ERR pmnet: "):
            return (name, right)
        return (name, kind_of(self.left), right)


WITH_SUBCOMMANDS = set("CLIENT CONFIG ACL OBJECT XINFO XGROUP SCRIPT FUNCTION COMMAND CLUSTER MEMORY".split())


def kind_of(reply):
    """Returns a reply without its variable parts: the text of an error, or the kind of another reply."""
    if isinstance(reply, str):
        return reply
    if is_error(reply):
        return re.sub(rb"[0-9a-f]{40}|-?\d+|'[^']*'", b"N", reply).decode("latin-1")
    return sign(reply).decode()


class Pair:
    """The two servers, with a connection to each."""

    def __init__(self, left, right):
        self.ports = (left, right)
        self.clients = ()

    def begin(self, protocol):
        """Opens new connections, and empties the databases."""
        self.close()
        self.clients = tuple(Client(port) for port in self.ports)
        start = ([[b"HELLO", b"3"]] if protocol == 3 else []) + RESET
        replies = self.send(start)
        for client, got in zip(self.clients, replies):
            # Redis 6.2 has no functions, and answers FUNCTION FLUSH with an error.
            if client.broken or any(is_error(reply) and not reply.startswith(b"-ERR unknown command") for reply in got):
                raise Trouble(f"the database could not be emptied: {[show(reply) for reply in got]}")

    def send(self, commands):
        """Sends the commands together to both servers. Returns the replies of both; fewer if a connection ends."""
        payload = b"".join(map(request, commands))
        count = len(commands)
        for client in self.clients:
            client.begin(payload, lambda replies: len([1 for reply in replies if reply[0] != b">"]) >= count)
        exchange(self.clients, ANSWER_SECONDS_MAX)
        return [[reply for reply in client.replies if reply[0] != b">"] for client in self.clients]

    def broken(self, side):
        """Returns the reason why this side sent no further replies."""
        failed = self.clients[side].broken
        return None if failed is None else f"({type(failed).__name__.lower()})"

    def close(self):
        """Closes both connections."""
        for client in self.clients:
            client.close()
        self.clients = ()

    def run(self, steps, rules):
        """Returns the number of equal replies, and the differences, each with its rule. The episode ends at a
        difference unless a rule permits the episode to continue."""
        self.begin(steps.protocol)
        comparison, before, count, found = Comparison(), [], 0, []
        for pipeline in steps.pipelines:
            lefts, rights = self.send(pipeline)
            for number, command in enumerate(pipeline):
                left = lefts[number] if number < len(lefts) else self.broken(0) or "(nothing)"
                right = rights[number] if number < len(rights) else self.broken(1) or "(nothing)"
                gone = isinstance(left, str) or isinstance(right, str)
                if gone and left == right:
                    return count, found
                for about in [(command, left, right)] if gone else comparison.differing(command, left, right):
                    # The later commands of the pipeline are also kept, because they were sent together with this
                    # command and may affect the difference.
                    commands = before + pipeline[: number + 1]
                    texts = spell(about[0]), show(about[1], SHOWN_MAX), show(about[2], SHOWN_MAX)
                    rule = rules.rule_for(*texts, in_exec=about[0] is not command)
                    found.append((Difference(commands, len(pipeline) > 1, steps.protocol, about), rule))
                    if not rule or not rule.get("goes_on"):
                        return count, found
                count += 1
            before += pipeline
        return count, found


def shrink(pair, found, rules):
    """Reduces the difference to as few commands as possible. The commands are sent one by one, if the difference
    still occurs then."""
    tries, until = 0, time.monotonic() + SHRINK_SECONDS_MAX
    wanted = found.signature()

    def again(commands, pipelined):
        nonlocal tries
        tries += 1
        pipelines = [commands] if pipelined else [[command] for command in commands]
        try:
            differences = [other for other, rule in pair.run(Steps(found.protocol, pipelines), rules)[1] if rule is None]
        except (Trouble, OSError):
            return None
        if not differences or differences[0].signature() != wanted or len(differences[0].commands) != len(commands):
            return None
        differences[0].pipelined = pipelined
        return differences[0]

    best = again(found.commands, False) or again(found.commands, True)
    if best is None:
        return found
    size = len(best.commands) // 2
    while size >= 1 and tries < SHRINK_TRIES_MAX and time.monotonic() < until:
        at, shorter = 0, False
        while at < len(best.commands) - 1 and tries < SHRINK_TRIES_MAX and time.monotonic() < until:
            fewer = best.commands[:at] + best.commands[min(at + size, len(best.commands) - 1) :]
            other = again(fewer, best.pipelined)
            if other is None:
                at += size
            else:
                best, shorter = other, True
        size = size if shorter and size == 1 else size // 2
    return best


def describe(port):
    """Returns a Grammar that is made from the server's description of its commands. A server before 7.0 gives only
    their names."""
    docs = asked(port, b"COMMAND", b"DOCS")
    if docs is not None:
        return Grammar(docs_of(docs))
    has = {plain(command[1]) for command in asked(port, b"COMMAND")[1:]}
    with Stack(redis=MACHINE_REDIS) as other:
        docs = asked(other.port, b"COMMAND", b"DOCS")
    if docs is None:
        raise Trouble(f"neither this server nor {MACHINE_REDIS} has COMMAND DOCS: install Redis 7 or newer")
    docs = {name: doc for name, doc in docs_of(docs).items() if name.partition("|")[0] in has}
    # In a script, this command corrupts the memory of Redis 6.2 (docs/use/servers.md).
    return Grammar(docs, deadly=(b"INCRBYFLOAT",))


def asked(port, *words):
    """Returns the reply to one command; None if it is an error."""
    client = Client(port)
    try:
        client.begin(request(list(words)), lambda replies: len(replies) >= 1)
        exchange([client], ANSWER_SECONDS_MAX)
        return None if client.broken or is_error(client.replies[0]) else client.replies[0]
    finally:
        client.close()


def docs_of(reply):
    """Returns {name: docs} of the commands and their subcommands."""
    found = {}
    for name, docs in plain(reply).items():
        subcommands = docs.pop("subcommands", {})
        found[name] = docs
        found.update(subcommands)
    return found


def plain(reply):
    """Converts a reply to COMMAND DOCS to dicts, lists and strings."""
    if not isinstance(reply, list):
        return reply[reply.index(b"\r\n") + 2 :].decode() if reply[:1] == b"$" else reply[1:].decode()
    items = reply[1:]
    if items and isinstance(items[0], bytes) and len(items) % 2 == 0 and is_map(items):
        return {plain(items[at]): plain(items[at + 1]) for at in range(0, len(items), 2)}
    return [plain(item) for item in items]


# The fields with which a description can begin. The description of a module's command begins with another field.
FIELDS = {b"summary", b"name", b"group"}


def is_map(items):
    """Returns whether these elements are pairs: a description, or names with descriptions."""
    first = items[0].partition(b"\r\n")[2]
    return first in FIELDS or isinstance(items[1], list) and items[0][:1] == b"$"


class Report:
    """The results: counts, and one example of each kind of difference."""

    def __init__(self):
        self.replies, self.episodes, self.kinds = 0, 0, {}

    def add(self, found, rule):
        """Adds a difference. Returns True if the difference is the first of its kind."""
        key = ("expected", rule["name"]) if rule else found.signature()
        kind = self.kinds.setdefault(key, {"times": 0, "difference": found, "rule": rule})
        kind["times"] += 1
        return kind["times"] == 1

    def unexplained(self):
        """Returns the kinds that no rule explains, most frequent first."""
        found = [kind for kind in self.kinds.values() if kind["rule"] is None]
        return sorted(found, key=lambda kind: -kind["times"])

    def as_json(self, seed):
        """Returns all results as JSON, for other programs."""
        kinds = [as_json(kind) for kind in self.kinds.values()]
        return {"seed": seed, "replies": self.replies, "episodes": self.episodes, "differences": kinds}


def as_json(kind):
    """Returns one kind of difference as JSON."""
    found = kind["difference"]
    return {
        "times": kind["times"],
        "rule": kind["rule"]["name"] if kind["rule"] else None,
        "episode": found.where,
        "protocol": found.protocol,
        "pipelined": found.pipelined,
        "commands": [spell(command) for command in found.commands],
        "direct": show(found.left, SHOWN_MAX),
        "front": show(found.right, SHOWN_MAX),
    }


def title(kind, seed):
    """Returns a line about one kind of difference."""
    found = kind["difference"]
    how = f"RESP{found.protocol}, {'in one pipeline' if found.pipelined else 'one by one'}"
    return f"{spell(found.about)[:100]}   (seed {seed}, episode {found.where}, {how})"


def describe_kind(kind):
    """Prints the commands that cause a difference, and both replies."""
    found = kind["difference"]
    lines = [f"    {spell(command)[:300]}" for command in found.commands[-SHOWN_COMMANDS_MAX:]]
    return "\n".join([*lines, f"  direct: {show(found.left)}", f"  front:  {show(found.right)}"])


def hunt(pair, grammar, options, rules, bar):
    """Runs episodes until there are enough replies, or until the time is over."""
    report, until = Report(), time.monotonic() + options.seconds
    for number in [options.episode] if options.episode is not None else itertools.count():
        if report.replies >= options.replies or time.monotonic() > until:
            break
        count, differences = pair.run(episode(grammar, options.seed, number), rules)
        report.replies += count
        report.episodes += 1
        for found, rule in differences:
            found.where = number
            if report.add(found, rule) and rule is None and len(report.unexplained()) <= KINDS_MAX:
                smaller = shrink(pair, found, rules)
                smaller.where = number
                report.kinds[found.signature()]["difference"] = smaller
        bar.show(report.replies, f"{len(report.unexplained())} kinds of difference")
    bar.end(report.replies, f"{len(report.unexplained())} kinds of difference, {report.episodes} episodes")
    return report


def arguments(parser):
    """Adds the tester's options to a parser. run.py uses them too."""
    parser.add_argument("--seed", type=int, default=1, help="another one gives other commands (default: 1)")
    parser.add_argument("--replies", type=int, default=1_000_000, help="stop after so many replies were compared")
    parser.add_argument("--seconds", type=int, default=1800, help="stop after so long, whatever there is")
    parser.add_argument("--pmnet", metavar="FILE", help="the binary (default: target/release/pmnet)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--episode", type=int, help="only this one")
    parser.add_argument("--itself", action="store_true", help="compare two Redis with each other")
    parser.add_argument("--json", metavar="FILE", help="also write what was found there")
    options = parser.parse_args()
    rules = Expected()
    binary = None if options.itself else binary_path(options.pmnet)
    with Stack() as direct, Stack(binary) as front:
        report = hunt(Pair(direct.port, front.port), describe(direct.port), options, rules, Bar("differ", options.replies))
        died = direct.died() + front.died()
        if died:
            print(f"died: {', '.join(died)}\n{front.logs()}")
    for kind in report.kinds.values():
        if kind["rule"]:
            print(f"expected: {kind['times']} x {kind['rule']['name']}")
    for kind in report.unexplained():
        print(f"\n{kind['times']} x {title(kind, options.seed)}\n{describe_kind(kind)}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report.as_json(options.seed), indent=1) + "\n")
    times = sum(kind["times"] for kind in report.unexplained())
    print(f"{report.replies} replies compared; {times} differences of {len(report.unexplained())} kinds are not explained")
    return 1 if report.unexplained() or died else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    try:
        sys.exit(main())
    except (Trouble, Wrong) as trouble:
        sys.exit(str(trouble))
    except KeyboardInterrupt:
        sys.exit("stopped")
