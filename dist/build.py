#!/usr/bin/env python3
"""Makes the packages of `make dist`: .deb, .rpm, tar.gz and SBOM, in target/dist.

Two builds of one commit give the same bytes, in whatever folder the source is: paths are mapped, all times are that of the
commit, and lists are sorted.
"""

import argparse
import gzip
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = ROOT / "dist"
OUT = ROOT / "target" / "dist"
# Binaries for packages must not contain paths of this machine, so they are built in a folder of their own.
BUILT = ROOT / "target" / "dist-build"
MAINTAINER = "pmnet maintainers <maintainers@pmnet.dev>"
SUMMARY = "Makes writes of Redis durable in the network, on their way"
ABOUT = """\
 pmnet acknowledges a write of Redis as soon as it is durable on its way to
 Redis. Applications, client libraries and Redis stay as they are. Every
 acknowledged write is applied exactly once and in order."""
# The names of a machine's architecture in Debian and in RPM.
ARCHITECTURES = {"x86_64": ("amd64", "x86_64-linux-gnu"), "aarch64": ("arm64", "aarch64-linux-gnu")}

ROLES = [
    # name of the unit, command of pmnet, arguments in ExecStart, description
    ("pmnet", "run", "run /etc/pmnet/pmnet.toml", "pmnet: the roles of this machine"),
    ("pmnet-server@", "server", "server --config /etc/pmnet/%i.toml", "pmnet server (%i)"),
    ("pmnet-device@", "device", "device --config /etc/pmnet/%i.toml", "pmnet device (%i)"),
    ("pmnet-redis@", "redis", "redis --config /etc/pmnet/%i.toml", "pmnet front for Redis clients (%i)"),
    ("pmnet-controller@", "controller", "controller", "pmnet controller (%i)"),
    ("pmnet-kernel-device@", "device", "device --config /etc/pmnet/%i.toml", "pmnet device in the kernel (%i)"),
]
# Units without a watchdog: one step of a server's store may take longer than a watchdog waits.
WATCHED = {"device", "redis", "controller"}


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, cwd=options.pop("cwd", ROOT), **options)


def output(*command, **options):
    return run(*command, stdout=subprocess.PIPE, text=True, **options).stdout.strip()


class Build:
    """A build of all packages: its profile, its version, and the names of the architecture."""

    def __init__(self, profile, debug_of):
        self.profile = profile
        self.folder = pathlib.Path(debug_of) if debug_of else BUILT / profile
        text = (ROOT / "Cargo.toml").read_text()
        self.number = re.search(r'^version = "(.*)"', text, re.M).group(1)
        self.commit = os.environ.get("PMNET_COMMIT") or output("git", "rev-parse", "--short=12", "HEAD")
        self.epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct"))
        tags = output("git", "tag", "--points-at", "HEAD").split()
        day = time.strftime("%Y%m%d", time.gmtime(self.epoch))
        is_release = f"v{self.number}" in tags
        self.version = self.number if is_release else f"{self.number}~git{day}.{self.commit}"
        machine = os.uname().machine
        if machine not in ARCHITECTURES:
            sys.exit(f"dist: {machine}: packages are made for {', '.join(ARCHITECTURES)}")
        self.machine = machine
        self.architecture, self.triplet = ARCHITECTURES[machine]
        self.environment = {
            **os.environ,
            "SOURCE_DATE_EPOCH": str(self.epoch),
            "PMNET_COMMIT": self.commit,
            "CARGO_INCREMENTAL": "0",
            "TZ": "UTC",
            "LC_ALL": "C.UTF-8",
        }

    def compile(self):
        cargo_home = os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo"
        environment = {
            **self.environment,
            "RUSTFLAGS": f"--remap-path-prefix={ROOT}=/usr/src/pmnet --remap-path-prefix={cargo_home}=/usr/src/cargo",
        }
        run("cargo", "build", "--profile", self.profile, "--locked", "--target-dir", BUILT,
            "-p", "pmnet", "-p", "pmnet-capi", env=environment)

    def pages(self):
        """Writes man pages and completions, by an example program that needs no optimisation."""
        folder = OUT / "pages"
        run("cargo", "run", "--quiet", "--locked", "-p", "pmnet", "--example", "pages", "--", folder, env=self.environment)
        return folder


