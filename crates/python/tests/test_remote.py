"""Images on a web server, and file systems in object stores."""

import http.server
import os
import threading

import papilio
import pytest

SIZE = 256 << 20


class Ranges(http.server.BaseHTTPRequestHandler):
    """Serves ranges of one file, and counts their bytes."""

    protocol_version = "HTTP/1.1"
    image = b""
    sent = 0

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self._answer(False)

    def do_GET(self):
        self._answer(True)

    def _answer(self, body):
        size = os.path.getsize(self.image)
        first, last, status = 0, size - 1, 200
        asked = self.headers.get("Range")
        if asked:
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first, last, status = int(begin), min(int(end or last), last), 206
        self.send_response(status)
        self.send_header("ETag", '"one"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last + 1 - first))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if body:
            type(self).sent += last + 1 - first
            with open(self.image, "rb") as file:
                file.seek(first)
                self.wfile.write(file.read(last + 1 - first))


def test_an_image_on_a_web_server_is_read_by_ranges(image, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with papilio.open(image, "rw") as fs:
        fs.mkdir("/d")
        fs.path("/d/f").write_bytes(os.urandom(300_000))
        fs.path("/large").write_bytes(os.urandom(20 << 20))
        expected = fs.path("/d/f").read_bytes()
    handler = type("Handler", (Ranges,), {"image": image})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/disk.img"
        with papilio.open(url) as fs:
            assert sorted(fs.listdir("/")) == ["d", "large"]
            assert fs.path("/d/f").read_bytes() == expected
        assert 300_000 < handler.sent < 8 << 20
        with pytest.raises(OSError):
            papilio.open(url, "rw")
    finally:
        server.shutdown()
        server.server_close()


def test_a_store_is_written_and_read(tmp_path):
    url = f"slatedb+file://{tmp_path}/store"
    with pytest.raises(FileNotFoundError):
        papilio.open(url)
    papilio.mkfs(url, size=SIZE)
    with papilio.open(url, "rw") as fs:
        fs.path("/f").write_bytes(b"kept" * 5000)
        fs.sync()
        # A reader keeps the state that it opened.
        with papilio.open(url) as reader:
            fs.unlink("/f")
            fs.sync()
            assert reader.path("/f").read_bytes() == b"kept" * 5000
    with papilio.open(url) as fs:
        assert fs.listdir("/") == []
