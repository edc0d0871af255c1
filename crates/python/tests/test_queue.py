"""Queues of requests."""

import asyncio
import os
import random
import threading

import papilio
import pytest

BLOCK = 64 << 10


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("direct_io", [False, True])
def test_requests_complete_once_with_their_tokens(image, threads, direct_io):
    blocks = [os.urandom(BLOCK) for _ in range(40)]
    with papilio.open(image, "rw", direct_io=direct_io) as fs, fs.open("/f", "w+b", 0) as file:
        with fs.queue(8, threads) as queue:
            assert queue and len(queue) == 0 and queue.depth == 8
            done = []
            for number, block in enumerate(blocks):
                while len(queue) == queue.depth:
                    done += queue.wait()
                queue.write(file, block, number * BLOCK, ("block", number))
            done += queue.wait(1 << 40)
            assert sorted(completion.token[1] for completion in done) == list(range(40))
            assert all(completion.count == BLOCK and completion.error is None for completion in done)
            assert queue.wait() == []
            queue.fsync(file, "sync")
            assert [completion.token for completion in queue.wait()] == ["sync"]
            order = list(range(40))
            random.Random(5).shuffle(order)
            while order:
                buffers = {number: bytearray(BLOCK) for number in order[:8]}
                for number, buffer in buffers.items():
                    queue.read(file, buffer, number * BLOCK, number)
                for completion in queue.wait(8):
                    assert buffers[completion.token] == blocks[completion.token]
                del order[:8]
            # At the end of the file a read is short.
            queue.read(file, bytearray(BLOCK), 40 * BLOCK - 10, None)
            assert queue.wait()[0].count == 10
    with papilio.open(image) as fs:
        assert fs.path("/f").read_bytes() == b"".join(blocks)


def test_a_full_queue_and_wrong_files_are_refused(image, tmp_path):
    with papilio.open(image, "rw") as fs, fs.open("/f", "w+b", 0) as file:
        for depth, threads in [(0, 0), (1 << 20, 0), (2, 3)]:
            with pytest.raises(ValueError, match="requests in flight"):
                fs.queue(depth, threads)
        with fs.queue(2) as queue:
            queue.write(file, b"1", 0)
            queue.write(file, b"2", 1)
            with pytest.raises(BlockingIOError, match="collect completions first"):
                queue.write(file, b"3", 2)
            assert len(queue.wait(2)) == 2
            with pytest.raises(BufferError):
                queue.read(file, b"read-only", 0)
            with fs.open("/f", "rb", 0) as reader, pytest.raises(OSError):
                queue.write(reader, b"x", 0)
            with fs.open("/f", "ab", 0) as appender, pytest.raises(ValueError, match="appending"):
                queue.write(appender, b"x", 0)
        assert queue.closed
        queue.close()
        for call in [lambda: queue.wait(), lambda: queue.read(file, bytearray(1), 0), queue.fileno]:
            with pytest.raises(ValueError, match="closed"):
                call()


def test_errors_are_in_the_completion_or_raised_by_close(image):
    with papilio.open(image, "rw") as fs, fs.open("/f", "w+b", 0) as file:
        file.write(b"kept")
        fs.set_read_only("/", False)
        with fs.queue() as queue:
            queue.write(file, b"far away", (1 << 63) - 4, "far")
            (completion,) = queue.wait()
            assert completion.token == "far" and completion.count == 0
            assert isinstance(completion.error, OSError) and completion.error.filename == "/f"
            assert "error" in repr(completion)
        queue = fs.queue()
        queue.write(file, b"far away", (1 << 63) - 4)
        with pytest.raises(OSError):
            queue.close()
        assert queue.closed and file.pread(4, 0) == b"kept"


def test_closing_the_file_system_carries_out_what_was_submitted(image):
    fs = papilio.open(image, "rw")
    file = fs.open("/f", "w+b", 0)
    queue = fs.queue(16, 2)
    for number in range(16):
        queue.write(file, bytes([number]) * 5000, number * 5000)
    fs.close()
    assert queue.closed
    with papilio.open(image) as fs:
        assert fs.path("/f").read_bytes() == b"".join(bytes([number]) * 5000 for number in range(16))


def test_a_buffer_in_flight_cannot_be_resized(image):
    with papilio.open(image, "rw") as fs, fs.open("/f", "w+b", 0) as file:
        file.write(b"x" * 100)
        with fs.queue() as queue:
            buffer = bytearray(100)
            queue.read(file, buffer, 0)
            with pytest.raises(BufferError):
                buffer.append(1)
            queue.wait()
            buffer.append(1)


def test_an_event_loop_waits_for_the_descriptor(image):
    async def read_all(fs, file):
        loop, queue = asyncio.get_running_loop(), fs.queue(4, 2)
        waiting = {}

        def collect():
            for completion in queue.wait(0):
                waiting.pop(completion.token).set_result(completion.count)

        loop.add_reader(queue.fileno(), collect)

        async def read(number):
            buffer = bytearray(1000)
            waiting[number] = loop.create_future()
            queue.read(file, buffer, number * 1000, number)
            assert await asyncio.wait_for(waiting[number], 30) == 1000
            return bytes(buffer)

        parts = []
        for first in range(0, 20, 4):
            parts += await asyncio.gather(*(read(number) for number in range(first, first + 4)))
        loop.remove_reader(queue.fileno())
        queue.close()
        return b"".join(parts)

    content = os.urandom(20_000)
    with papilio.open(image, "rw") as fs:
        fs.path("/f").write_bytes(content)
        with fs.open("/f", "rb", 0) as file:
            assert asyncio.run(read_all(fs, file)) == content


def test_threads_share_a_queue(image):
    with papilio.open(image, "rw") as fs, fs.open("/f", "w+b", 0) as file:
        with fs.queue(64, 2) as queue:
            collected = []

            def submit(first):
                for number in range(first, first + 16):
                    queue.write(file, bytes([number]) * 100, number * 100, number)

            threads = [threading.Thread(target=submit, args=(first,)) for first in range(0, 64, 16)]
            for thread in threads:
                thread.start()
            while len(collected) < 64:
                collected += [completion.token for completion in queue.wait()]
            for thread in threads:
                thread.join()
            assert sorted(collected) == list(range(64))
        assert file.pread(6400, 0) == b"".join(bytes([number]) * 100 for number in range(64))
