#!/usr/bin/env bash
# Times everyday work by stock programs on a mount of Papilio and on the kernel's Btrfs, in turn,
# each on a fresh image in memory. Prints the median seconds of both and the speed of the mount as a
# multiple of the kernel's. Where libfuse's examples are installed (libfuse3-dev), libfuse's
# pass-through server over a directory in memory takes part: it shows what FUSE alone costs. Needs
# root.
#
# TREE names the directory to work on (default: the sources that cargo has downloaded), ROUNDS (5)
# the number of rounds, OPTIONS the mount options (transport=ring must be enabled in the kernel),
# PAPILIO the command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:/usr/sbin:/sbin

papilio=$(realpath -- "${PAPILIO:-target/release/papilio}")
tree=${TREE:-${CARGO_HOME:-$HOME/.cargo}/registry/src}
rounds=${ROUNDS:-5}
options=${OPTIONS:-}

fail() { printf 'everyday: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" -eq 0 ] || fail "needs root, to mount the kernel's Btrfs"
[ -x "$papilio" ] || fail "$papilio is missing: run make build"
[ -d "$tree" ] || fail "$tree is not a directory: set TREE"
for tool in mkfs.btrfs losetup tar; do command -v "$tool" >/dev/null || fail "$tool is missing"; done

ulimit -n "$(cat /proc/sys/fs/nr_open)" 2>/dev/null || ulimit -n "$(ulimit -Hn)"
entries=$(find "$tree" | wc -l)

work=$(mktemp -d /dev/shm/papilio-everyday.XXXXXX)
sides="kernel papilio"
example=/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c
if [ -f "$example" ] && command -v cc >/dev/null && pkg-config --exists fuse3 2>/dev/null; then
    # shellcheck disable=SC2046 # several flags
    if cc -O2 -o "$work/passthrough" "$example" $(pkg-config --cflags --libs fuse3) 2>/dev/null; then
        sides="$sides passthrough"
    fi
fi
# The pass-through server holds a descriptor for each of the two copies of an entry.
if [ "$((2 * entries + 100))" -gt "$(ulimit -n)" ]; then
    printf 'everyday: %s descriptors are too few for the pass-through server: set TREE to a smaller tree\n' \
        "$(ulimit -n)" >&2
    sides="kernel papilio"
fi
case $sides in
*passthrough) ;;
*) printf 'everyday: no pass-through server to compare with (it needs libfuse3-dev)\n' >&2 ;;
esac
image=$work/image
point=$work/mount
loop=
side=
mkdir "$point"

take_down() {
    if [ "$side" = kernel ] || [ "$side" = passthrough ]; then
        umount "$point" 2>/dev/null || umount -l "$point" 2>/dev/null || true
    elif [ -n "$side" ]; then
        "$papilio" umount "$point" 2>/dev/null || umount -l "$point" 2>/dev/null || true
    fi
    [ -z "$loop" ] || losetup -d "$loop" 2>/dev/null || true
    side=
    loop=
    rm -rf "$image" "$work/below"
}
cleanup() {
    local status=$?
    trap - EXIT INT TERM
    cd /
    take_down
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap cleanup EXIT INT TERM

set_up() {
    if [ "$1" = passthrough ]; then
        mkdir "$work/below"
        side=$1
        "$work/passthrough" -o "source=$work/below,writeback,cache=always,timeout=3600" "$point"
        return
    fi
    truncate -s 4G "$image"
    mkfs.btrfs -q "$image" >/dev/null 2>&1
    if [ "$1" = kernel ]; then
        loop=$(losetup -f --show "$image")
        side=$1
        mount "$loop" "$point"
    else
        side=$1
        "$papilio" mount ${options:+-o "$options"} "$image" "$point"
    fi
}

# work_on NAME COMMAND: runs a shell command in the mount and records its time in microseconds.
work_on() {
    local what=$1 start end
    start=$(date +%s%N)
    (cd "$point" && sh -c "$2") >/dev/null
    end=$(date +%s%N)
    printf '%s\t%s\t%s\n' "$what" "$side" "$(((end - start) / 1000))" >>"$work/times"
}

forget() {
    sync -f "$point"
    echo 2 >/proc/sys/vm/drop_caches
}

tar -C "$tree" -cf "$work/tree.tar" .
printf 'everyday: %s entries, %s of data, %s rounds\n' "$entries" "$(du -sh "$tree" | cut -f 1)" "$rounds"
export ARCHIVE=$work/tree.tar

for round in $(seq "$rounds"); do
    for now in $sides; do
        set_up "$now"
        work_on "tar -x, syncfs" 'mkdir t && tar -C t -xf "$ARCHIVE" && sync -f t'
        work_on "cp -a, syncfs" 'cp -a t c && sync -f c'
        forget
        work_on "find -size, nothing cached" 'find t -size +100k'
        work_on "find -size again" 'find t -size +100k'
        work_on "grep -r" 'grep -rc xyzzyplugh t || true'
        work_on "du" 'du -s t'
        work_on "240 MB in writes of 4 KiB, syncfs" 'dd if=/dev/zero of=a bs=4k count=60000 2>/dev/null && sync -f a'
        work_on "700 MiB by dd, fsync" 'dd if=/dev/zero of=big bs=1M count=700 conv=fsync 2>/dev/null'
        work_on "rm -r, syncfs" 'rm -r c && sync -f .'
        take_down
    done
    printf 'everyday: round %s of %s\n' "$round" "$rounds" >&2
done

sort -t "$(printf '\t')" -k1,2 -k3,3n "$work/times" | awk -F '\t' '
    { key = $1 FS $2; if (key != last) { n = 0; last = key } value[key, ++n] = $3; count[key] = n; seen[$1] = 1 }
    function median(key) { return value[key, int((count[key] + 1) / 2)] / 1e6 }
    END {
        print "| | kernel, s | mount, s | x kernel | pass-through, s | x pass-through |"
        print "|---|---|---|---|---|---|"
        for (what in seen) {
            k = median(what FS "kernel"); p = median(what FS "papilio")
            f = median(what FS "passthrough")
            beside = f > 0 ? sprintf("%.2f | %.2f", f, f / p) : "- | -"
            printf "| %s | %.2f | %.2f | %.2f | %s |\n", what, k, p, k / p, beside | "sort"
        }
    }'
