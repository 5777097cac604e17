"""Clients outside of the guests: they write through fronts, know what was acknowledged, and keep a history."""

import json
import pathlib
import random
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from guest import Redis, Trouble  # noqa: E402

# Clients of each kind at each front.
COUNTERS, CONTENDERS = 3, 2
# Elements of a counter's list.
ELEMENTS = 10_000
# Operations on a key before its clients go on to the next key: operations of unknown outcome make
# the check long.
KEY_OPERATIONS = 240
# A message with such a value is more than one packet where the path MTU is 1024.
PADDING = "." * 1200
# Time limits in seconds. The front's own deadline is 60 seconds.
REPLY_LIMIT, SETTLE_LIMIT = 120, 120


class Client(threading.Thread):
    """Sends one command after the other."""

    def __init__(self, world, shard, front, name):
        super().__init__(daemon=True)
        self.world, self.shard, self.name = world, shard, name
        self.front = front
        self.connections = {}
        self.acknowledged = self.unknown = 0
        # Seconds: the longest time that an acknowledgement took since this was set to 0.
        self.longest = 0.0
        self.trouble = None

    def run(self):
        try:
            while not self.world.over.is_set():
                if self.world.pause.is_set():
                    self.world.idle(self)
                    continue
                self.step()
        except Exception as error:  # pylint: disable=broad-except
            self.trouble = f"{self.name}: {error!r}"

    def ask(self, front, *words):
        """A command by a front: "ok", "none" (the command had no effect) or "unknown", and the
        reply. The connection is made again if the front was killed."""
        begun = time.monotonic()
        try:
            if front not in self.connections:
                self.connections[front] = Redis(("127.0.0.1", front), REPLY_LIMIT)
        except OSError:
            time.sleep(0.1)
            return "none", None
        try:
            reply = self.connections[front].ask(*words)
        except (ConnectionError, OSError):
            del self.connections[front]
            self.unknown += 1
            time.sleep(0.1)
            return "unknown", None
        if isinstance(reply, str) and reply.startswith("-"):
            if "deadline passed before" in reply:
                return "none", reply
            self.unknown += 1
            return "unknown", reply
        self.acknowledged += 1
        self.longest = max(self.longest, time.monotonic() - begun)
        return "ok", reply


class Counter(Client):
    """Writes numbers to a key of its own, and takes elements off a list. A lost command shows in
    the key; a lost or repeated command shows in the list's length."""

    number = taken = perhaps = 0

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.key, self.list = f"key:{self.name}", f"list:{self.name}"
        self.possible = {None}

    def step(self):
        """One SET, and one LTRIM while there are elements."""
        self.number += 1
        number = str(self.number)
        verdict, _ = self.ask(self.front, "SET", self.key, number)
        if verdict == "ok":
            self.possible = {number}
        elif verdict == "unknown":
            self.possible.add(number)
        if self.taken + self.perhaps >= ELEMENTS:
            return
        verdict, _ = self.ask(self.front, "LTRIM", self.list, 1, -1)
        self.taken += verdict == "ok"
        self.perhaps += verdict == "unknown"

    def compare(self, redis):
        """Differences from the acknowledged state: sentences about lost commands, and about
        repeated commands."""
        value, left = redis.ask("GET", self.key), redis.ask("LLEN", self.list)
        lost, twice = [], []
        # An update of unknown outcome may take effect after later updates of another session.
        late = self.unknown > 0 and value is not None and int(value) <= self.number
        if value not in self.possible and not late:
            lost.append(f"{self.key} is {value}, acknowledged was one of {sorted(map(str, self.possible))}")
        gone = ELEMENTS - left
        if gone < self.taken:
            lost.append(f"{self.list}: {gone} taken off, {self.taken} acknowledged")
        if gone > self.taken + self.perhaps:
            twice.append(f"{self.list}: {gone} taken off, {self.taken} acknowledged, {self.perhaps} unknown")
        return lost, twice


