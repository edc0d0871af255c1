#!/usr/bin/env bash
# Installs the Python module in a virtual environment below target/ and runs its tests. `make wheel`
# builds the wheel.
#
# The environment has maturin, pytest and fsspec from PyPI. Arguments go to pytest. Without Python
# 3.9 or newer, its venv module or PyPI the step says that it was skipped; with
# PAPILIO_REQUIRE_ALL=1 it fails. PAPILIO_PYTHON chooses the interpreter. With PAPILIO_DATAFRAMES=1
# it also installs pandas, pyarrow, DuckDB, Dask, s3fs, moto, polars, xarray with h5netcdf, and zarr,
# and runs the tests that use them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

skip() {
    printf 'test-python: skipped: %s\n' "$1" >&2
    [ "${PAPILIO_REQUIRE_ALL:-0}" != 1 ] || exit 1
    exit 0
}

environment=$PWD/target/python-venv
packages=(maturin pytest fsspec)
[ "${PAPILIO_DATAFRAMES:-0}" != 1 ] || packages+=(
    pandas pyarrow duckdb 'dask[dataframe,distributed]' s3fs 'moto[server]' polars xarray h5netcdf h5py zarr
)

# pyenv's python3 may exist without a version behind it.
python=
for candidate in "${PAPILIO_PYTHON:-}" python3 /usr/bin/python3; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || skip "there is no Python 3.9 or newer with the module venv (Debian: python3-venv)"
# An environment of another interpreter, or one that was moved, is made anew.
if ! "$environment/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$environment"
    "$python" -m venv "$environment"
fi
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}" ||
    skip "pip cannot install ${packages[*]}"

# The module, the C library and the command are those that `make test` has built, with the features
# of the whole workspace: alone each would be built again, with all dependencies.
[ -n "${PAPILIO_AFTER_TESTS:-}" ] ||
    cargo test --quiet --workspace --locked --no-run --test module --test c --test command
archive=$(find target/debug/deps -name 'libpapilio_capi-*.a' -printf '%T@ %p\n' | sort -n | tail -n 1)
archive=${archive#* }
# Installed as maturin's wheel is: the files in Python, the module, and the package's metadata.
packages=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
rm -rf "$packages"/papilio "$packages"/papilio-*.dist-info
cp -r crates/python/python/papilio "$packages/papilio"
cp target/debug/deps/libpapilio_python.so "$packages/papilio/_papilio.abi3.so"
(cd crates/python && "$environment/bin/maturin" pep517 write-dist-info --metadata-directory "$packages" \
    --interpreter "$environment/bin/python" > /dev/null)
sh crates/capi/link.sh "$archive" target/python-capi
export PAPILIO_LIBRARY=$PWD/target/python-capi/libpapilio.so
export PAPILIO_COMMAND=$PWD/target/debug/papilio
# Outside of the sources, so that the installed package is tested.
cd target
"$environment/bin/python" -m pytest -q -p no:cacheprovider --rootdir ../crates/python ../crates/python/tests "$@"
