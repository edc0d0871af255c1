#!/usr/bin/env bash
# The mounting part of the demo: makes an image, mounts it through FUSE, works on it with ordinary programs and
# with papilio's commands on the mounted path, ends the mount, and proves what it left; then one fio job by the
# kernel and by Papilio, side by side. What the machine lacks (FUSE, root, fio) is left out and named.
# PAPILIO names a command that is already built. Everything is made in a temporary folder and removed, on failure too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/demo-lib.sh
. scripts/demo-lib.sh
PATH=$PATH:/usr/sbin:/sbin

start_demo
image=$work/mounted.img
point=$work/mnt
missing=$(kernel_btrfs_missing)

fuse_missing() {
    if ! { : <>/dev/fuse; } 2>/dev/null; then
        echo "no /dev/fuse that may be opened"
    elif [ "$(id -u)" -ne 0 ] && ! command -v fusermount3 >/dev/null; then
        echo "no fusermount3"
    fi
}

without=$(fuse_missing)
if [ -n "$without" ]; then
    say "mounting is left out: $without"
else
    say "papilio makes an image and mounts it"
    show mkfs --size 1G --label mounted "$image"
    mkdir "$point"
    show mount -o compress=zstd "$image" "$point"
    mounted=$point
    say "ordinary programs and papilio's commands work on it"
    show subvolume create "$point/work"
    cp -a crates docs README.md "$point/work/"
    tar -C "$point/work" -cf "$point/archive.tar" docs
    cp "$point/archive.tar" "$point/shares-its-extents.tar"
    show subvolume snapshot -r "$point/work" "$point/before"
    rm -r "$point/work/docs"
    show subvolume list "$point"
    show umount "$point"
    mounted=
    show check --check-data-csum "$image"
    if [ -n "$missing" ]; then
        echo "not shown to the kernel: $missing"
    else
        btrfs check --readonly "$image" >"$work/check" 2>&1 || { cat "$work/check" >&2; exit 1; }
        mount -o loop,ro,noatime "$image" "$point"
        mounted=$point
        diff -r docs "$point/before/docs"
        diff -r crates "$point/work/crates"
        cmp "$point/archive.tar" "$point/shares-its-extents.tar"
        [ ! -e "$point/work/docs" ]
        umount "$point"
        mounted=
        echo "btrfs check finds nothing, and the kernel shows what the mount showed"
    fi
fi

if [ -n "$missing" ] || ! command -v fio >/dev/null; then
    say "a job of fio is left out: ${missing:-no fio}"
else
    say "one job of fio by the kernel's Btrfs and by Papilio, in turn (all of them: make bench)"
    cargo build -q --release --locked -p papilio-fio
    show bench --jobs direct-read-1m --sides kernel,papilio --rounds 1 --runtime 1 --scale 0.004 \
        --engine target/release/libpapilio_fio.so
fi
