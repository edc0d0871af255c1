# Prints answers about a file system, with the kernel's Btrfs and with Papilio's mount alike.
# as_btrfs.sh DIRECTORY: an empty file system. `btrfs` is first in PATH.
set -eu
cd "$1"
step() { printf '%s: ' "$*"; }
# The device of the first path, and whether the others have the same one.
devices() {
    local first
    first=$(stat -c %d "$1")
    for path in "$@"; do
        [ "$(stat -c %d "$path")" = "$first" ] && echo "$path same" || echo "$path other"
    done
}
quietly() { "$@" >/dev/null; }
quietly btrfs subvolume create sv
mkdir dir sv/deep
head -c 300000 /dev/urandom >sv/deep/file
echo text >file
ln file dir/linked
quietly btrfs subvolume create sv/deep/inner
echo inner >sv/deep/inner/file
sync
quietly btrfs subvolume snapshot -r sv snap
quietly btrfs subvolume snapshot sv dir/second
step statfs; stat -f -c %T . sv dir/second/deep | xargs
step findmnt; findmnt -n -o FSTYPE --target sv
step mountinfo; grep -F " $1 " /proc/self/mountinfo | grep -o ' - [a-z.]* '
step mounts; awk -v at="$1" '$2 == at { print $3 }' /proc/mounts
step mtab; grep -c " $1 btrfs " /etc/mtab
step df; df --output=fstype . | tail -n 1
for path in . file dir sv sv/deep sv/deep/file sv/deep/inner snap snap/deep/file dir/second; do
    step inode "$path"; stat -c %i "$path"
done
step devices; devices . file sv sv/deep sv/deep/file sv/deep/inner snap dir/second snap/deep | xargs
step links; stat -c %h file
step xdev; find . -xdev | sort | xargs
step all; find . -type f | sort | xargs
step ls; (cd sv/deep && ls -i) | xargs
step du; du -x -d 0 --inodes . | cut -f 1
step tar; tar --one-file-system -cf - . | tar -tf - | sort | xargs
step reflink; cp --reflink=always sv/deep/file copy && cmp copy sv/deep/file && echo equal
step reflink from a snapshot; cp --reflink=always snap/deep/file back && cmp back snap/deep/file && echo equal
step reflink from elsewhere; cp --reflink=always /etc/passwd elsewhere 2>/dev/null || echo refused
step extents; filefrag sv/deep/file | sed 's/.*: //'
step shared; filefrag -v copy | grep -c shared
step inode-resolve; btrfs inspect-internal inode-resolve "$(stat -c %i sv/deep/file)" sv | sed "s|$1||"
step rootid; btrfs inspect-internal rootid sv/deep | sed 's/[0-9]/N/g'
step moved; mv sv/deep/file sv/deep/moved; stat -c %i sv/deep/moved
step python; python3 -c 'import os
print([(e.name, e.inode() == e.stat().st_ino, e.is_dir()) for e in sorted(os.scandir("sv/deep"), key=str)])'
