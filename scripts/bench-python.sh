#!/usr/bin/env bash
# Measures reads and stats of the release wheel in turn with the same in Rust, in memory: a table.
# Arguments: rounds (5) and seconds of each run (2).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo build --release --locked -p papilio --example read_and_stat
bash scripts/wheel.sh > /dev/null
environment=$PWD/target/wheel-venv
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
    target/wheels/papilio-*.whl
folder=$(mktemp -d /dev/shm/papilio-python.XXXXXX)
trap 'rm -rf --one-file-system "$folder"' EXIT
cd target
"$environment/bin/python" ../crates/python/benches/read_and_stat.py release/examples/read_and_stat "$folder" "$@"
