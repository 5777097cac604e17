"""What is under way, how far, and how long it will take: a bar on a terminal, else a line now and then."""

import sys
import time

# Seconds between two lines where there is no terminal, and between two updates of a bar.
LINE_SECONDS = 15
BAR_SECONDS = 0.2
WIDTH = 28


class Bar:
    """Progress towards `total`, of which there must be at least one; `show` says how much is done."""

    def __init__(self, name, total, out=None):
        self.name, self.total, self.out = name, total, out or sys.stderr
        self.begun = self.shown = time.monotonic()
        self.terminal = self.out.isatty()

    def show(self, done, note="", last=False):
        """Shows it, if it is time to."""
        now = time.monotonic()
        if not last and now - self.shown < (BAR_SECONDS if self.terminal else LINE_SECONDS):
            return
        self.shown = now
        share = min(1.0, done / self.total)
        passed = now - self.begun
        left = f"{span(passed / share * (1 - share))} left" if 0 < share < 1 else span(passed)
        bar = "#" * round(WIDTH * share)
        text = f"{self.name:<12} [{bar:<{WIDTH}}] {done:,} of {self.total:,}  {left}  {note}"
        self.out.write(f"\r{text[:150]:<110}" if self.terminal else text + "\n")
        self.out.flush()

    def end(self, done, note=""):
        """The last line of it."""
        self.show(done, note, last=True)
        if self.terminal:
            self.out.write("\n")


def span(seconds):
    """A time as a person says it."""
    seconds = round(seconds)
    return f"{seconds} s" if seconds < 90 else f"{seconds // 60} min {seconds % 60:02} s"
