#!/usr/bin/env python3
"""What random commands on one connection cannot show: several clients, long pipelines, raw bytes, settings.

Each scenario runs on a Redis and on a Redis behind pmnet. What is written down on both sides must be equal.

  tests/compat/scenarios.py [NAME …]
"""

import argparse
import re
import signal
import socket
import sys
import time

from resp import Client, exchange, request, show, spell
from stack import Stack, Trouble, binary_path

ANSWER_SECONDS_MAX = 14
# So long nothing must come where nothing should.
QUIET_SECONDS = 0.3
# Scenarios by name; those that leave settings behind, or a server that is stuck, get one of their own; slow ones wait for seconds.
EVERY, FRESH, SLOW = {}, set(), set()


def scenario(fresh=False, slow=False):
    """Registers a function of a Table."""

    def register(function):
        name = function.__name__.replace("_", " ")
        EVERY[name] = function
        if fresh:
            FRESH.add(name)
        if slow:
            SLOW.add(name)
        return function

    return register


class Table:
    """The clients of one scenario, and what is written down about them."""

    def __init__(self, port):
        self.port, self.lines, self.peers = port, [], []

    def peer(self, protocol=2):
        """A new client."""
        peer = Peer(self, f"{'ABCDEFGH'[len(self.peers)]}")
        self.peers.append(peer)
        if protocol == 3:
            peer.ask("HELLO", "3", shown=lambda reply: "ok")
        return peer

    def write(self, line):
        """One line of what is compared."""
        self.lines.append(line)

    def close(self):
        """Ends all clients."""
        for peer in self.peers:
            peer.client.close()


class Peer:
    """One client of a scenario."""

    def __init__(self, table, name):
        self.table, self.name, self.client = table, name, Client(table.port)

    def ask(self, *words, shown=show, seconds=ANSWER_SECONDS_MAX, about=None):
        """Sends a command and writes down its reply, and of the command `about` or all; returns the reply, or None."""
        self.send(*words)
        return self.read(1, shown=shown, seconds=seconds, about=about or spell(list(map(encoded, words))))[0]

    def send(self, *words):
        """Sends a command only."""
        self.raw(request(list(map(encoded, words))))

    def raw(self, payload):
        """Sends these bytes."""
        self.client.socket.setblocking(True)
        self.client.socket.settimeout(ANSWER_SECONDS_MAX)
        try:
            self.client.socket.sendall(payload)
        except OSError:
            self.table.write(f"{self.name}: cannot send")
        self.client.socket.setblocking(False)

    def read(self, count, shown=show, seconds=ANSWER_SECONDS_MAX, about=""):
        """Waits for so many replies and writes them down; those that did not come are None."""
        self.client.begin(b"", lambda replies: len(replies) >= count)
        # What has come already may be in the buffer.
        exchange([self.client], seconds)
        replies = list(self.client.replies)
        for reply in replies:
            self.table.write(f"{self.name}: {about} -> {shown(reply)}")
        if self.client.broken:
            self.table.write(f"{self.name}: {about} -> ({type(self.client.broken).__name__.lower()})")
        return replies + [None] * (count - len(replies))

    def quiet(self):
        """Writes down what comes although nothing should."""
        self.read(1, seconds=QUIET_SECONDS)

    def bytes(self, seconds=2):
        """Writes down the bytes that come, and whether the connection is closed then."""
        got, closed, until = b"", False, time.monotonic() + seconds
        self.client.socket.setblocking(True)
        while time.monotonic() < until:
            self.client.socket.settimeout(max(0.01, until - time.monotonic()))
            try:
                part = self.client.socket.recv(65536)
            except OSError as error:
                closed = not isinstance(error, socket.timeout)
                break
            if not part:
                closed = True
                break
            got += part
        self.client.socket.setblocking(False)
        self.table.write(f"{self.name}: {got[:300]!r}{' closed' if closed else ''}")


def encoded(word):
    """A word as bytes."""
    return word if isinstance(word, bytes) else str(word).encode()


def fields(reply):
    """The names of the fields of INFO or CLIENT LIST."""
    return b" ".join(sorted(set(re.findall(rb"(?:^|[ \n:])([a-z][a-z0-9_-]*)[=:]", reply)))).decode()


