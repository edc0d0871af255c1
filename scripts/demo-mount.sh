#!/usr/bin/env bash
# The mounting part of the demo: makes an image, mounts it through FUSE, changes it with ordinary
# programs and with papilio's commands on the mounted path, unmounts it and verifies the result.
# Then it runs a fio job on the kernel's Btrfs and on Papilio. Steps that need FUSE, root or fio are
# skipped without them. PAPILIO names a command to use instead of building one. All files are made
# in a temporary directory, which is removed on failure too.
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
        echo "cannot open /dev/fuse"
    elif [ "$(id -u)" -ne 0 ] && ! command -v fusermount3 >/dev/null; then
        echo "no fusermount3"
    fi
}

without=$(fuse_missing)
if [ -n "$without" ]; then
    say "mounting is skipped: $without"
else
    say "papilio makes an image and mounts it"
    show mkfs --size 1G --label mounted "$image"
    mkdir "$point"
    show mount -o compress=zstd "$image" "$point"
    mounted=$point
    say "ordinary programs and papilio's commands change it"
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
        echo "not mounted with the kernel: $missing"
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
        echo "btrfs check finds no errors, and the kernel shows the same files as the mount"
    fi
fi

if [ -n "$missing" ] || ! command -v fio >/dev/null; then
    say "the fio job is skipped: ${missing:-no fio}"
else
    say "one fio job on the kernel's Btrfs and on Papilio, in turn (for all jobs: make bench)"
    engine=$(built papilio-fio libpapilio_fio.so)
    # The tests build it beside the command.
    PAPILIO_BENCH_PROGRAM=$(dirname "$papilio")/papilio-bench
    [ -x "$PAPILIO_BENCH_PROGRAM" ] || PAPILIO_BENCH_PROGRAM=$(built papilio-bench papilio-bench)
    export PAPILIO_BENCH_PROGRAM
    show bench --jobs direct-read-1m --sides kernel,papilio --rounds 1 --runtime 1 --scale 0.004 \
        --engine "$engine"
fi
