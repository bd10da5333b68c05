"""A database that is replaced, moved, overwritten or linked while its store is open, and deleted WAL files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.embedded.stores import open_sqlite

from hourglass._embedded.store.sqlite import copies, database
from hourglass._embedded.store.store import ALLOW_HARD_LINKS, FileLost, Store
from hourglass.errors import StorageError

from .run_changes import Story, rows_of_sound_file

ROOT = Path(__file__).parents[3]
RUNS = 40

IN_ANOTHER_PROCESS = """
import sys
from hourglass._embedded.store.sqlite.store import SqliteStore
from hourglass.errors import StorageError
try:
    SqliteStore.open(sys.argv[1]).close()
except StorageError as error:
    print(error)
else:
    print("opened")
"""


def open_in_another_process(path: Path, **environment: str) -> str:
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60
    )
    return done.stdout.strip() or done.stderr


def checkpoint_in_another_process(path: Path, mode: str = "FULL") -> None:
    code = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchall())"
    command = [sys.executable, "-c", code, path, f"PRAGMA wal_checkpoint({mode})"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[(0, ")


def run_ids(path: Path) -> set[str]:
    return set(rows_of_sound_file(path))


async def lose(store: Store, message: str) -> str:
    """Make one more change, which must end the store with this error. Return the error message."""
    with pytest.raises(FileLost, match=message) as caught:
        await store.durable(store.append(Story("late").start()))
    store.close()
    return str(caught.value)


async def fill(store: Store, begin: int = 0) -> set[str]:
    stories = [Story(f"run-{number}") for number in range(begin, begin + RUNS)]
    for story in stories:
        await store.durable(store.append(story.start()))
    return {story.run.run_id for story in stories}


def test_deleted_folder_of_the_file_leads_to_a_copy_elsewhere(path: Path, tmp_path: Path) -> None:
    """The error names the copy."""
    inside = tmp_path / "folder" / "shop.db"
    inside.parent.mkdir()

    async def scenario() -> tuple[set[str], Path]:
        store = open_sqlite(inside)
        before = await fill(store)
        shutil.rmtree(inside.parent)
        with pytest.raises(FileLost, match="All acknowledged changes are in the copy") as caught:
            await fill(store, RUNS)
        store.close()
        return before, Path(str(caught.value).split("are in the copy ")[1].split(". ")[0])

    before, copy = asyncio.run(scenario())
    assert before <= run_ids(copy)
    shutil.rmtree(copy.parent)


def overwrite(path: Path, backup: Path | None) -> bytes:
    content = backup.read_bytes() if backup is not None else b""
    path.write_bytes(content)
    return content


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def write_content(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def saved_copy(path: Path) -> Path:
    (found,) = path.parent.glob(f"{path.name}.saved-*")
    return found


async def test_backup_moved_over_the_file_stops_the_store_and_keeps_both_files(path: Path) -> None:
    store = open_sqlite(path)
    acknowledged = await fill(store)
    database.backup(path, path.with_name("backup.db"))
    more = await fill(store, RUNS)
    os.replace(path.with_name("backup.db"), path)
    await lose(store, r"was replaced by another file.*in the copy .*saved-.*restart all workers")
    assert run_ids(path) == acknowledged
    assert run_ids(saved_copy(path)) >= acknowledged | more


async def test_moved_file_gets_all_acknowledged_changes(path: Path) -> None:
    store = open_sqlite(path)
    acknowledged = await fill(store)
    moved = path.with_name("moved.db")
    os.rename(path, moved)
    await lose(store, r"was deleted or moved away.*moved\.db")
    assert run_ids(moved) >= acknowledged
    assert path.name not in os.listdir(path.parent)


async def test_idle_store_notices_that_its_file_was_deleted(path: Path) -> None:
    store = open_sqlite(path)
    acknowledged = await fill(store)
    os.unlink(path)
    store._thread._thread.join(60)
    assert isinstance(store.failure, FileLost)
    store.close()
    assert run_ids(saved_copy(path)) == acknowledged


@pytest.mark.parametrize("replaced", [False, True])
async def test_failed_copy_of_a_lost_file_names_the_wal(
    path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    store = open_sqlite(path)
    await fill(store)
    other = path.with_name("other.db")
    open_sqlite(other).close()

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(copies, "_copy", fails)
    if replaced:
        os.replace(other, path)
    else:
        os.unlink(path)
    error = await lose(store, r"Its content could not be copied .*No space left on device")
    if replaced:
        log = saved_copy(path)
        assert f"Its write-ahead log was moved to {log}." in error
        assert log.name.endswith("-wal")
        assert run_ids(path) == set()
    else:
        assert path.with_name(f"{path.name}-wal").stat().st_size > 0


@pytest.mark.parametrize("restore", [True, False])
async def test_file_overwritten_in_place_is_not_written(path: Path, restore: bool) -> None:
    """The WAL is saved and not applied to the new content."""
    store = open_sqlite(path)
    acknowledged = await fill(store)
    backup = path.with_name("backup.db")
    database.backup(path, backup)
    await fill(store, RUNS)
    content = overwrite(path, backup if restore else None)
    await lose(store, r"another program has written to it.*moved to .*-wal")
    assert content_of(path) == content
    assert saved_copy(path).name.endswith("-wal")
    assert not path.with_name(f"{path.name}-wal").exists()
    if restore:
        assert run_ids(path) == acknowledged


async def test_truncation_behind_the_first_pages_is_detected(path: Path) -> None:
    store = open_sqlite(path)
    await fill(store)
    store.close()
    store = open_sqlite(path)
    size = len(content_of(path)) // 2 // 4096 * 4096
    os.truncate(path, size)
    await lose(store, "another program has written to it")
    assert len(content_of(path)) == size


async def test_older_copy_in_place_is_detected(path: Path) -> None:
    """The copy has the same size and epoch, and precedes the last checkpoint."""

    def checkpoint(store: Store) -> bytes:
        store._writer.checkpoint()
        store._opened.watch.note_checkpoint()
        return content_of(path)

    store = open_sqlite(path)
    await fill(store)
    older = checkpoint(store)
    await store.durable(store.append(Story("one-more").start()))
    newer = checkpoint(store)
    assert older != newer
    assert (len(older), older[:4096]) == (len(newer), newer[:4096])
    write_content(path, older)
    await lose(store, "another program has written to it")
    assert content_of(path) == older


def execute_in_another_process(path: Path, statement: str) -> None:
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute(sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, path, statement], check=True)


def restore_in_another_process(backup: Path, path: Path) -> None:
    """Restore a backup as `sqlite3 FILE ".restore BACKUP"` does: in a transaction, into the WAL."""
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", code, backup, path], check=True)


@pytest.mark.parametrize("idle", [False, True], ids=["busy", "idle"])
@pytest.mark.parametrize("made_by", ["sqlite", "hourglass"])
def test_backup_restored_through_sqlite_stops_the_store(path: Path, made_by: str, idle: bool) -> None:
    backup = path.with_name("backup.db")

    async def scenario() -> set[str]:
        store = open_sqlite(path)
        before = await fill(store)
        if made_by == "sqlite":
            restore_in_another_process(path, backup)
        else:
            database.backup(path, backup)
        await fill(store, RUNS)
        restore_in_another_process(backup, path)
        if idle:
            await asyncio.to_thread(store._thread._thread.join, 60)
        with pytest.raises(
            FileLost, match="was replaced while the file was in use: another program restored"
        ):
            await fill(store, 2 * RUNS)
        store.close()
        return before

    before = asyncio.run(scenario())
    assert run_ids(path) == before


async def test_foreign_database_restored_through_sqlite_stops_the_store(path: Path) -> None:
    foreign = path.with_name("foreign.db")
    execute_in_another_process(foreign, "CREATE TABLE customers (name)")
    store = open_sqlite(path)
    await fill(store)
    restore_in_another_process(foreign, path)
    with pytest.raises(FileLost, match="another program restored a backup"):
        await fill(store, RUNS)
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("customers",)]


def test_tables_of_another_program_are_ignored(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Replication tools keep their own tables in the file."""

    async def scenario() -> set[str]:
        store = open_sqlite(path)
        before = await fill(store)
        for number in range(3):
            execute_in_another_process(path, f"CREATE TABLE _tool_{number} AS SELECT 1")
            before |= await fill(store, (number + 1) * RUNS)
        store.close()
        return before

    written = asyncio.run(scenario())
    assert run_ids(path) == written
    (warning,) = [record for record in caplog.records if record.name == "hourglass"]
    assert "another program has written to" in warning.getMessage()


