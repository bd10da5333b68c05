"""Programs with real disk failures, each in its own process: run by `test_disk_faults`.

Each asserts its expectations and prints `held` at the end; any other output is a failure.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import platform
import resource
import struct
import sys

from tests.embedded.stores import open_sqlite

from hourglass._embedded.store.store import Store
from hourglass.errors import StorageError

from .run_changes import Story, rows_of_sound_file


class RecordedLogs(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []
        logging.getLogger("hourglass").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, record.getMessage()))


def check_file(path: str, story: Story, least: int) -> None:
    """Check that the file is sound and has at least `least` events of the run, without a gap."""
    assert rows_of_sound_file(path)
    store = open_sqlite(path)
    stored = store.load(story.run_id)
    assert stored is not None
    assert len(stored.events) >= least
    assert stored.events == tuple(story.events[: len(stored.events)])
    store.close()


def create_ballast(path: str) -> None:
    """Create a file that takes space until it is deleted."""
    with open(path, "wb") as file:
        file.write(b"x" * (1 << 20))


async def rejection(store: Store, number: int) -> str:
    """Return why a change was not acknowledged, or ""."""
    try:
        await store.durable(number)
    except StorageError as error:
        return str(error)
    return ""


async def full(path: str) -> None:
    """Fill the disk and free it: commits wait, nothing is lost."""
    logs = RecordedLogs()
    ballast = f"{path}.ballast"
    create_ballast(ballast)
    story = Story("a")
    store = open_sqlite(path, reserve_bytes=1 << 19, retry_seconds=0.01)
    numbers = [store.append(story.start())]
    await store.durable(numbers[0])
    assert store.start_rejection() == ""
    waiter = None
    while not store._thread.held:
        numbers.append(store.append(story.signal(20_000)))
        waiter = asyncio.ensure_future(store.durable(numbers[-1]))
        await asyncio.wait([waiter], timeout=0.2)
        assert len(numbers) < 1_000, "the disk is never full"
    acknowledged = [number for number in numbers if store.is_durable(number)]
    assert waiter is not None
    assert not waiter.done()
    assert len(acknowledged) > 10
    assert "no space left" in store.start_rejection()
    stored = store.load("a")
    assert stored is not None
    assert len(stored.events) >= len(acknowledged) + 1
    while len(numbers) - len(acknowledged) < 5:
        numbers.append(store.append(story.signal()))
    os.unlink(ballast)
    await store.durable(numbers[-1])
    assert [level for level, _ in logs.lines] == ["ERROR", "WARNING"], logs.lines
    assert store.failure is None
    store.close()
    check_file(path, story, len(story.events))


async def full_and_closed(path: str) -> None:
    """Close a store on a full disk: pending changes are rejected."""
    story = Story("a")
    store = open_sqlite(path, retry_seconds=0.01)
    number = store.append(story.start())
    await store.durable(number)
    while not store._thread.held:
        number = store.append(story.signal(20_000))
        waiter = asyncio.ensure_future(store.durable(number))
        await asyncio.wait([waiter], timeout=0.2)
    acknowledged = sum(store.is_durable(each) for each in range(1, number + 1))
    store.close()
    assert "no space left" in await rejection(store, number)
    (outcome,) = await asyncio.gather(waiter, return_exceptions=True)
    assert isinstance(outcome, StorageError)
    assert len(rows_of_sound_file(path, "SELECT first_id FROM events")) >= acknowledged


async def append_until_failure(store: Store, story: Story) -> int:
    """Append until the store ends. Return the number of acknowledged changes."""
    for acknowledged in range(500):
        reason = await rejection(store, store.append(story.signal(2_000)))
        if reason:
            assert "may be damaged after an I/O error" in reason, reason
            return acknowledged
    raise AssertionError("the disk never failed")


async def write_error(path: str) -> None:
    """Let a write fail by a file size limit: the store ends, and the reopened file has every acknowledged change."""
    story = Story("a")
    store = open_sqlite(path, retry_seconds=0.01)
    await store.durable(store.append(story.start()))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(f"{path}-wal").st_size + 300_000, limits[1]))
    acknowledged = await append_until_failure(store, story)
    assert acknowledged > 5
    assert_ended(store, story)
    store.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    check_file(path, story, acknowledged + 2)


async def sync_error(path: str) -> None:
    """Let a sync fail: the store ends."""
    story = Story("a")
    store = open_sqlite(path, retry_seconds=0.01)
    await store.durable(store.append(story.start()))
    await store.durable(store.append(story.signal()))
    fail_syncs()
    assert await append_until_failure(store, story) == 0
    assert_ended(store, story)
    store.close()
    assert len(rows_of_sound_file(path, "SELECT first_id FROM events")) >= 2


def assert_ended(store: Store, story: Story) -> None:
    assert store.failure is not None
    store.append(story.signal())
    try:
        store.load("a")
    except StorageError:
        return
    raise AssertionError("a dead store was read")


_NUMBERS = {"x86_64": (317, 74, 75), "aarch64": (277, 82, 83)}
"""The kernel's numbers of seccomp, fsync and fdatasync."""


def fail_syncs() -> None:
    """Let the kernel answer every sync of this process with an I/O error (seccomp, all threads)."""
    seccomp, fsync, fdatasync = _NUMBERS[platform.machine()]
    reject, allow = 0x0005_0000 | 5, 0x7FFF_0000
    steps = [
        (0x20, 0, 0, 0),  # the number of the call
        (0x15, 2, 0, fsync),
        (0x15, 1, 0, fdatasync),
        (0x06, 0, 0, allow),
        (0x06, 0, 0, reject),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.syscall(seccomp, 1, 1, program):
        sys.exit(77)


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]](sys.argv[2]))
    print("held")