def kind(reply):
    """Only what kind of reply it is."""
    return repr(reply[0] if isinstance(reply, list) else reply[:1])


def long_pipeline(table, count, make, check):
    """Sends all before it reads anything, as client libraries do."""
    peer = table.peer()
    payload = b"".join(request(list(map(encoded, make(number)))) for number in range(count))
    begun = time.monotonic()
    peer.raw(payload)
    peer.client.begin(b"", lambda replies: len(replies) >= count)
    exchange([peer.client], 60)
    replies = peer.client.replies
    table.write(f"{len(replies)} replies, right: {all(map(check, replies))}, the last {show(replies[-1]) if replies else None}")
    return time.monotonic() - begun


KILO = b"v" * 1000


@scenario(slow=True)
def pipeline_of_30000_getset_of_1_kb(table):
    long_pipeline(table, 30_000, lambda number: ("GETSET", f"k{number % 100}", KILO), lambda reply: reply[:1] == b"$")


@scenario(slow=True)
def pipeline_of_40000_echo_of_1_kb(table):
    long_pipeline(table, 40_000, lambda number: ("ECHO", KILO), lambda reply: len(reply) > 1000)


@scenario(slow=True)
def pipeline_of_100000_get_of_1_kb(table):
    table.peer().ask("SET", "k", KILO)
    long_pipeline(table, 100_000, lambda number: ("GET", "k"), lambda reply: len(reply) > 1000)


@scenario(slow=True)
def pipeline_of_10000_alternating_set_and_get(table):
    def make(number):
        return ("SET", f"k{number % 100}", KILO) if number % 2 == 0 else ("GET", f"k{number % 100}")

    long_pipeline(table, 20_000, make, lambda reply: reply[:1] in b"+$")


@scenario()
def inline_commands_and_broken_protocol(table):
    for payload in (
        b"PING\r\n",
        b"SET a 'b c'\r\nGET a\r\n",
        b'SET a "x\\x41\\n"\r\nGET a\n',
        b"SET a 'unbalanced\r\n",
        b"\r\n\r\nPING\r\n",
        b"*0\r\nPING\r\n",
        b"*-1\r\nPING\r\n",
        b"*1\r\nPING\r\n",
        b"*x\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfoo\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$-10\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$2000000000\r\n",
        b"*20000000\r\n",
        b"*1\r\n$0\r\n\r\n",
        b"*2\r\n$3\r\nGET\r\n$1\r\nabc\r\n",
        b"GET\r\n",
        b"NOSUCH a b\r\n",
        b"NOSUCH" + b"x" * 200 + b" " + b"y" * 200 + b"\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"Host: example\r\n\r\n",
    ):
        table.peers.clear()
        peer = table.peer()
        table.write(repr(payload[:60]))
        peer.raw(payload)
        peer.bytes(seconds=0.4)
        peer.client.close()


@scenario(slow=True)
def garbage_that_begins_with_nul(table):
    for payload in (b"\x00" * 200_000, b"*1\r\n$4\r\nPING\r\n\x00" + b"x" * 70_000):
        table.peers.clear()
        peer = table.peer()
        peer.raw(payload)
        peer.bytes(seconds=3)


@scenario()
def publish_behind_a_subscribe_that_is_not_confirmed(table):
    a, b = table.peer(), table.peer()
    for turn in range(5):
        a.send("SUBSCRIBE", f"c{turn}")
        b.ask("PUBLISH", f"c{turn}", "m")
        a.read(2)


@scenario()
def subscriber_of_resp3_that_publishes_to_itself(table):
    a = table.peer(3)
    a.ask("SUBSCRIBE", "c")
    for turn in range(3):
        a.send("PUBLISH", "c", turn)
        a.read(2)
    a.send("SET", "k", "v")
    a.send("PUBLISH", "c", "x")
    a.send("GET", "k")
    a.read(4)


@scenario()
def publish_right_behind_unsubscribe(table):
    a, b = table.peer(), table.peer()
    a.ask("PSUBSCRIBE", "n*")
    a.ask("SUBSCRIBE", "n1")
    b.ask("PUBLISH", "n1", "m")
    a.read(2)
    a.send("PUNSUBSCRIBE", "n*")
    b.ask("PUBLISH", "n1", "m2")
    b.ask("PUBSUB", "NUMPAT")
    b.ask("PUBSUB", "NUMSUB", "n1")
    a.read(2)
    a.ask("UNSUBSCRIBE")
    b.ask("PUBLISH", "n1", "m3")
    a.ask("SET", "k", "v")


