#!/usr/bin/env bash
# Runs the suites, each with a time limit, and adds up their results. The last line is: N passed, N failed, N skipped.
# The exit code is 1 if a test failed.
#
# Usage: tests/run.sh lint|check|all
#        tests/run.sh count LOG    what a log of libtest says: passed, failed, skipped

set -u

# A test that prints "SKIPPED: reason" (tests/shared/skip.rs) counts once, as skipped and not as passed.
count() {
    awk '
        /^test result: / { for (i = 1; i < NF; i++) {
            if ($(i + 1) ~ /^passed/) ok += $i
            if ($(i + 1) ~ /^failed/) bad += $i } }
        /^---- .* stdout ----$/ { counted = 0 }
        /^SKIPPED: / && !counted { skip++; counted = 1 }
        END { print ok - skip + 0, bad + 0, skip + 0 }' "$1"
}

# Names in tests/compat/servers.py: a Redis and a Valkey that are newer than this machine's Redis
# (crates/store/tests/store/servers.rs).
STORES="redis-8.2 valkey-9.1"

what=${1:-all}
case $what in
lint | check | all | count) ;;
*)
    echo "usage: tests/run.sh lint|check|all, or tests/run.sh count LOG" >&2
    exit 2
    ;;
esac
if [ "$what" = count ]; then
    count "$2"
    exit
