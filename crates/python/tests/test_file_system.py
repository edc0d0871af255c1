"""File systems, files and paths, without a kernel."""

import errno
import gc
import io
import os
import signal
import tarfile
import threading
import time
import warnings

import papilio
import pytest


def test_errors_have_errno_and_filename(fs):
    with pytest.raises(FileNotFoundError) as missing:
        fs.stat("/no/such")
    assert (missing.value.errno, missing.value.filename) == (errno.ENOENT, "/no/such")
    with pytest.raises(FileNotFoundError) as missing:
        fs.rename(b"/a", b"/b")
    assert (missing.value.filename, missing.value.filename2) == (b"/a", b"/b")
    fs.mkdir("/d")
    fs.path("/d/f").write_text("x")
    with pytest.raises(OSError) as full:
        fs.rmdir("/d")
    assert full.value.errno == errno.ENOTEMPTY
    with pytest.raises(IsADirectoryError):
        fs.open("/d")
    with pytest.raises(ValueError):
        fs.stat("/a\0b")
    with pytest.raises(TypeError):
        fs.stat(3)


def test_a_closed_file_system_refuses_calls(image):
    fs = papilio.open(image, "rw")
    file = fs.open("/f", "wb")
    file.write(b"buffered")
    entries = fs.scandir("/")
    fs.close()
    fs.close()
    assert fs.closed and file.closed
    for call in (lambda: fs.stat("/"), lambda: file.write(b""), fs.sync, lambda: fs.path("/f").read_bytes()):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert list(entries) == []
    # The image is free again, and closing wrote the buffer.
    with papilio.open(image, "rw") as again:
        assert again.path("/f").read_bytes() == b"buffered"


def test_reading_only_refuses_changes(image):
    with papilio.open(image) as fs:
        for call in (lambda: fs.mkdir("/d"), lambda: fs.open("/f", "w"), fs.sync):
            with pytest.raises(OSError) as refused:
                call()
            assert refused.value.errno == errno.EROFS


def test_bad_arguments_and_images(image, tmp_path):
    with pytest.raises(ValueError, match="mode"):
        papilio.open(image, "w")
    with pytest.raises(ValueError, match="zip"):
        papilio.open(image, compress="zip")
    with pytest.raises(FileNotFoundError):
        papilio.open(tmp_path / "missing")
    empty = tmp_path / "empty"
    empty.write_bytes(bytes(1 << 20))
    with pytest.raises(OSError) as refused:
        papilio.open(empty)
    assert refused.value.errno == errno.EINVAL
    with papilio.open(image, "rw"):
        with pytest.raises(OSError) as used:
            papilio.open(image, "rw")
        assert used.value.errno == errno.EBUSY


def test_corruption_is_an_exception_of_its_own(image):
    with papilio.open(image, "rw") as fs:
        fs.path("/f").write_bytes(b"papilio " * 10_000)
    with open(image, "r+b") as raw:
        data = raw.read()
        at = data.index(b"papilio papilio ")
        raw.seek(at)
        raw.write(b"X")
    with papilio.open(image) as fs, pytest.raises(papilio.CorruptError, match="checksum") as corrupt:
        fs.path("/f").read_bytes()
    assert corrupt.value.errno == errno.EIO and corrupt.value.filename == "/f"
    seen = []
    report = papilio.check(image, data_csum=True, progress=lambda *at: seen.append(at))
    assert not report.is_clean and report.errors == 1 and seen
    assert report.counts == {"data-checksum": 1}
    assert report.findings[0].kind == "data-checksum" and "data-checksum" in str(report.findings[0])


def test_names_that_are_not_utf8(fs):
    fs.mkdir(b"/\xff")
    assert fs.listdir("/") == ["\udcff"] and fs.listdir(b"/") == [b"\xff"]
    assert fs.stat("/\udcff").st_ino == fs.stat(b"/\xff").st_ino
    assert next(iter(fs.scandir(b"/"))).path == b"/\xff"
    assert [path.name for path in fs.path("/").iterdir()] == ["\udcff"]
    fs.symlink(b"\xfe", "/link")
    assert fs.readlink("/link") == "\udcfe" and fs.readlink(b"/link") == b"\xfe"


