"""Steps in a directory, with one line of output for each; some are those of users other than root.

The lines must be the same on the kernel's Btrfs and on a mount of `papilio serve --nfs`:
`nfs-guest.sh` compares them. With `list`, only the tree is listed.
"""

import errno
import hashlib
import mmap
import os
import socket
import sqlite3
import stat
import sys
import time

top = sys.argv[1]
ALICE, BOB, SHARED = 1000, 1001, 2000


def at(name):
    return os.path.join(top, name)


def said(action):
    """Returns the result of an action, or the name of its error."""
    try:
        return action()
    except OSError as error:
        return errno.errorcode.get(error.errno, error.errno)


def step(name, action):
    print(name, said(action), flush=True)


def as_user(name, uid, groups, action):
    """Prints the result of an action of a user, in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups(groups)
        os.setresgid(groups[0], groups[0], groups[0])
        os.setresuid(uid, uid, uid)
        os.write(writer, repr(said(action)).encode())
        os._exit(0)
    os.close(writer)
    result = os.read(reader, 4096).decode()
    os.close(reader)
    os.waitpid(child, 0)
    print(name, f"uid {uid}", result, flush=True)


def write(name, data, flags=0, mode=0o644):
    descriptor = os.open(at(name), os.O_CREAT | os.O_RDWR | flags, mode)
    try:
        return os.write(descriptor, data)
    finally:
        os.close(descriptor)


def read(name):
    with open(at(name), "rb") as file:
        return file.read()


def seen(name):
    found = os.lstat(at(name))
    return oct(found.st_mode), found.st_uid, found.st_gid, found.st_nlink, found.st_size


def listed():
    """Prints each path with what users see of it."""
    for folder, folders, files in os.walk(os.fsencode(top)):
        folders.sort()
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            found = os.lstat(path)
            kind = stat.S_IFMT(found.st_mode)
            words = [os.path.relpath(path, os.fsencode(top)), oct(found.st_mode), found.st_uid, found.st_gid]
            words += [found.st_nlink, found.st_mtime_ns]
            if kind == stat.S_IFREG:
                with open(path, "rb") as file:
                    words += [found.st_size, hashlib.sha256(file.read()).hexdigest()[:16]]
            elif kind == stat.S_IFLNK:
                words.append(os.readlink(path))
            elif kind in (stat.S_IFCHR, stat.S_IFBLK):
                words.append(found.st_rdev)
            print("tree", *words)


def settle():
    """Gives every path a time that says nothing about when the steps ran."""
    paths = []
    for folder, folders, files in os.walk(os.fsencode(top)):
        paths += [os.path.join(folder, name) for name in folders + files]
    for number, path in enumerate(sorted(paths)):
        os.utime(path, ns=(10**9, 10**18 + number), follow_symlinks=False)


def kinds():
    os.umask(0o022)
    step("folder", lambda: os.mkdir(at("kinds"), 0o751))
    for size in (0, 1, 4095, 4096, 70_000, 1 << 20, 3_000_001):
        step(f"file of {size}", lambda: write(f"kinds/of {size}", bytes(n * 7 % 251 for n in range(size))))
    step("symlink", lambda: os.symlink("of 4096", at("kinds/link")))
    step("long symlink", lambda: os.symlink("t" * 3000, at("kinds/long link")))
    step("too long symlink", lambda: os.symlink("t" * 4096, at("kinds/too long")))
    step("fifo", lambda: os.mkfifo(at("kinds/fifo"), 0o640))
    step("socket", lambda: os.mknod(at("kinds/socket"), stat.S_IFSOCK | 0o755))
    step("character device", lambda: os.mknod(at("kinds/null"), stat.S_IFCHR | 0o666, os.makedev(1, 3)))
    step("block device", lambda: os.mknod(at("kinds/disk"), stat.S_IFBLK | 0o660, os.makedev(259, 70_000)))
    step("device works", lambda: open(at("kinds/null"), "wb").write(b"nothing"))
    step("hard link", lambda: os.link(at("kinds/of 1"), at("kinds/of 1 again")))
    step("hard link of symlink", lambda: os.link(at("kinds/link"), at("kinds/link 2"), follow_symlinks=False))
    step("hard link of fifo", lambda: os.link(at("kinds/fifo"), at("kinds/fifo 2")))
    step("same inode", lambda: os.stat(at("kinds/of 1")).st_ino == os.stat(at("kinds/of 1 again")).st_ino)
    for name in ("n" * 255, "n" * 256, "\u00e4\u6f22\U0001f98b", "with\nline", "-", "..."):
        step(f"name of {len(name.encode())} bytes", lambda: write("kinds/" + name, b"x"))
    step("name of no text", lambda: os.close(os.open(os.fsencode(at("kinds/")) + b"\xff\xfe", os.O_CREAT | os.O_WRONLY)))
    for name in sorted(os.listdir(at("kinds"))):
        if name not in ("link 2",):
            step(f"seen {name[:20]!r}", lambda: seen("kinds/" + name)[:4])
    listener = socket.socket(socket.AF_UNIX)
    os.chdir(at("kinds"))
    step("bind", lambda: listener.bind("bound"))
    os.chdir("/")
    listener.close()


def modes():
    os.mkdir(at("modes"))
    for mask in (0, 0o022, 0o077):
        os.umask(mask)
        for mode in (0o777, 0o600, 0o4755, 0o2755):
            name = f"modes/{mask:o} {mode:o}"
            step(f"create {name}", lambda: (os.close(os.open(at(name), os.O_CREAT | os.O_EXCL, mode)), seen(name))[1])
            step(f"mkdir {name}", lambda: (os.mkdir(at(name + " d"), mode), seen(name + " d"))[1])
    os.umask(0o022)
    for mode in (0o7777, 0o0, 0o1755, 0o2070):
        step(f"chmod {mode:o}", lambda: (os.chmod(at("modes/0 600"), mode), seen("modes/0 600"))[1])
    step("chown", lambda: (os.chown(at("modes/0 777"), ALICE, SHARED), seen("modes/0 777"))[1])
    os.chmod(at("modes/0 777"), 0o6777)
    step("chown clears", lambda: (os.chown(at("modes/0 777"), BOB, -1), seen("modes/0 777"))[1])
    os.mkdir(at("modes/shared"))
    os.chown(at("modes/shared"), ALICE, SHARED)
    os.chmod(at("modes/shared"), 0o2775)
    for uid, groups in ((ALICE, [ALICE, SHARED]), (BOB, [BOB, SHARED]), (BOB, [BOB])):
        tag = f"{uid} {len(groups)}"
        as_user("inherit file", uid, groups, lambda: (write(f"modes/shared/file {tag}", b"x"), seen(f"modes/shared/file {tag}"))[1])
        as_user("inherit folder", uid, groups, lambda: (os.mkdir(at(f"modes/shared/dir {tag}")), seen(f"modes/shared/dir {tag}"))[1])
        as_user("chmod", uid, groups, lambda: os.chmod(at("modes/shared"), 0o2770))
        as_user("chgrp", uid, groups, lambda: os.chown(at("modes/shared"), -1, SHARED))
        as_user("chown", uid, groups, lambda: os.chown(at("modes/shared"), BOB, -1))
    for mode in (0o4777, 0o2777, 0o6777, 0o2767):
        write("modes/privileged", b"x")
        os.chown(at("modes/privileged"), ALICE, SHARED)
        os.chmod(at("modes/privileged"), mode)
        as_user(f"write to {mode:o}", BOB, [BOB], lambda: write("modes/privileged", b"y"))
        step(f"after write to {mode:o}", lambda: seen("modes/privileged"))
        os.chmod(at("modes/privileged"), mode)
        # Not to the old size: a client of NFS does not ask the server for that.
        as_user(f"truncate {mode:o}", BOB, [BOB], lambda: os.truncate(at("modes/privileged"), 0))
        step(f"after truncate {mode:o}", lambda: seen("modes/privileged"))
        os.remove(at("modes/privileged"))


def times():
    write("timed", b"x")
    # In the first and the last second of the protocol's time, clients of Linux drop nanoseconds.
    for moment in (10**9, 10**9 + 1, 2**31 * 10**9, (2**32 - 2) * 10**9 + 999_999_990):
        os.utime(at("timed"), ns=(moment, moment + 5))
        found = os.stat(at("timed"))
        print("times", found.st_atime_ns, found.st_mtime_ns)
    os.chmod(at("timed"), 0o666)
    as_user("touch", BOB, [BOB], lambda: os.utime(at("timed")))
    as_user("set times", BOB, [BOB], lambda: os.utime(at("timed"), (1, 1)))
    os.chmod(at("timed"), 0o644)
    as_user("touch", BOB, [BOB], lambda: os.utime(at("timed")))
    before = os.stat(at("timed")).st_ctime_ns
    write("timed", b"y")
    step("write sets times", lambda: os.stat(at("timed")).st_ctime_ns > before)


def renames():
    os.mkdir(at("renames"))
    for name in ("a", "b", "c"):
        write("renames/" + name, name.encode())
    for name in ("d", "e", "f"):
        os.mkdir(at("renames/" + name))
    write("renames/f/full", b"x")
    os.link(at("renames/a"), at("renames/a2"))
    cases = [("a", "new"), ("new", "b"), ("b", "a2"), ("none", "x"), ("b", "d"), ("d", "b"), ("d", "e"), ("e", "f"),
             ("f", "f/below"), ("f", "f"), ("b", "f/b"), ("f", "g"), ("g/b", "c"), ("c/x", "y"), ("c", "none/y"),
             ("c", "n" * 256), (".", "z"), ("c", ".."), ("g/.", "z")]
    for source, target in cases:
        step(f"rename {source} {target[:9]}", lambda: os.rename(at("renames/" + source), at("renames/" + target)))
        step("left", lambda: sorted(os.listdir(at("renames"))))
    os.mkdir(at("renames/sticky"), 0o1777)
    os.chmod(at("renames/sticky"), 0o1777)
    for uid in (ALICE, BOB):
        as_user("own", uid, [uid], lambda: write(f"renames/sticky/{uid}", b"x"))
        as_user("own folder", uid, [uid], lambda: os.mkdir(at(f"renames/sticky/dir {uid}")))
    as_user("take", BOB, [BOB], lambda: os.rename(at(f"renames/sticky/{ALICE}"), at("renames/sticky/mine")))
    as_user("replace", BOB, [BOB], lambda: os.rename(at(f"renames/sticky/{BOB}"), at(f"renames/sticky/{ALICE}")))
    as_user("remove", BOB, [BOB], lambda: os.remove(at(f"renames/sticky/{ALICE}")))
    as_user("rmdir", BOB, [BOB], lambda: os.rmdir(at(f"renames/sticky/dir {ALICE}")))
    as_user("own away", BOB, [BOB], lambda: os.rename(at(f"renames/sticky/{BOB}"), at("renames/sticky/away")))
    as_user("own removed", BOB, [BOB], lambda: os.remove(at("renames/sticky/away")))


def data():
    write("data", b"0123456789")
    for size in (5, 20, 1 << 20, 0, 7):
        step(f"truncate {size}", lambda: (os.truncate(at("data"), size), read("data")[:30], seen("data"))[1:])
    step("exclusive", lambda: os.open(at("data"), os.O_CREAT | os.O_EXCL | os.O_RDWR))
    step("exclusive new", lambda: (write("new", b"x", os.O_EXCL, 0o604), seen("new"))[1])
    step("exclusive on link", lambda: (os.symlink("none", at("dangling")), os.open(at("dangling"), os.O_CREAT | os.O_EXCL))[1])
    step("create through link", lambda: (write("dangling", b"made"), read("none"))[1])
    step("truncating open", lambda: (write("data", b"ab", os.O_TRUNC), read("data"))[1])
    one, two = (os.open(at("data"), os.O_WRONLY | os.O_APPEND) for _ in range(2))
    for number in range(50):
        os.write((one, two)[number % 2], b"%d," % number)
    os.close(one)
    os.close(two)
    step("append", lambda: hashlib.sha256(read("data")).hexdigest()[:8])
    descriptor = os.open(at("holes"), os.O_CREAT | os.O_RDWR)
    os.pwrite(descriptor, b"far", 3 << 30)
    os.pwrite(descriptor, b"near", 5000)
    step("hole", lambda: (os.pread(descriptor, 10, 4998), os.pread(descriptor, 10, (3 << 30) - 3), os.fstat(descriptor).st_size))
    os.close(descriptor)
    os.truncate(at("holes"), 1 << 20)
    with open(at("mapped"), "w+b") as file:
        file.truncate(1 << 20)
        with mmap.mmap(file.fileno(), 1 << 20) as memory:
            memory[4000:4100] = b"m" * 100
            memory[1_000_000:1_000_003] = b"end"
            memory.flush()
            step("mapped", lambda: (os.pread(file.fileno(), 102, 3999)[:3], os.pread(file.fileno(), 3, 1_000_000)))
    descriptor = os.open(at("direct"), os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
    with mmap.mmap(-1, 1 << 20) as memory:
        memory.write(b"d" * (1 << 20))
        step("direct", lambda: (os.writev(descriptor, [memory]), os.preadv(descriptor, [memory], 0)))
    os.close(descriptor)
    with open(at("gone"), "w+b") as file:
        os.unlink(at("gone"))
        file.write(b"still here")
        file.flush()
        file.seek(0)
        step("unlinked", file.read)
    # A client of NFS removes the name that stood in for it a moment later.
    for _ in range(100):
        traces = [name for name in os.listdir(top) if name.startswith(".nfs")]
        if not traces:
            break
        time.sleep(0.1)
    step("no trace", lambda: traces)
    with open(at("old"), "w+b") as file:
        file.write(b"old")
        file.flush()
        write("newer", b"new")
        os.rename(at("newer"), at("old"))
        file.seek(0)
        step("replaced", lambda: (file.read(), read("old")))
    base = sqlite3.connect(at("base.db"))
    base.execute("create table t(a, b)")
    base.executemany("insert into t values(?, ?)", [(n, "x" * (n % 300)) for n in range(3000)])
    base.commit()
    step("sqlite", lambda: base.execute("pragma integrity_check").fetchall())
    base.execute("delete from t where a % 3 = 0")
    base.commit()
    base.execute("vacuum")
    step("sqlite again", lambda: base.execute("select count(*), sum(length(b)) from t").fetchall())
    base.close()
    os.remove(at("base.db"))


def large():
    os.mkdir(at("large"))
    names = [f"entry {number * 7919 % 10_000} {'x' * (number % 60)}" for number in range(10_000)]
    for number, name in enumerate(names):
        if number % 50 == 0:
            os.symlink(name, at("large/" + name))
        else:
            os.close(os.open(at("large/" + name), os.O_CREAT | os.O_WRONLY))
    step("listed", lambda: sorted(os.listdir(at("large"))) == sorted(names))
    step("with attributes", lambda: sum(entry.stat(follow_symlinks=False).st_mode for entry in os.scandir(at("large"))))
    removed = 0
    with os.scandir(at("large")) as entries:
        for entry in entries:
            os.remove(entry.path)
            removed += 1
    step("removed while listed", lambda: (removed, os.listdir(at("large"))))
    os.rmdir(at("large"))


def errors():
    os.umask(0o022)
    os.mkdir(at("errors"))
    write("errors/file", b"x")
    os.mkdir(at("errors/full"))
    write("errors/full/x", b"x")
    os.symlink("loop", at("errors/loop"))
    os.mkdir(at("errors/private"), 0o700)
    write("errors/private/secret", b"x", 0, 0o600)
    write("errors/secret", b"x", 0, 0o600)
    write("errors/program", b"#!/bin/sh\n", 0, 0o711)
    os.mkdir(at("errors/listable"), 0o744)
    write("errors/listable/x", b"x")
    os.mkdir(at("errors/searchable"), 0o711)
    write("errors/searchable/x", b"x")
    calls = {
        "unlink none": lambda: os.unlink(at("errors/none")),
        "unlink folder": lambda: os.unlink(at("errors/full")),
        "unlink below file": lambda: os.unlink(at("errors/file/x")),
        "rmdir full": lambda: os.rmdir(at("errors/full")),
        "rmdir file": lambda: os.rmdir(at("errors/file")),
        "rmdir none": lambda: os.rmdir(at("errors/none")),
        "rmdir dot": lambda: os.rmdir(at("errors/full/.")),
        "rmdir dots": lambda: os.rmdir(at("errors/full/..")),
        "mkdir file": lambda: os.mkdir(at("errors/file")),
        "mkdir folder": lambda: os.mkdir(at("errors/full")),
        "mkdir below none": lambda: os.mkdir(at("errors/none/x")),
        "mkdir long": lambda: os.mkdir(at("errors/" + "n" * 256)),
        "symlink over": lambda: os.symlink("x", at("errors/file")),
        "link over": lambda: os.link(at("errors/file"), at("errors/full")),
        "link folder": lambda: os.link(at("errors/full"), at("errors/other")),
        "link none": lambda: os.link(at("errors/none"), at("errors/other")),
        "mknod over": lambda: os.mkfifo(at("errors/file")),
        "open folder": lambda: os.open(at("errors/full"), os.O_WRONLY),
        "open loop": lambda: os.open(at("errors/loop"), os.O_RDONLY),
        "open none": lambda: os.open(at("errors/none"), os.O_RDONLY),
        "open file as folder": lambda: os.open(at("errors/file"), os.O_RDONLY | os.O_DIRECTORY),
        "open link": lambda: os.open(at("errors/loop"), os.O_RDONLY | os.O_NOFOLLOW),
        "readlink file": lambda: os.readlink(at("errors/file")),
        "list file": lambda: os.listdir(at("errors/file")),
        "truncate folder": lambda: os.truncate(at("errors/full"), 0),
        "truncate far": lambda: os.truncate(at("errors/file"), 2**63 - 1) or os.truncate(at("errors/file"), 1),
    }
    for name, call in calls.items():
        step(name, call)
    users = {
        "read secret": lambda: read("errors/secret"),
        "write secret": lambda: write("errors/secret", b"y"),
        "truncate secret": lambda: os.truncate(at("errors/secret"), 0),
        "chmod secret": lambda: os.chmod(at("errors/secret"), 0o666),
        "read private": lambda: read("errors/private/secret"),
        "stat private": lambda: os.stat(at("errors/private/secret")).st_size,
        "list private": lambda: os.listdir(at("errors/private")),
        "write file": lambda: write("errors/file", b"y"),
        "read file": lambda: read("errors/file"),
        "read program": lambda: read("errors/program"),
        "list listable": lambda: sorted(os.listdir(at("errors/listable"))),
        "stat listable": lambda: os.stat(at("errors/listable/x")).st_size,
        "list searchable": lambda: os.listdir(at("errors/searchable")),
        "stat searchable": lambda: os.stat(at("errors/searchable/x")).st_size,
        "create": lambda: write("errors/mine", b"x"),
        "mkdir": lambda: os.mkdir(at("errors/mine")),
        "unlink": lambda: os.unlink(at("errors/file")),
        "rename": lambda: os.rename(at("errors/file"), at("errors/x")),
        "link": lambda: os.link(at("errors/file"), at("errors/x")),
        "device": lambda: os.mknod(at("device"), stat.S_IFCHR | 0o666, os.makedev(1, 3)),
        "access": lambda: [os.access(at("errors/secret"), kind) for kind in (os.R_OK, os.W_OK, os.X_OK)],
        "access program": lambda: [os.access(at("errors/program"), kind) for kind in (os.R_OK, os.W_OK, os.X_OK)],
    }
    for name, call in users.items():
        as_user(name, BOB, [BOB], call)
    write("errors/group", b"x", 0, 0o640)
    os.chown(at("errors/group"), ALICE, SHARED)
    for groups in ([BOB], [BOB, SHARED], [SHARED], [BOB, 1, 2, 3, 4, 5, 6, 7, 8, SHARED]):
        as_user(f"read by {len(groups)} groups", BOB, groups, lambda: read("errors/group"))
        as_user(f"write by {len(groups)} groups", BOB, groups, lambda: write("errors/group", b"y"))


def main():
    os.umask(0o022)
    if sys.argv[2:] != ["list"]:
        os.chmod(top, 0o777)
        for steps in (kinds, modes, times, renames, data, errors, large):
            steps()
        settle()
    listed()


main()
