#!/usr/bin/env bash
# setup.sh [build|demo|test|judges]...: installs the packages that Papilio needs besides a Rust
# toolchain: to be built, for the demo, for the tests, for the judges; without an argument all.
# Each includes those of the build.
#
# As root, installs the missing packages with apt; otherwise lists them. The build needs a C
# compiler, make, pkg-config and zstd. Tests and the demo skip steps whose tools are missing. With
# PAPILIO_REQUIRE_ALL=1 any missing package is an error.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin

case "$*" in
*[!\ a-z]* | *-*)
    echo "usage: setup.sh [build|demo|test|judges]..." >&2
    exit 2
    ;;
esac
purposes=${*:-demo test judges}
for purpose in $purposes; do
    case $purpose in
    build | demo | test | judges) ;;
    *)
        echo "setup: $purpose: there are build, demo, test and judges" >&2
        exit 2
        ;;
    esac
done

# command, Debian package, the purposes that need it, with commas
wanted='
cc build-essential build
make make build
pkg-config pkg-config build
zstd zstd build
mkfs.btrfs btrfs-progs demo,test,judges
fio fio test
chromium chromium test
losetup mount demo,test,judges
sfdisk fdisk test
qemu-img qemu-utils test
nbdinfo libnbd-bin test
nbdcopy libnbd-bin test
nfs-cp libnfs-utils test
rclone rclone test
cadaver cadaver test
mount.davfs davfs2 test
litmus litmus test
xz xz-utils test
bzip2 bzip2 test
curl curl test
openssl openssl test
mount mount demo,test,judges
getfattr attr demo,test,judges
getfacl acl demo,test,judges
setcap libcap2-bin test
fusermount3 fuse3 demo,test,judges
valgrind valgrind test
compsize btrfs-compsize test
snapper snapper test
filefrag e2fsprogs test
gcc build-essential build
btrbk btrbk test
duperemove duperemove test
mdadm mdadm test
xfs_io xfsprogs test
mkfs.xfs xfsprogs test
xfs_repair xfsprogs test
xfs_db xfsprogs test
partclone.btrfs partclone test
partclone.restore partclone test
mke2fs e2fsprogs test
e2fsck e2fsprogs test
cryptsetup cryptsetup-bin test
pvcreate lvm2 test
linux.uml user-mode-linux judges
modprobe kmod test,judges
patchelf patchelf judges
python3 python3-venv test
'

say() { printf 'setup: %s\n' "$*"; }

if ! command -v cargo >/dev/null; then
    say "cargo is missing: install Rust 1.95 or newer (https://rustup.rs), then run this again" >&2
    exit 1
fi

# is_wanted KINDS: whether one of the purposes of this run is among them.
is_wanted() {
    local purpose
    for purpose in build $purposes; do
        case ",$1," in *",$purpose,"*) return 0 ;; esac
    done
    return 1
}

packages=()
essential=0
while read -r command package kinds; do
    [ -n "$command" ] || continue
    is_wanted "$kinds" || continue
    command -v "$command" >/dev/null && continue
    case " ${packages[*]-} " in *" $package "*) ;; *) packages+=("$package") ;; esac
    [ "$kinds" = build ] && essential=1
done <<<"$wanted"

# Debian's python3 comes without the modules that make virtual environments.
case " ${packages[*]-} " in
*" python3-venv "*) ;;
*) ! is_wanted test || python3 -c 'import venv, ensurepip' 2>/dev/null || packages+=(python3-venv) ;;
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