async def test_changed_modification_time_is_ignored(path: Path) -> None:
    store = open_sqlite(path)
    acknowledged = await fill(store)
    os.utime(path)
    acknowledged |= await fill(store, RUNS)
    store.close()
    assert run_ids(path) == acknowledged


async def test_checkpoint_by_another_program_is_accepted(path: Path) -> None:
    store = open_sqlite(path)
    acknowledged = await fill(store)
    checkpoint_in_another_process(path)
    acknowledged |= await fill(store, RUNS)
    store.close()
    assert run_ids(path) == acknowledged


@pytest.mark.parametrize("deleted", [("-wal",), ("-shm",), ("-wal", "-shm")])
async def test_deleted_wal_is_saved_into_the_file(path: Path, deleted: tuple[str, ...]) -> None:
    """The error allows reopening."""
    store = open_sqlite(path)
    acknowledged = await fill(store)
    for suffix in deleted:
        os.unlink(f"{path}{suffix}")
    with pytest.raises(StorageError, match="was deleted or replaced") as caught:
        await store.durable(store.append(Story("late").start()))
    assert caught.value.status == "UNAVAILABLE"
    alone = path.with_name("alone.db")
    shutil.copy(path, alone)
    store.close()
    assert run_ids(alone) >= acknowledged
    store = open_sqlite(path)
    acknowledged |= await fill(store, RUNS)
    store.close()
    assert run_ids(path) >= acknowledged


