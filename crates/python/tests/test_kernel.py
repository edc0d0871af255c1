"""What the module writes, as a kernel mount shows it, and the reverse."""

import errno
import hashlib
import os
import stat

import papilio


def snapshot_of_tree(walk, read, lstat, readlink, listxattr, getxattr, top):
    """Return everything below top: kinds, modes, owners, times, content, targets, attributes."""
    found = {}
    for path, dirs, files in walk(top):
        for name in dirs + files:
            at = os.path.join(path, name)
            info = lstat(at)
            content = None
            if stat.S_ISREG(info.st_mode):
                content = hashlib.sha256(read(at)).hexdigest()
            elif stat.S_ISLNK(info.st_mode):
                content = readlink(at)
            attributes = {key: getxattr(at, key, follow_symlinks=False) for key in listxattr(at, follow_symlinks=False)}
            found[at[len(top) :].lstrip("/")] = (
                info.st_mode, info.st_uid, info.st_gid, info.st_nlink, info.st_size, info.st_blocks,
                info.st_rdev, info.st_ino, info.st_mtime_ns, info.st_atime_ns, info.st_ctime_ns, content, attributes,
            )
    return found


def of_kernel(point):
    def read(path):
        with open(path, "rb") as file:
            return file.read()

    # Reading changes access times, so it comes after the metadata.
    return snapshot_of_tree(os.walk, read, os.lstat, os.readlink, os.listxattr, os.getxattr, point)


def of_papilio(fs):
    return snapshot_of_tree(
        fs.walk, lambda path: fs.path(path).read_bytes(), fs.lstat, fs.readlink, fs.listxattr, fs.getxattr, "/"
    )


def fill(fs):
    fs.makedirs("/etc/deep/er")
    fs.path("/etc/hosts").write_text("127.0.0.1 localhost\n")
    with fs.open("/large", "wb") as file:
        for number in range(3000):
            file.write(bytes([number % 251]) * 1000)
    with fs.open("/sparse", "wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    fs.symlink("etc/hosts", "/link")
    fs.link("/etc/hosts", "/etc/deep/other")
    fs.mknod("/fifo", 0o010600)
    fs.mknod("/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    fs.chmod("/etc/hosts", 0o4751)
    fs.chown("/large", 1000, 1001)
    fs.utime("/large", ns=(1_500_000_000_123_456_789, 1_600_000_000_987_654_321))
    fs.setxattr("/etc", "user.note", b"by hand\x00\xff")
    fs.clone_range("/large", "/clone")
    fs.truncate("/clone", 1_234_567)
    fs.open(b"/caf\xe9", "wb").close()


def test_the_kernel_sees_the_same(image, kernel_mount):
    with papilio.open(image, "rw", compress="zstd") as fs:
        fill(fs)
        fs.create_subvolume("/sub")
        fs.path("/sub/file").write_text("in a subvolume")
        fs.snapshot("/sub", "/snap", read_only=True)
    assert papilio.check(image, data_csum=True).is_clean
    with papilio.open(image) as fs:
        ours = of_papilio(fs)
    with kernel_mount(image, "loop,ro,noatime") as point:
        assert of_kernel(point) == ours
    assert len(ours) == 16


def test_changes_of_the_kernel_are_read(image, kernel_mount):
    with kernel_mount(image) as point:
        os.makedirs(f"{point}/a/b")
        with open(f"{point}/a/data", "wb") as file:
            file.write(os.urandom(300_000))
        os.symlink("data", f"{point}/a/link")
        os.mkfifo(f"{point}/a/b/fifo")
        os.setxattr(f"{point}/a", "user.x", b"y")
    with papilio.open(image) as fs:
        ours = of_papilio(fs)
    with kernel_mount(image, "loop,ro,noatime") as point:
        assert of_kernel(point) == ours
    assert len(ours) == 5


def test_calls_fail_with_the_kernels_errno(image, kernel_mount):
    """Each call fails alike on a mount of the kernel."""
    with papilio.open(image, "rw") as fs:
        fs.makedirs("/d/e")
        fs.path("/f").write_text("x")
        fs.symlink("loop", "/loop")
    calls = [
        lambda o, p: o.stat(p + "/missing"),
        lambda o, p: o.stat(p + "/f/x"),
        lambda o, p: o.stat(p + "/loop"),
        lambda o, p: o.listdir(p + "/f"),
        lambda o, p: o.mkdir(p + "/d"),
        lambda o, p: o.mkdir(p + "/x/y"),
        lambda o, p: o.rmdir(p + "/d"),
        lambda o, p: o.rmdir(p + "/f"),
        lambda o, p: o.rename(p + "/d", p + "/d/e/x"),
        lambda o, p: o.rename(p + "/f", p + "/d"),
        lambda o, p: o.link(p + "/f", p + "/d"),
        lambda o, p: o.readlink(p + "/f"),
        lambda o, p: o.symlink("x", p + "/f"),
        lambda o, p: o.mkdir(p + "/" + "n" * 256),
        lambda o, p: o.getxattr(p + "/f", "user.none"),
        lambda o, p: o.setxattr(p + "/f", "user.none", b"", os.XATTR_REPLACE),
    ]

    def outcomes(where, prefix):
        found = []
        for call in calls:
            try:
                call(where, prefix)
                found.append(None)
            except OSError as error:
                found.append((errno.errorcode[error.errno], type(error)))
        return found

    with papilio.open(image, "rw") as fs:
        ours = outcomes(fs, "")
    with kernel_mount(image) as point:
        assert outcomes(os, point) == ours
    assert None not in ours
