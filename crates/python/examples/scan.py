"""Scan an image in many processes: Dask workers share it by subvolume and directory.

    scan.py s3://bucket/disk.img                          four processes on this machine
    scan.py s3://bucket/disk.img --scheduler tcp://host:8786   the workers of a Dask cluster
    scan.py s3://bucket/disk.img --workers 0              this process alone

Each worker opens the image through fsspec and reads only what it scans. Every worker must reach the
image by the same URL: on S3, on a web server, or in a shared directory. The result has the numbers
of directories, files and bytes of each subvolume, and a digest of all names and contents, which
does not depend on the workers or on the order of their results.

Needs: dask, distributed, papilio, and fsspec's file system for the URL (s3fs for s3://).
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Iterator

import fsspec

PIECE = 1 << 20


@dataclass
class Totals:
    """What was found below a directory."""

    directories: int = 0
    files: int = 0
    bytes: int = 0
    digest: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.directories + other.directories,
            self.files + other.files,
            self.bytes + other.bytes,
            (self.digest + other.digest) % (1 << 256),
        )


@dataclass(frozen=True)
class Part:
    """A share of the work: the entries of a directory, with all below them if ``deep``."""

    subvolume: str
    directory: str
    deep: bool


@functools.lru_cache(maxsize=2)
def opened(image: str, options: str):
    """Open the image, once in each process. The options are JSON, so that they can be a key."""
    return fsspec.filesystem("btrfs", fo=image, target_options=json.loads(options)).image


def parts(fs) -> Iterator[Part]:
    """Yield the shares: each subvolume's own directory, and each directory in that."""
    for subvolume in fs.subvolumes():
        yield Part(subvolume.path, subvolume.path, deep=False)
        for entry in fs.scandir(subvolume.path):
            if entry.is_dir(follow_symlinks=False) and not entry.is_subvolume():
                yield Part(subvolume.path, entry.path, deep=True)


def scan(part: Part, image: str, options: str) -> tuple[str, Totals]:
    """Scan a share. Subvolumes in it are shares of their own."""
    fs, totals = opened(image, options), Totals()
    waiting = [part.directory]
    while waiting:
        directory = waiting.pop()
        totals.directories += 1
        for entry in fs.scandir(directory):
            if entry.is_subvolume():
                continue
            if entry.is_dir(follow_symlinks=False):
                if part.deep:
                    waiting.append(entry.path)
                continue
            digest = hashlib.sha256(entry.path.encode(errors="surrogateescape") + b"\0")
            if entry.is_symlink():
                digest.update(fs.readlink(entry.path).encode(errors="surrogateescape"))
            elif entry.is_file():
                with fs.open(entry.path, "rb", 0) as file:
                    while piece := file.read(PIECE):
                        totals.bytes += len(piece)
                        digest.update(piece)
            totals.files += 1
            totals.digest = (totals.digest + int.from_bytes(digest.digest(), "big")) % (1 << 256)
    return part.subvolume, totals


def scan_image(image: str, options: dict, client=None) -> dict[str, Totals]:
    """Scan an image by the workers of a Dask client, or in this process without one."""
    text = json.dumps(options, sort_keys=True)
    shares = list(parts(opened(image, text)))
    if client is None:
        found = [scan(share, image, text) for share in shares]
    else:
        found = client.gather(client.map(scan, shares, image=image, options=text, pure=False))
    result: dict[str, Totals] = {}
    for subvolume, totals in found:
        result[subvolume] = result.get(subvolume, Totals()) + totals
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Scan a Btrfs image in many processes.")
    parser.add_argument("image", help="URL of the image for fsspec")
    parser.add_argument("--workers", type=int, default=4, help="processes on this machine; 0 for none")
    parser.add_argument("--scheduler", help="address of a Dask scheduler, in place of local workers")
    parser.add_argument("--options", type=json.loads, default={}, help="JSON for fsspec's file system")
    arguments = parser.parse_args()
    if arguments.scheduler or arguments.workers:
        from distributed import Client, LocalCluster

        where = arguments.scheduler or LocalCluster(n_workers=arguments.workers, threads_per_worker=1)
        with Client(where) as client:
            result = scan_image(arguments.image, arguments.options, client)
        if not arguments.scheduler:
            where.close()
    else:
        result = scan_image(arguments.image, arguments.options)
    shown = {path: {**asdict(totals), "digest": f"{totals.digest:064x}"} for path, totals in result.items()}
    print(json.dumps(shown, indent=2, sort_keys=True))


if __name__ == "__main__":
    main()
