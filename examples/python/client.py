# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A client for a server program of your own.

    client.py DEVICES update TEXT [TIMES]   TIMES updates, many of them under way at once
    client.py DEVICES ask TEXT              a request that may change something, and its reply
    client.py DEVICES read TEXT             a request that only reads, and its reply
"""

import asyncio
import sys

import pmnet

UNDER_WAY = 256


async def update(devices: str, text: bytes, times: int) -> int:
    """Sends the updates, and prints how many of them are durable. Returns the exit code."""
    durable = 0
    left = iter(range(times))
    async with pmnet.AsyncClient(devices, timeout=30) as client:

        async def one_after_another() -> None:
            nonlocal durable
            for _ in left:
                await client.update(text, key=b"count")
                durable += 1

        several = [one_after_another() for _ in range(min(times, UNDER_WAY))]
        for result in await asyncio.gather(*several, return_exceptions=True):
            if result is not None:
                print(f"client: {result}", file=sys.stderr)
    print(f"durable {durable} of {times}")
    return 0 if durable == times else 1


def request(devices: str, text: bytes, read_only: bool) -> int:
    with pmnet.Client(devices, timeout=30) as client:
        reply = client.bypass(text, read_only=read_only)
    print(reply.decode(errors="replace"))
    return 0


def main() -> int:
    if len(sys.argv) < 4 or sys.argv[2] not in ("update", "ask", "read"):
        print("usage: client.py DEVICES update|ask|read TEXT [TIMES]", file=sys.stderr)
        return 2
    devices, what, text = sys.argv[1], sys.argv[2], sys.argv[3].encode()
    try:
        if what == "update":
            return asyncio.run(update(devices, text, int(sys.argv[4]) if len(sys.argv) > 4 else 1))
        return request(devices, text, read_only=what == "read")
    except pmnet.Error as error:
        print(f"client: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
