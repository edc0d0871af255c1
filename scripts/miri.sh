#!/usr/bin/env bash
# Runs the tests of the format, the page cache and the locks under Miri, which finds undefined
# behaviour: data races, accesses outside an object, references that overlap. Amounts are small,
# as Miri takes about 1,000 times as long. MIRI_SEEDS=N (default 1) tries N schedules of threads.
# MIRI_SHORT=1 leaves out the format and the longer tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "miri: missing: rustup toolchain install nightly --component miri,rust-src" >&2
    exit 1
fi
export CARGO_TARGET_DIR=target/miri PROPTEST_CASES=2 PAPILIO_PAGECACHE_STEPS=40
for seed in $(seq "${MIRI_SEEDS:-1}"); do
    # Tests read their amounts from the environment, and ask the host for its page size.
    # The tree borrows model is the one that the standard library aims at.
    export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-tree-borrows -Zmiri-seed=$seed"
    miri() { cargo +nightly miri test --locked "$@"; }
    if [ "${MIRI_SHORT:-}" = 1 ]; then
        miri -p papilio-locks -p papilio-pagecache --lib
        continue
    fi
    miri -p papilio-locks -p papilio-format --lib
    miri -p papilio-pagecache --lib --test cache --test xarray_model
done
echo "miri: ${MIRI_SEEDS:-1} schedules, nothing found"
