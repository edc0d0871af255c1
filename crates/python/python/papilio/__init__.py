"""Btrfs in user space: images and devices as files, paths and fsspec file systems.

>>> import papilio
>>> made = papilio.mkfs("disk.img", size=256 << 20, label="store")
>>> with papilio.open("disk.img", "rw", compress="zstd") as fs:
...     fs.mkdir("/etc")
...     written = fs.path("/etc/hosts").write_text("127.0.0.1 localhost\\n")
...     fs.snapshot("/", "/before", read_only=True)
>>> papilio.check("disk.img").is_clean
True

Paths are ``str``, ``bytes`` or ``os.PathLike``. In ``str``, names are UTF-8 with
``surrogateescape``, so that every name survives a round trip. Errors are ``OSError`` and its
subclasses, with ``errno`` and ``filename``.
"""

from __future__ import annotations

from typing import Any

from ._changes import Change
from ._file_system import FileSystem, PathArgument
from ._io import RawFile
from ._papilio import (
    DEFAULT_SUBVOLUME,
    Backup,
    BackupFault,
    BackupKey,
    CheckReport,
    Completion,
    ContentUpdate,
    CorruptError,
    DeletedSubvolume,
    Device,
    DeviceUsage,
    DirEntry,
    FileVersion,
    Finding,
    ForkError,
    HistoryStep,
    IncompleteError,
    Made,
    OlderFile,
    OlderState,
    Relief,
    Repository,
    ScanDir,
    SnapshotChange,
    SnapshotOnly,
    SpaceSharing,
    SpaceUsage,
    StatResult,
    Subvolume,
    SubvolumeSpace,
    UnsupportedError,
    Usage,
    __version__,
    check,
    find_deleted_subvolumes,
    mkfs,
    receive,
    restore_archive,
    update_content,
    verify_archive,
)
from ._path import Path
from ._queue import Queue

__all__ = [
    "DEFAULT_SUBVOLUME",
    "Backup",
    "BackupFault",
    "BackupKey",
    "Change",
    "CheckReport",
    "Completion",
    "ContentUpdate",
    "CorruptError",
    "DeletedSubvolume",
    "Device",
    "DeviceUsage",
    "DirEntry",
    "FileSystem",
    "FileVersion",
    "Finding",
    "ForkError",
    "HistoryStep",
    "IncompleteError",
    "Made",
    "OlderFile",
    "OlderState",
    "Path",
    "Queue",
    "RawFile",
    "Relief",
    "Repository",
    "ScanDir",
    "SnapshotChange",
    "SnapshotOnly",
    "SpaceSharing",
    "SpaceUsage",
    "StatResult",
    "Subvolume",
    "SubvolumeSpace",
    "UnsupportedError",
    "Usage",
    "__version__",
    "check",
    "find_deleted_subvolumes",
    "mkfs",
    "open",
    "receive",
    "restore_archive",
    "update_content",
    "verify_archive",
]


def open(image: PathArgument | Device, mode: str = "r", **options: Any) -> FileSystem:
    """Open the file system on an image, a block device or a :class:`Device`.

    ``mode`` is ``"r"`` for reading or ``"rw"`` for reading and writing. The options are those of
    :class:`FileSystem`. An image that another process writes is refused.
    """
    return FileSystem(image, mode, **options)
