#!/usr/bin/env bash
# The writing part of the demo: builds an image from a directory without root, changes it, and
# verifies each state with papilio's check and, given root and the tools, with btrfs check and a
# kernel mount. DEMO_SOURCE names the directory; the default is this project's sources. PAPILIO
# names a command to use instead of building one. All files are made in a temporary directory, which
# is removed on failure too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/demo-lib.sh
. scripts/demo-lib.sh
PATH=$PATH:/usr/sbin:/sbin

start_demo
image=$work/new.img
source=$work/source
missing=$(kernel_btrfs_missing)

# kernel_view FILE: checks the image with btrfs check and writes the manifest of a kernel mount to
# FILE.
kernel_view() {
    btrfs check --readonly --check-data-csum "$image" >"$work/check" 2>&1 || { cat "$work/check" >&2; exit 1; }
    mkdir -p "$work/mnt"
    mount -o loop,ro,noatime "$image" "$work/mnt"
    mounted=$work/mnt
    manifest "$mounted" >"$1"
    umount "$mounted"
    mounted=
}

# prove EXPECTED_DIR: verifies that the image is consistent and holds the same tree as EXPECTED_DIR.
prove() {
    show check --check-data-csum "$image"
    if [ -n "$missing" ]; then
        # Without the kernel, papilio copies the tree out again. The copying user owns the copies.
        rm -rf "$work/out"
        mkdir "$work/out"
        "$papilio" cp -a --no-progress "$image:/." "$work/out"
        manifest "$work/out" >"$work/found"
    else
        kernel_view "$work/found"
    fi
    manifest "$1" >"$work/expected"
    if ! diff "$work/expected" "$work/found" >"$work/difference"; then
        head -n 40 "$work/difference" >&2
        echo "demo: FAILED: the image does not hold the expected tree" >&2
        exit 1
    fi
    if [ -n "$missing" ]; then
        echo "equal after copying it out (no kernel mount: $missing)"
    else
        echo "btrfs check finds no errors, and the kernel shows every file as expected"
    fi
}

say "preparing the source tree: ${DEMO_SOURCE:-the sources of this project}"
mkdir "$source"
if [ -n "${DEMO_SOURCE:-}" ]; then
    cp -a "$DEMO_SOURCE/." "$source"
else
    cp -a crates docs scripts README.md "$source"
fi
mkdir -p "$source/big"
text 200000 11 >"$source/big/text"
head -c 20000000 /dev/urandom >"$source/big/random"
truncate -s 64M "$source/big/sparse"
echo "$(find "$source" | wc -l) entries, $(du -sh "$source" | cut -f 1)"

say "papilio builds an image from it"
start=$(date +%s%N)
show mkfs --rootdir "$source" --label demo --compress zstd --shrink "$image"
echo "in $((($(date +%s%N) - start) / 1000000)) ms; the image takes $(du -h "$image" | cut -f 1)"
prove "$source"

say "papilio takes a snapshot and changes the image; ordinary commands change the source tree in the same way"
show filesystem resize +64M "$image"
show subvolume snapshot -r "$image" "$image:/before"
cp -a "$source" "$work/before"
show mkdir "$image:/new"
show cp -a README.md "$image:/new/readme"
show cp --reflink=always -a "$image:/big/random" "$image:/new/shared"
show rm "$image:/big/text"
show mv "$image:/big/sparse" "$image:/new/moved"
show ln -s ../big/random "$image:/new/link"
show chmod 0600 "$image:/new/readme"
show setfattr --name user.colour --value blue "$image:/new/shared"
(
    cp -a "$work/before" "$source/before"
    mkdir "$source/new"
    cp -a README.md "$source/new/readme"
    cp -a "$source/big/random" "$source/new/shared"
    rm "$source/big/text"
    mv "$source/big/sparse" "$source/new/moved"
    ln -s ../big/random "$source/new/link"
    chmod 0600 "$source/new/readme"
    setfattr -n user.colour -v blue "$source/new/shared"
)
# The changes set the times of directories and of the link: make them equal on both sides.
for path in / /new /big /new/link; do
    "$papilio" touch --no-dereference -d @1700000000 "$image:$path"
    touch -h -d @1700000000 "$source$path"
done
prove "$source"
