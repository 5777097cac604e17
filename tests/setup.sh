#!/bin/sh
# Installs the programs that tests and demo use, where this is possible, and names those that are missing. Starts
# no service. A missing program is not an error, because the tests that need it are skipped later, with a message.
# There are only two errors:
#   rust     there is no Rust, or its version is too old, so nothing can be built
#   redis    only if CI is set: the installed Redis has another version than the one for which the tests were written
#
# Usage: tests/setup.sh [rust] [packages] [redis] [servers] [python] [node] [promtool]

cd "$(dirname "$0")/.." || exit 1

# Time limit in seconds of one download or installation.
LIMIT=240
# Time limit in seconds of all packages together. The packages include a compiler.
PACKAGES_LIMIT=480

say() { echo "setup: $*"; }

packages() {
    missing=""
    command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
    command -v redis-benchmark >/dev/null 2>&1 || missing="$missing redis-tools"
    command -v etcd >/dev/null 2>&1 || missing="$missing etcd-server"
    command -v ip >/dev/null 2>&1 || missing="$missing iproute2"
    command -v memcached >/dev/null 2>&1 || missing="$missing memcached"
    command -v memccapable >/dev/null 2>&1 || missing="$missing libmemcached-tools"
    command -v strace >/dev/null 2>&1 || missing="$missing strace"
    command -v tmux >/dev/null 2>&1 || missing="$missing tmux"
    command -v ethtool >/dev/null 2>&1 || missing="$missing ethtool"
    command -v tshark >/dev/null 2>&1 || missing="$missing tshark"
    # clang compiles the programs in bpf/.
    command -v clang >/dev/null 2>&1 || missing="$missing clang"
    [ -e /usr/include/bpf/bpf_helpers.h ] || missing="$missing libbpf-dev"
    [ -e /usr/include/linux/bpf.h ] || missing="$missing linux-libc-dev"
    # g++ compiles the programs in C and C++ that use libpmnet, and the maps of libpmemobj's examples.
    command -v g++ >/dev/null 2>&1 || missing="$missing g++"
    command -v pkg-config >/dev/null 2>&1 || missing="$missing pkg-config"
    [ -e /usr/include/libpmemobj.h ] || missing="$missing libpmemobj-dev"
    [ -z "$missing" ] && return
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        say "not installed:$missing; what needs it is left out (apt-get install$missing)"
        return
    fi
    say "installing$missing"
    # A package must not start its service, because the service would occupy the port and keep data.
    policy=/usr/sbin/policy-rc.d
    ours=no
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && ours=yes
    fi
    export DEBIAN_FRONTEND=noninteractive
    install="apt-get -q -y -o DPkg::Lock::Timeout=60 install --no-install-recommends"
    # shellcheck disable=SC2086
    timeout -k 5 $PACKAGES_LIMIT $install $missing >/dev/null 2>&1 || {
        timeout -k 5 $PACKAGES_LIMIT apt-get -q -o DPkg::Lock::Timeout=60 update >/dev/null 2>&1
        timeout -k 5 $PACKAGES_LIMIT $install $missing >/dev/null 2>&1 || say "could not install$missing"
    }
    [ "$ours" = yes ] && rm -f "$policy"
}

rust() {
    want=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    cargo=${CARGO:-cargo}
    command -v "$cargo" >/dev/null 2>&1 ||
        { say "there is no cargo: install Rust $want or later (https://rustup.rs)"; exit 1; }
    have=$("$cargo" --version 2>/dev/null | sed -n 's/^cargo \([0-9]*\.[0-9]*\).*/\1/p')
    older=$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -n 1)
    [ "$older" = "$want" ] ||
        { say "Rust ${have:-of this version} is too old: install Rust $want or later (rustup update stable)"; exit 1; }
    command -v cc >/dev/null 2>&1 ||
        { say "there is no C compiler, which Rust links with: apt-get install gcc libc6-dev"; exit 1; }
}

# The table of commands names the Redis version for which everything was written.
redis() {
    command -v redis-server >/dev/null 2>&1 || return
    table=crates/front/src/table/facts.rs
    want=$(sed -n 's/^pub const SERVER_VERSION: &str = "\([0-9]*\)\..*/\1/p' $table)
    have=$(redis-server --version | sed -n 's/.*v=\([0-9]*\)\..*/\1/p')
    [ "$have" = "$want" ] && return
    say "the tests were written for Redis $want, and this is Redis ${have:-of unknown version}"
    [ -z "${CI:-}" ] || exit 1
}

# Downloads two of the servers that users run, in addition to this machine's Redis.
servers() {
    command -v python3 >/dev/null 2>&1 || { say "no python3: no other server than this machine's Redis is tested"; return; }
    # shellcheck disable=SC2046
    timeout -k 5 $((2 * LIMIT)) python3 tests/compat/servers.py fetch $(sed -n 's/^STORES="\(.*\)"$/\1/p' tests/run.sh) >/dev/null ||
        say "what is missing is not tested"
}

python() {
    command -v python3 >/dev/null 2>&1 || { say "no python3: its client is not tested"; return; }
    venv=target/venv
    [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import redis, mypy, pymemcache, pylibmc' 2>/dev/null && [ -x "$venv/bin/maturin" ] && return
    say "making $venv with redis-py, pymemcache and pylibmc, and maturin and mypy for the wheel"
    mkdir -p target
    timeout -k 5 $LIMIT python3 -m venv "$venv" >/dev/null 2>&1 &&
        timeout -k 5 $LIMIT "$venv/bin/pip" -q install --disable-pip-version-check redis==6.4.0 \
            pymemcache==4.0.0 pylibmc==1.6.3 maturin==1.16.0 mypy==2.4.1 >/dev/null 2>&1 ||
        say "could not install redis-py, pymemcache, pylibmc, maturin and mypy: what needs them is not tested"
}

node() {
    command -v npm >/dev/null 2>&1 || { say "no npm: the client for Node is not tested"; return; }
    [ -d target/node/node_modules/ioredis ] && return
    say "making target/node with ioredis"
    mkdir -p target/node
    timeout -k 5 $LIMIT npm --prefix target/node --no-audit --no-fund --ignore-scripts \
        install ioredis@5.11.1 >/dev/null 2>&1 || say "could not install ioredis: it is not tested"
}

# Prometheus is not installed as a package: it takes 20 MB for a few tests, and it must not run as a service. Only
# its programs are kept.
fetch_promtool() {
    command -v promtool >/dev/null 2>&1 && command -v prometheus >/dev/null 2>&1 && return
    [ -x target/promtool/promtool ] && [ -x target/promtool/prometheus ] && return
    command -v dpkg-deb >/dev/null 2>&1 || { say "no dpkg-deb: metrics and alerts are not tested with Prometheus"; return; }
    say "fetching prometheus and promtool"
    mkdir -p target/promtool
    (
        cd target/promtool || exit 1
        timeout -k 5 $LIMIT apt-get -q download prometheus >/dev/null 2>&1 &&
            dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool ./usr/bin/prometheus
        rm -f prometheus_*.deb
    )
    [ -x target/promtool/prometheus ] || say "could not fetch prometheus: metrics and alerts are not tested with it"
}

for what in "$@"; do
    case $what in
    rust) rust ;;
    packages) packages ;;
    redis) redis ;;
    servers) servers ;;
    python) python ;;
    node) node ;;
    promtool) fetch_promtool ;;
    *) say "unknown: $what"; exit 2 ;;
    esac
done
exit 0
