"""Backups of a file in use: consistent, checked, and never over another file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.embedded.stores import open_sqlite

import hourglass
from hourglass._embedded.store.sqlite import copies
from hourglass._embedded.store.store import Store
from hourglass._history import events as h
from hourglass.errors import StorageError

from .run_changes import Story
from .test_kill import numbers_in

Open = Callable[..., Store]
ROOT = Path(__file__).resolve().parents[3]


def create_file(path: Path, signals: int = 5) -> Story:
    story = Story("a")
    store = open_sqlite(path)
    store.append(story.start())
    for place in range(signals):
        store.append(story.step([h.WorkflowExecutionSignaled(signal_name=str(place))]))
    store.close()
    return story


def test_backup_of_a_closed_file_contains_everything(path: Path, tmp_path: Path) -> None:
    story = create_file(path)
    before = path.read_bytes()
    hourglass.backup(path, tmp_path / "copy.db")
    assert path.read_bytes() == before
    assert "copy.db-wal" not in os.listdir(tmp_path)
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]
    store = open_sqlite(tmp_path / "copy.db")
    stored = store.load("a")
    store.close()
    assert stored is not None
    assert stored.events == tuple(story.events)
    open_sqlite(path).close()


async def test_backup_under_load_is_a_consistent_snapshot(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        copies, "_PORTION", 4
    )  # so that many commits fall between the first page and the last

    store = open_store(checkpoint_pages=100)
    story = Story("a")
    await store.durable(store.append(story.start()))
    written = 0
    with ThreadPoolExecutor(1) as pool:
        loop = asyncio.get_running_loop()
        for copy in range(3):
            for _ in range(100):
                number = store.append(story.step([h.WorkflowExecutionSignaled(signal_name=str(written))]))
                written += 1
            await store.durable(number)
            acknowledged = written
            dest = tmp_path / f"copy-{copy}.db"
            done = loop.run_in_executor(pool, hourglass.backup, store.path, dest)
            while not done.done():
                name = h.WorkflowExecutionSignaled(signal_name=str(written))
                await store.durable(store.append(story.step([name])))
                written += 1
            await done
            numbers = numbers_in(dest)
            assert numbers == list(range(len(numbers)))
            assert acknowledged <= len(numbers) <= written
            assert written > acknowledged


def test_backup_of_another_processs_file_contains_its_commits(path: Path, tmp_path: Path) -> None:
    """The owner continues to write, and is killed meanwhile."""
    command = [sys.executable, "-m", "tests.embedded.store.append_program", path, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        before = [int(process.stdout.readline()) for _ in range(20)]
        hourglass.backup(path, tmp_path / "copy.db")
        after = [int(process.stdout.readline()) for _ in range(20)]
        process.kill()
        process.stdout.read()
    hourglass.backup(path, tmp_path / "later.db")
    assert set(numbers_in(tmp_path / "copy.db")) >= set(before)
    assert set(numbers_in(tmp_path / "later.db")) >= set(after)
    assert set(numbers_in(path)) >= set(after)


def test_backup_overwrites_an_existing_file_only_on_request(path: Path, tmp_path: Path) -> None:
    create_file(path)
    dest = tmp_path / "copy.db"
    dest.write_bytes(b"precious")
    with pytest.raises(StorageError, match="overwrite=True"):
        hourglass.backup(path, dest)
    assert dest.read_bytes() == b"precious"
    hourglass.backup(path, dest, overwrite=True)
    assert numbers_in(dest) == [0, 1, 2, 3, 4]


def test_backup_does_not_overwrite_a_file_created_meanwhile(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_file(path)
    dest = tmp_path / "copy.db"
    copied = copies._copy

    def copy(connection: sqlite3.Connection, draft: str, progress: copies.Progress | None) -> None:
        copied(connection, draft, progress)
        dest.write_bytes(b"precious")

    monkeypatch.setattr(copies, "_copy", copy)
    with pytest.raises(StorageError, match="already exists"):
        hourglass.backup(path, dest)
    assert dest.read_bytes() == b"precious"
    assert sorted(os.listdir(tmp_path))[0] == "copy.db"
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]


def test_backup_does_not_overwrite_a_file_in_use(path: Path, tmp_path: Path, open_store: Open) -> None:
    """The WAL of the other file would be applied to the copy."""
    create_file(path)
    other = open_store(tmp_path / "other.db")
    with pytest.raises(StorageError, match="has a write-ahead log"):
        hourglass.backup(path, other.path, overwrite=True)


@pytest.mark.parametrize(
    ("dest", "text"),
    [
        ("no/copy.db", "the directory .* does not exist"),
        ("", "is a directory"),
        ("runs.db", "has the same path as the original file"),
    ],
)
def test_invalid_backup_destinations_are_rejected(path: Path, tmp_path: Path, dest: str, text: str) -> None:
    create_file(path)
    with pytest.raises(StorageError, match=text):
        hourglass.backup(path, tmp_path / dest, overwrite=True)


def test_missing_and_foreign_files_are_not_backed_up(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="does not exist"):
        hourglass.backup(tmp_path / "missing.db", tmp_path / "copy.db")
    (tmp_path / "text.db").write_bytes(b"words " * 1000)
    with pytest.raises(StorageError, match="is not a database"):
        hourglass.backup(tmp_path / "text.db", tmp_path / "copy.db")
    assert os.listdir(tmp_path) == ["text.db"]


def test_damaged_file_is_not_backed_up(path: Path, tmp_path: Path) -> None:
    create_file(path, 300)
    data = bytearray(path.read_bytes())
    data[-4096:] = b"\xee" * 4096
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"damaged|corrupt"):
        hourglass.backup(path, tmp_path / "copy.db")
    assert not [name for name in os.listdir(tmp_path) if name.startswith("copy.db")]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_backup_has_the_file_mode_of_its_source(path: Path, tmp_path: Path, mode: int) -> None:
    """No other user can read the backup while it is written."""
    create_file(path)
    path.chmod(mode)
    seen: set[int] = set()
    monitor = lambda *_: seen.update(each.stat().st_mode & 0o777 for each in tmp_path.glob("*partial*"))  # noqa: E731
    umask = os.umask(0)
    try:
        hourglass.backup(path, tmp_path / "copy.db", progress=monitor)
    finally:
        os.umask(umask)
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == mode
    assert seen == {0o600}
