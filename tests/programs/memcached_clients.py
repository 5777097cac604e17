"""The unmodified libraries pymemcache and pylibmc make the operations of an application, once
with the front and once with a memcached. All answers must be equal.

Arguments: OURS THEIRS, the addresses HOST:PORT of the front and of a memcached.
"""
import sys
import threading
import time

import pylibmc
import pymemcache
from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.client.retrying import RetryingClient

PLACES = [(host, int(port)) for host, port in (place.rsplit(":", 1) for place in sys.argv[1:3])]


def told(answer):
    """Returns an answer in the form in which it is compared. Uniques and the ports of
    connections always differ."""
    if isinstance(answer, Exception):
        return type(answer).__name__, str(answer).split("127.0.0.1")[0].split(" from ")[0]
    return answer


def unique(answer):
    value, number = answer
    return value, number is not None and int(number) > 0


def both(name, script):
    """Runs the script at both addresses, and compares the answers step by step."""
    found = []
    for place in PLACES:
        steps = []
        for step, call in script(place):
            try:
                steps.append((step, told(call())))
            except AttributeError:  # this version of the client has no such call
                raise
            except Exception as error:  # what a client raises is an answer
                steps.append((step, told(error)))
        found.append(steps)
    ours, theirs = found
    for one, other in zip(ours, theirs):
        if one != other:
            raise SystemExit(f"{name}: {one} and not {other}")
    assert len(ours) == len(theirs) > 0, name
    print(f"{name}: {len(ours)} answers alike")


def pymemcache_script(client):
    """Makes every command of pymemcache's interface. `client` may answer with values as they were
    given."""
    yield "flush", lambda: client.flush_all(noreply=False)
    yield "set", lambda: client.set("a", b"1", noreply=False)
    yield "set with an end", lambda: client.set("e", b"x", expire=100, noreply=False)
    yield "set in the past", lambda: client.set("gone", b"x", expire=-1, noreply=False)
    yield "get of what is gone", lambda: client.get("gone")
    yield "get", lambda: client.get("a")
    yield "get of nothing", lambda: client.get("none", "otherwise")
    yield "noreply", lambda: client.set("quiet", b"q", noreply=True)
    yield "get after noreply", lambda: client.get("quiet")
    yield "gets", lambda: unique(client.gets("a"))
    yield "gets of nothing", lambda: client.gets("none")
    yield "cas", lambda: client.cas("a", b"2", client.gets("a")[1], noreply=False)
    yield "cas with an old unique", lambda: client.cas("a", b"3", b"1", noreply=False)
    yield "cas of nothing", lambda: client.cas("none", b"3", b"1", noreply=False)
    yield "add", lambda: client.add("new", b"n", noreply=False)
    yield "add again", lambda: client.add("new", b"m", noreply=False)
    yield "replace", lambda: client.replace("new", b"o", noreply=False)
    yield "replace of nothing", lambda: client.replace("none", b"o", noreply=False)
    yield "append", lambda: client.append("new", b">", noreply=False)
    yield "prepend", lambda: client.prepend("new", b"<", noreply=False)
    yield "append to nothing", lambda: client.append("none", b">", noreply=False)
    yield "what they made", lambda: client.get("new")
    yield "set_many", lambda: client.set_many({f"m{n}": str(n).encode() for n in range(200)}, noreply=False)
    yield "get_many", lambda: client.get_many([f"m{n}" for n in range(0, 300, 3)])
    yield "gets_many", lambda: sorted((key, unique(one)) for key, one in client.gets_many(["m1", "m2", "no"]).items())
    yield "delete_many", lambda: client.delete_many([f"m{n}" for n in range(10)], noreply=False)
    yield "get_many after that", lambda: client.get_many(["m1", "m11"])
    yield "incr", lambda: client.incr("a", 40, noreply=False)
    yield "decr", lambda: client.decr("a", 50, noreply=False)
    yield "incr of nothing", lambda: client.incr("none", 1, noreply=False)
    yield "incr of no number", lambda: client.incr("new", 1, noreply=False)
    yield "incr around 2^64", lambda: (client.set("big", b"18446744073709551615", noreply=False), client.incr("big", 2, noreply=False))
    yield "touch", lambda: client.touch("a", 100, noreply=False)
    yield "touch of nothing", lambda: client.touch("none", 100, noreply=False)
    yield "delete", lambda: client.delete("a", noreply=False)
    yield "delete of nothing", lambda: client.delete("a", noreply=False)
    yield "an empty value", lambda: (client.set("empty", b"", noreply=False), client.get("empty"))
    yield "bytes of all kinds", lambda: (client.set("all", bytes(range(256)), noreply=False), client.get("all"))
    yield "a long key", lambda: client.set("k" * 250, b"x", noreply=False)
    yield "too long a key", lambda: client.set("k" * 251, b"x", noreply=False)
    yield "a key with a blank", lambda: client.set("k k", b"x", noreply=False)
    yield "a key beyond ASCII", lambda: client.set("schlüssel", b"x", noreply=False)
    yield "nearly a MiB", lambda: (client.set("large", b"x" * 1_000_000, noreply=False), len(client.get("large")))
    yield "too large", lambda: client.set("large", b"x" * 1_100_000, noreply=False)
    yield "and it is gone", lambda: client.get("large")
    yield "an end in a second", lambda: (client.set("short", b"x", expire=1, noreply=False), time.sleep(2.1), client.get("short"))
    yield "an end far away", lambda: (client.set("far", b"x", expire=int(time.time()) + 1000, noreply=False), client.get("far"))


