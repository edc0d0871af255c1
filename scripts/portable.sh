#!/usr/bin/env bash
# Builds Papilio for other hosts, and tries what can run here.
#
# - Linux on x86-64 with musl, static: built and run.
# - Linux on aarch64 with glibc: built, and run by QEMU. With PORTABLE_ALL=1 with musl, too, static.
# - macOS on aarch64, FreeBSD on x86-64: the library, the command and the C library are checked by the
#   compiler, without a C compiler of theirs and without linking. On FreeBSD imago does not build, so
#   images are raw there.
#
# A trial makes an image of this project's sources, changes and checks it, and compares its bytes
# with the image that the command of this host makes.
#
# Needs rustup, or a toolchain with the standard libraries of these targets; musl-tools,
# gcc-aarch64-linux-gnu and qemu-user-static of Debian, which it installs as root. A part that lacks
# something is skipped and says so, or fails if PAPILIO_REQUIRE_ALL=1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-$PWD/target/portable}
work=$(mktemp -d "${TMPDIR:-/tmp}/papilio-portable.XXXXXX")
trap 'rm -rf "$work"' EXIT
export CARGO_TARGET_DIR=$target CARGO_PROFILE_DEV_DEBUG=0

skipped=0
skip() {
    printf 'SKIPPED %s\n' "$*" >&2
    skipped=1
}

# has_target TARGET: returns whether the standard library for the target is there, or can be had.
has_target() {
    [ -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ] || rustup target add "$1" > /dev/null 2>&1
}

# has_command COMMAND PACKAGE
has_command() {
    command -v "$1" > /dev/null && return
    [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || return
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$2" > /dev/null 2>&1 || return
    command -v "$1" > /dev/null
}

# image COMMAND... FILE: makes, changes and checks an image by a command.
image() {
    local file=${*: -1} run=("${@:1:$#-1}")
    SOURCE_DATE_EPOCH=1700000000 "${run[@]}" mkfs --quiet --size 256M --compress zstd \
        --uuid 11111111-2222-3333-4444-555555555555 --rootdir "$work/source" "$file"
    "${run[@]}" check --check-data-csum "$file" > /dev/null
    cp --sparse=always "$file" "$file.new"
    # Times are those of the change, so its bytes are not compared.
    "${run[@]}" subvolume snapshot "$file:/" "$file:/snapshot" > /dev/null
    "${run[@]}" rm -r "$file:/crates/cli"
    "${run[@]}" cp -r "$work/source/scripts" "$file:/snapshot/copied" > /dev/null
    "${run[@]}" check --check-data-csum "$file" > /dev/null
    "${run[@]}" cat "$file:/snapshot/copied/portable.sh" | cmp - "$work/source/scripts/portable.sh"
    if command -v btrfs > /dev/null; then btrfs check "$file" > "$work/btrfs" 2>&1 || { cat "$work/btrfs"; return 1; }; fi
}

# The sources may change meanwhile.
mkdir "$work/source"
cp -a crates scripts README.md "$work/source"
printf '== building the command for this host\n'
cargo build --locked -q -p papilio-cli
image "$target/debug/papilio" "$work/host"

# try NAME TARGET COMMAND...: builds the command, and compares its image.
try() {
    local name=$1 triple=$2
    shift 2
    printf '== building the command for %s\n' "$name"
    cargo build --locked -q -p papilio-cli --target "$triple"
    image "$@" "$target/$triple/debug/papilio" "$work/$triple"
    cmp "$work/host.new" "$work/$triple.new"
    printf 'it makes the same image, byte for byte, changes and checks it\n'
}

musl=x86_64-unknown-linux-musl
if ! has_target $musl; then
    skip "$musl: no standard library"
elif ! has_command musl-gcc musl-tools; then
    skip "$musl: musl-gcc (musl-tools) is missing"
else
    CC_x86_64_unknown_linux_musl=musl-gcc try "Linux, x86-64, musl" $musl
    ldd "$target/$musl/debug/papilio" 2>&1 | grep -q 'statically linked\|not a dynamic' || {
        printf 'the program for musl is not static\n' >&2
        exit 1
    }
fi

arm=aarch64-unknown-linux-gnu
if ! has_target $arm; then
    skip "$arm: no standard library"
elif ! has_command aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu; then
    skip "$arm: aarch64-linux-gnu-gcc (gcc-aarch64-linux-gnu) is missing"
elif ! has_command qemu-aarch64-static qemu-user-static; then
    skip "$arm: qemu-aarch64-static (qemu-user-static) is missing"
else
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    try "Linux, aarch64, glibc" $arm qemu-aarch64-static -L /usr/aarch64-linux-gnu
    static=aarch64-unknown-linux-musl
    if [ "${PORTABLE_ALL:-}" != 1 ]; then
        printf 'Linux, aarch64, musl: only with PORTABLE_ALL=1\n'
    elif has_target $static; then
        # Debian has no C library of musl for aarch64; the C parts use few of its headers.
        export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc
        export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
        try "Linux, aarch64, musl" $static qemu-aarch64-static
    else
        skip "$static: no standard library"
    fi
fi

# A check compiles no C, but build scripts of dependencies want to.
printf '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" != -o ] || : > "$2"; shift; done\n' > "$work/cc"
chmod +x "$work/cc"
# check NAME TARGET ARGUMENT...
check() {
    local name=$1 triple=$2
    shift 2
    if ! has_target "$triple"; then
        skip "$triple: no standard library"
        return
    fi
    printf '== checking library, command and C library for %s\n' "$name"
    env "CC_${triple//-/_}=$work/cc" "AR_${triple//-/_}=true" \
        cargo check --locked -q --target "$triple" "$@"
}
check "macOS, aarch64" aarch64-apple-darwin -p papilio -p papilio-cli -p papilio-capi
check "FreeBSD, x86-64" x86_64-unknown-freebsd -p papilio -p papilio-cli -p papilio-capi \
    --no-default-features

[ "$skipped" = 0 ] || [ "${PAPILIO_REQUIRE_ALL:-}" != 1 ] || exit 1
