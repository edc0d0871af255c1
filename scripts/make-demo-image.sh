#!/usr/bin/env bash
# Makes the file system that the demo uses on machines where it cannot make its own:
# tests/fixtures/demo.img.zst and demo.manifest.zst. Needs root, loop devices and the kernel's
# Btrfs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/demo-lib.sh
. scripts/demo-lib.sh

missing=$(kernel_btrfs_missing)
[ -z "$missing" ] || { echo "make-demo-image: $missing" >&2; exit 1; }
work=$(mktemp -d "${TMPDIR:-/tmp}/papilio-image.XXXXXX")
trap cleanup_demo EXIT
mkdir "$work/mnt" tests/fixtures -p
truncate -s 128M "$work/demo.img"
mkfs.btrfs -q -L papilio-demo "$work/demo.img" >/dev/null
mount -o loop,noatime "$work/demo.img" "$work/mnt"
mounted=$work/mnt
fill_tree "$mounted"
manifest "$mounted" | zstd -q -f -19 -o tests/fixtures/demo.manifest.zst
# Discards freed blocks, so that their stale content is not archived.
fstrim "$mounted" || true
umount "$mounted"
mounted=
btrfs check --readonly "$work/demo.img" >/dev/null 2>&1
zstd -q -f -19 "$work/demo.img" -o tests/fixtures/demo.img.zst
ls -l tests/fixtures/demo.img.zst tests/fixtures/demo.manifest.zst
