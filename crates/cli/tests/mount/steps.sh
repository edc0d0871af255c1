# What containers, package managers and their users do with files, and what moves them between
# subvolumes. Run in an empty file system at $1. Prints a line for each step: the command, its
# output, and its exit code. The lines are the same on the kernel's Btrfs.
set -u
where=$1
cd "$where"
umask 022
step() {
    local output code
    output=$("$@" 2>&1)
    code=$?
    printf '%s -> %s [%d]\n' "$*" "$(printf '%s' "$output" | head -n 3 | tr '\n' '|')" "$code" | sed "s#$where#WHERE#g"
}
as_user() { setpriv --reuid 1000 --regid 1000 --clear-groups "$@"; }
as_other() { setpriv --reuid 1001 --regid 1001 --clear-groups "$@"; }

# Privileges of programs, and their loss.
mkdir d
chmod 777 d
cp /bin/true program
step chmod 4755 program
step chown 1000:1000 program
step stat -c '%a %u' program
step chmod 4755 program
step as_user sh -c 'echo x >> program'
step stat -c '%a %u' program
cp /bin/true capable
step setcap cap_net_raw+ep capable
step getcap capable
step chown 1000:1000 capable
step getcap capable
step setcap cap_net_raw+ep capable
step sh -c 'echo >> capable'
step getcap capable
step setcap cap_net_raw+ep capable
step mv capable moved
step getcap moved
step ln moved linked
step getcap linked
step cp -a moved copied
step getcap copied
chmod 6755 copied
step truncate -s 10 copied
step stat -c %a copied
step chmod 2755 d
step mkdir d/below
step stat -c %a d/below
chmod 1777 d
step as_user touch d/mine
step as_other rm -f d/mine
step ls d

# Flags of inodes.
echo a > fixed
step chattr +i fixed
step rm -f fixed
step sh -c 'echo b >> fixed'
step mv fixed other
step ln fixed other
step chattr -i fixed
step chattr +a fixed
step sh -c 'echo b >> fixed'
step sh -c 'echo b > fixed'
step truncate -s 0 fixed
step lsattr fixed
step chattr -a fixed
step cat fixed
touch plain
step chattr +C plain
step chattr +A plain
step lsattr plain
step chattr +c plain
step chattr -C plain
step chattr +c plain
step lsattr plain
step as_user chattr +i d/mine

# An overlay whose upper directory is here.
mkdir lower upper work merged
echo low > lower/f
echo gone > lower/g
step mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
step cat merged/f
step sh -c 'echo up > merged/f'
step rm merged/g
step mkdir merged/new
step mv merged/new merged/renamed
step ls merged
step cat lower/f upper/f
step stat -c '%F %t,%T' upper/g
step setfattr -n user.x -v 1 merged/f
step getfattr --only-values -n user.x upper/f
step chmod 600 merged/f
step chown 5:6 merged/f
step stat -c '%a %u %g' upper/f
step umount merged
step mount -t overlay overlay -o lowerdir=upper:lower merged
step ls merged
step umount merged

# User namespaces, special files, other mounts.
step unshare -Ur sh -c 'id -u; touch d/inside; stat -c %u d/inside; chown 1 d/inside'
step unshare -U sh -c 'stat -c %u program'
step as_user unshare -Ur sh -c 'echo hi > d/inside2 && stat -c "%u %g" d/inside2'
step stat -c '%u %g' d/inside2
step as_user unshare -Ur mknod d/device c 1 3
step mknod null c 1 3
step sh -c 'echo x > null'
step mkfifo fifo
step stat -c %F fifo
mkdir bound
step mount --bind d bound
step ls bound
step umount bound

# Access control lists and attributes.
step setfacl -m u:1000:rwx fixed
step getfacl -c fixed
step setfacl -d -m g:100:rx d
step touch d/inherits
step getfacl -c d/inherits
step as_user setfattr -n trusted.a -v 1 d/mine
step setfattr -n trusted.a -v 1 fixed
step getfattr --only-values -n trusted.a fixed
step as_user getfattr -n trusted.a fixed
step setfattr -n security.foo -v x fixed
step getfattr --only-values -n security.foo fixed

# Locks, sizes, links.
step flock -n fixed true
step flock -x fixed flock -n fixed true
step dd if=fixed of=/dev/null iflag=direct bs=4096 status=none
step fallocate -l 1M room
step stat -c '%s %b' room
step fallocate -p -o 0 -l 512K room
step stat -c '%s %b' room
step truncate -s 10M sparse
step stat -c '%s %b' sparse
step cp --sparse=always sparse sparse2
step stat -c %b sparse2
step ln -s d/inherits link
step readlink -f link
step chown -h 7:8 link
step stat -c '%u %g' link
step touch -h -d @1 link
step stat -c %Y link
step mv -T d bound
step ls bound
step rmdir bound
step rm -r bound lower upper

# Subvolumes: names do not cross them, and programs copy instead.
step btrfs -q subvolume create one
step btrfs -q subvolume create two
mkdir one/tree
for number in 1 2 3; do head -c 5000 /dev/zero | tr '\0' "$number" > "one/tree/$number"; done
ln one/tree/1 one/tree/linked
setfattr -n user.kept -v yes one/tree/2
step ln one/tree/1 two/link
step python3 -c 'import os; os.rename("one/tree/1", "two/moved")'
step python3 -c 'import os; os.rename("one/tree", "two/tree")'
step mv one/tree two/tree
step ls one two/tree
step stat -c '%h %s' two/tree/1 two/tree/linked
step getfattr --only-values -n user.kept two/tree/2
step cp -a two/tree one/copy
step stat -c '%h %a %u' one/copy/1
step diff -r two/tree one/copy
step cp --reflink=auto two/tree/3 one/third
step cmp two/tree/3 one/third
step mv one/copy two/tree/3
step mv -n one/third two/tree/3
step ls one
step btrfs -q subvolume snapshot -r two kept
step mv kept/tree one/stolen
step ls kept/tree
step rmdir two
step rm -r two
step ls
step find . -maxdepth 1 -newermt 1990-01-01 -printf '%f %y %m %u\n'
