# Prints what programs for Btrfs do in an empty file system, the kernel's or Papilio's mount.
# programs.sh DIRECTORY
set -eu
cd "$1"
step() { printf '%s: ' "$*"; }
config=papilio-$$
end() { snapper --no-dbus -c "$config" delete-config >/dev/null 2>&1 || true; }
trap end EXIT
btrfs subvolume create home >/dev/null
head -c 1000000 /dev/urandom >home/data
cat home/data >home/again
head -c 300000 /dev/zero >home/zeros

snapper() { command snapper --no-dbus "$@"; }
step snapper create-config; snapper -c "$config" create-config -f btrfs "$1/home" && echo done
snapper -c "$config" create -d one
echo new >home/new
echo more >>home/data
rm home/zeros
snapper -c "$config" create -d two
step snapper list; snapper -c "$config" --csvout list --columns number,type,description | xargs
step snapper status; snapper -c "$config" status 1..2 | sed "s|$1||" | xargs
step snapper diff; snapper -c "$config" diff 1..2 "$1/home/new" | grep -c '^+new'
step snapper undochange; snapper -c "$config" undochange 1..2 | xargs
step files; (cd home && ls) | xargs
step read-only; btrfs property get home/.snapshots/1/snapshot ro
snapper -c "$config" delete 1
step snapper delete; snapper -c "$config" --csvout list --columns number | xargs

mkdir snaps backup
cat >btrbk.conf <<EOF
timestamp_format long
snapshot_preserve_min latest
target_preserve_min latest
lockfile $1/lock
transaction_log $1/log
volume $1
  snapshot_dir snaps
  target $1/backup
  subvolume home
EOF
marks() { grep -E '^(\+\+\+|\*\*\*|>>>|---)' | cut -c 1-3 | xargs; }
step btrbk run; btrbk -q -c btrbk.conf run && btrbk -c btrbk.conf list latest --format=raw | grep -c status=.up-to-date
echo later >home/later
step btrbk run again; btrbk -c btrbk.conf --override timestamp_format=long-iso run | marks
step btrbk backups; cat backup/home.*/later | xargs
step btrbk stats; btrbk -c btrbk.conf stats --format=raw | grep -c "snapshots='1' backups='1'"

sync
step duperemove; duperemove -dr -b 4096 --dedupe-options=same home >/dev/null 2>&1 && echo done
sync
step shared; filefrag -v home/again | grep -c shared
step compsize; compsize home/data home/again | awk '$1 == "TOTAL" { print $2, $3, $5 }'