def install(source, target, mode=0o644):
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, str):
        target.write_text(source)
    elif isinstance(source, bytes):
        target.write_bytes(source)
    else:
        shutil.copyfile(source, target)
    target.chmod(mode)


def compressed(data):
    if isinstance(data, pathlib.Path):
        data = data.read_bytes()
    if isinstance(data, str):
        data = data.encode()
    return gzip.compress(data, 9, mtime=0)


# --- What goes into the packages ---


def dependencies(build, package):
    """Returns the crates that `cargo metadata` lists as linked into this package, sorted; the graph of their
    dependencies; and all crates by id."""
    text = output("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform",
                  f"{build.machine}-unknown-linux-gnu", env=build.environment)
    data = json.loads(text)
    by_id = {one["id"]: one for one in data["packages"]}
    nodes = {one["id"]: one for one in data["resolve"]["nodes"]}
    start = next(one["id"] for one in data["packages"] if one["name"] == package and one["source"] is None)
    seen, todo, edges = set(), [start], {}
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        linked = [dep["pkg"] for dep in nodes[name]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        # The dependencies of a macro are not in the binary.
        linked = [dep for dep in linked if not any("proc-macro" in target["kind"] for target in by_id[dep]["targets"])]
        edges[name] = linked
        todo += linked
    found = sorted((by_id[name] for name in seen), key=lambda one: (one["name"], one["version"]))
    return found, edges, by_id


def checksums():
    text = (ROOT / "Cargo.lock").read_text()
    entries = re.findall(r'name = "(.*)"\nversion = "(.*)"\nsource = ".*"\nchecksum = "(.*)"', text)
    return {(name, version): checksum for name, version, checksum in entries}


def sbom(build):
    """Returns the SBOM of the binary `pmnet`, as a CycloneDX document."""
    found, edges, by_id = dependencies(build, "pmnet")
    sums = checksums()

    def reference(one):
        return f"pkg:cargo/{one['name']}@{one['version']}"

    components = []
    for one in found:
        component = {
            "type": "library",
            "bom-ref": reference(one),
            "name": one["name"],
            "version": one["version"],
            "licenses": [{"expression": one["license"].replace("/", " OR ")}],
        }
        if one["source"]:
            component["purl"] = reference(one)
        checksum = sums.get((one["name"], one["version"]))
        if checksum:
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components.append(component)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(build.epoch)),
            "component": {"type": "application", "bom-ref": "pmnet", "name": "pmnet", "version": build.version},
        },
        "components": components,
        "dependencies": [
            {"ref": reference(by_id[name]), "dependsOn": sorted(reference(by_id[dep]) for dep in deps)}
            for name, deps in sorted(edges.items(), key=lambda item: reference(by_id[item[0]]))
        ],
    }
    return json.dumps(document, indent=1) + "\n"


LICENSE_NAME = re.compile(r"^(licen[cs]e|copying|notice|unlicense)", re.I)


def crates_text(build, package):
    """Returns the licences of all linked crates of other projects, with their texts. A text that several
    crates share appears once."""
    found, _, _ = dependencies(build, package)
    texts = {}
    for one in (one for one in found if one["source"]):
        folder = pathlib.Path(one["manifest_path"]).parent
        files = sorted(path for path in folder.iterdir() if path.is_file() and LICENSE_NAME.match(path.name))
        name = f"{one['name']} {one['version']} ({one['license']})"
        if not files:
            texts.setdefault("The crate has no text of its licence.\n", []).append(name)
        for path in files:
            texts.setdefault(path.read_text(errors="replace").replace("\r\n", "\n"), []).append(name)
    parts = ["Crates that are part of this package, and their licences.\n"]
    for text, names in sorted(texts.items(), key=lambda item: item[1]):
        parts.append("-" * 72 + "\n" + "\n".join(names) + "\n\n" + text.strip() + "\n")
    return "\n".join(parts)


