// ioredis with a front whose store is an embedded one. ioredis sends INFO before it reports that it is
// connected.
const Redis = require('../../target/node/node_modules/ioredis');
const assert = require('assert');

(async () => {
    const redis = new Redis(Number(process.argv[2]), '127.0.0.1');
    redis.on('error', (error) => { console.error(error.message); process.exit(1); });
    assert.strictEqual(await redis.set('greeting', 'hello'), 'OK');
    assert.strictEqual(await redis.get('greeting'), 'hello');
    assert.match(await redis.info('replication'), /role:master/);
    assert.match(await redis.info(), /redis_version:7\.0\.15[^]*loading:0[^]*db0:keys=1/);
    await redis.zadd('board', 3, 'c', 1, 'a', 2, 'b');
    assert.strictEqual(await redis.zrank('board', 'c'), 2);
    assert.deepStrictEqual(await redis.zrange('board', 1, 1), ['b']);
    await redis.rpush('numbers', 3, 1, 2);
    assert.deepStrictEqual(await redis.sort('numbers'), ['1', '2', '3']);
    assert.deepStrictEqual(await redis.multi().incr('n').incr('n').exec(), [[null, 1], [null, 2]]);
    assert.strictEqual(await redis.dbsize(), 4);
    assert.strictEqual((await redis.command('COUNT')) > 140, true);
    // WATCH, and a blocking command, as queue libraries use them.
    const other = redis.duplicate();
    await redis.watch('n');
    await other.incr('n');
    assert.strictEqual(await redis.multi().set('n', 99).exec(), null);
    await redis.watch('n');
    assert.deepStrictEqual(await redis.multi().set('n', 99).exec(), [[null, 'OK']]);
    const waiting = other.blpop('queue', 0);
    await new Promise((done) => setTimeout(done, 200));
    await redis.rpush('queue', 'job');
    assert.deepStrictEqual(await waiting, ['queue', 'job']);
    assert.strictEqual(await other.brpoplpush('queue', 'busy', 0.1), null);
    await redis.zadd('delayed', 5, 'later');
    assert.deepStrictEqual(await other.bzpopmin('delayed', 1), ['delayed', 'later', '5']);
    await other.quit();
    await redis.quit();
    console.log('all good');
})().catch((error) => { console.error(error); process.exit(1); });