@scenario()
def commands_that_a_subscriber_may_send(table):
    a = table.peer()
    for words in (("SUBSCRIBE", "c"), ("PING",), ("PING", "x"), ("GET", "k"), ("SUBSCRIBE",), ("UNSUBSCRIBE", "none"), ("RESET",), ("GET", "k")):
        a.ask(*words)
    a.send("SUBSCRIBE", "a", "b", "a")
    a.read(3)
    a.send("UNSUBSCRIBE")
    a.read(2)
    a.ask("QUIT")


@scenario()
def sharded_publish_and_subscribe(table):
    a, b = table.peer(), table.peer(3)
    a.ask("SSUBSCRIBE", "c")
    b.ask("SSUBSCRIBE", "c")
    b.ask("PUBSUB", "SHARDNUMSUB", "c")
    table.peer().ask("SPUBLISH", "c", "m")
    a.read(1)
    b.read(1)


@scenario(fresh=True)
def keyspace_events(table):
    a, b = table.peer(), table.peer()
    b.ask("CONFIG", "SET", "notify-keyspace-events", "KEA")
    a.ask("PSUBSCRIBE", "__key*__:*")
    for words in (("SET", "k", "v"), ("SET", "k", "w", "EX", "100"), ("INCR", "n"), ("MSET", "a", "1", "b", "2"), ("LPUSH", "l", "x")):
        b.ask(*words)
    for words in (("EVAL", "return redis.call('SET', KEYS[1], 'x')", "1", "e"), ("DEL", "k", "l"), ("SETEX", "t", "10", "v"), ("GETDEL", "a")):
        b.ask(*words)
    a.client.begin(b"", lambda replies: False)
    exchange([a.client], 0.5)
    table.write(" | ".join(show(reply) for reply in a.client.replies))


@scenario()
def watch_between_two_clients(table):
    a, b = table.peer(), table.peer()
    for change in (("SET", "k", "2"), ("DEL", "k"), ("INCR", "other"), ("EXPIRE", "k", "100"), ("FLUSHALL",), ("EVAL", "redis.call('SET','k',1)", "0")):
        b.ask("SET", "k", "1")
        a.ask("WATCH", "k")
        b.ask(*change)
        a.ask("MULTI")
        a.ask("SET", "k", "a")
        a.ask("EXEC")


@scenario()
def flush_while_watching(table):
    a = table.peer()
    a.ask("SET", "k", "1")
    a.ask("WATCH", "k")
    a.ask("FLUSHALL")
    a.ask("MULTI")
    a.ask("PING")
    a.ask("EXEC")


@scenario()
def scripts_while_watching(table):
    a = table.peer()
    a.ask("WATCH", "k")
    a.ask("EVAL", "return redis.call('GET', KEYS[1])", "1", "k")
    a.ask("SCRIPT", "LOAD", "return 1")
    a.ask("UNWATCH")


@scenario()
def select_and_client_inside_multi(table):
    for words in (("SELECT", "1"), ("CLIENT", "ID"), ("HELLO",), ("UNWATCH",), ("WAIT", "0", "1"), ("AUTH", "x"), ("SUBSCRIBE", "c"), ("WATCH", "k")):
        table.peers.clear()
        a = table.peer()
        a.ask("MULTI")
        a.ask(*words)
        a.ask("SET", "k", "v")
        a.ask("EXEC", shown=kind)
        a.ask("PING")


@scenario(slow=True)
def client_reply(table):
    a = table.peer()
    a.send("CLIENT", "REPLY", "OFF")
    a.send("SET", "k", "v")
    a.send("CLIENT", "REPLY", "ON")
    a.send("GET", "k")
    a.read(2)
    a.send("CLIENT", "REPLY", "SKIP")
    a.send("SET", "k", "w")
    a.send("GET", "k")
    a.read(1)
    a.quiet()


@scenario(slow=True)
def client_unblock(table):
    a, b = table.peer(), table.peer()
    name = a.ask("CLIENT", "ID", shown=kind)[1:]
    for how in ((), ("TIMEOUT",), ("ERROR",)):
        a.send("BLPOP", "none", "10")
        time.sleep(0.05)
        b.ask("CLIENT", "UNBLOCK", name, *how, about=f"unblock {how}")
        a.read(1, seconds=2)
    b.ask("CLIENT", "UNBLOCK", "99999999")


