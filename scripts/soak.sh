#!/usr/bin/env bash
# Works on a mount with many processes at once, kills the server again and again, and looks each time
# whether everything that was fsynced is there. At the end `papilio check`, `btrfs check` and a mount
# by the kernel judge the image. Needs root.
#
# PROCESSES (64), KILLS (10) and SECONDS_EACH (60, between two kills) set the size of the run,
# OPTIONS the mount options, PAPILIO the command. OPTIONS=transport=ring needs FUSE over io_uring,
# which root enables in /sys/module/fuse/parameters/enable_uring.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:/usr/sbin:/sbin

papilio=$(realpath -- "${PAPILIO:-target/release/papilio}")
processes=${PROCESSES:-64}
kills=${KILLS:-10}
seconds=${SECONDS_EACH:-60}
options=${OPTIONS:-}

fail() { printf 'soak: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" -eq 0 ] || fail "needs root, for the kernel's Btrfs"
[ -x "$papilio" ] || fail "$papilio is missing: run make build"
for tool in btrfs losetup cksum; do command -v "$tool" >/dev/null || fail "$tool is missing"; done

work=$(mktemp -d /dev/shm/papilio-soak.XXXXXX)
image=$work/image
point=$work/mount
server=
loop=
mkdir "$point" "$work/log" "$work/gone"

take_down() {
    if mountpoint -q "$point"; then
        umount "$point" 2>/dev/null || umount -l "$point" 2>/dev/null || true
    fi
    if [ -n "$server" ]; then wait "$server" 2>/dev/null || true; fi
    server=
    [ -z "$loop" ] || losetup -d "$loop" 2>/dev/null || true
    loop=
}
cleanup() {
    local status=$?
    trap - EXIT INT TERM
    take_down
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap cleanup EXIT INT TERM

start() {
    "$papilio" mount --foreground ${options:+-o "$options"} "$image" "$point" &
    server=$!
    for _ in $(seq 200); do
        mountpoint -q "$point" && return
        kill -0 "$server" 2>/dev/null || fail "the server did not start"
        sleep 0.05
    done
    fail "the mount did not appear"
}

# content LINE SIZE: SIZE bytes of the repeated line. `yes` dies of SIGPIPE, which is no failure.
content() { { yes "$1" || true; } | head -c "$2"; }

# worker NUMBER LIFE: works until a call fails, which the server's death causes. Each line of the log
# is a file that was fsynced with its directory: its checksum, size and path, as cksum prints them.
# A directory is noted in `gone` before it is removed.
worker() {
    local number=$1 life=$2 round=0 directory file size sum
    while :; do
        round=$((round + 1))
        directory=$point/w$number/$life.$round
        mkdir -p "$directory" 2>/dev/null || return 0
        for file in a b c d; do
            size=$((RANDOM % 9 == 0 ? RANDOM * 20 : RANDOM))
            sum=$(content "$number $life $round $file" "$size" | tee "$directory/$file.new" 2>/dev/null | cksum)
            [ "$(stat -c %s "$directory/$file.new" 2>/dev/null)" = "$size" ] || return 0
            mv "$directory/$file.new" "$directory/$file" 2>/dev/null || return 0
            sync "$directory/$file" "$directory" 2>/dev/null || return 0
            printf '%s %s\n' "$sum" "w$number/$life.$round/$file" >>"$work/log/$number"
        done
        ln "$directory/a" "$directory/link" 2>/dev/null || return 0
        cp "$directory/b" "$directory/copy" 2>/dev/null || return 0
        truncate -s 100 "$directory/copy" 2>/dev/null || return 0
        ls -lR "$point/w$number" >/dev/null 2>&1 || true
        if [ "$round" -gt 4 ]; then
            printf '%s\n' "w$number/$life.$((round - 4))/" >>"$work/gone/$number"
            rm -r "$point/w$number/$life.$((round - 4))" 2>/dev/null || return 0
        fi
    done
}

# verify DIR: compares each logged file that was not removed.
verify() {
    local lost kept
    cat "$work"/log/* >"$work/all" 2>/dev/null || true
    cat "$work"/gone/* >"$work/removed" 2>/dev/null || true
    awk 'FILENAME == ARGV[1] { gone[$0] = 1; next }
        { directory = $3; sub(/[^\/]*$/, "", directory); if (!(directory in gone)) print }' \
        "$work/removed" "$work/all" | sort >"$work/expected"
    (cd "$1" && awk '{ print $3 }' "$work/expected" | xargs -r cksum 2>/dev/null) | sort >"$work/found" || true
    comm -23 "$work/expected" "$work/found" >"$work/lost"
    lost=$(wc -l <"$work/lost")
    kept=$(($(wc -l <"$work/expected") - lost))
    awk '{ print "soak: " $3 " is not as it was fsynced" }' "$work/lost" >&2
    printf 'soak: %s files as they were fsynced, %s not\n' "$kept" "$lost"
    [ "$lost" -eq 0 ] || fail "fsynced data was lost"
    [ "$kept" -gt 0 ] || fail "no process fsynced anything"
}

"$papilio" mkfs -q --size 4G "$image" >/dev/null
for life in $(seq "$kills"); do
    start
    workers=
    for number in $(seq "$processes"); do
        worker "$number" "$life" &
        workers="$workers $!"
    done
    sleep "$seconds"
    kill -9 "$server"
    wait "$server" 2>/dev/null || true
    server=
    # shellcheck disable=SC2086 # several process ids
    wait $workers 2>/dev/null || true
    umount -l "$point"
    start
    verify "$point"
    umount "$point"
    wait "$server" || fail "the server ended with an error"
    server=
    "$papilio" check -q "$image" >/dev/null || fail "papilio check finds errors after kill $life"
    printf 'soak: kill %s of %s survived\n' "$life" "$kills"
done
"$papilio" check --check-data-csum "$image" >/dev/null || fail "papilio check finds errors"
btrfs check "$image" >/dev/null 2>&1 || fail "btrfs check finds errors"
loop=$(losetup -f --show "$image")
mount -o ro "$loop" "$point"
verify "$point"
umount "$point"
printf 'soak: %s processes, %s kills: passed\n' "$processes" "$kills"