def test_modes_of_open(fs, tmp_path):
    """Files in an image behave as those of the host, mode by mode."""

    def run(opener, mode):
        log = []
        try:
            with opener(mode) as file:
                for step in (
                    lambda: file.write(b"abc"), lambda: file.seek(0), lambda: file.read(2), lambda: file.tell(),
                    lambda: file.write(b"Z"), lambda: file.truncate(), lambda: file.seek(0, 2), lambda: file.tell(),
                    lambda: file.readable(), lambda: file.writable(), lambda: file.seekable(),
                ):
                    try:
                        log.append(step())
                    except (OSError, io.UnsupportedOperation) as error:
                        log.append("refused")
        except OSError as error:
            log.append(type(error))
        return log

    for buffering in (-1, 0, 3):
        for mode in ("rb", "r+b", "wb", "w+b", "xb", "x+b", "ab", "a+b"):
            for exists in (False, True):
                host = tmp_path / "f"
                host.unlink(missing_ok=True)
                fs.path("/f").unlink(missing_ok=True)
                if exists:
                    host.write_bytes(b"0123456789")
                    fs.path("/f").write_bytes(b"0123456789")
                expected = run(lambda how: open(host, how, buffering), mode)
                assert run(lambda how: fs.open("/f", how, buffering), mode) == expected, (mode, exists, buffering)
                if host.exists():
                    assert fs.path("/f").read_bytes() == host.read_bytes(), (mode, exists, buffering)
    for mode in ("", "q", "rw", "rbt", "rr"):
        with pytest.raises(ValueError):
            fs.open("/f", mode)


def test_text_files(fs):
    with fs.open("/t", "w", encoding="utf-16", newline="\r\n") as file:
        file.write("één\ntwee\n")
    with fs.open("/t", encoding="utf-16") as file:
        assert list(file) == ["één\n", "twee\n"]
    assert fs.path("/t").read_bytes().endswith("\r\n".encode("utf-16-le"))


def test_raw_files_read_without_copies_and_find_holes(fs):
    with fs.open("/f", "w+b", 0) as file:
        file.seek(1 << 20)
        file.write(b"data")
        assert file.seek(0, os.SEEK_DATA) == 1 << 20
        assert file.seek(0, os.SEEK_HOLE) == 0
        with pytest.raises(OSError) as beyond:
            file.seek(1 << 30, os.SEEK_DATA)
        assert beyond.value.errno == errno.ENXIO
        target = bytearray(b"........")
        assert file.preadinto(memoryview(target)[2:6], 1 << 20) == 4
        assert target == b"..data.."
        assert file.pwrite(b"DA", 1 << 20) == 2 and file.pread(10, 1 << 20) == b"DAta"
        with pytest.raises((BufferError, TypeError)):
            file.readinto(b"constant")
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
        file.punch_hole(1 << 20, 2)
        assert file.pread(4, 1 << 20) == b"\0\0ta"
        file.fsync()


def test_walk_is_that_of_os(fs, tmp_path):
    for base, make, link in ((fs, fs.makedirs, fs.symlink), (os, os.makedirs, os.symlink)):
        top = "/top" if base is fs else str(tmp_path / "top")
        make(top + "/a/b")
        make(top + "/c")
        link("a", top + "/link")
        for topdown in (True, False):
            for follow in (True, False):
                walked = base.walk(top, topdown=topdown, followlinks=follow)
                found = [(path[len(top) :], sorted(dirs), files) for path, dirs, files in walked]
                if base is fs:
                    fs._found = getattr(fs, "_found", []) + [sorted(found)]
                else:
                    assert sorted(found) == fs._found.pop(0)
    missing = []
    assert list(fs.walk("/none", onerror=missing.append)) == [] and missing[0].filename == "/none"