@scenario()
def client_kill(table):
    a, b = table.peer(), table.peer()
    name = a.ask("CLIENT", "ID", shown=kind)[1:]
    b.ask("CLIENT", "KILL", "ID", name, about="kill A")
    a.ask("PING")
    b.ask("CLIENT", "KILL", "127.0.0.1:1")
    b.ask("CLIENT", "KILL", "TYPE", "pubsub")


@scenario(fresh=True)
def client_pause(table):
    a, b = table.peer(), table.peer()
    b.ask("CLIENT", "PAUSE", "300", "WRITE")
    a.ask("GET", "k")
    begun = time.monotonic()
    a.ask("SET", "k", "v")
    table.write(f"waited: {time.monotonic() - begun > 0.2}")
    b.ask("CLIENT", "UNPAUSE")


@scenario()
def client_tracking(table):
    a, b = table.peer(3), table.peer()
    a.ask("CLIENT", "TRACKING", "ON")
    a.ask("GET", "k")
    b.ask("SET", "k", "v")
    a.read(1, seconds=2)
    a.ask("CLIENT", "TRACKINGINFO")
    a.ask("CLIENT", "CACHING", "YES")
    a.ask("CLIENT", "TRACKING", "OFF")


@scenario()
def what_client_says_of_itself(table):
    for protocol in (2, 3):
        table.peers.clear()
        a = table.peer(protocol)
        a.ask("CLIENT", "SETNAME", "me")
        a.ask("CLIENT", "GETNAME")
        for words in (("LIST",), ("INFO",), ("LIST", "TYPE", "normal")):
            a.ask("CLIENT", *words, shown=lambda reply: f"{reply[:1]} {fields(reply)}")
        a.ask("CLIENT", "HELP", shown=kind)
        for words in (("NO-EVICT", "ON"), ("NO-TOUCH", "ON"), ("GETREDIR",), ("TRACKINGINFO",), ("SETNAME", "a b"), ("NOSUCH",), ()):
            a.ask("CLIENT", *words)


@scenario()
def clients_see_each_other_in_client_list(table):
    a, b = table.peer(), table.peer()
    a.ask("CLIENT", "SETNAME", "first")
    b.ask("CLIENT", "SETNAME", "second")
    a.ask("CLIENT", "LIST", shown=lambda reply: sorted(re.findall(rb"name=(first|second)", reply)))


@scenario()
def fields_of_info(table):
    a = table.peer()
    for section in ("server", "clients", "memory", "persistence", "stats", "replication", "cpu", "keyspace", "commandstats", "errorstats"):
        a.ask("SET", "k", "v")
        a.ask("INFO", section, shown=lambda reply: f"{reply[:1]} {fields(reply)}")
    table.peer(3).ask("INFO", "server", shown=kind)
    a.ask("INFO", "keyspace", shown=lambda reply: re.findall(rb"keys=\d+", reply))


@scenario()
def pmnets_own_keys(table):
    a = table.peer()
    a.ask("EVAL", "return 1", "0")
    a.ask("DBSIZE")
    a.ask("RANDOMKEY")
    a.ask("KEYS", "*")
    a.ask("SCAN", "0", "COUNT", "1000")
    keys = a.ask("KEYS", "*")
    names = [item[item.index(b"\r\n") + 2 :] for item in keys[1:]]
    for name in names:
        for command in ("TYPE", "TTL", "EXISTS", "STRLEN"):
            a.ask(command, name)
        a.ask("MEMORY", "USAGE", name, shown=kind)
    a.ask("SET", "mine", "1")
    a.ask("DEL", "mine", *names)
    a.ask("FLUSHALL")
    a.ask("DBSIZE")


