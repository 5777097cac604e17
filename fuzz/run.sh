#!/usr/bin/env bash
# Fuzzes every target for some time. Prints one line per target and a total; the exit code is 1 if any target crashed.
#
#   fuzz/run.sh --seconds 60                 every target for a minute, one after the other
#   fuzz/run.sh --seconds 60 --only wire     one target (again for more)
#   fuzz/run.sh --seconds 60 --jobs 4        four targets at a time
#   fuzz/run.sh --merge                      put what was found into fuzz/corpus, minimised
#
# It uses stable Rust, because the compiler's own passes produce the coverage that libFuzzer needs.
# New inputs stay in target/fuzz/corpus and are used again; crashes go to fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=60 jobs=1 merge=no only=()
while [ $# -gt 0 ]; do
    case "$1" in
        --seconds) seconds=$2; shift 2 ;;
        --only) only+=("$2"); shift 2 ;;
        --jobs) jobs=$2; shift 2 ;;
        --merge) merge=yes; shift ;;
        *) echo "fuzz/run.sh: $1 is not known; see the head of the file" >&2; exit 2 ;;
    esac
done

host=$(rustc -vV | sed -n 's/^host: //p')
target_dir=${CARGO_TARGET_DIR:-target}/fuzz
work=$target_dir/corpus
logs=$target_dir/logs
artifacts=fuzz/artifacts
# The flags that cargo-fuzz passes without a sanitizer, and the checks that a release build leaves out.
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
 -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing
 -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1"
RUSTFLAGS=$(echo $flags) CARGO_PROFILE_RELEASE_LTO=off \
    cargo build --quiet --release --locked --target "$host" --target-dir "$target_dir" \
    -p pmnet-fuzz --bin pmnet-fuzz-engine --features engine
engine=$target_dir/$host/release/pmnet-fuzz-engine
mapfile -t targets < <(sed -n 's/^    ("\([a-z_]*\)", .*/\1/p' fuzz/src/lib.rs)
if [ ${#only[@]} -gt 0 ]; then targets=("${only[@]}"); fi
mkdir -p "$logs" "$artifacts"

# The existing corpora, the writable one first.
directories() {
    mkdir -p "$work/$1"
    echo "$work/$1"
    for more in "fuzz/corpus/$1" "fuzz/regressions/$1"; do
        if [ -d "$more" ]; then echo "$more"; fi
    done
}

# The last number after a word of libFuzzer's status lines.
status() {
    grep -aoE "$1:? [0-9]+" "$2" | tail -1 | grep -oE '[0-9]+$' || echo 0
}

fuzz_one() {
    local name=$1 log=$logs/$1.log started=$SECONDS dictionary=() crashes=0
    if [ -f "fuzz/dictionaries/$name.dict" ]; then
        dictionary=("-dict=fuzz/dictionaries/$name.dict")
    fi
    mapfile -t corpora < <(directories "$name")
    # libFuzzer ends by itself; the timeout covers the case that it does not.
    PMNET_FUZZ_TARGET=$name timeout --kill-after=10 $((seconds + 120)) "$engine" \
        -max_total_time="$seconds" -max_len=4096 -timeout=25 -rss_limit_mb=2048 \
        -artifact_prefix="$artifacts/$name-" -print_final_stats=1 \
        "${dictionary[@]}" "${corpora[@]}" >"$log" 2>&1 || crashes=1
    local executions
    executions=$(grep -aoE 'number_of_executed_units: [0-9]+' "$log" | grep -oE '[0-9]+$' || true)
    executions=${executions:-$(grep -aoE '^#[0-9]+' "$log" | tail -1 | tr -d '#' || true)}
    printf '%-18s %10s executions  %5s coverage  %6s features  %5s corpus  %5s s  %s crashes\n' \
        "$name" "${executions:-0}" "$(status cov "$log")" "$(status ft "$log")" \
        "$(ls "$work/$name" | wc -l)" $((SECONDS - started)) "$crashes"
    if [ "$crashes" -ne 0 ]; then
        sed -n '/panicked at/,/stack backtrace/p;/ERROR: libFuzzer/p' "$log" | head -8
        grep -aoE "Test unit written to .*" "$log" | sed 's/.*written to //' | while read -r file; do
            echo "    replay: cargo run -p pmnet-fuzz -- $name $file"
        done
        echo "    log: $log"
    fi
    echo "${executions:-0} $crashes" >"$logs/$name.sum"
}

# Only inputs that add an edge of the code are kept, so that the corpus is small enough for the repository.
merge_one() {
    local name=$1 fresh=$target_dir/merged/$1
    rm -rf "$fresh" && mkdir -p "$fresh"
    mapfile -t corpora < <(directories "$name")
    PMNET_FUZZ_TARGET=$name timeout 900 "$engine" -merge=1 -use_counters=0 -max_len=4096 \
        -timeout=25 -rss_limit_mb=2048 -artifact_prefix="$artifacts/$name-" \
        "$fresh" "${corpora[@]}" >"$logs/$name.merge.log" 2>&1
    mkdir -p "fuzz/corpus/$name"
    find "fuzz/corpus/$name" -type f -delete
    # If there are more than the replay test allows, the longest inputs are kept, because they reach furthest.
    find "$fresh" -type f -printf '%s %p\n' | sort -rn | awk 'NR <= 300 { print $2 }' |
        xargs -r cp -t "fuzz/corpus/$name"
    echo "$name: $(ls "fuzz/corpus/$name" | wc -l) files, $(du -sb "fuzz/corpus/$name" | cut -f1) bytes"
}

step=fuzz_one
if [ "$merge" = yes ]; then step=merge_one; fi
for name in "${targets[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    rm -f "$logs/$name.sum"
    "$step" "$name" &
done
wait
if [ "$merge" = yes ]; then exit 0; fi
executions=0 crashes=0
for name in "${targets[@]}"; do
    read -r one crashed <"$logs/$name.sum" || { one=0 crashed=1; }
    executions=$((executions + one)) crashes=$((crashes + crashed))
done
echo "${#targets[@]} targets, $executions executions, $SECONDS s, $crashes crashed"
[ "$crashes" -eq 0 ]
