#!/usr/bin/env bash
# Installs the packages that building and testing Papilio needs besides a Rust toolchain.
#
# As root, installs the missing packages with apt; otherwise lists them. The build needs a C
# compiler, make, pkg-config and zstd. Tests and the demo skip steps whose tools are missing. With
# PAPILIO_REQUIRE_ALL=1 any missing package is an error.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin

# command, Debian package, "needed" or "tests"
wanted='
cc build-essential needed
make make needed
pkg-config pkg-config needed
zstd zstd needed
mkfs.btrfs btrfs-progs tests
fio fio tests
chromium chromium tests
losetup mount tests
sfdisk fdisk tests
qemu-img qemu-utils tests
nbdinfo libnbd-bin tests
nfs-cp libnfs-utils tests
xz xz-utils tests
bzip2 bzip2 tests
curl curl tests
openssl openssl tests
mount mount tests
getfattr attr tests
getfacl acl tests
fusermount3 fuse3 tests
valgrind valgrind tests
compsize btrfs-compsize tests
mdadm mdadm tests
xfs_io xfsprogs tests
cryptsetup cryptsetup-bin tests
pvcreate lvm2 tests
linux.uml user-mode-linux tests
modprobe kmod tests
patchelf patchelf tests
python3 python3-venv tests
'

say() { printf 'setup: %s\n' "$*"; }

if ! command -v cargo >/dev/null; then
    say "cargo is missing: install Rust 1.95 or newer (https://rustup.rs), then run this again" >&2
    exit 1
fi

packages=()
essential=0
while read -r command package kind; do
    [ -n "$command" ] || continue
    command -v "$command" >/dev/null && continue
    case " ${packages[*]-} " in *" $package "*) ;; *) packages+=("$package") ;; esac
    [ "$kind" = needed ] && essential=1
done <<<"$wanted"

# Debian's python3 comes without the modules that make virtual environments.
case " ${packages[*]-} " in
*" python3-venv "*) ;;
*) python3 -c 'import venv, ensurepip' 2>/dev/null || packages+=(python3-venv) ;;
esac

if [ "${#packages[@]}" -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    say "installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq </dev/null >/dev/null
    # Not every Debian and processor has all packages. One that is unknown would fail all.
    known=()
    for package in "${packages[@]}"; do
        if [ -n "$(apt-cache search --names-only "^$package\$")" ]; then
            known+=("$package")
        elif [ "${PAPILIO_REQUIRE_ALL:-0}" = 1 ]; then
            say "no package $package here" >&2
            exit 1
        else
            say "no package $package here: tests that need it are skipped and say so" >&2
        fi
    done
    [ "${#known[@]}" -gt 0 ] || exit "$essential"
    packages=("${known[@]}")
    apt-get install -y -qq --no-install-recommends "${packages[@]}" </dev/null >/dev/null
    exit 0
fi
say "missing Debian packages: ${packages[*]}; as root, run: apt-get install ${packages[*]}" >&2
if [ "$essential" -eq 1 ] || [ "${PAPILIO_REQUIRE_ALL:-0}" = 1 ]; then
    exit 1
fi
say "continuing without them: tests that need them are skipped and say so" >&2
