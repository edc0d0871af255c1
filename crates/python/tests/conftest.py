"""Fixtures: images in a temporary directory, and mounts by the kernel."""

import contextlib
import os
import subprocess

import papilio
import pytest

SIZE = 256 << 20


@pytest.fixture
def image(tmp_path):
    path = str(tmp_path / "store.img")
    papilio.mkfs(path, size=SIZE, label="store")
    return path


@pytest.fixture
def fs(image):
    with papilio.open(image, "rw") as opened:
        yield opened


@pytest.fixture
def kernel_mount(tmp_path):
    """Return a context manager that mounts an image with the kernel's Btrfs."""
    point = tmp_path / "kernel"
    point.mkdir()

    @contextlib.contextmanager
    def mount(image, options="loop"):
        made = subprocess.run(["mount", "-t", "btrfs", "-o", options, image, point], capture_output=True, text=True)
        if made.returncode != 0:
            reason = f"the kernel cannot mount Btrfs here: {made.stderr.strip()}"
            if os.environ.get("PAPILIO_REQUIRE_ALL") == "1":
                pytest.fail(reason)
            pytest.skip(reason)
        try:
            yield str(point)
        finally:
            subprocess.run(["umount", point], check=True)

    return mount