@scenario()
def scripts_are_known(table):
    a = table.peer()
    sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
    a.ask("SCRIPT", "FLUSH")
    a.ask("SCRIPT", "EXISTS", sha)
    a.ask("EVALSHA", sha, "0")
    a.ask("SCRIPT", "LOAD", "return 1")
    a.ask("SCRIPT", "EXISTS", sha)
    a.ask("EVALSHA", sha, "0")
    a.ask("SCRIPT", "FLUSH")
    a.ask("SCRIPT", "EXISTS", sha)
    a.ask("EVALSHA", sha, "0")
    a.ask("EVAL", "return 1", "0")
    a.ask("SCRIPT", "EXISTS", sha)
    a.ask("SCRIPT", "FLUSH", "FOO")
    a.ask("SCRIPT", "FLUSH", "ASYNC")
    a.ask("EVAL_RO", "return 1", "0")
    a.ask("EVALSHA_RO", sha, "0")
    a.ask("EVALSHA", sha, "0")
    a.ask("SCRIPT", "HELP", shown=kind)
    a.ask("SCRIPT", "LOAD", "syntax error")


@scenario()
def flags_of_scripts(table):
    a = table.peer()
    a.ask("EVAL", "#!lua flags=no-writes\nreturn redis.call('SET', 'k', 'v')", "0")
    a.ask("EXISTS", "k")
    a.ask("EVAL", "#!lua flags=nosuch\nreturn 1", "0")
    a.ask("EVAL", "#!python\nreturn 1", "0")
    a.ask("EVAL", "#!lua name=x\nreturn 1", "0")


@scenario()
def a_script_that_may_only_read_inside_multi(table):
    a = table.peer()
    a.ask("MULTI")
    a.ask("SET", "a", "1")
    a.ask("EVAL_RO", "redis.call('SET', 'k', 'v') return 'it wrote'", "0")
    a.ask("EXEC")
    a.ask("EXISTS", "k")


@scenario()
def errors_of_scripts(table):
    for protocol in (2, 3):
        table.peers.clear()
        a = table.peer(protocol)
        a.ask("SET", "s", "x")
        for script in (
            "return redis.call('INCR', 's')",
            "return redis.call('NOSUCH')",
            "return redis.call('GET')",
            "return redis.call()",
            "return redis.call({})",
            "error('x')",
            "error({err='MY x'})",
            "return nosuch",
            "local a = nil; return a.b",
            "return redis.error_reply('MY x')",
            "return {err='no code'}",
            "return redis.pcall('INCR', 's')",
            "return redis.pcall('INCR', 's').err",
            "syntax error",
            "return redis.call('SELECT', '1')",
            "return redis.call('BLPOP', 'l', 0)",
            "return redis.call('SUBSCRIBE', 'c')",
            "return redis.setresp(4)",
            "return loadstring('return 7')()",
            "return setmetatable({}, {__index = 1})",
            "return getmetatable('')",
            "return redis.acl_check_cmd('GET', 'k')",
            "return redis.breakpoint()",
            "return KEYS[1]",
            "return #KEYS .. type(ARGV)",
            "redis.call('SET', 'a', 1) error('after')",
        ):
            a.ask("EVAL", script, "0")
        a.ask("EVAL", "return 1", "1")
        a.ask("EVAL", "return 1", "x")
        a.ask("EVAL", "return 1", "-1")
        a.ask("EVAL_RO", "return redis.call('SET', 'k', 'v')", "0")
        a.ask("EVALSHA", "x", "0")


@scenario(fresh=True, slow=True)
def a_script_that_never_ends_can_be_killed(table):
    a, b = table.peer(), table.peer()
    b.ask("CONFIG", "SET", "lua-time-limit", "50")
    a.send("EVAL", "while true do end", "0")
    time.sleep(0.4)
    b.ask("GET", "k", seconds=3)
    b.ask("SCRIPT", "KILL", seconds=3)
    a.read(1, seconds=3, shown=kind)
    b.ask("PING", seconds=3)
    b.ask("SCRIPT", "KILL", seconds=3)


@scenario()
def functions(table):
    a = table.peer(3)
    library = "#!lua name=mine\nredis.register_function{function_name='look', callback=function(k, a) return redis.call('GET', k[1]) end, flags={'no-writes'}}\nredis.register_function('put', function(k, a) return redis.call('SET', k[1], a[1]) end)"
    for words in (
        *(("FUNCTION", "LOAD", library), ("FUNCTION", "LOAD", library), ("FCALL", "put", "1", "k", "v"), ("FCALL", "look", "1", "k")),
        *(("FCALL_RO", "look", "1", "k"), ("FCALL_RO", "put", "1", "k", "v"), ("FCALL", "nosuch", "0")),
        *(("FUNCTION", "KILL"), ("FUNCTION", "DELETE", "mine"), ("FUNCTION", "DELETE", "mine"), ("FCALL", "look", "1", "k")),
        *(("FUNCTION", "FLUSH", "FOO"), ("FUNCTION", "STATS"), ("FUNCTION", "NOSUCH"), ("FUNCTION",)),
    ):
        a.ask(*words)


