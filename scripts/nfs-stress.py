"""The same random operations in two directories: nfs-stress.py MOUNT MODEL SEED OPERATIONS.

Every operation must have the same result in both, and so must all paths and bytes at the end.
Everything follows from the seed.
"""

import errno
import os
import random
import stat
import sys

mount, model, seed, operations = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(seed)
SIZE = 300_000


def name():
    """Returns a path, which often exists."""
    return "/".join(chance.choice("abcdefg") for _ in range(chance.choice((1, 1, 2, 2, 3))))


def write(top, path, data, offset, flags):
    descriptor = os.open(os.path.join(top, path), os.O_WRONLY | flags, 0o640)
    try:
        os.pwrite(descriptor, data, offset)
        if flags & os.O_CREAT == 0:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(top, path, offset, length):
    descriptor = os.open(os.path.join(top, path), os.O_RDONLY)
    try:
        return os.pread(descriptor, length, offset)
    finally:
        os.close(descriptor)


def seen(top, path):
    found = os.lstat(os.path.join(top, path))
    size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    links = 0 if stat.S_ISDIR(found.st_mode) else found.st_nlink
    return found.st_mode, found.st_uid, found.st_gid, size, links


def choose():
    """Returns an operation: a name for messages, and a function of the directory."""
    path, other = name(), name()
    offset, length = chance.randrange(SIZE), chance.choice((1, 100, 4096, 70_000))
    data = chance.randbytes(length)
    mode, size = chance.choice((0o600, 0o644, 0o751, 0o4755)), chance.randrange(SIZE)
    at = os.path.join
    return chance.choice([
        ("mkdir", lambda top: os.mkdir(at(top, path), mode)),
        ("mkdir", lambda top: os.mkdir(at(top, path), mode)),
        ("create", lambda top: write(top, path, data, offset, os.O_CREAT)),
        ("create", lambda top: write(top, path, data, offset, os.O_CREAT)),
        ("exclusive", lambda top: write(top, path, data, 0, os.O_CREAT | os.O_EXCL)),
        ("write", lambda top: write(top, path, data, offset, 0)),
        ("write", lambda top: write(top, path, data, offset, 0)),
        ("rewrite", lambda top: write(top, path, data, 0, os.O_CREAT | os.O_TRUNC)),
        ("append", lambda top: write(top, path, data, 0, os.O_CREAT | os.O_APPEND)),
        ("read", lambda top: read(top, path, offset, length)),
        ("read", lambda top: read(top, path, 0, SIZE)),
        ("truncate", lambda top: os.truncate(at(top, path), size)),
        ("unlink", lambda top: os.unlink(at(top, path))),
        ("rmdir", lambda top: os.rmdir(at(top, path))),
        ("rename", lambda top: os.rename(at(top, path), at(top, other))),
        ("rename", lambda top: os.rename(at(top, path), at(top, other))),
        ("link", lambda top: os.link(at(top, path), at(top, other), follow_symlinks=False)),
        ("symlink", lambda top: os.symlink(other, at(top, path))),
        ("readlink", lambda top: os.readlink(at(top, path))),
        ("mkfifo", lambda top: os.mkfifo(at(top, path), mode)),
        ("chmod", lambda top: os.chmod(at(top, path), mode)),
        ("chown", lambda top: os.chown(at(top, path), size % 3, size % 5, follow_symlinks=False)),
        ("list", lambda top: sorted(os.listdir(at(top, path)))),
        ("seen", lambda top: seen(top, path)),
    ]) + (path, other)


def said(action, top):
    # A FIFO would wait for the other end, and a link could lead to one.
    try:
        return action(top)
    except OSError as error:
        return errno.errorcode.get(error.errno, error.errno)


def is_fifo(path):
    try:
        return stat.S_ISFIFO(os.stat(os.path.join(model, path)).st_mode)
    except OSError:
        return False


def tree(top):
    lines = {}
    for folder, folders, files in os.walk(top):
        for entry in folders + files:
            path = os.path.relpath(os.path.join(folder, entry), top)
            lines[path] = seen(top, path)
            if stat.S_ISREG(lines[path][0]):
                lines[path] += (read(top, path, 0, 1 << 30),)
    return lines


OPENS = ("create", "exclusive", "write", "rewrite", "append", "read")
for number in range(operations):
    kind, action, path, other = choose()
    if kind in OPENS and is_fifo(path):
        continue
    results = said(action, mount), said(action, model)
    if results[0] != results[1]:
        short = [repr(result)[:100] for result in results]
        sys.exit(f"seed {seed}, operation {number}: {kind} {path} {other}: {short[0]}, and locally {short[1]}")
    if number % 500 == 499 and tree(mount) != tree(model):
        sys.exit(f"seed {seed}: the trees differ after operation {number}")
both = tree(mount), tree(model)
for path in sorted(both[0].keys() | both[1].keys()):
    if both[0].get(path) != both[1].get(path):
        sys.exit(f"seed {seed}: {path}: {str(both[0].get(path))[:80]}, and locally {str(both[1].get(path))[:80]}")
print(f"seed {seed}: {operations} operations, {len(both[0])} paths")
