"""pandas, pyarrow, DuckDB and Dask read out of an image and a snapshot: `make dataframes`."""

import json
import os
import subprocess
import sys

import papilio
import pytest

if os.environ.get("PAPILIO_DATAFRAMES") != "1":
    pytest.skip("needs PAPILIO_DATAFRAMES=1 (make dataframes)", allow_module_level=True)

import duckdb
import fsspec
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


@pytest.fixture
def bucket():
    """Return the address of an S3 server with a bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    options = {"key": "test", "secret": "test", "endpoint_url": endpoint}
    fsspec.filesystem("s3", **options).mkdir("bucket")
    yield options
    server.stop()


def test_dask_workers_scan_one_image_on_s3(image, bucket):
    with papilio.open(image, "rw") as fs:
        for subvolume in ["/a", "/a/nested", "/b"]:
            fs.create_subvolume(subvolume)
        for top in ["/", "/a", "/a/nested", "/b"]:
            for directory in ["x", "y/z"]:
                below = f"{top}/{directory}"
                fs.makedirs(below)
                for number in range(12):
                    fs.path(f"{below}/{number}").write_bytes(os.urandom(20_000 * number))
                fs.symlink("0", f"{below}/link")
        fs.snapshot("/b", "/snapshot", read_only=True)
        expected = sum(1 for _, _, names in fs.walk("/") for _ in names)
    fsspec.filesystem("s3", **bucket).put(image, "bucket/disk.img")

    script = os.path.join(os.path.dirname(__file__), "..", "examples", "scan.py")

    def run(workers):
        command = [sys.executable, script, "s3://bucket/disk.img", "--workers", str(workers)]
        command += ["--options", json.dumps(bucket)]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300).stdout)

    alone, spread = run(0), run(3)
    assert alone == spread
    assert sorted(alone) == ["/", "/a", "/a/nested", "/b", "/snapshot"]
    assert sum(totals["files"] for totals in alone.values()) == expected == 5 * 26
    assert all(totals["bytes"] == 2 * 20_000 * 66 and totals["directories"] == 4 for totals in alone.values())
    with papilio.open(image, "rw") as fs, fs.open("/b/x/1", "r+b", 0) as file:
        file.pwrite(b"changed", 0)
    fsspec.filesystem("s3", **bucket).put(image, "bucket/disk.img")
    changed = run(2)
    assert [path for path in alone if alone[path] != changed[path]] == ["/b"]
