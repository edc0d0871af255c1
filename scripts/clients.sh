#!/usr/bin/env bash
# Runs real programs on a mount of Papilio, as root: git, cargo, rsync, tar and cp, and SQLite and
# PostgreSQL while the mount's server is killed. After each kill the script mounts the file system
# again and runs the program's own check; at the end it runs `btrfs check` and compares files on a
# kernel mount.
#
# SECONDS_EACH (60) is how long pgbench runs; SQLite runs for a sixth of it. PAPILIO names the
# command. The image is in TMPDIR or /dev/shm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:/usr/sbin:/sbin

papilio=${PAPILIO:-target/release/papilio}
seconds=${SECONDS_EACH:-60}
repository=$PWD
work=$(mktemp -d "${TMPDIR:-/dev/shm}/papilio-clients.XXXXXX")
image=$work/image
point=$work/mount
server=
postgres=

say() { printf 'clients: %s\n' "$*"; }
fail() { say "FAILED: $*" >&2; exit 1; }

cleanup() {
    local status=$?
    trap - EXIT INT TERM
    [ -z "$postgres" ] || su postgres -c "$pg_bin/pg_ctl -D $point/pg -m immediate stop" >/dev/null 2>&1 || true
    umount "$point" 2>/dev/null || umount -l "$point" 2>/dev/null || true
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap cleanup EXIT INT TERM

need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || fail "$tool is missing"
    done
}

[ "$(id -u)" -eq 0 ] || fail "needs root, to mount the kernel's Btrfs and to run PostgreSQL as its own user"
need git cargo rsync tar sqlite3 btrfs mount losetup
[ -x "$papilio" ] || fail "$papilio is missing: run make build"
pg_bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)

mount_it() {
    "$papilio" mount -f -o "allow_other${1:+,$1}" --log "$work/server.log" "$image" "$point" &
    server=$!
    local tries
    for tries in $(seq 200); do
        mountpoint -q "$point" && return
        sleep 0.05
    done
    fail "cannot mount: $(tail -n 3 "$work/server.log")"
}

# kill_it: kills the server, as a power failure would: nothing more reaches the image from its
# memory.
kill_it() {
    kill -9 "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    umount -l "$point"
    server=
}

umount_it() {
    "$papilio" umount "$point"
    wait "$server" 2>/dev/null || true
    server=
}

timed() {
    local what=$1 start
    shift
    start=$(date +%s.%N)
    "$@"
    say "$what: $(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f s", b - a }')"
}

git_and_build() {
    git clone -q "$repository" "$point/project"
    git -C "$point/project" fsck --no-progress >/dev/null
    [ -z "$(git -C "$point/project" status --porcelain)" ] || fail "git status shows changes in a fresh clone"
    (cd "$point/project" && CARGO_TARGET_DIR=$point/target cargo test -q --locked -p papilio-format \
        >"$work/build.log" 2>&1) || fail "cargo test on the mount failed: $(tail -n 3 "$work/build.log")"
}

rsync_and_tar() {
    mkdir "$work/source"
    cp -a /etc "$work/source/"
    cp -a /usr/share/doc "$work/source/" 2>/dev/null || true
    ln "$work/source/etc/passwd" "$work/source/second-name"
    setfattr -n user.note -v here "$work/source/etc/hosts"
    rsync -aHAX "$work/source/" "$point/rsynced/"
    local differences
    differences=$(rsync -aHAXn --checksum --delete --itemize-changes "$work/source/" "$point/rsynced/")
    [ -z "$differences" ] || fail "rsync: the copy differs: $(head -n 3 <<<"$differences")"
    mkdir "$point/untarred"
    tar -C "$point/rsynced" -cf - . | tar -C "$point/untarred" -xf -
    diff -r --no-dereference "$point/rsynced" "$point/untarred" >/dev/null || fail "tar: the trees differ"
    say "$(find "$point/rsynced" | wc -l) files copied by rsync and tar, all equal"
}

cp_shares() {
    head -c 200M /dev/urandom >"$point/large"
    sync -f "$point"
    local before after
    before=$(df --output=used -B1 "$point" | tail -n 1)
    cp "$point/large" "$point/copy"
    sync -f "$point"
    after=$(df --output=used -B1 "$point" | tail -n 1)
    cmp "$point/large" "$point/copy" || fail "the copy differs"
    [ $((after - before)) -lt 10000000 ] || fail "cp of 200 MiB took $((after - before)) bytes: nothing was shared"
    say "cp of 200 MiB took $(((after - before) / 1024)) KiB more"
}

# sqlite MODE: inserts rows, logging each acknowledged one outside of the mount. After the kill, all
# acknowledged rows must exist.
sqlite() {
    local mode=$1 base=$point/$1.db acknowledged=$work/$1.acknowledged
    : >"$acknowledged"
    sqlite3 "$base" "PRAGMA journal_mode=$mode; PRAGMA synchronous=FULL; CREATE TABLE t (n INTEGER, text TEXT);" >/dev/null
    seq 1000000 | sed 's/.*/PRAGMA synchronous=FULL; INSERT INTO t VALUES (&, hex(randomblob(500))); SELECT &;/' >"$work/statements"
    sqlite3 "$base" <"$work/statements" >>"$acknowledged" 2>/dev/null &
    local writer=$!
    sleep $((seconds / 6 + 1))
    # Kills both at once, as a power failure would, so that the writer cannot touch the next mount.
    kill -9 "$server" "$writer"
    kill_it
    wait "$writer" 2>/dev/null || true
    mount_it
    local last rows verdict
    last=$(tail -n 1 "$acknowledged")
    verdict=$(sqlite3 "$base" "PRAGMA integrity_check")
    [ "$verdict" = ok ] || fail "sqlite, $mode: $verdict"
    rows=$(sqlite3 "$base" "SELECT count(*) FROM t")
    # Without EXTRA, the last commit of a rollback journal is durable only with the journal's
    # removal.
    [ "$mode" = wal ] || rows=$((rows + 1))
    [ "$rows" -ge "${last:-0}" ] || fail "sqlite, $mode: $last rows were acknowledged, only $rows found"
    say "sqlite, $mode: killed after $last commits, $rows rows found, integrity_check ok"
}

