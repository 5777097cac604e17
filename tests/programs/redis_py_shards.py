"""redis-py with a front of many shards: its ordinary client with RESP2 and RESP3, and its client for clusters.

Argument: PORT
"""
import sys

import redis
from redis.cluster import RedisCluster

port = int(sys.argv[1])
names = [f"k{number}" for number in range(100)]
for protocol in (2, 3):
    db = redis.Redis(port=port, protocol=protocol, decode_responses=True, socket_timeout=20)
    db.flushall()
    with db.pipeline(transaction=False) as pipe:
        for number, name in enumerate(names):
            pipe.set(name, number).incr(name)
        assert pipe.execute() == [reply for number in range(100) for reply in (True, number + 1)]
    with db.pipeline(transaction=True) as pipe:
        assert pipe.set("{user}n", 1).incr("{user}n").execute() == [True, 2]

    def twice(pipe):
        number = int(pipe.get("{user}n"))
        pipe.multi()
        pipe.set("{user}n", 2 * number)

    assert db.transaction(twice, "{user}n") == [True]
    assert db.get("{user}n") == "4"
    try:
        db.mset({"a": 1, "b": 2})
        raise AssertionError("keys of two slots")
    except redis.exceptions.ResponseError as error:
        assert "hash to the same slot" in str(error), error
    assert sorted(db.scan_iter(count=7)) == sorted([*names, "{user}n"])
    assert db.dbsize() == 101 and len(db.keys("k*")) == 100
    double = db.register_script("return 2 * redis.call('GET', KEYS[1])")
    assert [double(keys=[name]) for name in names[:20]] == [2 * (number + 1) for number in range(20)]
    messages = db.pubsub(ignore_subscribe_messages=True)
    messages.subscribe("one", "two", "three")
    messages.psubscribe("f*")
    heard = []
    for channel in ("one", "two", "three", "four"):
        # The message must arrive once, although the client has subscribed at all nodes.
        while db.publish(channel, channel) != 1:
            pass
    while len(set(heard)) < 4:
        message = messages.get_message(timeout=20)
        if message:
            heard.append(message["data"])
    messages.close()
    with db.lock("lock", timeout=20):
        assert db.set("lock", "mine", nx=True) is None
    assert db.rpush("list", 1) == 1 and db.blpop(["list"], timeout=5) == (["list", "1"] if protocol == 3 else ("list", "1"))

cluster = RedisCluster(host="127.0.0.1", port=port, decode_responses=True)
assert [cluster.get(name) for name in names] == [str(number + 1) for number in range(100)]
with cluster.pipeline() as pipe:
    for name in names:
        pipe.incr(name)
    assert pipe.execute() == [number + 2 for number in range(100)]
assert cluster.mget_nonatomic(*names) == [str(number + 2) for number in range(100)]
assert cluster.keyslot("foo") == cluster.cluster_keyslot("foo")
assert len(cluster.get_nodes()) == 1 and cluster.dbsize() == 101
print("all good")
