"""Makes random commands from Redis's description of its own commands (COMMAND DOCS), and selects the comparison
for their replies."""

# Commands that modules use internally. With random arguments, some of these commands end the server itself.
INTERNAL = ("timeseries.", "search.", "_ft.", "ft._", "ft.debug")
# Commands that change the set-up instead of data, or would end or block the connection. scenarios.py compares as
# many of them as possible.
LEFT_OUT = {
    *(
        "monitor",
        "psync",
        "sync",
        "replconf",
        "replicaof",
        "slaveof",
        "shutdown",
        "swapdb",
        "failover",
        "debug",
        "restore-asking",
    ),
    *("subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe"),
    *(
        "quit",
        "reset",
        "auth",
        "migrate",
        "save",
        "bgsave",
        "bgrewriteaof",
        "pfselftest",
        "pfdebug",
        "multi",
        "exec",
        "discard",
    ),
    *("acl|setuser", "acl|deluser", "acl|load", "acl|save", "acl|log", "config|set", "config|rewrite", "config|resetstat"),
    *(
        "client|kill",
        "client|pause",
        "client|unpause",
        "client|reply",
        "client|tracking",
        "client|caching",
        "client|no-evict",
    ),
    *("cluster|reset", "cluster|meet", "module|load", "module|loadex", "module|unload"),
    *(
        "script|kill",
        "script|debug",
        "function|kill",
        "function|restore",
        "function|flush",
        "function|delete",
        "script|flush",
    ),
    *("latency|doctor", "latency|graph", "latency|histogram", "slowlog|reset", "latency|reset", "memory|purge"),
}
# Commands that are seldom part of other commands, because they are slow, have long replies, or delete all data.
SELDOM = {
    **dict.fromkeys(("flushall", "flushdb"), 0.1),
    **dict.fromkeys(("command", "command|docs", "command|list", "acl|cat", "lolwut", "info", "memory|stats"), 0.1),
    **dict.fromkeys(("blpop", "brpop", "blmove", "blmpop", "brpoplpush", "bzpopmin", "bzpopmax", "bzmpop", "wait"), 0.15),
    **dict.fromkeys(("select", "hello", "move"), 0.3),
    **dict.fromkeys(("time", "ping", "echo", "lastsave", "role", "readonly", "readwrite", "asking"), 0.2),
}
GROUP_SELDOM = {"cluster": 0.04, "server": 0.15, "connection": 0.15, "pubsub": 0.15}

