"""The difference between two snapshots."""

from __future__ import annotations

from dataclasses import dataclass


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


def merge(rows: list[tuple[str, str, str | None, bool]]) -> list[Change]:
    """Return the changes, of which a path that was removed and added again makes one."""
    removed = {path for kind, path, _, _ in rows if kind == "removed"}
    replaced = {path for kind, path, _, _ in rows if kind == "added" and path in removed}
    changes = []
    for kind, path, old_path, data in rows:
        if path not in replaced:
            changes.append(Change(kind, path, old_path, data))
        elif kind == "added":
            changes.append(Change("modified", path, data=True))
    return sorted(changes, key=lambda change: (change.path, change.kind))
