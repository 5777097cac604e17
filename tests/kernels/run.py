#!/usr/bin/env python3
"""Does this kernel accept the pipeline, and does the pipeline in it behave like the device in user
space?

Boots Debian kernels in QEMU (emulated: needs no virtualization). Each guest has a file system in
memory with one program: the tests of crates/dataplane/tests/kernel. The tests load the programs of
bpf/, let the kernel answer updates alone, and compare it packet by packet with the device in user
space.

  tests/kernels/run.py                                 this Debian's kernel, and 6.12 if apt knows it
  tests/kernels/run.py linux-image-cloud-amd64         packages by name; a meta-package is followed
  tests/kernels/run.py ./linux-image-….deb ./bzImage   files: a package, a kernel itself

  --packets N     number of packets of the differential test (4000)
  --seconds N     time limit for the tests of one kernel (600)
  --tests BINARY  use these tests instead of building them

If QEMU is missing, it is installed (root, apt-get). Packages and the output of each kernel are kept in
target/kernels. A package in this folder is not downloaded again. Every step has a time limit. The
output ends with one line for each kernel. The exit code is 1 if a kernel does not load the pipeline,
fails a test, or could not be tried.
"""

import argparse
import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.dont_write_bytecode = True
from guest import CACHE, QEMU, ROOT, Trouble, archive, call, download, install_qemu, is_known, libraries, unpack  # noqa: E402

# Kernels that are tried if no arguments are given. The second kernel is tried only if apt knows it.
USUAL, OTHER = "linux-image-amd64", "linux-image-6.12-amd64"
# Time limits in seconds. On a busy machine, an emulated kernel needs up to a minute to start.
BUILD_LIMIT, BOOT_LIMIT = 1200, 120
# Lines that the output must have. Without these lines, an exit code of 0 proves nothing.
NEEDED = (
    "load::an_update_is_acknowledged_by_the_kernel_alone",
    "load::what_it_costs_to_verify_is_told",
    "differential::the_kernel_answers_as_user_space_does",
    "keyed::with_keys_the_kernel_answers_as_user_space_does",
    "keyed::in_a_chain_with_keys_the_kernel_does_what_user_space_does",
)


# ---- packages -------------------------------------------------------------------------------------


def kernel_image(what):
    """Returns a name for the results, and the path of a kernel that can be booted."""
    path = pathlib.Path(what)
    if "/" not in what:
        path = download(what)
    elif not path.exists():
        raise Trouble("no such file")
    if path.suffix != ".deb":
        return path.name, path
    name, content = unpack(path, r"\./boot/vmlinuz-[^/]+")
    image = CACHE / name
    image.write_bytes(content)
    return name.removeprefix("vmlinuz-"), image


# ---- what is booted --------------------------------------------------------------------------------


def build_tests():
    """Builds the program with the kernel tests. Returns its path."""
    print("building the tests", flush=True)
    command = ["cargo", "test", "--locked", "-p", "pmnet-dataplane", "--test", "kernel", "--no-run"]
    said = call([*command, "--message-format=json"], BUILD_LIMIT, cwd=ROOT)
    for line in said.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message["target"]["name"] == "kernel":
            return pathlib.Path(message["executable"])
    raise Trouble("cargo names no program for --test kernel")


def make_guest(tests):
    """Makes the guest's file system: busybox, the tests with their libraries, and `init`."""
    _, busybox = unpack(download("busybox-static"), r"\./(usr/)?bin/busybox")
    slim = CACHE / "tests"
    try:
        call(["strip", "--strip-debug", "-o", str(slim), str(tests)], 60)
    except Trouble:
        shutil.copy(tests, slim)
    programs = {"bin/busybox": busybox, "init": (HERE / "init").read_bytes(), "tests": slim.read_bytes()}
    for library in libraries(tests):
        programs[library.lstrip("/")] = pathlib.Path(library).read_bytes()
    folders = {"dev", "proc", "sys", "tmp"}
    for path in programs:
        folders.update(str(folder) for folder in pathlib.PurePath(path).parents if str(folder) != ".")
    files = [(folder, 0o040755, b"", (0, 0)) for folder in sorted(folders)]
    files += [(path, 0o100755, content, (0, 0)) for path, content in programs.items()]
    # The folder to which `init` writes.
    files.append(("dev/console", 0o020600, b"", (5, 1)))
    guest = CACHE / "guest.cpio"
    guest.write_bytes(archive(files))
    return guest


# ---- boot and judge ---------------------------------------------------------------------------------


