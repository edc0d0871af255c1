"""Queues of requests on files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _papilio
from ._io import RawFile

if TYPE_CHECKING:
    from ._file_system import FileSystem


class Queue:
    """Requests in flight on files of one file system, and a context manager that closes it.

    Each request has a token, any object, by which its completion is known. A buffer must not be
    used until the completion was collected; it cannot be resized meanwhile. Requests run in any
    order, also on one file: wait for a write before a read of its data. Any thread may use a
    queue; one that waits holds up the others.

    depth: the most requests in flight, 1 to 65536
    threads: threads of its own for requests. Without them, requests run while completions are
        collected; on file systems opened with ``direct_io=True``, reads and writes of whole
        sectors are in flight all the same.
    """

    def __init__(self, fs: FileSystem, depth: int = 32, threads: int = 0) -> None:
        self._queue = _papilio.Queue(fs, depth, threads)

    def read(self, file: RawFile, buffer: Any, offset: int, token: Any = None) -> None:
        """Submit a read into a buffer, as ``file.preadinto``.

        The file is one that was opened with ``buffering=0``. Raises ``BlockingIOError`` if the
        queue is full.
        """
        file._must_read()
        self._queue.read(file._file, buffer, offset, token)

    def write(self, file: RawFile, buffer: Any, offset: int, token: Any = None) -> None:
        """Submit a write of a whole buffer, as ``file.pwrite``."""
        file._must_write()
        if file._file.appends:
            raise ValueError("a queue does not write to a file that was opened for appending")
        self._queue.write(file._file, buffer, offset, token)

    def fsync(self, file: RawFile, token: Any = None, *, data_only: bool = False) -> None:
        """Submit an ``fsync``. It covers the requests that had completed when it was submitted."""
        self._queue.fsync(file._file, data_only, token)

    def wait(self, min: int = 1) -> list[_papilio.Completion]:
        """Return the completions so far, after waiting for at least ``min`` of them.

        If fewer requests are in flight, it waits for all. With ``min=0`` it does not wait.
        """
        return self._queue.wait(min)

    def __len__(self) -> int:
        """Return the number of requests whose completions were not collected."""
        return len(self._queue)

    def __bool__(self) -> bool:
        return True

    @property
    def depth(self) -> int:
        """The most requests in flight."""
        return self._queue.depth

    @property
    def closed(self) -> bool:
        """Whether the queue is closed."""
        return self._queue.closed

    def fileno(self) -> int:
        """Return a descriptor that is readable when ``wait(0)`` may have completions.

        For event loops, such as ``asyncio``'s ``add_reader``. Call ``wait(0)`` once after
        submitting, too. The descriptor belongs to the queue.
        """
        return self._queue.fileno()

    def close(self) -> None:
        """Carry out all requests and close the queue.

        Raises the error of the first request that failed and was not collected.
        """
        self._queue.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} of {self.depth} in flight"
        return f"<papilio.Queue {state}>"
