"""Checks that the database at our path, its log (`-wal`) and the log's index (`-shm`) are the files that were opened, and saves
what can be saved when they are not.

SQLite works on descriptors and does not notice that a file was renamed, replaced or unlinked under it. What it commits then goes
into files that no other process can find, or, worse, the next checkpoint writes an old log into a restored database. So
the store thread checks before it acknowledges a commit, before each checkpoint, and every second while it is idle.

What can have happened:

    the log or its index is gone            everything is moved from the open log into the database; the store is opened again
    the log was written in place            the log is moved aside; the database is as after the last checkpoint
    another file, or none, is at the path   everything is moved into the database that was opened, which is copied out if it has
                                            no name any more; the file at the path is left alone
    the database was written in place       nothing is written; the log is moved aside, so that it cannot be applied to the new
                                            content

All but the first raise `FileLost`: this process does not open the file again. A change in place is seen by the modification
time: only checkpoints write to the database. Checkpoints of other programs (a replication tool) are told apart by their traces in
the index of the log; a changed time with unchanged content (`touch`) is ignored. To tell `touch` from a change, a few pages are
compared: the first one, the one with the epoch, and those that the last checkpoint wrote, in which any older copy differs.

The lock of the inode is a POSIX record lock on one byte that SQLite does not use. Unlike the lock beside the path it is the same
for all names of a file, and it is not inherited by a forked process. SQLite drops it when its last connection closes, so it is
taken while a connection in WAL mode is open, and taken again at each check, which succeeds unless another process has it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import sqlite3
import struct
from collections.abc import Callable
from time import localtime, strftime
from typing import NamedTuple, TypeAlias

from hourglass._embedded.store.sqlite import inherited
from hourglass._embedded.store.sqlite.disk_faults import Identity
from hourglass._embedded.store.store import FileLost, epoch_is_over
from hourglass.errors import StorageError

logger = logging.getLogger("hourglass")

_LOCK_BYTE = 1 << 62
_INDEX = struct.Struct("16x I 12x 8s 56x I 28x I")
"""The beginning of the index of a write-ahead log (see SQLite's walformat): the last frame, the salts, how many frames were moved
into the database, and how many of them a checkpoint has begun to move.
"""
_LOG_HEADER = struct.Struct(">8x I 4x 8s")
_LOG_HEADER_SIZE, _FRAME_HEADER_SIZE = 32, 24
"""The header of a log has the page size and the salts, and each frame has a header before its page."""
_PAGE_ONE = 4096
_SAMPLED_FRAMES = 8
"""The number of frames, from the last one that was checkpointed back, of which the pages are remembered."""


class LogState(NamedTuple):
    """How far the log was moved into the database. The salts are others after each restart of the log."""

    last_frame: int
    salts: bytes
    backfilled: int
    attempted: int

    def was_checkpointed(self, since: LogState) -> bool:
        """Whether a checkpoint may have written into the database since an earlier state."""
        if self.attempted > self.backfilled or since.attempted > since.backfilled:
            return True  # it is running
        if self.salts == since.salts:
            return self.attempted != since.attempted
        return since.backfilled < since.last_frame or self.attempted > 0


class LogLost(Exception):
    """The log or its index was deleted or replaced. `is_foreign`: another program has written into the log at the path."""

    def __init__(self, *, is_foreign: bool) -> None:
        self.is_foreign = is_foreign


class LogOverwritten(Exception):
    """The content of the log was changed in place."""


class FileMoved(Exception):
    """Another file, or none, is at the path."""


class FileOverwritten(Exception):
    """The content of the database was changed in place."""


Loss: TypeAlias = LogLost | LogOverwritten | FileMoved | FileOverwritten


class FileWatch:
    """The identity of an open database. Create it while a connection in WAL mode is open; everything else is called on the store
    thread. `copy` writes what a connection reads to a new file.
    """

    def __init__(
        self, path: str, writer: sqlite3.Connection, copy: Callable[[sqlite3.Connection, str], None]
    ) -> None:
        self._path = path
        self._copy = copy
        self._log, self._index = f"{path}-wal", f"{path}-shm"
        self._writer = writer
        self.identity = Identity.of(path)
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._index_file = self._log_file = -1
        try:
            if not self._take_lock():
                raise StorageError(
                    f"the file {path} is owned by a process that opened it by another name (a hard link, or a mount of the "
                    f"single file), or whose lock file {path}-lock was deleted: use one name in all processes, and end a process "
                    f"that is stopped",
                    status="FAILED_PRECONDITION",
                )
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> bool:
        """Take the lock of the inode, or make sure of it; return whether this process has it."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LOCK_BYTE)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            return False
        return True

    def begin(self) -> None:
        """Remember the log and its index, which exist from the first commit on."""
        self._page_size, self._epoch_page = _locate_epoch(self._writer)
        self._index_file = os.open(self._index, os.O_RDONLY | os.O_CLOEXEC)
        self._log_file = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC)
        self._siblings = (Identity.of(self._log), Identity.of(self._index))
        self.note_checkpoint()

    def note_checkpoint(self) -> None:
        """Remember the state of the database after a checkpoint of our own."""
        self._stamp = self._read_stamp()
        self._log_state = self._checkpointed = self._read_log_state()
        self._sampled = (self._epoch_page, *self._last_pages(self._log_state.backfilled))
        self._pages = self._read_pages()

    @property
    def log_growth(self) -> int:
        """Pages that the log has grown by since the last checkpoint of our own, as of the last `check`."""
        state, since = self._log_state, self._checkpointed
        return state.last_frame - (since.last_frame if state.salts == since.salts else 0)

    def check(self) -> None:
        """Raise what has happened to the files, a `Loss`, or `StorageError` if another process owns the file."""
        if _identity(self._path) != self.identity:
            raise FileMoved
        stamp = self._read_stamp()
        state = self._read_log_state()  # after the stamp: a checkpoint notes that it begins before it writes
        if stamp != self._stamp:
            pages = self._read_pages()
            if pages != self._pages and not state.was_checkpointed(self._log_state):
                raise FileOverwritten
            self._stamp, self._pages = stamp, pages
        self._log_state = state
        siblings = (_identity(self._log), _identity(self._index))
        if siblings != self._siblings:
            is_foreign = siblings[0] not in (None, self._siblings[0]) and os.stat(self._log).st_size > 0
            raise LogLost(is_foreign=is_foreign)
        self.check_log()
        if not self._take_lock():
            raise epoch_is_over(self._path)

    def check_log(self) -> None:
        """Raise `LogOverwritten` unless the log begins as it should and is as long. Called before commits, too: a commit makes a
        log that was truncated long again.
        """
        # Read again if in doubt: another program may have let the log begin anew.
        if not self._is_log_sound(self._log_state) and not self._is_log_sound(self._read_log_state()):
            raise LogOverwritten

    def _is_log_sound(self, state: LogState) -> bool:
        if not state.last_frame:
            return True  # nothing in it counts
        header = os.pread(self._log_file, _LOG_HEADER.size, 0)
        if len(header) < _LOG_HEADER.size:
            return False
        page_size, salts = _LOG_HEADER.unpack(header)
        size = _LOG_HEADER_SIZE + state.last_frame * (_FRAME_HEADER_SIZE + page_size)
        return bool(salts == state.salts) and os.fstat(self._log_file).st_size >= size

    def save(self, loss: Loss) -> StorageError:
        """Save what can be saved. Return the error that ends the store."""
        match loss:
            case FileMoved():
                return self._save_moved()
            case LogLost(is_foreign=False):
                return self._save_log()
            case LogOverwritten():
                return self._set_broken_log_aside()
            case _:
                return self._set_log_aside(loss)

    def close(self) -> None:
        """Close the descriptors once SQLite has closed its own."""
        for descriptor in (self._file, self._index_file, self._log_file):
            if descriptor >= 0:
                inherited.retire(descriptor, self.identity)
        self._file = self._index_file = self._log_file = -1

    def _save_log(self) -> StorageError:
        inherited.mark_stale(self.identity)
        if self._checkpoint("FULL"):
            return StorageError(
                f"the log {self._log} or its index was deleted or replaced while {self._path} was in use. Everything that was "
                f"acknowledged was moved from the open log into the file, which is now opened again. Never delete the files "
                f"beside a database that is in use",
                status="UNAVAILABLE",
            )
        _, copy = self._copy_out()
        return FileLost(
            f"the log {self._log} was deleted or replaced while {self._path} was in use, and another program that reads the file "
            f"kept its content from being moved into it. This process has stopped. {copy}",
            status="DATA_LOSS",
        )

    def _save_moved(self) -> StorageError:
        is_replaced = _identity(self._path) is not None
        if os.fstat(self._file).st_nlink == 0:
            kept = self._save_unlinked(is_replaced=is_replaced)
        else:
            is_emptied = self._checkpoint("TRUNCATE")
            kept = self._where_it_is()
            if not is_emptied and self._has_log():
                kept += f" Its log was moved to {self._move_log()}."
        if is_replaced:
            what = "was replaced by another file"
            advice = f"The new file was not changed. Put the one that is wanted at {self._path}"
        else:
            what, advice = "was deleted or moved away", f"Put it back as {self._path}"
        return FileLost(
            f"the file {self._path} {what} while it was in use. This process has stopped and does not open it again. {kept} "
            f"{advice}, and restart all workers. To restore a backup, stop the workers first",
            status="DATA_LOSS",
        )

    def _save_unlinked(self, *, is_replaced: bool) -> str:
        """Copy a database that has no name any more. Its log is moved away from a new file first. Where there is none it stays
        until the copy is complete: if this process is killed before, the next one finds it and does not begin an empty file.
        """
        log = self._move_log() if is_replaced and self._has_log() else ""
        is_copied, kept = self._copy_out()
        if not is_copied:
            return f"{kept} Its log was moved to {log}." if log else kept
        if self._checkpoint("TRUNCATE") and log:
            with contextlib.suppress(OSError):
                os.unlink(log)
        return kept

    def _has_log(self) -> bool:
        """Whether the log at the path is the one that was opened."""
        return _identity(self._log) == self._siblings[0]

    def _set_broken_log_aside(self) -> StorageError:
        _, written_ns = self._stamp
        when = strftime("%Y-%m-%d %H:%M:%S", localtime(written_ns / 1e9))
        return FileLost(
            f"the log {self._log} was truncated or overwritten while {self._path} was in use: what was acknowledged since {when} "
            f"is lost. What is left of the log was moved to {self._move_log()}. This process has stopped and does not open the "
            f"file again. Restart all workers to go on from {when}, or restore a backup first",
            status="DATA_LOSS",
        )

    def _set_log_aside(self, loss: Loss) -> StorageError:
        if isinstance(loss, LogLost):
            what = "its log was replaced, and another program has written into the new one"
            _, kept = self._copy_out()
        else:
            what = "another program has written into it (restored a backup in place, truncated it, or opened it by another name)"
            kept = f"The log of what was written last was moved to {self._move_log()}: it is not applied to the new content."
        return FileLost(
            f"the file {self._path} was changed while it was in use: {what}. This process has stopped and does not open it "
            f"again. {kept} Check the file, or restore a backup while no worker runs, and restart all workers",
            status="DATA_LOSS",
        )

    def _checkpoint(self, mode: str) -> bool:
        """Move the open log into the open database; return whether all of it was moved."""
        try:
            ((busy, _, _),) = self._writer.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        except sqlite3.Error:
            return False
        return not busy

    def _copy_out(self) -> tuple[bool, str]:
        """Copy the open database to a new file; return whether that succeeded, and a sentence about it."""
        dest = self._free_name()
        logger.error("%s was lost while it was in use: its content is being copied to %s", self._path, dest)
        try:
            self._copy(self._writer, dest)
        except StorageError as error:
            return False, f"A copy of its content could not be made ({error})."
        return True, f"All that was acknowledged is in the copy {dest}."

    def _where_it_is(self) -> str:
        with contextlib.suppress(OSError):
            return f"The file that was in use, with all that was acknowledged, is {os.readlink(f'/proc/self/fd/{self._file}')}."
        return "The file that was in use, with all that was acknowledged, exists under another name."

    def _move_log(self) -> str:
        dest = f"{self._free_name()}-wal"
        try:
            os.rename(self._log, dest)
        except OSError as error:
            return f"nowhere: {error.strerror}; move {self._log} away before the file is opened"
        with contextlib.suppress(OSError):
            os.unlink(self._index)
        return dest

    def _free_name(self) -> str:
        stem = f"{self._path}.saved-{strftime('%Y%m%d-%H%M%S')}"
        names = (stem, *(f"{stem}-{number}" for number in range(1, 1000)))
        return next(
            name for name in names if not os.path.lexists(name) and not os.path.lexists(f"{name}-wal")
        )

    def _read_stamp(self) -> tuple[int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    def _last_pages(self, last_frame: int) -> set[int]:
        """Return the numbers of the pages in the log's frames up to this one, of the last few."""
        frame_size = _FRAME_HEADER_SIZE + self._page_size
        frames = range(max(0, last_frame - _SAMPLED_FRAMES), last_frame)
        numbers = (os.pread(self._log_file, 4, _LOG_HEADER_SIZE + frame * frame_size) for frame in frames)
        return {int.from_bytes(number) for number in numbers}

    def _read_pages(self) -> list[bytes]:
        size = self._page_size
        offsets = ((page - 1) * size for page in self._sampled)
        return [
            os.pread(self._file, _PAGE_ONE, 0),
            *(os.pread(self._file, size, offset) for offset in offsets),
        ]

    def _read_log_state(self) -> LogState:
        return LogState(*_INDEX.unpack(os.pread(self._index_file, _INDEX.size, 0)))


def _locate_epoch(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the size of pages and the number of the page with the epoch."""
    ((size,),) = connection.execute("PRAGMA page_size").fetchall()
    ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'meta'").fetchall()
    return size, root


def _identity(path: str) -> Identity | None:
    try:
        return Identity.of(path)
    except OSError:
        return None