KEYS = {
    "string": [b"s1", b"s2", b"s3", b"n1"],
    "list": [b"l1", b"l2", b"l3"],
    "hash": [b"h1", b"h2"],
    "set": [b"S1", b"S2", b"S3"],
    "sorted-set": [b"z1", b"z2", b"z3"],
    "stream": [b"x1", b"x2"],
    "geo": [b"g1", b"g2"],
    "bitmap": [b"b1", b"b2"],
    "hyperloglog": [b"p1", b"p2"],
}
EVERY_KEY = [key for keys in KEYS.values() for key in keys] + [b"none", b"dst1", b"dst2", b""]
WORDS = [b"a", b"b", b"c", b"d", b"e", b"f", b"1", b"2", b"10", b"-7", b"3.5", b"foo", b"", b"hello world"]
# Unusual elements, each of at most 64 bytes. With a longer element, a sorted set would become a skiplist, in which
# BYLEX with different scores depends on chance.
ODD = [b"\x00\xff\r\n\x80", b"x" * 60, b"9223372036854775807", b"1e5", b"nan", b"inf", b"-0", b" 1", b"a b"]
BIG = [b"y" * 20_000, b"z" * 70_000]
INTEGERS = [b"0", b"1", b"2", b"3", b"5", b"-1", b"-2", b"10"]
ODD_INTEGERS = [
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"abc",
    b"",
    b"1.5",
    b"+1",
    b"01",
    b" 2",
]
DOUBLES = [b"0", b"1", b"-1", b"1.5", b"2.25", b"1e3", b"0.1", b"-3.75", b"100"]
ODD_DOUBLES = [b"inf", b"-inf", b"nan", b"abc", b"", b"1e308", b"-1e308", b"1e400", b"0x10", b"3.0e-5"]
STREAM_IDS = [b"0", b"0-0", b"1-1", b"2-1", b"3-5", b"5-1", b"7", b"9-9", b"-", b"+", b"(2-1", b"$", b">", b"1-1-1", b"x"]
# Times to live. The valid and positive times do not end during a run.
TIMES = {
    "s": [b"1000", b"100000", b"0", b"-1", b"abc", b"9223372036854775807"],
    "ms": [b"1000000", b"100000000", b"0", b"-5", b"x"],
}
UNIX = {
    "s": [b"4000000000", b"4100000000", b"1", b"0", b"-1", b"q"],
    "ms": [b"4000000000000", b"4100000000123", b"1000", b"0", b"-1"],
}
LIBRARY = (
    b"#!lua name=lib\n"
    b"redis.register_function('put', function(keys, args) return redis.call('SET', keys[1], args[1]) end)\n"
    b"redis.register_function{function_name='look', callback=function(keys, args) return redis.call('GET', keys[1]) end,"
    b" flags={'no-writes'}}\n"
    b"redis.register_function('many', function(keys, args) return {1, 'a', {2, 'b'}, false, redis.status_reply('OH')} end)\n"
)
# Scripts whose effects and replies depend only on their arguments.
SCRIPTS = [
    b"return redis.call(unpack(ARGV))",
    b"return redis.pcall(unpack(ARGV))",
    b"redis.setresp(3); return redis.call(unpack(ARGV))",
    b"return {redis.call(unpack(ARGV))}",
]
FIXED_SCRIPTS = [
    b"return 1",
    b"return {1, 2, {3, 'four'}, false, 'x'}",
    b"return redis.status_reply('FINE')",
    b"return redis.error_reply('MY error')",
    b"return {err='ERR x', ok='y'}",
    b"return {1, nil, 3}",
    b"return 3.99",
    b"return nil",
    b"return true",
    b"return {double=3.5}",
    b"redis.setresp(3); return {double=3.5}",
    b"redis.setresp(3); return {map={a=1}}",
    b"redis.setresp(3); return true",
    b"return tostring(KEYS[1]) .. #ARGV",
    b"return redis.call('NOSUCH')",
    b"return redis.call('SET', 'k')",
    b"error('boom')",
    b"return cjson.encode({1, 2, {a=1}})",
    b"return cmsgpack.unpack(cmsgpack.pack({1, 'a'}))",
    b"return redis.sha1hex('')",
    b"return struct.pack('>I4', 7)",
    b"return bit.band(12, 10)",
    b"return x",
    b"y = 1",
    b"return",
    b"syntax error here",
    b"redis.log(redis.LOG_DEBUG, 'x') return 2",
    b"redis.call('INCR', KEYS[1]) return redis.call('GET', KEYS[1])",
    b"redis.call('RPUSH', KEYS[1], 1, 2) redis.call('NOSUCH') return 1",
    b"local t = redis.pcall('INCR', KEYS[1]) return t",
    b"return redis.call('HGETALL', KEYS[1])",
    b"#!lua\nreturn 5",
    b"return redis.REDIS_VERSION_NUM > 0",
    b"return tostring(9007199254740993)",
    b"return 9007199254740993",
]