def plain(place):
    client = Client(place, timeout=20)
    yield from pymemcache_script(client)
    yield "no such command", lambda: client.raw_command(b"nonsense")
    yield "meta", lambda: client.raw_command(b"mg empty v f", b"\r\n")
    yield "gat", lambda: client.raw_command(b"gat 100 far", b"END\r\n")
    yield "quit", client.quit
    yield "get after quit", lambda: client.get("new")
    client.close()


def pooled(place):
    yield from pymemcache_script(PooledClient(place, max_pool_size=4, timeout=20))


def hashed(place):
    client = HashClient([place], timeout=20, use_pooling=True)
    yield "flush", client.flush_all
    yield "set_many", lambda: client.set_many({f"h{n}": str(n) for n in range(100)}, noreply=False)
    yield "get_many", lambda: client.get_many([f"h{n}" for n in range(110)])
    yield "gets", lambda: unique(client.gets("h1"))
    yield "incr", lambda: client.incr("h1", 5)
    yield "delete_many", lambda: client.delete_many(["h1", "h2"])
    yield "get", lambda: client.get("h1")


def pickled(place):
    """Objects, which the client compresses if they are long. The client stores their kind in the
    flags."""
    client = Client(place, serde=pymemcache.serde.compressed_serde, allow_unicode_keys=True, key_prefix=b"p:", timeout=20)
    for name, value in {"text": "grüße", "number": 42, "list": [1, {"two": 2.5}], "none": None, "long": "ab" * 50_000}.items():
        yield name, lambda: (client.set("ö" + name, value, noreply=False), client.get("ö" + name))
    retrying = RetryingClient(client, attempts=2)
    yield "by a client that tries again", lambda: retrying.get("önumber")


def threads(place):
    """Eight threads add to one number, with cas and with incr."""
    client = PooledClient(place, timeout=20)
    client.set("cas", b"0", noreply=False)
    client.set("incr", b"0", noreply=False)

    def work():
        for _ in range(20):
            client.incr("incr", 1)
            while True:
                value, number = client.gets("cas")
                if client.cas("cas", str(int(value) + 1).encode(), number, noreply=False):
                    break

    def run():
        all_of_them = [threading.Thread(target=work) for _ in range(8)]
        for one in all_of_them:
            one.start()
        for one in all_of_them:
            one.join()
        return client.get("cas"), client.get("incr")

    yield "both are whole", run


