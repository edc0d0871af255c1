#!/bin/bash
# Inside a guest that `nfs.sh` starts: the kernel's NFS client mounts `papilio serve --nfs`, and the
# result is compared with the kernel's Btrfs. Prints a line for each step, and fails with the first
# that differs.
#
# PAPILIO: the command. STRESS: operations of each random run. KILLS: how often the server is
# killed. FSSTRESS, PJDFSTEST: a stress program, and a folder with pjdfstest, if there are any.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts=$PWD/scripts
work=/tmp/nfs
mkdir -p "$work" /mnt/kernel /mnt/nfs
for module in loop btrfs nfs nfsv3; do
    modprobe -d /run/modules -q "$module"
done
grep -qw nfs /proc/filesystems || { echo "the guest has no NFS client"; exit 1; }
export XDG_STATE_HOME=$work/state
image=$work/image port=20049 server=
fail() { echo "FAILED: $*"; exit 1; }

# Starts the server, and waits until it listens.
serve() {
    "$PAPILIO" serve --nfs --no-root-squash --listen "$1" "$image" > "$work/uri" 2>> "$work/log" &
    server=$!
    for _ in $(seq 300); do
        [ -s "$work/uri" ] && return
        sleep 0.1
    done
    cat "$work/log"
    fail "the server does not start"
}
stop() {
    kill -TERM "$server" && wait "$server" || { cat "$work/log"; fail "the end of the server: $?"; }
    : > "$work/uri"
}
protocol=tcp
# mount(8) has no helper for NFS here: the kernel does all itself.
mounted() {
    local extra=$1 address=$2 shown=$3 target=$4
    mount -i -t nfs "$shown" "$target" \
        -o "vers=3,proto=$protocol,mountproto=$protocol,port=$port,mountport=$port,addr=$address${extra:+,$extra}"
}
seconds() { echo "$(( ($(date +%s%N) - $1) / 1000000 )) ms"; }

# The kernel's Btrfs first.
truncate -s 2G "$work/kernel"
mkfs.btrfs -q "$work/kernel" > /dev/null || fail mkfs.btrfs
mount -o loop "$work/kernel" /mnt/kernel || fail "mount of the kernel's Btrfs"
begun=$(date +%s%N)
python3 "$scripts/nfs-steps.py" /mnt/kernel > "$work/lines.kernel" || fail "steps on the kernel's Btrfs"
echo "steps on the kernel's Btrfs: $(wc -l < "$work/lines.kernel") lines in $(seconds "$begun")"
umount /mnt/kernel
rm "$work/kernel"

"$PAPILIO" -q mkfs --size 2G "$image" || fail mkfs
serve "127.0.0.1:$port"
mounted nolock 127.0.0.1 127.0.0.1:/papilio /mnt/nfs || fail mount
begun=$(date +%s%N)
python3 "$scripts/nfs-steps.py" /mnt/nfs > "$work/lines.nfs" || fail "steps over NFS"
diff "$work/lines.kernel" "$work/lines.nfs" || fail "steps differ"
echo "steps over NFS: the same lines in $(seconds "$begun")"

