// Sends the commands of a file with a client library, and writes the replies as JSON. Arguments: other_clients.js
// LIBRARY PORT FILE
const fs = require("fs");
const [library, port, file] = process.argv.slice(2);
const commands = JSON.parse(fs.readFileSync(file, "utf8"));

// Returns a reply as JSON, in the form that the client library gave it.
function plain(reply) {
  if (Buffer.isBuffer(reply)) return reply.toString("latin1");
  if (reply instanceof Error) return { error: reply.message };
  if (reply instanceof Map) return { map: [...reply].map(([key, value]) => [plain(key), plain(value)]) };
  if (reply instanceof Set) return { set: [...reply].map(plain) };
  if (Array.isArray(reply)) return reply.map(plain);
  if (typeof reply === "number" && !Number.isSafeInteger(reply)) return { number: String(reply) };
  if (typeof reply === "bigint") return { number: String(reply) };
  if (reply !== null && typeof reply === "object") return { map: Object.entries(reply).map(([key, value]) => [key, plain(value)]) };
  return reply === undefined ? null : reply;
}

async function connect() {
  if (library === "ioredis") {
    const Redis = require("ioredis");
    const client = new Redis({ port: Number(port), host: "127.0.0.1", lazyConnect: true, maxRetriesPerRequest: 1, commandTimeout: 20000 });
    await client.connect();
    return { send: (words) => client.call(words[0], ...words.slice(1)), end: () => client.disconnect() };
  }
  const { createClient } = require("redis");
  const client = createClient({ socket: { port: Number(port), host: "127.0.0.1", reconnectStrategy: false }, RESP: 3 });
  client.on("error", () => {});
  await client.connect();
  return { send: (words) => client.sendCommand(words), end: () => client.destroy() };
}

async function main() {
  const client = await connect();
  const replies = [];
  for (const words of commands) {
    try {
      replies.push(plain(await client.send(words)));
    } catch (error) {
      replies.push({ error: error.message });
    }
  }
  fs.writeSync(1, JSON.stringify(replies));
  client.end();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
