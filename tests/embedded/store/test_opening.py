"""Files that can and cannot be opened: each rejection names the cause and the remedy, and changes nothing."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.embedded.stores import open_sqlite

from hourglass._embedded.store.sqlite import database, inherited, tables
from hourglass._embedded.store.sqlite.copies import put_in_place
from hourglass._embedded.store.store import Store
from hourglass.errors import StorageError

from .run_changes import Story

Open = Callable[..., Store]
ROOT = Path(__file__).resolve().parents[3]


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return the contents of all files below a folder."""
    return {
        str(each.relative_to(folder)): each.read_bytes() if each.is_file() else None
        for each in sorted(folder.rglob("*"))
    }


def assert_rejected(path: Path, text: str, **options: str) -> StorageError:
    """Check that opening raises an error and changes nothing in the folder."""
    before = contents(path.parent) if path.parent.is_dir() else {}
    with pytest.raises(StorageError, match=text) as caught:
        open_sqlite(path, **options)
    if before:
        assert contents(path.parent) == before
    assert str(path) in str(caught.value)
    return caught.value


def create_file(path: Path, runs: int = 1) -> Path:
    """Create a file with some runs, and close it."""
    store = open_sqlite(path)
    for place in range(runs):
        store.append(Story(f"run-{place}").start())
    store.close()
    return path


