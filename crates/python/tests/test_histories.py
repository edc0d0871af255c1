"""The same random histories on the kernel's Btrfs and through Papilio's interfaces.

The interfaces are this package, its queue without the host's page cache, the C library and, in every
other history, a mount. Each result is compared, an error by its errno, then the trees; also as the
kernel shows the images of the others. PAPILIO_HISTORIES is the number of histories,
PAPILIO_HISTORIES_SEED the first seed. PAPILIO_LIBRARY names the C library, PAPILIO_COMMAND the command
that mounts.
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import random
import stat
import struct
import subprocess

import papilio
import pytest

OPERATIONS = 400
NAMES = ["a", "b", "c", "d", "e"]
XATTRS = ["user.one", "user.two", "trusted.three"]
FICLONERANGE = 0x4020940D


class Kernel:
    """System calls below a directory of a mount."""

    def __init__(self, root):
        self.root = root

    def at(self, path):
        return self.root + path

    def _file(self, path, flags, use):
        file = os.open(self.at(path), flags, 0o644)
        try:
            return use(file)
        finally:
            os.close(file)

    def mkdir(self, path, mode):
        os.mkdir(self.at(path), mode)

    def rmdir(self, path):
        os.rmdir(self.at(path))

    def unlink(self, path):
        os.unlink(self.at(path))

    def write(self, path, offset, data):
        return self._file(path, os.O_RDWR | os.O_CREAT, lambda file: os.pwrite(file, data, offset))

    def read(self, path, offset, size):
        return self._file(path, os.O_RDWR, lambda file: os.pread(file, size, offset))

    def truncate(self, path, size):
        self._file(path, os.O_RDWR, lambda file: os.ftruncate(file, size))

    def clone(self, source, start, length, target, to):
        def both(one):
            request = struct.pack("qQQQ", one, start, length, to)
            self._file(target, os.O_RDWR, lambda other: fcntl.ioctl(other, FICLONERANGE, request))

        self._file(source, os.O_RDWR, both)

    def rename(self, source, target):
        os.rename(self.at(source), self.at(target))

    def link(self, source, target):
        os.link(self.at(source), self.at(target), follow_symlinks=False)

    def symlink(self, target, path):
        os.symlink(target, self.at(path))

    def readlink(self, path):
        return os.readlink(self.at(path))

    def chmod(self, path, mode):
        os.chmod(self.at(path), mode)

    def stat(self, path):
        found = os.lstat(self.at(path))
        return found.st_mode, found.st_nlink, found.st_size, found.st_uid, found.st_gid

    def setxattr(self, path, name, value):
        os.setxattr(self.at(path), name, value)

    def getxattr(self, path, name):
        return os.getxattr(self.at(path), name)

    def removexattr(self, path, name):
        os.removexattr(self.at(path), name)

    def list(self, path):
        return sorted(os.listdir(self.at(path)))


class Package:
    """The calls of this package."""

    def __init__(self, image):
        self.fs = papilio.open(image, "rw")

    def close(self):
        self.fs.close()

    def _file(self, path, create, use, direct=False):
        file = self.fs._open(
            path, read=True, write=True, create=create, exclusive=False, truncate=False, append=False,
            mode=0o644, direct=direct,
        )  # fmt: skip
        try:
            return use(file)
        finally:
            file.close()

    def write(self, path, offset, data):
        return self._file(path, True, lambda file: file.write(data, offset) - offset)

    def read(self, path, offset, size):
        return self._file(path, False, lambda file: file.read(size, offset))

    def truncate(self, path, size):
        self._file(path, False, lambda file: file.truncate(size))

    def clone(self, source, start, length, target, to):
        def both(one):
            self._file(target, False, lambda other: other.clone_range(one, start, length, to))

        self._file(source, False, both)

    def stat(self, path):
        found = self.fs.stat(path, follow_symlinks=False)
        return found.st_mode, found.st_nlink, found.st_size, found.st_uid, found.st_gid

    def list(self, path):
        return sorted(self.fs.listdir(path))

    def __getattr__(self, name):
        return getattr(self.fs, name)


class Queued(Package):
    """Reads and writes as requests in flight, which the engine for fio uses, too.

    Those of whole sectors bypass the page cache.
    """

    PIECE = 8192

    def __init__(self, image):
        self.fs = papilio.open(image, "rw", direct_io=True)
        self.queue = self.fs.queue(32)

    def close(self):
        self.queue.close()
        super().close()

    def _collect(self):
        done = sorted(self.queue.wait(self.queue.depth), key=lambda completion: completion.token)
        for completion in done:
            if completion.error is not None:
                raise completion.error
        return [completion.count for completion in done]

    def write(self, path, offset, data):
        def write(file):
            for start in range(0, len(data), self.PIECE):
                self.queue._queue.write(file, data[start : start + self.PIECE], offset + start, start)
            return sum(self._collect())

        return self._file(path, True, write, direct=(offset | len(data)) % 4096 == 0)

    def read(self, path, offset, size):
        def read(file):
            pieces = [bytearray(min(self.PIECE, size - start)) for start in range(0, size, self.PIECE)]
            for number, piece in enumerate(pieces):
                self.queue._queue.read(file, piece, offset + number * self.PIECE, number)
            return b"".join(bytes(piece[:count]) for piece, count in zip(pieces, self._collect()))

        return self._file(path, False, read, direct=(offset | size) % 4096 == 0)


class Stat(ctypes.Structure):
    """The first fields of struct papilio_stat; the library fills as many as there are."""

    _fields_ = [
        *[(name, ctypes.c_uint64) for name in ("inode", "subvolume", "size", "allocated")],
        *[(name, ctypes.c_uint64) for name in ("generation", "changed", "flags")],
        *[(name, ctypes.c_uint32) for name in ("mode", "nlink", "uid", "gid")],
        ("rest", ctypes.c_uint8 * 256),
    ]


class Library:
    """The calls of the C library."""

    CREATE, NOFOLLOW = 2, 1

    def __init__(self, library, image):
        self.c = ctypes.CDLL(library)
        for name in ("pread", "pwrite", "readlink", "getxattr", "readdir"):
            getattr(self.c, f"papilio_{name}").restype = ctypes.c_int64
        options, self.fs = ctypes.c_void_p(), ctypes.c_void_p()
        self.ok(self.c.papilio_options_new(ctypes.byref(options)))
        self.ok(self.c.papilio_options_set_write(options, ctypes.c_bool(True)))
        self.ok(self.c.papilio_open(os.fsencode(image), options, ctypes.byref(self.fs)))
        self.ok(self.c.papilio_options_free(options))

    @staticmethod
    def ok(result):
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return result

    def close(self):
        self.ok(self.c.papilio_close(self.fs))

    def _file(self, path, flags, use):
        file = ctypes.c_void_p()
        self.ok(self.c.papilio_file_open(self.fs, os.fsencode(path), flags, 0o644, ctypes.byref(file)))
        try:
            return use(file)
        finally:
            self.ok(self.c.papilio_file_close(file))

    def mkdir(self, path, mode):
        self.ok(self.c.papilio_mkdir(self.fs, os.fsencode(path), mode))

    def rmdir(self, path):
        self.ok(self.c.papilio_rmdir(self.fs, os.fsencode(path)))

    def unlink(self, path):
        self.ok(self.c.papilio_unlink(self.fs, os.fsencode(path)))

    def write(self, path, offset, data):
        def write(file):
            size, at = ctypes.c_size_t(len(data)), ctypes.c_uint64(offset)
            return self.ok(self.c.papilio_pwrite(file, data, size, at))

        return self._file(path, self.CREATE, write)

    def read(self, path, offset, size):
        buffer = ctypes.create_string_buffer(size)

        def read(file):
            at = ctypes.c_uint64(offset)
            count = self.ok(self.c.papilio_pread(file, buffer, ctypes.c_size_t(size), at))
            return buffer.raw[:count]

        return self._file(path, 0, read)

    def truncate(self, path, size):
        self._file(path, 0, lambda file: self.ok(self.c.papilio_ftruncate(file, ctypes.c_uint64(size))))

    def clone(self, source, start, length, target, to):
        start, length, to = map(ctypes.c_uint64, (start, length, to))

        def both(one):
            clone = self.c.papilio_clone_range
            self._file(target, 0, lambda other: self.ok(clone(one, start, length, other, to)))

        self._file(source, 0, both)

    def rename(self, source, target):
        self.ok(self.c.papilio_rename(self.fs, os.fsencode(source), os.fsencode(target), 0))

    def link(self, source, target):
        self.ok(self.c.papilio_link(self.fs, os.fsencode(source), os.fsencode(target)))

    def symlink(self, target, path):
        self.ok(self.c.papilio_symlink(self.fs, os.fsencode(target), os.fsencode(path)))

    def readlink(self, path):
        buffer = ctypes.create_string_buffer(4096)
        size = self.c.papilio_readlink(self.fs, os.fsencode(path), buffer, ctypes.c_size_t(4096))
        return os.fsdecode(buffer.raw[: self.ok(size)])

    def chmod(self, path, mode):
        self.ok(self.c.papilio_chmod(self.fs, os.fsencode(path), mode))

    def stat(self, path):
        found = Stat()
        size = ctypes.c_size_t(ctypes.sizeof(Stat))
        self.ok(
            self.c.papilio_stat(self.fs, os.fsencode(path), self.NOFOLLOW, ctypes.byref(found), size)
        )
        return found.mode, found.nlink, found.size, found.uid, found.gid

    def setxattr(self, path, name, value):
        size = ctypes.c_size_t(len(value))
        self.ok(self.c.papilio_setxattr(self.fs, os.fsencode(path), os.fsencode(name), value, size, 0))

    def getxattr(self, path, name):
        buffer = ctypes.create_string_buffer(65536)
        path, name = os.fsencode(path), os.fsencode(name)
        size = self.c.papilio_getxattr(self.fs, path, name, buffer, ctypes.c_size_t(65536), 0)
        return buffer.raw[: self.ok(size)]

    def removexattr(self, path, name):
        self.ok(self.c.papilio_removexattr(self.fs, os.fsencode(path), os.fsencode(name), 0))


class Mounted(Kernel):
    """System calls below a mount of Papilio. FUSE passes no clones."""

    def __init__(self, command, image, root):
        super().__init__(root)
        self.command = command
        os.mkdir(root)
        subprocess.run([command, "mount", image, root], check=True)

    def close(self):
        subprocess.run([self.command, "umount", self.root], check=True)


def some_path(rng):
    return "".join("/" + rng.choice(NAMES) for _ in range(rng.choice([1, 1, 1, 2, 2, 3])))


def some_offset(rng):
    return rng.choice([0, rng.randrange(40) * 4096, rng.randrange(200_000)])


def some_operation(rng, clones):
    """Return a call's name and arguments."""
    path, sector = some_path(rng), 4096
    data = bytes([rng.randrange(256)]) * rng.choice([0, rng.randrange(3000), rng.randrange(60_000), 8192])
    calls = [
        (8, "mkdir", (path, rng.choice([0o755, 0o700, 0o711]))),
        (3, "rmdir", (path,)),
        (5, "unlink", (path,)),
        (20, "write", (path, some_offset(rng), data)),
        (8, "read", (path, some_offset(rng), rng.randrange(1, 50_000))),
        (5, "truncate", (path, some_offset(rng))),
        (6 * clones, "clone", (path, rng.randrange(8) * sector, rng.randrange(1, 8) * sector, some_path(rng),
                      rng.randrange(20) * sector)),
        (8, "rename", (path, some_path(rng))),
        (6, "link", (path, some_path(rng))),
        (4, "symlink", (rng.choice(NAMES), path)),
        (2, "readlink", (path,)),
        (4, "chmod", (path, rng.choice([0o600, 0o644, 0o755, 0o4711, 0o2750]))),
        (6, "stat", (path,)),
        (5, "setxattr", (path, rng.choice(XATTRS), data[:3000])),
        (2, "getxattr", (path, rng.choice(XATTRS))),
        (2, "removexattr", (path, rng.choice(XATTRS))),
    ]  # fmt: skip
    weights = [weight for weight, _, _ in calls]
    return rng.choices([(name, arguments) for _, name, arguments in calls], weights)[0]


