#!/usr/bin/env bash
# Builds Debian packages and a tarball in target/packages, installs them over a copy-on-write view of
# this system, and tries each. `make packages` has built the command, the library and the wheel.
#
#   papilio           the command, manual pages, completions, helpers of mount(8), papilio-store,
#                     papilio-web, papilio-bench, the engine for fio
#   libpapilio0       the shared library
#   libpapilio-dev    header, static library, pkg-config file, manual pages of section 3
#   python3-papilio   the Python module
#
# Needs dpkg-dev. The trial needs root and overlayfs; without them the packages are only built, and
# the script says so, or fails if PAPILIO_REQUIRE_ALL=1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/release-lib.sh
release_environment

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
architecture=$(dpkg --print-architecture)
triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
out=$PWD/target/packages
work=$(mktemp -d "${TMPDIR:-/tmp}/papilio-packages.XXXXXX")
merged=
clean_up() {
    local status=$?
    trap - EXIT
    if [ -n "$merged" ]; then
        umount "$merged/proc" 2>/dev/null || true
        umount "$merged" 2>/dev/null || umount -l "$merged" || true
    fi
    umount "$work/layers" 2>/dev/null || true
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap clean_up EXIT

rm -rf "$out"
mkdir -p "$out"
everything=$work/everything
make --no-print-directory -s install STORES=1 WEB=1 DESTDIR="$everything" PREFIX=/usr LIBDIR=/usr/lib/"$triplet" \
    HELPERDIR=/usr/sbin > /dev/null
install -D -m 644 target/release/libpapilio_fio.so "$everything/usr/lib/papilio/libpapilio_fio.so"
install -D -m 755 target/release/papilio-bench "$everything/usr/lib/papilio/papilio-bench"

# move PACKAGE PATTERN...: moves files from the staged installation to the package's folder.
move() {
    local package=$1 path
    shift
    for path in "$@"; do
        # shellcheck disable=SC2086
        (cd "$everything" && find . -path "./$path" \( -type f -o -type l \) -print0) |
            while IFS= read -r -d '' file; do
                mkdir -p "$work/$package/$(dirname "$file")"
                mv "$everything/$file" "$work/$package/$file"
            done
    done
}
move libpapilio0 "usr/lib/$triplet/libpapilio.so.*"
move libpapilio-dev "usr/lib/$triplet/*" "usr/include/*" "usr/share/man/man3/*"
move papilio "*"
wheel=$(ls -t target/wheels/papilio-"$version"-*.whl | head -n 1)
mkdir -p "$work/python3-papilio/usr/lib/python3/dist-packages"
python3 -m zipfile -e "$wheel" "$work/python3-papilio/usr/lib/python3/dist-packages"
strip --strip-unneeded "$work"/papilio/usr/bin/papilio "$work"/papilio/usr/lib/papilio/papilio-* \
    "$work"/papilio/usr/lib/papilio/*.so \
    "$work"/libpapilio0/usr/lib/"$triplet"/libpapilio.so."$version"
strip --strip-debug "$work"/libpapilio-dev/usr/lib/"$triplet"/libpapilio.a

# needs FILE...: prints the packages whose libraries the files use.
needs() {
    mkdir -p "$work/shlibs/debian"
    printf 'Source: papilio\n' > "$work/shlibs/debian/control"
    (cd "$work/shlibs" && dpkg-shlibdeps -O --ignore-missing-info "$@" 2>/dev/null) |
        sed -n 's/^shlibs:Depends=//p'
}

# package NAME DEPENDS SUMMARY: builds a package from its folder.
package() {
    local name=$1 depends=$2 summary=$3 root=$work/$1
    install -D -m 644 LICENSE-APACHE "$root/usr/share/doc/$name/LICENSE-APACHE"
    install -D -m 644 LICENSE-MIT "$root/usr/share/doc/$name/copyright"
    [ ! -d "$root/usr/share/man" ] || find "$root/usr/share/man" -type f -exec gzip -9n {} +
    mkdir -p "$root/DEBIAN"
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\n' "$name" "$version" "$architecture"
        printf 'Maintainer: The Papilio developers <papilio@localhost>\nSection: admin\nPriority: optional\n'
        printf 'Installed-Size: %s\n' "$(installed_size "$root")"
        [ -z "$depends" ] || printf 'Depends: %s\n' "$depends"
        printf 'Description: %s\n' "$summary"
        printf ' Papilio is a complete Btrfs in user space: it reads and writes the on-disk format\n'
        printf ' of the Linux kernel, without a kernel driver.\n'
    } > "$root/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$root" "$out/${name}_${version}_$architecture.deb" > /dev/null
}
command_needs=$(needs "$work/papilio/usr/bin/papilio" "$work/papilio/usr/lib/papilio/libpapilio_fio.so")
library=$work/libpapilio0/usr/lib/$triplet/libpapilio.so.$version
module=$(ls "$work"/python3-papilio/usr/lib/python3/dist-packages/papilio/_papilio*.so)
pack "$work/papilio" "papilio-$version" "$out/papilio-$version-$architecture.tar.gz" \
    ./usr/bin ./usr/lib/papilio ./usr/share
package papilio "$command_needs" "Btrfs in user space: images, mounts, repair"
package libpapilio0 "$(needs "$library")" "Btrfs in user space: the library for C"
package libpapilio-dev "libpapilio0 (= $version)" "Btrfs in user space: files to build C programs with"
package python3-papilio "python3 (>= 3.9), $(needs "$module")" "Btrfs in user space: the Python module"
ls -l "$out"

missing=
[ "$(id -u)" -eq 0 ] || missing="not root"
grep -qw overlay /proc/filesystems || missing="no overlayfs"
if [ -n "$missing" ]; then
    [ "${PAPILIO_REQUIRE_ALL:-0}" != 1 ] || { echo "packages: cannot try them: $missing" >&2; exit 1; }
    echo "SKIPPED the trial of the packages: $missing"
    exit 0
fi
mkdir -p "$work/layers"
mount -t tmpfs -o size=1g papilio-packages "$work/layers"
mkdir "$work/layers/upper" "$work/layers/work" "$work/layers/merged"
merged=$work/layers/merged
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/layers/upper,workdir=$work/layers/work" "$merged"
mount -t proc proc "$merged/proc"
mkdir -p "$merged/trial"
cp "$out"/*.deb crates/capi/examples/read_image.c "$merged/trial/"
cat > "$merged/trial/run" <<'TRIAL'
set -eu
cd /trial
dpkg -i ./*.deb > dpkg.log 2>&1 || { cat dpkg.log; exit 1; }
papilio mkfs -q --size 256M image
printf 'packaged' > file
papilio cp file image:/file
test "$(papilio cat image:/file)" = packaged
test "$(papilio cat "slatedb+file:///trial/store:/file" 2>&1)" != packaged
papilio mkfs -q --size 256M slatedb+file:///trial/store
papilio cp file slatedb+file:///trial/store:/file
test "$(papilio cat slatedb+file:///trial/store:/file)" = packaged
papilio bench --help > /dev/null
papilio check -q image > /dev/null
test -s /usr/share/man/man8/papilio-check.8.gz && test -s /usr/share/man/man1/papilio-ls.1.gz
test -s /usr/share/bash-completion/completions/papilio
test -s /usr/share/zsh/site-functions/_papilio
test -s /usr/share/fish/vendor_completions.d/papilio.fish
papilio doctor --need images > /dev/null
PATH=/usr/lib/papilio/bin:$PATH btrfs --version > /dev/null
cc -o program read_image.c $(pkg-config --cflags --libs papilio)
test "$(./program image /file)" = packaged
cat > program.py <<'PROGRAM'
import papilio
with papilio.open("image") as fs, fs.open("/file", "rb") as file:
    print(file.read().decode())
PROGRAM
test "$(/usr/bin/python3 program.py)" = packaged
dpkg -r python3-papilio libpapilio-dev libpapilio0 papilio > /dev/null
! command -v papilio > /dev/null
TRIAL
chroot "$merged" /bin/sh /trial/run
echo "packages: installed, tried and removed"