class Contender(Client):
    """Shares few keys with other clients, through all fronts of its shard; its operations are kept
    as a history."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.dice = random.Random(self.name)
        self.identity = self.world.next_identity()
        self.number = 0

    def step(self):
        """One operation on a key that others use as well."""
        kind = self.dice.choice(("r0", "r1", "r2", "c"))
        key = self.world.shared_key(self.shard, kind)
        self.number += 1
        if self.dice.random() < 0.4:
            self.do("get", key)
        elif kind == "c":
            self.do("incr", key)
        else:
            self.do("set", key, f"{self.identity}.{self.number}", self.dice.choice(("", PADDING)))

    def do(self, op, key, value="", padding=""):
        """An operation, by any front; its outcome."""
        words = ["INCR", key] if op == "incr" else ["SET", key, value + padding] if op == "set" else ["GET", key]
        invoked = time.monotonic_ns()
        outcome, reply = self.ask(self.dice.choice(self.world.shards[self.shard]), *words)
        if outcome == "unknown" and op == "get":
            return outcome
        record = {"client": self.identity, "op": op, "key": key, "value": value, "invoke_ns": invoked, "return_ns": time.monotonic_ns()}
        # A value that does not come back whole counts as a value that no client wrote.
        text = None if reply is None else str(reply).removesuffix(PADDING)
        self.world.history.append(record | {"reply": text, "outcome": {"none": "failed"}.get(outcome, outcome)})
        if outcome == "unknown":
            self.identity = self.world.next_identity()
        return outcome


class World:
    """The clients of all shards; `shards` are the ports of each one's fronts."""

    def __init__(self, shards):
        self.shards = shards
        self.over, self.pause, self.condition = threading.Event(), threading.Event(), threading.Condition()
        self.waiting, self.history, self.used = set(), [], {}
        self.identities = 0
        self.counters, self.contenders = [], []
        for shard, fronts in enumerate(shards):
            for front in fronts:
                self.counters += [Counter(self, shard, front, f"{shard}:{front}:{number}") for number in range(COUNTERS)]
                self.contenders += [Contender(self, shard, front, f"contender:{shard}:{front}:{number}") for number in range(CONTENDERS)]

    def clients(self):
        """All clients."""
        return [*self.counters, *self.contenders]

    def next_identity(self):
        """A client's number in the history."""
        with self.condition:
            self.identities += 1
            return self.identities

    def shared_key(self, shard, kind):
        """The key that is used at the moment."""
        with self.condition:
            used = self.used.get((shard, kind), 0)
            self.used[shard, kind] = used + 1
        return f"{kind}:{shard}:{used // KEY_OPERATIONS}"

    def start(self):
        """Fills the lists, and lets the clients begin."""
        for client in self.counters:
            redis = self.probe(client.shard)
            while (missing := ELEMENTS - redis.ask("LLEN", client.list)) > 0:
                redis.ask("RPUSH", client.list, *["x"] * min(2000, missing))
        for client in self.clients():
            client.start()

    def idle(self, client):
        """A client waits here while no client is to work. The client's connections may be those of
        a machine that is off by now."""
        client.connections.clear()
        with self.condition:
            self.waiting.add(client)
            self.condition.notify_all()
            self.condition.wait_for(lambda: not self.pause.is_set() or self.over.is_set())
            self.waiting.discard(client)

    def rest(self):
        """Lets all clients pause, and waits until they do."""
        self.pause.set()
        with self.condition:
            ended = lambda: len(self.waiting) + sum(not client.is_alive() for client in self.clients())  # noqa: E731
            everybody = self.condition.wait_for(lambda: ended() >= len(self.clients()), REPLY_LIMIT)
        self.check()
        if not everybody:
            raise Trouble("a client's command did not end")

    def resume(self):
        """Lets the clients go on."""
        with self.condition:
            self.pause.clear()
            self.condition.notify_all()

    def check(self):
        """Whether all clients are well."""
        for client in self.clients():
            if client.trouble:
                raise Trouble(client.trouble)

    def acknowledged(self):
        """Commands acknowledged so far."""
        return sum(client.acknowledged for client in self.clients())

    def unknown(self):
        """Commands of unknown outcome so far."""
        return sum(client.unknown for client in self.clients())

    def wait_for_each(self, limit):
        """Waits until each client has heard another acknowledgement."""
        before = {client: client.acknowledged for client in self.clients()}
        end = time.monotonic() + limit
        while late := [client.name for client, was in before.items() if client.acknowledged == was]:
            self.check()
            if time.monotonic() > end:
                raise Trouble(f"these clients heard nothing more: {late}")
            time.sleep(0.05)

    def probe(self, shard):
        """A connection to a shard, when all that was acknowledged before is applied."""
        end = time.monotonic() + SETTLE_LIMIT
        while True:
            try:
                redis = Redis(("127.0.0.1", self.shards[shard][0]), REPLY_LIMIT)
                if isinstance(redis.ask("INCR", "probe"), int):
                    return redis
            except (ConnectionError, OSError):
                pass
            if time.monotonic() > end:
                raise Trouble(f"shard {shard} does not serve")
            time.sleep(0.2)

    def compare(self):
        """Sentences about lost commands, and about repeated commands. No client works at this
        time."""
        lost, twice = [], []
        for client in self.counters:
            found = client.compare(self.probe(client.shard))
            lost += found[0]
            twice += found[1]
        return lost, twice

    def end(self):
        """The clients' last commands end."""
        self.over.set()
        with self.condition:
            self.condition.notify_all()
        for client in self.clients():
            if client.ident:
                client.join(REPLY_LIMIT)
                if client.is_alive():
                    raise Trouble(f"a command of client {client.name} did not end")
        self.check()

    def write_history(self, path):
        """Reads every shared key once more, and writes the history."""
        for (shard, kind), used in self.used.items():
            reader = next(client for client in self.contenders if client.shard == shard)
            for number in range(-(-used // KEY_OPERATIONS)):
                key, end = f"{kind}:{shard}:{number}", time.monotonic() + SETTLE_LIMIT
                while reader.do("get", key) != "ok":
                    if time.monotonic() > end:
                        raise Trouble(f"{key} cannot be read")
        path.write_text("".join(json.dumps(record) + "\n" for record in self.history))