def test_paths_are_those_of_pathlib(fs, tmp_path):
    import pathlib

    for root in (fs.path("/root"), pathlib.Path(tmp_path / "root")):
        (root / "a/b").mkdir(parents=True)
        (root / "a/x.txt").write_text("one")
        (root / "a/b/y.txt").write_text("two")
        (root / "link").symlink_to("a")
    def names(root, found):
        return sorted(str(path.relative_to(root)) for path in found)

    ours, hosts = fs.path("/root"), tmp_path / "root"
    for pattern in ("*", "**/*.txt", "a/*", "a/b", "*/x.txt", "?", "[ab]", "none", "a/*/y.txt"):
        assert names(ours, ours.glob(pattern)) == names(hosts, hosts.glob(pattern)), pattern
    assert names(ours, ours.rglob("*.txt")) == ["a/b/y.txt", "a/x.txt"]
    assert (ours / "a").parent == ours and isinstance((ours / "a").parent, papilio.Path)
    assert (ours / "link" / "x.txt").resolve() == ours / "a/x.txt"
    assert (ours / "link").is_symlink() and (ours / "link").is_dir() and not (ours / "none").exists()
    with pytest.raises(FileExistsError):
        ours.mkdir()
    ours.mkdir(exist_ok=True)
    (ours / "a/x.txt").rename("/moved")
    assert fs.path("/moved").read_text() == "one"
    with pytest.raises(NotImplementedError):
        list(ours.glob("/abs"))


def test_snapshots_send_receive_and_diff(fs, tmp_path):
    fs.create_subvolume("/sub")
    fs.path("/sub/keep").write_text("same")
    fs.path("/sub/gone").write_text("x")
    fs.path("/sub/old").write_text("renamed")
    fs.path("/sub/data").write_bytes(b"1" * 100_000)
    fs.snapshot("/sub", "/one", read_only=True)
    fs.unlink("/sub/gone")
    fs.mkdir("/sub/dir")
    fs.rename("/sub/old", "/sub/dir/new")
    fs.path("/sub/data").write_bytes(b"2" * 100_000)
    fs.chmod("/sub/keep", 0o600)
    fs.snapshot("/sub", "/two", read_only=True)
    found = {(change.kind, change.path, change.old_path, change.data) for change in fs.diff("/one", "/two")}
    assert found - {("modified", "/", None, False)} == {
        ("added", "/dir", None, True),
        ("removed", "/gone", None, False),
        ("renamed", "/dir/new", "/old", False),
        ("modified", "/data", None, True),
        ("modified", "/keep", None, False),
    }
    with pytest.raises(OSError) as refused:
        fs.send("/sub", io.BytesIO())
    assert "read-only" in str(refused.value)

    other = str(tmp_path / "other.img")
    papilio.mkfs(other, size=256 << 20)
    full, part = io.BytesIO(), tmp_path / "part"
    fs.send("/one", full)
    with open(part, "wb") as file:
        commands, size = fs.send("/two", file.fileno(), parent="/one")
    assert part.stat().st_size == size and commands > 5
    with papilio.open(other, "rw") as target:
        full.seek(0)
        assert target.receive(full) == [("one", True)]
        with open(part, "rb") as file:
            assert target.receive(file) == [("two", True)]
        assert target.path("/two/data").read_bytes() == b"2" * 100_000
        assert target.subvolume("/two").received_uuid == fs.subvolume("/two").uuid
        with pytest.raises(OSError):
            target.receive(io.BytesIO(b"nonsense"))
        target.delete_subvolume("/two")
        assert not target.exists("/two")

    class Broken(io.RawIOBase):
        def write(self, data):
            raise KeyError("disk on fire")

    with pytest.raises(KeyError, match="disk on fire"):
        fs.send("/one", Broken())


def test_space_sharing(image):
    with papilio.open(image, "rw") as fs:
        fs.create_subvolume("/a")
        fs.path("/a/f").write_bytes(os.urandom(1 << 20))
        fs.snapshot("/a", "/one", read_only=True)
        fs.snapshot("/a", "/two", read_only=True)
        fs.path("/a/f").write_bytes(os.urandom(1 << 20))
        sharing = fs.space_sharing()
        found = {space.path: space for space in sharing.subvolumes}
        assert set(found) == {"/", "/a", "/one", "/two"}
        assert found["/a"].exclusive_data == 1 << 20
        assert found["/one"].referenced_data == 1 << 20
        assert found["/one"].exclusive_data == 0
        both = [found["/one"].id, found["/two"].id]
        assert sharing.freed_by(both) >= 1 << 20
        assert sharing.freed_by(both[:1]) < 1 << 20
        assert sharing.choose(1 << 20, both) == both
        assert sharing.choose(1 << 30, both) is None
        assert sharing.total >= 2 << 20 and sharing.bad_blocks == 0


