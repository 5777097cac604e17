"""Clients outside of the guests. The clients write through fronts, remember what was acknowledged, and
keep a history."""

import json
import pathlib
import random
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from guest import Redis, Trouble  # noqa: E402

# Number of clients of each kind at each front.
COUNTERS, CONTENDERS = 3, 2
# Number of elements in the list of a counter.
ELEMENTS = 10_000
# Number of operations on a key after which its clients use the next key. Operations with unknown outcome on a
# key make the check long.
KEY_OPERATIONS = 240
# Padding for long values. If the path MTU is 1024, a message with such a value needs several packets.
PADDING = "." * 1200
# Time limits in seconds. The front's own deadline is 60 seconds.
REPLY_LIMIT, SETTLE_LIMIT = 120, 120


class Client(threading.Thread):
    """A client that sends one command after the other."""

    def __init__(self, world, shard, front, name):
        super().__init__(daemon=True)
        self.world, self.shard, self.name = world, shard, name
        self.front = front
        self.connections = {}
        self.acknowledged = self.unknown = 0
        # The longest time until an acknowledgement, in seconds, since this was last set to 0.
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
        """Sends a command to a front. Returns "ok", "none" (the command had no effect) or "unknown", and
        the reply. If the front was killed, connects again."""
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
    """A client that writes numbers to a key of its own, and removes elements of a list. The value of the
    key shows a lost command. The length of the list shows a command that was lost or repeated."""

    number = taken = perhaps = 0

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.key, self.list = f"key:{self.name}", f"list:{self.name}"
        self.possible = {None}

    def step(self):
        """Sends one SET and, while there are elements, one LTRIM."""
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
        """Returns the differences from the acknowledged state: sentences about lost commands, and sentences
        about repeated commands."""
        value, left = redis.ask("GET", self.key), redis.ask("LLEN", self.list)
        lost, twice = [], []
        # An update with unknown outcome may take effect after later updates of another session.
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
    """A client that shares few keys with other clients, and uses all fronts of its shard. The operations
    of this client are kept as a history."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.dice = random.Random(self.name)
        self.identity = self.world.next_identity()
        self.number = 0

    def step(self):
        """Makes one operation on a key that other clients also use."""
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
        """Makes an operation through any front. Returns its outcome."""
        words = ["INCR", key] if op == "incr" else ["SET", key, value + padding] if op == "set" else ["GET", key]
        invoked = time.monotonic_ns()
        outcome, reply = self.ask(self.dice.choice(self.world.shards[self.shard]), *words)
        if outcome == "unknown" and op == "get":
            return outcome
        record = {"client": self.identity, "op": op, "key": key, "value": value, "invoke_ns": invoked, "return_ns": time.monotonic_ns()}
        # A value that comes back incomplete counts as a value that no client wrote.
        text = None if reply is None else str(reply).removesuffix(PADDING)
        self.world.history.append(record | {"reply": text, "outcome": {"none": "failed"}.get(outcome, outcome)})
        if outcome == "unknown":
            self.identity = self.world.next_identity()
        return outcome


class World:
    """The clients of all shards. `shards`: for each shard, the ports of its fronts."""

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
        """Returns all clients."""
        return [*self.counters, *self.contenders]

    def next_identity(self):
        """Returns a new client number for the history."""
        with self.condition:
            self.identities += 1
            return self.identities

    def shared_key(self, shard, kind):
        """Returns the key that is used at present."""
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
        """A client waits here during a pause. The client drops its connections, because the machine at the
        other end may be off by now."""
        client.connections.clear()
        with self.condition:
            self.waiting.add(client)
            self.condition.notify_all()
            self.condition.wait_for(lambda: not self.pause.is_set() or self.over.is_set())
            self.waiting.discard(client)

    def rest(self):
        """Makes all clients pause, and waits until they do."""
        self.pause.set()
        with self.condition:
            ended = lambda: len(self.waiting) + sum(not client.is_alive() for client in self.clients())  # noqa: E731
            everybody = self.condition.wait_for(lambda: ended() >= len(self.clients()), REPLY_LIMIT)
        self.check()
        if not everybody:
            raise Trouble("a client's command did not end")

    def resume(self):
        """Lets all clients continue."""
        with self.condition:
            self.pause.clear()
            self.condition.notify_all()

    def check(self):
        """Checks that no client has failed."""
        for client in self.clients():
            if client.trouble:
                raise Trouble(client.trouble)

    def acknowledged(self):
        """Returns the number of acknowledged commands so far."""
        return sum(client.acknowledged for client in self.clients())

    def unknown(self):
        """Returns the number of commands with unknown outcome so far."""
        return sum(client.unknown for client in self.clients())

    def wait_for_each(self, limit):
        """Waits until each client has got another acknowledgement."""
        before = {client: client.acknowledged for client in self.clients()}
        end = time.monotonic() + limit
        while late := [client.name for client, was in before.items() if client.acknowledged == was]:
            self.check()
            if time.monotonic() > end:
                raise Trouble(f"these clients heard nothing more: {late}")
            time.sleep(0.05)

    def probe(self, shard):
        """Waits until the shard has applied all that was acknowledged before. Returns a connection to the
        shard's front."""
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
        """Returns sentences about lost commands, and sentences about repeated commands. No client may work
        at this time."""
        lost, twice = [], []
        for client in self.counters:
            found = client.compare(self.probe(client.shard))
            lost += found[0]
            twice += found[1]
        return lost, twice

    def end(self):
        """Lets the clients end their last commands."""
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
        """Reads every shared key once more, and writes the history to a file."""
        for (shard, kind), used in self.used.items():
            reader = next(client for client in self.contenders if client.shard == shard)
            for number in range(-(-used // KEY_OPERATIONS)):
                key, end = f"{kind}:{shard}:{number}", time.monotonic() + SETTLE_LIMIT
                while reader.do("get", key) != "ok":
                    if time.monotonic() > end:
                        raise Trouble(f"{key} cannot be read")
        path.write_text("".join(json.dumps(record) + "\n" for record in self.history))
