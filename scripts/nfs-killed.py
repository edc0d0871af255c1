"""Changes while the server is killed: nfs-killed.py MOUNT MODEL SECONDS.

Writes to files that stay open, syncs some, and makes, renames and removes names, until the time is
over. MODEL, a local directory, has what must be in MOUNT then. A call that the client sends again
to a new server may have been carried out by the old one, so its error can be that of a repetition.
"""

import errno
import os
import random
import sys
import time

mount, model, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
chance = random.Random(1)
end = time.monotonic() + seconds


def both(action, repeated=()):
    """Carries an action out in both; errors of `repeated` mean that it was carried out before."""
    action(model)
    try:
        action(mount)
    except OSError as error:
        if error.errno not in repeated:
            raise


files = [[os.open(os.path.join(top, f"open {n}"), os.O_CREAT | os.O_RDWR, 0o644) for top in (mount, model)] for n in range(4)]
names, number, synced = [], 0, 0
while time.monotonic() < end:
    number += 1
    pair = chance.choice(files)
    data, offset = chance.randbytes(chance.choice((10, 4096, 200_000))), chance.randrange(8 << 20)
    for descriptor in pair:
        os.pwrite(descriptor, data, offset)
    if number % 7 == 0:
        os.fsync(pair[0])
        synced += 1
    if number % 3 == 0:
        name = f"name {number}"
        both(lambda top: os.mkdir(os.path.join(top, name)), (errno.EEXIST,))
        names.append(name)
    if number % 4 == 0 and names:
        old = names.pop(chance.randrange(len(names)))
        both(lambda top: os.rename(os.path.join(top, old), os.path.join(top, old + " moved")), (errno.ENOENT,))
        names.append(old + " moved")
    if number % 5 == 0 and len(names) > 20:
        old = names.pop(chance.randrange(len(names)))
        both(lambda top: os.rmdir(os.path.join(top, old)), (errno.ENOENT,))
    if number % 6 == 0:
        name = f"file {number}"
        for top in (mount, model):
            with open(os.path.join(top, name), "xb") as file:
                file.write(data)
for pair in files:
    os.fsync(pair[0])
    for descriptor in pair:
        os.close(descriptor)
print(f"{number} rounds, {synced} syncs, {len(names)} folders")
