"""Shows the present work, its progress and its remaining time: as a bar on a terminal, otherwise as a line from
time to time."""

import sys
import time

# Seconds between two lines without a terminal, and seconds between two updates of a bar.
LINE_SECONDS = 15
BAR_SECONDS = 0.2
WIDTH = 28


class Bar:
    """Begins the progress towards `total`, which is at least 1. The caller passes the completed number to `show`."""

    def __init__(self, name, total, out=None):
        self.name, self.total, self.out = name, total, out or sys.stderr
        self.begun = self.shown = time.monotonic()
        self.terminal = self.out.isatty()

    def show(self, done, note="", last=False):
        """Shows the progress, if an update is due."""
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
        """Shows the last line."""
        self.show(done, note, last=True)
        if self.terminal:
            self.out.write("\n")


def span(seconds):
    """Returns a time as text for readers."""
    seconds = round(seconds)
    return f"{seconds} s" if seconds < 90 else f"{seconds // 60} min {seconds % 60:02} s"