class Grammar:
    """Makes a generator of commands. `docs` is {name: description from COMMAND DOCS}, with `a|b` for subcommands.
    Scripts do not call the commands in `deadly`."""

    def __init__(self, docs, deadly=()):
        self.docs, self.deadly = docs, deadly
        left_out = {name for name in docs if name in LEFT_OUT or name.lower().startswith(INTERNAL)}
        self.names = sorted(name for name in docs if not {name, name.split("|")[0]} & (left_out | LEFT_OUT))
        parents = {name.split("|")[0] for name in self.names if "|" in name}
        # A command with subcommands, except COMMAND, can only be called with a subcommand.
        self.names = [name for name in self.names if name not in parents or name == "command"]
        self.weights = [SELDOM.get(name, GROUP_SELDOM.get(docs[name]["group"], 1.0)) for name in self.names]

    def command(self, rng, depth=0):
        """Returns one command, as a list of arguments."""
        roll = rng.random()
        if roll < 0.25:
            return populate(rng)
        if roll < 0.29 and depth == 0:
            return self.script(rng)
        name = rng.choices(self.names, self.weights)[0]
        args = self.spelled(rng, name)
        roll = rng.random()
        if roll < 0.04 and len(args) > 1:
            args.pop(rng.randrange(1, len(args)))
        elif roll < 0.07:
            args.insert(rng.randrange(1, len(args) + 1), rng.choice(WORDS + ODD))
        elif roll < 0.08:
            args = args[: 1 + name.count("|")]
        if rng.random() < 0.05:
            args[0] = args[0].lower()
        return tame(rng, args)

    def spelled(self, rng, name):
        """Returns the command with arguments according to its docs."""
        special = SPECIAL.get(name)
        args = [part.encode().upper() for part in name.split("|")]
        if special:
            return args + special(rng)
        context = {"group": self.docs[name]["group"], "name": name}
        for argument in self.docs[name].get("arguments", []):
            args += self.argument(rng, argument, context)
        return args

    def argument(self, rng, argument, context):
        """Returns the words for one argument of the docs."""
        flags = argument.get("flags", ())
        if "optional" in flags and rng.random() < 0.6:
            return []
        times = 1
        if "multiple" in flags:
            times = context.pop("numkeys", None) if argument["type"] == "key" else None
            times = rng.choice((1, 1, 2, 3)) if times is None else times
        out = []
        for turn in range(times):
            if "token" in argument and argument["type"] != "pure-token" and (turn == 0 or "multiple_token" in flags):
                out.append(argument["token"].encode())
            out += self.value(rng, argument, context)
        return out

    def value(self, rng, argument, context):
        """Returns one value of the argument."""
        kind, name = argument["type"], argument["name"]
        if kind == "pure-token":
            return [argument["token"].encode()]
        if kind == "oneof":
            return self.argument(rng, dict(rng.choice(argument["arguments"]), flags=()), context)
        if kind == "block":
            return [word for inner in argument["arguments"] for word in self.argument(rng, inner, context)]
        if kind == "key":
            return [key(rng, context["group"])]
        if name == "numkeys":
            count = rng.choice((1, 1, 2, 3))
            context["numkeys"] = count
            return [b"%d" % count if rng.random() < 0.93 else rng.choice(INTEGERS + ODD_INTEGERS)]
        if kind == "unix-time":
            return [rng.choice(UNIX["ms" if "milli" in name else "s"])]
        if kind == "pattern":
            return [rng.choice((b"*", b"s*", b"[ab]*", b"?1", b"none*", b"h1->*", b"w_*", b"#", b"nosort"))]
        if kind == "double":
            return [self.double(rng, name, context)]
        if kind == "integer":
            return [integer(rng, name)]
        return [text(rng, name, context)]

    def double(self, rng, name, context):
        """Returns a number, or a text that resembles a number."""
        if name == "timeout":
            return rng.choice((b"0.01", b"0.001", b"0.02", b"-1", b"abc"))
        if name in ("longitude", "latitude"):
            return rng.choice((b"13.36", b"15.08", b"37.5", b"-80.1", b"0", b"200", b"x"))
        if name in ("radius", "width", "height"):
            return rng.choice((b"100", b"1000.5", b"200000", b"0", b"-1", b"x"))
        found = rng.choice(DOUBLES if rng.random() < 0.88 else ODD_DOUBLES)
        return (b"(" if name in ("min", "max") and rng.random() < 0.3 else b"") + found

    def script(self, rng):
        """Returns the arguments of EVAL and similar commands."""
        numkeys, keys = b"1", [rng.choice(EVERY_KEY)]
        command = rng.choice((b"EVAL", b"EVAL", b"EVAL", b"EVAL_RO", b"FCALL", b"FCALL_RO", b"EVALSHA"))
        if command.startswith(b"FCALL"):
            return [command, rng.choice((b"put", b"look", b"many", b"nosuch")), numkeys, *keys, rng.choice(WORDS)]
        if command == b"EVALSHA":
            # The hashes of the scripts "return 1" and "return nil", and one hash of no script.
            shas = (
                b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db",
                b"79cefb99366d8809d2e903c5f36f50c2b731913f",
                b"f" * 40,
                b"x",
            )
            return [command, rng.choice(shas), numkeys, *keys]
        if rng.random() < 0.5:
            return [command, rng.choice(FIXED_SCRIPTS), numkeys, *keys, rng.choice(WORDS)]
        while True:
            inner = self.command(rng, depth=1)
            # Inside a script, a reply is not compared if it is random or can only be compared in part.
            if inner[0].upper() not in (b"SPOP", b"FLUSHALL", b"FLUSHDB", *self.deadly) and mode(inner) == "exact":
                return [command, rng.choice(SCRIPTS), b"0", *inner]