pgbench_killed() {
    if [ -z "$pg_bin" ]; then
        say "PostgreSQL is not installed: skipped"
        return
    fi
    local run="-h $work -p 54329" log=$work/pg.log before after
    mkdir "$point/pg"
    chown postgres "$point/pg"
    chmod 755 "$work"
    : >"$log"
    chown postgres "$log"
    mkdir -m 777 "$work/socket"
    run="-h $work/socket -p 54329"
    su postgres -c "$pg_bin/initdb -D $point/pg -A trust" >/dev/null
    postgres=yes
    su postgres -c "$pg_bin/pg_ctl -D $point/pg -l $log -w -o '-p 54329 -k $work/socket -c listen_addresses= -c fsync=on' start" >/dev/null
    su postgres -c "$pg_bin/pgbench $run -q -i -s 10 postgres" >/dev/null 2>&1
    su postgres -c "$pg_bin/pgbench $run -c 8 -j 2 -T $seconds postgres" >"$work/bench.log" 2>&1
    say "pgbench, 8 clients, $seconds s, fsync on: $(sed -n 's/^tps = \([0-9.]*\).*/\1 transactions a second/p' "$work/bench.log")"
    before=$(su postgres -c "psql $run -At -c 'SELECT count(*) FROM pgbench_history' postgres")
    (su postgres -c "$pg_bin/pgbench $run -n -c 4 -j 1 -T 600 --log --log-prefix=$work/socket/acknowledged postgres" >/dev/null 2>&1 || true) &
    local clients=$!
    sleep 10
    local postmaster
    postmaster=$(head -n 1 "$point/pg/postmaster.pid")
    # Kills all processes at once, as a power failure would.
    # shellcheck disable=SC2046
    kill -9 "$server" "$postmaster" $(pgrep -P "$postmaster") 2>/dev/null || true
    kill_it
    wait "$clients" 2>/dev/null || true
    sleep 1
    rm -f "$work/socket/".s.PGSQL.*
    mount_it
    rm -f "$point/pg/postmaster.pid"
    su postgres -c "$pg_bin/pg_ctl -D $point/pg -l $log -w -t 120 -o '-p 54329 -k $work/socket -c listen_addresses=' start" >/dev/null ||
        fail "PostgreSQL does not start after the kill: $(grep -E 'FATAL|PANIC' "$log" | tail -n 3)"
    after=$(su postgres -c "psql $run -At -c 'SELECT count(*) FROM pgbench_history' postgres")
    local acknowledged
    acknowledged=$(cat "$work/socket/acknowledged"* | wc -l)
    [ $((after - before)) -ge "$acknowledged" ] ||
        fail "PostgreSQL: $acknowledged transactions were acknowledged before the kill, only $((after - before)) found"
    local sums
    sums=$(su postgres -c "psql $run -At -c 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)' postgres")
    [ "$sums" = t ] || fail "PostgreSQL: the balances do not add up"
    su postgres -c "$pg_bin/pg_ctl -D $point/pg -m fast -w stop" >/dev/null
    postgres=
    say "PostgreSQL: killed with $acknowledged transactions acknowledged, $((after - before)) found, balances add up"
}

judge() {
    umount_it
    btrfs check "$image" >"$work/check.log" 2>&1 || fail "btrfs check: $(tail -n 3 "$work/check.log")"
    "$papilio" check --check-data-csum "$image" >"$work/check.log" 2>&1 || fail "papilio check: $(tail -n 3 "$work/check.log")"
    local loop differences
    loop=$(losetup --show -f "$image")
    if ! mount -t btrfs -o ro "$loop" "$point"; then
        losetup -d "$loop"
        fail "the kernel cannot mount the image"
    fi
    differences=$(rsync -aHAXn --checksum --delete --itemize-changes "$work/source/" "$point/rsynced/")
    cmp "$point/large" "$point/copy" || differences="the copy differs"
    umount "$point"
    losetup -d "$loop"
    [ -z "$differences" ] || fail "the files differ on the kernel mount: $(head -n 3 <<<"$differences")"
    say "btrfs check and papilio check (with data) find no errors; the kernel mount shows the same files"
}

truncate -s 6G "$image"
mkdir "$point"
"$papilio" mkfs "$image" >/dev/null
mount_it
timed "git clone, fsck, cargo test of one crate" git_and_build
timed "rsync -aHAX and tar" rsync_and_tar
timed "cp" cp_shares
timed "SQLite with a rollback journal" sqlite delete
timed "SQLite with a write-ahead log" sqlite wal
timed "PostgreSQL" pgbench_killed
judge
say "all passed"
