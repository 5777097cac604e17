"""redis-py with fronts whose store is an embedded one: WATCH, and blocking commands. The arguments are the ports of
fronts that share devices."""

import sys
import threading
import time

import redis

ports = [int(port) for port in sys.argv[1:]]
connections = []


def client(port=ports[0], **options):
    made = redis.Redis(port=port, decode_responses=True, single_connection_client=True, **options)
    connections.append(made)
    return made


class Waiter(threading.Thread):
    """Sends one command on a connection of its own. The answer is available after join."""

    def __init__(self, *command, port=ports[0]):
        super().__init__(daemon=True)
        self.client, self.command, self.answer = client(port), command, "none"
        self.id = self.client.client_id()
        self.start()

    def run(self):
        try:
            self.answer = self.client.execute_command(*self.command)
        except (redis.RedisError, OSError, ValueError) as error:
            self.answer = str(error)

    def wait(self):
        self.join(10)
        assert not self.is_alive(), f"{self.command} still waits"
        return self.answer


def rests():
    """By this time, a waiting client has found no element and waits."""
    time.sleep(0.3)


r, other = client(), client(ports[-1])

# WATCH: the transaction is executed only if no client has changed the key.
r.set("balance", 10)
with r.pipeline() as pipe:
    pipe.watch("balance")
    amount = int(pipe.get("balance"))
    pipe.multi()
    pipe.set("balance", amount + 1)
    assert pipe.execute() == [True]
    pipe.watch("balance")
    other.set("balance", 5)
    pipe.multi()
    pipe.set("balance", 99)
    try:
        pipe.execute()
        raise AssertionError("it ran")
    except redis.WatchError:
        pass
assert r.get("balance") == "5"
for end in ("UNWATCH", "RESET"):
    r.execute_command("WATCH", "balance")
    other.incr("balance")
    r.execute_command(end)
    r.execute_command("MULTI")
    r.execute_command("INCR", "balance")
    assert r.execute_command("EXEC") is not None, end
# Four cases: a transaction without a command; one that only reads; a key that expires; a key that did not exist.
for change, runs in (
    (lambda: None, True),
    (lambda: other.set("watched", 1), False),
    (lambda: other.pexpire("watched", 1) and time.sleep(0.05), False),
    (lambda: other.flushall(), True),
    (lambda: other.lpush("watched", 1), False),
    (lambda: other.lset("watched", 0, 2), False),
    (lambda: other.flushall(), False),
):
    for commands in ([], ["GET unrelated"], ["SET unrelated 1"]):
        existed = other.exists("watched")
        r.execute_command("WATCH", "watched", "another")
        if commands == []:
            change()
        r.execute_command("MULTI")
        for command in commands:
            r.execute_command(*command.split())
        ran = r.execute_command("EXEC") is not None
        assert ran == (runs or commands != []), (commands, existed, ran)
# Several clients increment counters at the same time. No increment may be lost.
r.set("counter", 0)


def count(port):
    own = client(port)
    for _ in range(40):
        while True:
            with own.pipeline() as pipe:
                pipe.watch("counter")
                value = int(pipe.get("counter"))
                pipe.multi()
                pipe.set("counter", value + 1)
                try:
                    pipe.execute()
                    break
                except redis.WatchError:
                    continue


counters = [threading.Thread(target=count, args=(port,)) for port in ports * 3]
[thread.start() for thread in counters]
[thread.join() for thread in counters]
assert r.get("counter") == str(40 * len(counters)), r.get("counter")

# If there is an element, it is taken at once. Otherwise the client waits.
r.flushall()
r.rpush("l", 1, 2, 3)
r.zadd("z", {"a": 1, "b": 2})
assert r.blpop(["none", "l"], 5) == ("l", "1") and r.brpop("l", 5) == ("l", "3")
assert r.blmove("l", "m", 5, "LEFT", "RIGHT") == "2" and r.brpoplpush("m", "l", 5) == "2"
assert r.blmpop(5, 1, "l", direction="LEFT", count=9) == ["l", ["2"]]
assert r.bzpopmin("z", 5) == ("z", "a", 1.0) and r.bzpopmax("z", 5) == ("z", "b", 2.0)
r.zadd("z", {"a": 1, "b": 2})
assert len(r.bzmpop(5, 1, "z", min=True, count=9)[1]) == 2 and not r.exists("z")
begun = time.monotonic()
for name, command in {
    "BLPOP": ["l", 0.2], "BRPOP": ["l", 0.2], "BLMOVE": ["l", "m", "LEFT", "LEFT", 0.2], "BRPOPLPUSH": ["l", "m", 0.2],
    "BLMPOP": [0.2, 1, "l", "LEFT"], "BZPOPMIN": ["z", 0.2], "BZPOPMAX": ["z", 0.2], "BZMPOP": [0.2, 1, "z", "MIN"],
}.items():
    assert not r.execute_command(name, *command), name
