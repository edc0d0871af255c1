#!/usr/bin/env bash
# Checks that the crates can be published: packages each with its metadata, prints the sizes, builds
# the library and its parts from their packages alone, and compares the library's API with the last
# release.
#
# - PAPILIO_BASELINE is the commit to compare with; without it, the last tag v*. With neither, the
#   API is not compared, and the script says so.
# - The comparison needs cargo-semver-checks (cargo install cargo-semver-checks).
#
# Not published: papilio-python (its wheel is), papilio-simulator and xtask. With
# PAPILIO_ONLY_PACKAGE=1 the script ends when the packages are made.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# crates.io takes at most this.
most=$((10 << 20))
skip() {
    printf 'SKIPPED %s\n' "$*" >&2
    [ "${PAPILIO_REQUIRE_ALL:-}" != 1 ] || exit 1
}

# All crates whose manifests do not say otherwise.
members=()
packages=()
for manifest in crates/*/Cargo.toml; do
    grep -q '^publish = false' "$manifest" && continue
    member=$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -n 1)
    members+=("$member")
    packages+=(-p "$member")
done
said=$(mktemp "${TMPDIR:-/tmp}/papilio-packages.XXXXXX")
trap 'rm -f "$said"' EXIT
cargo package "${packages[@]}" --locked --allow-dirty --no-verify 2>&1 | tee "$said"
# Missing metadata and files are warnings.
if grep -q '^warning: manifest' "$said"; then
    printf 'a manifest is incomplete, see above\n' >&2
    exit 1
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
target=$(cargo metadata --locked --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
for member in "${members[@]}"; do
    archive=$target/package/$member-$version.crate
    bytes=$(stat -c %s "$archive")
    if [ "$bytes" -gt "$most" ]; then
        printf '%s has %s bytes; a registry takes %s\n' "$archive" "$bytes" "$most" >&2
        exit 1
    fi
done
[ "${PAPILIO_ONLY_PACKAGE:-}" != 1 ] || exit 0
printf '== building the library from its packages\n'
# The oracle is only for tests, but cargo looks up every package that a manifest names.
cargo package -p papilio-format -p papilio-locks -p papilio-pagecache -p papilio-device \
    -p papilio-ioctl -p papilio-oracle -p papilio-engine -p papilio-progs -p papilio-fs -p papilio-transfer -p papilio \
    --locked --allow-dirty

baseline=${PAPILIO_BASELINE:-$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || true)}
if [ -z "$baseline" ]; then
    printf 'the API is not compared: no release is tagged, and PAPILIO_BASELINE is not set\n'
elif ! cargo semver-checks --version > /dev/null 2>&1; then
    skip "the comparison of the API: cargo-semver-checks is missing"
else
    printf '== comparing the API with %s\n' "$baseline"
    # Internals of the feature "unstable" may change.
    cargo semver-checks -p papilio --baseline-rev "$baseline" --only-explicit-features --features images,store
fi
printf 'all crates can be published\n'