def result(side, name, arguments):
    try:
        return getattr(side, name)(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, error.errno)


def tree(kernel):
    """Return what the kernel shows below a directory."""
    found = {}
    for top, directories, files in os.walk(kernel.root):
        for name in directories + files:
            path = os.path.join(top, name)[len(kernel.root) :]
            about = kernel.stat(path)
            if stat.S_ISREG(about[0]):
                with open(kernel.at(path), "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            elif stat.S_ISLNK(about[0]):
                content = kernel.readlink(path)
            else:
                content = sorted(os.listdir(kernel.at(path)))
            xattrs = os.listxattr(kernel.at(path), follow_symlinks=False)
            values = {name: os.getxattr(kernel.at(path), name, follow_symlinks=False) for name in xattrs}
            found[path] = (about, content, values)
    return found


def needed(variable, reason):
    """Return the path in a variable of the environment; skip the test, or fail, if there is none."""
    found = os.environ.get(variable)
    if not found:
        pytest.fail(reason) if os.environ.get("PAPILIO_REQUIRE_ALL") == "1" else pytest.skip(reason)
    return found


def test_histories_agree(tmp_path, kernel_mount):
    library = needed("PAPILIO_LIBRARY", "PAPILIO_LIBRARY does not name the C library")
    command = needed("PAPILIO_COMMAND", "PAPILIO_COMMAND does not name the command")
    first = int(os.environ.get("PAPILIO_HISTORIES_SEED", "1"))
    count, paths = int(os.environ.get("PAPILIO_HISTORIES", "4")), 0
    for seed in range(first, first + count):
        images = [str(tmp_path / f"{seed}-{side}") for side in ("kernel", "python", "queue", "c", "mount")]
        clones = seed % 2
        if clones:
            images.pop()
        for image in images:
            papilio.mkfs(image, size=256 << 20)
        rng = random.Random(seed)
        with kernel_mount(images[0]) as root, contextlib.ExitStack() as opened:
            sides = [Kernel(root)]

            def add(side):
                # Also when a result differs, so that no mount stays.
                opened.callback(side.close)
                sides.append(side)

            add(Package(images[1]))
            add(Queued(images[2]))
            add(Library(library, images[3]))
            if not clones:
                add(Mounted(command, images[4], str(tmp_path / f"{seed}-point")))
            for number in range(OPERATIONS):
                name, arguments = some_operation(rng, clones)
                expected, *others = [result(side, name, arguments) for side in sides]
                for side, found in zip(sides[1:], others):
                    assert found == expected, (seed, number, name, arguments, type(side).__name__)
            expected = tree(sides[0])
        paths += len(expected)
        for image in images[1:]:
            assert papilio.check(image, data_csum=True).is_clean
            with kernel_mount(image) as root:
                assert tree(Kernel(root)) == expected, (seed, image)
        for image in images:
            os.unlink(image)
    # Most of a history's names are gone at its end.
    assert paths > 4 * count
