#!/bin/bash
# Makes arrays, volume groups and encrypted volumes with Btrfs in them, as the real tools do:
# layer-images.sh DIR. The test crates/layers/tests/real_images.rs reads them (PAPILIO_LAYERS_DIR).
#
# It needs root and a kernel with loop devices, md, dm-crypt, dm-mirror, dm-raid and dm-thin-pool,
# besides mdadm, lvm2, cryptsetup and btrfs-progs. A guest kernel will do: scripts/guest-kernels.sh
# downloads some. Each failure is a line "FAIL" on standard output.
set -u
mkdir -p "${1:?a directory is needed}"
cd "$1" || exit 1
folder=$PWD
mnt=$(mktemp -d)
# encrypted-keys, on which dm-crypt depends, wants cbc first.
for module in loop btrfs xts cbc essiv md-mod raid0 raid1 raid10 raid456 linear dm-mod dm-crypt dm-mirror dm-raid dm-thin-pool; do
    modprobe -q "$module" || echo "no module $module"
done
mkdir -p /dev/mapper
[ -e /dev/mapper/control ] || mknod /dev/mapper/control c 10 236
export DM_DISABLE_UDEV=1

loop() { losetup -f --show "$1"; }

fill() {
    mkfs.btrfs -q -M -f "$1" > /dev/null 2>&1 && mount "$1" "$mnt" || return 1
    seq 300000 > "$mnt/seq"
    echo "inside $2" > "$mnt/name"
    umount "$mnt"
}

# array NAME SIZE... -- ARGUMENTS OF MDADM: the images md.NAME.N.img. LATER is run before the stop.
array() {
    local name=$1 devices=() n=0
    shift
    while [ "$1" != -- ]; do
        rm -f "md.$name.$n.img"
        truncate -s "$1" "md.$name.$n.img"
        devices+=("$(loop "md.$name.$n.img")")
        n=$((n + 1))
        shift
    done
    shift
    mdadm --create /dev/md0 --run --raid-devices=$n --homehost=any "$@" "${devices[@]}" > log 2>&1 &&
        fill /dev/md0 "$name" && echo "ok $name" || { echo "FAIL $name"; tail -n 3 log; }
    eval "${LATER-}"
    mdadm --stop /dev/md0 > log 2>&1
    losetup -d "${devices[@]}"
}

good=--assume-clean
array raid0 24M 24M -- --level=0 --chunk=16
array raid0zones 20M 32M 26M -- --level=0 --chunk=64 --metadata=1.1
array raid0other 20M 32M 26M -- --level=0 --chunk=64 --layout=alternate
array raid1m090 40M 40M -- --level=1 --metadata=0.90 $good
array raid1m10 40M 40M -- --level=1 --metadata=1.0 $good
array raid1m11 40M 40M 40M -- --level=1 --metadata=1.1 $good
array raid4 20M 20M 20M -- --level=4 --chunk=32 $good
array raid5m090 20M 20M 20M -- --level=5 --metadata=0.90 --chunk=64 $good
for layout in ls la rs ra parity-first parity-last; do
    array raid5$layout 16M 16M 16M 16M -- --level=5 --layout=$layout --chunk=16 $good
    array raid6$layout 16M 16M 16M 16M 16M -- --level=6 --layout=$layout --chunk=16 $good
done
for layout in ddf-zero-restart ddf-N-restart ddf-N-continue left-symmetric-6 right-asymmetric-6 \
    left-asymmetric-6 right-symmetric-6 parity-first-6; do
    array raid6$layout 16M 16M 16M 16M 16M -- --level=6 --layout=$layout --chunk=16 $good
done
array raid10n2 20M 20M 20M 20M -- --level=10 --layout=n2 --chunk=32 $good
array raid10n2odd 20M 20M 20M -- --level=10 --layout=n2 --chunk=32 $good
array raid10n3 20M 20M 20M 20M 20M -- --level=10 --layout=n3 --chunk=32 $good
array raid10f2 20M 20M 20M -- --level=10 --layout=f2 --chunk=32 $good
array raid10f3 20M 20M 20M 20M -- --level=10 --layout=f3 --chunk=32 $good
array raid10o2 20M 20M 20M -- --level=10 --layout=o2 --chunk=32 $good
array raid10o2even 20M 20M 20M 20M -- --level=10 --layout=o2 --chunk=32 $good
# A member that missed changes.
LATER='mdadm /dev/md0 --fail "${devices[1]}" > log 2>&1; mount /dev/md0 "$mnt"; seq 400000 > "$mnt/later"; umount "$mnt"'
array raid5stale 20M 20M 20M -- --level=5 --chunk=64 $good
LATER=

