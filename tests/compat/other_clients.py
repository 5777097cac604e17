"""Tests with client libraries whose packages have no tests. Each library sends the same commands to both sides,
and must parse equal results."""

import dataclasses
import json
import pathlib
import random
import shutil
import subprocess
import tempfile

from grammar import mode, tame
from resp import spell
from stack import Trouble

HERE = pathlib.Path(__file__).resolve().parent
# Versions of the libraries. The version of ioredis is the version that tests/setup.sh installs.
IOREDIS, NODE_REDIS, JEDIS = "5.11.1", "5.8.3", "6.2.0"
INSTALL_SECONDS_MAX = 240
RUN_SECONDS_MAX = 120
# Number of commands for each client. Every command of Redis is among these commands.
COMMANDS = 1500


@dataclasses.dataclass
class Program:
    """A client: the command that starts it, and its version."""

    name: str
    version: str
    command: list
    folder: pathlib.Path


@dataclasses.dataclass
class Programs:
    """The installed clients, and a sentence about each missing one."""

    found: list
    missing: list


def commands(grammar):
    """Returns commands of every kind whose replies are equal on two servers. A fixed seed determines the
    commands."""
    rng = random.Random("clients")
    found = []
    for name in grammar.names:
        for _ in range(5):
            found.append(grammar.spelled(rng, name))
    while len(found) < COMMANDS:
        found.append(grammar.command(rng))
    found = [tame(rng, command) for command in found]
    # Commands that are left out: the clients take words as arguments, and commands that change the connection
    # cannot be compared.
    left_out = (b"HELLO", b"CLIENT", b"SELECT", b"SPOP", b"READONLY", b"READWRITE", b"ASKING", b"CLUSTER", b"WATCH")
    return [
        command
        for command in found
        if mode(command) == "exact" and command[0].upper() not in left_out and all(word.isascii() for word in command)
    ]


def fetch(cache):
    """Installs all clients that can be installed."""
    found, missing = [], []
    node = cache / "node"
    try:
        if not (node / "node_modules" / "redis").is_dir() or not (node / "node_modules" / "ioredis").is_dir():
            node.mkdir(parents=True, exist_ok=True)
            install(["npm", "--prefix", str(node), "--no-audit", "--no-fund", "--ignore-scripts", "install"]
                    + [f"ioredis@{IOREDIS}", f"redis@{NODE_REDIS}"], node)  # fmt: skip
        script = node / "other_clients.js"
        shutil.copyfile(HERE / "other_clients.js", script)
        found.append(Program("ioredis", f"ioredis {IOREDIS}", ["node", str(script), "ioredis"], node))
        found.append(Program("redis", f"node-redis {NODE_REDIS}", ["node", str(script), "redis"], node))
    except Trouble as trouble:
        missing.append(f"ioredis and node-redis are not tried: {trouble}")
    java = cache / "java"
    try:
        if not (java / "OtherClients.class").is_file():
            shutil.rmtree(java, ignore_errors=True)
            java.mkdir(parents=True)
            (java / "pom.xml").write_text(POM)
            install(["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"], java)
            install(["javac", "-cp", "jars/*", "-d", ".", str(HERE / "OtherClients.java")], java)
        found.append(
            Program("jedis", f"Jedis {JEDIS}", ["java", "-cp", f"{java}:{java}/jars/*", "OtherClients", "jedis"], java)
        )
    except Trouble as trouble:
        missing.append(f"Jedis is not tried: {trouble}")
    if not found:
        raise Trouble("\n".join(missing))
    return Programs(found, missing)


POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>compat</groupId><artifactId>compat</artifactId><version>1</version><dependencies><dependency>
<groupId>redis.clients</groupId><artifactId>jedis</artifactId><version>{JEDIS}</version></dependency></dependencies></project>
"""


def install(command, folder):
    """Runs a command that downloads something."""
    if shutil.which(command[0]) is None:
        raise Trouble(f"there is no {command[0]}: install Node.js with npm, and a JDK with Maven")
    try:
        said = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=INSTALL_SECONDS_MAX,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Trouble(f"`{' '.join(command[:3])} …` did not end within {INSTALL_SECONDS_MAX} s") from None
    if said.returncode != 0:
        raise Trouble(f"`{' '.join(command[:3])} …` failed: {said.stdout[-600:]}")


def run(program, port, sent):
    """Returns the results that the client has parsed: a list with one element for each command."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        if program.name == "jedis":
            file.write("\n".join(" ".join(word.hex() for word in command) for command in sent))
        else:
            json.dump([[word.decode() for word in command] for command in sent], file)
        file.flush()
        said = subprocess.run(
            [*program.command, str(port), file.name], cwd=program.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, timeout=RUN_SECONDS_MAX,
        )  # fmt: skip
    if said.returncode != 0:
        raise Trouble(f"{program.version} ended with {said.returncode}: {said.stderr[-800:]}")
    return json.loads(said.stdout)


def compare(program, sent, left, right, suite, expected):
    """Makes one test for each command's name. The test fails if a reply differs and no rule explains the
    difference."""
    for command, direct, front in zip(sent, left, right, strict=True):
        test = f"{program.version.split()[0]}: {command[0].upper().decode()}"
        suite.direct[test] = None
        suite.front.setdefault(test, None)
        if direct == front or suite.front[test] is not None:
            continue
        # The rules apply to replies as bytes, in which an error is one line.
        texts = [
            "-" + reply["error"] if isinstance(reply, dict) and "error" in reply else json.dumps(reply)
            for reply in (direct, front)
        ]
        if expected.rule_for(spell(command), *texts) is None:
            suite.front[test] = f"{spell(command)}\ndirect: {texts[0]}\nfront:  {texts[1]}"