def test_past(image):
    with papilio.open(image, "rw") as fs:
        fs.create_subvolume("/home")
        fs.path("/home/gone").write_bytes(b"g" * 9000)
        fs.path("/home/kept").write_text("k")
        fs.path("/home/report").write_text("one")
        fs.utime("/home/report", (100, 100))
        fs.snapshot("/home", "/day1", read_only=True)
        fs.unlink("/home/gone")
        fs.rename("/home/kept", "/home/moved")
        fs.path("/home/report").write_text("the second")
        fs.utime("/home/report", (200, 200))
        fs.snapshot("/home", "/day2", read_only=True)
        day1 = fs.subvolume("/day1").id
    with papilio.open(image) as fs:
        versions = fs.versions("report", subvolume="/home")
        assert [version.size for version in versions] == [3, 10]
        assert [holder[1:] for holder in versions[0].holders] == [("/day1", "/report")]
        assert {holder[1] for holder in versions[1].holders} == {"/day2", "/home"}
        with pytest.raises(FileNotFoundError):
            fs.versions("never", subvolume="/home")
        (gone,) = fs.only_in_snapshots(subvolume="/home")
        assert (gone.path, gone.subvolume_path, gone.size) == ("/gone", "/day1", 9000)
        steps = fs.history(subvolume="/home")
        found = {change.path: change for change in steps[0].changes}
        assert steps[0].old_id == day1 and found["/gone"].name == "deleted"
        assert (found["/moved"].name, found["/moved"].old_path) == ("renamed", "/kept")
        assert found["/report"].name == "kept" and found["/report"].content
        assert len(fs.history(subvolume="/home", since=steps[0].new_id)) == len(steps) - 1
        relief = fs.plan_relief()
        assert relief.needed >= 16 << 20 and relief.metadata_used > 0
        assert relief.is_short == (relief.room < relief.needed)
    with papilio.open(image, "rw") as fs:
        fs.delete_subvolume("/day1")
        fs.clean_subvolumes()
    deleted = {one.id: one for one in papilio.find_deleted_subvolumes(image)}
    assert deleted[day1].path == "/day1" and deleted[day1].missing == 0


def test_subvolumes(image):
    with papilio.open(image, "rw") as fs:
        fs.create_subvolume("/a")
        fs.create_subvolume("/a/b")
        fs.path("/a/b/f").write_text("x")
        assert [subvolume.path for subvolume in fs.subvolumes()] == ["/", "/a", "/a/b"]
        number = fs.subvolume("/a/b").id
        fs.set_default_subvolume("/a/b")
        assert fs.default_subvolume == number
        with pytest.raises(FileNotFoundError):
            fs.subvolume("/a/b/f")
        fs.set_read_only("/a/b")
        with pytest.raises(OSError) as refused:
            fs.path("/a/b/g").write_text("x")
        assert refused.value.errno == errno.EROFS
        assert [entry.is_subvolume() for entry in fs.scandir("/")] == [True]
    for choice in (papilio.DEFAULT_SUBVOLUME, number, "a/b", "/a/b"):
        with papilio.open(image, subvolume=choice) as fs:
            assert fs.listdir() == ["f"]


def test_clones_and_deduplication(fs):
    data = os.urandom(256 << 10)
    fs.path("/one").write_bytes(data)
    fs.clone_range("/one", "/two")
    assert fs.path("/two").read_bytes() == data
    fs.path("/three").write_bytes(data)
    assert fs.dedupe_range("/one", "/three", 0, len(data), 0) == len(data)
    fs.path("/four").write_bytes(bytes(len(data)))
    assert fs.dedupe_range("/one", "/four", 0, len(data), 0) is None
    with fs.open("/one", "rb") as source, fs.open("/five", "w+b") as target:
        fs.clone_range(source, target, 0, 4096, 4096)
        assert target.read() == bytes(4096) + data[:4096]
    fs.copy_file("/one", "/six")
    assert fs.path("/six").read_bytes() == data


def test_a_forked_child_is_refused_and_harms_nothing(image):
    fs = papilio.open(image, "rw")
    fs.path("/f").write_text("parent")
    file = fs.open("/f", "rb", 0)
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        seen = []
        for call in (lambda: fs.stat("/"), lambda: file.read(1), fs.close, fs.sync):
            try:
                call()
                seen.append("nothing")
            except papilio.ForkError as error:
                seen.append("before the fork" in str(error))
            except BaseException as error:
                seen.append(repr(error))
        del fs, file, call
        os.write(writer, repr(seen).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 1000) == b"[True, True, True, True]"
    os.close(reader)
    os.close(writer)
    assert file.read() == b"parent"
    fs.close()
    assert papilio.check(image).is_clean


