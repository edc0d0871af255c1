#!/usr/bin/env bash
# Runs concurrency tests with locks that check their order of acquisition, then prints that order: a
# lock comes before those that are acquired while it is held. Fails if a thread, or all test
# programs together, acquire locks in a cyclic order; or if a thread waits for a device with a lock
# that scripts/held-across-io.txt does not allow.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

edges=$(mktemp)
trap 'rm -f "$edges"' EXIT
tests=(open_files overwrites write_back fsync fsync_names subvolumes writing io_queue requests_in_flight
    shared_defragment)
cargo test --locked -p papilio-locks --features lock-order
# Of the whole workspace, and with the tests of the C library, of which none runs: so other packages
# have the features of `make test` and are not built once more.
checked=(cargo test --workspace --locked --features papilio-fs/lock-order --test=c)
# Its forbidden orders are not recorded.
"${checked[@]}" --test=lock_order -- dropping_a_file_under_locks
PAPILIO_LOCK_ORDER=$edges "${checked[@]}" --test=library -- "${tests[@]/%/::}"
printf '\nLocks in the order of acquisition that the tests showed:\n'
cut -d' ' -f1,2 "$edges" | sort -u | tsort

# A class made in a file has the name FILE:LINE:NAME; lines change.
held=$(awk '$2 == "data-io" || $2 == "device-io" { sub(/:[0-9]+:.*/, "", $1); print $2, $1 }' "$edges" | sort -u)
allowed=$(awk '!/^#/ && NF { print $1, $2 }' scripts/held-across-io.txt | sort -u)
printf '\nLocks held while a thread waited for file data (data-io) or for any bytes of a device:\n%s\n' "$held"
others=$(comm -23 <(printf '%s\n' "$held") <(printf '%s\n' "$allowed"))
[ -z "$others" ] || {
    printf 'lock-order: held across device I/O, and not allowed:\n%s\n' "$others" >&2
    exit 1
}