def integer(rng, name):
    """Returns an integer, or a text that resembles one. Integers that make a server allocate much memory are left
    out."""
    if name in ("seconds", "ttl"):
        return rng.choice(TIMES["s"])
    if name in ("milliseconds", "ms"):
        return rng.choice(TIMES["ms"])
    if name == "min-idle-time":
        return rng.choice((b"0", b"100000000", b"x"))
    if name == "timeout":
        return rng.choice((b"1", b"5", b"-1", b"x"))
    if name == "cursor":
        return rng.choice((b"0", b"0", b"0", b"0", b"x"))
    if name in ("db", "destination-db", "index", "index1") and rng.random() < 0.5:
        return rng.choice((b"0", b"0", b"1", b"15", b"16", b"-1", b"x"))
    if name == "offset":
        return rng.choice((b"0", b"1", b"7", b"8", b"100", b"1000", b"-1", b"#1", b"99999999999", b"x"))
    if name == "protover":
        return rng.choice((b"2", b"3", b"3", b"4", b"x"))
    if name == "numreplicas":
        return rng.choice((b"0", b"1", b"-1", b"x"))
    if name == "bits":
        return rng.choice((b"8", b"100", b"0", b"5000", b"x"))
    return rng.choice(INTEGERS if rng.random() < 0.88 else ODD_INTEGERS)


def text(rng, name, context):
    """Returns a string argument that suits its name."""
    group, command = context["group"], context["name"]
    if name in ("group", "groupname"):
        return rng.choice((b"grp", b"grp", b"grp", b"grp2", b"nogroup"))
    if name in ("consumer", "consumername"):
        return rng.choice((b"alice", b"bob", b""))
    if group == "stream" and name in ("id", "start", "end", "threshold", "last-id", "max_deleted_entry_id"):
        return rng.choice(STREAM_IDS)
    if name == "min-idle-time":
        return rng.choice((b"0", b"100000000", b"x"))
    if name in ("min", "max", "start", "stop") and group == "sorted-set":
        bounds = (b"-", b"+", b"[a", b"(b", b"[c", b"a", b"0", b"1", b"-1", b"2", b"(1", b"-inf", b"+inf", b"5")
        return rng.choice(bounds)
    if name == "encoding":
        return rng.choice((b"u8", b"i16", b"u1", b"i64", b"u63", b"u64", b"i0", b"x"))
    if command == "bitop" and name == "operation":
        return rng.choice((b"AND", b"OR", b"XOR", b"NOT", b"FOO"))
    if name in ("channel", "shardchannel"):
        return rng.choice((b"news", b"other"))
    if name in ("command", "command-name"):
        return rng.choice((b"get", b"set", b"xadd", b"config|get", b"nosuch"))
    if name == "section":
        return rng.choice((b"server", b"memory", b"nosuch"))
    if name == "type":
        return rng.choice((b"string", b"list", b"zset", b"stream", b"x"))
    if name == "username":
        return rng.choice((b"default", b"nobody"))
    if name in ("category", "categoryname"):
        return rng.choice((b"read", b"string", b"x"))
    if name == "parameter":
        return rng.choice((b"maxmemory", b"appendonly", b"databases", b"list-*", b"nosuch", b"lua-time-limit"))
    if name in ("key", "member", "member1", "member2", "field", "element", "pivot"):
        return rng.choice(WORDS if rng.random() < 0.95 else ODD)
    roll = rng.random()
    return rng.choice(WORDS if roll < 0.9 else ODD if roll < 0.995 else BIG)