@pytest.mark.parametrize("idle", [True, False])
async def test_truncated_index_of_the_wal_stops_the_store(path: Path, idle: bool) -> None:
    """The process survives. SQLite itself would be killed by SIGBUS when it reads the index."""
    store = open_sqlite(path)
    acknowledged = await fill(store)
    os.truncate(f"{path}-shm", 0)
    if idle:
        store._thread._thread.join(60)
        assert isinstance(store.failure, StorageError)
    else:
        with pytest.raises(StorageError, match="cannot be used"):
            await store.durable(store.append(Story("late").start()))
    store.close()
    assert run_ids(path) == acknowledged


async def test_deleted_wal_is_copied_if_a_reader_keeps_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    store = open_sqlite(path)
    acknowledged = await fill(store)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM runs").fetchall()
    acknowledged |= await fill(store, RUNS)
    os.unlink(f"{path}-wal")
    with pytest.raises(
        FileLost, match=r"a reader in another program prevented.*All acknowledged changes are in the copy"
    ):
        await store.durable(store.append(Story("late").start()))
    reader.close()
    store.close()
    assert run_ids(saved_copy(path)) >= acknowledged


async def test_error_names_a_wal_that_cannot_be_moved_away(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(source: str, destination: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", destination)

    store = open_sqlite(path)
    await fill(store)
    overwrite(path, None)
    monkeypatch.setattr(os, "rename", fails)
    await lose(store, rf"nowhere \(Permission denied\): move {path}-wal away before")


def write_in_place(log: Path, damage: str) -> None:
    match damage:
        case "emptied":
            os.truncate(log, 0)
        case "cut":
            os.truncate(log, log.stat().st_size // 2)
        case "overwritten":
            log.write_bytes(bytes(log.stat().st_size))


@pytest.mark.parametrize("damage", ["emptied", "cut", "overwritten"])
@pytest.mark.parametrize("idle", [True, False])
async def test_overwritten_wal_stops_the_store(path: Path, damage: str, idle: bool) -> None:
    """The file keeps the state of the last checkpoint."""
    store = open_sqlite(path)
    acknowledged = await fill(store)
    store._writer.checkpoint()
    store._opened.watch.note_checkpoint()
    await fill(store, RUNS)
    write_in_place(path.with_name(f"{path.name}-wal"), damage)
    if idle:
        store._thread._thread.join(60)
        assert isinstance(store.failure, FileLost)
    else:
        with pytest.raises(
            FileLost, match=r"was truncated or overwritten.*Changes acknowledged since .* are lost"
        ):
            await store.durable(store.append(Story("late").start()))
    assert isinstance(store.close(), FileLost)
    assert run_ids(path) == acknowledged
    assert saved_copy(path).name.endswith("-wal")


async def test_wal_truncated_by_another_programs_checkpoint_is_accepted(path: Path) -> None:
    store = open_sqlite(path)
    acknowledged: set[str] = set()
    for round_number in range(3):
        acknowledged |= await fill(store, round_number * RUNS)
        checkpoint_in_another_process(path, "TRUNCATE")
    acknowledged |= await fill(store, 3 * RUNS)
    store.close()
    assert run_ids(path) == acknowledged


async def test_closing_reports_an_overwritten_file_after_a_failed_read(path: Path) -> None:
    store = open_sqlite(path)
    await fill(store)
    store._writer.checkpoint()
    store._opened.watch.note_checkpoint()
    overwrite(path, Path(sys.executable))
    caught = store.close()
    assert isinstance(caught, FileLost)
    assert "another program has written to it" in str(caught)


def test_hard_link_is_rejected(path: Path) -> None:
    open_sqlite(path).close()
    link = path.with_name("link.db")
    os.link(path, link)
    for name in (path, link):
        with pytest.raises(StorageError, match=rf"has 2 names \(hard links\).*{ALLOW_HARD_LINKS}=1"):
            open_sqlite(name)


async def test_allowed_hard_links_have_one_owner(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_HARD_LINKS, "1")

    store = open_sqlite(path)
    acknowledged = await fill(store)
    link = path.with_name("link.db")
    os.link(path, link)
    assert "is in use by a process that opened it under another name" in open_in_another_process(link)
    with pytest.raises(StorageError, match="is already open in this process as"):
        open_sqlite(link)
    acknowledged |= await fill(store, RUNS)
    store.close()
    assert open_in_another_process(link) == "opened"
    assert run_ids(path) == acknowledged


OWNER_WITHOUT_LOCKS = """
import asyncio, fcntl, os, sys
fcntl.lockf = lambda *arguments: None  # as if the two names were on mounts that share no locks
del os.getxattr  # and the first one's log could not be seen
from hourglass._embedded.store.sqlite.store import SqliteStore
from tests.embedded.store.run_changes import Story

async def write():
    store = SqliteStore.open(sys.argv[1])
    print("opened", flush=True)
    sys.stdin.readline()
    try:
        await store.durable(store.append(Story("second").start()))
    except Exception as error:
        print(error)
    else:
        print("written")

asyncio.run(write())
"""


def start_owner_without_locks(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OWNER_WITHOUT_LOCKS, str(path)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "opened\n"
    return owner


@pytest.mark.parametrize("first_writes", [True, False])
async def test_second_owner_under_another_name_is_detected_without_locks(
    path: Path, monkeypatch: pytest.MonkeyPatch, first_writes: bool
) -> None:
    """The epoch of the second owner in the file stops the first one."""
    monkeypatch.setenv(ALLOW_HARD_LINKS, "1")

    store = open_sqlite(path)
    await fill(store)
    link = path.with_name("link.db")
    os.link(path, link)
    second = start_owner_without_locks(link)
    if first_writes:
        with pytest.raises(FileLost, match="opened it under another name"):
            await store.durable(store.append(Story("late").start()))
    else:
        store._thread._thread.join(60)
        assert isinstance(store.failure, FileLost)
    assert second.communicate("go on\n")[0] == "written\n"
    store.close()
    assert Story("second").run.run_id in run_ids(link)
    assert saved_copy(path).stat().st_size > 0


def test_leftover_name_of_a_crashed_creation_is_removed(path: Path) -> None:
    open_sqlite(path).close()
    draft = path.with_name(f"{path.name}.new-12345")
    os.link(path, draft)
    open_sqlite(path).close()
    assert not draft.exists()


@pytest.fixture
def mounting() -> None:
    """Skip the test if mounts are not permitted."""
    if sys.platform != "linux" or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")


MOUNTED_OVER = """
import subprocess, sys
from hourglass._embedded.store.sqlite import database
from hourglass._embedded.store.sqlite.store import SqliteStore
path, backup = sys.argv[1:]
store = SqliteStore.open(path)
database.backup(path, backup)
subprocess.run(["mount", "--bind", backup, path], check=True)
store._thread._thread.join(60)
print(store.failure)
store.close()
"""


@pytest.mark.usefixtures("mounting")
def test_file_mounted_over_the_database_stops_the_store(path: Path) -> None:
    backup = path.with_name("backup.db")
    command = ["unshare", "-m", sys.executable, "-c", MOUNTED_OVER, path, backup]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert "was replaced by another file" in done.stdout, done.stderr
    assert "is hidden by a mount at its path" in done.stdout
    assert run_ids(path) == run_ids(backup) == set()


@pytest.mark.usefixtures("mounting")
def test_bind_mounted_file_is_rejected(path: Path) -> None:
    """A bind mount of its folder is accepted."""
    open_sqlite(path).close()
    folder = path.with_name("a folder")
    folder.mkdir()
    (folder / "single.db").touch()

    def program(script: str, target: Path) -> list[str | Path]:
        arguments = (path, folder, sys.executable, IN_ANOTHER_PROCESS, target)
        return ["unshare", "-m", "sh", "-c", script, "sh", *arguments]

    run = 'exec "$3" -c "$4" "$5"'
    single = program(f'mount --bind "$1" "$2/single.db" && {run}', folder / "single.db")
    done = subprocess.run(single, capture_output=True, text=True, timeout=60)
    assert "is mounted as a single file" in done.stdout, done.stderr
    folder_mount = program(f'mount --bind "$(dirname "$1")" "$2" && {run}', folder / path.name)
    done = subprocess.run(folder_mount, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "opened", done.stderr
