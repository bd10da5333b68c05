"""Disks that are full, fail, or lose data: nothing acknowledged is lost, and every error is clear."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import platform
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hourglass._embedded.store.sqlite import disk_faults
from hourglass._embedded.store.store import Store
from hourglass.errors import StorageError

from .run_changes import Story, load

Open = Callable[..., Store]
ROOT = Path(__file__).resolve().parents[3]


def run_program(name: str, path: Path, before: Sequence[str | Path] = ()) -> None:
    """Run a function of `fault_program` in its own process."""
    command = [*before, sys.executable, "-m", "tests.embedded.store.fault_program", name, path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    if done.returncode == 77:
        pytest.skip("the kernel does not permit it here")
    assert done.stdout.strip() == "held", done.stdout + done.stderr


def small_disk(folder: Path, size: str) -> list[str | Path]:
    """Return a command prefix that mounts a small file system on a folder until the command ends."""
    if sys.platform != "linux" or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    folder.mkdir()
    script = f'mount -t tmpfs -o size={size} none "$1" && shift && exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, "sh", folder]


async def until_held(store: Store) -> None:
    """Wait until the store thread retries after a transient error."""
    while not store._thread.held:  # noqa: ASYNC110 - it is another thread's, and there is no notification
        await asyncio.sleep(0)


def test_commits_wait_on_a_full_disk_until_space_returns(tmp_path: Path) -> None:
    run_program("full", tmp_path / "disk" / "runs.db", small_disk(tmp_path / "disk", "3m"))


def test_store_on_a_full_disk_can_be_closed(tmp_path: Path) -> None:
    run_program("full_and_closed", tmp_path / "disk" / "runs.db", small_disk(tmp_path / "disk", "2m"))


def test_write_error_shuts_down_the_store_without_losing_commits(path: Path) -> None:
    run_program("write_error", path)


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="seccomp is Linux's"
)
def test_sync_error_shuts_down_the_store(path: Path) -> None:
    """A second sync is not tried, because it could succeed without the lost data."""
    run_program("sync_error", path)


async def test_sqlite_page_limit_delays_commits(open_store: Open, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk without a mount: SQLite's limit is reached and lifted."""

    store = open_store(retry_seconds=0.01)
    story = Story("a")
    await store.durable(store.append(story.start()))
    limit = store._opened.writer
    (pages,) = limit.execute("PRAGMA page_count").fetchone()
    limit.execute(f"PRAGMA max_page_count = {pages + 1}").fetchall()
    number = store.append(story.signal(100_000))
    waiter = asyncio.ensure_future(store.durable(number))
    await until_held(store)
    assert not waiter.done()
    assert "no space left" in store.start_rejection()
    store.append(story.signal())
    limit.execute("PRAGMA max_page_count = 1000000").fetchall()
    await waiter
    await store.durable(number + 1)
    assert store.start_rejection() == ""
    assert load(store, "a").events == tuple(story.events)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


async def test_failing_file_lock_shuts_down_the_store_with_the_systems_message(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    store = open_store()
    story = Story("a")
    await store.durable(store.append(story.start()))
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", fails)
        with pytest.raises(StorageError, match=r"cannot be used \(No locks available\)"):
            await store.durable(store.append(story.signal()))


async def test_write_lock_of_another_program_delays_commits(
    open_store: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hourglass._embedded.store.sqlite.database.BUSY_SECONDS", 0.01)

    store = open_store(retry_seconds=0.01)
    story = Story("a")
    await store.durable(store.append(story.start()))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiter = asyncio.ensure_future(store.durable(store.append(story.signal())))
    await until_held(store)
    assert "another program" in store.start_rejection()
    other.execute("ROLLBACK")
    other.close()
    await waiter


def test_starts_are_rejected_when_the_disk_is_nearly_full(open_store: Open) -> None:
    store = open_store(reserve_bytes=1 << 60)
    assert "no new workflows are accepted" in store.start_rejection()
    assert open_store(store_path(store).with_name("other.db"), reserve_bytes=0).start_rejection() == ""


def store_path(store: Store) -> Path:
    return Path(store.path)


def destroy_page(path: Path, marked: bytes, unmarked: bytes, place: int) -> None:
    """Overwrite one of the pages that contain `marked` and not `unmarked`; the file is not open."""
    data = bytearray(path.read_bytes())
    page_starts = [
        start
        for start in range(4096, len(data), 4096)
        if marked in (page := data[start : start + 4096]) and unmarked not in page
    ]
    data[page_starts[place] : page_starts[place] + 4096] = b"\xee" * 4096
    path.write_bytes(data)


def test_corrupt_page_affects_only_its_runs(open_store: Open, path: Path) -> None:
    store = open_store()
    for place in range(300):
        store.append(Story(f"run-{place}").start())
    store.close()
    destroy_page(path, b"WorkflowExecutionStarted", b"-request-", 3)
    store = open_store()
    errors = [error for place in range(300) if (error := load_error(store, f"run-{place}"))]
    assert 1 <= len(errors) < 100
    assert all("is corrupt" in error for error in errors)


def load_error(store: Store, run_id: str) -> str:
    try:
        assert store.load(run_id) is not None
    except StorageError as error:
        return str(error)
    return ""


async def test_corrupt_page_on_write_shuts_down_the_store(open_store: Open, path: Path) -> None:
    store = open_store()
    for place in range(300):
        store.append(Story(f"run-{place}").start())
    store.close()
    destroy_page(path, b"run-299-request-1", b"WorkflowExecutionStarted", -1)
    store = open_store()
    with pytest.raises(StorageError, match="is corrupt"):
        await store.durable(store.append(Story("new").start()))
    assert store.failure is not None


def test_undecodable_row_is_an_error_that_names_its_run(open_store: Open, path: Path) -> None:
    store = open_store()
    store.append(Story("a").start())
    store.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE runs SET state = x'c1c1'")
    connection.commit()
    connection.close()
    with pytest.raises(StorageError, match="run a"):
        open_store().load("a")


@pytest.mark.parametrize("may_use", [False, True])
def test_permission_error_names_the_owner_of_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, may_use: bool
) -> None:
    """An accessible file is not blamed on another user."""
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(path / "there is no such folder")
    path.touch()
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
    monkeypatch.setattr(os, "access", lambda *_, **__: may_use)
    text = str(disk_faults.storage_error(str(path), caught.value))
    assert "SQLITE_CANTOPEN" in text
    assert (f"{path} belongs to the user" in text) is not may_use


def test_store_errors_reveal_no_values() -> None:
    error = sqlite3.OperationalError("near 'SECRET': no")
    assert "SECRET" not in str(disk_faults.storage_error("/x.db", error))
