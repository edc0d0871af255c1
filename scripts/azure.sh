#!/usr/bin/env bash
# Tries az:// and slatedb+az:// with Azurite, Microsoft's emulator of Azure's blob storage, which npm
# installs in target/azurite. An image in a container is listed and read; a file system in one is
# made, changed, checked and compared. PAPILIO names the command (target/release/papilio).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
papilio=${PAPILIO:-$PWD/target/release/papilio}
emulator=$PWD/target/azurite
[ -x "$emulator/node_modules/.bin/azurite-blob" ] || {
    mkdir -p "$emulator"
    npm install --silent --no-fund --no-audit --prefix "$emulator" azurite
}
work=$(mktemp -d "${TMPDIR:-/tmp}/papilio-azure.XXXXXX")
server=
clean_up() {
    local status=$?
    trap - EXIT
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap clean_up EXIT

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$emulator/node_modules/.bin/azurite-blob" --silent --skipApiVersionCheck --inMemoryPersistence \
    --blobHost 127.0.0.1 --blobPort "$port" > "$work/log" 2>&1 &
server=$!
# The account and key that Azurite documents for everybody.
export AZURE_STORAGE_ACCOUNT_NAME=devstoreaccount1 AZURE_STORAGE_USE_EMULATOR=true
export AZURE_STORAGE_ACCOUNT_KEY=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==
export AZURITE_BLOB_STORAGE_URL=http://127.0.0.1:$port XDG_CACHE_HOME=$work/cache

mkdir -p "$work/tree/directory"
seq 200000 > "$work/tree/directory/numbers"
echo hello > "$work/tree/hello"
"$papilio" mkfs -q --size 256M --rootdir "$work/tree" "$work/disk.img"

# Makes the container, and puts the image there in blocks.
python3 - "$port" "$work/disk.img" <<'PYTHON'
import base64, email.utils, hashlib, hmac, os, sys, time, urllib.error, urllib.request

port, image = sys.argv[1:]
account, key = "devstoreaccount1", base64.b64decode(os.environ["AZURE_STORAGE_ACCOUNT_KEY"])


def put(path, query, body=b"", **headers):
    sent = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06", **headers}
    length = str(len(body)) if body else ""
    kind = "application/octet-stream" if body else ""
    lines = ["PUT", "", "", length, "", kind, "", "", "", "", "", ""]
    lines += [f"{name}:{sent[name]}" for name in sorted(sent)]
    resource = f"/{account}/{account}/{path}" + "".join(f"\n{n}:{v}" for n, v in sorted(query.items()))
    text = "\n".join(lines) + "\n" + resource
    signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
    sent |= {"Authorization": f"SharedKey {account}:{signature}", "Content-Length": length or "0"}
    if body:
        sent["Content-Type"] = kind
    url = f"http://127.0.0.1:{port}/{account}/{path}?" + urllib.parse.urlencode(query)
    urllib.request.urlopen(urllib.request.Request(url, data=body or None, method="PUT", headers=sent))


for attempt in range(100):
    try:
        put("container", {"restype": "container"})
        break
    except urllib.error.HTTPError:
        raise
    except OSError:
        time.sleep(0.2)
names = []
with open(image, "rb") as file:
    while block := file.read(4 << 20):
        names.append(base64.b64encode(b"%06d" % len(names)).decode())
        put("container/disk.img", {"comp": "block", "blockid": names[-1]}, block)
listing = "<BlockList>" + "".join(f"<Latest>{name}</Latest>" for name in names) + "</BlockList>"
put("container/disk.img", {"comp": "blocklist"}, listing.encode())
PYTHON

"$papilio" cp -r "az://container/disk.img:/" "$work/read"
diff -r "$work/tree" "$work/read"
echo "azure: an image in a container was read"
store=slatedb+az://container/store
"$papilio" mkfs -q --size 256M --rootdir "$work/tree" "$store"
"$papilio" cp "$work/tree/hello" "$store:/directory/second"
cp "$work/tree/hello" "$work/tree/directory/second"
"$papilio" check "$store"
"$papilio" cp -r "$store:/" "$work/stored"
diff -r "$work/tree" "$work/stored"
echo "azure: a file system in a container was made, changed, checked and read"