def key(rng, group):
    """Returns a key that probably holds the type of the command's group."""
    if group in KEYS and rng.random() < 0.85:
        return rng.choice(KEYS[group])
    return rng.choice(EVERY_KEY)


def populate(rng):
    """Returns a command that writes a value to a key of its type."""
    kind = rng.choice(list(KEYS))
    name = rng.choice(KEYS[kind])
    few = [rng.choice(WORDS) for _ in range(rng.choice((1, 2, 3)))]
    if kind == "string":
        roll = rng.random()
        value = rng.choice(WORDS if roll < 0.9 else ODD if roll < 0.99 else BIG)
        return rng.choice(
            (
                [b"SET", name, value],
                [b"SET", name, value],
                [b"MSET", name, value, b"s3", b"2"],
                [b"SETEX", name, b"1000", value],
            )
        )
    if kind == "list":
        return [rng.choice((b"RPUSH", b"LPUSH")), name, *few]
    if kind == "hash":
        return [b"HSET", name, *(word for field in few for word in (field, rng.choice(WORDS)))]
    if kind == "set":
        return [b"SADD", name, *few]
    if kind == "sorted-set":
        return [b"ZADD", name, *(word for member in few for word in (rng.choice(DOUBLES), member))]
    if kind == "stream":
        if rng.random() < 0.3:
            return [b"XGROUP", b"CREATE", name, b"grp", b"0", b"MKSTREAM"]
        if rng.random() < 0.3:
            return [
                b"XREADGROUP",
                b"GROUP",
                b"grp",
                b"alice",
                b"COUNT",
                b"2",
                b"STREAMS",
                name,
                rng.choice((b">", b">", b"0")),
            ]
        return [b"XADD", name, b"%d-%d" % (rng.randrange(1, 12), rng.randrange(1, 9)), rng.choice(WORDS), rng.choice(WORDS)]
    if kind == "geo":
        places = (
            (b"13.361389", b"38.115556", b"Palermo"),
            (b"15.087269", b"37.502669", b"Catania"),
            (b"2.35", b"48.85", b"a"),
        )
        return [b"GEOADD", name, *(word for place in rng.sample(places, 2) for word in place)]
    if kind == "bitmap":
        return [b"SETBIT", name, b"%d" % rng.randrange(60), rng.choice((b"0", b"1"))]
    return [b"PFADD", name, *few]


