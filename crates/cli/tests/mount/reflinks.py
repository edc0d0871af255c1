"""Prints the results of FICLONE, FICLONERANGE, FIDEDUPERANGE and FS_IOC_FIEMAP.

reflinks.py DIRECTORY: an empty file system whose sectors have 4096 bytes.
"""

import errno
import fcntl
import os
import struct
import sys

FICLONE, FICLONERANGE, FIDEDUPERANGE, FIEMAP = 0x40049409, 0x4020940D, 0xC0189436, 0xC020660B
os.chdir(sys.argv[1])


def written(name, content):
    with open(name, "wb") as file:
        file.write(content)
        os.fsync(file.fileno())
    return content


def attempt(title, call):
    try:
        result = call()
    except OSError as error:
        result = errno.errorcode[error.errno]
    print(title, result)


def opened(name, flags=os.O_RDWR | os.O_CREAT):
    return os.open(name, flags, 0o644)


def content(name):
    with open(name, "rb") as file:
        return file.read()


def clone_range(target, source, at, length, to):
    return fcntl.ioctl(target, FICLONERANGE, struct.pack("qQQQ", source, at, length, to)) and 0


random = written("random", os.urandom(1 << 20))
odd = written("odd", os.urandom(50_001))
written("small", b"inline")
written("zeros", bytes(1 << 20))
os.mkdir("folder")
r, o, w = opened("random"), opened("odd"), opened("target")
attempt("clone", lambda: fcntl.ioctl(w, FICLONE, r))
print(os.fstat(w).st_size, content("target") == random)
attempt("clone over it", lambda: fcntl.ioctl(w, FICLONE, o))
print(os.fstat(w).st_size, content("target") == odd + random[50_001:] or content("target")[:50_001] == odd)
attempt("clone inline", lambda: fcntl.ioctl(opened("inline"), FICLONE, opened("small")))
print(content("inline"))
attempt("range", lambda: clone_range(w, r, 4096, 8192, 65536))
print(content("target")[65536:73728] == random[4096:12288])
attempt("to the end", lambda: clone_range(opened("tail"), o, 40960, 0, 4096))
print(os.stat("tail").st_size, content("tail")[4096:] == odd[40960:], set(content("tail")[:4096]))
attempt("unaligned source", lambda: clone_range(w, r, 1, 4096, 0))
attempt("unaligned target", lambda: clone_range(w, r, 0, 4096, 100))
attempt("unaligned length", lambda: clone_range(w, r, 0, 4097, 0))
attempt("beyond the end", lambda: clone_range(w, r, 1 << 21, 4096, 0))
attempt("in one file", lambda: clone_range(r, r, 0, 4096, 524288))
print(content("random")[524288:528384] == random[:4096])
attempt("overlapping", lambda: clone_range(r, r, 0, 8192, 4096))
attempt("read-only target", lambda: clone_range(opened("target", os.O_RDONLY), r, 0, 4096, 0))
attempt("append", lambda: clone_range(opened("target", os.O_WRONLY | os.O_APPEND), r, 0, 4096, 0))
attempt("write-only source", lambda: clone_range(w, opened("odd", os.O_WRONLY), 0, 4096, 0))
attempt("no source", lambda: clone_range(w, 999, 0, 4096, 0))
attempt("from a folder", lambda: clone_range(w, opened("folder", os.O_RDONLY), 0, 4096, 0))
attempt("from elsewhere", lambda: clone_range(w, opened("/etc/passwd", os.O_RDONLY), 0, 4096, 0))
gone = opened("gone")
os.write(gone, random[:8192])
os.unlink("gone")
attempt("from a file without a name", lambda: clone_range(w, gone, 0, 8192, 0))
print(content("target")[:8192] == random[:8192])
dirty = opened("dirty")
os.write(dirty, odd[:40960])
attempt("from data in memory", lambda: clone_range(w, dirty, 0, 40960, 0))
print(content("target")[:40960] == odd[:40960])
os.pwrite(w, b"x" * 10_000, 0)
attempt("over data in memory", lambda: clone_range(w, r, 0, 8192, 0))
print(content("target")[:12288] == content("random")[:8192] + b"x" * 1808 + odd[10_000:12288])


def dedupe(source, at, length, *targets):
    packed = struct.pack("QQHHI", at, length, len(targets), 0, 0)
    packed += b"".join(struct.pack("qQQiI", file, to, 0, 0, 0) for file, to in targets)
    answer = fcntl.ioctl(source, FIDEDUPERANGE, packed)
    found = [struct.unpack_from("qQQiI", answer, 24 + 32 * n)[2:4] for n in range(len(targets))]
    return [(count, errno.errorcode.get(-status, status)) for count, status in found]


same = opened("same")
os.write(same, content("random"))
os.fsync(same)
other = opened("other")
os.write(other, os.urandom(1 << 20))
attempt("dedupe", lambda: dedupe(r, 0, 1 << 20, (same, 0)))
attempt("again", lambda: dedupe(r, 0, 1 << 20, (same, 0)))
attempt("several", lambda: dedupe(r, 0, 65536, (same, 0), (other, 0), (999, 0), (same, 65536)))
attempt("read-only", lambda: dedupe(r, 0, 65536, (opened("same", os.O_RDONLY), 0)))
attempt("unaligned", lambda: dedupe(r, 0, 1000, (same, 0)))
attempt("beyond", lambda: dedupe(r, 0, 1 << 21, (same, 0)))
attempt("nothing", lambda: dedupe(r, 0, 0, (same, 0)))
attempt("no targets", lambda: dedupe(r, 0, 4096))
attempt("elsewhere", lambda: dedupe(r, 0, 4096, (opened("/etc/passwd", os.O_RDONLY), 0)))
attempt("a folder", lambda: dedupe(r, 0, 4096, (opened("folder", os.O_RDONLY), 0)))
print(content("same") == content("random"), content("other") != content("random"))

UNCOUNTED = 0x2000  # Whether an extent is shared is known after a commit.


def fiemap(file, start=0, length=(1 << 64) - 1, flags=1, count=50):
    answer = bytearray(struct.pack("QQIIII", start, length, flags, 0, count, 0) + bytes(56 * count))
    fcntl.ioctl(file, FIEMAP, answer)
    mapped = struct.unpack_from("QQIIII", answer)[3]
    extents = [struct.unpack_from("QQQQQIIII", answer, 32 + 56 * n) for n in range(min(mapped, count))]
    return mapped, [(e[0], e[2], e[5] & ~UNCOUNTED) for e in extents]


holes = opened("holes")
for offset in range(0, 40 * 65536, 65536):
    os.pwrite(holes, random[:4096], offset)
os.fsync(holes)
attempt("fiemap", lambda: fiemap(holes))
attempt("few", lambda: fiemap(holes, count=7))
attempt("counted", lambda: fiemap(holes, count=0))
attempt("a part", lambda: fiemap(holes, start=70_000, length=200_000))
attempt("beyond the end", lambda: fiemap(holes, start=1 << 30))
attempt("nothing asked", lambda: fiemap(holes, length=0))
attempt("unknown flag", lambda: fiemap(holes, flags=0x80))
attempt("inline", lambda: fiemap(opened("small")))
attempt("empty", lambda: fiemap(opened("empty")))
os.posix_fallocate(opened("promised"), 0, 1 << 20)
attempt("promised", lambda: fiemap(opened("promised")))
