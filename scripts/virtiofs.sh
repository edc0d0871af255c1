#!/bin/bash
# Lets a guest mount a file system of `papilio serve --vhost-user`, and compares it with the kernel's
# Btrfs: the steps of virtiofs-steps.py must print the same lines on both, also after a new mount in
# the guest. Then `papilio check` judges the image.
#
# The guest is QEMU without KVM, with the newest kernel of this Debian, and the host's files for
# reading. Needs root, 1.5 GiB of memory, and the network once, for the kernel's package.
#
# PAPILIO: the command to try (target/release/papilio).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
project=$PWD
papilio=$(realpath "${PAPILIO:-target/release/papilio}")

for package in qemu-system-x86 busybox-static cpio kmod; do
    dpkg -s "$package" > /dev/null 2>&1 || apt-get install -y -q --no-install-recommends "$package"
done
kernels=$project/target/virtiofs
mkdir -p "$kernels"
if ! compgen -G "$kernels/boot/vmlinuz-*" > /dev/null; then
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p' | head -n 1)
    (cd "$kernels" && apt-get download -q "$package")
    dpkg-deb -x "$kernels"/linux-image-*.deb "$kernels"
fi
kernel=$(ls "$kernels"/boot/vmlinuz-* | sort -V | tail -n 1)
release=${kernel##*/vmlinuz-}
modules=$kernels/lib/modules/$release

folder=$(mktemp -d /dev/shm/virtiofs.XXXXXX)
server=
end() {
    [ -z "$server" ] || kill -KILL "$server" 2> /dev/null || true
    ! mountpoint -q "$folder/mnt" || umount "$folder/mnt"
    rm -rf "$folder"
}
trap end EXIT

# The lines of the kernel's Btrfs.
mkdir "$folder/mnt"
truncate -s 600M "$folder/kernel"
mkfs.btrfs -q "$folder/kernel" 2> /dev/null
mount -o loop "$folder/kernel" "$folder/mnt"
python3 scripts/virtiofs-steps.py "$folder/mnt" > "$folder/lines"
umount "$folder/mnt"
rm "$folder/kernel"

# The guest's first files: busybox, and the modules for the host's files and for virtiofs.
first=$folder/first
mkdir -p "$first"/{bin,proc,sys,dev,host} "$first/lib/modules/$release/kernel"
cp /bin/busybox "$first/bin"
for command in sh mount modprobe mkdir chroot poweroff; do
    ln -s busybox "$first/bin/$command"
done
for part in fs/fuse fs/9p fs/netfs fs/fscache drivers/virtio net/9p; do
    if [ -d "$modules/kernel/$part" ]; then
        mkdir -p "$first/lib/modules/$release/kernel/${part%/*}"
        cp -a "$modules/kernel/$part" "$first/lib/modules/$release/kernel/$part"
    fi
done
cp "$modules"/modules.{order,builtin} "$first/lib/modules/$release"
depmod -b "$first" "$release" 2> /dev/null
cat > "$first/init" <<'INIT'
#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in virtio_pci 9pnet_virtio 9p virtiofs; do modprobe $module; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro host /host
mount -t proc proc /host/proc
mount -t devtmpfs dev /host/dev
for folder in tmp mnt run; do mount -t tmpfs tmpfs /host/$folder; done
mkdir -p /host/run/first
mount -o bind / /host/run/first
chroot /host /bin/bash /run/first/steps > /dev/console 2>&1
echo "virtiofs: status $?" > /dev/console
poweroff -f
INIT
chmod +x "$first/init"
cp "$folder/lines" "$first/lines"
cp scripts/virtiofs-steps.py "$first/steps.py"
cat > "$first/steps" <<'STEPS'
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
set -eu
cd /run/first
mkdir /mnt/ours
mount -t virtiofs steps /mnt/ours
python3 steps.py /mnt/ours > /tmp/ours
umount /mnt/ours
mount -t virtiofs steps /mnt/ours
python3 steps.py /mnt/ours list > /tmp/again
umount /mnt/ours
diff lines /tmp/ours
grep '^tree' lines | diff - /tmp/again
STEPS
(cd "$first" && find . | cpio -o -H newc 2> /dev/null | gzip -1) > "$folder/initrd"

"$papilio" mkfs -q --size 600M "$folder/image"
"$papilio" serve --tag steps --vhost-user "$folder/socket" "$folder/image" > "$folder/uri" &
server=$!
for _ in $(seq 100); do [ -s "$folder/uri" ] && break; sleep 0.1; done
timeout "${LIMIT:-600}" qemu-system-x86_64 -accel tcg -cpu max -m 1G -nographic -no-reboot \
    -object memory-backend-memfd,id=memory,size=1G,share=on -numa node,memdev=memory \
    -chardev "socket,id=steps,path=$folder/socket" -device vhost-user-fs-pci,chardev=steps,tag=steps \
    -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
    -kernel "$kernel" -initrd "$folder/initrd" -append "console=ttyS0 panic=-1 quiet" \
    < /dev/null > "$folder/console" 2>&1 || true
kill -INT "$server"
wait "$server"
server=
if ! grep -aq 'virtiofs: status 0' "$folder/console"; then
    tail -n 60 "$folder/console" >&2
    echo "virtiofs: kernel $release: the guest's steps failed" >&2
    exit 1
fi
"$papilio" check --check-data-csum "$folder/image" > /dev/null
echo "virtiofs: kernel $release: $(wc -l < "$folder/lines") lines are equal, the image is clean"
