"""Paths in an image, called as those of pathlib."""

from __future__ import annotations

import fnmatch
import posixpath
import re
import stat as stat_module
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Iterator

if TYPE_CHECKING:
    from . import _papilio
    from ._file_system import FileSystem


class Path(PurePosixPath):
    """A path in an open file system; ``FileSystem.path`` makes one.

    It is a ``PurePosixPath`` with the methods of ``pathlib.Path`` that make sense in an image.
    Relative paths start at the root.
    """

    __slots__ = ()

    # Set in the class of each file system, so that paths made from others belong to it too.
    _fs: FileSystem

    @property
    def fs(self) -> FileSystem:
        """The file system."""
        return self._fs

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Path) and other._fs is not self._fs:
            return False
        return super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()

    def __repr__(self) -> str:
        return f"papilio.Path({self.as_posix()!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a papilio.Path cannot be pickled: open the image in the other process")

    # Metadata.

    def stat(self, *, follow_symlinks: bool = True) -> _papilio.StatResult:
        """Return the metadata."""
        return self._fs.stat(self, follow_symlinks=follow_symlinks)

    def lstat(self) -> _papilio.StatResult:
        """Return the metadata, without following a symbolic link."""
        return self._fs.lstat(self)

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Whether the path exists."""
        return self._fs.exists(self) if follow_symlinks else self._fs.lexists(self)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether the path is a directory."""
        return self._fs._is(self, "d", follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether the path is a regular file."""
        return self._fs._is(self, "f", follow_symlinks)

    def is_symlink(self) -> bool:
        """Whether the path is a symbolic link."""
        return self._fs.islink(self)

    def _has_type(self, test: Any) -> bool:
        return self.exists() and test(self.stat().st_mode)

    def is_fifo(self) -> bool:
        """Whether the path is a named pipe."""
        return self._has_type(stat_module.S_ISFIFO)

    def is_socket(self) -> bool:
        """Whether the path is a socket."""
        return self._has_type(stat_module.S_ISSOCK)

    def is_block_device(self) -> bool:
        """Whether the path is a block device."""
        return self._has_type(stat_module.S_ISBLK)

    def is_char_device(self) -> bool:
        """Whether the path is a character device."""
        return self._has_type(stat_module.S_ISCHR)

    def samefile(self, other: str | Path) -> bool:
        """Whether both paths lead to one inode."""
        one, two = self.stat(), self._fs.stat(other)
        return (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)

    def resolve(self, strict: bool = False) -> Path:
        """Return the absolute path without symbolic links and ``..``."""
        done = "/"
        left = [part for part in reversed(self.parts) if part != "/"]
        links = 0
        while left:
            part = left.pop()
            if part == "..":
                done = posixpath.dirname(done)
                continue
            here = posixpath.join(done, part)
            if not self._fs.islink(here):
                if strict:
                    self._fs.lstat(here)
                done = here
                continue
            links += 1
            if links > 40:
                self._fs.stat(here)
                raise RuntimeError(f"Symlink loop from {self}")
            target = self._fs.readlink(here)
            if target.startswith("/"):
                done = "/"
            left.extend(part for part in reversed(target.split("/")) if part not in ("", "."))
        return type(self)(done)

    def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:
        """Set the permission bits."""
        self._fs.chmod(self, mode, follow_symlinks=follow_symlinks)

    # Directories.

    def iterdir(self) -> Iterator[Path]:
        """Yield the entries of the directory."""
        for name in self._fs.listdir(self):
            yield self / name

    def walk(
        self, top_down: bool = True, on_error: Any = None, follow_symlinks: bool = False
    ) -> Iterator[tuple[Path, list[str], list[str]]]:
        """Yield (path, names of directories, other names)."""
        for top, dirs, files in self._fs.walk(str(self), top_down, on_error, follow_symlinks):
            yield type(self)(top), dirs, files

    def glob(self, pattern: str) -> Iterator[Path]:
        """Yield the paths below that match a pattern; ``**`` matches any directories."""
        parts = PurePosixPath(pattern).parts
        if not pattern:
            raise ValueError(f"Unacceptable pattern: {pattern!r}")
        if pattern.startswith("/"):
            raise NotImplementedError("Non-relative patterns are unsupported")
        only_dirs = pattern.endswith("/")
        seen = set()
        for found in _select(self._fs, str(self), parts):
            if found not in seen and not (only_dirs and not self._fs.isdir(found)):
                seen.add(found)
                yield type(self)(found)

    def rglob(self, pattern: str) -> Iterator[Path]:
        """Yield the paths at any depth below that match a pattern."""
        if pattern.startswith("/"):
            raise NotImplementedError("Non-relative patterns are unsupported")
        return self.glob("**/" + pattern)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Create the directory."""
        try:
            if parents:
                self._fs.makedirs(self, mode, exist_ok)
            else:
                self._fs.mkdir(self, mode)
        except FileExistsError:
            if not exist_ok or not self.is_dir():
                raise

    def rmdir(self) -> None:
        """Remove the empty directory."""
        self._fs.rmdir(self)

    # Names.

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the name."""
        try:
            self._fs.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target: str | PurePosixPath) -> Path:
        """Rename the path, and return the new one."""
        self._fs.rename(self, target)
        return type(self)(target)

    def replace(self, target: str | PurePosixPath) -> Path:
        """Rename the path, replacing a file there, and return the new path."""
        return self.rename(target)

    def symlink_to(self, target: str | PurePosixPath, target_is_directory: bool = False) -> None:
        """Make the path a symbolic link to target."""
        self._fs.symlink(target, self)

    def hardlink_to(self, target: str | PurePosixPath) -> None:
        """Make the path a further name of target."""
        self._fs.link(target, self)

    def readlink(self) -> Path:
        """Return the target of the symbolic link."""
        return type(self)(self._fs.readlink(self))

    def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:
        """Create the file, or set its times to now."""
        try:
            self._fs.open(self, "xb", 0, permissions=mode).close()
        except FileExistsError:
            if not exist_ok:
                raise
            self._fs.utime(self)

    # Content.

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Open the file."""
        return self._fs.open(self, mode, buffering, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        """Return the content."""
        with self.open("rb", 0) as file:
            return file.read()

    def read_text(
        self, encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> str:
        """Return the content as text."""
        with self.open("r", -1, encoding, errors, newline) as file:
            return file.read()

    def write_bytes(self, data: Any) -> int:
        """Write the content, and return the number of bytes."""
        with self.open("wb", 0) as file:
            return file.write(memoryview(data))

    def write_text(
        self,
        data: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> int:
        """Write text as the content, and return the number of characters."""
        if not isinstance(data, str):
            raise TypeError(f"data must be str, not {type(data).__name__}")
        with self.open("w", -1, encoding, errors, newline) as file:
            return file.write(data)


def path_class(of: FileSystem) -> type[Path]:
    """Return the class of the paths of one file system."""
    return type("Path", (Path,), {"__slots__": (), "__module__": "papilio", "_fs": of})


def _select(fs: FileSystem, base: str, parts: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths below base that match the parts of a pattern."""
    if not parts:
        yield base
        return
    first, rest = parts[0], parts[1:]
    if first == "**":
        yield from _select(fs, base, rest)
        for entry in _entries(fs, base):
            if entry.is_dir(follow_symlinks=False):
                yield from _select(fs, entry.path, parts)
    elif not any(letter in first for letter in "*?["):
        path = posixpath.join(base, first)
        if fs.lexists(path):
            yield from _select(fs, path, rest)
    else:
        matches = re.compile(fnmatch.translate(first)).match
        for entry in _entries(fs, base):
            if matches(entry.name) and (not rest or entry.is_dir()):
                yield from _select(fs, entry.path, rest)


def _entries(fs: FileSystem, path: str) -> list[Any]:
    """Return the entries of a directory; none of another kind of file."""
    try:
        return list(fs.scandir(path))
    except (NotADirectoryError, FileNotFoundError):
        return []
