"""Who owns a file: an `flock` on a second file beside it, never on the database itself.

Must not know: engines, sockets. The kernel drops the lock with the process, whatever kills it, so that there is
nothing to expire. The lock's file holds a note about the owner, for people and for error texts only; nothing is
decided by it but whether the owner is on another machine. Invariants: the lock's file is never deleted (who
opened it before would lock a file that nobody sees); it is opened by nobody who does not lock it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time

import msgspec

from hourglass._embedded.processes import descriptors
from hourglass._embedded.stores.disk_faults import is_full, no_room
from hourglass._embedded.stores.standstill import WORK
from hourglass.errors import StorageError

_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_NOTE_LIMIT = 4096


class Note(msgspec.Struct, frozen=True):
    """What an owner writes about itself."""

    pid: int = 0
    since_ns: int = 0
    host: str = ""


class FileLock:
    """The lock of one database file, for this process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock_path = f"{path}-lock"
        self.since_ns = 0
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this process has it."""
        return self._fd is not None

    def try_take(self) -> bool:
        """Take the lock if nobody has it; waits for nobody. Raises `StorageError` where there are no locks."""
        if self._fd is not None:
            return True
        descriptor = self._open()
        try:
            if not self._flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
                self._check_machine(descriptor)
                _close(descriptor)
                return False
            self.since_ns = time.time_ns()
            self._write_note(descriptor)
        except BaseException:
            _close(descriptor)
            raise
        self._fd = descriptor
        return True

    def drop(self) -> None:
        """Let go of the lock. Safe to call twice."""
        descriptor, self._fd = self._fd, None
        if descriptor is not None:
            _close(descriptor)

    def is_free(self) -> bool:
        """Whether nobody has it at this instant."""
        if self._fd is not None:
            return False
        descriptor = self._open()
        try:
            return self._flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            _close(descriptor)

    def note(self) -> Note:
        """What the last owner said about itself."""
        if self._fd is not None:
            return _read_note(self._fd)
        descriptor = self._open()
        try:
            return _read_note(descriptor)
        finally:
            _close(descriptor)

    def _open(self) -> int:
        try:
            with WORK:  # a fork between the two would leave a child with our lock, for as long as it lives
                descriptor = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                descriptors.hold(descriptor)
            return descriptor
        except OSError as error:
            gone = isinstance(error, FileNotFoundError)
            if is_full(error):
                raise no_room(self.path) from None
            raise StorageError(
                f"{self.path} cannot be used: its lock {self.lock_path} cannot be opened ({error.strerror})"
                + ("; its folder is gone: put it back" if gone else ""),
                status="FAILED_PRECONDITION" if gone else "PERMISSION_DENIED",
            ) from None

    def _flock(self, descriptor: int, how: int) -> bool:
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            raise StorageError(
                f"{self.path} cannot be used: its file system has no locks ({error.strerror}); "
                "put the file on a local disk",
                status="UNIMPLEMENTED",
            ) from None
        return True

    def _check_machine(self, descriptor: int) -> None:
        note = _read_note(descriptor)
        if note.host and note.host != socket.gethostname():
            raise StorageError(
                f"{self.path} is in use by process {note.pid} of another machine, {note.host}: "
                "a file serves one machine; more than one need a Temporal server",
                status="PERMISSION_DENIED",
            )

    def _write_note(self, descriptor: int) -> None:
        text = msgspec.json.encode(Note(os.getpid(), self.since_ns, socket.gethostname()))
        with contextlib.suppress(OSError):  # on a full disk there is no note: the lock is what counts
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, text, 0)


def _close(descriptor: int) -> None:
    with WORK:
        descriptors.let_go(descriptor)
        os.close(descriptor)


def _read_note(descriptor: int) -> Note:
    try:
        return msgspec.json.decode(os.pread(descriptor, _NOTE_LIMIT, 0), type=Note)
    except (msgspec.MsgspecError, ValueError, OSError):
        return Note()  # being written, or somebody else's: it is only a note