size=$(stat -f -c %b:%S /mnt/nfs)
[ $(( ${size%:*} * ${size#*:} )) = $((2 << 30)) ] || fail "statfs: $size"
[ "$(stat -f -c %l /mnt/nfs)" = 255 ] || fail "statfs: name length"
echo "statfs: ok"

# A mount with locks. Without a port mapper of its own, the client refuses it; with one it looks for
# a lock manager at the server, and finds none.
mkdir -p /mnt/locks
begun=$(date +%s%N)
if mounted "" 127.0.0.1 127.0.0.1:/papilio /mnt/locks 2> "$work/refused"; then
    touch /mnt/locks/locked
    said=$(timeout 60 python3 -c '
import errno, fcntl
try:
    fcntl.lockf(open("/mnt/locks/locked", "r+b"), fcntl.LOCK_EX)
    print("locked")
except OSError as error:
    print(errno.errorcode[error.errno])')
    rm /mnt/locks/locked
    umount /mnt/locks
    [ "$said" = ENOLCK ] || fail "a lock without nolock: $said"
    echo "lock without nolock: $said after $(seconds "$begun")"
else
    grep -q 'Connection refused' "$work/refused" || { cat "$work/refused"; fail "a mount with locks"; }
    echo "mount without nolock: refused after $(seconds "$begun")"
fi

# A directory below the root, and a mount without caches beside the first.
mounted nolock,noac,nosharecache 127.0.0.1 127.0.0.1:/papilio/kinds /mnt/locks || fail "mount of a folder"
echo changed > /mnt/locks/beside
[ "$(cat /mnt/nfs/kinds/beside)" = changed ] || fail "a second mount"
rm /mnt/locks/beside
umount /mnt/locks
echo "mount of a folder: ok"

mkdir /mnt/nfs/stress "$work/model"
for seed in 1 2 3; do
    mkdir "/mnt/nfs/stress/$seed" "$work/model/$seed"
    begun=$(date +%s%N)
    said=$(python3 "$scripts/nfs-stress.py" "/mnt/nfs/stress/$seed" "$work/model/$seed" "$seed" "$STRESS" 2>&1) \
        || fail "$said"
    echo "$said, $(seconds "$begun")"
done

if [ -n "${FSSTRESS-}" ]; then
    mkdir /mnt/nfs/fsstress
    begun=$(date +%s%N)
    for seed in $(seq "${FSSTRESS_RUNS:-5}"); do
        "$FSSTRESS" -d /mnt/nfs/fsstress -n 250 -p 4 -s "$seed" > "$work/fsstress" 2>&1 \
            || { tail -n 3 "$work/fsstress"; fail "fsstress, seed $seed"; }
    done
    echo "fsstress: ${FSSTRESS_RUNS:-5} runs of 1,000 operations, $(seconds "$begun")"
fi
if [ -n "${PJDFSTEST-}" ]; then
    mkdir /mnt/nfs/pjdfstest
    begun=$(date +%s%N)
    (cd /mnt/nfs/pjdfstest && prove -r "$PJDFSTEST/tests" > "$work/pjdfstest" 2>&1)
    cp "$work/pjdfstest" "$JOB/pjdfstest.nfs"
    echo "pjdfstest over NFS: $(grep '^Files=' "$work/pjdfstest"), $(seconds "$begun")"
    rm -rf /mnt/nfs/pjdfstest
fi

# The server is killed while the client writes, and started again on the same port.
mkdir /mnt/nfs/killed "$work/killed"
begun=$(date +%s%N)
python3 "$scripts/nfs-killed.py" /mnt/nfs/killed "$work/killed" $((KILLS * 4)) > "$work/killed.said" 2>&1 &
writer=$!
for _ in $(seq "$KILLS"); do
    sleep 3
    kill -KILL "$server"
    wait "$server" 2> /dev/null
    : > "$work/uri"
    serve "127.0.0.1:$port"
done
wait "$writer" || { cat "$work/killed.said"; fail "a writer while the server is killed"; }
diff -r "$work/killed" /mnt/nfs/killed || fail "data after kills of the server"
echo "$KILLS kills: $(cat "$work/killed.said"), $(seconds "$begun")"

# A new mount shows what the server has. The old one remembers times of directories that a killed
# server had not made durable: see docs/serve.md.
umount /mnt/nfs
mounted nolock 127.0.0.1 127.0.0.1:/papilio /mnt/nfs || fail "a new mount"
python3 "$scripts/nfs-steps.py" /mnt/nfs list > "$work/tree.nfs" || fail "the tree over NFS"
umount /mnt/nfs
stop

# Over IPv6.
serve "[::1]:$port"
protocol=tcp6
mounted nolock ::1 '[::1]:/papilio' /mnt/nfs || fail "mount over IPv6"
python3 "$scripts/nfs-steps.py" /mnt/nfs list > "$work/tree.v6" || fail "the tree over IPv6"
diff "$work/tree.nfs" "$work/tree.v6" || fail "the tree over IPv6 differs"
umount /mnt/nfs
stop
echo "IPv6: the same tree"

"$PAPILIO" -q check --check-data-csum "$image" || fail "papilio check"
btrfs check --check-data-csum "$image" > "$work/check" 2>&1 || { cat "$work/check"; fail "btrfs check"; }
mount -o loop,ro "$image" /mnt/kernel || fail "mount of the image"
python3 "$scripts/nfs-steps.py" /mnt/kernel list > "$work/tree.kernel" || fail "the tree of the image"
umount /mnt/kernel
diff "$work/tree.nfs" "$work/tree.kernel" || fail "the kernel's Btrfs shows another tree"
echo "the image: clean, and the same $(wc -l < "$work/tree.kernel") paths for the kernel's Btrfs"
if grep -iE 'panic|error' "$work/log"; then fail "messages of the server"; fi
echo "all ok"