def copyright_text(epoch):
    mit = (ROOT / "LICENSE-MIT").read_text()
    body = mit.split("\n\n", 2)
    holder = re.search(r"Copyright.*", mit)
    holder = holder.group(0).replace("Copyright (c) ", "") if holder else "the pmnet authors"
    year = time.strftime("%Y", time.gmtime(epoch))
    permission = mit[mit.index("Permission is hereby"):] if "Permission is hereby" in mit else body[-1]
    quoted = "\n".join(" " + (line or ".") for line in permission.strip().split("\n"))
    return f"""\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: pmnet

Files: *
Copyright: {year} {holder}
License: Apache-2.0 or Expat
Comment:
 Crates of others are linked into the programs. Their names, versions and
 licences are in crates.txt.gz beside this file.

License: Apache-2.0
 On Debian systems the text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.

License: Expat
{quoted}
"""


def units(folder):
    """Writes the units: one template with the differences of each role."""
    template = (HERE / "systemd" / "role.service.in").read_text()
    for name, command, executes, description in ROLES:
        text = template
        watchdog = "WatchdogSec=10" if command in WATCHED else ""
        instance = "%i" if name.endswith("@") else "pmnet"
        for mark, value in [("NAME", f"{name}.service"), ("DESCRIPTION", description), ("COMMAND", command),
                            ("EXEC", executes), ("WATCHDOG", watchdog), ("INSTANCE", instance)]:
            text = text.replace(f"@{mark}@", value)
        if name == "pmnet-kernel-device@":
            text = in_kernel(text)
        install(re.sub(r"\n\n\n+", "\n\n", text), folder / f"{name}.service")


def in_kernel(text):
    """Returns the unit of a device in the kernel: the unit runs as root, but with three capabilities only."""
    capabilities = "CAP_BPF CAP_NET_ADMIN CAP_PERFMON"
    for old, new in [
        ("User=pmnet\nGroup=pmnet\n", ""),
        ("AmbientCapabilities=\n", ""),
        ("CapabilityBoundingSet=\n", f"CapabilityBoundingSet={capabilities}\n"),
        ("PrivateUsers=yes\n", ""),
        ("ProtectKernelTunables=yes\n", "# Its log is pinned in the BPF file system.\nReadWritePaths=/sys/fs/bpf\n"),
        ("AF_INET AF_INET6 AF_UNIX", "AF_INET AF_INET6 AF_UNIX AF_NETLINK"),
        ("SystemCallFilter=@system-service\n", "SystemCallFilter=@system-service bpf\n"),
        ("SystemCallFilter=~@privileged\n", "SystemCallFilter=~@chown @clock @module @raw-io @reboot @swap\n"),
        ("LimitNOFILE=524288\n", "LimitNOFILE=524288\nLimitMEMLOCK=infinity\n"),
    ]:
        assert old in text, old
        text = text.replace(old, new)
    return text


def product(build, pages, root):
    """Puts the files of the package pmnet into the folder `root`. Returns the file with the debug information."""
    binary = root / "usr/bin/pmnet"
    install(build.folder / "pmnet", binary, 0o755)
    debug = split(binary, OUT / "pmnet.debug")
    for page in sorted((pages / "man1").iterdir()):
        install(compressed(page), root / "usr/share/man/man1" / f"{page.name}.gz")
    install(pages / "bash/pmnet.bash", root / "usr/share/bash-completion/completions/pmnet")
    install(pages / "zsh/_pmnet", root / "usr/share/zsh/vendor-completions/_pmnet")
    install(pages / "fish/pmnet.fish", root / "usr/share/fish/vendor_completions.d/pmnet.fish")
    units(root / "usr/lib/systemd/system")
    install(HERE / "sysusers.conf", root / "usr/lib/sysusers.d/pmnet.conf")
    for path in sorted((HERE / "etc").iterdir()):
        install(path, root / "etc/pmnet" / path.name)
    documents(build, root, "pmnet", "pmnet")
    for path in ["prometheus/pmnet.rules.yml", "grafana/pmnet.json", "wireshark/pmnet.lua"]:
        install(ROOT / "contrib" / path, root / "usr/share/doc/pmnet" / path)
    return debug


def documents(build, root, package, crate):
    folder = root / "usr/share/doc" / package
    install(copyright_text(build.epoch), folder / "copyright")
    install(compressed(crates_text(build, crate)), folder / "crates.txt.gz")
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(build.epoch))
    log = f"pmnet ({build.version}) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- {MAINTAINER}  {date}\n"
    install(compressed(log), folder / "changelog.gz")


