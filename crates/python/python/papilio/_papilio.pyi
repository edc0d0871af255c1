"""The native part of papilio."""

import os
import uuid
from types import TracebackType
from typing import Any, Callable, Iterator, Sequence, Union

_Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
_Subvolume = Union[int, str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
_Progress = Callable[[str, int, "int | None"], object]

__version__: str
DEFAULT_SUBVOLUME: int

class CorruptError(OSError):
    older: list[OlderFile]

class UnsupportedError(OSError): ...
class ForkError(RuntimeError): ...

class IncompleteError(OSError):
    problems: list[str]

class Device:
    def __new__(cls, read: Callable[[int, int], Any], size: int, name: str = "device") -> Device: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str: ...

class StatResult:
    @property
    def st_mode(self) -> int: ...
    @property
    def st_ino(self) -> int: ...
    @property
    def st_dev(self) -> int: ...
    @property
    def st_nlink(self) -> int: ...
    @property
    def st_uid(self) -> int: ...
    @property
    def st_gid(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_blocks(self) -> int: ...
    @property
    def st_blksize(self) -> int: ...
    @property
    def st_rdev(self) -> int: ...
    @property
    def st_atime(self) -> float: ...
    @property
    def st_mtime(self) -> float: ...
    @property
    def st_ctime(self) -> float: ...
    @property
    def st_birthtime(self) -> float: ...
    @property
    def st_atime_ns(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...
    @property
    def st_ctime_ns(self) -> int: ...
    @property
    def st_birthtime_ns(self) -> int: ...
    @property
    def flags(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def transid(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> int: ...
    def __iter__(self) -> Iterator[int]: ...

class DirEntry:
    @property
    def name(self) -> Any: ...
    @property
    def path(self) -> Any: ...
    def __fspath__(self) -> Any: ...
    def inode(self) -> int: ...
    def is_dir(self, *, follow_symlinks: bool = True) -> bool: ...
    def is_file(self, *, follow_symlinks: bool = True) -> bool: ...
    def is_symlink(self) -> bool: ...
    def is_subvolume(self) -> bool: ...
    def stat(self, *, follow_symlinks: bool = True) -> StatResult: ...

class ScanDir:
    def __iter__(self) -> ScanDir: ...
    def __next__(self) -> DirEntry: ...
    def __enter__(self) -> ScanDir: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None: ...
    def close(self) -> None: ...

class File:
    def readinto(self, buffer: Any, offset: int) -> int: ...
    def read(self, size: int, offset: int) -> bytes: ...
    def write(self, data: Any, offset: int) -> int: ...
    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def sync(self, *, data_only: bool = False) -> None: ...
    def seek_data(self, offset: int) -> int | None: ...
    def seek_hole(self, offset: int) -> int: ...
    def stat(self) -> StatResult: ...
    def punch_hole(self, offset: int, length: int) -> None: ...
    def allocate(self, offset: int, length: int, *, keep_size: bool = False) -> None: ...
    def clone_range(self, source: File, source_offset: int, length: int, offset: int) -> None: ...
    def dedupe_range(self, source: File, source_offset: int, length: int, offset: int) -> int | None: ...
    def close(self) -> None: ...
    def check_process(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def readable(self) -> bool: ...
    @property
    def writable(self) -> bool: ...
    @property
    def appends(self) -> bool: ...
    @property
    def path(self) -> Any: ...

class Queue:
    def __new__(cls, fs: FileSystem, depth: int = 32, threads: int = 0) -> Queue: ...
    def read(self, file: File, buffer: Any, offset: int, token: Any) -> None: ...
    def write(self, file: File, buffer: Any, offset: int, token: Any) -> None: ...
    def fsync(self, file: File, data_only: bool, token: Any) -> None: ...
    def wait(self, min: int = 1) -> list[Completion]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    @property
    def depth(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...

class Completion:
    @property
    def token(self) -> Any: ...
    @property
    def count(self) -> int: ...
    @property
    def error(self) -> OSError | None: ...

class Subvolume:
    id: int
    parent_id: int | None
    name: str
    path: str | None
    uuid: uuid.UUID
    parent_uuid: uuid.UUID | None
    received_uuid: uuid.UUID | None
    generation: int
    created_generation: int
    creation_time: float
    is_read_only: bool
    is_snapshot: bool
    is_being_deleted: bool

class SpaceUsage:
    kind: str
    profile: str
    total: int
    used: int
    raw_total: int
    raw_used: int

class DeviceUsage:
    devid: int
    uuid: uuid.UUID
    path: str | None
    total: int
    unallocated: int

class Usage:
    spaces: list[SpaceUsage]
    devices: list[DeviceUsage]
    device_size: int
    allocated: int
    unallocated: int
    missing: int
    global_reserve: int
    total: int
    free: int
    available: int

class SubvolumeSpace:
    id: int
    path: Any
    referenced: int
    referenced_data: int
    exclusive: int
    exclusive_data: int

class SpaceSharing:
    @property
    def subvolumes(self) -> list[SubvolumeSpace]: ...
    @property
    def total(self) -> int: ...
    @property
    def bad_blocks(self) -> int: ...
    def freed_by(self, subvolumes: Sequence[int]) -> int: ...
    def choose(self, wanted: int, candidates: Sequence[int]) -> list[int] | None: ...

class FileVersion:
    size: int
    mode: int
    uid: int
    gid: int
    mtime: float
    holders: list[tuple[int, Any, Any]]

class SnapshotOnly:
    path: Any
    subvolume_id: int
    subvolume_path: Any
    size: int
    mode: int
    mtime: float

class SnapshotChange:
    path: Any
    name: str
    old_path: Any
    is_directory: bool
    size: int
    content: bool
    metadata: bool

class HistoryStep:
    old_id: int
    new_id: int
    changes: list[SnapshotChange]

class DeletedSubvolume:
    id: int
    path: Any
    root_tree: int
    generation: int
    blocks: int
    missing: int
    is_being_freed: bool

class Relief:
    metadata_total: int
    metadata_used: int
    unallocated_metadata: int
    room: int
    needed: int
    is_short: bool
    deleted_subvolumes: int
    empty: list[tuple[int, int, int]]
    movable: list[tuple[int, int, int]]
    slack: list[tuple[int, int]]

class Finding:
    kind: str
    severity: str
    message: str
    place: str
    tree: int | None
    inode: int | None
    address: int | None
    device: str | None
    offset: int | None
    text: str

class CheckReport:
    findings: list[Finding]
    counts: dict[str, int]
    notes: list[str]
    statistics: dict[str, int]
    errors: int
    warnings: int
    is_clean: bool
    dropped: int

class Made:
    uuid: uuid.UUID
    label: str
    total_bytes: int
    node_size: int
    sector_size: int
    checksum: str
    features: list[str]

class OlderState:
    @property
    def cause(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def is_asked(self) -> bool: ...
    @property
    def has_log(self) -> bool: ...

class OlderFile:
    path: str
    part: str
    reason: str
    subvolume: int | None
    inode: int | None

class FileSystem:
    def __new__(
        cls,
        image: _Path | Device,
        mode: str = "r",
        *,
        devices: Sequence[_Path] = (),
        subvolume: _Subvolume | None = None,
        degraded: bool = False,
        compress: str | None = None,
        compress_force: str | None = None,
        cache_bytes: int = 0,
        node_cache_bytes: int | None = None,
        direct_io: bool = False,
        commit_interval: float | None = 30.0,
        verify_data: bool = True,
        use_backup_root: bool = False,
        replay_log: bool = True,
        allow_older: bool = False,
        replay_bytes: int | None = None,
        ignore_signatures: bool = False,
        superblock_mirror: int | None = None,
        discard: bool = False,
        timestamp: float | None = None,
        owner: tuple[int, int] = (0, 0),
        umask: int = 0o022,
    ) -> FileSystem: ...
    def _close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def writable(self) -> bool: ...
    @property
    def uuid(self) -> uuid.UUID: ...
    @property
    def label(self) -> str: ...
    @property
    def default_subvolume(self) -> int: ...
    def sync(self) -> None: ...
    def usage(self) -> Usage: ...
    def space_sharing(self) -> SpaceSharing: ...
    def versions(self, path: _Path, *, subvolume: _Subvolume | None = None) -> list[FileVersion]: ...
    def only_in_snapshots(
        self, path: _Path | None = None, *, subvolume: _Subvolume | None = None
    ) -> list[SnapshotOnly]: ...
    def history(
        self,
        path: _Path | None = None,
        *,
        subvolume: _Subvolume | None = None,
        since: int | None = None,
    ) -> list[HistoryStep]: ...
    def plan_relief(self) -> Relief: ...
    def older_states(self) -> list[OlderState]: ...
    def older_files(self, state: OlderState) -> list[OlderFile]: ...
    def trim(self) -> int: ...
    def check(
        self, *, data_csum: bool = False, max_findings: int = 10_000, progress: _Progress | None = None
    ) -> CheckReport: ...
    def stat(self, path: _Path, *, follow_symlinks: bool = True) -> StatResult: ...
    def lstat(self, path: _Path) -> StatResult: ...
    def listdir(self, path: _Path | None = None) -> list[Any]: ...
    def scandir(self, path: _Path | None = None) -> ScanDir: ...
    def mkdir(self, path: _Path, mode: int = 0o777) -> None: ...
    def rmdir(self, path: _Path) -> None: ...
    def unlink(self, path: _Path) -> None: ...
    def rename(self, src: _Path, dst: _Path, *, no_replace: bool = False, exchange: bool = False) -> None: ...
    def link(self, src: _Path, dst: _Path, *, follow_symlinks: bool = False) -> None: ...
    def symlink(self, src: _Path, dst: _Path) -> None: ...
    def readlink(self, path: _Path) -> Any: ...
    def mknod(self, path: _Path, mode: int = 0o600, device: int = 0) -> None: ...
    def truncate(self, path: _Path, length: int) -> None: ...
    def fsync(self, path: _Path) -> None: ...
    def _open(
        self,
        path: _Path,
        *,
        read: bool,
        write: bool,
        create: bool,
        exclusive: bool,
        truncate: bool,
        append: bool,
        mode: int = 0o666,
        direct: bool = False,
    ) -> File: ...
    def _kind(self, path: _Path, *, follow_symlinks: bool = True) -> str | None: ...
    def chmod(self, path: _Path, mode: int, *, follow_symlinks: bool = True) -> None: ...
    def chown(self, path: _Path, uid: int, gid: int, *, follow_symlinks: bool = True) -> None: ...
    def utime(
        self,
        path: _Path,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None: ...
    def getxattr(self, path: _Path, attribute: str | bytes, *, follow_symlinks: bool = True) -> bytes: ...
    def setxattr(
        self, path: _Path, attribute: str | bytes, value: Any, flags: int = 0, *, follow_symlinks: bool = True
    ) -> None: ...
    def listxattr(self, path: _Path | None = None, *, follow_symlinks: bool = True) -> list[str]: ...
    def removexattr(self, path: _Path, attribute: str | bytes, *, follow_symlinks: bool = True) -> None: ...
    def subvolumes(self) -> list[Subvolume]: ...
    def subvolume(self, which: _Subvolume) -> Subvolume: ...
    def set_default_subvolume(self, which: _Subvolume) -> None: ...
    def create_subvolume(self, path: _Path, mode: int = 0o777) -> None: ...
    def snapshot(self, source: _Path, path: _Path, *, read_only: bool = False) -> None: ...
    def delete_subvolume(self, which: _Subvolume) -> None: ...
    def set_read_only(self, path: _Path, read_only: bool = True) -> None: ...
    def clean_subvolumes(self) -> None: ...
    def send(
        self,
        subvolume: _Subvolume,
        out: Any,
        *,
        parent: _Subvolume | None = None,
        clone_sources: Sequence[_Subvolume] = (),
        no_data: bool = False,
        protocol: int = 1,
        compressed_data: bool = False,
    ) -> tuple[int, int]: ...
    def receive(
        self, stream: Any, path: _Path | None = None, *, stop_at_end: bool = False, max_errors: int = 1
    ) -> list[tuple[str, bool]]: ...
    def _changes(self, old: _Subvolume, new: _Subvolume) -> list[tuple[str, str, str | None, bool]]: ...
    def copy_in(self, source: _Path, path: _Path | None = None, *, keep_attributes: bool = True) -> None: ...
    def copy_out(
        self,
        path: _Path,
        directory: _Path,
        *,
        keep_attributes: bool = True,
        one_subvolume: bool = False,
        keep_existing: bool = False,
    ) -> None: ...
    def dedupe(
        self, path: _Path | None = None, *, block_size: int = 131072, dry_run: bool = False
    ) -> tuple[int, int, int]: ...
    def dedupe_by_checksums(
        self,
        path: _Path | None = None,
        *,
        shortest_run: int = 16384,
        memory: int = 268435456,
        state: _Path | None = None,
        copies: bool = True,
        dry_run: bool = False,
    ) -> tuple[int, int, int, int]: ...
    def write_tar(self, path: _Path, out: Any, *, one_subvolume: bool = False) -> None: ...
    def archive(
        self,
        out: Any,
        *,
        since: _Path | None = None,
        level: int = 3,
        threads: int = 0,
        skip_unreadable: bool = False,
    ) -> tuple[uuid.UUID, int]: ...

def verify_archive(archive: _Path, *, parents: Sequence[_Path] = ()) -> None: ...
def restore_archive(
    archive: _Path,
    *images: _Path,
    parents: Sequence[_Path] = (),
    sizes: Sequence[int] | None = None,
    force: bool = False,
) -> None: ...
def receive(
    stream: Any, directory: _Path, *, stop_at_end: bool = False, max_errors: int = 1
) -> list[tuple[str, bool]]: ...
def check(
    image: _Path | Device,
    *,
    devices: Sequence[_Path] = (),
    degraded: bool = False,
    data_csum: bool = False,
    max_findings: int = 10_000,
    progress: _Progress | None = None,
) -> CheckReport: ...
def mkfs(
    *images: _Path,
    size: int | None = None,
    label: str | bytes | None = None,
    uuid: uuid.UUID | None = None,
    node_size: int | None = None,
    checksum: str | None = None,
    data_profile: str | None = None,
    metadata_profile: str | None = None,
    features: str | None = None,
    force: bool = False,
    discard: bool = False,
    timestamp: float | None = None,
    content: _Path | None = None,
    compress: str | None = None,
    shrink: bool = False,
) -> Made: ...
def find_deleted_subvolumes(image: _Path, *, devices: Sequence[_Path] = ()) -> list[DeletedSubvolume]: ...