assert 1.6 <= time.monotonic() - begun < 5, time.monotonic() - begun
for wrong in (["BLPOP", "l", "x"], ["BLPOP", "l", -1], ["BLPOP", "l", "1e300"]):
    try:
        r.execute_command(*wrong)
        raise AssertionError(wrong)
    except redis.ResponseError as error:
        assert "timeout is" in str(error), error
# In a transaction, a blocking command does not wait.
with r.pipeline() as pipe:
    pipe.execute_command("BLPOP", "l", 0)
    pipe.execute_command("BRPOPLPUSH", "l", "m", 0)
    assert pipe.execute() == [None, None]

# Waiting clients must get elements in the order in which they began to wait, each element once. A client that has
# disconnected must get nothing. A client that waits for several keys must get one element.
first, gone, second = [Waiter("BLPOP", "q", "queue", 0) for _ in range(3) if not rests()]
rests()
gone.client.connection.disconnect()
rests()
other.rpush("queue", "one")
assert first.wait() == ("queue", "one"), first.answer
assert second.answer == "none"
other.rpush("q", "two", "three")
assert second.wait() == ("q", "two"), second.answer
assert other.lrange("q", 0, -1) == ["three"]
other.delete("q")
# If several elements arrive at once, an equal number of clients must wake.
waiters = [Waiter("BLPOP", "many", 20) for _ in range(8)]
rests()
other.rpush("many", *range(6))
rests()
served = sorted(waiter.answer[1] for waiter in waiters if waiter.answer != "none")
assert served == list("012345"), served
other.execute_command("MULTI")
other.execute_command("RPUSH", "many", 6)
other.execute_command("RPUSH", "many", 7)
other.execute_command("EXEC")
assert sorted(waiter.wait()[1] for waiter in waiters) == list("01234567")
# A key with a value of another type must not wake a client. RENAME and similar commands that bring an element must
# wake it.
waiter = Waiter("BZPOPMIN", "later", 0)
rests()
other.zadd("made", {"m": 3})
other.set("unrelated", 1)
other.rename("made", "later")
assert waiter.wait() == ("later", "m", 3.0), waiter.answer
# CLIENT UNBLOCK ends a wait, with either reason.
for reason, answer in (("TIMEOUT", None), ("ERROR", "client unblocked via CLIENT UNBLOCK")):
    waiter = Waiter("BLMOVE", "q", "m", "LEFT", "LEFT", 0)
    rests()
    unblocker = client()
    assert unblocker.client_unblock(waiter.id, error=reason == "ERROR"), reason
    assert waiter.wait() == answer or answer in waiter.answer, waiter.answer
# A client that waits at another front must be served too, and no element may be taken twice.
for number in range(20):
    waiters = [Waiter("BLPOP", "shared", 0, port=port) for port in ports]
    time.sleep(0.02)
    other.rpush("shared", *range(len(ports)))
    taken = sorted(waiter.wait()[1] for waiter in waiters)
    assert taken == [str(at) for at in range(len(ports))], taken
assert other.llen("shared") == 0
# Measures the time from a push until a waiting client has the element.
waiter = Waiter("BLPOP", "timed", 0)
rests()
times = []
for number in range(50):
    begun = time.monotonic()
    other.rpush("timed", number)
    assert waiter.wait() == ("timed", str(number))
    times.append(time.monotonic() - begun)
    waiter = Waiter("BLPOP", "timed", 0)
    time.sleep(0.03)
print(f"woken after {sorted(times)[25] * 1e3:.1f} ms (median), {max(times) * 1e3:.1f} ms at most")
print("all good")
