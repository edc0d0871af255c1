"""The class FileSystem. The native class below it has the calls that only translate."""

from __future__ import annotations

import atexit
import os
import posixpath
import stat as stat_module
import warnings
import weakref
from typing import IO, Any, Callable, Iterator, Union

from . import _changes, _io, _papilio, _path, _queue

PathArgument = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

# Writable file systems that are open. The interpreter does not drop all objects when it ends.
_writable: weakref.WeakSet[FileSystem] = weakref.WeakSet()

_COPY_BYTES = 1 << 20


@atexit.register
def _close_all() -> None:
    for fs in list(_writable):
        if fs._pid == os.getpid():
            fs.close()


class FileSystem(_papilio.FileSystem):
    """An open Btrfs file system, and a context manager that closes it.

    The methods are called as those of ``os`` with the same names. Any number of threads may use
    one object. A process that was forked after the file system was opened gets ``ForkError``.

    image: an image file, a block device, or a ``papilio.Device``
    mode: ``"r"``, or ``"rw"`` for writing too
    devices: the other devices of the file system
    subvolume: where paths start: an id, a path from the top level, or DEFAULT_SUBVOLUME
    degraded: open although devices are missing
    compress, compress_force: compression of new data, as the mount options: ``"zstd:3"``
    cache_bytes: bytes of a page cache for file data, with ``mode="rw"``
    node_cache_bytes: bytes for tree blocks
    direct_io: bypass the host's page cache
    commit_interval: seconds between commits; None commits only on sync and close
    verify_data: verify checksums of data
    use_backup_root, replay_log, superblock_mirror: what to read of a damaged file system
    allow_older: show the last commit if a log of fsyncs cannot be replayed; see ``older_states``
    replay_bytes: memory for a replay with ``mode="r"``, for each device; the default is 256 MiB
    ignore_signatures: write to a device that has the signature of something else
    discard: discard freed space after each commit
    timestamp: seconds since 1970 that all changes carry, for reproducible images
    owner, umask: owner of new files, and permission bits that they lack
    """

    def __init__(self, image: Any, mode: str = "r", **options: Any) -> None:
        # The native constructor has used the arguments.
        self._files: weakref.WeakSet[IO[Any]] = weakref.WeakSet()
        self._path_class: type[_path.Path] | None = None
        self._pid = os.getpid()
        self._warns = True
        if self.writable:
            _writable.add(self)

    def close(self) -> None:
        """Close all files, commit and close. Raises what fails. Closing twice does nothing."""
        if self.closed:
            return
        self._check_process()
        failure: BaseException | None = None
        for file in list(self._files):
            try:
                file.close()
            except Exception as error:
                failure = failure or error
        _writable.discard(self)
        self._close()
        if failure is not None:
            raise failure

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise _papilio.ForkError(
                f"{self.name}: the file system was opened in process {self._pid}, before the fork:"
                " open the image again in this process"
            )

    def __enter__(self) -> FileSystem:
        self._check_process()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pid", None) != os.getpid() or self.closed:
            return
        if self.writable and self._warns:
            warnings.warn(f"unclosed file system {self!r}", ResourceWarning, 2, source=self)
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a papilio.FileSystem cannot be pickled: open the image in the other process")

    # Files.

    def open(
        self,
        path: PathArgument,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
        direct: bool = False,
    ) -> IO[Any]:
        """Open a file as the built-in ``open`` does.

        permissions: the mode of a new file, less the umask
        direct: bypass the page cache
        """
        return _io.open_file(
            self, path, mode, buffering, encoding, errors, newline, permissions=permissions, direct=direct
        )

    def queue(self, depth: int = 32, threads: int = 0) -> _queue.Queue:
        """Return a queue of requests on files of this file system."""
        return _queue.Queue(self, depth, threads)

    def path(self, *segments: str | os.PathLike[str]) -> _path.Path:
        """Return a ``pathlib``-like path in this file system; ``/`` without arguments."""
        if self._path_class is None:
            self._path_class = _path.path_class(self)
        return self._path_class(*(segments or ("/",)))

    def clone_range(
        self,
        source: PathArgument | IO[Any],
        target: PathArgument | IO[Any],
        source_offset: int = 0,
        length: int = 0,
        target_offset: int = 0,
    ) -> None:
        """Share data of source with target; all up to the end if length is 0.

        Source and target are paths, or files that are open. A missing target is created.
        """
        with _io.borrowed(self, source, "rb") as one, _io.borrowed(self, target, "r+b", create=True) as other:
            other._file.clone_range(one._file, source_offset, length, target_offset)

    def dedupe_range(
        self,
        source: PathArgument | IO[Any],
        target: PathArgument | IO[Any],
        source_offset: int,
        length: int,
        target_offset: int,
    ) -> int | None:
        """Share data of two files where it is the same; return how much, or None if it differs."""
        with _io.borrowed(self, source, "rb") as one, _io.borrowed(self, target, "r+b") as other:
            return other._file.dedupe_range(one._file, source_offset, length, target_offset)

    def copy_file(self, source: PathArgument, target: PathArgument, *, reflink: bool = True) -> None:
        """Copy the content and the mode of a file; share the data where that is possible."""
        permissions = stat_module.S_IMODE(self.stat(source).st_mode)
        with self.open(source, "rb", 0) as one, self.open(target, "wb", 0) as other:
            if self.stat(source).st_size:
                try:
                    if not reflink:
                        raise OSError
                    other._file.clone_range(one._file, 0, 0, 0)
                except OSError:
                    while piece := one.read(_COPY_BYTES):
                        other.write(piece)
        self.chmod(target, permissions)

    # Directories.

    remove = _papilio.FileSystem.unlink

    def replace(self, src: PathArgument, dst: PathArgument) -> None:
        """Rename src to dst, replacing a file there. The same as rename."""
        self.rename(src, dst)

    def lchown(self, path: PathArgument, uid: int, gid: int) -> None:
        """Set owner and group of the path itself, even if it is a symbolic link."""
        self.chown(path, uid, gid, follow_symlinks=False)

    def makedirs(self, path: PathArgument, mode: int = 0o777, exist_ok: bool = False) -> None:
        """Create a directory and those above it that are missing."""
        name = os.fspath(path)
        head, tail = posixpath.split(name)
        if not tail:
            head, tail = posixpath.split(head)
        if head and tail and not self.exists(head):
            self.makedirs(head, exist_ok=True)
        try:
            self.mkdir(name, mode)
        except OSError:
            if not exist_ok or not self.isdir(name):
                raise

    def rmtree(self, path: PathArgument) -> None:
        """Remove a directory and all below it. Subvolumes in it are deleted."""
        for top, dirs, files in self.walk(path, topdown=False, onerror=_raise):
            with self.scandir(top) as entries:
                for entry in list(entries):
                    if entry.is_subvolume():
                        self.delete_subvolume(entry.path)
                    elif entry.is_dir(follow_symlinks=False):
                        self.rmdir(entry.path)
                    else:
                        self.unlink(entry.path)
        self.rmdir(path)

    def walk(
        self,
        top: PathArgument = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[Any, list[Any], list[Any]]]:
        """Yield (path, names of directories, other names) as ``os.walk`` does."""
        stack: list[Any] = [os.fspath(top)]
        while stack:
            here = stack.pop()
            if isinstance(here, tuple):
                yield here
                continue
            dirs: list[Any] = []
            others: list[Any] = []
            links: set[Any] = set()
            try:
                for entry in self.scandir(here):
                    (dirs if entry.is_dir() else others).append(entry.name)
                    if entry.is_symlink():
                        links.add(entry.name)
            except OSError as error:
                if onerror is not None:
                    onerror(error)
                continue
            if topdown:
                yield here, dirs, others
            else:
                stack.append((here, dirs, others))
            for name in reversed(dirs):
                if followlinks or name not in links:
                    stack.append(posixpath.join(here, name))

    def _is(self, path: PathArgument, kind: str | None, follow: bool = True) -> bool:
        found = self._kind(path, follow_symlinks=follow)
        return found is not None and kind in (None, found)

    def exists(self, path: PathArgument) -> bool:
        """Whether the path exists, as ``os.path.exists``."""
        return self._is(path, None)

    def lexists(self, path: PathArgument) -> bool:
        """Whether the path exists; true for a broken symbolic link."""
        return self._is(path, None, follow=False)

    def isdir(self, path: PathArgument) -> bool:
        """Whether the path is a directory, as ``os.path.isdir``."""
        return self._is(path, "d")

    def isfile(self, path: PathArgument) -> bool:
        """Whether the path is a regular file, as ``os.path.isfile``."""
        return self._is(path, "f")

    def islink(self, path: PathArgument) -> bool:
        """Whether the path is a symbolic link, as ``os.path.islink``."""
        return self._is(path, "l", follow=False)

    # The whole file system.

    def statvfs(self, path: PathArgument = "/") -> os.statvfs_result:
        """Return the sizes as ``os.statvfs``. The path only has to exist."""
        self.stat(path)
        usage, block = self.usage(), 4096
        free, available = usage.free // block, usage.available // block
        flags = 0 if self.writable else os.ST_RDONLY
        return os.statvfs_result((block, block, usage.total // block, free, available, 0, 0, 0, flags, 255))

    def diff(self, old: PathArgument | int, new: PathArgument | int) -> list[_changes.Change]:
        """Return what changed between two read-only snapshots, given by path or id.

        Only the parts of the trees that differ are read, so that a small difference between large
        snapshots is found quickly.
        """
        return _changes.merge(self._changes(old, new))


def _raise(error: OSError) -> None:
    raise error
