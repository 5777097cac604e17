"""redis-py with the front: the operations of an application, with RESP2 and RESP3.

Arguments: PORT, or PORT CA USER PASSWORD for TLS with this user.
"""
import sys

import redis

port = int(sys.argv[1])
how = {"port": port}
if len(sys.argv) > 2:
    ca, user, password = sys.argv[2:]
    how |= {"host": "localhost", "ssl": True, "ssl_ca_certs": ca, "username": user, "password": password}
for protocol in (2, 3):
    db = redis.Redis(**how, protocol=protocol, decode_responses=True, socket_timeout=20)
    db.flushdb()
    assert db.set("k", "v") is True
    assert db.get("k") == "v"
    assert db.set("k", "w", nx=True) is None
    assert db.set("k", "w", get=True) == "v"
    assert db.setex("t", 100, "v") and 0 < db.ttl("t") <= 100
    assert db.mset({"a": 1, "b": 2}) and db.mget("a", "b", "none") == ["1", "2", None]
    assert [db.incr("n") for _ in range(5)] == [1, 2, 3, 4, 5]
    assert db.rpush("l", 1, 2, 3) == 3 and db.lrange("l", 0, -1) == ["1", "2", "3"]
    assert db.hset("h", mapping={"x": 1, "y": 2}) == 2 and db.hgetall("h") == {"x": "1", "y": "2"}
    assert db.zadd("z", {"one": 1.5}) == 1 and db.zscore("z", "one") == 1.5
    with db.pipeline(transaction=True) as pipe:
        assert pipe.set("p", 1).incr("p").get("p").execute() == [True, 2, "2"]
    with db.pipeline(transaction=False) as pipe:
        for number in range(200):
            pipe.set(f"q{number}", number)
        assert all(pipe.execute())

    def double(pipe):
        value = int(pipe.get("p"))
        pipe.multi()
        pipe.set("p", value * 2)

    assert db.transaction(double, "p") == [True]
    assert db.get("p") == "4"
    script = db.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    assert script(keys=["p"], args=[10]) == 14
    with db.lock("lock", timeout=5):
        assert db.exists("lock")
    subscriber = db.pubsub()
    subscriber.subscribe("news")
    assert subscriber.get_message(timeout=5)["type"] == "subscribe"
    assert db.publish("news", "extra") == 1
    assert subscriber.get_message(timeout=5)["data"] == "extra"
    subscriber.close()
    assert db.blpop("l", timeout=1) == (["l", "1"] if protocol == 3 else ("l", "1"))
    try:
        db.lpush("k", 1)
        raise SystemExit("an error was expected")
    except redis.ResponseError as error:
        assert "WRONGTYPE" in str(error)
    db.close()
print("all good")
