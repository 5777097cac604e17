#!/usr/bin/env python3
"""Scenarios that random commands on a single connection cannot cover: several clients, long pipelines, raw bytes,
settings.

Each scenario runs on a Redis, and on a Redis behind pmnet. Both records must be equal.

  tests/compat/scenarios.py [NAME …]
"""

import argparse
import re
import signal
import subprocess
import sys
import time

from resp import show
from stack import TARGET, Stack, Trouble, binary_path
from table import ANSWER_SECONDS_MAX, Peer, Table, fields, kind, values

# The scenarios by name. The scenarios in FRESH leave settings or a blocked server behind, so these scenarios get
# servers of their own. The scenarios in SLOW wait for seconds.
EVERY, FRESH, SLOW = {}, set(), set()
KILO = b"v" * 1000
# Seconds after which a blocking command has surely begun on both sides.
BLOCKS_SECONDS = 0.05
# The SHA1 hash of the script "return 1".
SHA = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"


def scenario(fresh=False, slow=False):
    """Registers a function as a scenario. The function takes a Table."""

    def register(function):
        name = function.__name__.replace("_", " ")
        EVERY[name] = function
        if fresh:
            FRESH.add(name)
        if slow:
            SLOW.add(name)
        return function

    return register


# Pipelines and bytes


@scenario(slow=True)
def pipeline_of_30000_getset_of_1_kb(table):
    table.long_pipeline(30_000, lambda number: ("GETSET", f"k{number % 100}", KILO), lambda reply: reply[:1] == b"$")


@scenario(slow=True)
def pipeline_of_40000_echo_of_1_kb(table):
    table.long_pipeline(40_000, lambda number: ("ECHO", KILO), lambda reply: len(reply) > 1000)


@scenario(slow=True)
def pipeline_of_100000_get_of_1_kb(table):
    table.peer().ask("SET", "k", KILO)
    table.long_pipeline(100_000, lambda number: ("GET", "k"), lambda reply: len(reply) > 1000)


@scenario(slow=True)
def pipeline_of_10000_alternating_set_and_get(table):
    def make(number):
        name = f"k{number // 2 % 100}"
        return ("SET", name, KILO) if number % 2 == 0 else ("GET", name)

    table.long_pipeline(20_000, make, lambda reply: reply == b"+OK" or len(reply) > 1000)


@scenario()
def inline_commands(table):
    a = table.peer()
    for payload in (
        b"PING\r\n",
        b"SET a 'b c'\r\nGET a\r\n",
        b'SET a "x\\x41\\n"\r\nGET a\n',
        b"\r\n\r\nPING\r\n",
        b"GET\r\n",
        b"NOSUCH a b\r\n",
        b"NOSUCH" + b"x" * 200 + b" " + b"y" * 200 + b"\r\n",
        b"*0\r\nPING\r\n",
        b"*-1\r\nPING\r\n",
        b"*1\r\n$0\r\n\r\n",
    ):
        a.raw(payload)
        a.bytes(0.2)


@scenario()
def broken_protocol(table):
    for payload in (
        b"SET a 'unbalanced\r\n",
        b"*x\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfoo\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$-10\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"Host: example\r\n\r\n",
    ):
        a = table.anew()
        table.write(repr(payload))
        a.raw(payload)
        a.bytes(0.4)


