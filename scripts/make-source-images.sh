#!/usr/bin/env bash
# Makes the ext and XFS file systems that the fuzz target convert_source changes:
# tests/fixtures/source-*.img.zst. Needs root, loop devices, mke2fs and mkfs.xfs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'umount -q "$work/mnt" || true; rm -rf "$work"' EXIT
mkdir "$work/mnt"
# Without these, mkfs.xfs makes no file system of less than 300 MiB.
export TEST_DIR=1 TEST_DEV=1 QA_CHECK_FS=1

# Files of every kind, with little data: images are to be small.
fill() {
    local to=$1 at
    mkdir "$to/folder" "$to/many" "$to/deep"
    for at in $(seq 40); do head -c $((at * 9)) /dev/zero | tr '\0' x >"$to/folder/file $at"; done
    for at in $(seq 200); do : >"$to/many/the entry with the number $at"; done
    ln -s target "$to/folder/short"
    ln -s "$(printf 'long%.0s' $(seq 60))" "$to/folder/long"
    ln "$to/folder/file 9" "$to/linked"
    mknod "$to/folder/device" c 5 1
    mkfifo "$to/folder/fifo"
    setfattr -n user.short -v value "$to/folder/file 1"
    setfattr -n user.long -v "$(printf 'v%.0s' $(seq 1500))" "$to/folder/file 2"
    for at in $(seq 0 2 700); do
        head -c 4096 /dev/zero | tr '\0' x |
            dd of="$to/deep/holes" bs=4096 seek="$at" conv=notrunc status=none
    done
    truncate -s 3M "$to/deep/holes"
    sync -f "$to"
}

keep() {
    zstd -q -f -19 --long=27 "$work/$1" -o "tests/fixtures/source-$1.img.zst"
}

ext() {
    truncate -s 64M "$work/$1"
    mke2fs -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 "${@:2}" "$work/$1"
    mount -o loop "$work/$1" "$work/mnt"
    fill "$work/mnt"
}

ext ext4 -t ext4 -N 512 -J size=4
umount "$work/mnt"
keep ext4
ext plain -t ext4 -N 512 -J size=4 -I 512 -O ^metadata_csum,^uninit_bg,inline_data
umount "$work/mnt"
keep plain
ext ext2 -t ext2 -N 512
umount "$work/mnt"
keep ext2
# A copy of a device that is mounted: its journal needs a replay.
ext journal -t ext4 -N 512 -J size=4 -O ^metadata_csum
rm -r "$work/mnt/many"
mkdir "$work/mnt/late"
sync -f "$work/mnt"
cp "$work/journal" "$work/copy"
umount "$work/mnt"
mv "$work/copy" "$work/journal"
keep journal

truncate -s 64M "$work/xfs"
mkfs.xfs -q -l size=14m -d agcount=2 -m rmapbt=1,reflink=1 "$work/xfs"
mount -o loop "$work/xfs" "$work/mnt"
fill "$work/mnt"
cp --reflink=always "$work/mnt/deep/holes" "$work/mnt/deep/shared"
umount "$work/mnt"
keep xfs

# Newer kernels do not mount version 4, so mkfs.xfs fills it.
{
    printf 'boot\n0 0\nd--755 0 0\nfolder d--755 0 0\n'
    for at in $(seq 200); do echo "entry-$at ---644 0 0 /dev/null"; done
    printf 'link l--777 0 0 target\n$\n'
    echo "fixture ---644 0 0 scripts/make-source-images.sh"
    echo '$'
} >"$work/prototype"
truncate -s 64M "$work/xfs4"
mkfs.xfs -q -m crc=0 -l size=14m -d agcount=2 -p "$work/prototype" "$work/xfs4"
keep xfs4
ls -l tests/fixtures/source-*
