"""The ownership of a file: a POSIX record lock on a second file beside it.

Must not know: engines, sockets. The kernel releases the lock when the process ends, whatever kills the process, so that
no lease has to expire. A record lock belongs to the process, not, like an `flock`, to the descriptor: a child that was
forked without Python's knowledge (by a library, in C) inherits the descriptor but not the lock. The price is that the
lock does not exclude another `FileLock` of the same process, and that closing any descriptor of the lock file releases
the lock. The locks of this process are therefore listed in `_held_here`, and a listed lock file is not opened a second
time.

The lock file contains a note about the owner and the processes that work for it. The note identifies the owner for
people and in error messages, shows other processes whether the owner is on another machine, and names for the next
owner the processes with attempts that may continue. Invariants: we never delete the lock file (a process that opened it
before would lock a file that no other process can open); if a person deletes it, its holder creates it again, or finds
out that another process has; only plain files of ours with a single name are written. Another name of the database has
another lock file; for this case the store locks the database itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import sys
import threading
from collections.abc import Iterable
from time import monotonic, time_ns

import msgspec

from hourglass._contract.engine_status import WorkerProcess
from hourglass._embedded.multiprocess import unix_socket
from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._embedded.store.store import disk_full, is_full, may_have_links, ownership_hint
from hourglass._forks import ForkStage, at_fork
from hourglass.errors import StorageError

_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_NOTE_LIMIT = 1 << 20
_TRIES = 10
_GRACE = 3.0
_LONGEST_GAP = 30.0
"""Seconds without a check of the lock after which a `_Contest` starts again. Between two checks a process may wait for
an owner that does not answer.
"""
_HAS_FLOCK = sys.platform == "linux"
"""Whether an `flock` is independent of record locks. On BSD the two kinds of lock exclude each other."""
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags for opening the lock file: following a link could truncate another file, and opening a pipe could block."""


class LockNote(msgspec.Struct, frozen=True):
    """The note in the lock file, in which the owner describes itself.

    `boot` identifies the running kernel: containers on one machine have different host names but share the kernel and
    its locks. `workers` are the processes that work on the file, and those that worked for an earlier owner and may
    still have attempts.
    """

    pid: int = 0
    since_ns: int = 0
    host: str = ""
    boot: str = ""
    pid_namespace: int = 0
    workers: tuple[WorkerProcess, ...] = ()


_guard = threading.RLock()
_held_here: dict[tuple[int, int], FileLock] = {}
"""The locks of this process, by device and inode of the lock file. Use only inside `_guard`."""


def _after_fork() -> None:
    global _guard
    _guard = threading.RLock()
    _held_here.clear()


at_fork(ForkStage.OWNERSHIP, in_child=_after_fork)


class _Contest:
    """The duration of a contest: the record lock is free while another process has the `flock`."""

    def __init__(self) -> None:
        self._began = self._seen = 0.0

    def lasts(self) -> bool:
        """Record that the contest exists now. Return whether each check in the last `_GRACE` seconds has found it."""
        now = monotonic()
        if now > self._seen + _LONGEST_GAP:
            self._began = now
        self._seen = now
        return now > self._began + _GRACE

    def end(self) -> None:
        self._began = self._seen = 0.0


