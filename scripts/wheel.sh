#!/usr/bin/env bash
# Builds the release wheel of the Python module in target/wheels, with maturin from PyPI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
environment=$PWD/target/wheel-venv
[ -x "$environment/bin/maturin" ] || {
    "${PAPILIO_PYTHON:-python3}" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check maturin
}
"$environment/bin/maturin" build --release --locked --strip --interpreter "$environment/bin/python" \
    --manifest-path crates/python/Cargo.toml --out target/wheels
ls -l target/wheels/papilio-*.whl
