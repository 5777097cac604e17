"""The clients of a scenario, and what is written down about them."""

import re
import shlex
import time

from resp import Client, exchange, request, show, spell

ANSWER_SECONDS_MAX = 14
# So long nothing must come where nothing should.
QUIET_SECONDS = 0.3
# Seconds in which a long pipeline must be sent, and then be answered.
PIPELINE_SECONDS_MAX = 60


class Table:
    """The clients of one scenario, and what is written down about them."""

    def __init__(self, port):
        self.port, self.lines, self.peers = port, [], []

    def peer(self, protocol=2):
        """A new client."""
        peer = Peer(self, "ABCDEFGH"[len(self.peers) % 8])
        self.peers.append(peer)
        if protocol == 3:
            peer.ask("HELLO", "3", shown=lambda reply: "ok")
        return peer

    def write(self, line):
        """One line of what is compared."""
        self.lines.append(line)

    def close(self):
        """Ends all clients."""
        for peer in self.peers:
            peer.close()

    def anew(self, protocol=2):
        """A new client after the end of all others."""
        self.close()
        self.peers.clear()
        return self.peer(protocol)

    def long_pipeline(self, count, make, is_right):
        """A client that sends everything before it reads anything, as client libraries do."""
        peer = self.peer()
        payload = b"".join(request(list(map(encoded, make(number)))) for number in range(count))
        peer.raw(payload, PIPELINE_SECONDS_MAX)
        peer.wait(lambda replies: len(replies) >= count, PIPELINE_SECONDS_MAX)
        replies = peer.client.replies
        last = show(replies[-1]) if replies else None
        self.write(f"{len(replies)} replies, right: {all(map(is_right, replies))}, the last {last}")


class Peer:
    """One client of a scenario."""

    def __init__(self, table, name):
        self.table, self.name, self.client = table, name, Client(table.port)

    def ask(self, *words, shown=show, seconds=ANSWER_SECONDS_MAX, about=None):
        """Sends a command and writes down its reply, and of the command `about` or all; returns the reply, or None."""
        self.send(*words)
        return self.read(1, shown=shown, seconds=seconds, about=about or spell(list(map(encoded, words))))[0]

    def asks(self, text, shown=show):
        """One command a line, in the words of a shell."""
        for line in filter(None, map(str.strip, text.splitlines())):
            self.ask(*shlex.split(line), shown=shown)

    def send(self, *words):
        """Sends a command only: its words, or all in one string."""
        self.raw(request(list(map(encoded, shlex.split(words[0]) if len(words) == 1 else words))))

    def raw(self, payload, seconds=ANSWER_SECONDS_MAX):
        """Sends these bytes, all of them within this time."""
        self.client.socket.setblocking(True)
        self.client.socket.settimeout(seconds)
        try:
            self.client.socket.sendall(payload)
        except OSError:
            self.table.write(f"{self.name}: cannot send")
        self.client.socket.setblocking(False)

    def wait(self, finished, seconds):
        """Waits for replies, which are then in the client."""
        self.client.begin(b"", finished)
        exchange([self.client], seconds)

    def read(self, count, shown=show, seconds=ANSWER_SECONDS_MAX, about=""):
        """Waits for so many replies and writes them down; those that did not come are None."""
        self.wait(lambda replies: len(replies) >= count, seconds)
        for reply in self.client.replies:
            self.table.write(f"{self.name}: {about} -> {shown(reply)}")
        if self.client.broken:
            self.table.write(f"{self.name}: {about} -> ({type(self.client.broken).__name__.lower()})")
        return self.client.replies + [None] * (count - len(self.client.replies))

    def all(self, seconds=0.5, shown=show):
        """Writes down everything that comes in this time, as one line."""
        self.wait(lambda replies: False, seconds)
        self.table.write(f"{self.name}: " + " | ".join(map(shown, self.client.replies)))

    def quiet(self):
        """Writes down what comes although nothing should."""
        self.read(1, seconds=QUIET_SECONDS)

    def bytes(self, seconds):
        """Writes down the bytes that come, and whether the connection is closed then."""
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
        """Ends the client without a word."""
        self.client.close()


def encoded(word):
    """A word as bytes."""
    return word if isinstance(word, bytes) else str(word).encode()


def fields(reply):
    """The names of the fields of INFO or CLIENT LIST, and what kind of string it is."""
    names = sorted(set(re.findall(rb"(?:^|[ \n:])([a-z][a-z0-9_-]*)[=:]", reply)))
    return f"{reply[:1].decode()} {b' '.join(names).decode()}"


def kind(reply):
    """Only what kind of reply it is."""
    return repr(reply[0] if isinstance(reply, list) else reply[:1])


def values(reply):
    """The values of a map without their names, or the whole of anything else."""
    return str(list(map(show, reply[1::2]))) if isinstance(reply, list) else show(reply)
