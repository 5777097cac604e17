#!/bin/sh
# Instruments libpmnet for AddressSanitizer and for ThreadSanitizer, and runs the end-to-end tests of programs in C and C++ with it. These
# programs are instrumented, too, and have gcc's runtime of the sanitizer.
#
#   tests/sanitizers.sh            both
#   tests/sanitizers.sh address    one of them
#
# The compiler's unstable option is used with stable Rust. Its standard library is not instrumented.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- address thread
host=$(rustc -vV | sed -n 's/^host: //p')
built=${CARGO_TARGET_DIR:-$PWD/target}
cargo build --profile checked --locked -p pmnet -p pmnet-lab
for sanitizer in "$@"; do
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer" \
        cargo build --locked -p pmnet-capi --target "$host" --target-dir "$built/sanitizers/$sanitizer"
    PMNET_SANITIZER=$sanitizer PMNET_SANITIZED=$built/sanitizers/$sanitizer/$host/debug \
        cargo test --profile checked --locked -p pmnet-lab --test e2e programs::library:: -- --test-threads=1
done
