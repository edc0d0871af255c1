#!/usr/bin/env bash
# Downloads User Mode Linux of later Debians to target/judges/kernels/RELEASE: the kernels that
# `cargo xtask judges` runs besides the host's package. The host's own package lists stay as they
# are.
#
# The programs need a later C library than the host may have. It lies beside each of them, and
# patchelf names it in the program. SUITES chooses the Debians, MIRROR their server.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

suites=${SUITES:-trixie forky}
folder=$PWD/target/judges/kernels
apt=$PWD/target/judges/apt
keys=/usr/share/keyrings/debian-archive-keyring.gpg
say() { printf 'guest-kernels: %s\n' "$*"; }

for command in apt-get dpkg-deb patchelf; do
    command -v "$command" > /dev/null || { say "needs $command" >&2; exit 1; }
done
mirror=${MIRROR:-http://deb.debian.org/debian}
mkdir -p "$folder" "$apt"/{state/lists/partial,cache/archives/partial,etc/{apt.conf.d,preferences.d,none},debs}
: > "$apt/state/status"
for suite in $suites; do
    echo "deb [signed-by=$keys] $mirror $suite main"
done > "$apt/etc/sources.list"
cat > "$apt/apt.conf" << END
Dir::Etc "$apt/etc"; Dir::Etc::sourcelist "$apt/etc/sources.list"; Dir::Etc::sourceparts "$apt/etc/none";
Dir::State "$apt/state"; Dir::State::status "$apt/state/status"; Dir::Cache "$apt/cache";
APT::Sandbox::User "root"; Acquire::Languages "none"; Acquire::Check-Valid-Until "false";
END
export APT_CONFIG=$apt/apt.conf
apt-get -q update
cd "$apt/debs"
last=${suites##* }
rm -f libc6_*.deb
apt-get -q download "libc6/$last"
rm -rf ../libc
dpkg-deb -x libc6_*.deb ../libc
for suite in $suites; do
    rm -f user-mode-linux_*.deb
    apt-get -q download "user-mode-linux/$suite"
    deb=$(echo user-mode-linux_*.deb)
    release=${deb#*_}
    release=${release%%um*}
    kernel=$folder/$release
    rm -rf "$kernel"
    mkdir -p "$kernel/lib"
    dpkg-deb -x "$deb" "$kernel"
    cp ../libc/usr/lib/*/{libc.so.6,libm.so.6,ld-linux-x86-64.so.2} "$kernel/lib/"
    patchelf --set-interpreter "$kernel/lib/ld-linux-x86-64.so.2" --set-rpath "$kernel/lib" \
        "$kernel/usr/bin/linux.uml"
    say "$release: $("$kernel/usr/bin/linux.uml" --version)"
done
