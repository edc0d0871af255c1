#!/usr/bin/env bash
# Runs btrbk, a stock backup program, unchanged on mounts of Papilio, as root. The names of
# btrfs-progs lead to Papilio first in PATH. Makes a full and an incremental backup from one mount to
# another, restores the last one with `btrfs send | btrfs receive`, and compares each with its source.
#
# btrbk accepts only mounts that the table of mounts calls Btrfs, and reads it with `cat`. So a `cat`
# first in PATH shows Papilio's mounts as such; it is the only thing besides the drop-in names.
#
# PAPILIO names the command. The images are in TMPDIR or /dev/shm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:/usr/sbin:/sbin

papilio=$(realpath "${PAPILIO:-target/release/papilio}")
work=$(mktemp -d "${TMPDIR:-/dev/shm}/papilio-backup.XXXXXX")

say() { printf 'backup: %s\n' "$*"; }
fail() { say "FAILED: $*" >&2; exit 1; }

cleanup() {
    local status=$?
    trap - EXIT INT TERM
    for name in source target; do
        mountpoint -q "$work/$name" && { "$papilio" umount "$work/$name" || umount -l "$work/$name"; }
    done
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap cleanup EXIT INT TERM

[ "$(id -u)" -eq 0 ] || fail "needs root"
command -v btrbk >/dev/null || fail "btrbk is missing: apt-get install btrbk"
[ -x "$papilio" ] || fail "$papilio is missing: run make build"

mkdir "$work/names"
for name in btrfs mkfs.btrfs; do ln -s "$papilio" "$work/names/$name"; done
cat >"$work/names/cat" <<'END'
#!/bin/sh
if [ "$*" = /proc/self/mountinfo ]; then
    exec sed 's| - fuse.papilio \([^ ]*\) | - btrfs \1 subvolid=5,subvol=/,|' /proc/self/mountinfo
fi
exec /bin/cat "$@"
END
chmod +x "$work/names/cat"
PATH=$work/names:$PATH
for name in source target; do
    truncate -s 1G "$work/$name.img"
    mkdir "$work/$name"
    mkfs.btrfs "$work/$name.img" >/dev/null
    "$papilio" mount "$work/$name.img" "$work/$name"
done
mkdir "$work/source/snapshots" "$work/target/backups"
btrfs subvolume create "$work/source/home" >/dev/null
cp -a /etc "$work/source/home/"
head -c 20M /dev/urandom >"$work/source/home/large"
cat >"$work/btrbk.conf" <<END
timestamp_format long-iso
snapshot_preserve_min all
target_preserve_min all
volume $work/source
  snapshot_dir snapshots
  subvolume home
    target send-receive $work/target/backups
END

run() {
    btrbk -c "$work/btrbk.conf" run >"$work/log" 2>&1 || fail "btrbk: $(cat "$work/log")"
}

# same LEFT RIGHT: compares names, content, owners, modes, times, links and attributes.
same() {
    local differences
    differences=$(rsync -aHAXn --checksum --delete --itemize-changes "$1/" "$2/")
    [ -z "$differences" ] || fail "$2 differs from $1: $(head -n 3 <<<"$differences")"
}

last() { find "$1" -mindepth 1 -maxdepth 1 | sort | tail -n 1; }

run
first=$(last "$work/target/backups")
grep -q '^\*\*\* ' "$work/log" || fail "no full backup: $(cat "$work/log")"
same "$work/source/home" "$first"
say "full backup: $(basename "$first")"

# Names have seconds.
sleep 1.1
mv "$work/source/home/large" "$work/source/home/moved"
printf 'changed' | dd of="$work/source/home/moved" bs=1 seek=100000 conv=notrunc status=none
rm -r "$work/source/home/etc/default"
cp --reflink=auto "$work/source/home/moved" "$work/source/home/copy"
setfattr -n user.note -v here "$work/source/home/etc/hosts"
run
second=$(last "$work/target/backups")
[ "$second" != "$first" ] || fail "no second backup: $(cat "$work/log")"
grep -q '^>>> ' "$work/log" || fail "the second backup is not incremental: $(cat "$work/log")"
same "$work/source/home" "$second"
parent=$(btrfs subvolume show "$second" | awk '/Parent UUID/ { print $3 }')
[ "$parent" = "$(btrfs subvolume show "$first" | awk '$1 == "UUID:" { print $2 }')" ] ||
    fail "the second backup is not a snapshot of the first"
say "incremental backup: $(basename "$second")"

mkdir "$work/source/restored"
btrfs send -q "$second" | btrfs receive -q "$work/source/restored"
same "$second" "$work/source/restored/$(basename "$second")"
say "restored and compared"

for name in source target; do
    "$papilio" umount "$work/$name"
    "$papilio" check --check-data-csum "$work/$name.img" >/dev/null || fail "check of $name"
done
say "all passed"
