"""Logs of fsyncs that cannot be replayed, and devices that belong to something else."""

import errno
import shutil
import struct

import papilio
import pytest

NODE = 16384
LOG_TREE = struct.pack("<q", -6)


@pytest.fixture
def cut(image, tmp_path):
    """An image with a log of fsyncs, as a power cut leaves it."""
    path = str(tmp_path / "cut.img")
    with papilio.open(image, "rw", commit_interval=None) as fs:
        fs.path("/kept").write_bytes(b"old")
        fs.path("/kept").chmod(0o600)
        fs.sync()
        with fs.open("/kept", "wb", 0) as file:
            file.write(b"newer content")
            file.fsync()
        with fs.open("/fresh", "wb", 0) as file:
            file.write(b"only in the log")
            file.fsync()
        shutil.copyfile(image, path)
        assert fs.older_states() == []
    return path


def spoil_log(path):
    """Spoil the checksums of all blocks of the log."""
    found = 0
    with open(path, "r+b") as raw:
        raw.seek(1 << 20)
        at = 1 << 20
        while len(block := raw.read(NODE)) == NODE:
            if block[88:96] == LOG_TREE:
                raw.seek(at)
                raw.write(bytes([block[0] ^ 1]))
                found += 1
            at += NODE
            raw.seek(at)
    assert found


def names(files):
    return {(file.path, file.part) for file in files}


def test_a_good_log_is_replayed_within_the_limit(cut):
    with papilio.open(cut) as fs:
        assert fs.older_states() == []
        assert fs.path("/fresh").read_bytes() == b"only in the log"
    with pytest.raises(OSError, match="more than 16384 bytes") as refused:
        papilio.open(cut, replay_bytes=NODE)
    assert ("/fresh", "missing") in names(refused.value.older)
    with papilio.open(cut, replay_bytes=NODE, allow_older=True) as fs:
        assert fs.path("/kept").read_bytes() == b"old"
        assert [state.cause for state in fs.older_states()] == ["log-unusable"]
    # Opening for writing replays it on the device, whatever the limit.
    with papilio.open(cut, "rw", replay_bytes=NODE) as fs:
        assert fs.path("/kept").read_bytes() == b"newer content"


def test_older_states_and_files_are_listed(cut):
    spoil_log(cut)
    with pytest.raises(papilio.CorruptError, match="/fresh: it is missing") as refused:
        papilio.open(cut)
    assert refused.value.errno == errno.EIO
    assert {("/fresh", "missing"), ("/kept", "changed")} <= names(refused.value.older)
    with papilio.open(cut, allow_older=True) as fs:
        assert not fs.exists("/fresh") and fs.path("/kept").read_bytes() == b"old"
        (state,) = fs.older_states()
        assert state.cause == "log-unusable" and "cannot be replayed" in state.message
        assert state.has_log and not state.is_asked and state.generation > 0
        files = fs.older_files(state)
        assert {("/fresh", "missing"), ("/kept", "changed")} <= names(files)
        fresh = next(file for file in files if file.path == "/fresh")
        assert fresh.subvolume == 5 and fresh.inode > 256 and "log of fsyncs" in fresh.reason
        assert repr(fresh) == "<papilio.OlderFile '/fresh': missing>"
    with papilio.open(cut, replay_log=False) as fs:
        (state,) = fs.older_states()
        assert state.cause == "log-forbidden" and state.is_asked


def test_signatures_of_others_are_obeyed(image):
    page = bytearray(4096)
    struct.pack_into("<II", page, 1024, 1, 1000)
    page[4086:] = b"SWAPSPACE2"
    with open(image, "r+b") as raw:
        raw.write(page)
    with papilio.open(image) as fs:
        assert fs.listdir("/") == []
    with pytest.raises(OSError, match="a swap area") as refused:
        papilio.open(image, "rw")
    assert refused.value.errno == errno.EBUSY
    with papilio.open(image, "rw", ignore_signatures=True) as fs:
        fs.mkdir("/beside")
    with papilio.open(image) as fs:
        assert fs.listdir("/") == ["beside"]
