#!/usr/bin/env python3
"""Makes the container image of `make image`, from the package in target/dist: target/dist/pmnet-VERSION-image.tar (an OCI archive).

The image has only the program, the C library that it is linked with, and the certificates of TLS authorities, but no shell.
The image runs as user 65532. With --test, runc runs the image, with a container's usual filter of system calls, and with
64 MiB of shared memory.
"""

import calendar
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIST = ROOT / "target" / "dist"
USER = 65532
AUTHORITIES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
COMPOSE = ROOT / "dist" / "compose.yaml"


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, text=True, stdout=subprocess.PIPE, **options).stdout.strip()


def fill(root, package):
    """Copies the contents of the image into the folder `root`."""
    with tempfile.TemporaryDirectory() as unpacked:
        run("dpkg-deb", "-x", package, unpacked)
        program = root / "usr/bin/pmnet"
        program.parent.mkdir(parents=True)
        shutil.copy(f"{unpacked}/usr/bin/pmnet", program)
        documents = root / "usr/share/doc/pmnet"
        documents.mkdir(parents=True)
        for name in ("copyright", "crates.txt.gz"):
            shutil.copy(f"{unpacked}/usr/share/doc/pmnet/{name}", documents)
    # Since glibc 2.34 the modules that resolve names are part of the library, so the image needs no further files.
    for path in sorted(set(re.findall(r"(/\S+)", run("ldd", program)))):
        source = pathlib.Path(path)
        if source.is_file():
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source.resolve(), target)
    for name, text in [("passwd", f"pmnet:x:{USER}:{USER}::/var/lib/pmnet:/nonexistent\n"), ("group", f"pmnet:x:{USER}:\n"),
                       ("nsswitch.conf", "hosts: files dns\n")]:
        target = root / "etc" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    if AUTHORITIES.is_file():
        target = root / AUTHORITIES.relative_to("/")
        target.parent.mkdir(parents=True)
        shutil.copy(AUTHORITIES, target)
    data = root / "var/lib/pmnet"
    data.mkdir(parents=True)
    shutil.chown(data, USER, USER)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)


class Buildah:
    def __init__(self, folder):
        self.words = ["buildah", "--root", f"{folder}/store", "--runroot", f"{folder}/run"]

    def __call__(self, *words):
        return run(*self.words, *words)

    def popen(self, *words):
        return subprocess.Popen([*self.words, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def build(buildah, package, version, epoch):
    container = buildah("from", "scratch")
    fill(pathlib.Path(buildah("mount", container)), package)
    buildah("config", "--user", f"{USER}:{USER}", "--entrypoint", '["/usr/bin/pmnet"]', "--cmd", "--help", "--workingdir",
            "/var/lib/pmnet", "--volume", "/var/lib/pmnet", "--stop-signal", "SIGTERM",
            "--label", f"org.opencontainers.image.version={version}",
            "--label", "org.opencontainers.image.licenses=Apache-2.0 OR MIT", container)
    buildah("umount", container)
    target = DIST / f"pmnet-{version}-image.tar"
    buildah("commit", "--timestamp", epoch, container, f"oci-archive:{target}:pmnet:{version.replace('~', '-')}")
    buildah("rm", container)
    return target


def configuration():
    """Returns the configuration file of compose.yaml, changed for a Redis on this machine."""
    text = COMPOSE.read_text()
    block = text.split("content: |\n", 1)[1].split("\nvolumes:", 1)[0]
    return re.sub(r"^ {6}", "", block, flags=re.M).replace("redis://redis:6379", "redis://127.0.0.1:6379")


def test(buildah, image, folder):
    """Runs the image with the configuration of compose.yaml, not as root, and with only 64 MiB of shared memory."""
    run("ip", "link", "set", "lo", "up")
    container = buildah("from", "--shm-size", "64m", f"oci-archive:{image}")
    file = pathlib.Path(folder) / "pmnet.toml"
    # The log is in shared memory, which is too small for a log of the default size.
    file.write_text(configuration().replace("/var/lib/pmnet/device.pmlog", "/dev/shm/device.pmlog").replace('"file"', '"dram"'))
    file.chmod(0o644)
    redis = subprocess.Popen(["redis-server", "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", folder],
                             stdout=subprocess.DEVNULL)
    isolation = ["run", "--isolation", "oci", "--runtime", shutil.which("runc"), "--network", "host", "--cap-drop", "all"]
    try:
        who = buildah(*isolation, container, "--", "/usr/bin/pmnet", "--version")
        print(f"image: {who.splitlines()[0]}", flush=True)
        served = buildah.popen(*isolation, "--volume", f"{file}:/etc/pmnet/pmnet.toml:ro", container, "--",
                               "/usr/bin/pmnet", "run", "/etc/pmnet/pmnet.toml")
        answers = []
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and served.poll() is None:
            asked = subprocess.run(["redis-cli", "-p", "6380", "SET", "greeting", "hello"], text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
            if asked.stdout.strip() == "OK":
                answers = [run("redis-cli", "-p", "6380", "GET", "greeting"), run("redis-cli", "GET", "greeting")]
                break
            time.sleep(0.2)
        served.terminate()
        out, log = served.communicate(timeout=20)
        if answers != ["hello", "hello"] or "PM1218" not in log:
            sys.exit(f"image: {answers}: {out}{log}")
        print(f"image: set and got by runc, as user {USER}: {out.splitlines()[0]}")
    finally:
        redis.terminate()
        redis.wait()
        buildah("rm", container)


def main():
    if "--test" in sys.argv and os.environ.get("PMNET_IMAGE_NAMESPACE") != "1":
        # The test has a network of its own, so all ports are free.
        os.environ["PMNET_IMAGE_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "--net", "--", sys.executable, __file__, *sys.argv[1:]])
    found = sorted(DIST.glob("pmnet_*.deb"))
    if not found:
        sys.exit(f"image: no package in {DIST}: run make dist")
    if not shutil.which("buildah"):
        sys.exit("image: no buildah (apt-get install buildah)")
    version = run("dpkg-deb", "-f", found[0], "Version")
    # The image gets the time of the commit, like the package's files, so one package always gives the same image.
    stamp = run("sh", "-c", 'dpkg-deb --fsys-tarfile "$0" | tar -t --utc --full-time -v ./usr/bin/pmnet', found[0])
    day, clock = stamp.split()[3:5]
    epoch = int(calendar.timegm(time.strptime(f"{day} {clock}", "%Y-%m-%d %H:%M:%S")))
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as folder:
        buildah = Buildah(folder)
        if "--test" in sys.argv:
            image = next(iter(sorted(DIST.glob("pmnet-*-image.tar"))), None) or sys.exit("image: run make image first")
            test(buildah, image, folder)
        else:
            image = build(buildah, found[0], version, epoch)
            print(f"{image.stat().st_size:>12}  {image.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
