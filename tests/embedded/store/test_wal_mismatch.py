"""A file that is replaced or restored while the WAL of a killed owner is beside it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.embedded.stores import open_sqlite

from hourglass._embedded.store.sqlite import database
from hourglass._embedded.store.store import ALLOW_HARD_LINKS
from hourglass.errors import StorageError

from .run_changes import rows_of_sound_file

ROOT = Path(__file__).parents[3]

OWNER = """
import asyncio, signal, sys
from hourglass._embedded.store.sqlite import database
from hourglass._embedded.store.sqlite.store import SqliteStore
from tests.embedded.store.run_changes import Story

async def fill(store, begin):
    for number in range(begin, begin + 20):
        await store.durable(store.append(Story(f"run-{number}").start()))

path, backup = sys.argv[1:]
store = SqliteStore.open(path)
asyncio.run(fill(store, 0))
database.backup(path, backup)
asyncio.run(fill(store, 20))
print("filled", flush=True)
signal.pause()
"""


def fill_and_kill(path: Path, backup: Path) -> None:
    """Let another process own the file, write runs, make a backup, and be killed."""
    command = [sys.executable, "-c", OWNER, path, backup]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "filled\n"
        owner.kill()


@pytest.fixture
def backup(path: Path) -> Path:
    """The backup made by an owner that was killed later and left its WAL beside the file."""
    dest = path.with_name("backup.db")
    fill_and_kill(path, dest)
    assert wal_of(path).stat().st_size > 0
    try:
        os.getxattr(wal_of(path), "user.hourglass.database")
    except (OSError, AttributeError):
        pytest.skip("the file system has no extended attributes")
    return dest


def wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def count_runs(path: Path) -> int:
    return len(rows_of_sound_file(path))


def copy_in_place(backup: Path, path: Path) -> None:
    path.write_bytes(backup.read_bytes())


@pytest.mark.parametrize("restore", [os.replace, copy_in_place])
def test_wal_is_not_applied_to_a_restored_backup(
    path: Path, backup: Path, restore: Callable[[Path, Path], None]
) -> None:
    """File and WAL are left unchanged, and the error names the remedy."""
    restore(backup, path)
    content, log = path.read_bytes(), wal_of(path).read_bytes()
    with pytest.raises(
        StorageError, match=r"was replaced or restored.*the log .*belongs to.*move .*-wal and .*-shm"
    ):
        open_sqlite(path)
    assert (path.read_bytes(), wal_of(path).read_bytes()) == (content, log)
    for suffix in ("-wal", "-shm"):
        os.rename(f"{path}{suffix}", f"{path}.old{suffix}")
    open_sqlite(path).close()
    assert count_runs(path) == 20


def test_wal_is_not_applied_to_an_older_copy_of_the_file(path: Path, tmp_path: Path) -> None:
    """The copy was made while no owner ran, and restored in place."""
    open_sqlite(path).close()
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    open_sqlite(path).close()
    fill_and_kill(path, tmp_path / "unused.db")
    copy_in_place(copy, path)
    with pytest.raises(StorageError, match="was replaced or restored"):
        open_sqlite(path)


def test_backup_is_rejected_beside_the_wal_of_another_file(path: Path, backup: Path) -> None:
    """Such a backup would mix the contents of two files."""
    os.replace(backup, path)
    with pytest.raises(StorageError, match="was replaced or restored"):
        database.backup(path, path.with_name("second.db"))


def test_wal_of_a_killed_owner_is_applied_to_its_file(path: Path, backup: Path) -> None:
    assert backup.exists()
    open_sqlite(path).close()
    assert count_runs(path) == 40


@pytest.mark.parametrize("rename", [os.rename, os.link])
def test_file_is_rejected_under_another_name_than_its_wal(
    path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch, rename: Callable[[Path, Path], None]
) -> None:
    """A file moved without its WAL, or opened by another hard link, lacks the WAL's commits."""
    monkeypatch.setenv(ALLOW_HARD_LINKS, "1")
    other = path.with_name("other.db")
    rename(path, other)
    for use in (open_sqlite, lambda name: database.backup(name, backup.with_name("second.db"))):
        with pytest.raises(StorageError, match=rf"was last used as .* and {wal_of(path)} still contains"):
            use(other)
    os.rename(wal_of(path), wal_of(other))
    open_sqlite(other).close()
    assert count_runs(other) == 40


def test_killed_owners_file_can_be_opened_through_a_link_to_its_folder(
    path: Path, backup: Path, tmp_path: Path
) -> None:
    assert backup.exists()
    folder = tmp_path / "elsewhere"
    folder.symlink_to(path.parent)
    database.backup(folder / path.name, backup.with_name("second.db"))
    open_sqlite(folder / path.name).close()
    assert count_runs(path) == 40


def test_copied_folder_with_a_wal_can_be_opened(path: Path, backup: Path, tmp_path: Path) -> None:
    """The copies have other inodes."""
    assert backup.exists()
    folder = tmp_path / "elsewhere"
    shutil.copytree(path.parent, folder)
    open_sqlite(folder / path.name).close()
    assert count_runs(folder / path.name) == 40


KILLED_WHILE_OPENING = """
import os, signal, sys
from hourglass._embedded.store.sqlite import database
from hourglass._embedded.store.sqlite.store import SqliteStore
original = getattr(database, sys.argv[2])
def kill(*arguments, **options):
    if sys.argv[3] == "after":
        original(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(database, sys.argv[2], kill)
SqliteStore.open(sys.argv[1])
"""


@pytest.mark.parametrize("step", ["_prepare", "next_epoch", "_connect_reader", "mark_log"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_owner_killed_during_opening_leaves_a_matching_wal(
    path: Path, backup: Path, step: str, when: str
) -> None:
    """The mark allows for both epochs while the next one begins."""
    assert backup.exists()
    for _ in range(2):
        command = [sys.executable, "-c", KILLED_WHILE_OPENING, str(path), step, when]
        assert subprocess.run(command, cwd=ROOT).returncode == -signal.SIGKILL
    open_sqlite(path).close()
    assert count_runs(path) == 40