def boot(image, guest, log, packets, seconds):
    """Runs the guest to its end. Returns the output of its serial port. If the guest had to be ended,
    also returns the reason."""
    command = [
        QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        # KVM is never used, because the result must not depend on the host's kernel.
        "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "1024",
        "-serial", f"file:{log}", "-kernel", str(image), "-initrd", str(guest),
        "-append", f"console=ttyS0 panic=-1 oops=panic loglevel=5 pmnet_packets={packets} pmnet_seconds={seconds}",
    ]  # fmt: skip
    log.write_bytes(b"")
    ended = ""
    try:
        call(command, BOOT_LIMIT + seconds, stdin=subprocess.DEVNULL)
    except Trouble as trouble:
        ended = str(trouble).removeprefix(" ".join(command) + ": ")
    return log.read_text(errors="replace").replace("\r", ""), ended


def judge(said, ended):
    """Judges the guest's output. Returns whether all tests passed, and a line about it."""
    release = re.search(r"^guest: kernel (\S+)", said, re.MULTILINE)
    jit = re.search(r"^guest: jit (\d)", said, re.MULTILINE)
    code = re.search(r"^guest: exit (\d+)", said, re.MULTILINE)
    result = re.search(r"^test result: \S+ (\d+) passed; (\d+) failed", said, re.MULTILINE)
    count = re.search(r"verified instructions: Some\((\d+)\)", said)
    alone = re.search(r"(\d+) packets, (\d+) answered by the kernel alone", said)
    passed = passed_tests(said)
    facts = []
    if not release:
        return False, f"does not come up: {ended or 'see what it said'}"
    loads = NEEDED[1] in passed
    # The reason of the verifier is the last line before its statistics.
    refused = re.search(r"^(.+)\n(?:verification time.*\n)?(?:stack depth.*\n)?processed \d+ insns", said, re.MULTILINE)
    if loads:
        facts.append("loads")
    elif refused:
        facts.append(f"DOES NOT LOAD, the verifier says: {refused[1].strip()}")
    else:
        facts.append("not shown to load")
    if count:
        facts.append(f"{int(count[1]):,} instructions verified")
    facts.append(f"{result[1]} tests passed, {result[2]} failed" if result else "the tests did not end")
    if alone:
        facts.append(f"{int(alone[1]):,} packets as in user space, {int(alone[2]):,} of them answered by the kernel alone")
    missing = [name for name in NEEDED if name not in passed]
    if missing and loads:
        facts.append(f"not passed: {', '.join(missing)}")
    if not jit or jit[1] == "0":
        facts.append("interpreted, not compiled")
    # The kernel itself has reported a fault.
    complaint = re.search(r"^\[ *[\d.]+\].*(BUG:|WARNING:|Oops|Kernel panic|general protection).*", said, re.MULTILINE)
    if complaint:
        facts.append(f"the kernel says: {complaint[0].strip()}")
    if ended:
        facts.append(ended)
    good = bool(code) and code[1] == "0" and not missing and not complaint and not ended
    return good, f"{release[1]}: {', '.join(facts)}"


def passed_tests(said):
    """Returns the names of the passed tests. A test's own output may stand between its name and its
    `ok`."""
    return {
        name
        for name, rest in re.findall(r"^test (\S+) \.\.\. (.*?)(?=^test |\Z)", said, re.MULTILINE | re.DOTALL)
        if re.search(r"^ok$", rest, re.MULTILINE)
    }


def attempt(what, guest, arguments):
    """Tries one kernel. Returns whether all tests passed, and a line about it."""
    name, image = kernel_image(what)
    log = CACHE / f"{name}.log"
    print(f"booting {name}", flush=True)
    said, ended = boot(image, guest, log, arguments.packets, arguments.seconds)
    good, line = judge(said, ended)
    if not good:
        print("\n".join(f"    | {text}" for text in said.splitlines()[-60:]))
        line += f" ({log.relative_to(ROOT)})"
    return good, line


def positive(text):
    """Parses a number above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("a number above 0")
    return number


def main():
    """The text at the head of this file is the description of the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL")
    parser.add_argument("--packets", type=positive, default=4000)
    parser.add_argument("--seconds", type=positive, default=600)
    parser.add_argument("--tests", type=pathlib.Path)
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    results = []
    # If two runs took place at the same time, they would overwrite each other's files.
    lock = (CACHE / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("no kernel was tried: this is running already; wait for it")
        return 1
    try:
        if os.uname().machine != "x86_64":
            raise Trouble("only x86-64 kernels are tried: run this on such a machine")
        install_qemu()
        guest = make_guest(arguments.tests or build_tests())
        kernels = arguments.kernels or [USUAL] + ([OTHER] if is_known(OTHER) else [])
    except Trouble as trouble:
        print(f"no kernel was tried: {trouble}")
        return 1
    for what in kernels:
        try:
            results.append(attempt(what, guest, arguments))
        except Trouble as trouble:
            results.append((False, f"{what}: could not be tried: {trouble}"))
    for good, line in results:
        print(f"{'ok    ' if good else 'FAILED'} {line}")
    return 0 if all(good for good, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