def test_an_unclosed_file_system_is_committed_with_a_warning(image):
    fs = papilio.open(image, "rw")
    fs.path("/f").write_text("kept")
    with pytest.warns(ResourceWarning, match="unclosed"):
        # The class of its paths refers back to it.
        del fs
        gc.collect()
    with papilio.open(image) as fs:
        assert fs.path("/f").read_text() == "kept"


def test_threads_share_a_file_system(fs):
    failures = []

    def work(number):
        try:
            for step in range(20):
                path = fs.path(f"/{number}-{step}")
                path.write_bytes(bytes([number]) * 10_000)
                assert path.read_bytes() == bytes([number]) * 10_000
                with fs.open("/log", "ab", 0) as log:
                    log.write(b"line\n")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and fs.path("/log").read_bytes() == b"line\n" * 80


def test_a_device_in_python(image):
    with papilio.open(image, "rw") as fs:
        fs.path("/f").write_bytes(b"x" * 100_000)
    with open(image, "rb") as raw:
        data = raw.read()
    device = papilio.Device(lambda offset, length: data[offset : offset + length], len(data), "in memory")
    with papilio.open(device) as fs:
        assert fs.path("/f").read_bytes() == b"x" * 100_000 and fs.name == "in memory"
    assert papilio.check(device).is_clean
    with pytest.raises(ValueError):
        papilio.open(device, "rw")
    broken = papilio.Device(lambda offset, length: 1 / 0, len(data))
    with pytest.raises(OSError):
        papilio.open(broken)


def test_copy_in(fs, tmp_path):
    (tmp_path / "src/d").mkdir(parents=True)
    (tmp_path / "src/d/f").write_text("from the host")
    fs.copy_in(tmp_path / "src", "/")
    assert fs.path("/d/f").read_text() == "from the host"
    with pytest.raises(FileNotFoundError):
        fs.copy_in(tmp_path / "none")


def test_copy_out(fs, tmp_path):
    (tmp_path / "out").mkdir()
    fs.mkdir("/d")
    fs.path("/d/f").write_bytes(b"from the image")
    fs.chmod("/d/f", 0o640)
    fs.utime("/d/f", (1_500_000_000, 1_600_000_000))
    fs.setxattr("/d/f", "user.colour", b"green")
    fs.link("/d/f", "/d/hard")
    fs.symlink("d/f", "/soft")
    with fs.open("/sparse", "wb") as file:
        file.seek(8 << 20)
        file.write(b"end")
    fs.copy_out("/", tmp_path / "out")
    copy = tmp_path / "out/d/f"
    assert copy.read_bytes() == b"from the image"
    found = copy.stat()
    assert (found.st_mode & 0o7777, found.st_mtime, found.st_nlink) == (0o640, 1_600_000_000, 2)
    assert os.readlink(tmp_path / "out/soft") == "d/f"
    sparse = (tmp_path / "out/sparse").stat()
    assert sparse.st_size == (8 << 20) + 3 and sparse.st_blocks * 512 < 1 << 20
    assert os.getxattr(copy, "user.colour") == b"green"

    copy.write_text("changed")
    fs.copy_out("/d/f", tmp_path / "out/d", keep_existing=True)
    assert copy.read_text() == "changed"
    fs.copy_out("/d/f", tmp_path / "out/d", keep_attributes=False)
    assert copy.read_bytes() == b"from the image" and copy.stat().st_mtime != 1_600_000_000

    copy.unlink()
    copy.mkdir()
    with pytest.raises(papilio.IncompleteError, match="cannot overwrite a directory") as incomplete:
        fs.copy_out("/", tmp_path / "out")
    assert len(incomplete.value.problems) >= 1 and incomplete.value.errno == errno.EIO
    with pytest.raises(FileNotFoundError):
        fs.copy_out("/none", tmp_path / "out")


