"""Backups of snapshots: made, listed, restored, pruned and verified; keys; signals; damage."""

import errno
import os
import pathlib
import signal
import threading

import papilio
import pytest


@pytest.fixture
def source(tmp_path):
    """A file system with the subvolume /data and a read-only snapshot /one."""
    image = tmp_path / "source.img"
    papilio.mkfs(image, size=256 << 20)
    with papilio.open(image, "rw") as fs:
        fs.create_subvolume("/data")
        fs.path("/data/first").write_bytes(os.urandom(300_000))
        fs.mkdir("/data/d")
        fs.path("/data/d/f").write_bytes(b"in a directory")
        fs.snapshot("/data", "/one", read_only=True)
        yield fs


def next_snapshot(fs, name):
    fs.path(f"/data/{name}").write_bytes(name.encode() * 1000)
    fs.snapshot("/data", f"/{name}", read_only=True)


def test_backups_are_restored(tmp_path, source):
    repository = papilio.Repository.init(tmp_path / "repository")
    assert not repository.is_encrypted and repository.place == str(tmp_path / "repository")
    first, existed = repository.create(source, "/one", time=1767571200)
    assert first.is_full and first.base is None and not existed
    assert (first.name, first.time, first.source) == ("one", 1767571200, "/one")
    again, existed = repository.create(source, "/one")
    assert existed and again.id == first.id
    next_snapshot(source, "two")
    second, _ = repository.create(source, "/two", time=1767657600, level=19)
    assert second.base == first.id and not second.is_full and second.series == first.series
    assert [backup.name for backup in repository.backups()] == ["one", "two"]
    assert repository.find("latest").id == repository.find(second.id[:8]).id == second.id
    with pytest.raises(FileNotFoundError, match="nobody"):
        repository.find("nobody")
    assert repository.files("two") == ["", "d", "d/f", "first", "two"]
    assert repository.files("two", "/d") == ["d", "d/f"]

    target = tmp_path / "target.img"
    papilio.mkfs(target, size=256 << 20)
    with papilio.open(target, "rw") as fs:
        fs.mkdir("/back")
        assert repository.restore("two", fs, "/back") == "/back/two"
        assert fs.listdir("/back") == ["two"]
        assert fs.path("/back/two/first").read_bytes() == source.path("/one/first").read_bytes()
        assert fs.subvolume("/back/two").received_uuid == second.uuid
        repository.restore("two", fs, name="again", keep_chain=True)
        assert fs.path("/again/two").read_bytes() == b"two" * 1000
    assert papilio.check(target, data_csum=True).is_clean
    (tmp_path / "out").mkdir()
    assert repository.restore("one", tmp_path / "out") == str(tmp_path / "out/one")
    assert (tmp_path / "out/one/d/f").read_bytes() == b"in a directory"
    with pytest.raises(ValueError, match="path"):
        repository.restore("one", tmp_path / "out", "/")
    (tmp_path / "some").mkdir()
    repository.extract("two", "d", "/two", directory=tmp_path / "some", owners=False)
    found = sorted(path.name for path in (tmp_path / "some/two").iterdir())
    assert found == ["d", "two"]
    with pytest.raises(FileNotFoundError):
        repository.extract("two", "none", directory=tmp_path / "some")
    with pytest.raises(ValueError, match="no paths"):
        repository.extract("two", directory=tmp_path / "some")
    with pytest.raises(OSError, match="not read-only"):
        repository.create(source, "/data")


def test_rules_prune(tmp_path, source):
    with papilio.Repository.init(tmp_path / "repository") as repository:
        for number, name in enumerate(["one", "two", "three"]):
            if name != "one":
                next_snapshot(source, name)
            repository.create(source, f"/{name}", time=1767571200 + number * 86400)
        assert repository.prune() == []
        assert repository.prune(last=1) == []
        assert repository.prune(daily=2, merge=True, dry_run=True) == ["one"]
        assert len(repository.backups()) == 3
        assert repository.prune(daily=2, merge=True) == ["one"]
        assert [backup.is_full for backup in repository.backups()] == [True, False]
        assert repository.verify() == [] and repository.verify(10) == []
        with pytest.raises(ValueError, match="percent"):
            repository.verify(200)
    assert repository.closed
    with pytest.raises(ValueError, match="closed"):
        repository.backups()


def test_keys(tmp_path, source):
    place = tmp_path / "repository"
    repository = papilio.Repository.init(place, key="the passphrase")
    repository.create(source, "/one")
    with pytest.raises(PermissionError, match="needed"):
        papilio.Repository(place)
    with pytest.raises(PermissionError, match="wrong passphrase"):
        papilio.Repository(place, key=b"another")
    with pytest.raises(ValueError, match="empty"):
        papilio.Repository(place, key=b"")
    other = papilio.Repository(place, key=b"the passphrase")
    spare = other.add_key(b"\0\1\2", label="spare")
    assert [(key.label, key.is_current) for key in other.keys()] == [(None, True), ("spare", False)]
    other.change_key("new")
    with pytest.raises(PermissionError):
        papilio.Repository(place, key="the passphrase")
    assert papilio.Repository(place, key="new").backups()[0].name == "one"
    assert papilio.Repository(place, key=b"\0\1\2").backups()[0].name == "one"
    other.remove_key(spare.id)
    with pytest.raises(FileNotFoundError, match="spare"):
        other.remove_key("spare")
    with pytest.raises(OSError, match="only key"):
        other.remove_key(other.keys()[0].id)


def test_damage_and_locks(tmp_path, source):
    place = tmp_path / "repository"
    with pytest.raises(FileNotFoundError, match="no backup repository"):
        papilio.Repository(place)
    repository = papilio.Repository.init(place)
    with pytest.raises(FileExistsError, match="already"):
        papilio.Repository.init(place)
    backup, _ = repository.create(source, "/one")
    (place / "lock").write_bytes(b"PAPBKUP1")
    with pytest.raises(papilio.CorruptError, match="lock"):
        repository.prune()
    repository.prune(break_lock=True)
    largest = max(place.glob("data/*/*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    (fault,) = repository.verify()
    assert fault.affects == [backup.id] and largest.name in fault.object
    (tmp_path / "out").mkdir()
    with pytest.raises(papilio.CorruptError, match=largest.name[:16]):
        repository.restore("one", tmp_path / "out")
    largest.unlink()
    with pytest.raises(papilio.CorruptError, match="missing"):
        repository.restore("one", tmp_path / "out")


def test_a_signal_ends_a_backup(tmp_path, source):
    """The lock is free afterwards, and nothing is listed."""
    source.path("/data/large").write_bytes(os.urandom(1 << 20) * 48)
    source.snapshot("/data", "/large", read_only=True)
    repository = papilio.Repository.init(tmp_path / "repository")

    class Ended(Exception):
        pass

    def end(number, frame):
        raise Ended

    before = signal.signal(signal.SIGUSR1, end)
    try:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(Ended):
            repository.create(source, "/large", level=19)
            timer.join()
            # A fast host: the signal came after the call.
            pytest.skip("the backup ended first")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert repository.backups() == []
    assert not pathlib.Path(tmp_path / "repository/lock").exists()
    repository.create(source, "/large")
    assert [backup.name for backup in repository.backups()] == ["large"]


def test_a_store_that_fails(tmp_path, source):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    place = tmp_path / "repository"
    repository = papilio.Repository.init(place)
    place.chmod(0o500)
    try:
        with pytest.raises(PermissionError) as raised:
            repository.create(source, "/one")
        assert raised.value.errno == errno.EACCES
    finally:
        place.chmod(0o700)
