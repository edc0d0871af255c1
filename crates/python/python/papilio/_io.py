"""File objects: a raw one, and those of the module io around it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import IO, TYPE_CHECKING, Any, Iterator

if TYPE_CHECKING:
    from . import _papilio
    from ._file_system import FileSystem, PathArgument

# Bytes of a buffer. A compressed extent has 128 KiB, so that larger writes compress no better.
READ_BUFFER = 128 << 10
WRITE_BUFFER = 256 << 10

_SEEK_DATA = getattr(os, "SEEK_DATA", 3)
_SEEK_HOLE = getattr(os, "SEEK_HOLE", 4)


class RawFile(io.RawIOBase):
    """An unbuffered file in an image. It keeps its file system open.

    ``pread``, ``preadinto`` and ``pwrite`` take the offset, and any thread may call them.
    """

    def __init__(self, fs: FileSystem, file: _papilio.File, mode: str) -> None:
        super().__init__()
        self._fs = fs
        self._file = file
        self._at = 0
        self.name = file.path
        self.mode = mode

    def readable(self) -> bool:
        self._checkClosed()  # type: ignore[attr-defined]
        return self._file.readable

    def writable(self) -> bool:
        self._checkClosed()  # type: ignore[attr-defined]
        return self._file.writable

    def seekable(self) -> bool:
        self._checkClosed()  # type: ignore[attr-defined]
        return True

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno: the file is inside an image and has no descriptor")

    def _must_read(self) -> None:
        if not self._file.readable:
            raise io.UnsupportedOperation("the file is not open for reading")

    def _must_write(self) -> None:
        if not self._file.writable:
            raise io.UnsupportedOperation("the file is not open for writing")

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer, without a copy."""
        self._must_read()
        count = self._file.readinto(buffer, self._at)
        self._at += count
        return count

    def read(self, size: int | None = -1) -> bytes:
        self._must_read()
        data = self._file.read(sys.maxsize if size is None or size < 0 else size, self._at)
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read(-1)

    def write(self, data: Any) -> int:
        self._must_write()
        self._at = self._file.write(data, self._at)
        return memoryview(data).nbytes

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to size bytes at an offset, and leave the position alone."""
        self._must_read()
        return self._file.read(size, offset)

    def preadinto(self, buffer: Any, offset: int) -> int:
        """Read into a buffer at an offset, without a copy, and leave the position alone."""
        self._must_read()
        return self._file.readinto(buffer, offset)

    def pwrite(self, data: Any, offset: int) -> int:
        """Write at an offset, and leave the position alone."""
        self._must_write()
        self._file.write(data, offset)
        return memoryview(data).nbytes

    def tell(self) -> int:
        self._checkClosed()  # type: ignore[attr-defined]
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._checkClosed()  # type: ignore[attr-defined]
        if whence == os.SEEK_SET:
            target: int | None = offset
        elif whence == os.SEEK_CUR:
            target = self._at + offset
        elif whence == os.SEEK_END:
            target = self._file.size() + offset
        elif whence == _SEEK_DATA:
            target = self._file.seek_data(offset)
        elif whence == _SEEK_HOLE:
            target = self._file.seek_hole(offset)
        else:
            raise ValueError(f"invalid whence ({whence})")
        if target is None:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), self.name)
        if target < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.name)
        self._at = target
        return target

    def truncate(self, size: int | None = None) -> int:
        self._must_write()
        size = self._at if size is None else size
        if size < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.name)
        self._file.truncate(size)
        return size

    def stat(self) -> _papilio.StatResult:
        """Return the metadata as it is now (``os.fstat``)."""
        return self._file.stat()

    def fsync(self) -> None:
        """Make the file durable."""
        self._file.sync()

    def fdatasync(self) -> None:
        """Make the data of the file durable."""
        self._file.sync(data_only=True)

    def punch_hole(self, offset: int, length: int) -> None:
        """Make a hole."""
        self._must_write()
        self._file.punch_hole(offset, length)

    def allocate(self, offset: int, length: int, *, keep_size: bool = False) -> None:
        """Allocate space for a range."""
        self._must_write()
        self._file.allocate(offset, length, keep_size=keep_size)

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                self._file.close()

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<papilio.RawFile name={self.name!r} mode={self.mode!r}{state}>"


def _flags(mode: str) -> tuple[str, bool, bool]:
    """Split a mode into its letter, and whether it has a plus and is binary."""
    letters = set(mode)
    kinds = letters & set("rwxa")
    if letters - set("rwxabt+") or len(mode) != len(letters) or len(kinds) != 1 or {"b", "t"} <= letters:
        raise ValueError(f"invalid mode: {mode!r}")
    return kinds.pop(), "+" in letters, "b" in letters


def open_file(
    fs: FileSystem,
    path: PathArgument,
    mode: str,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    *,
    permissions: int = 0o666,
    direct: bool = False,
) -> IO[Any]:
    """Open a file as the built-in open does."""
    kind, plus, binary = _flags(mode)
    if binary and (encoding is not None or errors is not None or newline is not None):
        raise ValueError("binary mode takes neither encoding, errors nor newline")
    if not binary and buffering == 0:
        raise ValueError("can't have unbuffered text I/O")
    writes = kind != "r" or plus
    native = fs._open(
        path,
        read=kind == "r" or plus,
        write=writes,
        create=kind in "wxa",
        exclusive=kind == "x",
        truncate=kind == "w",
        append=kind == "a",
        mode=permissions,
        direct=direct,
    )
    shown = kind + "b" + ("+" if plus else "")
    file: Any = RawFile(fs, native, shown)
    if kind == "a":
        file.seek(0, os.SEEK_END)
    if buffering != 0:
        usual = WRITE_BUFFER if writes else READ_BUFFER
        size = buffering if buffering > 1 else usual
        if plus:
            file = io.BufferedRandom(file, size)
        elif writes:
            file = io.BufferedWriter(file, size)
        else:
            file = io.BufferedReader(file, size)
    if not binary:
        file = io.TextIOWrapper(file, encoding, errors, newline, line_buffering=buffering == 1)
        file.mode = mode
    fs._files.add(file)
    return file


@contextlib.contextmanager
def borrowed(
    fs: FileSystem, file: PathArgument | IO[Any], mode: str, create: bool = False
) -> Iterator[RawFile]:
    """Yield the raw file of a file object, whose buffer is flushed, or of a path."""
    if isinstance(file, (str, bytes, os.PathLike)):
        if create and not fs.exists(file):
            open_file(fs, file, "xb", 0).close()
        with open_file(fs, file, mode, 0) as opened:
            yield opened  # type: ignore[misc]
        return
    below: Any = file
    if not isinstance(below, RawFile):
        below.flush()
    below = getattr(below, "buffer", below)
    below = getattr(below, "raw", below)
    if not isinstance(below, RawFile):
        raise TypeError(f"expected a path or a file of papilio, not {type(file).__name__}")
    yield below
