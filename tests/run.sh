#!/usr/bin/env bash
# Runs the suites, each bounded in time, and adds up what they say. The last line is
#   N passed, N failed, N skipped
# and the exit code is 1 if anything failed.
#
# Usage: tests/run.sh lint|all
#        tests/run.sh count LOG    what a log of libtest says: passed, failed, skipped

set -u

# A test that prints "SKIPPED: reason" (tests/shared/skip.rs) counts as skipped, once, and not as passed.
count() {
    awk '
        /^test result: / { for (i = 1; i < NF; i++) {
            if ($(i + 1) ~ /^passed/) ok += $i
            if ($(i + 1) ~ /^failed/) bad += $i } }
        /^---- .* stdout ----$/ { counted = 0 }
        /^SKIPPED: / && !counted { skip++; counted = 1 }
        END { print ok - skip + 0, bad + 0, skip + 0 }' "$1"
}

# Of tests/compat/servers.py: a Redis and a Valkey that are newer than this machine's Redis (crates/store/tests/store/servers.rs).
STORES="redis-8.2 valkey-9.1"

what=${1:-all}
if [ "$what" = count ]; then
    count "$2"
    exit
fi
cd "$(dirname "$0")/.." || exit 1
logs=${CARGO_TARGET_DIR:-target}/test-logs
mkdir -p "$logs"
rm -f "$logs"/*.log
started=$SECONDS
: >"$logs/failed"
: >"$logs/totals"

# suite NAME LIMIT_SECONDS COMMAND…: runs it; counts libtest's result lines, or itself if there
# are none. An ignored one is a campaign
# with a target of its own in the Makefile, whose short form is among the others.
suite() {
    local name=$1 limit=$2 log="$logs/$1.log" begin=$SECONDS code ok bad left busy
    shift 2
    local TIMEFORMAT='%U %S'
    busy=$({ time timeout -k 10 "$limit" "$@" >"$log" 2>&1; } 2>&1)
    code=$?
    busy=$(awk '{ print int($1 + $2) }' <<<"$busy")
    read -r ok bad left < <(count "$log")
    if [ "$code" != 0 ] && [ "$bad" = 0 ]; then
        bad=1
    elif [ "$code" = 0 ] && [ $((ok + bad + left)) = 0 ]; then
        ok=1
    fi
    echo "$ok $bad $left" >>"$logs/totals"
    # In one piece: suites of several lanes end at the same time.
    printf '%s\n' "$(report)"
}

# What suite has to say at the end of its command.
report() {
    printf '%-14s %5d passed %3d failed %3d skipped  %4d s, of processors %4d s\n' \
        "$name" "$ok" "$bad" "$left" $((SECONDS - begin)) "$busy"
    grep '^SKIPPED: ' "$log" | sort | uniq -c | sed 's/^/               /'
    if [ "$code" != 0 ]; then
        [ "$code" = 124 ] && echo "           did not end within $limit s"
        echo "           what failed in $log, and its end:"
        # With --show-output, those that passed come first, under another title; some of them panic on purpose.
        awk '/^failures:$/ { inside = 1 } /^test result: / { inside = 0 } inside' "$log" |
            head -n 120 | cut -c -1000 | sed 's/^/    | /'
        grep -vE '^(test .* ok$|   (Compiling|Checking) )' "$log" | tail -n 60 | cut -c -1000 | sed 's/^/    | /'
        # By name and with its reason, at the very end: of a long log often only that is looked at.
        awk -v suite="$name" '
            /^---- .* stdout ----$/ { test = $2; why = 0 }
            /^thread .* panicked at / && test != "" { why = 1; next }
            why && !(test in reason) { reason[test] = substr($0, 1, 300); why = 0 }
            /^test .* FAILED$/ { failed[++found] = $2 }
            END {
                if (!found) print "failed     " suite
                for (i = 1; i <= found; i++) print "failed     " suite ": " failed[i] ": " reason[failed[i]]
            }' "$log" >>"$logs/failed"
    fi
}

# One of the tests reads the licences of all dependencies, also of those for other platforms.
timeout 300 cargo fetch --quiet --locked || echo "fetch          not all crates could be downloaded"
suite format 120 cargo fmt --all --check
# Not in the workspace, and not built here: what pmnet is compared with takes minutes (make bench-store-test).
suite rivals-fmt 120 cargo fmt --manifest-path bench/store/Cargo.toml --check
clippy() {
    # With the tests of processes, which are no targets by default.
    suite clippy 1800 cargo clippy --workspace --locked --lib --bins --tests --examples --benches --test e2e --test testbed -- -D warnings
    # As they are shipped: in the workspace, cargo gives them the features that the simulator needs.
    suite product 900 cargo clippy --locked -p pmnet-proto -p pmnet-log --lib -- -D warnings
}
[ "$what" = lint ] && clippy
# A row of the table that does not find its text tests nothing.
if python3 -c 'import tomllib' >/dev/null 2>&1; then
    suite mutants 60 python3 tests/mutants/run.py --check
    suite expected 60 python3 tests/compat/run.py --check
else
    echo "mutants        there is no python3 of version 3.11 or later: the tables of mutants and compat are not checked"
fi
if cargo deny --version >/dev/null 2>&1; then
    suite deny 180 cargo deny --all-features check
else
    # Not a skipped check: crates/pmnet/tests/dependencies.rs looks at licences, sources and bans.
    echo "deny           cargo-deny is not installed: the unit tests check the same without advisories"
fi

if [ "$what" = all ]; then
    # Built first, with limits of their own, so that the limits below are about tests.
    # One after the other: built together, all would get the features that the simulator needs.
    suite build 1800 cargo build --profile checked --locked -p pmnet
    suite lab 1800 cargo build --profile checked --locked -p pmnet-lab --bins --test e2e --test testbed
    suite simulator 900 cargo build --profile checked --locked -p pmnet-sim
    # So many packets for the in-kernel pipeline and for the device beside it.
    export PMNET_PACKETS=300000
    in_lab() {
        suite "$1" "$2" cargo test --profile checked --locked -p pmnet-lab --test "$3" -- \
            --show-output --test-threads 1 "${@:4}"
    }
    # The end-to-end tests mostly wait for deadlines: they go side by side in some lanes, each theme by itself, since time is part of
    # what they look at. Every module has its turn, also one that is new; most need no more than this.
    themes() {
        local lane=$1 theme of limit
        for theme in $(sed -n 's/^mod \([a-z_]*\);$/\1/p' tests/e2e/main.rs); do
            of=2 limit=240
            case $theme in
            common | support) continue ;;
            kernel) of=0 limit=600 ;;
            kills) of=0 limit=420 ;;
            fleet) of=1 limit=480 ;;
            chain | failovers | joining | sentinel | three_boxes | values) of=1 ;;
            esac
            [ "$of" = "$lane" ] && in_lab "$theme" "$limit" e2e "$theme::"
        done
    }
    lane_0() {
        themes 0
        # Not by cargo: without the tests' features it would be linked anew, below the tests that are running it.
        suite demo 900 "${CARGO_TARGET_DIR:-target}/checked/pmnet-lab" demo \
            --quick --checked-seconds 6 --out "$logs/demo"
    }
    lane_1() { themes 1; }
    lane_2() {
        themes 2
        in_lab testbed 480 testbed
        # Every reply that a Redis gives, and what clients do to each other: what make compat does for an hour, for a minute.
        if python3 -c 'import tomllib' >/dev/null 2>&1; then
            suite compat 900 python3 tests/compat/run.py --quick \
                --pmnet "${CARGO_TARGET_DIR:-target}/checked/pmnet"
            for store in $STORES; do
                suite "compat-$store" 300 python3 tests/compat/run.py --quick --store "$store" \
                    --pmnet "${CARGO_TARGET_DIR:-target}/checked/pmnet"
            done
        else
            echo "compat         there is no python3 of version 3.11 or later: replies are not compared with those of Redis"
        fi
    }
    # This one keeps the processors busy, and leaves them to the others whenever these want them.
    lane_busy() {
        renice -n 10 -p "$BASHPID" >/dev/null
        suite tests 1800 cargo test --workspace --locked --no-run
        # Many of these wait, too: more at a time than there are processors, and the rest beside them.
        suite unit 1800 cargo test --workspace --locked --no-fail-fast -- --show-output --test-threads 4 &
        # They must have begun, or they would wait for what clippy has locked.
        for _ in {1..60}; do
            grep -q '^ *Running ' "$logs/unit.log" 2>/dev/null && break
            sleep 1
        done
        clippy
        suite sim 900 cargo run --quiet --profile checked --locked -p pmnet-sim -- --seeds 2000
        suite rules 1200 cargo run --quiet --profile checked --locked -p pmnet-sim -- \
            --without all --noticed crates/sim/noticed
        # Rights of users, beside newer servers, where they were fetched.
        local store
        for store in $STORES; do
            [ -x "target/servers/$store/bin/redis-server" ] || continue
            suite "rights-$store" 600 env PMNET_TEST_REDIS="$PWD/target/servers/$store/bin/redis-server" \
                cargo test --workspace --locked --test front -- --show-output --test-threads 4 acl:: rights:: clients:: newer_forms
        done
        wait
    }
    lanes=()
    for lane in busy 0 1 2; do
        "lane_$lane" &
        lanes+=($!)
    done
    below() {
        local pid
        for pid in $(pgrep -P "$1"); do
            below "$pid"
            echo "$pid"
        done
    }
    # What they run, and the next that they would run.
    # shellcheck disable=SC2046
    trap 'kill -STOP "${lanes[@]}"; kill $(for lane in "${lanes[@]}"; do below "$lane"; done); kill -KILL "${lanes[@]}"' EXIT
    wait "${lanes[@]}"
    trap - EXIT
fi

read -r passed failed skipped < <(awk '{ ok += $1; bad += $2; left += $3 } END { print ok + 0, bad + 0, left + 0 }' "$logs/totals")
cat "$logs/failed"
echo "$((SECONDS - started)) s; logs are in $logs"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