@scenario()
def replies_that_pass_through_lua(table):
    for protocol in (2, 3):
        table.peers.clear()
        a = table.peer(protocol)
        for turn in range(1, 5):
            a.ask("XADD", "x", f"{turn}-1", "f", "v")
        a.ask("XGROUP", "CREATE", "x", "g", "0")
        a.ask("XPENDING", "x", "g")
        a.ask("XREADGROUP", "GROUP", "g", "c", "STREAMS", "x", ">")
        a.ask("XTRIM", "x", "MAXLEN", "2")
        a.ask("XREADGROUP", "GROUP", "g", "c", "STREAMS", "x", "0")
        a.ask("XCLAIM", "x", "g", "d", "0", "1-1", "3-1")
        a.ask("XAUTOCLAIM", "x", "g", "d", "0", "0")
        a.ask("HSET", "h", *[word for number in range(20) for word in (f"f{number}", number)])
        a.ask("HSET", "one", "f", "v")
        a.ask("SET", "b", b"\xff" * 8)
        for words in (
            *(("HGETALL", "h"), ("BITFIELD_RO", "b", "GET", "u63", "0", "GET", "i64", "0"), ("CONFIG", "GET", "databases")),
            *(("HMGET", "h", "f1", "none"), ("XRANGE", "x", "-", "+"), ("ZADD", "z", "1.5", "a", "inf", "b"), ("ZSCORE", "z", "a")),
            *(("ZRANGE", "z", "0", "-1", "WITHSCORES"), ("ZSCORE", "z", "none"), ("LPOS", "none", "x"), ("LPOP", "none", "2")),
            *(("GEOADD", "geo", "13.361389", "38.115556", "p"), ("GEOPOS", "geo", "p", "none"), ("XPENDING", "x", "g"), ("SPOP", "none")),
            *(("XINFO", "STREAM", "x"), ("OBJECT", "FREQ", "none"), ("ZMSCORE", "z", "a", "none"), ("HRANDFIELD", "one", "1", "WITHVALUES")),
            *(("INCRBYFLOAT", "f", "3.0e3"), ("HINCRBYFLOAT", "one", "g", "0.1"), ("ZINCRBY", "z", "0.1", "a"), ("SMISMEMBER", "none", "a")),
            *(("MGET", "b", "none"), ("LMPOP", "1", "none", "LEFT"), ("ZMPOP", "1", "z", "MIN"), ("ZPOPMIN", "z"), ("BLPOP", "none", "1")),
            *(("COMMAND", "INFO", "get", "nosuch"), ("SCRIPT", "EXISTS", "x"), ("LCS", "b", "b", "IDX"), ("MEMORY", "USAGE", "none")),
        ):
            a.ask("MULTI")
            a.ask("INCR", "n")
            a.ask(*words)
            a.ask("EXEC")
        a.ask("FLUSHALL")


@scenario(slow=True)
def blocked_readers(table):
    a, b = table.peer(), table.peer()
    for make, block, wake in (
        ((), ("BLPOP", "l", "3"), ("RPUSH", "l", "v", "w")),
        (("DEL", "l"), ("BLMOVE", "l", "m", "LEFT", "RIGHT", "3"), ("RPUSH", "l", "v")),
        (("DEL", "z"), ("BZPOPMIN", "z", "3"), ("ZADD", "z", "1", "a")),
        (("DEL", "x"), ("XREAD", "BLOCK", "3000", "STREAMS", "x", "$"), ("XADD", "x", "1-1", "f", "v")),
        (("XGROUP", "CREATE", "x", "g", "$"), ("XREADGROUP", "GROUP", "g", "c", "BLOCK", "3000", "STREAMS", "x", ">"), ("XADD", "x", "2-1", "f", "v")),
        ((), ("XREADGROUP", "GROUP", "g", "c", "BLOCK", "3000", "STREAMS", "x", ">"), ("DEL", "x")),
        (("XGROUP", "CREATE", "x", "g", "$", "MKSTREAM"), ("XREADGROUP", "GROUP", "g", "c", "BLOCK", "3000", "STREAMS", "x", ">"), ("SET", "x", "v")),
        (("DEL", "l"), ("BLPOP", "l", "1"), ("SET", "l", "v")),
        (("DEL", "l"), ("BLMPOP", "3", "2", "l", "l2", "LEFT", "COUNT", "2"), ("RPUSH", "l2", "v", "w", "u")),
        ((), ("BLPOP", "l", "0.1"), ("PING",)),
    ):
        if make:
            b.ask(*make)
        a.send(*block)
        time.sleep(0.05)
        b.ask(*wake)
        a.read(1, seconds=4)


