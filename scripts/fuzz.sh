#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS (default 60) seconds, one after the other; stops at the
# first finding, which is left in fuzz/artifacts. FUZZ_TARGETS="a b" picks some.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${FUZZ_SECONDS:-60}
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "fuzz: needs a nightly toolchain and cargo-fuzz (rustup toolchain install nightly; cargo install cargo-fuzz)" >&2
    exit 1
fi
read -ra targets <<<"${FUZZ_TARGETS:-$(cargo +nightly fuzz list | tr '\n' ' ')}"
[ "${#targets[@]}" -gt 0 ] || { echo "fuzz: no targets" >&2; exit 1; }
for target in "${targets[@]}"; do
    echo "==> fuzz $target for $seconds s"
    cargo +nightly fuzz run "$target" -- \
        -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -max_len=8192 -len_control=0 -print_final_stats=1
done
echo "fuzz: ${#targets[@]} targets, nothing found"
