#!/usr/bin/env bash
# Prints what a repair keeps, of Papilio and of btrfs-progs beside it, for damaged images.
#
#   scripts/kept.sh PROGS IMAGES...
#
# PROGS is a folder with the programs of btrfs-progs (btrfs, btrfs-image). IMAGES are folders or
# files: dumps of btrfs-image (.img, .img.xz) and images (.raw, .raw.xz). Each is repaired once by
# each side, in a copy of its own. The check of btrfs-progs and the kernel's mount judge both: files
# and the bytes of their sizes are counted from the top level, subvolumes included. The exit status
# is 1 if Papilio keeps fewer of either, or cannot be mounted where the other one can.
#
# PAPILIO is the command (default: target/release/papilio). It needs root, for mounts.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
papilio=${PAPILIO:-$here/target/release/papilio}
if [ $# -lt 2 ]; then
	sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'
	exit 2
fi
progs=$1
shift
limit="timeout -k 5 ${LIMIT:-120}"
folder=$(mktemp -d)
trap 'umount "$folder/mount" 2>/dev/null || true; rm -rf "$folder"' EXIT
mkdir "$folder/mount"
worse=0

# Makes an image of a dump or a compressed image.
unpack() {
	local source=$1 target=$2 plain=$folder/plain
	rm -f "$plain" "$target"
	case $source in
	*.xz) xz -dc "$source" > "$plain" ;;
	*) cp "$source" "$plain" ;;
	esac
	case $source in
	*.raw | *.raw.xz) cp --sparse=always "$plain" "$target" ;;
	*) "$progs/btrfs-image" -r "$plain" "$target" > "$folder/log" 2>&1 ;;
	esac
	rm -f "$plain"
}

# Prints the verdict of the check, and files and bytes that the kernel shows: "clean 12 3456".
judge() {
	local image=$1 verdict=clean
	$limit "$progs/btrfs" check "$image" > "$folder/log" 2>&1 || verdict=errors
	if mount -o loop,ro "$image" "$folder/mount" 2> "$folder/log"; then
		local counted
		counted=$(find "$folder/mount" ! -type d -printf '%s\n' 2> "$folder/log" |
			awk '{ count++; bytes += $1 } END { printf "%d %.0f", count, bytes }')
		umount "$folder/mount"
		echo "$verdict $counted"
	else
		echo "$verdict - -"
	fi
}

echo "| image | Papilio: check | files | bytes | btrfs-progs: check | files | bytes |"
echo "|---|---|---:|---:|---|---:|---:|"
while IFS= read -r source; do
	name=$(basename "$(dirname "$source")")/$(basename "$source")
	if ! unpack "$source" "$folder/ours"; then
		echo "$name: cannot be restored" >&2
		continue
	fi
	cp --sparse=always "$folder/ours" "$folder/theirs"
	rm -f "$folder/undo"
	$limit "$papilio" check --repair --yes --undo "$folder/undo" "$folder/ours" \
		> "$folder/log" 2>&1 < /dev/null || true
	$limit "$progs/btrfs" check --repair --force "$folder/theirs" > "$folder/log" 2>&1 < /dev/null || true
	read -r verdict files bytes <<< "$(judge "$folder/ours")"
	read -r other other_files other_bytes <<< "$(judge "$folder/theirs")"
	mark=
	if [ "$other_files" != - ]; then
		if [ "$files" = - ] || [ "$files" -lt "$other_files" ] || [ "$bytes" -lt "$other_bytes" ]; then
			mark=' **fewer**'
			worse=1
		fi
	fi
	echo "| $name$mark | $verdict | $files | $bytes | $other | $other_files | $other_bytes |"
done < <(find "$@" -type f \( -name '*.img' -o -name '*.img.xz' -o -name '*.raw' -o -name '*.raw.xz' \) | sort)
exit $worse