@scenario()
def blocked_first_come_first_served(table):
    peers = [table.peer() for _ in range(3)]
    for peer in peers:
        peer.send("BLPOP", "l", "3")
        time.sleep(0.02)
    table.peer().ask("RPUSH", "l", "1", "2", "3")
    for peer in peers:
        peer.read(1, seconds=4)


@scenario()
def passwords_of_a_redis_without_any(table):
    for words in (("AUTH", "x"), ("AUTH", "default", "x"), ("AUTH", "nobody", "x"), ("HELLO", "3", "AUTH", "default", "x"), ("HELLO", "2", "AUTH", "nobody", "x")):
        table.peers.clear()
        table.peer().ask(*words, shown=lambda reply: show(reply) if reply[:1] in (b"-", b"+") else "a map")


@scenario()
def hello_reset_and_quit(table):
    a = table.peer()
    a.ask("HELLO", shown=lambda reply: [show(item) for item in reply[1::2]])
    for words in (("HELLO", "4"), ("HELLO", "x"), ("HELLO", "3", "SETNAME", "n"), ("CLIENT", "GETNAME"), ("RESET",), ("CLIENT", "GETNAME")):
        a.ask(*words, shown=lambda reply: show(reply) if not isinstance(reply, list) else [show(item) for item in reply[1::2]])
    a.ask("SELECT", "5")
    a.ask("SET", "k", "five")
    a.ask("MULTI")
    a.ask("RESET")
    a.ask("GET", "k")
    a.ask("SELECT", "9223372036854775807")
    a.ask("SELECT", "16")
    a.ask("QUIT")
    a.ask("PING")


@scenario()
def arguments_that_are_too_large(table):
    for size in (1 << 20, 17 << 20):
        table.peers.clear()
        a = table.peer()
        a.ask("SET", "big", b"x" * size)
        a.ask("STRLEN", "big")
        a.ask("APPEND", "big", "y")
        a.ask("GET", "big", shown=lambda reply: f"{reply[:1]} {len(reply)}")


@scenario()
def what_monitor_shows(table):
    a, b = table.peer(), table.peer()
    a.ask("MONITOR")
    b.ask("SET", "foo", "bar")
    b.ask("GET", "foo")
    b.ask("INCR", "n")
    a.client.begin(b"", lambda replies: False)
    exchange([a.client], 0.5)
    table.write(" | ".join(re.sub(r"^\+[0-9.]+ \[0 127[^]]*\]", "", show(reply)) for reply in a.client.replies))


@scenario(fresh=True)
def settings_can_be_changed(table):
    a = table.peer()
    for words in (
        *(("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru"), ("maxmemory", "0"), ("hash-max-listpack-entries", "10")),
        *(("save", "100 1"), ("appendonly", "yes"), ("appendonly", "no"), ("timeout", "0"), ("nosuch", "1"), ("slowlog-log-slower-than", "0")),
        *(("list-max-listpack-size", "-2", "maxmemory-samples", "5"), ("notify-keyspace-events", "KEA"), ("databases", "20")),
    ):
        a.ask("CONFIG", "SET", *words)
    a.ask("CONFIG", "RESETSTAT")
    a.ask("CONFIG", "GET", "nosuch", "hash-max-listpack-entries", "list-max-listpack-size")
    a.ask("CONFIG", "REWRITE")


