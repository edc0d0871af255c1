#!/usr/bin/env bash
# Measures which lines of the library its tests reach: those of the format, the locks, the page cache,
# the devices and the library itself, and those of the simulator. Writes a table of modules and the
# lines that no test reaches to target/coverage; results/coverage.md explains them.
#
# Needs cargo-llvm-cov (cargo install cargo-llvm-cov) and the component llvm-tools. Tests that need
# root and the kernel's Btrfs are skipped without them, so the figures are of a run as root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! cargo llvm-cov --version > /dev/null 2>&1; then
    echo "coverage: missing: cargo install cargo-llvm-cov, and rustup component add llvm-tools" >&2
    exit 1
fi
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/coverage-build} CARGO_INCREMENTAL=0
out=$PWD/target/coverage
mkdir -p "$out"
measured=()
for name in format locks pagecache device store engine progs fs transfer; do measured+=(-p "papilio-$name"); done
measured+=(-p papilio)
# A test that fails is told by the other runs; here its coverage counts.
cargo llvm-cov --no-report --locked --ignore-run-fail "${measured[@]}" \
    -p papilio-simulator --tests
cargo llvm-cov report --json --output-path "$out/coverage.json" "${measured[@]}"
python3 scripts/coverage.py "$out/coverage.json" "$PWD" > "$out/coverage.md"
cat "$out/coverage.md"