class FileLock:
    """The lock of this process on one database file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock_path = f"{path}-lock"
        self.since_ns = 0
        self.workers: tuple[WorkerProcess, ...] = ()
        """The processes that worked on the file when the lock was acquired, or that were noted since."""
        self._fd: int | None = None
        self._missing_since = 0.0
        self._contested = _Contest()

    @property
    def held(self) -> bool:
        return self._fd is not None

    def try_take(self) -> bool:
        """Acquire the lock if no process has it, without waiting. Raises `StorageError` if the file system has no
        locks.
        """
        with _guard:
            if self._fd is not None:
                return True
            descriptor = self._lock()
            if descriptor is None:
                return False
            try:
                self.since_ns = time_ns()
                former = _read_note(descriptor)
                self.workers = former.workers if former.boot == boot_id() else ()
                self._write_note(descriptor)
            except BaseException:
                _close(descriptor)
                raise
            self._hold(descriptor)
            return True

    def note_workers(self, workers: Iterable[WorkerProcess]) -> None:
        """Record for the next owner which processes work on the file, without their work in progress."""
        noted = tuple(
            msgspec.structs.replace(worker, task_queues=(), tasks=0, attempts=0) for worker in workers
        )
        with _guard:
            if noted != self.workers and self._fd is not None:
                self.workers = noted
                self._write_note(self._fd)

    def _hold(self, descriptor: int) -> None:
        self._fd = descriptor
        _held_here[_identity(os.fstat(descriptor))] = self

    def _holder_here(self) -> FileLock | None:
        """Return the lock of this process on the lock file, if any."""
        try:
            return _held_here.get(_identity(os.lstat(self.lock_path)))
        except OSError:
            return None

    def still_held(self) -> bool:
        """Whether this process has the lock and no other process can acquire another lock in its place.

        A deleted lock file is created again, unless another process was faster.
        """
        with _guard:
            if self._fd is None:
                return False
            if _is_at(self._fd, self.lock_path):
                # Lock again: other code in this process may have opened and closed the lock file, and so released the
                # lock.
                return self._lock_record(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                descriptor = self._lock()
            except StorageError:
                return False
            if descriptor is None:
                return False
            try:
                self._write_note(descriptor)
            except BaseException:
                _close(descriptor)
                raise
            self.drop()
            self._hold(descriptor)
            return True

    def _lock(self) -> int | None:
        """Return a locked descriptor of the lock file; None if another process, or another `FileLock` here, has the
        lock.
        """
        for _ in range(_TRIES):
            holder = self._holder_here()
            if holder is not None and holder._fd is not None:
                self._check_machine(holder._fd)
                return None
            descriptor = self._open()
            try:
                if not self._lock_record(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    self._check_machine(descriptor)
                    _close(descriptor)
                    return None
                if not self._lock_descriptor(descriptor, fcntl.LOCK_EX):
                    _close(descriptor)
                    return None
            except BaseException:
                _close(descriptor)
                raise
            if _is_at(descriptor, self.lock_path):
                return descriptor
            _close(descriptor)  # the file was deleted meanwhile, and other processes would lock a new one
        return None

    def drop(self) -> None:
        """Release the lock. Safe to call twice."""
        with _guard:
            descriptor, self._fd = self._fd, None
            if descriptor is None:
                return
            identity = _identity(os.fstat(descriptor))
            if _held_here.get(identity) is self:
                del _held_here[identity]
            _close(descriptor)

    def is_abandoned(self, taken_ns: int = 0) -> bool:
        """Whether the owner that acquired the lock at `taken_ns` no longer has it, as seen by a peer: the lock is free,
        or has been acquired again since.

        If the lock file is missing, a living holder creates it again within `_GRACE` seconds.
        """
        if self._exists():
            self._missing_since = 0.0
            has_other = bool(taken_ns) and self.note().since_ns not in (0, taken_ns)
            return has_other or self.is_free()
        now = monotonic()
        self._missing_since = self._missing_since or now
        return now > self._missing_since + _GRACE

    def _exists(self) -> bool:
        return os.path.lexists(self.lock_path)

    def is_free(self) -> bool:
        """Whether no process has the lock at this moment."""
        with _guard:
            if self._fd is not None or self._holder_here() is not None:
                return False
            if not self._exists():
                return True
            descriptor = self._open()
            try:
                # A shared lock: two processes that check at the same time must not mistake each other for an owner.
                return self._lock_record(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB) and self._lock_descriptor(
                    descriptor, fcntl.LOCK_SH
                )
            finally:
                _close(descriptor)

    def note(self) -> LockNote:
        with _guard:
            holder = self if self._fd is not None else self._holder_here()
            if holder is not None and holder._fd is not None:
                return _read_note(holder._fd)
            if not self._exists():
                return LockNote()
            descriptor = self._open()
            try:
                return _read_note(descriptor)
            finally:
                _close(descriptor)

    def _open(self) -> int:
        try:
            # A fork between the two calls would leave our `flock` with the child, for as long as the child lives.
            with NO_FORK.lock:
                descriptor = os.open(self.lock_path, _OPEN, 0o600)
                unix_socket.track(descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise self._not_ours("a link, a directory or a device") from None
            is_missing = isinstance(error, FileNotFoundError)
            if is_full(error):
                raise disk_full(self.path) from None
            raise StorageError(
                f"{self.path} cannot be used: its lock file {self.lock_path} cannot be opened ({error.strerror})"
                + (
                    "; the directory of the file is missing: restore it"
                    if is_missing
                    else ownership_hint(self.lock_path, self.path, os.path.dirname(self.path))
                ),
                status="FAILED_PRECONDITION" if is_missing else "PERMISSION_DENIED",
            ) from None

        problem = _problem(descriptor, self.path)
        if problem:
            _close(descriptor)
            raise self._not_ours(problem)
        return descriptor

    def _not_ours(self, description: str) -> StorageError:
        return StorageError(
            f"{self.path} cannot be used: the path of its lock file, {self.lock_path}, is {description}. Nothing was "
            f"changed: move {self.lock_path} away",
            status="PERMISSION_DENIED",
        )

    def _lock_record(self, descriptor: int, how: int) -> bool:
        try:
            fcntl.lockf(descriptor, how)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            if error.errno not in _UNSUPPORTED:
                raise
            raise StorageError(
                f"{self.path} cannot be used: its file system does not support file locks ({error.strerror}). Put the "
                "file on a local disk",
                status="UNIMPLEMENTED",
            ) from None
        return True

    def _lock_descriptor(self, descriptor: int, how: int) -> bool:
        """Acquire the `flock`, too. Return whether the holder of the record lock owns the file.

        Returns False while another process has the `flock` and may still restore its record lock.
        """
        if not _HAS_FLOCK:
            return True
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return True  # the file system has no `flock`
            note = _read_note(descriptor)
            has_ended = note.boot == boot_id() and not unix_socket.may_run(note.pid, note.pid_namespace)
            return has_ended or self._contested.lasts()
        self._contested.end()
        return True

    def _check_machine(self, descriptor: int) -> None:
        note = _read_note(descriptor)
        if _is_elsewhere(note):
            raise StorageError(
                f"{self.path} is in use by process {note.pid} on another machine, {note.host}. A file can be used on "
                "only one machine at a time; use a Temporal server for several machines",
                status="PERMISSION_DENIED",
            )

    def _write_note(self, descriptor: int) -> None:
        note = LockNote(
            os.getpid(),
            self.since_ns,
            socket.gethostname(),
            boot_id(),
            unix_socket.pid_namespace(),
            self.workers,
        )
        with contextlib.suppress(OSError):  # on a full disk there is no note; the lock itself is not affected
            # Written in one call, and padded with spaces to cover a longer note, so that a killed process never leaves
            # an incomplete note.
            os.pwrite(descriptor, msgspec.json.encode(note).ljust(os.fstat(descriptor).st_size), 0)


def boot_id() -> str:
    """Return the kernel's boot id; "" if the system does not report it. On Linux it is available, also in containers."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _is_elsewhere(note: LockNote) -> bool:
    """Whether the owner is on another machine, so that it cannot be reached over the socket beside the file."""
    own_boot = boot_id()
    if note.boot and own_boot:
        return note.boot != own_boot
    return bool(note.host) and note.host != socket.gethostname()


