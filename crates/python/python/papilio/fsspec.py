"""A file system for fsspec: ``btrfs://path/in/image::file:///path/of/image``.

The image may be behind any other file system of fsspec. A local one is opened by its path, for
reading or for writing. Any other is read by ranges through a cache of blocks, for reading only;
the whole image is never fetched.
"""

from __future__ import annotations

import io
import os
import threading
import uuid
from datetime import datetime, timezone
from typing import IO, Any, Callable

from fsspec.caching import BlockCache
from fsspec.core import OpenFile, url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from . import Device, FileSystem
from . import open as open_image

_STEP = 4 << 20


class BtrfsFileSystem(AbstractFileSystem):
    """The file system on a Btrfs image.

    fo: the image: a path, a URL of fsspec, an open binary file, or an open papilio.FileSystem
    mode: ``"r"``, or ``"rw"`` for writing too, which needs a local image
    target_protocol, target_options: for the file system that has the image
    block_size: bytes of a block that is read from an image that is not local
    image_cache_bytes: bytes of such blocks to keep
    auto_mkdir: create missing directories when a file is written
    Other options are those of papilio.open, such as subvolume and compress.

    ``close`` commits and reports errors, and is important after writing.
    """

    protocol = "btrfs"
    root_marker = "/"
    # An instance locks its image; it is released with the last reference.
    cachable = False

    def __init__(
        self,
        fo: Any = "",
        mode: str = "r",
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        block_size: int = 256 << 10,
        image_cache_bytes: int = 64 << 20,
        auto_mkdir: bool = False,
        **options: Any,
    ) -> None:
        ours = {name: options.pop(name) for name in _OPEN_OPTIONS & options.keys()}
        super().__init__(self, **options)
        if isinstance(fo, str) and not fo:
            raise ValueError("btrfs: name the image: btrfs://path::file:///disk.img, or fo='disk.img'")
        self.auto_mkdir = auto_mkdir
        if isinstance(fo, FileSystem):
            self.image = fo
            return
        image = _resolve(fo, target_protocol, target_options or {}, block_size, image_cache_bytes)
        if isinstance(image, Device) and mode != "r":
            raise ValueError(f"{image.name}: only a local image can be written; open it with mode='r'")
        self.image = open_image(image, mode, **ours)
        # fsspec has no call that closes: dropping the last reference is the usual end.
        self.image._warns = False

    def close(self) -> None:
        """Close all files, commit and close the image."""
        self.image.close()

    def __enter__(self) -> BtrfsFileSystem:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        for prefix in ("btrfs://", "btrfs::"):
            if path.startswith(prefix):
                path = path[len(prefix) :]
        return "/" + path.strip("/")

    # Reading.

    def _entry(self, name: str, stat: Any, kind: str) -> dict[str, Any]:
        return {
            "name": name,
            "size": stat.st_size if kind != "directory" else 0,
            "type": kind,
            "created": stat.st_birthtime,
            "mtime": stat.st_mtime,
            "mode": stat.st_mode,
            "uid": stat.st_uid,
            "gid": stat.st_gid,
            "ino": stat.st_ino,
            "subvolume": stat.st_dev,
            "nlink": stat.st_nlink,
            "islink": False,
        }

    def _of_scan(self, entry: Any) -> dict[str, Any]:
        """Return the information on an entry: a link to a file counts as the file.

        A link to a directory does not count as the directory, so that walks end.
        """
        kind = "file" if entry.is_file() else "directory" if entry.is_dir(follow_symlinks=False) else "other"
        link = entry.is_symlink()
        info = self._entry(entry.path, entry.stat(follow_symlinks=link and kind == "file"), kind)
        if link:
            info.update(islink=True, destination=self.image.readlink(entry.path))
        return info

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        try:
            stat, broken = self.image.stat(path), False
        except FileNotFoundError:
            stat, broken = self.image.lstat(path), True
        kind = {0o040000: "directory", 0o100000: "file"}.get(stat.st_mode & 0o170000, "other")
        info = self._entry(path, stat, kind)
        if broken or self.image.islink(path):
            info.update(islink=True, destination=self.image.readlink(path))
        return info

    def ls(self, path: Any, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        info = self.info(path)
        if info["type"] == "directory":
            with self.image.scandir(path) as entries:
                found = [self._of_scan(entry) for entry in entries]
        else:
            found = [info]
        return found if detail else [one["name"] for one in found]

    def exists(self, path: Any, **kwargs: Any) -> bool:
        return self.image.lexists(self._strip_protocol(path))

    def isdir(self, path: Any) -> bool:
        return self.image.isdir(self._strip_protocol(path))

    def isfile(self, path: Any) -> bool:
        return self.image.isfile(self._strip_protocol(path))

    def islink(self, path: Any) -> bool:
        """Return whether the path is a symbolic link."""
        return self.image.islink(self._strip_protocol(path))

    def lexists(self, path: Any, **kwargs: Any) -> bool:
        """Return whether the path exists; true for a broken symbolic link."""
        return self.image.lexists(self._strip_protocol(path))

    def created(self, path: Any) -> datetime:
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path: Any) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def cat_file(self, path: Any, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        with self.image.open(self._strip_protocol(path), "rb", 0) as file:
            size = file.stat().st_size
            start = 0 if start is None else start if start >= 0 else max(size + start, 0)
            end = size if end is None else end if end >= 0 else size + end
            return file.pread(max(end - start, 0), start)

    def _open(
        self,
        path: Any,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> IO[bytes]:
        path = self._strip_protocol(path)
        if mode[0] in "wxa" and self.auto_mkdir:
            self.makedirs(self._parent(path), exist_ok=True)
        if not autocommit and mode[0] in "wx":
            return _Uncommitted(self.image, path, mode)  # type: ignore[return-value]
        file = self.image.open(path, mode if "b" in mode else mode + "b")
        if mode[0] == "r":
            # As the files of other file systems have it: read_block and its users ask for it.
            file.size = getattr(file, "raw", file).stat().st_size  # type: ignore[attr-defined]
        return file

    # Writing.

    def pipe_file(self, path: Any, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def mkdir(self, path: Any, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.image.makedirs(path)
        else:
            self.image.mkdir(path)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        self.image.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: Any) -> None:
        self.image.rmdir(self._strip_protocol(path))

    def _rm(self, path: Any) -> None:
        self.image.unlink(self._strip_protocol(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for one in path if isinstance(path, list) else [path]:
            one = self._strip_protocol(one)
            if recursive and self.isdir(one) and not self.image.islink(one) and maxdepth is None:
                if one == "/":
                    raise ValueError("cannot remove the root directory")
                self.image.rmtree(one)
                continue
            for found in reversed(self.expand_path(one, recursive=recursive, maxdepth=maxdepth)):
                if self.isdir(found) and not self.image.islink(found):
                    self.rmdir(found)
                else:
                    self.rm_file(found)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: Any = None, **kwargs: Any) -> None:
        if isinstance(path1, list) or self._is_pattern(path1):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(target):
            target = target.rstrip("/") + "/" + source.rsplit("/", 1)[-1]
        self.image.rename(source, target)

    @staticmethod
    def _is_pattern(path: Any) -> bool:
        return any(letter in stringify_path(path) for letter in "*?[")

    def cp_file(self, path1: Any, path2: Any, **kwargs: Any) -> None:
        """Copy a file, which shares its data with the copy; create a directory."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(source):
            self.makedirs(target, exist_ok=True)
            return
        if self.auto_mkdir:
            self.makedirs(self._parent(target), exist_ok=True)
        self.image.copy_file(source, target)

    def touch(self, path: Any, truncate: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if self.auto_mkdir:
            self.makedirs(self._parent(path), exist_ok=True)
        with self.image.open(path, "ab", 0) as file:
            if truncate:
                file.truncate(0)
        self.image.utime(path)

    def symlink(self, src: Any, dst: Any) -> None:
        """Make ``dst`` a symbolic link to ``src``, which is stored as it is given."""
        self.image.symlink(stringify_path(src), self._strip_protocol(dst))

    def link(self, src: Any, dst: Any) -> None:
        """Make ``dst`` a further name of ``src``."""
        self.image.link(self._strip_protocol(src), self._strip_protocol(dst))

    def chmod(self, path: Any, mode: int) -> None:
        """Set the permission bits."""
        self.image.chmod(self._strip_protocol(path), mode)


# The options of papilio.open that are passed on.
_OPEN_OPTIONS = {
    "cache_bytes",
    "commit_interval",
    "compress",
    "compress_force",
    "degraded",
    "devices",
    "direct_io",
    "discard",
    "node_cache_bytes",
    "owner",
    "replay_log",
    "subvolume",
    "superblock_mirror",
    "timestamp",
    "umask",
    "use_backup_root",
    "verify_data",
}


class _Uncommitted(io.BufferedWriter):
    """A file of a transaction: it has a temporary name until the transaction commits."""

    def __init__(self, image: FileSystem, path: str, mode: str) -> None:
        self._image, self._path, self._new = image, path, mode[0] == "x"
        if self._new and image.lexists(path):
            raise FileExistsError(17, "already exists", path)
        head, _, tail = path.rpartition("/")
        self._temporary = f"{head}/.{tail[:200]}.{uuid.uuid4().hex[:8]}"
        super().__init__(image.open(self._temporary, "xb", 0))  # type: ignore[arg-type]
        image._files.add(self)

    def commit(self) -> None:
        """Give the file its name."""
        self.close()
        self._image.rename(self._temporary, self._path, no_replace=self._new)

    def discard(self) -> None:
        """Remove the file."""
        self.close()
        self._image.unlink(self._temporary)


def _resolve(
    fo: Any, protocol: str | None, options: dict[str, Any], block_size: int, cache_bytes: int
) -> str | Device:
    """Return the path of a local image, or a device that reads another one."""
    if isinstance(fo, OpenFile):
        fs, path = fo.fs, fo.path
    elif isinstance(fo, (str, os.PathLike)):
        chained = {"protocol": protocol, **options} if protocol else options
        fs, path = url_to_fs(stringify_path(fo), **chained)
    else:
        return _open_file_device(fo, block_size, cache_bytes)
    if isinstance(fs, LocalFileSystem):
        return path
    size = fs.info(path)["size"]
    if size is None:
        raise ValueError(f"{path}: the size of the image is unknown")
    return _device(lambda start, end: fs.cat_file(path, start=start, end=end), size, path, block_size, cache_bytes)


def _open_file_device(file: Any, block_size: int, cache_bytes: int) -> Device:
    """Return a device that reads an open file."""
    lock = threading.Lock()

    def fetch(start: int, end: int) -> bytes:
        with lock:
            file.seek(start)
            pieces = []
            while start < end and (piece := file.read(end - start)):
                pieces.append(piece)
                start += len(piece)
            return b"".join(pieces)

    size = file.seek(0, os.SEEK_END)
    if size is None:
        size = file.tell()
    return _device(fetch, size, str(getattr(file, "name", "open file")), block_size, cache_bytes)


def _device(
    fetch: Callable[[int, int], bytes], size: int, name: str, block_size: int, cache_bytes: int
) -> Device:
    """Return a device that reads whole blocks and keeps some of them."""
    cache = BlockCache(block_size, fetch, size, maxblocks=max(cache_bytes // block_size, 4))

    def read(offset: int, length: int) -> bytes:
        # A large read would only push the blocks of trees out of the cache.
        if length >= _STEP:
            return fetch(offset, offset + length)
        return cache._fetch(offset, offset + length)

    return Device(read, size, name)
