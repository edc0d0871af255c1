"""Reads of 1 MiB and stats, in turn with the same in Rust: `make bench-python`.

Usage: read_and_stat.py RUST_PROGRAM FOLDER [ROUNDS [SECONDS]]
"""

import itertools
import os
import statistics
import subprocess
import sys
import time

import papilio

PIECE = 1 << 20
FILE_SIZE = 512 << 20
FILES = 10_000


def make(image):
    papilio.mkfs(image, size=2 << 30)
    with papilio.open(image, "rw", commit_interval=None) as fs:
        with fs.open("/large", "wb", 0) as file:
            for _ in range(FILE_SIZE // PIECE):
                file.write(os.urandom(PIECE))
        fs.mkdir("/d")
        for number in range(FILES):
            fs.path(f"/d/f{number}").write_bytes(b"x")


def for_a_while(seconds, step):
    """Call step, which returns an amount, again and again; return the amount a second."""
    amount, began = 0, time.perf_counter()
    while True:
        amount += step()
        took = time.perf_counter() - began
        if took >= seconds:
            return amount / took


def in_python(image, seconds):
    with papilio.open(image) as fs, fs.open("/large", "rb", 0) as file:
        offsets = list(range(0, FILE_SIZE, PIECE))
        buffer = bytearray(PIECE)

        # The whole file in turn, as in Rust: a part of it would stay in the processor's cache.
        pieces = itertools.cycle(offsets)

        def preadinto():
            return sum(file.preadinto(buffer, next(pieces)) for _ in range(16)) / PIECE

        def pread():
            return sum(len(file.pread(PIECE, next(pieces))) for _ in range(16)) / PIECE

        def queue_read():
            """Eight reads in flight."""
            with fs.queue(8) as queue:
                buffers = [bytearray(PIECE) for _ in range(8)]
                for token, each in enumerate(buffers):
                    queue.read(file, each, offsets[token], token)
                done, index = 0, 8
                while len(queue):
                    for completion in queue.wait():
                        done += completion.count
                        if index < 64:
                            queue.read(file, buffers[completion.token], offsets[index], completion.token)
                            index += 1
                return done / PIECE

        paths = [f"/d/f{number}" for number in range(FILES)]

        def stat():
            for path in paths:
                fs.stat(path)
            return len(paths)

        def scandir():
            with fs.scandir("/d") as entries:
                return sum(1 for entry in entries if entry.stat().st_size == 1)

        steps = [preadinto, pread, queue_read, stat, scandir]
        return {step.__name__: for_a_while(seconds, step) for step in steps}


def in_rust(program, image, seconds):
    output = subprocess.run(
        [program, image, "/large", "/d", str(seconds)], check=True, capture_output=True, text=True
    )
    read, stat = map(float, output.stdout.split())
    return {"read": read, "stat": stat}


def main():
    program, folder = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 2
    image = os.path.join(folder, "python-bench.img")
    try:
        make(image)
        figures = [(in_rust(program, image, seconds), in_python(image, seconds)) for _ in range(rounds)]
    finally:
        if os.path.exists(image):
            os.unlink(image)
    print("median of", rounds, "rounds in turn; the ratio is that of a round to Rust in that round\n")
    print("| call | a second | of Rust |")
    print("|---|---|---|")
    for name, base, unit in [
        ("preadinto", "read", "MiB"),
        ("pread", "read", "MiB"),
        ("queue_read", "read", "MiB"),
        ("stat", "stat", "calls"),
        ("scandir", "stat", "entries with their stat"),
    ]:
        speed = statistics.median(python[name] for _, python in figures)
        ratio = statistics.median(python[name] / rust[base] for rust, python in figures)
        print(f"| {name} | {speed:,.0f} {unit} | {ratio:.2f} |")
    for name, unit in [("read", "MiB"), ("stat", "calls")]:
        print(f"| {name} in Rust | {statistics.median(rust[name] for rust, _ in figures):,.0f} {unit} | 1 |")


main()