@scenario()
def lengths_that_are_too_large(table):
    for payload in (b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$2000000000\r\n", b"*20000000\r\n"):
        a = table.anew()
        table.write(repr(payload))
        a.raw(payload)
        a.bytes(0.4)


@scenario()
def a_bulk_string_that_ends_with_other_bytes(table):
    a = table.peer()
    a.raw(b"*2\r\n$4\r\nECHO\r\n$1\r\nabc")
    a.bytes(0.4)


@scenario(slow=True)
def garbage_that_begins_with_nul(table):
    for payload in (b"\x00" * 200_000, b"*1\r\n$4\r\nPING\r\n\x00" + b"x" * 70_000):
        a = table.anew()
        a.raw(payload)
        a.bytes(3)


@scenario()
def a_value_of_1_mib(table):
    a = table.peer()
    a.ask("SET", "big", b"x" * (1 << 20))
    a.asks("STRLEN big\n APPEND big y")
    a.ask("GET", "big", shown=lambda reply: f"{reply[:1]} {len(reply)}")


@scenario()
def a_value_of_17_mib(table):
    a = table.peer()
    a.ask("SET", "big", b"x" * (17 << 20))
    a.ask("STRLEN", "big")


# Publish and subscribe, blocking


@scenario()
def publish_behind_a_subscribe_that_is_not_confirmed(table):
    a, b = table.peer(), table.peer()
    for turn in range(5):
        a.send("SUBSCRIBE", f"c{turn}")
        b.ask("PUBLISH", f"c{turn}", "m")
        a.read(1)
        a.read(1, seconds=1)


@scenario()
def subscriber_of_resp3_that_publishes_to_itself(table):
    a = table.peer(3)
    a.ask("SUBSCRIBE", "c")
    for turn in range(3):
        a.send("PUBLISH", "c", turn)
        a.read(2)
    a.send("SET k v")
    a.send("PUBLISH c x")
    a.send("GET k")
    a.read(4)


@scenario()
def publish_right_behind_unsubscribe(table):
    a, b = table.peer(), table.peer()
    a.asks("PSUBSCRIBE n*\n SUBSCRIBE n1")
    b.ask("PUBLISH", "n1", "m")
    a.read(2)
    a.send("PUNSUBSCRIBE n*")
    b.asks("PUBLISH n1 m2\n PUBSUB NUMPAT\n PUBSUB NUMSUB n1")
    a.read(2)
    a.ask("UNSUBSCRIBE")
    b.ask("PUBLISH", "n1", "m3")
    a.ask("SET", "k", "v")


@scenario()
def commands_that_a_subscriber_may_send(table):
    a = table.peer()
    a.asks("SUBSCRIBE c\n PING\n PING x\n GET k\n SUBSCRIBE\n UNSUBSCRIBE none\n RESET\n GET k")
    a.send("SUBSCRIBE a b a")
    a.read(3)
    a.send("UNSUBSCRIBE b a")
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
    b.asks(
        """
        SET k v
        SET k w EX 100
        INCR n
        MSET a 1 b 2
        LPUSH l x
        EVAL "return redis.call('SET', KEYS[1], 'x')" 1 e
        DEL k l
        SETEX t 10 v
        GETDEL a
        """
    )
    a.all()


@scenario(slow=True)
def blocked_readers(table):
    a, b = table.peer(), table.peer()
    for make, block, wake in (
        ("PING", "BLPOP l 3", "RPUSH l v w"),
        ("DEL l", "BLMOVE l m LEFT RIGHT 3", "RPUSH l v"),
        ("DEL z", "BZPOPMIN z 3", "ZADD z 1 a"),
        ("DEL x", "XREAD BLOCK 3000 STREAMS x $", "XADD x 1-1 f v"),
        ("XGROUP CREATE x g $", "XREADGROUP GROUP g c BLOCK 3000 STREAMS x >", "XADD x 2-1 f v"),
        ("PING", "XREADGROUP GROUP g c BLOCK 3000 STREAMS x >", "DEL x"),
        ("XGROUP CREATE x g $ MKSTREAM", "XREADGROUP GROUP g c BLOCK 3000 STREAMS x >", "SET x v"),
        ("DEL l", "BLPOP l 1", "SET l v"),
        ("DEL l", "BLMPOP 3 2 l l2 LEFT COUNT 2", "RPUSH l2 v w u"),
        ("PING", "BLPOP l 0.1", "PING"),
    ):
        b.asks(make)
        a.send(block)
        time.sleep(BLOCKS_SECONDS)
        b.asks(wake)
        a.read(1, seconds=4)


@scenario()
def first_come_first_served(table):
    peers = [table.peer() for _ in range(3)]
    for peer in peers:
        peer.send("BLPOP l 3")
        time.sleep(BLOCKS_SECONDS)
    table.peer().ask("RPUSH", "l", "1", "2", "3")
    for peer in peers:
        peer.read(1, seconds=4)


# Transactions


@scenario()
def watch_between_two_clients(table):
    a, b = table.peer(), table.peer()
    for change in ("SET k 2", "DEL k", "INCR other", "EXPIRE k 100", "FLUSHALL", "EVAL \"redis.call('SET','k',1)\" 0"):
        b.ask("SET", "k", "1")
        a.ask("WATCH", "k")
        b.asks(change)
        a.asks("MULTI\n SET k a\n EXEC")


@scenario()
def flush_while_watching(table):
    table.peer().asks("SET k 1\n WATCH k\n FLUSHALL\n MULTI\n PING\n EXEC")


@scenario()
def scripts_while_watching(table):
    table.peer().asks("WATCH k\n EVAL \"return redis.call('GET', KEYS[1])\" 1 k\n SCRIPT LOAD 'return 1'\n UNWATCH")


@scenario()
def select_and_client_inside_multi(table):
    for line in ("SELECT 1", "CLIENT ID", "HELLO", "UNWATCH", "WAIT 0 1", "AUTH x", "SUBSCRIBE c"):
        a = table.anew()
        a.asks(f"MULTI\n {line}\n SET k v")
        a.ask("EXEC", shown=kind)
        a.ask("PING")


@scenario()
def a_command_that_cannot_be_queued(table):
    for line in ("GET", "NOSUCH", "SET k", "XGROUP CREATE x", "OBJECT NOSUCH k", "SUBSCRIBE", "WATCH k", "MULTI"):
        table.anew().asks(f"MULTI\n SET k v\n {line}\n EXEC\n EXISTS k\n FLUSHALL")


@scenario()
def cluster_inside_multi(table):
    table.peer().asks("CLUSTER INFO\n READONLY\n MULTI\n SET k v\n CLUSTER INFO\n EXEC\n EXISTS k")


@scenario()
def replies_in_a_transaction_that_writes(table):
    for protocol in (2, 3):
        a = table.anew(protocol)
        a.asks(
            """
            XADD x 1-1 f v
            XADD x 2-1 f v
            XADD x 3-1 f v
            XGROUP CREATE x g 0
            XPENDING x g
            XREADGROUP GROUP g c STREAMS x >
            XTRIM x MAXLEN 2
            XREADGROUP GROUP g c STREAMS x 0
            XCLAIM x g d 0 1-1 3-1
            XAUTOCLAIM x g d 0 0
            HSET one f v
            ZADD z 1.5 a inf b
            GEOADD geo 13.361389 38.115556 p
            """
        )
        a.ask("SET", "b", b"\xff" * 8)
        a.ask("HSET", "h", *[word for number in range(20) for word in (f"f{number}", number)])
        for line in IN_A_TRANSACTION.split("\n"):
            if line.strip():
                a.asks(f"MULTI\n INCR n\n {line}\n EXEC")
        a.ask("FLUSHALL")


IN_A_TRANSACTION = """
HGETALL h
BITFIELD_RO b GET u63 0 GET i64 0
CONFIG GET databases
HMGET h f1 none
XRANGE x - +
XRANGE x - + COUNT -2
ZSCORE z a
ZRANGE z 0 -1 WITHSCORES
ZSCORE z none
LPOS none x
LPOP none 2
GEOPOS geo p none
XPENDING x g
XREADGROUP GROUP g d STREAMS x 0
SPOP none
XINFO STREAM x
XINFO GROUPS x
ZMSCORE z a none
HRANDFIELD one 1 WITHVALUES
INCRBYFLOAT f 3.0e3
HINCRBYFLOAT one g 0.1
ZINCRBY z 0.1 a
SMISMEMBER none a
MGET b none
LMPOP 1 none LEFT
ZMPOP 1 z MIN
ZPOPMIN z
BLPOP none 1
COMMAND INFO get nosuch
SCRIPT EXISTS x
LCS b b IDX
MEMORY USAGE none
OBJECT FREQ none
EVAL "return {1, 'a', false, {2}}" 0
GET h
NOSUCH
"""


# What a client learns about itself and about other clients


@scenario(slow=True)
def client_reply(table):
    a = table.peer()
    for line in ("CLIENT REPLY OFF", "SET k v", "CLIENT REPLY ON", "GET k"):
        a.send(line)
    a.read(2)
    for line in ("CLIENT REPLY SKIP", "SET k w", "GET k"):
        a.send(line)
    a.read(1)
    a.quiet()


@scenario(slow=True)
def client_unblock(table):
    a, b = table.peer(), table.peer()
    name = a.ask("CLIENT", "ID", shown=kind)[1:]
    for how in ((), ("TIMEOUT",), ("ERROR",)):
        a.send("BLPOP none 3")
        time.sleep(BLOCKS_SECONDS)
        b.ask("CLIENT", "UNBLOCK", name, *how, about=f"unblock {how}")
        a.read(1, seconds=4)
    b.ask("CLIENT", "UNBLOCK", "99999999")


@scenario()
def client_kill(table):
    a, b = table.peer(), table.peer()
    name = a.ask("CLIENT", "ID", shown=kind)[1:]
    b.ask("CLIENT", "KILL", "ID", name, about="kill A")
    a.ask("PING")
    b.asks("CLIENT KILL 127.0.0.1:1\n CLIENT KILL TYPE pubsub")


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
    a.asks("CLIENT TRACKING ON\n GET k")
    b.ask("SET", "k", "v")
    a.read(1, seconds=2)
    a.asks("CLIENT TRACKINGINFO\n CLIENT CACHING YES\n CLIENT TRACKING OFF")


@scenario()
def what_client_says_of_itself(table):
    for protocol in (2, 3):
        a = table.anew(protocol)
        a.asks("CLIENT SETNAME me\n CLIENT GETNAME")
        a.asks("CLIENT LIST\n CLIENT INFO\n CLIENT LIST TYPE normal", shown=fields)
        a.ask("CLIENT", "HELP", shown=kind)
        a.asks(
            """
            CLIENT NO-EVICT ON
            CLIENT NO-TOUCH ON
            CLIENT GETREDIR
            CLIENT TRACKINGINFO
            CLIENT SETNAME 'a b'
            CLIENT SETNAME
            CLIENT LIST x
            CLIENT NOSUCH
            """
        )


@scenario()
def clients_see_each_other_in_client_list(table):
    a, b = table.peer(), table.peer()
    a.ask("CLIENT", "SETNAME", "first")
    b.ask("CLIENT", "SETNAME", "second")
    a.ask("CLIENT", "LIST", shown=lambda reply: sorted(re.findall(rb"name=(first|second)", reply)))


@scenario()
def fields_of_info(table):
    for protocol in (2, 3):
        a = table.anew(protocol)
        a.ask("SET", "k", "v")
        a.asks("INFO server\n INFO clients\n INFO memory\n INFO persistence\n INFO stats\n INFO replication", shown=fields)
        a.asks("INFO cpu\n INFO cluster", shown=fields)


@scenario()
def commands_that_info_has_counted(table):
    a = table.peer()
    a.asks("CONFIG RESETSTAT\n SET k v\n GET k\n INCR n")
    a.ask("INFO", "commandstats", shown=lambda reply: sorted(re.findall(rb"cmdstat_([^:]*):", reply)))
    a.ask("INFO", "keyspace", shown=lambda reply: re.findall(rb"keys=\d+", reply))


@scenario()
def hello_reset_and_quit(table):
    a = table.peer()
    a.asks("HELLO\n HELLO 4\n HELLO x\n HELLO 3 SETNAME n\n CLIENT GETNAME\n RESET\n CLIENT GETNAME", shown=unnumbered)
    a.asks("SELECT 5\n SET k five\n MULTI\n RESET\n GET k\n SELECT 16\n QUIT\n PING")


CACHED = """
import sys, time, redis
from redis.cache import CacheConfig
client = redis.Redis(port=int(sys.argv[1]), protocol=3, cache_config=CacheConfig())
other = redis.Redis(port=int(sys.argv[1]))
other.set("cached", "old")
print(client.get("cached"), client.get("cached"), client.get_cache().size)
other.set("cached", "new")
for _ in range(300):
    if client.get("cached") == b"new":
        break
    time.sleep(0.01)
print(client.get("cached"), client.get_cache().size)
"""


@scenario()
def redis_py_with_a_client_side_cache(table):
    """redis-py examines the reply to HELLO, and refuses client-side caching if the reply names no Redis 7.4 or
    later."""
    python = TARGET / "venv/bin/python"
    if not python.exists():
        return table.write("there is no redis-py")
    done = subprocess.run([python, "-c", CACHED, str(table.port)], capture_output=True, text=True, timeout=ANSWER_SECONDS_MAX)
    table.write(f"{done.stdout} {done.stderr.strip().splitlines()[-1:]}")


@scenario()
def databases_with_odd_numbers(table):
    table.peer().asks(
        "SELECT 9223372036854775807\n SELECT -1\n SELECT x\n SELECT 99999999999999999999\n SELECT ''\n SELECT 15\n GET k"
    )


def unnumbered(reply):
    """Returns the values of a map, with the number of the connection masked."""
    return re.sub(r"':\d{2,}'|':[4-9]'", "':…'", values(reply))


# Passwords and users


@scenario()
def passwords_of_a_redis_without_any(table):
    for line in ("AUTH x", "AUTH default x", "AUTH nobody x", "HELLO 3 AUTH default x", "HELLO 2 AUTH nobody x"):
        table.anew().asks(line, shown=lambda reply: "a map" if isinstance(reply, list) else show(reply))


@scenario(fresh=True)
def a_password_set_by_a_client(table):
    a = table.peer()
    a.ask("CONFIG", "SET", "requirepass", "secret")
    table.peer().ask("GET", "k")
    table.peer().asks("AUTH secret\n INCR n\n BLPOP none 0.1\n CONFIG SET requirepass ''")


@scenario(fresh=True)
def users_made_by_a_client(table):
    a, b = table.peer(), table.peer()
    a.ask("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+get", "+ping")
    b.asks("AUTH reader wrong\n AUTH reader secret\n ACL WHOAMI\n SET k v\n GET k")
    a.asks("EXISTS k\n ACL DELUSER reader")


# Scripts


@scenario()
def scripts_are_known(table):
    table.peer().asks(
        f"""
        SCRIPT FLUSH
        SCRIPT EXISTS {SHA}
        EVALSHA {SHA} 0
        SCRIPT LOAD 'return 1'
        SCRIPT EXISTS {SHA}
        EVALSHA {SHA} 0
        SCRIPT FLUSH
        SCRIPT EXISTS {SHA}
        EVALSHA {SHA} 0
        EVAL 'return 1' 0
        SCRIPT EXISTS {SHA}
        SCRIPT FLUSH FOO
        SCRIPT FLUSH ASYNC
        EVAL_RO 'return 1' 0
        EVALSHA_RO {SHA} 0
        EVALSHA {SHA} 0
        SCRIPT NOSUCH
        SCRIPT LOAD 'syntax error'
        """
    )


@scenario()
def flags_of_scripts(table):
    a = table.peer()
    a.ask("EVAL", "#!lua flags=no-writes\nreturn redis.call('SET', 'k', 'v')", "0")
    a.ask("EXISTS", "k")
    for first in ("#!lua flags=nosuch", "#!python", "#!lua name=x"):
        a.ask("EVAL", first + "\nreturn 1", "0")
    a.ask("EVAL_RO", "#!lua\nreturn 1", "0")


@scenario()
def a_script_that_may_only_read(table):
    a = table.peer()
    a.ask("EVAL_RO", "return redis.call('SET', 'k', 'v')", "0")
    a.ask("EVAL_RO", "return redis.call('PUBLISH', 'c', 'm')", "0")
    a.ask("EXISTS", "k")


@scenario()
def a_script_that_may_only_read_inside_multi(table):
    a = table.peer()
    a.asks("MULTI\n SET a 1\n EVAL_RO \"redis.call('SET', 'k', 'v') return 'it wrote'\" 0\n EXEC\n EXISTS k")


ERRORS = """
return redis.call('INCR', 's')
return redis.call('NOSUCH')
return redis.call('GET')
return redis.call()
return redis.call({})
error('x')
error({err='MY x'})
return nosuch
local a = nil; return a.b
return redis.error_reply('MY x')
return {err='no code'}
return redis.pcall('INCR', 's')
return redis.pcall('INCR', 's').err
syntax error
return redis.call('SELECT', '1')
return redis.call('BLPOP', 'l', 0)
return redis.call('SUBSCRIBE', 'c')
return redis.setresp(4)
redis.call('SET', 'a', 1) error('after')
"""
LANGUAGE = """
return loadstring('return 7')()
return setmetatable({}, {__index = 1})
return getmetatable('')
return redis.acl_check_cmd('GET', 'k')
return redis.breakpoint()
return KEYS[1]
return #KEYS .. type(ARGV)
return loadfile
return dofile
return print
return redis.nosuch
redis.x = 1 return redis.x
_G.x = 1 return _G.x
getmetatable(_G).__index = nil return 1
string.x = 1 return string.x
local t = {} for i = 1, 7900 do t[i] = i end return #{unpack(t)}
"""


def evaluate(table, scripts):
    for protocol in (2, 3):
        a = table.anew(protocol)
        a.ask("SET", "s", "x")
        for script in filter(None, scripts.split("\n")):
            a.ask("EVAL", script, "0")


@scenario()
def errors_of_scripts(table):
    evaluate(table, ERRORS)


@scenario()
def what_scripts_find_in_lua(table):
    evaluate(table, LANGUAGE)


@scenario()
def arguments_of_eval(table):
    table.peer().asks(
        "EVAL 'return 1' 1\n EVAL 'return 1' x\n EVAL 'return 1' -1\n EVALSHA x 0\n EVALSHA x y\n EVAL 'return 1'"
    )


@scenario(fresh=True, slow=True)
def a_script_that_never_ends_can_be_killed(table):
    a, b = table.peer(), table.peer()
    b.ask("CONFIG", "SET", "lua-time-limit", "50")
    a.send("EVAL 'while true do end' 0")
    time.sleep(0.4)
    b.ask("GET", "k", seconds=3)
    b.ask("SCRIPT", "KILL", seconds=3)
    a.read(1, seconds=3, shown=kind)


@scenario()
def functions(table):
    a = table.peer(3)
    library = (
        "#!lua name=mine\n"
        "redis.register_function{function_name='look', flags={'no-writes'}, callback=function(k, a)\n"
        "  return redis.call('GET', k[1]) end}\n"
        "redis.register_function('put', function(k, a) return redis.call('SET', k[1], a[1]) end)"
    )
    a.ask("FUNCTION", "LOAD", library)
    a.ask("FUNCTION", "LOAD", library)
    a.asks(
        """
        FCALL put 1 k v
        FCALL look 1 k
        FCALL_RO look 1 k
        FCALL_RO put 1 k v
        FCALL nosuch 0
        FUNCTION DELETE mine
        FUNCTION DELETE mine
        FCALL look 1 k
        FUNCTION FLUSH FOO
        FUNCTION STATS
        FUNCTION NOSUCH
        FUNCTION
        """
    )


@scenario()
def kill_when_nothing_runs(table):
    table.peer().asks("SCRIPT KILL\n FUNCTION KILL")


# pmnet's own traces, and settings


@scenario()
def pmnets_own_keys(table):
    a = table.peer()
    a.asks("EVAL 'return 1' 0\n DBSIZE\n RANDOMKEY\n KEYS *\n SCAN 0 COUNT 1000\n SET mine 1")
    keys = a.ask("KEYS", "*")
    names = [item[item.index(b"\r\n") + 2 :] for item in keys[1:]]
    for name in names:
        for command in ("TYPE", "TTL", "EXISTS"):
            a.ask(command, name, shown=kind, about=command)
    a.ask("DEL", *names)
    a.asks("WATCH mine\n DBSIZE\n RANDOMKEY\n KEYS *\n SCAN 0 COUNT 1000\n SET mine 2\n GET mine\n MULTI\n SET mine 3\n EXEC")
    a.asks("FLUSHALL\n DBSIZE")


@scenario()
def what_monitor_shows(table):
    a, b = table.peer(), table.peer()
    a.ask("MONITOR")
    b.asks("SET foo bar\n GET foo\n INCR n")
    a.all(shown=lambda reply: re.sub(r"^\+[0-9.]+ \[0 127[^]]*\]", "", show(reply)))


@scenario(fresh=True)
def slow_log(table):
    a = table.peer()
    a.asks("CONFIG SET slowlog-log-slower-than 0\n SLOWLOG RESET\n SET k v\n INCR n\n GET k")
    a.ask("SLOWLOG", "GET", "20", shown=lambda reply: [show(entry[4]) for entry in reply[1:]])


@scenario(fresh=True)
def settings_that_nothing_rests_on(table):
    table.peer().asks(
        """
        CONFIG SET hash-max-listpack-entries 10
        CONFIG SET save '100 1'
        CONFIG SET timeout 0
        CONFIG SET nosuch 1
        CONFIG SET slowlog-log-slower-than 0
        CONFIG SET list-max-listpack-size -2 maxmemory-samples 5
        CONFIG SET notify-keyspace-events KEA
        CONFIG SET databases 20
        CONFIG RESETSTAT
        CONFIG GET nosuch
        CONFIG GET hash-max-listpack-entries
        CONFIG REWRITE
        """
    )


@scenario(fresh=True)
def settings_of_memory(table):
    table.peer().asks("CONFIG SET maxmemory-policy allkeys-lru\n CONFIG SET maxmemory 100mb\n CONFIG SET maxmemory 0")


@scenario(fresh=True)
def settings_of_the_append_only_file(table):
    table.peer().asks("CONFIG SET appendonly yes\n CONFIG SET appendfsync always\n CONFIG SET appendonly no")


@scenario(fresh=True)
def replicas_that_are_missing(table):
    table.peer().asks("CONFIG SET min-replicas-to-write 1\n SET k v\n CONFIG SET min-replicas-to-write 0\n SET k v\n INCR n")


@scenario(fresh=True)
def out_of_memory(table):
    a = table.peer()
    a.asks(
        """
        SET k v
        CONFIG SET maxmemory 1
        SET k w
        INCR n
        GET k
        DEL k
        EVAL "return redis.call('SET', 'a', 1)" 0
        CONFIG SET maxmemory 0
        SET k x
        GET k
        """
    )


def run(name, port):
    """Runs the scenario on the server at this port. Returns its record."""
    table = Table(port)
    try:
        reset = Peer(table, "reset")
        reset.ask("FLUSHALL")
        reset.close()
        table.lines.clear()
        EVERY[name](table)
    except (OSError, TypeError, IndexError, ValueError) as error:
        # A reply is missing, or the rest of the scenario cannot use it.
        table.write(f"it cannot go on: {type(error).__name__}")
    finally:
        table.close()
    return table.lines


def compare(name, stacks):
    """Returns the lines in which the two sides differ; None if they are equal."""
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
    """Returns {name: None or the differences}. Calls `each(name, found)` after each scenario."""
    results, shared = {}, ()
    try:
        for name in names:
            if name in FRESH:
                with Stack() as direct, Stack(binary) as front:
                    results[name] = compare(name, (direct, front))
            else:
                if not shared:
                    shared = (Stack(), Stack(binary))
                results[name] = compare(name, shared)
            each(name, results[name])
    finally:
        for stack in shared:
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