def execute(path: Path, *statements: str) -> None:
    """Execute statements in a file without the store."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_missing_file_is_created(open_store: Open, path: Path) -> None:
    """The creation leaves no other file in the folder."""
    open_store().close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone() == (tables.APPLICATION_ID,)
    assert connection.execute("PRAGMA user_version").fetchone() == (tables.FORMAT,)
    connection.close()
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("name", ["with space.db", "what?.db", "50%.db", "#1.db", "é.db", "a&mode=ro.db"])
def test_special_characters_in_a_file_name_are_allowed(open_store: Open, tmp_path: Path, name: str) -> None:
    """These characters have a meaning in a URI."""
    open_store(tmp_path / name).close()
    assert os.listdir(tmp_path) == [name]


def test_connections_have_their_settings(open_store: Open) -> None:
    """The writer syncs every commit to the WAL; the reader cannot write."""
    store = open_store()
    writer, reader = store._opened.writer, store._opened.reader
    assert writer.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    assert writer.execute("PRAGMA synchronous").fetchall() == [(2,)]
    for statement in ("DELETE FROM runs", "CREATE TABLE x (y)"):
        with pytest.raises(sqlite3.OperationalError):
            reader.execute(statement)


def test_query_planner_statistics_are_dropped_at_opening(open_store: Open, path: Path) -> None:
    """Statistics of a small file would later make every commit scan it."""
    store = open_sqlite(path)
    story = Story("a")
    store.append(story.start())
    store.append(story.schedule(5))
    store.close()
    execute(path, "ANALYZE")
    statement = "DELETE FROM pending WHERE " + " OR ".join(["(run = ? AND event_id BETWEEN ? AND ?)"] * 96)
    plan = open_store()._opened.writer.execute(f"EXPLAIN QUERY PLAN {statement}", [1] * 288).fetchall()
    assert not [row for row in plan if row[3].startswith("SCAN pending")]


def test_newer_format_is_rejected(path: Path) -> None:
    execute(create_file(path), f"PRAGMA user_version = {tables.FORMAT + 1}")
    assert_rejected(path, f"has format {tables.FORMAT + 1}.*not changed")


def test_database_of_another_program_is_rejected(path: Path) -> None:
    execute(path, "CREATE TABLE users (name)")
    assert_rejected(path, "database of another program")


@pytest.mark.parametrize("size", [1, 20, 100, 5_000])
def test_file_that_is_not_a_database_is_rejected(path: Path, size: int) -> None:
    path.write_bytes(b"Dear diary! " * 500 if size == 5_000 else b"D" * size)
    assert_rejected(path, "is not a database")


def test_empty_file_is_rejected(path: Path) -> None:
    """Our files are never empty."""
    path.touch()
    assert_rejected(path, "is empty")


def test_wal_without_its_file_is_rejected(path: Path) -> None:
    """SQLite would apply the WAL to the new file."""
    path.with_name(f"{path.name}-wal").write_bytes(b"x" * 100)
    assert_rejected(path, "Put the file back")


def test_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "runs.db").mkdir()
    assert_rejected(tmp_path / "runs.db", "is a directory")


def test_missing_folder_is_rejected_and_not_created(tmp_path: Path) -> None:
    assert_rejected(tmp_path / "no" / "runs.db", "the directory .* does not exist")


def test_dangling_link_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "runs.db").symlink_to(tmp_path / "elsewhere.db")
    assert_rejected(tmp_path / "runs.db", "is a broken symbolic link")


def test_pipe_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "runs.db")
    with pytest.raises(StorageError, match="not a regular file"):
        open_sqlite(tmp_path / "runs.db")


def test_other_namespace_is_rejected(path: Path) -> None:
    create_file(path)
    with pytest.raises(StorageError, match="belongs to 'default'"):
        open_sqlite(path, namespace="billing")


@pytest.mark.parametrize("table", ["meta", "runs", "events", "pending", "requests"])
def test_missing_table_is_rejected_at_opening(path: Path, table: str) -> None:
    execute(create_file(path), f"DROP TABLE {table}")
    with pytest.raises(StorageError, match=f"its table {table}"):
        open_sqlite(path)


@pytest.mark.parametrize("place", [0, 16, 100])
def test_overwritten_header_is_rejected(path: Path, place: int) -> None:
    data = bytearray(create_file(path).read_bytes())
    data[place : place + 400] = b"\xa5" * 400
    path.write_bytes(data)
    assert_rejected(path, "is not a database|is corrupt")


def test_truncated_file_is_reported_at_opening_or_reading(path: Path) -> None:
    data = create_file(path, 200).read_bytes()
    path.write_bytes(data[: len(data) // 2 // 4096 * 4096])
    with pytest.raises(StorageError, match=r"is corrupt|is not a database"):
        read_all(path, 200)


def read_all(path: Path, runs: int) -> None:
    store = open_sqlite(path)
    try:
        for place in range(runs):
            store.load(f"run-{place}")
    finally:
        store.close()


def test_file_locked_by_another_program_is_rejected(
    open_store: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    create_file(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="is locked by another program"):
        open_sqlite(path)
    other.execute("ROLLBACK")
    other.close()
    assert open_store().load("run-0") is not None


def test_old_sqlite_is_rejected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 9))
    with pytest.raises(StorageError, match="too old"):
        open_sqlite(path)


def test_leftover_of_an_interrupted_creation_is_ignored(open_store: Open, path: Path) -> None:
    Path(f"{path}.new-{os.getpid()}").write_bytes(b"half a database")
    assert open_store().epoch == 1


@pytest.mark.parametrize(
    ("number", "status", "text"),
    [
        (errno.ENOSPC, "RESOURCE_EXHAUSTED", "has no space left on its disk"),
        (errno.EDQUOT, "RESOURCE_EXHAUSTED", "has no space left on its disk"),
        (errno.EROFS, "FAILED_PRECONDITION", "open"),
        (errno.EIO, "FAILED_PRECONDITION", "cannot be created: Input/output error"),
    ],
)
def test_failed_creation_names_the_cause_and_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: str, text: str
) -> None:
    def fails(draft: str, _path: str, *, overwrite: bool) -> None:
        raise OSError(number, os.strerror(number), draft)

    monkeypatch.setattr(database, "put_in_place", fails)
    assert assert_rejected(path, text).status == status
    assert os.listdir(path.parent) == []


def test_too_long_file_name_is_rejected(tmp_path: Path) -> None:
    """The name of the WAL may be the only one that is too long."""
    assert_rejected(tmp_path / ("x" * 300), "cannot be used: File name too long")
    assert_rejected(tmp_path / ("x" * 253), "cannot be created: File name too long")


def test_file_created_first_by_another_process_is_used(
    open_store: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place = database.put_in_place

    def create_first(draft: str, place: str, *, overwrite: bool) -> None:
        monkeypatch.undo()
        create_file(path)
        put_in_place(draft, place, overwrite=overwrite)

    monkeypatch.setattr(database, "put_in_place", create_first)
    assert open_store().load("run-0") is not None
    assert sorted(os.listdir(path.parent)) == [path.name, f"{path.name}-shm", f"{path.name}-wal"]


def test_file_system_without_hard_links_is_supported(
    open_store: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are renamed into place, and still never replace another file."""

    def fails(source: str, destination: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", destination)

    monkeypatch.setattr(os, "link", fails)
    store = open_store()
    store.append(Story("a").start())
    store.close()
    copy = path.with_name("copy.db")
    database.backup(path, copy)
    assert open_store(copy).load("a") is not None
    with pytest.raises(FileExistsError):
        put_in_place(str(copy), str(path), overwrite=False)


def test_closed_file_is_readable_without_creating_files_beside_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full. SQLite's error is raised if commits are in a WAL."""
    connect_reader = database._connect_reader

    def has_no_room(name: str, mode: str = "ro") -> sqlite3.Connection:
        if "immutable" not in mode:
            raise sqlite3.OperationalError("unable to open database file")
        return connect_reader(name, mode)

    create_file(path)
    monkeypatch.setattr(database, "_connect_reader", has_no_room)
    connection = database.connect_unowned(str(path))
    assert connection.execute("SELECT run_id FROM runs").fetchall() == [("run-0",)]
    inherited.close(connection)
    Path(f"{path}-wal").write_bytes(b"commits")
    with pytest.raises(StorageError, match="cannot be used"):
        database.connect_unowned(str(path))


@pytest.mark.skipif(sys.platform != "linux", reason="lists the open files of a process as Linux does")
def test_rejected_file_leaves_no_descriptor_open(path: Path) -> None:
    path.write_bytes(b"words " * 1000)
    with pytest.raises(StorageError, match="not a database"):
        database.connect_read_only(str(path))
    opened = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if os.path.lexists(each)]
    assert str(path) not in opened


