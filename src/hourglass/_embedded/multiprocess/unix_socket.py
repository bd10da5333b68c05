"""The Unix socket beside a database file: creation, connections and trust; frames (four bytes of length, and the data);
and the tracking of descriptors that a forked child must not keep, because other processes notice when they are closed.

Must not know: the messages, the purpose of the descriptors. A socket's name is limited to about a hundred bytes, but a
path may be much longer. The socket is then reached through a descriptor of its directory (Linux), or it has a hashed
name in a private directory of the user.

Invariants: only the owner of the lock creates or removes the socket, so that a socket that the owner finds belongs to a
dead owner; a file that is not a socket is neither removed nor followed; only its user may connect to it. A frame above
the limit ends the connection before the frame is read.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import cast

from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._forks import ForkStage, at_fork
from hourglass.errors import StorageError

# A forked child shares the locks and sockets of its parent, and while the child lives, no other process notices the
# parent's death: the lock is not released, and peers see no end of their connections. The child therefore replaces each
# descriptor by the null device immediately. Closing the descriptors instead would be unsafe, because Python objects
# still refer to their numbers.
_tracked: dict[int, tuple[int, int]] = {}


def track(descriptor: int) -> None:
    """Make forked children drop this descriptor."""
    status = os.fstat(descriptor)
    _tracked[descriptor] = (status.st_dev, status.st_ino)


def untrack(descriptor: int) -> None:
    """Stop tracking a descriptor that is about to be closed. Safe to call twice."""
    _tracked.pop(descriptor, None)


def _after_fork() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, identity in _tracked.items():
        try:
            status = os.fstat(descriptor)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) == identity:  # otherwise the number was reused
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _tracked.clear()


at_fork(ForkStage.OWNERSHIP, in_child=_after_fork)


_BACKLOG = 512
_MAX_ADDRESS = 100  # bytes; the system's limit is 108 on Linux and 104 elsewhere, including the terminator
_NOT_LISTENING = frozenset(
    {errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR, errno.ENOTSOCK, errno.ECONNRESET}
)


def socket_path(path: str) -> str:
    directory, name = os.path.split(path)
    socket_name = f"{name}-sock"
    if _fits(f"{path}-sock") or (_through_descriptors() and _fits(f"/proc/self/fd/0123456789/{socket_name}")):
        return os.path.join(directory, socket_name)
    if _through_descriptors():  # hash only the name: containers may see the directory under different paths
        return os.path.join(directory, _hashed(name))
    return os.path.join(tempfile.gettempdir(), f"hourglass-{os.geteuid()}", _hashed(path))


def _hashed(name: str) -> str:
    return f".{hashlib.sha256(os.fsencode(name)).hexdigest()[:24]}-sock"


def listen(path: str) -> socket.socket:
    """Create a listening socket, replacing the socket of a dead owner. Raises `StorageError`."""
    address_path = socket_path(path)
    sock = _tracked_socket()
    try:
        sock.setblocking(False)
        _own_directory(path, address_path)
        _check_is_socket(address_path)
        remove(path)
        # On Linux the socket's file gets the mode of the descriptor, and so is never accessible to other users.
        with suppress(OSError):
            os.fchmod(sock.fileno(), stat.S_IRUSR | stat.S_IWUSR)
        with _short(address_path) as address:
            sock.bind(address)
            os.chmod(address, stat.S_IRUSR | stat.S_IWUSR)
        sock.listen(_BACKLOG)
    except OSError as error:
        close(sock)
        raise StorageError(
            f"{path} cannot be used: its socket {address_path} cannot be created ({error.strerror or error}). Put the "
            "file on a local disk, in a directory that this user may write to",
            status="UNIMPLEMENTED",
        ) from None
    return sock


def reach(path: str) -> socket.socket | None:
    """Connect to the owner; None if no process accepts connections at the moment.

    Raises `StorageError` if the socket may not be used, or belongs to an untrusted user.
    """
    sock = _tracked_socket()
    sock.setblocking(False)
    try:
        _check_is_socket(socket_path(path))
        with _short(socket_path(path)) as address:
            sock.connect(address)
    except BlockingIOError:  # the backlog is full: treated as if no process listened
        close(sock)
        return None
    except OSError as error:
        close(sock)
        if error.errno in _NOT_LISTENING:
            return None
        raise StorageError(
            f"the owner of {path} cannot be reached over its socket {socket_path(path)}: {error.strerror or error}",
            status="PERMISSION_DENIED",
        ) from None
    if not is_trusted(sock, trusted_owners(path)):
        close(sock)
        raise StorageError(
            f"the socket of {path} belongs to another user and is not trusted", status="PERMISSION_DENIED"
        )
    peer = _peer(sock)
    if peer is not None and peer[0] and not is_running(peer[0]):
        close(sock)  # inherited by a forked child of the dead owner, which does not answer
        return None
    return sock


def identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode of the socket at its path; None if there is no socket."""
    try:
        status = os.lstat(socket_path(path))
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None


def remove(path: str, only: tuple[int, int] | None = None) -> None:
    """Remove the socket's file; with `only`, only if the socket has this identity. Only the owner of the lock may call
    this.
    """
    current = identity(path)
    if current is None or (only is not None and current != only):
        return
    with suppress(FileNotFoundError), _short(socket_path(path)) as address:
        os.unlink(address)


