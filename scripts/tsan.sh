#!/usr/bin/env bash
# Runs the simulator's threads, requests in flight and the page cache under ThreadSanitizer, which
# finds data races. The standard library is built with it too, so that its locks are understood.
# System calls go through the C library, where ThreadSanitizer sees that memory was unmapped.
# TSAN_OPERATIONS=N (default 2000) sets the operations of threads in each shape. TSAN_SHORT=1 runs
# the page cache only, with 100 operations.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ ! -d "$(rustc +nightly --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library" ]; then
    echo "tsan: missing: rustup toolchain install nightly --component rust-src" >&2
    exit 1
fi
target=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=target/tsan RUSTFLAGS="-Zsanitizer=thread --cfg=rustix_use_libc"
export TSAN_OPTIONS="halt_on_error=1 exitcode=66"
amount=2000
[ "${TSAN_SHORT:-}" != 1 ] || amount=100
export PAPILIO_THREAD_OPERATIONS=${TSAN_OPERATIONS:-$amount} PAPILIO_SHUFFLED_RUNS=20
export PAPILIO_PAGECACHE_STEPS=$amount
run() { cargo +nightly test --locked -Zbuild-std --target "$target" "$@"; }
# One test at a time, because tests may map the memory that others unmapped.
run -p papilio-pagecache --lib --test cache --test cache_model -- --test-threads=1
if [ "${TSAN_SHORT:-}" != 1 ]; then
    run -p papilio --test library requests_in_flight:: queue_threads::
    run -p papilio-simulator --test simulator threads_match_their_models
fi
echo "tsan: no data race"
