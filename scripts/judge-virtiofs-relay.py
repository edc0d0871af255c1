"""Relays vhost-user messages from User Mode Linux to `papilio serve --vhost-user`.

User Mode Linux sends a table of memory with room for two regions, also where it has one. The crate
`vhost` refuses such a message, because its length is not that of its regions. This program cuts the
room off. Everything else, descriptors included, passes as it is.

    judge-virtiofs-relay.py LISTEN CONNECT
"""

import array
import socket
import struct
import sys
import threading

SET_MEM_TABLE = 5
REGION = 32
MOST_DESCRIPTORS = 8


def exactly(connection, length):
    """Reads so many bytes; fewer at the end of the connection."""
    read = b""
    while len(read) < length:
        more = connection.recv(length - len(read))
        if not more:
            break
        read += more
    return read


def to_server(monitor, server):
    while True:
        room = socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)
        header, messages, _, _ = monitor.recvmsg(12, room)
        descriptors = array.array("i")
        for _, _, data in messages:
            descriptors.frombytes(data[: len(data) // 4 * 4])
        header += exactly(monitor, 12 - len(header))
        if len(header) < 12:
            server.shutdown(socket.SHUT_WR)
            return
        request, flags, size = struct.unpack("=III", header)
        payload = exactly(monitor, size)
        if request == SET_MEM_TABLE:
            payload = payload[: 8 + REGION * struct.unpack_from("=I", payload)[0]]
        message = struct.pack("=III", request, flags, len(payload)) + payload
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if descriptors else []
        server.sendmsg([message], passed)
        for descriptor in descriptors:
            socket.close(descriptor)


def to_monitor(server, monitor):
    while answer := server.recv(4096):
        monitor.sendall(answer)
    monitor.shutdown(socket.SHUT_RDWR)


def main():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    print("listening", flush=True)
    monitor, _ = listener.accept()
    server = socket.socket(socket.AF_UNIX)
    server.connect(sys.argv[2])
    back = threading.Thread(target=to_monitor, args=(server, monitor))
    back.start()
    try:
        to_server(monitor, server)
    except ConnectionError:
        server.shutdown(socket.SHUT_RDWR)
    back.join()


main()
