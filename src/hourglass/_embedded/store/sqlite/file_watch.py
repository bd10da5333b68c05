"""Checks that the database at our path, its log (`-wal`) and the log's index (`-shm`) are the files that were opened,
and rescues the data if they are not.

SQLite works on descriptors and does not notice that a file was renamed, replaced or unlinked. Its later commits then go
into files that no other process can find, or, worse, the next checkpoint writes an old log into a restored database.
The store thread therefore checks before it acknowledges a commit, before each checkpoint, and every second while it is
idle.

Detected events and reactions:

    the log or its index is missing         the open log is moved into the database; the store is opened again
    the log was overwritten in place        the log is moved aside; the database is as after the last checkpoint
    the path leads to another file or none  the open log is moved into the original database, which is copied if it has
                                            no name any more; the file at the path stays unchanged
    the database was overwritten in place   nothing is written; the log is moved aside, so that it cannot be applied to
                                            the new content
    a backup was restored through SQLite    nothing is written; the log contains the new content and stays

All but the first raise `FileLost`: this process does not open the file again. A change in place is detected by the
modification time, because only checkpoints write to the database. Checkpoints of other programs (replication tools) are
recognised by their traces in the index of the log. A changed time with unchanged content (`touch`) is ignored. To tell
`touch` from a change, a few pages are compared: the first one, the one with the epoch, and those that the last
checkpoint wrote, in which every older copy differs. Only a checkpoint makes the database shorter.

The index of the log counts commits. If it has counted more than our own, another program has written through SQLite.
Then the last events that we wrote must still be in the database: a restored backup does not contain them.

The lock of the inode is a POSIX record lock on one byte that SQLite does not use. Unlike the lock file beside the path
it is the same for all names of a file, and a forked process does not inherit it. SQLite drops it when its last
connection closes. It is therefore acquired while a connection in WAL mode is open, and confirmed at each check. That
succeeds unless another process holds it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Collection
from functools import partial
from time import localtime, strftime

import msgspec

from hourglass._embedded.store.sqlite import inherited
from hourglass._embedded.store.sqlite.disk_faults import Identity
from hourglass._embedded.store.store import FileLost, epoch_is_over
from hourglass.errors import StorageError

logger = logging.getLogger("hourglass")

_LOCK_BYTE = 1 << 62
_INDEX = struct.Struct("8x I 4x I 12x 8s 56x I 28x I")
"""The beginning of the index of a write-ahead log (see SQLite's walformat): the number of commits, the last frame, the
salts, the number of frames moved into the database, and the number of frames that a checkpoint has started to move."""
_LOG_HEADER = struct.Struct(">8x I 4x 8s")
_LOG_HEADER_SIZE, _FRAME_HEADER_SIZE = 32, 24
"""Sizes in bytes. The log's header contains the page size and the salts; each frame has a header before its page."""
_PAGE_ONE = 4096
_LIKELY_EPOCHS = 1000
"""If the epoch in the file exceeds ours by at most this number, another owner has begun it. A larger difference
indicates a restored copy, because a copy gets a random epoch.
"""
_SAMPLED_FRAMES = 8
"""The number of pages to compare: those in the last frames of the latest checkpoint."""


class LogState(msgspec.Struct, frozen=True, gc=False):
    """The state of the log and the progress of checkpoints, as stored in the log's index. The salts change with each
    restart of the log.
    """

    commits: int
    last_frame: int
    salts: bytes
    backfilled: int
    attempted: int

    def was_checkpointed(self, since: LogState) -> bool:
        """Whether a checkpoint may have written into the database since an earlier state."""
        if self.attempted > self.backfilled or since.attempted > since.backfilled:
            return True  # a checkpoint is running
        if self.salts == since.salts:
            return self.attempted != since.attempted
        return since.backfilled < since.last_frame or self.attempted > 0


class Loss(Exception):
    """Raised if the log or the database is not in the state in which this process left it."""


class LogLost(Loss):
    """The log or its index was deleted or replaced. `is_foreign`: another program has written into the log at the
    path.
    """

    def __init__(self, *, is_foreign: bool) -> None:
        self.is_foreign = is_foreign


class LogOverwritten(Loss):
    """The content of the log was changed in place."""


class FileMoved(Loss):
    """The path leads to another file or to none."""


class FileOverwritten(Loss):
    """The content of the database was changed in place."""


class FileRestored(Loss):
    """Another program has replaced the content through SQLite."""


class FileWatch:
    """A watch on an open database, which checks that the database and its log are still the files that were opened.
    Must be created while a connection in WAL mode is open, and used by one thread at a time.

    `copy` writes the content that a connection reads to a new file.
    """

    def __init__(
        self, path: str, writer: sqlite3.Connection, copy: Callable[[sqlite3.Connection, str], None]
    ) -> None:
        self._path = path
        self._copy = copy
        self._log, self._index = f"{path}-wal", f"{path}-shm"
        self._names = (path, self._log, self._index)
        self._writer = writer
        self.identity = Identity.of(path)
        self._epoch = self._commits = 0
        self._last_events: list[tuple[int, int]] = []
        self._has_written = self._warned = False
        self._closers: list[Callable[[], object]] = []
        self._file = self._open(path, os.O_RDWR)
        try:
            if not self._acquire_lock():
                raise StorageError(
                    f"the file {path} is in use by a process that opened it under another name (a hard link, or a mount "
                    f"of the single file), or whose lock file {path}-lock was deleted: use the same path in all "
                    "processes, and end stopped processes",
                    status="FAILED_PRECONDITION",
                )
        except BaseException:
            self.close()
            raise

    def _acquire_lock(self) -> bool:
        """Acquire or confirm the lock of the inode. Return whether this process has the lock."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LOCK_BYTE)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            return False
        return True

    def begin(self, epoch: int) -> None:
        """Record the identities of the log and its index, which exist from the first commit on."""
        self._epoch = epoch
        self._page_size, self._epoch_page = _locate_epoch(self._writer)
        self._index_file = self._open(self._index, os.O_RDONLY)
        self._log_file = self._open(self._log, os.O_RDONLY)
        self._identities = [self.identity, Identity.of(self._log), Identity.of(self._index)]
        self.note_checkpoint()
        self._commits = self._log_state.commits

    def note_checkpoint(self) -> None:
        """Record the state of the database after a checkpoint of this process."""
        self._stamp = _stamp(os.fstat(self._file))
        self._log_state = self._checkpointed = self._read_log_state()
        self._sampled = (self._epoch_page, *self._last_pages(self._log_state.backfilled))
        self._pages = self._read_pages()

    @property
    def log_growth(self) -> int:
        """The number of pages by which the log has grown since this process's last checkpoint, as of the last `check`."""
        state, since = self._log_state, self._checkpointed
        return state.last_frame - (since.last_frame if state.salts == since.salts else 0)

    def check(self) -> None:
        """Raise the detected `Loss`, or `StorageError` if another process owns the file."""
        files = [_status(name) for name in self._names]
        identities = [None if file is None else Identity(file.st_dev, file.st_ino) for file in files]
        if files[0] is None or identities[0] != self.identity:
            raise FileMoved
        stamp = _stamp(files[0])
        # Read after the stamp, because a checkpoint changes the index before the database.
        state = self._read_log_state()
        if stamp != self._stamp:
            pages = self._read_pages()
            is_shorter = stamp[0] < self._stamp[0]
            if (is_shorter or pages != self._pages) and not state.was_checkpointed(self._log_state):
                raise FileOverwritten
            self._stamp, self._pages = stamp, pages
        self._log_state = state
        log = files[1]
        if log is None or identities != self._identities:
            is_foreign = log is not None and identities[1] != self._identities[1] and log.st_size > 0
            raise LogLost(is_foreign=is_foreign)
        self._check_log(state, log.st_size)
        if not self._acquire_lock():
            raise epoch_is_over(self._path)
        self._check_commits(state)

    def check_before_commit(self) -> None:
        """Raise `Loss` if the log or the content was changed. A later check might not detect this, because a commit
        extends a truncated log again.
        """
        state = self._read_log_state()
        self._check_log(state, os.fstat(self._log_file).st_size)
        self._check_commits(state)

    def note_commit(self, last_events: tuple[int, int] | None, forgotten: Collection[int]) -> None:
        """Record a commit of this process. `last_events` identifies the events that the commit wrote last, by the key
        of their run and the id of the first event; `forgotten` are the keys of the deleted runs.
        """
        self._has_written = True
        if last_events is not None:
            # The previous events are kept, too: this commit may have waited for the lock while another program replaced
            # the content.
            self._last_events = [*self._last_events[-1:], last_events]
        if forgotten:
            self._last_events = [events for events in self._last_events if events[0] not in forgotten]

    def _check_commits(self, state: LogState) -> None:
        """Raise `FileRestored` if another program has committed and the events that we wrote last are gone."""
        commits, self._commits = self._commits, state.commits
        expected = (commits, commits + 1) if self._has_written else (commits,)
        self._has_written = False
        if state.commits in expected:
            return
        epoch, has_last_events = self._read_content()
        if self._epoch < epoch <= self._epoch + _LIKELY_EPOCHS:
            return  # another owner has begun an epoch: the next write reports it
        if epoch != self._epoch or not has_last_events:
            raise FileRestored
        if not self._warned:
            self._warned = True
            logger.warning(
                "another program has written to %s while it is in use; only Hourglass may change its tables",
                self._path,
            )

    def _read_content(self) -> tuple[int, bool]:
        """Return the epoch in the database, 0 if there is none, and whether the database has the events that were
        written last.
        """
        try:
            rows = self._writer.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchall()
            text = "SELECT 1 FROM events WHERE run = ? AND first_id = ?"
            has_events = all(self._writer.execute(text, events).fetchall() for events in self._last_events)
        except sqlite3.OperationalError:
            if self._writer.in_transaction:
                raise
            return 0, False  # the database has other tables
        return (int(rows[0][0]) if rows else 0), has_events

    def _check_log(self, state: LogState, size: int) -> None:
        """Raise `LogOverwritten` unless the log has the header and at least the length that belong to this state. `size`
        is the size of the log, read shortly before.
        """
        if not state.last_frame:
            return  # the log contains no valid frames
        header = os.pread(self._log_file, _LOG_HEADER.size, 0)
        if len(header) == _LOG_HEADER.size:
            page_size, salts = _LOG_HEADER.unpack(header)
            least_size = _LOG_HEADER_SIZE + state.last_frame * (_FRAME_HEADER_SIZE + page_size)
            if salts == state.salts and size >= least_size:
                return
        # Another program may have extended or restarted the log since the size or the state was read.
        current, current_size = self._read_log_state(), os.fstat(self._log_file).st_size
        if (current, current_size) == (state, size):
            raise LogOverwritten
        self._check_log(current, current_size)

    def save(self, loss: Loss) -> StorageError:
        """Save as much data as possible. Return the error with which the store stops."""
        match loss:
            case FileMoved():
                return self._save_moved()
            case LogLost(is_foreign=False):
                return self._save_log()
            case LogOverwritten():
                return self._set_broken_log_aside()
            case FileRestored():
                return self._leave_restored()
            case _:
                return self._set_log_aside(loss)

    def close(self) -> None:
        """Close the descriptors once SQLite has closed its own."""
        for close_file in self._closers:
            inherited.retire(close_file, self.identity)
        self._closers.clear()

    def _open(self, path: str, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        self._closers.append(partial(os.close, descriptor))
        return descriptor

    def _save_log(self) -> StorageError:
        inherited.mark_stale(self.identity)
        if self._checkpoint("FULL"):
            return StorageError(
                f"the write-ahead log {self._log} or its index was deleted or replaced while {self._path} was in use. "
                "All acknowledged changes were saved from the log to the file, which is now reopened. Never delete the "
                "-wal and -shm files of a database that is in use",
                status="UNAVAILABLE",
            )
        _, copy = self._copy_out()
        return FileLost(
            f"the write-ahead log {self._log} was deleted or replaced while {self._path} was in use, and a reader in "
            "another program prevented its content from being saved to the file. This process has stopped using the "
            f"file. {copy}",
            status="DATA_LOSS",
        )

    def _save_moved(self) -> StorageError:
        is_replaced = os.path.exists(self._path)
        if os.fstat(self._file).st_nlink == 0:
            outcome = self._save_unlinked(is_replaced=is_replaced)
        else:
            is_emptied = self._checkpoint("TRUNCATE")
            outcome = self._new_name_sentence()
            if not is_emptied and self._has_log():
                outcome += f" Its write-ahead log was moved to {self._move_log()}."
        if is_replaced:
            event = "was replaced by another file"
            advice = f"The new file was not changed. Put the correct file at {self._path}"
        else:
            event, advice = "was deleted or moved away", f"Put it back as {self._path}"
        return FileLost(
            f"the file {self._path} {event} while it was in use. This process has stopped using the file and does not "
            f"reopen it. {outcome} {advice}, and restart all workers. To restore a backup, stop the workers first",
            status="DATA_LOSS",
        )

    def _save_unlinked(self, *, is_replaced: bool) -> str:
        """Copy a database that no longer has a name.

        If there is a new file, the log is moved away from it first. Otherwise the log stays until the copy is complete:
        if this process is killed before that, the next process finds the log and does not create an empty file.
        """
        log = self._move_log() if is_replaced and self._has_log() else ""
        is_copied, outcome = self._copy_out()
        if not is_copied:
            return f"{outcome} Its write-ahead log was moved to {log}." if log else outcome
        if self._checkpoint("TRUNCATE") and log:
            with contextlib.suppress(OSError):
                os.unlink(log)
        return outcome

    def _has_log(self) -> bool:
        """Whether the log at the path is the one that was opened."""
        log = _status(self._log)
        return log is not None and Identity(log.st_dev, log.st_ino) == self._identities[1]

    def _set_broken_log_aside(self) -> StorageError:
        _, written_ns = self._stamp
        last_checkpoint = strftime("%Y-%m-%d %H:%M:%S", localtime(written_ns / 1e9))
        return FileLost(
            f"the write-ahead log {self._log} was truncated or overwritten while {self._path} was in use. Changes "
            f"acknowledged since {last_checkpoint} are lost. The rest of the log was moved to {self._move_log()}. This "
            "process has stopped using the file and does not reopen it. Restart all workers to continue from "
            f"{last_checkpoint}, or restore a backup first",
            status="DATA_LOSS",
        )

    def _leave_restored(self) -> StorageError:
        return FileLost(
            f"the content of {self._path} was replaced while the file was in use: another program restored a backup "
            "into it or deleted rows. Acknowledged changes are lost. This process has stopped using the file and does "
            "not reopen it. Restart all workers to continue from the current content. To restore a backup, stop the "
            "workers first",
            status="DATA_LOSS",
        )

    def _set_log_aside(self, loss: Loss) -> StorageError:
        if isinstance(loss, LogLost):
            event = "its write-ahead log was replaced, and another program has written to the new one"
            _, outcome = self._copy_out()
        else:
            event = (
                "another program has written to it (it restored a backup in place, truncated the file, or opened it "
                "under another name)"
            )
            outcome = (
                f"The write-ahead log with the latest changes was moved to {self._move_log()} and is not applied to the new "
                "content."
            )
        return FileLost(
            f"the file {self._path} was changed while it was in use: {event}. This process has stopped using the file "
            f"and does not reopen it. {outcome} Check the file, or restore a backup while no worker runs, and restart "
            "all workers",
            status="DATA_LOSS",
        )

    def _checkpoint(self, mode: str) -> bool:
        """Move the open log into the open database. Return whether all of it was moved."""
        try:
            ((busy, _, _),) = self._writer.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        except sqlite3.Error:
            return False
        return not busy

    def _copy_out(self) -> tuple[bool, str]:
        """Copy the open database to a new file. Return whether that succeeded, and a sentence for the error message."""
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):  # the folder was deleted with the file
            folder = tempfile.mkdtemp(prefix="hourglass-saved-")
        destination = self._free_name(folder)
        logger.error(
            "%s was deleted or replaced while it was in use: its content is being copied to %s",
            self._path,
            destination,
        )
        try:
            self._copy(self._writer, destination)
        except StorageError as error:
            return False, f"Its content could not be copied ({error})."
        return True, f"All acknowledged changes are in the copy {destination}."

    def _new_name_sentence(self) -> str:
        where = "exists under another name"
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{self._file}")
            where = (
                f"is {name}" if name != self._path else "is hidden by a mount at its path: unmount that first"
            )
        return f"The original file, with all acknowledged changes, {where}."

    def _move_log(self) -> str:
        destination = f"{self._free_name(os.path.dirname(self._path))}-wal"
        try:
            os.rename(self._log, destination)
        except OSError as error:
            return f"nowhere ({error.strerror}): move {self._log} away before you open the file"
        with contextlib.suppress(OSError):
            os.unlink(self._index)
        return destination

    def _free_name(self, folder: str) -> str:
        stem = os.path.join(folder, f"{os.path.basename(self._path)}.saved-{strftime('%Y%m%d-%H%M%S')}")
        names = (stem, *(f"{stem}-{number}" for number in range(1, 1000)))
        return next(
            name for name in names if not os.path.lexists(name) and not os.path.lexists(f"{name}-wal")
        )

    def _last_pages(self, last_frame: int) -> set[int]:
        """Return the numbers of the pages in the last few frames up to this one."""
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
        # Not mapped: reading a mapped file that was truncated would kill the process (SIGBUS).
        return LogState(*_INDEX.unpack(os.pread(self._index_file, _INDEX.size, 0)))


def _locate_epoch(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the page size and the number of the page that contains the epoch."""
    ((size,),) = connection.execute("PRAGMA page_size").fetchall()
    ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'meta'").fetchall()
    return size, root


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _stamp(file: os.stat_result) -> tuple[int, int]:
    return file.st_size, file.st_mtime_ns
