#!/usr/bin/env bash
# release.sh [--snapshot] [--steps STEP,...] [--sign KIND:KEY] [--out FOLDER]: makes everything of a
# release from the tag vVERSION, in target/release-VERSION:
#
#   source    the sources, as a .tar.gz
#   crates    the packages of all crates that are published
#   wheel     the Python wheel
#   packages  Debian packages, and programs, manual pages and completions as a .tar.gz
#   handbook  the handbook, as a .tar.gz of HTML
#   sbom      the software bill of materials, CycloneDX as JSON
#   notices   the licence texts of all packages of other people
#   sums      SHA256SUMS; last, and signed if --sign names a key
#
# The files depend on the tag alone: not on the folder, the time or the user. scripts/release-twice.sh
# shows that. The compilers and dpkg have to be the same; BUILDINFO names them.
#
# --snapshot goes on without a tag and with changes that are not committed. --sign takes
# ssh:FILE, minisign:FILE or gpg:NAME. A clean Debian with a Rust toolchain is enough; root installs
# what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/release-lib.sh

steps=source,crates,wheel,packages,handbook,sbom,notices,sums
snapshot=0
signature=
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
out=$PWD/target/release-$version
while [ $# -gt 0 ]; do
    case $1 in
    --snapshot) snapshot=1 ;;
    --steps) steps=${2:?} && shift ;;
    --sign) signature=${2:?} && shift ;;
    --out) out=${2:?} && shift ;;
    *)
        echo "usage: release.sh [--snapshot] [--steps STEP,...] [--sign KIND:KEY] [--out FOLDER]" >&2
        exit 2
        ;;
    esac
    shift
done
for step in ${steps//,/ }; do
    case $step in
    source | crates | wheel | packages | handbook | sbom | notices | sums) ;;
    *)
        echo "release: there is no step $step" >&2
        exit 2
        ;;
    esac
done
wants() { case ",$steps," in *",$1,"*) return 0 ;; *) return 1 ;; esac; }
say() { printf '\n==> %s\n' "$*"; }

if [ "$snapshot" = 0 ]; then
    [ -z "$(git status --porcelain)" ] || {
        echo "release: there are changes that are not committed; --snapshot goes on" >&2
        exit 1
    }
    [ "$(git describe --tags --exact-match 2> /dev/null || true)" = "v$version" ] || {
        echo "release: this commit has no tag v$version; --snapshot goes on" >&2
        exit 1
    }
fi
build_environment "$PWD"
mkdir -p "$out"
out=$(cd "$out" && pwd)

if wants source; then
    say source
    git archive --format=tar --prefix="papilio-$version/" HEAD | gzip -9n > "$out/papilio-$version.tar.gz"
fi
if wants crates; then
    say crates
    PAPILIO_ONLY_PACKAGE=1 bash scripts/publishable.sh
    target=$(cargo metadata --locked --no-deps --format-version 1 |
        sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
    cp "$target"/package/papilio*-"$version".crate "$out"
fi
if wants wheel || wants packages; then
    say 'wheel'
    bash scripts/wheel.sh
    ! wants wheel || cp "$(ls -t target/wheels/papilio-"$version"-*.whl | head -n 1)" "$out"
fi
if wants packages; then
    say packages
    make --no-print-directory packages
    cp target/packages/*.deb target/packages/*.tar.gz "$out"
fi
if wants handbook; then
    say handbook
    bash scripts/handbook.sh
    pack target/handbook/book "papilio-handbook-$version" "$out/papilio-handbook-$version.tar.gz" .
fi
if wants sbom; then
    say sbom
    cargo xtask sbom "$out/papilio-$version.cdx.json"
fi
if wants notices; then
    say notices
    cargo xtask notices "$out/THIRD-PARTY-LICENSES.txt"
fi
if wants sums; then
    say sums
    {
        printf 'papilio %s, commit %s\n' "$version" "$(git rev-parse HEAD)"
        rustc --version
        "${CC:-cc}" --version | head -n 1
        dpkg-deb --version 2> /dev/null | head -n 1 || true
    } > "$out/BUILDINFO"
    sums "$out"
    if [ -n "$signature" ]; then
        sign "${signature%%:*}" "${signature#*:}" "$out/SHA256SUMS"
    else
        echo "release: SHA256SUMS is not signed: no --sign"
    fi
fi
say "in $out"
ls -l "$out"