def split(binary, debug):
    """Moves the debug information of a program into a separate file. The program refers to this file."""
    run("objcopy", "--only-keep-debug", "--compress-debug-sections=zlib", binary, debug)
    debug.chmod(0o644)
    run("strip", "--strip-unneeded", "--remove-section=.comment", binary)
    run("objcopy", f"--add-gnu-debuglink={debug}", binary)
    return debug


def build_id(binary):
    found = re.search(r"Build ID: ([0-9a-f]+)", output("readelf", "-n", binary))
    if not found:
        sys.exit(f"dist: {binary} has no build id")
    return found.group(1)


def library(build, root):
    """Fills a folder with libpmnet, as `make install-lib` does."""
    run("make", "--no-print-directory", "install-lib", f"LIB_FROM={build.folder}", f"DESTDIR={root}", "PREFIX=/usr",
        f"LIBDIR=/usr/lib/{build.triplet}", stdout=subprocess.DEVNULL, env=build.environment)
    folder = root / "usr/lib" / build.triplet
    shared = next(path for path in folder.glob("libpmnet.so.*") if not path.is_symlink())
    shared.chmod(0o644)
    run("strip", "--strip-unneeded", "--remove-section=.comment", shared)
    run("strip", "--strip-debug", "--enable-deterministic-archives", folder / "libpmnet.a")
    manual = root / "usr/share/man/man3"
    for page in sorted(manual.iterdir()):
        target = page.with_name(page.name + ".gz")
        if page.is_symlink():
            target.symlink_to(os.readlink(page) + ".gz")
        else:
            install(compressed(page), target)
        page.unlink()


def move(root, to, patterns):
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            target = to / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)


# --- Debian ---


def glibc_of(path):
    """Returns the oldest version of glibc with which this file works."""
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", output("readelf", "-V", path))
    major, minor = max([(2, 34)] + [(int(major), int(minor)) for major, minor in found])
    return f"{major}.{minor}"


def needs(path):
    return f"libc6 (>= {glibc_of(path)}), libgcc-s1 (>= 4.2)"


def settle(root, epoch):
    """Sets the modes of all folders, and the times of all files, as a package needs them."""
    for path in sorted(root.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    root.chmod(0o755)
    os.utime(root, (epoch, epoch))


def deb(build, root, name, section, fields, about, scripts=(), conffiles=(), more=None):
    control = root / "DEBIAN"
    size = sum(path.lstat().st_size for path in root.rglob("*") if path.is_file()) // 1024
    lines = {"Package": name, "Source": "pmnet", "Version": build.version, "Architecture": build.architecture,
             "Maintainer": MAINTAINER, "Installed-Size": str(size), "Section": section, "Priority": "optional", **fields}
    if name == "pmnet":
        del lines["Source"]
    install("".join(f"{key}: {value}\n" for key, value in lines.items()) + f"Description: {about}\n", control / "control")
    for script in scripts:
        install(HERE / "deb" / script, control / script, 0o755)
    if conffiles:
        install("".join(f"/{path}\n" for path in sorted(conffiles)), control / "conffiles")
    for path, text in (more or {}).items():
        install(text, control / path)
    files = sorted(path for path in root.rglob("*")
                   if path.is_file() and not path.is_symlink() and control not in path.parents)
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files
            if str(path.relative_to(root)) not in conffiles]
    install("".join(sums), control / "md5sums")
    settle(root, build.epoch)
    target = OUT / f"{name}_{build.version}_{build.architecture}.deb"
    run("dpkg-deb", "--root-owner-group", "--uniform-compression", "-Zxz", "--build", root, target,
        stdout=subprocess.DEVNULL, env=build.environment)
    shutil.rmtree(control)
    return target


