"""A Chromium without a screen. The test controls Chromium with the developer-tools protocol
over a pipe, which needs no other program and no port."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

# Time limit in seconds of one answer of Chromium.
ANSWER_SECONDS_MAX = 30
NAMES = ("chromium", "chromium-browser", "google-chrome")


class BrowserTrouble(Exception):
    """Chromium is missing, or does not answer."""


class Browser:
    """One page of the browser. Collects the page's errors and requests."""

    def __init__(self):
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            raise BrowserTrouble("there is no chromium: apt-get install --no-install-recommends chromium")
        self.folder = tempfile.mkdtemp(prefix="page-")
        to_browser, self.out = os.pipe()
        self.into, from_browser = os.pipe()

        def connect():
            # The protocol's file descriptors: Chromium reads from 3 and writes to 4.
            os.dup2(to_browser, 30)
            os.dup2(from_browser, 31)
            os.dup2(30, 3)
            os.dup2(31, 4)

        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--disable-dev-shm-usage"]
        # These options keep Chromium from making requests of its own, so that only those of the
        # page are visible.
        options += ["--disable-background-networking", "--no-first-run", f"--user-data-dir={self.folder}", "about:blank"]
        self.process = subprocess.Popen(
            [program, *options], preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self.numbers, self.rest, self.session = itertools.count(1), b"", None
        self.problems, self.requests = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        """Ends Chromium."""
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.into)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def call(self, method, **params):
        """Sends a command, and returns its result."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + ANSWER_SECONDS_MAX
        while (left := until - time.monotonic()) > 0:
            answer = self._next(left)
            if answer and answer.get("id") == number:
                if "error" in answer:
                    raise BrowserTrouble(f"{method}: {answer['error']}")
                return answer["result"]
        raise BrowserTrouble(f"{method}: no answer within {ANSWER_SECONDS_MAX} s")

    def _next(self, seconds):
        while b"\0" not in self.rest:
            if not select.select([self.into], [], [], seconds)[0]:
                return None
            part = os.read(self.into, 1 << 16)
            if not part:
                raise BrowserTrouble("Chromium has ended")
            self.rest += part
        text, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(text)
        self._note(message)
        return message

    def _note(self, message):
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled":
                self.problems.append(json.dumps(params["args"])[:500])
            case "Log.entryAdded":
                self.problems.append(json.dumps(params["entry"])[:500])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def open(self, url, width, height, scheme):
        """Opens a page in a window of this size, with light or dark colours."""
        self.problems, self.requests = [], []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)

    def evaluate(self, expression):
        """Returns the value of an expression that is evaluated in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserTrouble(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, path, height_max):
        """Returns a picture of the page, beginning at its top."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], height_max), "scale": 1}
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(picture))
