#!/usr/bin/env bash
# The short parts of `make miri` and `make tsan`, for each change: undefined behaviour in the locks
# and the page cache, and data races of the page cache.
#
# Needs a nightly toolchain with miri and rust-src, and installs it where rustup can. Elsewhere it
# says that it was skipped, also if PAPILIO_REQUIRE_ALL=1: the other tests need stable Rust only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

has_miri() { cargo +nightly miri --version > /dev/null 2>&1; }
has_miri || timeout 300 rustup toolchain install nightly --profile minimal --component miri,rust-src \
    > /dev/null 2>&1 || true
if ! has_miri; then
    echo "SKIPPED Miri and ThreadSanitizer: no nightly Rust with miri and rust-src" >&2
    exit 0
fi
# CI runs test programs by a script of its own; Miri's are not programs of the host.
host=$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)
unset "CARGO_TARGET_${host}_RUNNER"
MIRI_SHORT=1 bash scripts/miri.sh
TSAN_SHORT=1 bash scripts/tsan.sh