fi
cd "$(dirname "$0")/.." || exit 1
logs=${CARGO_TARGET_DIR:-target}/test-logs
mkdir -p "$logs"
rm -rf "$logs"/*.log "$logs/taken"
started=$SECONDS
: >"$logs/failed"
: >"$logs/totals"
# Suites that must be among the results.
wanted=(format rivals-fmt mutants generate expected clippy product)
[ "$what" = lint ] || wanted+=(tests unit sim)

# suite NAME LIMIT_SECONDS COMMAND…: runs the command, and counts the result lines of libtest. If there are none, the
# command counts as one test. Ignored tests are campaigns, which have targets of their own in the Makefile; a short form
# of each is among the other tests.
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
        # If a filter matches no test, it tests nothing. (Crates without tests run together with crates that have
        # tests.)
        if grep -q '^test result: ' "$log"; then
            bad=1 code=none
        else
            ok=1
        fi
    fi
    echo "$name $ok $bad $left" >>"$logs/totals"
    # The report is printed in one piece, because suites of several lanes may end at the same time.
    printf '%s\n' "$(report)"
}

# Message for the programs that read TOML tables: they need a newer Python than some machines have.
OLD_PYTHON="there is no python3 of version 3.11 or later"
has_python() { python3 -c 'import tomllib' >/dev/null 2>&1; }

# left_out NAME REASON: reports a suite that this machine cannot run. In CI, this is a failure.
left_out() {
    printf '%-14s left out: %s\n' "$1" "$2"
    if [ -n "${CI:-}" ]; then
        echo "$1 0 1 0" >>"$logs/totals"
        echo "failed     $1: left out: $2" >>"$logs/failed"
    else
        echo "$1 0 0 1" >>"$logs/totals"
    fi
}

# Prints the report about a suite after the end of its command.
report() {
    printf '%-14s %5d passed %3d failed %3d skipped  %4d s, of processors %4d s\n' \
        "$name" "$ok" "$bad" "$left" $((SECONDS - begin)) "$busy"
    grep '^SKIPPED: ' "$log" | sort | uniq -c | sed 's/^/               /'
    if [ "$code" != 0 ]; then
        [ "$code" = 124 ] && echo "           did not end within $limit s"
        [ "$code" = none ] && echo "           no test has this name"
        echo "           what failed in $log, and its end:"
        # With --show-output, libtest also shows the output of passed tests, under another title. Some passed tests
        # panic on purpose, so only the part about failures is read.
        awk '/^failures:$/ { inside = 1 } /^test result: / { inside = 0 } inside' "$log" |
            head -n 120 | cut -c -1000 | sed 's/^/    | /'
        grep -vE '^(test .* ok$|   (Compiling|Checking) )' "$log" | tail -n 60 | cut -c -1000 | sed 's/^/    | /'
        # The names of failed tests, with their reasons, come last, because readers often look only at the end of a long
        # log.
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

# One of the tests reads the licences of all dependencies, including those for other platforms.
timeout 300 cargo fetch --quiet --locked || echo "fetch          not all crates could be downloaded"
suite format 120 cargo fmt --all --check
# bench/store is not in the workspace, and is not built here, because the stores with which pmnet is compared take
# minutes to build (make bench-store-test).
suite rivals-fmt 120 cargo fmt --manifest-path bench/store/Cargo.toml --check
clippy() {
    # The tests with processes (e2e and testbed) are named, because they are not default targets.
    suite clippy 1800 cargo clippy --workspace --locked --lib --bins --tests --examples --benches --test e2e --test testbed -- -D warnings
    # The crates proto and log are checked with the features with which they are shipped. In the workspace, cargo gives
    # them the features that the simulator needs.
    suite product 900 cargo clippy --locked -p pmnet-proto -p pmnet-log --lib -- -D warnings
}
# Runs the tests of all crates. Many tests wait, so more tests run at a time than there are processors.
unit() {
    suite unit 1800 cargo test --workspace --locked --no-fail-fast "$@" -- --show-output --test-threads 4
}
[ "$what" = all ] || clippy
# If the text of a row is not in the code, the row tests nothing. So the tables are checked.
if has_python; then
    suite mutants 60 python3 tests/mutants/run.py --check
    suite generate 60 python3 tests/mutants/generate_test.py
    suite expected 60 python3 tests/compat/run.py --check
else
    left_out mutants "$OLD_PYTHON"
    left_out generate "$OLD_PYTHON"
    left_out expected "$OLD_PYTHON"
fi
if cargo deny --version >/dev/null 2>&1; then
    suite deny 180 cargo deny --all-features check
else
    # A missing cargo-deny does not count as skipped, because crates/pmnet/tests/dependencies.rs checks licences,
    # sources and bans.
    echo "deny           cargo-deny is not installed: the unit tests check the same without advisories"
fi

if [ "$what" = check ]; then
    # Two crates are left out, because they take minutes: the one that runs the pipeline in the kernel, and the
    # laboratory.
    most=(--exclude pmnet-dataplane --exclude pmnet-lab)
    suite tests 1800 cargo test --workspace --locked --no-run "${most[@]}"
    unit "${most[@]}"
    # The simulator was already built for the tests.
    suite sim 300 "${CARGO_TARGET_DIR:-target}/debug/pmnet-sim" --seeds 200
fi

if [ "$what" = all ]; then
    # The builds come first, with time limits of their own, so that the limits below are only for tests. The builds run
    # one after the other, so that the product is tested with the features with which it is shipped.
    suite build 1800 cargo build --profile checked --locked -p pmnet -p pmnet-capi -p pmnet-python
    suite lab 1800 cargo test --profile checked --locked -p pmnet-lab --test e2e --test testbed --no-run
    built=${CARGO_TARGET_DIR:-$PWD/target}/checked
    # Number of packets for each comparison of the pipeline in the kernel with the device in user space (make kernel: a
    # million).
    export PMNET_PACKETS=100000
    # cargo does not run these tests, because it would wait for the builds of lane_busy. cargo only names each test
    # program.
    in_lab() {
        local program
        program=$(sed -n "s/^ *Executable .*(\(.*\/$3-[0-9a-f]*\))$/\1/p" "$logs/lab.log")
        suite "$1" "$2" env -C crates/lab CARGO_MANIFEST_DIR="$PWD/crates/lab" "$(realpath "$program")" \
            --show-output --test-threads 1 "${@:4}"
    }
    # The suites below run one after the other, because they share a folder.
    compats() {
        local store
        compat() {
            if has_python; then
                suite "$1" "$2" python3 tests/compat/run.py --quick --pmnet "$built/pmnet" "${@:3}"
            else
                left_out "$1" "$OLD_PYTHON"
            fi
        }
        compat compat 900
        for store in $STORES; do
            compat "compat-$store" 300 --store "$store"
        done
    }
    # Runs a turn, unless another lane has taken it. The end-to-end tests run subject by subject, because they check
    # times.
    mkdir "$logs/taken" || exit 1
    turn() {
        # If the folder cannot be made because the disk is full, no lane runs the turn. The turn is then missing at the
        # end.
        mkdir "$logs/taken/$1" 2>/dev/null || return
        case $1 in
        demo) suite demo 900 "$built/pmnet-lab" demo --quick --checked-seconds 6 --out "$logs/demo" ;;
        testbed) in_lab testbed 480 testbed ;;
        # A minute of the tests of make compat, which take an hour: replies to commands, and scenarios with several
        # clients.
        compat) compats ;;
        wheel)
            if [ -x target/venv/bin/maturin ] && [ -x target/venv/bin/mypy ]; then
                suite wheel 900 sh tests/programs/wheel.sh
            else
                left_out wheel "there is no maturin, or no mypy (make setup)"
            fi
            ;;
        kernel) in_lab kernel 600 e2e kernel:: ;;
        fleet) in_lab fleet 480 e2e fleet:: ;;
        kills) in_lab kills 480 e2e kills:: ;;
        alerts) in_lab alerts 480 e2e alerts:: ;;
        attack) in_lab attack 600 e2e attack:: ;;
        programs) in_lab programs 480 e2e programs:: ;;
        # The filter also matches the module kernel::hand, so it is skipped.
        *) in_lab "$1" 240 e2e "$1::" --skip kernel:: ;;
        esac
    }
    # The turns mostly wait for deadlines, so several turns run at the same time. Each lane takes the next turn that no
    # other lane has taken. Long turns come first.
    turns=(fleet testbed attack alerts three_boxes joining chain failovers compat wheel)
    # Every module has a turn, including new modules. The modules that measure have a lane of their own.
    measures=(kernel kills demo)
    mapfile -t themes < <(sed -n 's/^mod \([a-z_]*\);$/\1/p' tests/e2e/main.rs | grep -vxE 'common|support|kernel|kills')
    turns+=("${themes[@]}")
    lane_0() {
        local one
        for one in "${measures[@]}" "${turns[@]}"; do turn "$one"; done
    }
    lane_1() {
        local one
        for one in "${turns[@]}"; do turn "$one"; done
    }
    lane_2() { lane_1; }
    # This lane keeps the processors busy. The lane has a low priority, so the other lanes get the processors whenever
    # they need them.
    lane_busy() {
        renice -n 10 -p "$BASHPID" >/dev/null
        suite tests 1800 cargo test --workspace --locked --no-run
        unit &
        # The other lanes must begin first. Otherwise they would wait for clippy's locks.
        for _ in {1..60}; do
            grep -q '^ *Running ' "$logs/unit.log" 2>/dev/null && break
            sleep 1
        done
        suite simulator 900 cargo build --profile checked --locked -p pmnet-sim
        clippy
        suite sim 900 "$built/pmnet-sim" --seeds 2000
        suite rules 1200 "$built/pmnet-sim" --without all --noticed crates/sim/noticed
        # Compares the rights of users with newer servers, if these were downloaded.
        local store
        for store in $STORES; do
            if [ ! -x "target/servers/$store/bin/redis-server" ]; then
                left_out "rights-$store" "that server is not fetched (make setup)"
                continue
            fi
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
    # Ends the suites that the lanes are running, and prevents the lanes from starting more.
    # shellcheck disable=SC2046
    trap 'kill -STOP "${lanes[@]}"; kill $(for lane in "${lanes[@]}"; do below "$lane"; done); kill -KILL "${lanes[@]}"' EXIT
    wait "${lanes[@]}"
    trap - EXIT
    wanted+=("${measures[@]}" "${turns[@]}" build lab simulator rules)
    for store in $STORES; do wanted+=("compat-$store" "rights-$store"); done
fi

# If a suite did not run, or could not record its result, it counts as failed.
lost=0
for one in "${wanted[@]}"; do
    if ! grep -q "^$one " "$logs/totals"; then
        echo "failed     $one: it did not run to its end"
        lost=$((lost + 1))
    fi
done
read -r passed failed skipped < <(awk '{ ok += $2; bad += $3; left += $4 } END { print ok + 0, bad + 0, left + 0 }' "$logs/totals")
failed=$((failed + lost))
cat "$logs/failed"
echo "$((SECONDS - started)) s; logs are in $logs"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
