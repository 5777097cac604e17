#!/usr/bin/env python3
"""scores.c in Python, with the same commands and payloads. The author used only docs/use/programs.md and
help(pmnet).

The server keeps scores and rows in a JSON file, which it replaces as a whole. The client uses an event loop.
"""

import asyncio
import json
import os
import sys

import pmnet

UNDER_WAY = 32


class Store:
    def __init__(self, path):
        self.path = path
        self.scores, self.rows = {}, {}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.scores, rows = json.load(file)
            self.rows = {bytes.fromhex(key): bytes.fromhex(value) for key, value in rows.items()}

    def execute(self, batch):
        for at, item in enumerate(batch.items):
            what, _, name = item.payload.decode().partition(" ")
            score = self.scores.get(name, 0)
            if item.kind is pmnet.Kind.UPDATE:
                self.scores[name] = score + int(what)
                continue
            if item.kind is pmnet.Kind.BYPASS and what == "take":
                self.scores[name] = 0
            batch.reply(at, str(score).encode())
        for key, value in batch.rows():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def commit(self):
        """The transaction: a new durable file replaces the old file."""
        rows = {key.hex(): value.hex() for key, value in self.rows.items()}
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            json.dump([self.scores, rows], file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.path + ".new", self.path)
        folder = os.open(os.path.dirname(os.path.abspath(self.path)), os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def serve(address, path):
    store = Store(path)
    with pmnet.Server(address, rows=store.rows.items()) as server:
        print("ready", flush=True)
        for batch in server:
            store.execute(batch)
            store.commit()
            batch.done()


async def add(device, name, amount, count):
    async with pmnet.AsyncClient(device, timeout=30) as client:
        room = asyncio.Semaphore(UNDER_WAY)

        async def one():
            async with room:
                await client.update(f"+{amount} {name}".encode(), key=name.encode())

        await asyncio.gather(*(one() for _ in range(int(count))))
    print(count)


def ask(device, what, name):
    with pmnet.Client(device, timeout=30) as client:
        print(client.bypass(f"{what} {name}".encode(), key=name.encode(), read_only=what == "get").decode())


def main():
    match sys.argv[1:]:
        case ["serve", address, path]:
            serve(address, path)
        case ["add", device, name, amount, count]:
            asyncio.run(add(device, name, amount, count))
        case ["get" | "take" as what, device, name]:
            ask(device, what, name)
        case _:
            sys.exit("usage: the head of scores.c")


if __name__ == "__main__":
    main()