def test_copies_under_fakeroot_are_refused(fs, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("FAKEROOTKEY", "12345")
    with pytest.raises(OSError, match="unshare -r"):
        fs.copy_out("/", tmp_path / "out")
    with pytest.raises(OSError, match="unshare -r"):
        fs.copy_in(tmp_path / "out", "/")
    with pytest.raises(OSError, match="unshare -r"):
        papilio.mkfs(tmp_path / "new.img", content=tmp_path / "out")
    assert not (tmp_path / "new.img").exists()
    with pytest.raises(OSError, match="unshare -r"):
        papilio.receive(io.BytesIO(), tmp_path / "out")
    fs.copy_out("/", tmp_path / "out", keep_attributes=False)


def test_interrupt_ends_a_copy(fs):
    """The handler runs while the call does: the reader gets a part of the archive only."""
    size = 48 << 20
    fs.path("/big").write_bytes(bytes(1 << 20) + os.urandom(size - (1 << 20)))
    into, out = os.pipe()
    received = 0

    def read():
        nonlocal received
        while data := os.read(into, 1 << 16):
            if received == 0:
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.2)
            received += len(data)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            fs.write_tar("/big", out)
    finally:
        os.close(out)
        reader.join(60)
        os.close(into)
        signal.signal(signal.SIGUSR1, before)
    assert 0 < received < size // 2


def test_dedupe(fs):
    content = os.urandom(300_000)
    fs.path("/a").write_bytes(content)
    fs.path("/b").write_bytes(content)
    assert fs.dedupe("/", dry_run=True)[2] == len(content)
    assert fs.dedupe("/")[2] == len(content)
    assert fs.dedupe("/")[2] == 0 and fs.path("/b").read_bytes() == content
    with pytest.raises(ValueError, match="power of two"):
        fs.dedupe("/", block_size=5000)


def test_dedupe_by_checksums(fs, tmp_path):
    content = os.urandom(300_000)
    for name in ("/a", "/b"):
        fs.path(name).write_bytes(content)
    fs.sync()
    state = tmp_path / "state"
    assert fs.dedupe_by_checksums(dry_run=True)[1:3] == (1, 303_104)
    assert fs.dedupe_by_checksums("/", state=state)[1:] == (1, 303_104, 0)
    assert fs.dedupe_by_checksums("/", state=state)[1:] == (0, 0, 0)
    assert fs.path("/b").read_bytes() == content
    state.write_bytes(b"other")
    with pytest.raises(OSError, match="no state file"):
        fs.dedupe_by_checksums("/", state=state)


def test_receive_into_a_directory_of_the_host(fs, tmp_path):
    fs.create_subvolume("/s")
    fs.path("/s/f").write_bytes(b"sent")
    fs.snapshot("/s", "/one", read_only=True)
    stream = io.BytesIO()
    fs.send("/one", stream)
    stream.seek(0)
    assert papilio.receive(stream, tmp_path) == [("one", True)]
    assert (tmp_path / "one/f").read_bytes() == b"sent"


def test_write_tar(fs):
    fs.mkdir("/d")
    fs.path("/d/f").write_bytes(b"member")
    fs.symlink("f", "/d/soft")
    out = io.BytesIO()
    fs.write_tar("/d", out)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        assert sorted(archive.getnames()) == ["d", "d/f", "d/soft"]
        assert archive.extractfile("d/f").read() == b"member"
        assert archive.getmember("d/soft").linkname == "f"

    class Full(io.RawIOBase):
        def write(self, data):
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        fs.write_tar("/d", Full())


