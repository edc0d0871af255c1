#!/usr/bin/env bash
# Mutation testing of transaction, fsync_log, space and volume with cargo-mutants: it changes one
# expression or function at a time, and counts the changes that the tests below do not notice.
#
# SHARD=K/N tests an N-th of the mutants, spread over all files (0/40). Results go to
# target/mutation/K-N/mutants.out; those that were missed are printed at the end. The tests are those
# that need no kernel: a mutant that only the kernel notices counts as missed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
shard=${SHARD:-0/40}
out=target/mutation/${shard/\//-}
mkdir -p "$out"
files=()
for module in transaction fsync_log space volume; do files+=(--file "crates/papilio/src/$module/**"); done
tests=(crash_states fsync_states random_operations faults)
tests+=(full fsync log_items mirrors memory_mixed moving_fails write_hole balance moved_crashes)
# For the build, too: otherwise every test and example is built for each mutant.
arguments=(--cargo-arg=--lib)
for test in "${tests[@]}"; do arguments+=("--cargo-arg=--test=$test"); done
status=0
cargo mutants --package papilio --test-package papilio,papilio-simulator "${files[@]}" \
    --profile mutants --shard "$shard" --sharding round-robin --timeout 300 --build-timeout 600 \
    --no-shuffle --output "$out" --colors never "${arguments[@]}" "$@" || status=$?
# 2 and 3 tell of mutants that were missed or that ran out of time.
[ "$status" = 0 ] || [ "$status" = 2 ] || [ "$status" = 3 ] || exit "$status"
for outcome in caught missed timeout unviable; do
    printf '%s %s\n' "$outcome" "$(wc -l < "$out/mutants.out/$outcome.txt")"
done
cat "$out/mutants.out/missed.txt"
