"""The page of the status port in a real browser, with real processes under load. Within five seconds, the charts
must have points. There must be no requests to other hosts, no errors and no horizontal scrolling, with light and
dark colours, on a phone and on a desktop. The page must report a lost device. Pictures are written to target/page
and, with UPDATE=1, to docs/operate."""

import argparse
import os
import pathlib
import shutil
import socket
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "compat"))

from browser import Browser, BrowserTrouble  # noqa: E402
from stack import TARGET, Stack, Trouble, binary_path, end, free_port  # noqa: E402

POINTS_SECONDS_MAX = 5
TOLD_SECONDS_MAX = 15
# For each role, the minimum number of charts that must have points.
CHARTS_MIN = {"redis": 4, "head": 4, "tail": 3, "server": 3}
WIDTHS = {"phone": (375, 800), "desk": (1280, 900)}
PICTURES = {("head", "desk", "light"): "status-page.png", ("redis", "phone", "dark"): "status-page-phone.png"}
PICTURE_HEIGHT_MAX = 1100


class Shown(Stack):
    """Starts a chain of two devices. Every process has a status port."""

    def _start_pmnet(self, binary):
        server, tail, head = (free_port(socket.SOCK_DGRAM) for _ in range(3))
        front = free_port(socket.SOCK_STREAM)
        at = "127.0.0.1:{}".format
        device = lambda number, name, place, next_hop: [  # noqa: E731
            *("--id", str(number), "--listen", at(place), "--next", at(next_hop), "--copies", "2"),
            *("--log", str(self.folder / f"{name}.plog"), "--media", "dram"),
        ]
        roles = {
            "server": ["server", "--listen", at(server), "--store", f"redis://127.0.0.1:{self.redis_port}"],
            "tail": ["device", *device(2, "tail", tail, server)],
            "head": ["device", *device(1, "head", head, tail)],
            "redis": ["redis", "--listen", at(front), "--via", at(head), "--spin-us", "0", "--deadline-ms", "2000"],
        }
        self.pages = {}
        for name, arguments in roles.items():
            port = free_port(socket.SOCK_STREAM)
            process, log = self._spawn(name, [binary, *arguments, "--status", at(port)])
            self._wait(name, process, log, lambda log=log: b"ready " in log.read_bytes())
            self.pages[name] = f"http://127.0.0.1:{port}/"
        return front

    def kill(self, name):
        """Kills one process."""
        process = dict(self.processes)[name]
        process.kill()
        end(process)


def load(port, is_over):
    """A client that writes and reads again and again."""
    commands = b"SET page:%d x\r\nINCR page:count\r\nGET page:%d\r\n"
    turn = 0
    while not is_over.is_set():
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                while not is_over.wait(0.005):
                    turn += 1
                    client.sendall(commands % (turn % 100, turn % 100))
                    if not client.recv(4096):
                        break
        except OSError:
            is_over.wait(0.2)


def within(seconds, what, look):
    """Waits until `look` returns true."""
    until = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.1)
    return seen


def check(browser, stack, name, size, scheme, pictures):
    """Checks one page in one window."""
    width, height = WIDTHS[size]
    origin = stack.pages[name]
    browser.open(origin, width, height, scheme)
    count = "[...document.querySelectorAll('.chart')].filter((one) => Number(one.dataset.points) > 1).length"
    started = time.monotonic()
    within(POINTS_SECONDS_MAX, f"{name}: charts with points", lambda: browser.evaluate(count) >= CHARTS_MIN[name])
    took = time.monotonic() - started
    state = browser.evaluate("document.getElementById('state').textContent")
    assert state.startswith("ready"), f"{name}: {state}"
    wide = browser.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, f"{name}: {wide} pixels in a window of {width}"
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(16, 21, 28)") == (scheme == "dark"), f"{scheme}: {ground}"
    assert browser.evaluate("document.querySelectorAll('.note').length") == 0, f"{name}: a note although all is well"
    seen = min(8, browser.evaluate("document.querySelectorAll('.chart').length"))
    time.sleep(6 if (name, size, scheme) in PICTURES else 0)
    browser.screenshot(pictures / f"{name}-{size}-{scheme}.png", PICTURE_HEIGHT_MAX)
    clean(browser, origin)
    print(f"{name:<8} {size:<6} {scheme:<6} {seen} charts, points after {took:.1f} s")


def clean(browser, origin):
    """The page must have had no errors, and must have sent requests only to its own port."""
    browser.evaluate("0")
    assert not browser.problems, browser.problems
    foreign = [url for url in browser.requests if not url.startswith(origin)]
    assert browser.requests and not foreign, foreign


def told(browser, stack, name, words):
    """The page must name the fault, and the handbook page with advice."""
    browser.open(stack.pages[name], *WIDTHS["desk"], "light")
    text = "[...document.querySelectorAll('.note')].map((one) => one.textContent).join('\\n')"
    for word in words:
        within(TOLD_SECONDS_MAX, f"{name}: {word}", lambda word=word: word in browser.evaluate(text))


def run(binary, pictures):
    """Runs the whole test."""
    is_over = threading.Event()
    with Shown(binary) as stack, Browser() as browser:
        workers = [threading.Thread(target=load, args=(stack.port, is_over), daemon=True) for _ in range(4)]
        for worker in workers:
            worker.start()
        try:
            for name in stack.pages:
                for size in WIDTHS:
                    for scheme in ("light", "dark"):
                        check(browser, stack, name, size, scheme, pictures)
            stack.kill("tail")
            told(browser, stack, "redis", ["nothing has come back", "alerts.md, PmnetDevicesSilent"])
            browser.screenshot(pictures / "lost.png", PICTURE_HEIGHT_MAX)
            clean(browser, stack.pages["redis"])
            stack.kill("redis-server")
            told(browser, stack, "server", ["left alone", "alerts.md, PmnetStorePaused"])
            clean(browser, stack.pages["server"])
            # When the process ends, the page must report it. The browser's own messages about the lost connection are
            # no fault of the page.
            stack.kill("server")
            text = "document.getElementById('state').textContent"
            within(TOLD_SECONDS_MAX, "the process is gone", lambda: "PmnetDown" in browser.evaluate(text))
        finally:
            is_over.set()
    if os.environ.get("UPDATE") == "1":
        for picture, name in PICTURES.items():
            shutil.copy(pictures / f"{'-'.join(picture)}.png", ROOT / "docs" / "operate" / name)
    print(f"the page is well; pictures are in {pictures}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pmnet", help="the product's binary")
    options = parser.parse_args()
    pictures = TARGET / "page"
    pictures.mkdir(parents=True, exist_ok=True)
    try:
        run(binary_path(options.pmnet), pictures)
    except (AssertionError, BrowserTrouble, Trouble) as trouble:
        print(f"page: {trouble}", file=sys.stderr)
        sys.exit(1)


main()
