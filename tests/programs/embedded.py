"""redis-py with a front whose store is an embedded one: the first requests of libraries and tools."""

import sys

import redis

r = redis.Redis(port=int(sys.argv[1]), decode_responses=True)
assert r.ping()
assert r.set("greeting", "hello") and r.get("greeting") == "hello"
info = r.info()
assert info["redis_version"] == "7.0.15" and info["role"] == "master", info
assert info["db0"]["keys"] == 1 and info["loading"] == 0, info
assert info["maxmemory"] > 0 and info["connected_clients"] > 0, info
assert r.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
seconds, micros = r.time()
assert seconds > 1_700_000_000 and 0 <= micros < 1_000_000
assert r.command_count() == len(r.command())
assert r.command()["get"]["arity"] == 2
assert r.object("encoding", "greeting") == "embstr"
assert r.memory_usage("greeting") > 5 and r.memory_usage("nothing") is None
assert r.slowlog_len() == 0 and r.module_list() == []
assert r.lastsave() is not None
with r.pipeline() as pipe:
    assert pipe.set("a", 1).incr("a").get("a").execute() == [True, 2, "2"]
r.rpush("list", 3, 1, 2)
assert r.sort("list", desc=True) == ["3", "2", "1"]
assert r.randomkey() in ("greeting", "a", "list") and r.dbsize() == 3
for refused in (lambda: r.config_set("maxmemory", "1"), lambda: r.eval("return 1", 0)):
    try:
        refused()
    except redis.ResponseError:
        continue
    raise AssertionError("not refused")
assert [key for key in r.scan_iter()] == ["a", "greeting", "list"]
print("all good")
