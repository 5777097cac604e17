"""Runs the tests of redis-py, which come from its source distribution, with RESP2 and RESP3."""

import shutil
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as xml

from stack import Trouble, run_for

# The version of redis-py, as in tests/setup.sh.
VERSION = "6.4.0"
# Packages that the tests need. Each plugin has the newest version that this redis-py supports.
PACKAGES = [
    f"redis=={VERSION}",
    "pytest<9",
    "pytest-asyncio<1.1",
    "pytest-timeout",
    "coverage",
    "mock",
    "packaging",
    "numpy<3",
]
INSTALL_SECONDS_MAX = 240
RUN_SECONDS_MAX = 600
# Time limit of one test in seconds. The limit also ends tests that hang through the front.
TEST_SECONDS_MAX = 40
# Files with tests that use a single Redis. The other files need clusters, Sentinels, modules or TLS, or
# test only the library.
FILES = [
    *("commands", "pipeline", "pubsub", "lock", "scripting", "function", "hash", "encoding", "monitor", "connection_pool"),
    *("connection", "cache", "multiprocessing", "retry", "connect"),
]
ASYNC_FILES = [
    "commands",
    "pipeline",
    "pubsub",
    "lock",
    "scripting",
    "hash",
    "encoding",
    "monitor",
    "connection_pool",
    "connection",
]
MARKS = "not redismod and not onlycluster and not ssl and not replica and not cp_integration and not experimental"


def fetch(cache):
    """Returns (Python of a venv with redis-py, folder of its tests). Both are made once."""
    folder = cache / "redis-py"
    python, tests = folder / "venv" / "bin" / "python", folder / f"redis-{VERSION}"
    if python.exists() and (tests / "tests").is_dir():
        return python, tests
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    steps = [
        [sys.executable, "-m", "venv", str(folder / "venv")],
        [str(python), "-m", "pip", "-q", "install", "--disable-pip-version-check", *PACKAGES],
        [str(python), "-m", "pip", "-q", "download", "--disable-pip-version-check", "--no-deps", "--no-binary", "redis"]
        + ["-d", str(folder), f"redis=={VERSION}"],
    ]
    for step in steps:
        said = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=INSTALL_SECONDS_MAX)
        if said.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            raise Trouble(
                f"redis-py's tests need python3-venv and PyPI; `{' '.join(step[:5])} …` says:\n{said.stdout[-1500:]}"
            )
    with tarfile.open(folder / f"redis-{VERSION}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return python, tests


def run(place, port, protocol, log, deadline, only=None):
    """Returns {test: None if it passed, otherwise its output} of all tests, or of one test. Skipped tests
    are left out."""
    python, tests = place
    files = [f"tests/test_{name}.py" for name in FILES] + [f"tests/test_asyncio/test_{name}.py" for name in ASYNC_FILES]
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", MARKS, "--protocol", str(protocol)]
    command += ["--redis-url", f"redis://127.0.0.1:{port}/0", "--timeout", str(TEST_SECONDS_MAX), f"--junitxml={report}"]
    command += [node(only)] if only else [name for name in files if (tests / name).is_file()]
    seconds = max(5, min(RUN_SECONDS_MAX, deadline - time.monotonic()))
    run_for(seconds, command, tests, log, PYTHONDONTWRITEBYTECODE="1")
    if not report.is_file():
        raise Trouble(f"redis-py's tests did not end within {seconds:.0f} s, or could not begin: see {log}")
    return read_report(report, protocol)


def node(test):
    """Returns the test's name in the form of pytest's command line."""
    place, _, name = test.split(" ", 1)[1].partition("[")
    module, kind, function = place.rsplit(".", 2)
    return f"tests/{module.replace('.', '/')}.py::{kind}::{function}" + (f"[{name}" if name else "")


def read_report(report, protocol):
    """Returns {test: None or its output} from a file in JUnit's format."""
    results = {}
    for case in xml.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        wrong = case.find("failure")
        wrong = case.find("error") if wrong is None else wrong
        name = f"RESP{protocol} {case.get('classname').removeprefix('tests.')}.{case.get('name')}"
        said = None if wrong is None else (wrong.get("message") or "it failed")
        # The file may have two cases for one test: the test itself, and its clean-up.
        results[name] = results.get(name) or said
    return results
