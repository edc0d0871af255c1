#!/usr/bin/env bash
# The demo: copies all files out of a Btrfs made by the kernel, without mounting it, and checks that
# the copy equals what a kernel mount showed.
#
# With root, loop devices and the kernel's Btrfs, the script makes that file system. Otherwise, or
# with PAPILIO_DEMO=carried, it uses the image in tests/fixtures. PAPILIO names a command to use
# instead of building one. All files are made in a temporary directory, which is removed on failure
# too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/demo-lib.sh
. scripts/demo-lib.sh
PATH=$PATH:/usr/sbin:/sbin

start_demo
image=$work/demo.img

if [ "${PAPILIO_DEMO:-}" = carried ]; then
    missing="requested by PAPILIO_DEMO"
else
    missing=$(kernel_btrfs_missing)
fi
if [ -z "$missing" ]; then
    say "the kernel makes a Btrfs: snapshots, three compressions, holes, links, xattrs, ACLs"
    mkdir "$work/mnt"
    truncate -s 512M "$image"
    mkfs.btrfs -q -L papilio-demo "$image" >/dev/null
    mount -o loop,noatime "$image" "$work/mnt"
    mounted=$work/mnt
    fill_tree "$mounted"
    manifest "$mounted" >"$work/expected"
    umount "$mounted"
    mounted=
else
    if [ "${PAPILIO_REQUIRE_ALL:-0}" = 1 ] && [ "${PAPILIO_DEMO:-}" != carried ]; then
        echo "demo: cannot make a file system with the kernel ($missing), and PAPILIO_REQUIRE_ALL=1 forbids the fixture" >&2
        exit 1
    fi
    say "using the file system in tests/fixtures ($missing)"
    zstd -q -d --sparse tests/fixtures/demo.img.zst -o "$image"
    zstd -q -d tests/fixtures/demo.manifest.zst -o "$work/expected"
fi

say "papilio reads it without mounting it"
show ls -l "$image:/"
show stat "$image:/home/texts/file-10.txt"
show subvolume list "$image"
show filesystem df "$image"
show check --read-only "$image"

say "papilio copies everything out"
mkdir "$work/out"
start=$(date +%s%N)
show cp -a "$image:/." "$work/out"
milliseconds=$((($(date +%s%N) - start) / 1000000))

say "comparing the copy with what the kernel showed"
manifest "$work/out" >"$work/found"
# Attributes that the user or the directory cannot store are named and not compared.
compare=(cat)
same="type, mode, owner, time, size, link, xattr and SHA-256"
if [ "$(id -u)" -ne 0 ]; then
    # cp drops set-id bits where it cannot set the owner.
    echo "not root: owners, set-id bits and ACLs are not compared"
    same="type, mode, time, size, link, xattr and SHA-256"
    compare=(sed -E '/^system\.posix_acl/d; s/^([a-z]) [0-7]*([0-7]{3}) [0-9]+:[0-9]+ /\1 \2 - /')
fi
: >"$work/probe"
if ! setfattr -n user.probe -v 1 "$work/probe" 2>/dev/null; then
    echo "no xattrs in $work: they are not compared"
    same=${same/ xattr and/ and}
    grep -vE '^(user\.|system\.|# file: |$)' "$work/expected" >"$work/e" && mv "$work/e" "$work/expected"
    grep -vE '^(user\.|system\.|# file: |$)' "$work/found" >"$work/f" && mv "$work/f" "$work/found"
fi
if ! diff <("${compare[@]}" "$work/expected") <("${compare[@]}" "$work/found") >"$work/difference"; then
    head -n 40 "$work/difference" >&2
    echo "demo: FAILED: the copy differs from what the kernel showed (diff of $(wc -l <"$work/difference") lines)" >&2
    exit 1
fi
read -r blocks size < <(stat -c '%b %s' "$work/out/odd/sparse")
if [ $((blocks * 512)) -ge $((size / 2)) ]; then
    echo "demo: FAILED: the hole in odd/sparse was filled: $((blocks * 512)) of $size bytes are allocated" >&2
    exit 1
fi
files=$(find "$work/out" -type f | wc -l)
bytes=$(du -sb "$work/out" | cut -f 1)
echo "equal: $files files, $((bytes >> 20)) MiB (holes counted), copied in $milliseconds ms:" \
    "every $same"