def test_archives(tmp_path):
    image, full, later = (tmp_path / name for name in ("a.img", "full.pbk", "later.pbk"))
    papilio.mkfs(image, size=256 << 20)
    with papilio.open(image, "rw") as fs:
        fs.path("/old").write_bytes(b"old" * 100_000)
        fs.sync()
        with open(full, "wb") as out:
            first, size = fs.archive(out)
        assert size == full.stat().st_size
        fs.path("/new").write_bytes(b"new")
        fs.sync()
        out = io.BytesIO()
        second, size = fs.archive(out, since=full, level=0)
        assert second != first and size == len(out.getvalue())
        later.write_bytes(out.getvalue())
        with pytest.raises(ValueError, match="level 20"):
            fs.archive(io.BytesIO(), level=20)

        class Full(io.RawIOBase):
            def write(self, data):
                raise OSError(errno.ENOSPC, "full")

        with pytest.raises(OSError, match="full"):
            fs.archive(Full())
    papilio.verify_archive(later)
    papilio.restore_archive(later, tmp_path / "b.img", sizes=[300 << 20])
    assert (tmp_path / "b.img").stat().st_size == 300 << 20
    assert papilio.check(tmp_path / "b.img", data_csum=True).is_clean
    with papilio.open(tmp_path / "b.img") as fs:
        assert fs.path("/old").read_bytes() == b"old" * 100_000
        assert fs.path("/new").read_bytes() == b"new"
    with pytest.raises(FileExistsError, match="b.img"):
        papilio.restore_archive(full, tmp_path / "b.img")
    papilio.restore_archive(full, tmp_path / "b.img", force=True)
    with pytest.raises(ValueError, match="1 devices, 0 images"):
        papilio.restore_archive(full)

    (tmp_path / "alone").mkdir()
    alone = later.rename(tmp_path / "alone/later.pbk")
    with pytest.raises(FileNotFoundError, match="neither named nor found"):
        papilio.verify_archive(alone)
    papilio.verify_archive(alone, parents=[full])
    damaged = bytearray(full.read_bytes())
    damaged[(72 << 10) + 100] ^= 1
    full.write_bytes(damaged)
    with pytest.raises(papilio.CorruptError, match="frame"):
        papilio.verify_archive(full)
    with pytest.raises(papilio.CorruptError, match="frame"):
        papilio.restore_archive(full, tmp_path / "c.img")
    assert not (tmp_path / "c.img").exists()


def test_content_is_updated(tmp_path):
    (tmp_path / "src/d").mkdir(parents=True)
    (tmp_path / "src/d/f").write_bytes(b"x" * 3_000_000)
    (tmp_path / "src/gone").write_bytes(b"gone")
    image = tmp_path / "new.img"
    papilio.mkfs(image, content=tmp_path / "src", shrink=True)
    (tmp_path / "src/gone").unlink()
    (tmp_path / "src/new").write_bytes(b"new")
    with (tmp_path / "src/d/f").open("r+b") as file:
        file.seek(5000)
        file.write(b"y")
    done = papilio.update_content(image, content=tmp_path / "src", shrink=True)
    assert (done.created, done.removed, done.bytes_written) == (1, 1, 4096 + 3)
    done = papilio.update_content(image, content=tmp_path / "src")
    assert (done.created, done.changed, done.removed, done.bytes_written) == (0, 0, 0, 0)
    with pytest.raises(NotADirectoryError):
        papilio.update_content(image, content=image)
    assert papilio.check(image, data_csum=True).is_clean
    with papilio.open(image, "rw") as fs:
        assert fs.path("/d/f").read_bytes() == (tmp_path / "src/d/f").read_bytes()
        fs.create_subvolume("/mine")
    with pytest.raises(OSError, match="mine"):
        papilio.update_content(image, content=tmp_path / "src")
    (tmp_path / "src/mine").mkdir()
    papilio.update_content(image, content=tmp_path / "src", subvolumes=["mine"])


def test_mkfs_with_content(tmp_path):
    (tmp_path / "src/d").mkdir(parents=True)
    (tmp_path / "src/d/f").write_bytes(b"x" * 3_000_000)
    made = papilio.mkfs(tmp_path / "new.img", content=tmp_path / "src", compress="zstd", shrink=True)
    assert (tmp_path / "new.img").stat().st_size == made.total_bytes < 64 << 20
    assert papilio.check(tmp_path / "new.img", data_csum=True).is_clean
    with papilio.open(tmp_path / "new.img") as fs:
        assert fs.path("/d/f").read_bytes() == b"x" * 3_000_000
        with open(tmp_path / "new.tar", "wb") as out:
            fs.write_tar("/", out)
    papilio.mkfs(tmp_path / "again.img", content=tmp_path / "new.tar", size=256 << 20)
    assert (tmp_path / "again.img").stat().st_size == 256 << 20
    with papilio.open(tmp_path / "again.img") as fs:
        assert fs.path("/d/f").read_bytes() == b"x" * 3_000_000
    with pytest.raises(FileNotFoundError):
        papilio.mkfs(tmp_path / "none.img", content=tmp_path / "none")
    assert not (tmp_path / "none.img").exists()
    with pytest.raises(ValueError):
        papilio.mkfs(tmp_path / "none.img", size=256 << 20, shrink=True)
