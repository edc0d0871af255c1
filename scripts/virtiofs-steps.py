"""Steps that a guest carries out in a directory, with one line of output for each.

The lines must be the same on the kernel's Btrfs and on virtiofs: `virtiofs.sh` compares them.
With `list`, only the tree is listed.
"""

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import shutil
import sqlite3
import stat
import sys
import threading

top = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE = 1, 2, 16


def at(name):
    return os.path.join(top, name)


def step(name, action):
    """Prints the result of an action, or its error."""
    try:
        print(name, action())
    except OSError as error:
        print(name, errno.errorcode.get(error.errno, error.errno))


def write(name, data, flags=0, offset=0):
    descriptor = os.open(at(name), os.O_CREAT | os.O_RDWR | flags, 0o644)
    try:
        os.pwrite(descriptor, data, offset)
    finally:
        os.close(descriptor)


def digest(name):
    with open(at(name), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def fallocate(name, mode, offset, length):
    descriptor = os.open(at(name), os.O_RDWR)
    try:
        result = libc.fallocate(descriptor, mode, ctypes.c_long(offset), ctypes.c_long(length))
        if result:
            raise OSError(ctypes.get_errno(), "fallocate")
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def listed():
    """Prints each path with what users see of it."""
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            seen = os.lstat(path)
            kind = stat.S_IFMT(seen.st_mode)
            words = [os.path.relpath(path, top), oct(seen.st_mode), seen.st_uid, seen.st_gid]
            if kind == stat.S_IFREG:
                words += [seen.st_size, seen.st_nlink, seen.st_mtime_ns, digest(os.path.relpath(path, top))]
            elif kind == stat.S_IFLNK:
                words.append(os.readlink(path))
            elif kind in (stat.S_IFCHR, stat.S_IFBLK):
                words.append(seen.st_rdev)
            if kind != stat.S_IFLNK:
                names = sorted(os.listxattr(path))
                words += [(key, os.getxattr(path, key).hex()) for key in names]
            print("tree", *words)


def mapped():
    write("mapped", bytes(10_000))
    with open(at("mapped"), "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[4000:4100] = b"m" * 100
        memory.flush()
        file.seek(4000)
        return file.read(100) == b"m" * 100


def direct():
    descriptor = os.open(at("direct"), os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
    try:
        with mmap.mmap(-1, 1 << 20) as memory:
            memory.write(b"d" * (1 << 20))
            written = os.writev(descriptor, [memory])
            memory.seek(0)
            memory.write(bytes(1 << 20))
            read = os.preadv(descriptor, [memory], 0)
            return written, read, memory[:] == b"d" * (1 << 20)
    finally:
        os.close(descriptor)


def unlinked():
    with open(at("gone"), "w+b") as file:
        os.unlink(at("gone"))
        file.write(b"still here")
        file.flush()
        file.seek(0)
        return file.read(), os.fstat(file.fileno()).st_nlink


def unnamed():
    descriptor = os.open(top, os.O_TMPFILE | os.O_RDWR, 0o640)
    try:
        os.write(descriptor, b"named later")
        # os.link does not follow the link to the descriptor: linkat with AT_SYMLINK_FOLLOW does.
        if libc.linkat(-100, f"/proc/self/fd/{descriptor}".encode(), -100, at("named").encode(), 0x400):
            raise OSError(ctypes.get_errno(), "linkat")
    finally:
        os.close(descriptor)
    return digest("named")


def copied():
    write("source", os.urandom(0) + b"c" * 300_000)
    with open(at("source"), "rb") as source, open(at("target"), "wb") as target:
        moved = 0
        while moved < 300_000:
            moved += os.copy_file_range(source.fileno(), target.fileno(), 300_000 - moved)
    return moved, digest("target")


def locked():
    with open(at("lock"), "w") as one, open(at("lock"), "w") as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return "both"
        except BlockingIOError:
            return "one"


def database():
    connection = sqlite3.connect(at("database"))
    connection.execute("pragma journal_mode = wal")
    connection.execute("create table numbers (number integer)")
    for first in range(0, 500, 50):
        with connection:
            connection.executemany("insert into numbers values (?)", [(first + n,) for n in range(50)])
    total = connection.execute("select sum(number) from numbers").fetchone()[0]
    connection.execute("pragma journal_mode = delete")
    connection.close()
    # Its pages have a counter of changes and the library's version only.
    return total


def parallel():
    def work(number):
        for round_ in range(40):
            write(f"many/{number}", bytes([number]) * 5000, offset=round_ * 5000)
            os.stat(at(f"many/{number}"))
            if round_ % 10 == 0:
                descriptor = os.open(at(f"many/{number}"), os.O_RDWR)
                os.fsync(descriptor)
                os.close(descriptor)

    os.mkdir(at("many"))
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [digest(f"many/{number}") for number in range(6)]


def entries():
    os.mkdir(at("large"))
    for number in range(2000):
        os.mknod(at(f"large/{number}"))
    for number in range(0, 2000, 3):
        os.unlink(at(f"large/{number}"))
    return len(os.listdir(at("large"))), sorted(os.listdir(at("large")))[:3]


def exchanged():
    write("left", b"left")
    write("right", b"right!")
    # renameat2 with RENAME_EXCHANGE, then with RENAME_NOREPLACE.
    one, two = at("left").encode(), at("right").encode()
    first = libc.renameat2(-100, one, -100, two, 2)
    second = libc.renameat2(-100, one, -100, two, 1)
    return first, second, os.stat(at("left")).st_size


def aged(names):
    """Gives files whose times are those of the run fixed ones."""
    for name in names:
        os.utime(at(name), ns=(10**18, 10**18 + 123_456_789), follow_symlinks=False)


def run():
    shutil.copytree("/usr/share/zoneinfo/Europe", at("copy"), symlinks=True)
    step("mkdir", lambda: os.mkdir(at("folder"), 0o750))
    step("mkdir again", lambda: os.mkdir(at("folder")))
    step("setgid", lambda: os.chmod(at("folder"), 0o2775))
    step("owner", lambda: os.chown(at("folder"), 1234, 4321))
    step("inherits", lambda: (os.mkdir(at("folder/in")), os.stat(at("folder/in")).st_gid))
    step("fifo", lambda: os.mkfifo(at("fifo"), 0o640))
    step("device", lambda: os.mknod(at("device"), stat.S_IFCHR | 0o600, os.makedev(1, 3)))
    step("link", lambda: (write("linked", b"x"), os.link(at("linked"), at("folder/linked"))))
    step("symlink", lambda: os.symlink("folder/linked", at("symlink")))
    step("links", lambda: os.stat(at("symlink")).st_nlink)
    step("directory link", lambda: os.link(at("folder"), at("no")))
    step("rmdir full", lambda: os.rmdir(at("folder")))
    step("long name", lambda: write("n" * 256, b""))
    step("longest name", lambda: write("n" * 255, b""))
    step("xattr", lambda: os.setxattr(at("linked"), "user.key", b"value"))
    step("xattr again", lambda: os.setxattr(at("linked"), "user.key", b"v", os.XATTR_CREATE))
    step("no xattr", lambda: os.getxattr(at("linked"), "user.none"))
    step("large xattr", lambda: os.setxattr(at("linked"), "user.large", b"l" * 3000))
    step("trusted", lambda: os.setxattr(at("folder"), "trusted.t", b"t"))
    step("sparse", lambda: write("sparse", b"end", offset=1 << 24))
    step("append", lambda: (write("sparse", b"more", os.O_APPEND), os.stat(at("sparse")).st_size))
    step("hole", lambda: os.lseek(os.open(at("sparse"), os.O_RDONLY), 0, os.SEEK_DATA))
    step("truncate", lambda: os.truncate(at("sparse"), 5000))
    step("grow", lambda: os.truncate(at("sparse"), 1 << 20))
    step("allocate", lambda: fallocate("sparse", 0, 0, 2 << 20))
    step("keep size", lambda: fallocate("sparse", FALLOC_KEEP_SIZE, 2 << 20, 1 << 20))
    step("punch", lambda: fallocate("sparse", FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE, 4096, 8192))
    step("zero", lambda: fallocate("sparse", FALLOC_ZERO_RANGE, 100, 200))
    step("content", lambda: digest("sparse"))
    step("mapped", mapped)
    step("direct", direct)
    step("unlinked", unlinked)
    step("unnamed", unnamed)
    step("copied", copied)
    step("locked", locked)
    step("database", database)
    step("parallel", parallel)
    step("entries", entries)
    step("exchanged", exchanged)
    step("own descendant", lambda: os.rename(at("folder"), at("folder/in/it")))
    step("rename", lambda: os.rename(at("folder"), at("renamed")))
    step("privileges", lambda: (os.chmod(at("linked"), 0o6755), os.chown(at("linked"), 5, 5)))
    step("kept bits", lambda: oct(os.stat(at("linked")).st_mode))
    step("block size", lambda: os.statvfs(top).f_namemax)
    os.unlink(at("database"))
    changed = ["mapped", "direct", "named", "source", "target", "lock", "sparse", "linked", "left", "right"]
    changed += ["n" * 255] + [f"many/{number}" for number in range(6)]
    changed += [f"large/{number}" for number in range(2000) if number % 3]
    aged(changed)
    os.sync()


if sys.argv[2:] != ["list"]:
    run()
listed()
