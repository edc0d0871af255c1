# Functions of release.sh and packages.sh that make files which depend on nothing but their content.
# Needs bash. SOURCE_DATE_EPOCH is the time of the release; without it, that of the last commit,
# or of Cargo.toml in sources without git.

# release_environment: sets what programs read from the environment to the same on every machine.
release_environment() {
    export LC_ALL=C TZ=UTC
    umask 022
    : "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2> /dev/null || stat -c %Y Cargo.toml)}"
    export SOURCE_DATE_EPOCH
}

# build_environment ROOT: as release_environment, and hides ROOT and cargo's home from the compilers,
# which write paths into messages of panics.
build_environment() {
    local root=$1 home=${CARGO_HOME:-$HOME/.cargo}
    release_environment
    export CARGO_INCREMENTAL=0
    export RUSTFLAGS="--remap-path-prefix=$root=/papilio --remap-path-prefix=$home=/cargo"
    # zstd and ring are compiled by a C compiler.
    export CFLAGS="-ffile-prefix-map=$root=/papilio -ffile-prefix-map=$home=/cargo"
}

# pack FOLDER NAME FILE PART...: writes the parts of FOLDER, below NAME, into the .tar.gz FILE. Names
# are sorted, owners are root, and times, modes and the header of gzip tell nothing of this machine.
pack() {
    local folder=$1 name=$2 file=$3
    shift 3
    tar -C "$folder" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner \
        --mtime="@$SOURCE_DATE_EPOCH" --mode=u+rw,go+r-w,a-s,a+X \
        --transform "s|^\./usr|$name|;s|^\./|$name/|;s|^\.\$|$name|" -cf - "$@" | gzip -9n > "$file"
}

# installed_size FOLDER: prints the size of a package in KiB, by the lengths of its files and not by
# what this machine's file system takes for them.
installed_size() {
    find "$1" -path "$1/DEBIAN" -prune -o -type f -printf '%s\n' -o -printf '1024\n' |
        awk '{ sum += int(($1 + 1023) / 1024) } END { print sum }'
}

# sums FOLDER: writes FOLDER/SHA256SUMS of all other files in it.
sums() {
    (
        cd "$1"
        rm -f SHA256SUMS SHA256SUMS.*
        find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%P\n' | sort | xargs -d '\n' sha256sum
    ) > "$1.sums"
    mv "$1.sums" "$1/SHA256SUMS"
}

# sign KIND KEY FILE: signs a file with a key: ssh (a private key's file), minisign (a secret key's
# file), gpg (the name of a key).
sign() {
    case $1 in
    ssh) ssh-keygen -q -Y sign -f "$2" -n papilio-release "$3" ;;
    minisign) minisign -S -s "$2" -m "$3" -t "papilio, $(date -u -d "@$SOURCE_DATE_EPOCH" +%F)" ;;
    gpg) gpg --batch --yes --local-user "$2" --armor --detach-sign "$3" ;;
    *)
        echo "release: cannot sign with $1: there are ssh, minisign and gpg" >&2
        return 2
        ;;
    esac
}