NOBODY = """
import os, sys
from hourglass._embedded.store.sqlite.store import SqliteStore
from hourglass.errors import StorageError
os.setgid(65534)
os.setuid(65534)
try:
    SqliteStore.open(sys.argv[1])
except StorageError as error:
    print(error)
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A path accessible to other users, unlike pytest's temporary folders."""
    with tempfile.TemporaryDirectory(prefix="hourglass-tests-") as folder:
        yield Path(folder) / "runs.db"


def open_as_nobody(path: Path) -> str:
    """Return the error of opening a file as a user without permissions."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for folder in (path.parent, *path.parent.parents):
        if folder.stat().st_uid == os.geteuid() and folder not in (Path("/"), Path("/tmp")):
            folder.chmod(folder.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", NOBODY, str(path)],
        capture_output=True,
        text=True,
        cwd="/",
        check=True,
        timeout=60,
    )
    return done.stdout


def test_unreadable_file_is_reported(public: Path) -> None:
    create_file(public).chmod(0o600)
    assert (
        "cannot be opened: check that this user may read and write the file and its directory"
        in open_as_nobody(public)
    )


def test_file_without_write_permission_cannot_be_owned(public: Path) -> None:
    create_file(public).chmod(0o644)
    assert "cannot be written: the file, its directory or its file system is read-only" in open_as_nobody(
        public
    )


def test_file_cannot_be_created_without_permission(public: Path) -> None:
    output = open_as_nobody(public)
    assert str(public) in output
    assert "cannot be opened: check that this user may read and write the file and its directory" in output
    assert os.listdir(public.parent) == []


READ_ONLY = """
set -e
mount -t tmpfs none "$1"
cp "$2" "$1/runs.db"
mount -o remount,ro "$1"
exec "$3" -c "$4" "$1/runs.db"
"""
OPEN = """
import sys
import tempfile
from hourglass._embedded.store.sqlite.store import SqliteStore
from hourglass.errors import StorageError
for name in (sys.argv[1], sys.argv[1] + '.other'):
    try:
        SqliteStore.open(name)
    except StorageError as error:
        print(error)
"""


def test_read_only_file_system_is_reported(path: Path, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    create_file(path)
    (tmp_path / "mounted").mkdir()
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", READ_ONLY, "sh", tmp_path / "mounted", path, sys.executable, OPEN],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    output = done.stdout.splitlines()
    assert [line.split(" cannot be opened")[0] for line in output] == [
        f"the file {tmp_path / 'mounted' / name}" for name in ("runs.db", "runs.db.other")
    ]
    assert all("the file system is not read-only" in line for line in output)


def test_new_files_are_private_whatever_the_umask(open_store: Open, path: Path) -> None:
    umask = os.umask(0)
    try:
        store = open_store()
        store.append(Story("a").start())
        names = [path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")]
        assert [name.stat().st_mode & 0o777 for name in names] == [0o600] * 3
        store.close()
    finally:
        os.umask(umask)


def test_missing_visibility_table_is_rejected_at_opening(open_store: Open, path: Path) -> None:
    open_store().close()
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE visibility_types")
    connection.close()
    with pytest.raises(StorageError, match="its table visibility_types is missing or has other columns"):
        open_store()


async def test_opening_reads_no_large_payloads(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    story = Story("a", now_ns=1_700_000_000_000_000_000)

    store = open_sqlite(path)
    await store.durable(store.append(story.start()))
    for _ in range(64):
        await store.durable(store.append(story.signal(size=200_000)))
    store.close()
    latest_ns = story.events[-1].time_ns
    before = _bytes_read()
    store = open_sqlite(path)
    read = _bytes_read() - before
    assert store.latest_ns == latest_ns
    store.close()
    assert read < 2_000_000


def _bytes_read() -> int:
    try:
        counters = Path("/proc/self/io").read_text()
    except OSError:
        pytest.skip("the system does not count what a process reads")
    return int(counters.split("rchar: ")[1].split()[0])
