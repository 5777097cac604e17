# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A counter that applies each update exactly once, even if processes are killed.

    counter.py LISTEN FOLDER

The update "+N" adds N. The request "get" returns the count; "take" returns the count and sets it to zero.
"""

import os
import signal
import sys
from typing import Tuple

import pmnet


def store(folder: int, count: int, mark: bytes) -> None:
    """Stores count and watermark in one transaction: writes both into a new file, and renames it over the old file."""
    file = os.open("count.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=folder)
    with os.fdopen(file, "wb") as writer:
        writer.write(count.to_bytes(8, "big") + mark)
        writer.flush()
        os.fsync(file)
    os.replace("count.new", "count", src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def load(folder: int) -> Tuple[int, bytes]:
    """Returns the stored count and watermark. At the first start they are 0 and empty."""
    try:
        with os.fdopen(os.open("count", os.O_RDONLY, dir_fd=folder), "rb") as reader:
            return int.from_bytes(reader.read(8), "big"), reader.read()
    except FileNotFoundError:
        return 0, b""


def main(listen: str, place: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    count, mark = load(folder)
    with pmnet.Server(listen, watermark=mark) as server:
        print(f"ready port={server.port}", flush=True)
        for batch in server:
            after = count
            for at, item in enumerate(batch.items):
                if item.kind is pmnet.Kind.UPDATE:
                    after += int(item.payload) if item.payload.lstrip(b"+-").isdigit() else 0
                    continue
                batch.reply(at, b"%d" % after)
                if item.kind is pmnet.Kind.BYPASS:
                    after = 0
            if batch.rows():
                store(folder, after, batch.watermark())
            batch.done()
            count = after


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: counter.py LISTEN FOLDER")
    main(sys.argv[1], sys.argv[2])