def _problem(descriptor: int, path: str) -> str:
    """Return the reason why an open file is not a lock file of ours, and must not be written; "" if it is ours."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_nlink > 1 and not (may_have_links() and _is_lock(descriptor, status)):
        return "a file with several names (hard links)"
    if status.st_uid not in _may_own(path):
        return f"a file of another user (uid {status.st_uid})"
    return ""


def _is_lock(descriptor: int, status: os.stat_result) -> bool:
    """Whether a file has the content of a lock file. Any other file with several names may be one that matters."""
    return status.st_size == 0 or bool(_read_note(descriptor).pid)


def _may_own(path: str) -> frozenset[int]:
    """Return the accepted owners of a lock file: this user and root; for root also the owner of the database."""
    return unix_socket.trusted_owners(path) if os.geteuid() == 0 else unix_socket.trusted_peers()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_at(descriptor: int, path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return os.path.samestat(status, os.fstat(descriptor))


def _close(descriptor: int) -> None:
    with NO_FORK.lock:
        unix_socket.untrack(descriptor)
        if _HAS_FLOCK:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # even if a child has inherited the descriptor
        os.close(descriptor)


def _read_note(descriptor: int) -> LockNote:
    try:
        return msgspec.json.decode(os.pread(descriptor, _NOTE_LIMIT, 0), type=LockNote)
    except (msgspec.MsgspecError, ValueError, OSError):
        return LockNote()  # the note is being written, or is from another program; it is only informative
