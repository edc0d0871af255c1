#!/usr/bin/env bash
# Runs each fuzz target in turn for FUZZ_SECONDS (default 60) seconds and stops at the first
# failure, whose input is kept in fuzz/artifacts. FUZZ_TARGETS="a b" selects targets,
# FUZZ_SANITIZER another sanitizer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${FUZZ_SECONDS:-60}
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "fuzz: nightly toolchain or cargo-fuzz missing: rustup toolchain install nightly; cargo install cargo-fuzz" >&2
    exit 1
fi
read -ra targets <<<"${FUZZ_TARGETS:-$(cargo +nightly fuzz list | tr '\n' ' ')}"
[ "${#targets[@]}" -gt 0 ] || { echo "fuzz: no targets to run" >&2; exit 1; }
for target in "${targets[@]}"; do
    echo "==> fuzz $target for $seconds s"
    # Code without `unsafe` needs no sanitizer, and runs several times as fast.
    sanitizer=none
    [ "$target" != xarray ] || sanitizer=address
    cargo +nightly fuzz run --sanitizer "${FUZZ_SANITIZER:-$sanitizer}" --no-trace-compares "$target" -- \
        -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -max_len=8192 -len_control=0 -print_final_stats=1
done
echo "fuzz: ${#targets[@]} targets, no failures"
