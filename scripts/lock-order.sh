#!/usr/bin/env bash
# Runs concurrency tests with locks that check their order of acquisition, then prints that order: a
# lock comes before those that are acquired while it is held. Fails if a thread, or all test
# programs together, acquire locks in a cyclic order.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

edges=$(mktemp)
trap 'rm -f "$edges"' EXIT
tests=(open_files overwrites fsync fsync_names subvolumes writing io_queue requests_in_flight)
cargo test --locked -p papilio-locks --features lock-order
PAPILIO_LOCK_ORDER=$edges cargo test --locked -p papilio --features lock-order "${tests[@]/#/--test=}"
printf '\nLocks in the order of acquisition that the tests showed:\n'
cut -d' ' -f1,2 "$edges" | sort -u | tsort
