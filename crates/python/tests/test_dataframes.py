"""pandas, pyarrow, DuckDB and Dask read out of an image and a snapshot: `make dataframes`."""

import os

import papilio
import pytest

if os.environ.get("PAPILIO_DATAFRAMES") != "1":
    pytest.skip("needs PAPILIO_DATAFRAMES=1 (make dataframes)", allow_module_level=True)

import duckdb
import pandas
import pyarrow.dataset
import pyarrow.fs
from papilio.fsspec import BtrfsFileSystem


@pytest.fixture
def filled(image):
    old = pandas.DataFrame({"x": range(1000), "y": [number * 2 for number in range(1000)]})
    with BtrfsFileSystem(image, mode="rw", compress="zstd") as fs:
        fs.mkdir("/data")
        with fs.open("/data/a.csv", "wb") as file:
            old.to_csv(file, index=False)
        with fs.open("/data/a.parquet", "wb") as file:
            old.to_parquet(file)
        fs.image.snapshot("/", "/monday", read_only=True)
        new = old.assign(y=7)
        with fs.open("/data/a.csv", "wb") as file:
            new.to_csv(file, index=False)
        with fs.open("/data/a.parquet", "wb") as file:
            new.to_parquet(file)
    return image


SUMS = {"data": 7000, "monday/data": 999_000}


@pytest.mark.parametrize("folder", SUMS)
def test_pandas(filled, folder):
    csv = pandas.read_csv(f"btrfs://{folder}/a.csv::file://{filled}")
    parquet = pandas.read_parquet(f"btrfs://{folder}/a.parquet::file://{filled}")
    assert csv.y.sum() == parquet.y.sum() == SUMS[folder]


@pytest.mark.parametrize("folder", SUMS)
def test_pyarrow(filled, folder):
    with BtrfsFileSystem(filled) as fs:
        arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
        dataset = pyarrow.dataset.dataset(f"/{folder}/a.parquet", filesystem=arrow)
        assert sum(dataset.to_table()["y"].to_pylist()) == SUMS[folder]


@pytest.mark.parametrize("folder", SUMS)
def test_duckdb(filled, folder):
    with BtrfsFileSystem(filled) as fs:
        base = duckdb.connect()
        base.register_filesystem(fs)
        for name in ("read_csv('btrfs:///{}/a.csv')", "read_parquet('btrfs:///{}/a.parquet')"):
            assert base.sql(f"select sum(y) from {name.format(folder)}").fetchall()[0][0] == SUMS[folder]
        base.close()


@pytest.mark.parametrize("folder", SUMS)
def test_dask(filled, folder):
    import dask.dataframe

    frame = dask.dataframe.read_csv(f"btrfs://{folder}/*.csv::file://{filled}")
    assert frame.y.sum().compute(scheduler="threads") == SUMS[folder]
    with papilio.open(filled) as fs:
        assert fs.isfile(f"/{folder}/a.csv")
