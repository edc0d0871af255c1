#!/bin/sh
# Links the shared library: link.sh ARCHIVE FOLDER makes FOLDER/libpapilio.so.VERSION and its links.
#
# It is linked here and not by cargo, because rustc passes a version script of its own to the
# linker, which excludes another that gives the symbols a version.
set -eu

archive=$1
folder=$2
here=$(dirname "$0")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml" | head -n 1)
soname=libpapilio.so.0

mkdir -p "$folder"
# The calls of the interface are undefined here, so that the linker takes them from the archive.
wanted=$(sed -n 's/^ *\(papilio_[a-z_]*\);.*/-Wl,-u,\1/p' "$here/papilio.map")
# shellcheck disable=SC2086
"${CC:-cc}" -shared -o "$folder/libpapilio.so.$version.new" \
    -Wl,-soname,$soname -Wl,--version-script="$here/papilio.map" -Wl,--gc-sections -Wl,-z,relro,-z,now \
    -Wl,--no-undefined $wanted "$archive" -lpthread -ldl -lm
mv -f "$folder/libpapilio.so.$version.new" "$folder/libpapilio.so.$version"
ln -sfn libpapilio.so.$version "$folder/$soname"
ln -sfn $soname "$folder/libpapilio.so"
