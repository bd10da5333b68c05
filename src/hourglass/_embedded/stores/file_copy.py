"""Copies of a database that is in use, and files that appear under their name whole.

Must not know: what is in the database. A copy is one moment: a read transaction is held while SQLite's online
backup copies the pages in portions, so that whoever writes is never in the way and never waits. Invariants: a
copy appears whole, checked and synced, or not at all; nothing that is there is overwritten unasked; a copy
can be read by those users only who can read what was copied.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable
from typing import TypeAlias

from hourglass._embedded.stores.disk_faults import storage_errors
from hourglass._embedded.stores.standstill import WORK
from hourglass.errors import StorageError

PAGES = 512
PAUSE = 0.002
"""Seconds between portions: the disk and the interpreter belong to others too."""


Progress: TypeAlias = Callable[[int, int], object]
"""Hears how many pages are copied, and how many there are."""


def copy_database(
    connection: sqlite3.Connection,
    dest: str,
    *,
    overwrite: bool,
    source: str = "",
    progress: Progress | None = None,
) -> None:
    """Copy what a connection sees now to a new file."""
    _check_destination(dest, overwrite, source)
    draft = f"{dest}.partial-{os.getpid()}"
    _remove(draft)
    try:
        make_private(draft)
        with WORK, storage_errors(dest):
            _copy(connection, draft, progress)
        if source:
            os.chmod(draft, stat.S_IMODE(os.stat(source).st_mode) & 0o666)
        put_in_place(draft, dest, overwrite=overwrite)
    except FileExistsError as error:
        raise _refused(dest, "is there already; pass overwrite=True to replace it") from error
    except OSError as error:
        raise _refused(dest, f"cannot be written: {error.strerror}") from error
    finally:
        _remove(draft)


def make_private(path: str) -> None:
    """An empty file that only this user may use, where nothing is; FileExistsError if something is."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def put_in_place(draft: str, path: str, *, overwrite: bool) -> None:
    """Give a finished file its name, so that it is there after a crash; FileExistsError if it is taken."""
    if overwrite:
        os.replace(draft, path)
    else:
        try:
            os.link(draft, path)  # unlike a rename it never replaces
        except FileExistsError:
            raise
        except OSError:
            if os.path.lexists(path):  # a file system without links
                raise FileExistsError(path) from None
            os.rename(draft, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _copy(connection: sqlite3.Connection, draft: str, progress: Progress | None) -> None:
    def pause(_status: int, left: int, pages: int) -> None:
        if progress is not None:
            progress(pages - left, pages)
        WORK.pause(PAUSE)

    target = sqlite3.connect(draft, isolation_level=None)
    try:
        connection.execute("BEGIN")
        try:
            # The first read takes the snapshot. Without it a busy writer would make the copy begin anew for ever.
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            connection.backup(target, pages=PAGES, progress=pause)
        finally:
            connection.execute("ROLLBACK")
        target.execute("PRAGMA journal_mode = DELETE").fetchall()  # one file, with no log beside it
        found = target.execute("PRAGMA integrity_check(1)").fetchall()
        if found != [("ok",)]:
            raise StorageError(
                "the file is damaged, and so would be its copy: nothing was kept of it", status="DATA_LOSS"
            )
    finally:
        target.close()


def _check_destination(dest: str, overwrite: bool, source: str) -> None:
    folder = os.path.dirname(dest) or "."
    if not os.path.isdir(folder):
        raise _refused(dest, f"cannot be made: there is no folder {folder}")
    if os.path.isdir(dest):
        raise _refused(dest, "is a folder: name a file in it")
    if os.path.lexists(dest) and not overwrite:
        raise _refused(dest, "is there already; pass overwrite=True to replace it")
    if source and os.path.exists(dest) and os.path.samefile(source, dest):
        raise _refused(dest, "is the file itself")
    if os.path.lexists(f"{dest}-wal"):
        raise _refused(dest, "has a log of SQLite beside it: somebody uses it, or its end was sudden")


def _refused(dest: str, why: str) -> StorageError:
    return StorageError(f"the copy {dest} {why}", status="FAILED_PRECONDITION")


def _remove(draft: str) -> None:
    for leftover in (draft, f"{draft}-journal"):
        with contextlib.suppress(OSError):
            os.unlink(leftover)
