#!/usr/bin/env bash
# release-twice.sh [OPTIONS OF release.sh]: makes the release of the last commit in two folders, one
# after the other, with other umasks, users' languages and lengths of paths, and compares all bytes.
#
# A whole release builds everything twice: half an hour, and 20 GB below TMPDIR. `--steps` names a
# part. Changes that are not committed are not in it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
here=$PWD
work=$(mktemp -d "${TMPDIR:-/tmp}/papilio-twice.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT

# once FOLDER UMASK LANGUAGE OPTIONS...
once() {
    local folder=$1 mask=$2 language=$3
    shift 3
    mkdir -p "$(dirname "$folder")"
    git clone -q "$here" "$folder"
    (
        umask "$mask"
        cd "$folder"
        unset SOURCE_DATE_EPOCH CARGO_TARGET_DIR
        LC_ALL=$language bash scripts/release.sh --snapshot --out "$folder.out" "$@"
    )
}
once "$work/a" 022 C "$@"
# File times and the clock differ by more than the second that archives know.
sleep 2
once "$work/another/place/with-a-longer-name" 077 C.UTF-8 "$@"
cmp "$work/a.out/SHA256SUMS" "$work/another/place/with-a-longer-name.out/SHA256SUMS"
printf '\nrelease-twice: %s files, equal bytes\n' "$(wc -l < "$work/a.out/SHA256SUMS")"