def close(sock: socket.socket) -> None:
    """Close a socket that was created by this module and has no event loop yet."""
    with NO_FORK.lock:
        untrack(sock.fileno())
        sock.close()


def _tracked_socket() -> socket.socket:
    with NO_FORK.lock:  # no fork in between: peers would not notice our end while a child keeps the socket
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        track(sock.fileno())
    return sock


def is_trusted(sock: socket.socket, users: frozenset[int]) -> bool:
    """Whether the process at the other end runs as one of these users.

    If the system does not report the user, the permissions of the socket must be sufficient.
    """
    peer = _peer(sock)
    return peer is None or peer[1] in users


def pid_namespace() -> int:
    """Return the PID namespace of this process (each container has its own); 0 if the system does not report
    namespaces.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def may_run(process_id: int, namespace: int) -> bool:
    """Whether a process of this PID namespace may be running. A process of another container is not visible from here,
    and counts as running.
    """
    return namespace != pid_namespace() or is_running(process_id)


def is_running(process_id: int) -> bool:
    """Whether a process with this id exists and has not ended. A zombie process counts as ended."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # the process belongs to another user
    try:
        with open(f"/proc/{process_id}/stat", "rb") as file:
            return not file.read().rpartition(b")")[2].lstrip().startswith((b"Z", b"X"))
    except OSError:
        return True  # not every system has `/proc`


def trusted_peers() -> frozenset[int]:
    """Return the users that an owner serves: its own user, and root, which cannot be excluded anyway."""
    return frozenset({os.geteuid(), 0})


def trusted_owners(path: str) -> frozenset[int]:
    """Return the users that may own a file's lock and socket: this user, root, and the owner of the file."""
    try:
        return trusted_peers() | {os.stat(path).st_uid}
    except OSError:
        return trusted_peers()


def _peer(sock: socket.socket) -> tuple[int, int] | None:
    """Return the id of the process at the other end (0 if it is in another container) and its user id; None if they are
    not reported.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process_id, user, _ = struct.unpack("3i", packed)
    return int(process_id), int(user)


@contextmanager
def _short(address_path: str) -> Iterator[str]:
    """Yield an address for the socket within the length limit."""
    if _fits(address_path):
        yield address_path
        return
    directory, name = os.path.split(address_path)
    descriptor = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def _check_is_socket(address_path: str) -> None:
    """Raise OSError if the path leads to a link or another file, because we must neither follow nor remove these."""
    try:
        status = os.lstat(address_path)
    except OSError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise OSError(errno.EEXIST, "a file that is not a socket is in its place: move that file away")


def _own_directory(path: str, address_path: str) -> None:
    """Raise PermissionError if the socket is not beside the file and its directory is not private to this user."""
    directory = os.path.dirname(address_path)
    if directory == os.path.dirname(path):
        return
    os.makedirs(directory, mode=0o700, exist_ok=True)
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(
            errno.EACCES, f"the directory {directory} belongs to another user, or other users may write to it"
        )


def _fits(address_path: str) -> bool:
    return len(os.fsencode(address_path)) <= _MAX_ADDRESS


def _through_descriptors() -> bool:
    return sys.platform == "linux"


FRAME_LIMIT = 128 * 1024 * 1024
_HEAD = struct.Struct(">I")


class FrameStream(asyncio.Protocol):
    """One end of a connection. `on_frame` and `on_lost` are called on the loop; `on_lost` once, at the end.

    `fair`: stop reading from a peer that does not read its answers, so that the unsent answers cannot fill our memory.
    """

    def __init__(
        self,
        on_frame: Callable[[bytes], object],
        on_lost: Callable[[], object],
        *,
        on_made: Callable[[], object] | None = None,
        fair: bool = False,
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_made = on_made
        self._fair = fair
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not a subclass
        self._descriptor = transport.get_extra_info("socket").fileno()
        track(self._descriptor)
        if self._on_made is not None:
            self._on_made()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the transport. Its descriptor is closed after this call."""
        untrack(self._descriptor)
        self._transport = None
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Deliver the complete frames received so far."""
        buffer = self._buffer
        buffer += data
        start = 0
        while self.is_open and len(buffer) >= start + _HEAD.size:
            (length,) = _HEAD.unpack_from(buffer, start)
            if length > FRAME_LIMIT:
                self.abort()
                return
            end = start + _HEAD.size + length
            if len(buffer) < end:
                break
            frame = bytes(buffer[start + _HEAD.size : end])
            start = end
            self._on_frame(frame)
        del buffer[:start]

    def is_trusted(self, users: frozenset[int]) -> bool:
        if self._transport is None:
            return False
        return is_trusted(self._transport.get_extra_info("socket"), users)

    def pause_writing(self) -> None:
        """Stop reading until the peer reads again."""
        if self._fair and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue reading."""
        if self._fair and self._transport is not None:
            self._transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Send a frame. Do nothing if the connection has ended."""
        if self._transport is not None and self.is_open:
            self._transport.write(_HEAD.pack(len(data)) + data)

    def close(self) -> None:
        """Send queued data and close the connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately, without sending queued data."""
        if self._transport is not None:
            self._transport.abort()
