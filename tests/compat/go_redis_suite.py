"""Runs the tests of go-redis, which come from the Go module proxy. Their default protocol is RESP3."""

import json
import re
import shutil
import subprocess
import time
import xml.etree.ElementTree as xml

from stack import Trouble, run_for

# The last version of go-redis whose tests support Redis 7.0.
VERSION = "v9.8.0"
MODULE = "github.com/redis/go-redis/v9"
BUILD_SECONDS_MAX = 420
LABELS = r" \[[^]]*\]$"
RUN_SECONDS_MAX = 420
TEST_SECONDS_MAX = 40
# Tests that need a cluster, a ring, Sentinels or modules. The suite skips these tests.
SKIP = (
    "Cluster|Ring|ring|Sentinel|sentinel|Universal|JSON|Search|search|Timeseries|TimeSeries|Probabilistic|Gears|Vector|FT\\."
)


def fetch(cache):
    """Returns the test program. The program is built once."""
    go = shutil.which("go")
    if go is None:
        raise Trouble("go-redis' tests need Go 1.18 or later: apt-get install golang")
    folder = cache / "go-redis"
    program = folder / f"tests-{VERSION}"
    if program.is_file():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    said = subprocess.run(
        [go, "mod", "download", "-json", f"{MODULE}@{VERSION}"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=BUILD_SECONDS_MAX,
    )
    if said.returncode != 0:
        raise Trouble(f"go-redis' tests need the Go module proxy: {said.stdout[-500:]}")
    # The module is copied, because the folder of the module cache is read-only.
    source = folder / "source"
    shutil.copytree(json.loads(said.stdout)["Dir"], source, copy_function=shutil.copyfile)
    for path in (source, *source.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    main = source / "main_test.go"
    text = main.read_text()
    if 'redisStackPort = "6379"' not in text:
        raise Trouble(f"{main} is not as expected: write go_redis_suite.py anew for {VERSION}")
    # Without a cluster (RE_CLUSTER), the suite connects only to this port.
    main.write_text(text.replace('redisStackPort = "6379"', 'redisStackPort = os.Getenv("COMPAT_PORT")'))
    said = subprocess.run(
        [go, "test", "-c", "-o", str(program), "."], cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=BUILD_SECONDS_MAX,
    )  # fmt: skip
    if said.returncode != 0:
        raise Trouble(f"go-redis' tests cannot be built:\n{said.stdout[-1500:]}")
    return folder


def run(folder, port, log, deadline, only=None):
    """Returns {test: None if it passed, otherwise its output}. Skipped tests are
    left out."""
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    command = [str(folder / f"tests-{VERSION}"), "-test.run", "TestGinkgoSuite", "-test.timeout", f"{RUN_SECONDS_MAX}s"]
    command += [f"-ginkgo.junit-report={report}", f"-ginkgo.skip={SKIP}", "-ginkgo.seed=1", "-ginkgo.no-color"]
    command += [f"-ginkgo.timeout={RUN_SECONDS_MAX - 10}s", f"-ginkgo.poll-progress-after={TEST_SECONDS_MAX}s"]
    # The report appends labels to a test's name. Labels are not part of the name.
    command += [f"-ginkgo.focus={re.escape(re.sub(LABELS, '', only))}$"] if only else []
    seconds = max(5, min(RUN_SECONDS_MAX, deadline - time.monotonic()))
    run_for(seconds, command, folder / "source", log, COMPAT_PORT=str(port), RE_CLUSTER="true", REDIS_VERSION="7.0")
    if not report.is_file():
        raise Trouble(f"go-redis' tests did not end within {seconds:.0f} s, or could not begin: see {log}")
    results = {}
    for case in xml.parse(report).iter("testcase"):
        if case.find("skipped") is not None or not case.get("name").startswith("[It]"):
            continue
        wrong = case.find("failure")
        wrong = case.find("error") if wrong is None else wrong
        said = None if wrong is None else (wrong.get("message") or wrong.text or "it failed")
        results[case.get("name").removeprefix("[It] ")] = said
    return results
