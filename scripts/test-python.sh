#!/usr/bin/env bash
# Builds the Python wheel and runs its tests in a virtual environment below target/.
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

# The profile of the other tests, whose dependencies are built already.
wheels=$PWD/target/python-wheel
rm -rf "$wheels"
"$environment/bin/maturin" build --quiet --locked --profile dev --strip \
    --interpreter "$environment/bin/python" --manifest-path crates/python/Cargo.toml --out "$wheels"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
    "$wheels"/papilio-*.whl
# The C library and the command, for histories that all interfaces run. `make test` has built them:
# the archive is beside the tests.
archive=target/debug/libpapilio_capi.a
if [ -n "${PAPILIO_AFTER_TESTS:-}" ]; then
    archive=$(find target/debug/deps -name 'libpapilio_capi-*.a' -printf '%T@ %p\n' | sort -n | tail -n 1)
    archive=${archive#* }
else
    cargo build --quiet --locked -p papilio-capi -p papilio-cli
fi
sh crates/capi/link.sh "$archive" target/python-capi
export PAPILIO_LIBRARY=$PWD/target/python-capi/libpapilio.so
export PAPILIO_COMMAND=$PWD/target/debug/papilio
# Outside of the sources, so that the installed package is tested.
cd target
"$environment/bin/python" -m pytest -q -p no:cacheprovider --rootdir ../crates/python ../crates/python/tests "$@"