# Arguments of commands for which the docs do not describe them.
SPECIAL = {
    "xadd": lambda rng: [
        *(
            key(rng, "stream"),
            *rng.choice(((), (b"NOMKSTREAM",), (b"MAXLEN", b"5"), (b"MAXLEN", b"~", b"3"), (b"MINID", b"2-1"))),
        ),
        *(
            rng.choice((b"5-*", b"13-*", b"3-1", b"20-%d" % rng.randrange(9), b"x", b"0-0")),
            rng.choice(WORDS),
            rng.choice(WORDS),
        ),
    ],
    "eval": lambda rng: [rng.choice(FIXED_SCRIPTS), rng.choice((b"0", b"1", b"x", b"-1")), rng.choice(EVERY_KEY)],
    "eval_ro": lambda rng: [rng.choice(FIXED_SCRIPTS), rng.choice((b"0", b"1", b"5")), rng.choice(EVERY_KEY)],
    "evalsha": lambda rng: [rng.choice((b"f" * 40, b"x")), b"0"],
    "evalsha_ro": lambda rng: [rng.choice((b"f" * 40, b"x")), b"0"],
    "script|load": lambda rng: [rng.choice(FIXED_SCRIPTS)],
    "script|exists": lambda rng: [
        rng.choice((b"f" * 40, b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db")) for _ in range(rng.choice((1, 2)))
    ],
    "function|load": lambda rng: [
        *rng.choice(((), (b"REPLACE",))),
        rng.choice((LIBRARY, b"#!lua name=bad\nx", b"no shebang")),
    ],
    "function|list": lambda rng: list(rng.choice(((), (b"WITHCODE",), (b"LIBRARYNAME", b"li*")))),
    "restore": lambda rng: [
        rng.choice(EVERY_KEY),
        b"0",
        rng.choice(DUMPS),
        *rng.choice(((), (b"REPLACE",), (b"IDLETIME", b"5"))),
    ],
    "acl|dryrun": lambda rng: [b"default", b"GET", b"s1"],
    "client|list": lambda rng: [],
    "command|getkeys": lambda rng: rng.choice(([b"SET", b"a", b"b"], [b"EVAL", b"x", b"1", b"k"], [b"PING"], [b"NOSUCH"])),
    "command|getkeysandflags": lambda rng: rng.choice(([b"SET", b"a", b"b"], [b"SORT", b"a", b"STORE", b"b"], [b"PING"])),
    "sort": lambda rng: sort(rng) + list(rng.choice(((), (), (b"STORE", rng.choice((b"dst1", b"dst2")))))),
    "sort_ro": lambda rng: sort(rng),
    "client|setname": lambda rng: [rng.choice((b"name", b"", b"with space"))],
    "client|unblock": lambda rng: [b"999999"],
    "wait": lambda rng: [rng.choice((b"0", b"1", b"-1", b"x")), rng.choice((b"1", b"3", b"-1", b"x"))],
    "xreadgroup": lambda rng: [
        *(b"GROUP", rng.choice((b"grp", b"grp", b"nogroup")), rng.choice((b"alice", b"bob"))),
        *rng.choice(((), (b"COUNT", b"1"), (b"BLOCK", b"2"), (b"NOACK",))),
        *(b"STREAMS", key(rng, "stream"), rng.choice((b">", b"0", b"2-1", b"x"))),
    ],
    "xread": lambda rng: [
        *rng.choice(((), (b"COUNT", b"1"), (b"BLOCK", b"2"))),
        *(b"STREAMS", key(rng, "stream"), rng.choice((b"0", b"2-1", b"$", b"9-9", b"x"))),
    ],
}
# Dumps of "a" and of the list [1, 2], as Redis 7.0 makes them, and a damaged dump.
DUMPS = [b"\x00\x01a\n\x00\xc5", b"x", b""]


def sort(rng):
    """Returns a SORT whose result depends neither on equal weights nor on the order of a set."""
    found = [rng.choice(KEYS["list"] + KEYS["set"] + KEYS["sorted-set"] + [b"s1", b"none"])]
    found += rng.choice(
        ((b"ALPHA",), (b"ALPHA", b"DESC"), (b"ALPHA", b"LIMIT", b"0", b"2"), (b"ALPHA", b"GET", b"#", b"GET", b"s*"), ())
    )
    return found


def tame(rng, args):
    """Returns the command without arguments whose effect would differ by chance between two servers."""
    name = args[0].upper()
    if name == b"XADD" and b"*" in args:
        args[args.index(b"*")] = b"7-*"
    if name in (b"EXPIRE", b"PEXPIRE") and args[-1] in (b"GT", b"LT"):
        # The result would depend on a millisecond.
        args.pop()
    if name == b"SORT" and b"STORE" in args and b"ALPHA" not in args:
        args.append(b"ALPHA")
    if name in (b"BLPOP", b"BRPOP", b"BZPOPMIN", b"BZPOPMAX", b"BLMOVE", b"BRPOPLPUSH"):
        if args[-1] not in (b"0.01", b"0.001", b"0.02", b"-1", b"abc"):
            args[-1] = b"0.01"
    if name in (b"BLMPOP", b"BZMPOP") and len(args) > 1 and args[1] not in (b"0.01", b"0.001", b"0.02", b"-1", b"abc"):
        args[1] = b"0.01"
    if name == b"WAIT" and len(args) > 2 and args[2] not in (b"1", b"3", b"5", b"-1", b"x"):
        args[2] = b"1"
    if name in (b"XREAD", b"XREADGROUP"):
        for place, word in enumerate(args[:-1]):
            if word.upper() == b"BLOCK" and args[place + 1] in (b"0", b"00"):
                args[place + 1] = b"1"
    if name in (b"SRANDMEMBER", b"ZRANDMEMBER", b"HRANDFIELD", b"SETRANGE", b"SETBIT", b"LPOS"):
        # The limit keeps replies small. Without the limit, a reply could have gigabytes.
        args[1:] = [b"-3" if arg.startswith(b"-922") else arg for arg in args[1:]]
    if name in (b"SETBIT", b"SETRANGE", b"BITFIELD"):
        args[1:] = [b"77" if arg.isdigit() and 100_000 < int(arg) < 2**33 else arg for arg in args[1:]]
    return args


SHAPES = {
    *(b"SRANDMEMBER", b"HRANDFIELD", b"ZRANDMEMBER", b"RANDOMKEY", b"SPOP", b"DUMP", b"XPENDING", b"XINFO", b"TIME"),
    *(b"LASTSAVE", b"HELLO", b"ROLE", b"LOLWUT", b"INFO"),
}
# Commands whose result depends on the heights of skip list nodes if the scores differ.
BY_LEX = {b"ZLEXCOUNT", b"ZRANGEBYLEX", b"ZREVRANGEBYLEX", b"ZREMRANGEBYLEX"}
KINDS = {b"SLOWLOG", b"LATENCY", b"MEMORY", b"CLIENT", b"INFO", b"LOLWUT", b"ACL"}
NEAR = {b"TTL", b"PTTL", b"EXPIRETIME", b"PEXPIRETIME"}
UNORDERED = {
    *(b"SMEMBERS", b"SUNION", b"SINTER", b"SDIFF", b"HGETALL", b"HKEYS", b"HVALS", b"KEYS", b"SORT", b"SORT_RO"),
    *(b"COMMAND", b"CONFIG", b"PUBSUB"),
}
EVALS = {b"EVAL", b"EVAL_RO"}
SCANS = {b"SCAN", b"SSCAN", b"HSCAN", b"ZSCAN"}
CLIENT_EXACT = {b"GETNAME", b"SETNAME", b"NO-EVICT", b"GETREDIR", b"UNBLOCK", b"SETINFO"}
ACL_EXACT = {b"WHOAMI", b"USERS", b"LIST", b"DRYRUN", b"GETUSER"}


def mode(args):
    """Returns the kind of comparison for replies to this command (see differ.same)."""
    name = args[0].upper()
    second = args[1].upper() if len(args) > 1 else b""
    if name == b"CLIENT" and second in CLIENT_EXACT or name == b"ACL" and second in ACL_EXACT or second == b"HELP":
        return "exact"
    if name == b"OBJECT":
        # The reference count of an object depends on the way in which the object was created.
        return "near" if second in (b"IDLETIME", b"FREQ", b"REFCOUNT") else "exact"
    if name == b"FUNCTION":
        return {b"LIST": "unordered", b"STATS": "shape", b"DUMP": "shape"}.get(second, "exact")
    if name in KINDS or name in BY_LEX or b"BYLEX" in map(bytes.upper, args):
        return "kind"
    if name in SHAPES:
        return "shape"
    if name in SCANS:
        return "scan"
    if name in NEAR:
        return "near"
    if name in UNORDERED or name in EVALS and any(listing in args[1].upper() for listing in UNORDERED if len(args) > 1):
        return "unordered"
    return "exact"
