// ioredis with the front: the operations of an application. Arguments: PORT, or PORT CA USER PASSWORD for TLS with
// this user.
"use strict";
const assert = require("assert");
const fs = require("fs");
const path = require("path");
const Redis = require(path.join(process.cwd(), "target/node/node_modules/ioredis"));

async function main() {
  const [port, ca, username, password] = process.argv.slice(2);
  const secure = { host: "localhost", username, password, tls: ca && { ca: fs.readFileSync(ca) } };
  const how = { port: Number(port), host: "127.0.0.1", commandTimeout: 20000, ...(ca && secure) };
  const db = new Redis(how);
  await db.flushdb();
  assert.strictEqual(await db.set("k", "v"), "OK");
  assert.strictEqual(await db.get("k"), "v");
  assert.strictEqual(await db.set("k", "w", "NX"), null);
  const many = [];
  for (let number = 1; number <= 500; number++) many.push(db.incr("n"));
  assert.deepStrictEqual(await Promise.all(many), [...Array(500).keys()].map((n) => n + 1));
  assert.strictEqual(await db.hset("h", { a: 1, b: 2 }), 2);
  assert.deepStrictEqual(await db.hgetall("h"), { a: "1", b: "2" });
  assert.deepStrictEqual(await db.multi().set("p", 1).incr("p").exec(), [[null, "OK"], [null, 2]]);
  assert.strictEqual(await db.eval("return ARGV[1] .. KEYS[1]", 1, "x", "y"), "yx");
  const buffer = Buffer.from([0, 255, 13, 10, 0]);
  await db.set("bytes", buffer);
  assert.deepStrictEqual(await db.getBuffer("bytes"), buffer);
  const subscriber = new Redis(how);
  await subscriber.subscribe("news");
  const message = new Promise((resolve) => subscriber.on("message", (_, text) => resolve(text)));
  await db.publish("news", "extra");
  assert.strictEqual(await message, "extra");
  subscriber.disconnect();
  db.disconnect();
  console.log("all good");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