@scenario(fresh=True)
def replicas_that_are_missing(table):
    a = table.peer()
    a.ask("CONFIG", "SET", "min-replicas-to-write", "1")
    a.ask("SET", "k", "v")
    a.ask("CONFIG", "SET", "min-replicas-to-write", "0")
    a.ask("SET", "k", "v")
    a.ask("INCR", "n")


@scenario(fresh=True)
def a_password_set_by_a_client(table):
    a = table.peer()
    a.ask("CONFIG", "SET", "requirepass", "secret")
    table.peer().ask("GET", "k")
    b = table.peer()
    b.ask("AUTH", "secret")
    b.ask("INCR", "n")
    b.ask("BLPOP", "none", "0.1")
    b.ask("CONFIG", "SET", "requirepass", "")


@scenario(fresh=True)
def users_made_by_a_client(table):
    a = table.peer()
    a.ask("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+get", "+ping")
    b = table.peer()
    b.ask("AUTH", "reader", "wrong")
    b.ask("AUTH", "reader", "secret")
    b.ask("ACL", "WHOAMI")
    b.ask("SET", "k", "v")
    b.ask("GET", "k")
    a.ask("EXISTS", "k")
    a.ask("ACL", "DELUSER", "reader")


@scenario(fresh=True)
def slow_log(table):
    a = table.peer()
    a.ask("CONFIG", "SET", "slowlog-log-slower-than", "0")
    a.ask("SLOWLOG", "RESET")
    a.ask("SET", "k", "v")
    a.ask("INCR", "n")
    a.ask("GET", "k")
    a.ask("SLOWLOG", "GET", "20", shown=lambda reply: [show(entry[4]) for entry in reply[1:]])


@scenario(fresh=True)
def out_of_memory(table):
    a = table.peer()
    a.ask("SET", "k", "v")
    a.ask("CONFIG", "SET", "maxmemory", "1")
    for words in (("SET", "k", "w"), ("INCR", "n"), ("GET", "k"), ("DEL", "k"), ("EVAL", "return redis.call('SET', 'a', 1)", "0"), ("CONFIG", "SET", "maxmemory", "0")):
        a.ask(*words)
    a.ask("SET", "k", "x")
    a.ask("GET", "k")


def run(name, port):
    """What the scenario writes down on this server."""
    table = Table(port)
    client = Peer(table, "reset")
    try:
        client.ask("FLUSHALL")
        client.client.close()
        table.lines.clear()
        EVERY[name](table)
    except (OSError, TypeError, IndexError, ValueError, Trouble) as error:
        # A reply was missing, or not what the scenario goes on with.
        table.write(f"it cannot go on: {type(error).__name__}")
    finally:
        table.close()
    return table.lines


def compare(name, stacks):
    """None, or where the two sides are different: a list of lines."""
    left, right = (run(name, stack.port) for stack in stacks)
    if left == right:
        return None
    found = []
    for number in range(max(len(left), len(right))):
        direct = left[number] if number < len(left) else "(nothing)"
        front = right[number] if number < len(right) else "(nothing)"
        if direct != front:
            found.append(f"direct: {direct}\nfront:  {front}")
    return found


def run_all(binary, names, each):
    """{name: None or the differences}; `each(name, found)` is called after each of them."""
    results, shared = {}, None
    try:
        for name in names:
            if name in FRESH:
                with Stack() as direct, Stack(binary) as front:
                    results[name] = compare(name, (direct, front))
            else:
                if shared is None or shared[1].died():
                    shared = (Stack(), Stack(binary))
                results[name] = compare(name, shared)
            each(name, results[name])
    finally:
        for stack in shared or ():
            stack.close()
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only those whose name contains one of these")
    parser.add_argument("--pmnet", metavar="FILE", help="the binary (default: target/release/pmnet)")
    options = parser.parse_args()
    names = [name for name in EVERY if not options.names or any(word in name for word in options.names)]

    def each(name, found):
        print(f"{'same' if found is None else 'DIFFERENT':10} {name}", flush=True)
        for lines in found or ():
            print("    " + lines.replace("\n", "\n    "))

    results = run_all(binary_path(options.pmnet), names, each)
    different = sum(found is not None for found in results.values())
    print(f"{len(results)} scenarios, {different} different")
    return 1 if different else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    try:
        sys.exit(main())
    except Trouble as trouble:
        sys.exit(str(trouble))
    except KeyboardInterrupt:
        sys.exit("stopped")
