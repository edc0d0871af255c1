"""The fsspec file system, by the abstract tests of fsspec and by chained URLs."""

import fsspec
import fsspec.tests.abstract as abstract
import papilio
import pytest
from papilio.fsspec import BtrfsFileSystem


class BtrfsFixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, tmp_path_factory):
        image = str(tmp_path_factory.mktemp("fsspec") / "store.img")
        papilio.mkfs(image, size=128 << 20)
        with BtrfsFileSystem(image, mode="rw", auto_mkdir=True, commit_interval=None) as fs:
            yield fs
        assert papilio.check(image).is_clean

    @pytest.fixture
    def fs_path(self):
        return "/"


class TestBtrfsCopy(abstract.AbstractCopyTests, BtrfsFixtures):
    pass


class TestBtrfsGet(abstract.AbstractGetTests, BtrfsFixtures):
    pass


class TestBtrfsPut(abstract.AbstractPutTests, BtrfsFixtures):
    pass


class TestBtrfsOpen(abstract.AbstractOpenTests, BtrfsFixtures):
    pass


class TestBtrfsPipe(abstract.AbstractPipeTests, BtrfsFixtures):
    pass


@pytest.fixture
def filled(image):
    with papilio.open(image, "rw") as fs:
        fs.mkdir("/data")
        fs.path("/data/a.csv").write_text("x,y\n1,2\n")
        fs.snapshot("/", "/monday", read_only=True)
        fs.path("/data/a.csv").write_text("x,y\n3,4\n")
        fs.path("/large").write_bytes(b"0123456789" * 100_000)
    return image


def test_chained_urls(filled):
    assert "btrfs" in fsspec.available_protocols()
    for target in (f"file://{filled}", filled):
        with fsspec.open(f"btrfs://data/a.csv::{target}") as file:
            assert file.read() == b"x,y\n3,4\n"
        with fsspec.open(f"btrfs://monday/data/a.csv::{target}", "rt") as file:
            assert file.read() == "x,y\n1,2\n"
    # The file keeps its file system open.
    file = fsspec.open(f"btrfs://large::{filled}").open()
    assert file.read(3) == b"012" and file.seek(-1, 2) and file.read() == b"9"
    assert [of.path for of in fsspec.open_files(f"btrfs://data/*.csv::{filled}")] == ["/data/a.csv"]


def test_files_have_a_size(filled):
    with BtrfsFileSystem(filled) as fs:
        for buffering in ("rb", "r"):
            with fs.open("/large", buffering) as file:
                assert getattr(file, "buffer", file).size == 1_000_000
        assert fs.read_block("/large", 5, 10) == b"5678901234"
        assert fs.read_block("/data/a.csv", 3, 4, delimiter=b"\n") == b"3,4\n"
        for kind in ("readahead", "bytes", "all", "blockcache", "background"):
            with fs.open("/large", "rb", cache_type=kind) as file:
                assert file.size == 1_000_000 and file.read(3) == b"012"
    for protocol in ("filecache", "simplecache"):
        with fsspec.open(f"{protocol}::btrfs://data/a.csv::file://{filled}") as file:
            assert file.read() == b"x,y\n3,4\n"


def test_links(image):
    with BtrfsFileSystem(image, mode="rw") as fs:
        fs.pipe_file("/file", b"x")
        fs.symlink("file", "/link")
        fs.symlink("nowhere", "/broken")
        fs.link("/file", "/again")
        assert fs.islink("/link") and fs.islink("btrfs:///broken") and not fs.islink("/file")
        assert not fs.islink("/missing") and fs.lexists("/broken") and not fs.lexists("/missing")
        assert fs.cat_file("/link") == b"x" and fs.info("/again")["nlink"] == 2


def test_an_image_behind_another_file_system(filled):
    memory = fsspec.filesystem("memory")
    with open(filled, "rb") as file:
        memory.pipe("/store.img", file.read())
    fetched = []
    plain = memory.cat_file
    memory.cat_file = lambda path, start=None, end=None: fetched.append(end - start) or plain(path, start, end)
    try:
        with fsspec.open("btrfs://data/a.csv::memory://store.img") as file:
            assert file.read() == b"x,y\n3,4\n"
        assert 0 < sum(fetched) < 4 << 20, "only some blocks are fetched"
        with pytest.raises(ValueError, match="local"):
            fsspec.filesystem("btrfs", fo="memory://store.img", mode="rw")
    finally:
        del memory.cat_file
        memory.rm("/store.img")
    with open(filled, "rb") as file:
        fs = fsspec.filesystem("btrfs", fo=file)
        assert fs.cat_file("/large", start=-3) == b"789" and fs.cat_file("/large", 5, 8) == b"567"


def test_writing_and_transactions(image):
    with BtrfsFileSystem(image, mode="rw") as fs:
        fs.mkdir("/a/b")
        with fs.open("/a/b/f", "wb") as file:
            file.write(b"one")
        with fs.transaction:
            with fs.open("/a/b/f", "wb") as file:
                file.write(b"two")
            assert fs.cat_file("/a/b/f") == b"one"
        assert fs.cat_file("/a/b/f") == b"two" and fs.ls("/a/b", detail=False) == ["/a/b/f"]
        with pytest.raises(ZeroDivisionError), fs.transaction:
            with fs.open("/a/b/f", "wb") as file:
                file.write(b"three")
            1 / 0
        assert fs.cat_file("/a/b/f") == b"two" and fs.ls("/a/b", detail=False) == ["/a/b/f"]
        fs.cp_file("/a/b/f", "/a/g")
        fs.mv("/a/g", "/h")
        fs.rm("/a", recursive=True)
        assert fs.find("/") == ["/h"] and fs.modified("/h") >= fs.created("/h")
    with BtrfsFileSystem(image) as fs, pytest.raises(OSError):
        fs.touch("/new")


def test_bad_images(tmp_path):
    with pytest.raises(ValueError, match="name the image"):
        fsspec.filesystem("btrfs")
    with pytest.raises(FileNotFoundError):
        fsspec.filesystem("btrfs", fo=str(tmp_path / "none"))
