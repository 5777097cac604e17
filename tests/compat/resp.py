"""A client for two servers at the same time. The client sends everything to both, and keeps replies as
the received bytes."""

import select
import socket
import time

SCALARS = b"+-:_#,("
BULKS = b"$!="
AGGREGATES = b"*~>|%"
RECEIVE_BYTES = 1 << 18


class Closed(Exception):
    """The server has closed the connection. `early`: the replies that arrived before."""

    def __init__(self, early):
        super().__init__("closed")
        self.early = early


class Silent(Closed):
    """The server did not answer in time."""


def request(args):
    """Returns a command as RESP."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        parts.append(b"$%d\r\n%b\r\n" % (len(arg), arg))
    return b"".join(parts)


def parse(data, at):
    """Returns (reply, position of its end); None if the reply is incomplete.

    A scalar is returned as its bytes without the last line end. An aggregate is returned as a list: its type
    byte, then its elements.
    """
    line = data.find(b"\r\n", at)
    if line < 0:
        return None
    kind = data[at]
    if kind in SCALARS:
        return data[at:line], line + 2
    length = int(data[at + 1 : line])
    if kind in BULKS:
        if length < 0:
            return data[at:line], line + 2
        end = line + 2 + length
        if len(data) < end + 2:
            return None
        return data[at:end], end + 2
    if kind not in AGGREGATES:
        raise ValueError(f"no reply begins like this: {data[at : at + 40]!r}")
    if length < 0:
        return data[at:line], line + 2
    items = [data[at : at + 1]]
    at = line + 2
    for _ in range(length * 2 if kind in b"%|" else length):
        found = parse(data, at)
        if found is None:
            return None
        items.append(found[0])
        at = found[1]
    return items, at


class Client:
    """One connection. `finished` examines the replies so far, and returns whether they are enough."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.data, self.out, self.replies, self.finished, self.broken = b"", b"", [], None, None

    def begin(self, payload, finished):
        """Prepares the bytes that the function `both` will send."""
        self.out, self.replies, self.finished, self.broken = payload, [], finished, None

    def waits(self):
        """Returns whether replies are still awaited."""
        return self.broken is None and not self.finished(self.replies)

    def send(self):
        """Sends as many bytes as possible without waiting."""
        try:
            self.out = self.out[self.socket.send(self.out[: 1 << 20]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.out = b""

    def receive(self):
        """Receives the bytes that are waiting."""
        try:
            part = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self.broken = Closed(self.replies)
            return
        data, at = self.data + part, 0
        while at < len(data):
            found = parse(data, at)
            if found is None:
                break
            self.replies.append(found[0])
            at = found[1]
        self.data = data[at:]

    def close(self):
        """Closes the connection."""
        self.socket.close()


def exchange(clients, seconds):
    """Sends and receives on all connections until no reply is awaited. If a connection fails, its `broken`
    is set."""
    until = time.monotonic() + seconds
    while True:
        waiting = [client for client in clients if client.waits()]
        if not waiting:
            return
        left = until - time.monotonic()
        if left <= 0:
            for client in waiting:
                client.broken = Silent(client.replies)
            return
        writing = [client.socket for client in waiting if client.out]
        readable, writable, _ = select.select([client.socket for client in waiting], writing, [], left)
        for client in waiting:
            if client.socket in writable:
                client.send()
            if client.socket in readable:
                client.receive()


def show(reply, most=240):
    """Returns a reply as one line, in the form of redis-cli."""
    text = _show(reply)
    return text if len(text) <= most else text[: most - 20] + f" … ({len(text)} characters)"


def _show(reply):
    if isinstance(reply, str):
        return reply
    if isinstance(reply, list):
        signs = {b"*": "[]", b"~": "~{}", b">": ">[]", b"%": "%{}", b"|": "|{}"}[reply[0]]
        return signs[:-1] + ", ".join(_show(item) for item in reply[1:]) + signs[-1]
    if reply[:1] in (b"$", b"!", b"=") and b"\r\n" in reply:
        sign = "" if reply[:1] == b"$" else reply[:1].decode()
        return sign + quoted(reply[reply.index(b"\r\n") + 2 :])
    if reply in (b"$-1", b"*-1", b"_"):
        return f"nil({reply.decode()})"
    return reply.decode("latin-1")


def quoted(word):
    """Returns bytes in the quoted form of redis-cli."""
    if len(word) > 80:
        return f'"{escaped(word[:16])}…" ({len(word)} bytes)'
    return f'"{escaped(word)}"'


def escaped(word):
    """Returns bytes with all characters escaped that would end the quotes."""
    special = {0x22: '\\"', 0x5C: "\\\\", 0x0A: "\\n", 0x0D: "\\r"}
    return "".join(special.get(c) or (chr(c) if 32 <= c < 127 else f"\\x{c:02x}") for c in word)


def spell(args):
    """Returns a command in the form in which a user types it."""
    words = []
    for arg in args:
        plain = arg and len(arg) <= 80 and all(c in SAFE for c in arg)
        words.append(arg.decode() if plain else quoted(arg))
    return " ".join(words)


SAFE = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:+*([$>=~#,@{}/?!^&|<"
