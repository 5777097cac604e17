#!/bin/sh
# Installs what tests and demo use, where that is possible, and says what is missing. Never an
# error: what is missing is skipped later, with a word about it. Starts no service.
#
# Usage: tests/setup.sh [packages] [python] [node]

cd "$(dirname "$0")/.." || exit 1

# Seconds that one download or installation may take.
LIMIT=240
# And all packages together: a compiler is among them.
PACKAGES_LIMIT=480

say() { echo "setup: $*"; }

packages() {
    missing=""
    command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
    command -v redis-benchmark >/dev/null 2>&1 || missing="$missing redis-tools"
    command -v ip >/dev/null 2>&1 || missing="$missing iproute2"
    command -v strace >/dev/null 2>&1 || missing="$missing strace"
    command -v ethtool >/dev/null 2>&1 || missing="$missing ethtool"
    # For the programs in bpf/.
    command -v clang >/dev/null 2>&1 || missing="$missing clang"
    [ -e /usr/include/bpf/bpf_helpers.h ] || missing="$missing libbpf-dev"
    [ -e /usr/include/linux/bpf.h ] || missing="$missing linux-libc-dev"
    [ -z "$missing" ] && return
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        say "not installed:$missing; what needs it is left out (apt-get install$missing)"
        return
    fi
    say "installing$missing"
    # A package must not start its service here: it would occupy the port and keep data.
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

python() {
    command -v python3 >/dev/null 2>&1 || { say "no python3: its client is not tested"; return; }
    venv=target/venv
    [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import redis' 2>/dev/null && return
    say "making $venv with redis-py"
    mkdir -p target
    timeout -k 5 $LIMIT python3 -m venv "$venv" >/dev/null 2>&1 &&
        timeout -k 5 $LIMIT "$venv/bin/pip" -q install --disable-pip-version-check redis==6.4.0 \
            >/dev/null 2>&1 || say "could not install redis-py: its client is not tested"
}

node() {
    command -v npm >/dev/null 2>&1 || { say "no npm: the client for Node is not tested"; return; }
    [ -d target/node/node_modules/ioredis ] && return
    say "making target/node with ioredis"
    mkdir -p target/node
    timeout -k 5 $LIMIT npm --prefix target/node --no-audit --no-fund --ignore-scripts \
        install ioredis@5.11.1 >/dev/null 2>&1 || say "could not install ioredis: it is not tested"
}

for what in "$@"; do
    case $what in
    packages) packages ;;
    python) python ;;
    node) node ;;
    *) say "unknown: $what"; exit 2 ;;
    esac
done
exit 0
