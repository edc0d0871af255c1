#!/bin/bash
# Lets the NFS client of a kernel mount `papilio serve --nfs`, and compares it with the kernel's
# Btrfs: the steps are in nfs-guest.sh. The kernel is User Mode Linux, so the host needs no client.
#
# PAPILIO: the command to try (target/release/papilio). KERNEL: a folder with an unpacked package
# user-mode-linux (the newest of target/judges/kernels, else the host's package). STRESS, KILLS,
# FSSTRESS, FSSTRESS_RUNS, PJDFSTEST: see nfs-guest.sh. LIMIT: seconds.
#
# Needs root and 2 GiB of memory. target/nfs keeps the output and the console.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
project=$PWD
papilio=$(realpath "${PAPILIO:-target/release/papilio}")
[ -x "$papilio" ] || { echo "nfs: $papilio: no such program" >&2; exit 1; }

kernel=${KERNEL:-$(ls -d target/judges/kernels/* 2> /dev/null | sort -V | tail -n 1)}
if [ -n "$kernel" ]; then
    kernel=$(realpath "$kernel")
    program=$kernel/usr/bin/linux.uml modules=$kernel/usr/lib/uml/modules
else
    program=/usr/bin/linux.uml modules=/usr/lib/uml/modules
fi
[ -x "$program" ] || { echo "nfs: no guest kernel: run scripts/guest-kernels.sh" >&2; exit 1; }

job=$project/target/nfs
rm -rf "$job"
mkdir -p "$job"
printf '%s' "$modules" > "$job/modules"
{
    echo "export PAPILIO=$(printf %q "$papilio") JOB=$(printf %q "$job") STRESS=${STRESS:-3000} KILLS=${KILLS:-4}"
    for name in FSSTRESS FSSTRESS_RUNS PJDFSTEST; do
        [ -z "${!name-}" ] || echo "export $name=$(printf %q "${!name}")"
    done
    echo "exec bash $(printf %q "$project/scripts/nfs-guest.sh")"
} > "$job/command"

# The end of the first process of the namespace ends all processes of the guest.
unshare --pid --fork --kill-child -- timeout -k 5 "${LIMIT:-900}" "$program" mem=2048M \
    root=/dev/root rootfstype=hostfs rootflags=/ rw panic=-1 init="$project/scripts/guest-init.sh" \
    "ROOT=$project" "JOB=$job" "uml_dir=$job/uml" con=null con0=null,fd:1 \
    < /dev/null > "$job/console" 2>&1 || true
cat "$job/stdout" "$job/stderr" 2> /dev/null || true
[ -s "$job/status" ] || { tail -n 20 "$job/console"; echo "nfs: the guest ended without a result" >&2; exit 1; }
exit "$(cat "$job/status")"