def debs(build, roots, debug):
    conffiles = [str(path.relative_to(roots["pmnet"])) for path in (roots["pmnet"] / "etc").rglob("*") if path.is_file()]
    depends = needs(roots["pmnet"] / "usr/bin/pmnet")
    made = [deb(build, roots["pmnet"], "pmnet", "database",
                {"Depends": f"{depends}, procps, systemd | systemd-standalone-sysusers",
                 "Suggests": "redis-server, etcd-server"},
                f"{SUMMARY}\n{ABOUT}", ["postinst", "prerm", "postrm"], conffiles)]
    folder = roots["debug"] / "usr/lib/debug/.build-id"
    identity = build_id(roots["pmnet"] / "usr/bin/pmnet")
    install(debug, folder / identity[:2] / f"{identity[2:]}.debug")
    (roots["debug"] / "usr/share/doc").mkdir(parents=True)
    (roots["debug"] / "usr/share/doc/pmnet-dbgsym").symlink_to("pmnet")
    made.append(deb(build, roots["debug"], "pmnet-dbgsym", "debug",
                    {"Depends": f"pmnet (= {build.version})", "Auto-Built-Package": "debug-symbols",
                     "Build-Ids": identity},
                    "debug symbols for pmnet"))
    shared = next((roots["lib"] / "usr/lib" / build.triplet).glob("libpmnet.so.0.*"))
    made.append(deb(build, roots["lib"], "libpmnet0", "libs",
                    {"Depends": needs(shared), "Multi-Arch": "same"},
                    f"Clients and servers of pmnet in C: shared library\n{ABOUT}\n .\n"
                    " This package has the shared library.",
                    more={"shlibs": f"libpmnet 0 libpmnet0 (>= {build.number}~)\n",
                          "triggers": "activate-noawait ldconfig\n"}))
    made.append(deb(build, roots["dev"], "libpmnet-dev", "libdevel",
                    {"Depends": f"libpmnet0 (= {build.version})", "Multi-Arch": "same"},
                    f"Clients and servers of pmnet in C: development files\n{ABOUT}\n .\n"
                    " This package has the header, the static library, the file for pkg-config\n and the man pages."))
    return made


# --- RPM and archive ---


def spec(build, roots):
    version, _, extra = build.version.partition("~")
    release = f"0.{extra.replace('git', 'git.')}" if extra else "1"

    def files(root):
        lines = []
        for path in sorted(root.rglob("*")):
            place = f"/{path.relative_to(root)}"
            if path.is_dir() and not path.is_symlink():
                # Lists only folders of pmnet, because the other folders belong to the system.
                if "pmnet" in place and place != "/etc/pmnet":
                    lines.append(f"%dir {place}")
            else:
                lines.append(f"%config(noreplace) {place}" if place.startswith("/etc/") else place)
        return "\n".join(lines)

    shared = next((roots["lib"] / "usr/lib64").glob("libpmnet.so.0.*"))
    return f"""\
Name: pmnet
Version: {version}
Release: {release}
Summary: {SUMMARY}
License: Apache-2.0 OR MIT
AutoReqProv: no
Requires: glibc >= {glibc_of(roots['pmnet'] / 'usr/bin/pmnet')}, libgcc, systemd
%global __os_install_post %{{nil}}
%global debug_package %{{nil}}
%global _build_id_links none

%description
{ABOUT}

%package -n libpmnet
Summary: Clients and servers of pmnet in C: shared library
Requires: glibc >= {glibc_of(shared)}, libgcc
Provides: libpmnet.so.0()(64bit)
%description -n libpmnet
The shared library of pmnet.

%package -n libpmnet-devel
Summary: Clients and servers of pmnet in C: development files
Requires: libpmnet = {version}-{release}
%description -n libpmnet-devel
Header, static library, file for pkg-config and man pages of libpmnet.

%install
cp -a {roots['pmnet']}/. {roots['lib']}/. {roots['dev']}/. %{{buildroot}}/

%pre
getent group pmnet >/dev/null || groupadd -r pmnet
getent passwd pmnet >/dev/null || useradd -r -g pmnet -d /var/lib/pmnet -s /sbin/nologin pmnet
%post
systemctl daemon-reload >/dev/null 2>&1 || :
%preun
if [ $1 = 0 ]; then
    systemctl stop pmnet.service 'pmnet-*@*.service' >/dev/null 2>&1 || :
    rm -f /etc/systemd/system/*.wants/pmnet.service /etc/systemd/system/*.wants/pmnet-*@*.service
fi
%postun
systemctl daemon-reload >/dev/null 2>&1 || :
if [ $1 -ge 1 ]; then systemctl --no-block try-restart pmnet.service 'pmnet-*@*.service' >/dev/null 2>&1 || :; fi
%post -n libpmnet -p /sbin/ldconfig
%postun -n libpmnet -p /sbin/ldconfig

%files
%attr(0750,root,pmnet) %dir /etc/pmnet
{files(roots['pmnet'])}
%files -n libpmnet
{files(roots['lib'])}
%files -n libpmnet-devel
{files(roots['dev'])}
"""


