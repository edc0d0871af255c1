"""The difference between two snapshots, from the commands of a send stream without data."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any

_CREATES = {
    "mkfile": "file",
    "mkdir": "directory",
    "mknod": "device",
    "mkfifo": "fifo",
    "mksock": "socket",
    "symlink": "symlink",
}
_DATA = {"update_extent", "write", "clone", "truncate", "encoded_write", "fallocate"}


@dataclass(frozen=True)
class Change:
    """One path that differs between two snapshots.

    kind: ``"added"``, ``"removed"``, ``"renamed"`` or ``"modified"``
    path: the path in the new snapshot; in the old one, if it was removed
    old_path: the path in the old snapshot, if there was another one
    data: whether content changed, besides names and attributes
    """

    kind: str
    path: str
    old_path: str | None = None
    data: bool = False


@dataclass
class _Object:
    """An inode by one of its names: where it was in the old snapshot, and what happened to it."""

    old: str | None
    data: bool = False


def summarize(commands: list[tuple[str, dict[str, Any]]]) -> list[Change]:
    """Return the changes that the commands make together.

    Senders create inodes with temporary names, and rename directories while they move them. So the
    commands are followed, and only the names at the end count.
    """
    # By the present path of each object that a command named.
    objects: dict[str, _Object] = {}
    removed: list[str] = []

    def old_path(path: str) -> str | None:
        """Where a path was in the old snapshot, by its nearest directory that moved."""
        if path in objects:
            return objects[path].old
        head, tail = posixpath.split(path)
        if not head:
            return path
        above = old_path(head)
        return None if above is None else posixpath.join(above, tail)

    def touch(path: str) -> _Object:
        if path not in objects:
            objects[path] = _Object(old_path(path))
        return objects[path]

    for name, fields in commands:
        path = fields["path"]
        if name in _CREATES:
            objects[path] = _Object(None)
        elif name == "link":
            # A further name of a file, or a name that it gets back under another path.
            objects[path] = _Object(None, data=touch(fields["existing"]).data)
        elif name == "rename":
            target = fields["to"]
            moved = touch(path)
            del objects[path]
            for below in [key for key in objects if key.startswith(path + "/")]:
                objects[target + below[len(path) :]] = objects.pop(below)
            objects[target] = moved
        elif name in ("unlink", "rmdir"):
            gone = touch(path)
            del objects[path]
            if gone.old is not None:
                removed.append(gone.old)
        else:
            touch(path).data |= name in _DATA

    changes = []
    for path, now in objects.items():
        shown = "/" + path
        if now.old is None:
            # A name that is removed and given again is the same path with another content.
            kind = "modified" if path in removed else "added"
            if path in removed:
                removed.remove(path)
            changes.append(Change(kind, shown, data=True))
        elif now.old != path:
            changes.append(Change("renamed", shown, "/" + now.old, now.data))
        else:
            changes.append(Change("modified", shown, data=now.data))
    changes.extend(Change("removed", "/" + path) for path in removed)
    return sorted(changes, key=lambda change: (change.path, change.kind))
