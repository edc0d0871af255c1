#!/bin/bash
# Runs in a guest: mounts the virtiofs device with the tag `judge`, and compares it with the guest's
# Btrfs. Both run the steps of judge-virtiofs.py and must print the same lines, also after a new
# mount.
#
# $1: the project's folder. $2: a folder of the host, for the lines.
set -eu
steps=$1/scripts/judge-virtiofs.py
lines=$2
modprobe -d /run/modules virtiofs
mkdir -p /mnt/ours /mnt/kernel
truncate -s 600M /tmp/kernel.img
mkfs.btrfs -q /tmp/kernel.img
mount -o loop /tmp/kernel.img /mnt/kernel
mount -t virtiofs judge /mnt/ours
python3 -u "$steps" /mnt/kernel > "$lines/kernel"
python3 -u "$steps" /mnt/ours > "$lines/ours"
umount /mnt/ours
mount -t virtiofs judge /mnt/ours
python3 -u "$steps" /mnt/ours list > "$lines/again"
umount /mnt/ours /mnt/kernel
grep '^tree' "$lines/kernel" > "$lines/tree"
wc -l < "$lines/kernel"
diff "$lines/kernel" "$lines/ours"
diff "$lines/tree" "$lines/again"
