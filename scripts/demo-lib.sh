# Functions shared by the demo scripts and make-demo-image.sh; sourced by bash.

# kernel_btrfs_missing: prints the first missing prerequisite for making and mounting a Btrfs with
# the kernel (root, tools, kernel support, a loop device), or nothing.
kernel_btrfs_missing() {
    [ "$(id -u)" -eq 0 ] || { echo "not root"; return; }
    local tool
    for tool in mkfs.btrfs btrfs losetup mount setfattr getfattr setfacl; do
        command -v "$tool" >/dev/null || { echo "no $tool"; return; }
    done
    grep -qw btrfs /proc/filesystems || modprobe btrfs 2>/dev/null || true
    grep -qw btrfs /proc/filesystems || { echo "the kernel has no Btrfs"; return; }
    losetup -f >/dev/null 2>&1 || { echo "no loop device"; return; }
}

# cleanup_demo: unmounts $mounted and removes $work, then exits with the script's status.
cleanup_demo() {
    local status=$?
    trap - EXIT
    if [ -n "${mounted:-}" ]; then
        umount "$mounted" 2>/dev/null || umount -l "$mounted" || true
    fi
    if [ -n "${work:-}" ]; then
        rm -rf --one-file-system "$work"
    fi
    exit "$status"
}

# text LINES SEED: prints LINES lines of text, which depend only on SEED.
text() {
    awk -v lines="$1" -v seed="$2" 'BEGIN {
        srand(seed)
        for (line = 1; line <= lines; line++) print line, "the quick brown fox", int(rand() * 100000), seed
    }'
}

# fill_tree DIR: writes the demo tree into the Btrfs mounted at DIR.
fill_tree() {
    local top=$1 number algorithm
    btrfs -q subvolume create "$top/home"
    mkdir -p "$top/home/texts" "$top/home/a/b/c/d/e/f/g" "$top/compressed" "$top/odd"
    for number in $(seq 1 300); do
        text $((number % 40)) "$number" >"$top/home/texts/file-$number.txt"
    done
    for algorithm in zlib lzo zstd; do
        mount -o remount,compress-force="$algorithm" "$top"
        for number in 1 2 3; do
            text $((number * 2500)) "$number" >"$top/compressed/$algorithm-$number.txt"
        done
        sync -f "$top"
    done
    mount -o remount,compress=no "$top"
    text 2000 7 >"$top/home/a/b/c/d/e/f/g/deep"
    head -c 50000 /dev/urandom >"$top/odd/random.bin"
    fill_odd "$top"
    chown -R 1000:100 "$top/home/texts"
    chmod 2750 "$top/home/texts"
    chmod 600 "$top/home/texts/file-9.txt"
    touch -d '2001-02-03 04:05:06.123456789 UTC' "$top/home/texts/file-10.txt"
    sync -f "$top"

    btrfs -q subvolume snapshot -r "$top/home" "$top/home-before"
    rm "$top/home/texts/file-1.txt"
    echo "changed after the snapshot" >>"$top/home/texts/file-2.txt"
    btrfs -q subvolume snapshot "$top/home" "$top/home-branch"
    echo "only in the branch" >"$top/home-branch/branch.txt"
    sync -f "$top"
}

# fill_odd DIR: makes links, holes, attributes and other special cases in DIR/odd.
fill_odd() {
    local top=$1 long
    printf -v long '%0255d' 0
    ln -s ../home/texts/file-3.txt "$top/odd/symlink"
    ln -s "/nowhere/$long" "$top/odd/dangling"
    ln "$top/odd/random.bin" "$top/odd/hard link"
    : >"$top/odd/empty"
    : >"$top/odd/$long"
    : >"$top/odd/Größe 蝶"
    mkfifo "$top/odd/fifo"
    truncate -s 64M "$top/odd/sparse"
    printf 'island' | dd of="$top/odd/sparse" bs=1 seek=33554432 conv=notrunc status=none
    fallocate -l 1M "$top/odd/preallocated"
    printf 'start' | dd of="$top/odd/preallocated" conv=notrunc status=none
    cp --reflink=always "$top/odd/random.bin" "$top/odd/reflink.bin"
    : >"$top/odd/nocow"
    chattr +C "$top/odd/nocow"
    text 500 3 >"$top/odd/nocow"
    setfattr -n user.colour -v blue "$top/odd/empty"
    setfattr -n user.binary -v 0x00ff10 "$top/odd"
    setfacl -m u:1234:r,g:77:rw "$top/odd/random.bin"
}

# manifest DIR: prints a line for each entry below DIR (type, mode, owner, time, size, links, name,
# target), then the xattrs, then the SHA-256 of each file. The size and link count of directories
# differ between file systems and are left out.
manifest() (
    cd "$1"
    export LC_ALL=C
    find . -type d -printf '%y %m %U:%G %T@ - - %p\n' -o -printf '%y %m %U:%G %T@ %s %n %p -> %l\n' | sort -k 7
    find . ! -type l -print0 | sort -z | xargs -0 getfattr -h -d -e hex -m '^(user\.|system\.posix_acl)' --
    find . -type f -print0 | sort -z | xargs -0 sha256sum --
)

say() { printf '\n== %s\n' "$*"; }

# show ARGUMENT...: prints a papilio command as a user would type it, then runs it. Uses $papilio,
# $work.
show() {
    printf '\n$ papilio %s\n' "${*//$work/.}"
    "$papilio" "$@"
}

# built PACKAGE FILE: builds a package, and prints where FILE of it is. PAPILIO_PROFILE is the
# profile of cargo, release by default.
built() {
    local profile=${PAPILIO_PROFILE:-release}
    cargo build --quiet --profile "$profile" --locked -p "$1"
    printf '%s/%s/%s\n' "${CARGO_TARGET_DIR:-$PWD/target}" "${profile/#dev/debug}" "$2"
}

# start_demo: sets $papilio to $PAPILIO or a fresh build, and $work to a directory that is removed
# on exit.
start_demo() {
    if [ -n "${PAPILIO:-}" ]; then
        papilio=$PAPILIO
    else
        say "building papilio"
        papilio=$(built papilio-cli papilio)
    fi
    mounted=
    work=$(mktemp -d "${TMPDIR:-/tmp}/papilio-demo.XXXXXX")
    trap cleanup_demo EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}
