#!/usr/bin/env bash
# Runs tests in which threads meet, with locks that check the order they are taken in, and prints that order: what
# waits for nothing else last. Fails where a thread closes a cycle, or two programs together do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

edges=$(mktemp)
trap 'rm -f "$edges"' EXIT
tests=(open_files overwrites fsync fsync_names subvolumes writing io_queue)
cargo test --locked -p papilio-locks --features lock-order
PAPILIO_LOCK_ORDER=$edges cargo test --locked -p papilio --features lock-order "${tests[@]/#/--test=}"
printf '\nThe order of locks, as it was seen:\n'
cut -d' ' -f1,2 "$edges" | sort -u | tsort
