"""The clients of a scenario, and the record of their replies."""

import re
import shlex
import time

from resp import Client, exchange, request, show, spell

ANSWER_SECONDS_MAX = 14
# Seconds that a client waits if it expects to receive nothing.
QUIET_SECONDS = 0.3
# Time limit in seconds for sending a long pipeline, and again for its replies.
PIPELINE_SECONDS_MAX = 60


class Table:
    """The clients of one scenario, and the record of their replies."""

    def __init__(self, port):
        self.port, self.lines, self.peers = port, [], []

    def peer(self, protocol=2):
        """Returns a new client."""
        peer = Peer(self, "ABCDEFGH"[len(self.peers) % 8])
        self.peers.append(peer)
        if protocol == 3:
            peer.ask("HELLO", "3", shown=lambda reply: "ok")
        return peer

    def write(self, line):
        """Adds one line to the record."""
        self.lines.append(line)

    def close(self):
        """Ends all clients."""
        for peer in self.peers:
            peer.close()

    def anew(self, protocol=2):
        """Ends all clients and returns a new client."""
        self.close()
        self.peers.clear()
        return self.peer(protocol)

    def long_pipeline(self, count, make, is_right):
        """Adds a client that sends all commands before it reads any reply, as client libraries do."""
        peer = self.peer()
        payload = b"".join(request(list(map(encoded, make(number)))) for number in range(count))
        peer.raw(payload, PIPELINE_SECONDS_MAX)
        peer.wait(lambda replies: len(replies) >= count, PIPELINE_SECONDS_MAX)
        replies = peer.client.replies
        last = show(replies[-1]) if replies else None
        self.write(f"{len(replies)} replies, right: {all(map(is_right, replies))}, the last {last}")


class Peer:
    """A client of a scenario."""

    def __init__(self, table, name):
        self.table, self.name, self.client = table, name, Client(table.port)

    def ask(self, *words, shown=show, seconds=ANSWER_SECONDS_MAX, about=None):
        """Sends a command. Records the command (as `about`, if given) with its reply. Returns the
        reply; None if the reply is missing."""
        self.send(*words)
        return self.read(1, shown=shown, seconds=seconds, about=about or spell(list(map(encoded, words))))[0]

    def asks(self, text, shown=show):
        """Sends the commands in a text, one per line, in the syntax of a shell."""
        for line in filter(None, map(str.strip, text.splitlines())):
            self.ask(*shlex.split(line), shown=shown)

    def send(self, *words):
        """Sends a command, which is given as words or as one string. Does not read the reply."""
        self.raw(request(list(map(encoded, shlex.split(words[0]) if len(words) == 1 else words))))

    def raw(self, payload, seconds=ANSWER_SECONDS_MAX):
        """Sends all these bytes, within this time."""
        self.client.socket.setblocking(True)
        self.client.socket.settimeout(seconds)
        try:
            self.client.socket.sendall(payload)
        except OSError:
            self.table.write(f"{self.name}: cannot send")
        self.client.socket.setblocking(False)

    def wait(self, finished, seconds):
        """Waits for replies. The client keeps the replies."""
        self.client.begin(b"", finished)
        exchange([self.client], seconds)

    def read(self, count, shown=show, seconds=ANSWER_SECONDS_MAX, about=""):
        """Waits for this number of replies, and records them. A missing reply is recorded as None."""
        self.wait(lambda replies: len(replies) >= count, seconds)
        for reply in self.client.replies:
            self.table.write(f"{self.name}: {about} -> {shown(reply)}")
        if self.client.broken:
            self.table.write(f"{self.name}: {about} -> ({type(self.client.broken).__name__.lower()})")
        return self.client.replies + [None] * (count - len(self.client.replies))

    def all(self, seconds=0.5, shown=show):
        """Records all replies that arrive in this time, as one line."""
        self.wait(lambda replies: False, seconds)
        self.table.write(f"{self.name}: " + " | ".join(map(shown, self.client.replies)))

    def quiet(self):
        """Records replies that arrive although none are expected."""
        self.read(1, seconds=QUIET_SECONDS)

    def bytes(self, seconds):
        """Records the bytes that arrive, and whether the connection is closed after them."""
        got, closed, until = b"", False, time.monotonic() + seconds
        self.client.socket.setblocking(True)
        while time.monotonic() < until and not closed:
            self.client.socket.settimeout(max(0.01, until - time.monotonic()))
            try:
                part = self.client.socket.recv(65536)
            except TimeoutError:
                break
            except OSError:
                part = b""
            closed = not part
            got += part
        self.table.write(f"{self.name}: {got[:300]!r}{' closed' if closed else ''}")

    def close(self):
        """Closes the client's connection without sending a command."""
        self.client.close()


def encoded(word):
    """Returns a word as bytes."""
    return word if isinstance(word, bytes) else str(word).encode()


def fields(reply):
    """Returns the names of the fields in a reply to INFO or CLIENT LIST, and the kind of the string."""
    names = sorted(set(re.findall(rb"(?:^|[ \n:])([a-z][a-z0-9_-]*)[=:]", reply)))
    return f"{reply[:1].decode()} {b' '.join(names).decode()}"


def kind(reply):
    """Returns only the kind of the reply."""
    return repr(reply[0] if isinstance(reply, list) else reply[:1])


def values(reply):
    """Returns the values of a map without their names. Returns any other reply unchanged."""
    return str(list(map(show, reply[1::2]))) if isinstance(reply, list) else show(reply)
