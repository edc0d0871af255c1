#!/usr/bin/env bash
# The inner loop: formatting, Clippy and unit tests of the crates that differ from a commit.
#
# `make check` compares with HEAD, `make check SINCE=main` with a branch. Dependents of a changed
# crate are not tested: that is the job of `make test`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
since=${1:-HEAD}

# Files that differ from the commit, and those that git does not know yet.
changed=$({ git diff --name-only "$since" && git ls-files --others --exclude-standard; } | sort -u)
packages=()
for folder in $(printf '%s\n' "$changed" | sed -nE 's,^(crates/[^/]+|xtask)/.*\.(rs|toml)$,\1,p' | sort -u); do
    [ -f "$folder/Cargo.toml" ] || continue
    packages+=(-p "$(sed -n 's/^name = "\(.*\)"/\1/p' "$folder/Cargo.toml" | head -n 1)")
done

cargo fmt --all --check
cargo xtask tidy
if [ "${#packages[@]}" -eq 0 ]; then
    echo "check: no crate differs from $since"
    exit 0
fi
cargo clippy --quiet --locked --all-targets "${packages[@]}" -- -D warnings
cargo test --quiet --locked "${packages[@]}" --lib --bins
