#!/bin/bash
# The first process of a guest kernel that `cargo xtask judges` starts. The guest's root is the
# host's; /dev, /proc, /sys, /tmp, /run, /mnt and /dev/shm are its own.
#
# ROOT, from the kernel's command line, is the project. JOB is a folder of it:
#   command, modules         what to run; where the kernel's modules are
#   stdout, stderr, status   its output and its exit code, written last
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts /dev/pts
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
mount -t tmpfs run /run
# The project may lie in a folder that the guest covers with its own.
mkdir /run/project
mount --bind "$ROOT" /run/project
mount -t tmpfs mnt /mnt
# Images are sparse: their sizes exceed the guest's memory, their content does not.
mount -t tmpfs -o size=64G,mode=1777 tmp /tmp
mount -t tmpfs -o size=64G,mode=1777 shm /dev/shm
if [ ! -e "$JOB/command" ]; then
    mkdir -p "$ROOT"
    mount --bind /run/project "$ROOT"
fi
ip link set lo up 2>/dev/null

# modprobe looks for lib/modules below a folder.
modules=$(cat "$JOB/modules")/$(uname -r)
if [ -d "$modules" ]; then
    mkdir -p /run/modules/lib/modules
    ln -s "$modules" /run/modules/lib/modules/
    for module in loop btrfs fuse; do
        modprobe -d /run/modules -q "$module"
    done
fi

setsid bash "$JOB/command" > "$JOB/stdout" 2> "$JOB/stderr" < /dev/null
echo $? > "$JOB/status.new"
sync "$JOB/stdout" "$JOB/stderr" "$JOB/status.new"
mv "$JOB/status.new" "$JOB/status"
sync
echo o > /proc/sysrq-trigger
sleep 5
exec /sbin/halt -f
