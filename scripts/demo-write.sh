#!/usr/bin/env bash
# The writing half of the demo: builds an image from a real directory without root, changes it, and proves
# each state with papilio's own check and, where root and the tools are there, with btrfs check and a
# kernel mount. DEMO_SOURCE names another directory than this project's sources. PAPILIO names a command that
# is already built. Everything is made in a temporary folder and removed, on failure too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/demo-lib.sh
. scripts/demo-lib.sh
PATH=$PATH:/usr/sbin:/sbin

start_demo
image=$work/new.img
source=$work/source
missing=$(kernel_btrfs_missing)

# kernel_view FILE: writes what the kernel shows of the image into FILE.
kernel_view() {
    btrfs check --readonly --check-data-csum "$image" >"$work/check" 2>&1 || { cat "$work/check" >&2; exit 1; }
    mkdir -p "$work/mnt"
    mount -o loop,ro,noatime "$image" "$work/mnt"
    mounted=$work/mnt
    manifest "$mounted" >"$1"
    umount "$mounted"
    mounted=
}

# prove EXPECTED_DIR: the image is sound and holds what the directory holds.
prove() {
    show check --check-data-csum "$image"
    if [ -n "$missing" ]; then
        # Without the kernel, papilio copies it out again. Owners are those of who copies.
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
        echo "demo: FAILED: the image does not hold what it should" >&2
        exit 1
    fi
    if [ -n "$missing" ]; then
        echo "equal after copying it out (no kernel mount: $missing)"
    else
        echo "btrfs check finds nothing, and the kernel shows every file as it should be"
    fi
}

say "a tree to put in: ${DEMO_SOURCE:-the sources of this project}"
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

say "papilio builds an image of it"
start=$(date +%s%N)
show mkfs --rootdir "$source" --label demo --compress zstd --shrink "$image"
echo "in $((($(date +%s%N) - start) / 1000000)) ms; the image takes $(du -h "$image" | cut -f 1)"
prove "$source"

say "papilio takes a snapshot and changes what is there; the host's tree is changed by the host's own commands"
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
# Times of directories and of the link are those of the change: made equal on both sides.
for path in / /new /big /new/link; do
    "$papilio" touch --no-dereference -d @1700000000 "$image:$path"
    touch -h -d @1700000000 "$source$path"
done
prove "$source"