def rpms(build, roots):
    if not shutil.which("rpmbuild"):
        print("dist: no rpmbuild (apt-get install rpm): no .rpm is made")
        return []
    # Debian and distributions with RPM keep libraries in different folders.
    moved = {name: OUT / "rpm" / name for name in ("pmnet", "lib", "dev")}
    for name, root in moved.items():
        shutil.copytree(roots[name], root, symlinks=True)
        libraries = root / "usr/lib" / build.triplet
        if libraries.exists():
            libraries.rename(root / "usr/lib64")
        completions = root / "usr/share/zsh/vendor-completions"
        if completions.exists():
            completions.rename(root / "usr/share/zsh/site-functions")
        for config in root.rglob("pmnet.pc"):
            install(config.read_text().replace(f"/usr/lib/{build.triplet}", "/usr/lib64"), config)
        settle(root, build.epoch)
    path = OUT / "rpm" / "pmnet.spec"
    install(spec(build, moved), path)
    run("rpmbuild", "-bb", "--quiet", "--define", f"_topdir {OUT / 'rpm' / 'top'}",
        "--define", "use_source_date_epoch_as_buildtime 1", "--define", "clamp_mtime_to_source_date_epoch 1",
        "--define", "source_date_epoch_from_changelog 0",
        "--define", "_buildhost reproducible", "--define", "_binary_payload w19.zstdio",
        "--target", build.machine, path, env=build.environment)
    made = []
    for package in sorted((OUT / "rpm" / "top" / "RPMS").rglob("*.rpm")):
        made.append(package.rename(OUT / package.name))
    shutil.rmtree(OUT / "rpm")
    return made


def archive(build, roots):
    """Makes a tar.gz with the files of all packages, for a machine without a package manager. To install it, unpack it at /."""
    target = OUT / f"pmnet-{build.version}-{build.machine}.tar.gz"
    base = f"pmnet-{build.version}"

    def plain(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = build.epoch
        return entry

    with open(target, "wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=9, mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("pmnet", "lib", "dev"):
            for path in sorted(roots[name].rglob("*")):
                if path.is_dir() and not path.is_symlink():
                    continue
                tar.add(path, f"{base}/{path.relative_to(roots[name])}", recursive=False, filter=plain)
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="release", help="cargo's profile (default: release)")
    parser.add_argument("--built", metavar="FOLDER", help="take the binaries from this folder, and build none")
    args = parser.parse_args()
    build = Build(args.profile, args.built)
    if OUT.exists():
        shutil.rmtree(OUT)
    OUT.mkdir(parents=True)
    if not args.built:
        build.compile()
    pages = build.pages()
    roots = {name: OUT / "roots" / name for name in ("pmnet", "debug", "lib", "dev")}
    for root in roots.values():
        root.mkdir(parents=True)
    debug = product(build, pages, roots["pmnet"])
    library(build, roots["dev"])
    move(roots["dev"], roots["lib"], [f"usr/lib/{build.triplet}/libpmnet.so.0*"])
    documents(build, roots["lib"], "libpmnet0", "pmnet-capi")
    documents(build, roots["dev"], "libpmnet-dev", "pmnet-capi")
    for root in roots.values():
        settle(root, build.epoch)
    made = debs(build, roots, debug) + rpms(build, roots) + [archive(build, roots)]
    install(sbom(build), OUT / f"pmnet-{build.version}.cdx.json")
    made.append(OUT / f"pmnet-{build.version}.cdx.json")
    shutil.rmtree(OUT / "roots")
    shutil.rmtree(pages)
    debug.unlink()
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made)]
    install("".join(sums), OUT / "SHA256SUMS")
    for path in sorted(made):
        print(f"{path.stat().st_size:>12}  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
