"""Mixed data with every algorithm and level: it reads back, its checksums match, the kernel reads it."""

import random

import papilio
import pytest

BLOCK = 128 << 10
CHOICES = ["zlib", "lzo", "zstd"]
CHOICES += [f"zlib:{level}" for level in range(1, 10)]
CHOICES += [f"zstd:{level}" for level in range(-15, 16) if level != 0]


def mixed(seed):
    """Return random, text and zero blocks in an order of the seed: a bad one before a good one."""
    source = random.Random(seed)
    text = b"".join(b"%d\n" % number for number in range(30_000))[:BLOCK]
    kinds = {
        "random": lambda: source.randbytes(BLOCK),
        "text": lambda: text,
        "zero": lambda: bytes(BLOCK),
        "both": lambda: (source.randbytes(source.randrange(BLOCK)) + text)[:BLOCK],
    }
    order = ["random", "text"] + source.choices(list(kinds), k=3)
    return b"".join(kinds[kind]() for kind in order) + text[: source.randrange(5000)]


@pytest.fixture
def filled(image):
    expected = {}
    for number, choice in enumerate(CHOICES):
        for how in ("compress", "compress_force"):
            data = mixed(f"{number} {how}")
            name = f"{choice}-{how}"
            with papilio.open(image, "rw", **{how: choice}) as fs:
                fs.path("/" + name).write_bytes(data)
                assert fs.path("/" + name).read_bytes() == data, name
            expected[name] = data
    return expected


def test_every_level_is_read_back_and_by_the_kernel(filled, image, kernel_mount):
    assert len(filled) == 2 * (3 + 9 + 30)
    with papilio.open(image) as fs:
        for name, data in filled.items():
            assert fs.path("/" + name).read_bytes() == data, name
        used = sum(space.used for space in fs.usage().spaces if space.kind.startswith("Data"))
    # Compression took place.
    assert used < 0.8 * sum(map(len, filled.values()))
    report = papilio.check(image, data_csum=True)
    assert report.is_clean, report.findings
    with kernel_mount(image, "loop,ro") as point:
        for name, data in filled.items():
            with open(f"{point}/{name}", "rb") as file:
                assert file.read() == data, name
