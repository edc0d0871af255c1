"""polars, xarray and zarr over an image, beside the same steps on the local file system."""

import os

import pytest

if os.environ.get("PAPILIO_DATAFRAMES") != "1":
    pytest.skip("needs PAPILIO_DATAFRAMES=1 (make dataframes)", allow_module_level=True)

import fsspec
import numpy
import polars
import xarray
import zarr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from papilio.fsspec import BtrfsFileSystem

ROWS = 5000


@pytest.fixture(params=["local", "btrfs"])
def place(request, image, tmp_path):
    """Return a file system and a directory in it."""
    if request.param == "local":
        yield LocalFileSystem(auto_mkdir=True), str(tmp_path / "there")
        return
    with BtrfsFileSystem(image, mode="rw", auto_mkdir=True, compress="zstd") as fs:
        yield fs, "/there"


def table():
    return polars.DataFrame({"x": range(ROWS), "y": [number % 7 for number in range(ROWS)]})


def write_tables(fs, folder):
    fs.makedirs(folder, exist_ok=True)
    for number in range(3):
        part = table().slice(number * 1000, 1000)
        with fs.open(f"{folder}/{number}.parquet", "wb") as file:
            part.write_parquet(file)
        with fs.open(f"{folder}/{number}.csv", "wb") as file:
            part.write_csv(file)


def test_polars_reads_open_files(place):
    fs, folder = place
    write_tables(fs, folder)
    expected = table().head(3000)
    for kind, read in (("csv", polars.read_csv), ("parquet", polars.read_parquet)):
        parts = []
        for path in sorted(fs.glob(f"{folder}/*.{kind}")):
            with fs.open(path) as file:
                parts.append(read(file))
        assert polars.concat(parts).equals(expected), kind


def test_polars_scans_open_files(place):
    fs, folder = place
    write_tables(fs, folder)
    for kind, scan in (("csv", polars.scan_csv), ("parquet", polars.scan_parquet)):
        with fs.open(f"{folder}/1.{kind}") as file:
            found = scan(file).filter(polars.col("y") == 3).select(polars.col("x").sum()).collect()
        assert found.item() == sum(number for number in range(1000, 2000) if number % 7 == 3), kind


def test_polars_scans_a_dataset(place):
    import pyarrow.dataset
    import pyarrow.fs

    fs, folder = place
    write_tables(fs, folder)
    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    for kind in ("csv", "parquet"):
        paths = sorted(fs.glob(f"{folder}/*.{kind}"))
        dataset = pyarrow.dataset.dataset(paths, filesystem=arrow, format=kind)
        frame = polars.scan_pyarrow_dataset(dataset).filter(polars.col("x") >= 500)
        assert frame.select(polars.len()).collect().item() == 2500, kind


def test_polars_reads_urls(image):
    with BtrfsFileSystem(image, mode="rw") as fs:
        write_tables(fs, "/there")
    # polars has file systems of its own for URLs, and passes others to fsspec's `open`.
    for kind, read in (("csv", polars.read_csv), ("parquet", polars.read_parquet)):
        with fsspec.open(f"btrfs://there/2.{kind}::file://{image}") as file:
            assert read(file)["x"].sum() == sum(range(2000, 3000)), kind


def grid():
    return xarray.Dataset(
        {
            "t": (("time", "x"), numpy.arange(600.0).reshape(20, 30)),
            "n": ("x", numpy.arange(30)),
        },
        coords={"time": numpy.arange(20)},
        attrs={"title": "a grid"},
    )


def test_xarray_reads_netcdf(place):
    fs, folder = place
    fs.makedirs(folder, exist_ok=True)
    data = grid()
    with fs.open(f"{folder}/a.nc", "wb") as file:
        file.write(bytes(data.to_netcdf(engine="h5netcdf")))
    with fs.open(f"{folder}/a.nc") as file, xarray.open_dataset(file, engine="h5netcdf") as found:
        assert found.t[7, 3].item() == 213
        xarray.testing.assert_identical(found.load(), data)
    paths = [fs.open(f"{folder}/a.nc") for _ in range(2)]
    together = xarray.open_mfdataset(paths, engine="h5netcdf", concat_dim="time", combine="nested")
    assert together.t.sum().compute().item() == 2 * data.t.sum().item()
    together.close()
    for file in paths:
        file.close()


def store(fs, path, read_only=False):
    return zarr.storage.FsspecStore(AsyncFileSystemWrapper(fs, asynchronous=True), read_only=read_only, path=path)


@pytest.mark.parametrize("form", [2, 3])
def test_xarray_writes_and_reads_zarr(place, form):
    fs, folder = place
    data = grid()
    data.to_zarr(store(fs, f"{folder}/a.zarr"), zarr_format=form, mode="w", consolidated=form == 2)
    with xarray.open_zarr(store(fs, f"{folder}/a.zarr", True), consolidated=form == 2) as found:
        xarray.testing.assert_identical(found.load(), data)
    later = data.assign_coords(time=data.time + 20)
    later.to_zarr(store(fs, f"{folder}/a.zarr"), append_dim="time", zarr_format=form, consolidated=form == 2)
    with xarray.open_zarr(store(fs, f"{folder}/a.zarr", True), consolidated=form == 2) as found:
        assert dict(found.sizes) == {"time": 40, "x": 30}
        assert found.t.sum().compute().item() == 2 * data.t.sum().item()


def test_zarr_arrays_are_changed_listed_and_removed(place):
    fs, folder = place
    root = zarr.open_group(store(fs, f"{folder}/g.zarr"), mode="w")
    array = root.create_array("a", shape=(100, 100), chunks=(10, 10), dtype="i4", fill_value=-1)
    array[25:75, 25:75] = numpy.arange(2500).reshape(50, 50)
    root.create_group("sub").create_array("b", shape=(5,), dtype="f8")[:] = 1.5
    again = zarr.open_group(store(fs, f"{folder}/g.zarr"), mode="r+")
    assert sorted(again.keys()) == ["a", "sub"]
    assert again["a"][25, 25] == 0 and again["a"][74, 74] == 2499 and again["a"][0, 0] == -1
    chunks = fs.glob(f"{folder}/g.zarr/a/c/*/*")
    assert len(chunks) == 36
    assert fs.du(f"{folder}/g.zarr") == sum(fs.size(path) for path in fs.find(f"{folder}/g.zarr"))
    again["a"][:] = -1
    del again["sub"]
    assert not fs.exists(f"{folder}/g.zarr/sub")
    assert sorted(zarr.open_group(store(fs, f"{folder}/g.zarr", True), mode="r").keys()) == ["a"]


def test_zarr_reads_a_snapshot_by_its_url(image):
    with BtrfsFileSystem(image, mode="rw", auto_mkdir=True) as fs:
        grid().to_zarr(store(fs, "/data/a.zarr"), zarr_format=3, consolidated=False)
        fs.image.snapshot("/", "/monday", read_only=True)
        fs.rm("/data", recursive=True)
    with xarray.open_zarr(f"btrfs://monday/data/a.zarr::file://{image}", consolidated=False) as found:
        xarray.testing.assert_identical(found.load(), grid())
    with xarray.open_zarr(f"simplecache::btrfs://monday/data/a.zarr::file://{image}", consolidated=False) as found:
        assert found.t.sum().compute().item() == grid().t.sum().item()
    mapper = fsspec.get_mapper(f"btrfs://monday/data/a.zarr::file://{image}")
    assert sorted(mapper)[:1] == ["n/c/0"] and "zarr.json" in mapper