# group NAME N VOLUMES ARGUMENTS OF LVCREATE...: the images lvm.NAME.N.img
group() {
    local name=$1 count=$2 volumes=$3 devices=() filter= volume
    shift 3
    for ((n = 0; n < count; n++)); do
        rm -f "lvm.$name.$n.img"
        truncate -s 40M "lvm.$name.$n.img"
        devices+=("$(loop "lvm.$name.$n.img")")
    done
    for device in "${devices[@]}"; do filter+="\"a|^$device\$|\","; done
    config="devices { filter=[$filter\"r|.*|\"] use_devicesfile=0 } global { locking_dir=\"/run/lock\" }
        activation { udev_sync=0 udev_rules=0 monitoring=0 raid_region_size=64 } backup { backup=0 archive=0 }"
    pvcreate -q --config "$config" "${devices[@]}" > log 2>&1
    vgcreate -q --config "$config" -s 1M "vg$name" "${devices[@]}" >> log 2>&1
    for arguments in "$@"; do
        # The arguments are words.
        # shellcheck disable=SC2086
        lvcreate -q --config "$config" -y $arguments >> log 2>&1
    done
    dmsetup mknodes
    for volume in $volumes; do
        fill "/dev/mapper/vg$name-$volume" "$name/$volume" && echo "ok $name/$volume" ||
            { echo "FAIL $name/$volume"; tail -n 3 log; }
    done
    vgchange -q --config "$config" -an "vg$name" >> log 2>&1
    losetup -d "${devices[@]}"
}
group lin 2 "one two" "-Zn -Wn -L 50M -n one vglin" "-Zn -Wn -L 17M -n two vglin"
group str 3 s "-Zn -Wn -i3 -I16k -L 60M -n s vgstr"
group mir 2 m "-Zn -Wn --type mirror -m1 --mirrorlog core -L 30M -n m vgmir"
group r1 2 m "-Zn -Wn --type raid1 -m1 -L 30M -n m vgr1"
group thin 1 t "-L 30M -T vgthin/pool" "-V 40M -T vgthin/pool -n t"

echo -n papilio > luks.key
# encrypted NAME SIZE ARGUMENTS OF CRYPTSETUP: the image luks.NAME.img
encrypted() {
    local name=$1 size=$2 device
    shift 2
    rm -f "luks.$name.img"
    truncate -s "$size" "luks.$name.img"
    device=$(loop "luks.$name.img")
    cryptsetup -q luksFormat "$@" ${head:+--header "$head"} "$device" luks.key > log 2>&1 &&
        cryptsetup open --disable-keyring --key-file luks.key ${head:+--header "$head"} "$device" crypt >> log 2>&1 &&
        dmsetup mknodes && fill /dev/mapper/crypt "$name" && echo "ok $name" || { echo "FAIL $name"; tail -n 3 log; }
    cryptsetup close crypt
    losetup -d "$device"
}
cheap="--pbkdf pbkdf2 --pbkdf-force-iterations 1000"
small="--luks2-keyslots-size 512k --luks2-metadata-size 16k"
head=
# The options are words.
# shellcheck disable=SC2086
{
    encrypted 1xts 24M --type luks1 -i 1 -c aes-xts-plain64 -s 512
    encrypted 1xts256 24M --type luks1 -i 1 -c aes-xts-plain64 -s 256 -h sha1
    encrypted 1cbc 24M --type luks1 -i 1 -c aes-cbc-essiv:sha256 -s 256 -h sha256
    encrypted 2id 40M --type luks2 --pbkdf argon2id --pbkdf-force-iterations 4 --pbkdf-memory 32768 --pbkdf-parallel 2
    encrypted 2i 24M --type luks2 --pbkdf argon2i --pbkdf-force-iterations 4 --pbkdf-memory 32768 --pbkdf-parallel 1 $small
    encrypted 2s4096 24M --type luks2 $cheap $small --sector-size 4096
    encrypted 2s2048 24M --type luks2 $cheap $small --sector-size 2048 -c aes-cbc-essiv:sha256 -s 256
    encrypted 2cbc 24M --type luks2 $cheap $small -c aes-cbc-plain64 -s 128 --hash sha512
    rm -f luks.head
    head=$folder/luks.head
    encrypted 2det 24M --type luks2 $cheap
    head=
}
rm -f log
rmdir "$mnt"
