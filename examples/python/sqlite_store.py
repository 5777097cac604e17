# SPDX-License-Identifier: Apache-2.0 OR MIT
"""SQLite as the store. One transaction stores a batch: its changes of the data, and its rows.

    sqlite_store.py LISTEN FILE

The update "KEY VALUE" sets a key; the update "KEY" deletes it. A request "KEY" returns the key's value. If the request is
not read-only, it also deletes the key.
"""

import signal
import sqlite3
import sys
from typing import Tuple

import pmnet

TABLES = """
    CREATE TABLE IF NOT EXISTS data (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS pmnet (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""


def put(database: sqlite3.Connection, table: str, rows: "list[Tuple[bytes, bytes | None]]") -> None:
    for key, value in rows:
        if value is None:
            database.execute(f"DELETE FROM {table} WHERE key = ?", (key,))
        else:
            database.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (key, value))


def apply(database: sqlite3.Connection, batch: pmnet.Batch) -> None:
    for at, item in enumerate(batch.items):
        key, space, value = item.payload.partition(b" ")
        if item.kind is pmnet.Kind.UPDATE:
            put(database, "data", [(key, value if space else None)])
            continue
        found = database.execute("SELECT value FROM data WHERE key = ?", (key,)).fetchone()
        batch.reply(at, found[0] if found else b"")
        if item.kind is pmnet.Kind.BYPASS:
            put(database, "data", [(key, None)])


def main(listen: str, file: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    database = sqlite3.connect(file)
    # With these settings no other process can open the data, and a commit is on the disk when it returns.
    database.executescript("PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = FULL; PRAGMA journal_mode = WAL;" + TABLES)
    stored = database.execute("SELECT key, value FROM pmnet")
    with pmnet.Server(listen, rows=stored) as server:
        print(f"ready port={server.port}", flush=True)
        for batch in server:
            with database:
                apply(database, batch)
                put(database, "pmnet", batch.rows())
            batch.done()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: sqlite_store.py LISTEN FILE")
    main(sys.argv[1], sys.argv[2])