def pylibmc_script(place, **behaviors):
    client = pylibmc.Client([f"{place[0]}:{place[1]}"], behaviors={"cas": True, "tcp_nodelay": True, **behaviors})
    yield "flush", client.flush_all
    yield "set", lambda: client.set("a", 1)
    yield "get", lambda: client.get("a")
    yield "get of nothing", lambda: client.get("none", "otherwise")
    yield "in", lambda: ("a" in client, "none" in client)
    yield "item", lambda: (client.__setitem__("i", "x"), client["i"])
    yield "no item", lambda: client["none"]
    yield "objects", lambda: (client.set("o", {"grüße": [1, 2.5, None]}), client.get("o"))
    yield "compressed", lambda: (client.set("c", "ab" * 100_000, min_compress_len=1000), len(client.get("c")))
    yield "add", lambda: (client.add("new", "n"), client.add("new", "m"))
    yield "replace", lambda: (client.replace("new", b"o"), client.get("new"))
    yield "replace of nothing", lambda: client.replace("none", "o")
    yield "append", lambda: (client.append("new", b">"), client.prepend("new", b"<"), client.get("new"))
    yield "append to nothing", lambda: client.append("none", b">")
    yield "gets", lambda: unique(client.gets("a"))
    yield "gets of nothing", lambda: client.gets("none")
    yield "cas", lambda: client.cas("a", 2, client.gets("a")[1])
    yield "cas with an old unique", lambda: client.cas("a", 3, 1)
    yield "incr", lambda: (client.incr("a"), client.incr("a", 40), client.decr("a", 2))
    yield "incr of nothing", lambda: client.incr("none")
    yield "incr of no number", lambda: client.incr("new")
    yield "touch", lambda: (client.touch("a", 100), client.touch("none", 100))
    yield "set_multi", lambda: client.set_multi({str(n): n for n in range(200)}, key_prefix="m:")
    yield "get_multi", lambda: client.get_multi([str(n) for n in range(0, 300, 3)], key_prefix="m:")
    yield "add_multi", lambda: sorted(client.add_multi({"1": 0, "300": 0}, key_prefix="m:"))
    yield "incr_multi", lambda: client.incr_multi(["1", "2"], key_prefix="m:", delta=5)
    yield "delete_multi", lambda: (client.delete_multi([str(n) for n in range(5)], key_prefix="m:"), client.get("m:1"), client.get("m:5"))
    yield "delete", lambda: (client.delete("a"), client.delete("a"))
    yield "an end", lambda: (client.set("e", "x", time=1), time.sleep(2.1), client.get("e"))
    yield "too large", lambda: client.set("large", b"x" * 1_100_000)
    yield "too long a key", lambda: client.set("k" * 251, "x")
    yield "a clone", lambda: client.clone().get("m:5")
    client.disconnect_all()


def quick(place):
    """Three modes: writes without a reply, requests that are collected, and calls that do not wait
    for the connection."""
    yield from pylibmc_script(place, no_block=True)


def binary(place):
    """The binary protocol."""
    client = pylibmc.Client([f"{place[0]}:{place[1]}"], binary=True)
    client.set("b", 1)
    return client.get("b")


both("pymemcache", plain)
both("pymemcache, a pool", pooled)
both("pymemcache, by hash", hashed)
both("pymemcache, objects", pickled)
both("pymemcache, threads", threads)
both("pylibmc", pylibmc_script)
both("pylibmc, without waiting", quick)
# A difference that applications can see: docs/use/memcached.md, "Protocols".
assert binary(PLACES[1]) == 1
try:
    raise SystemExit(f"the binary protocol: {binary(PLACES[0])}")
except pylibmc.Error as error:
    print(f"pylibmc, the binary protocol: {type(error).__name__}")
print("all good")
