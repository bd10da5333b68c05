"""The Unix socket beside a database file: how it is made, reached and trusted; frames on it (four bytes of length and
that many bytes); and the descriptors that a forked child must not keep, because their end tells other processes
something.

Must not know: what is said over the socket, what the descriptors are for. A socket's name may have about a hundred
bytes, a path many more; then the socket is reached through a descriptor of its directory (Linux), or it stands under
a hashed name in a directory of the user's own.

Invariants: only the owner of the lock makes or removes the socket, so that what stands there while the lock is ours
is a dead owner's; what is no socket is neither removed nor followed; only its user may connect to it. A frame above
the limit ends the connection before it is read.
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

# --- descriptors that a forked child drops --------------------------------------------------------------------


# A child of `fork` shares the locks and sockets of its parent, and while it lives no other process notices the
# parent's death: the lock stays taken, peers see no end of their connections. So the child replaces each by the null
# device, at once. They are replaced and not closed because Python objects still know their numbers.
_held: dict[int, tuple[int, int]] = {}


def hold(descriptor: int) -> None:
    """From now on a forked child drops it."""
    found = os.fstat(descriptor)
    _held[descriptor] = (found.st_dev, found.st_ino)


def let_go(descriptor: int) -> None:
    """It is about to be closed. Safe to call twice."""
    _held.pop(descriptor, None)


def _after_fork() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, identity in _held.items():
        try:
            found = os.fstat(descriptor)
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == identity:  # its number may be another's by now
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _held.clear()


at_fork(ForkStage.OWNERSHIP, in_child=_after_fork)


# --- the socket -----------------------------------------------------------------------------------------------


_BACKLOG = 512
_LONGEST = 100  # bytes; 108 on Linux, 104 elsewhere, with room for the end
_NOBODY = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR, errno.ENOTSOCK, errno.ECONNRESET})


def socket_path(path: str) -> str:
    """Where the socket of a database file stands."""
    directory, name = os.path.split(path)
    beside = f"{name}-sock"
    if _fits(f"{path}-sock") or (_through_descriptors() and _fits(f"/proc/self/fd/0123456789/{beside}")):
        return os.path.join(directory, beside)
    if _through_descriptors():  # by the name alone: containers may see the directory under paths of their own
        return os.path.join(directory, _hashed(name))
    return os.path.join(tempfile.gettempdir(), f"hourglass-{os.geteuid()}", _hashed(path))


def _hashed(name: str) -> str:
    return f".{hashlib.sha256(os.fsencode(name)).hexdigest()[:24]}-sock"


def listen(path: str) -> socket.socket:
    """A socket that listens for others; one that a dead owner left is replaced. Raises `StorageError`."""
    place = socket_path(path)
    listening = _held_socket()
    try:
        listening.setblocking(False)
        _own_directory(path, place)
        _check_is_socket(place)
        remove(path)
        # On Linux the mode of the descriptor becomes that of the name: there is no moment of a wider one.
        with suppress(OSError):
            os.fchmod(listening.fileno(), stat.S_IRUSR | stat.S_IWUSR)
        with _short(place) as address:
            listening.bind(address)
            os.chmod(address, stat.S_IRUSR | stat.S_IWUSR)
        listening.listen(_BACKLOG)
    except OSError as error:
        close(listening)
        raise StorageError(
            f"{path} cannot be served: the socket {place} cannot be made ({error.strerror or error}); "
            "put the file on a local disk, in a directory that you may write to",
            status="UNIMPLEMENTED",
        ) from None
    return listening


def reach(path: str) -> socket.socket | None:
    """A connection to the owner; None if no process listens, or not at the moment. Raises `StorageError` for one that
    may not be used, or belongs to a user who is not trusted.
    """
    connecting = _held_socket()
    connecting.setblocking(False)
    try:
        _check_is_socket(socket_path(path))
        with _short(socket_path(path)) as address:
            connecting.connect(address)
    except BlockingIOError:  # its backlog is full: as if no process listened, for the moment
        close(connecting)
        return None
    except OSError as error:
        close(connecting)
        if error.errno in _NOBODY:
            return None
        raise StorageError(
            f"the process that owns {path} cannot be reached over {socket_path(path)}: {error.strerror or error}",
            status="PERMISSION_DENIED",
        ) from None
    if not is_trusted(connecting, trusted_owners(path)):
        close(connecting)
        raise StorageError(
            f"the socket of {path} belongs to another user: it is not used", status="PERMISSION_DENIED"
        )
    peer = _peer(connecting)
    if peer is not None and peer[0] and not is_running(peer[0]):
        close(connecting)  # a child that its dead owner forked has inherited it, and does not answer
        return None
    return connecting


def identity(path: str) -> tuple[int, int] | None:
    """Which socket stands there now; None if none does."""
    try:
        found = os.lstat(socket_path(path))
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None


def remove(path: str, only: tuple[int, int] | None = None) -> None:
    """Take the socket's name away; `only`: if it is this one. For the owner of the lock only."""
    found = identity(path)
    if found is None or (only is not None and found != only):
        return
    with suppress(FileNotFoundError), _short(socket_path(path)) as address:
        os.unlink(address)


def close(sock: socket.socket) -> None:
    """Close a socket that was made here and that no event loop has taken over."""
    with NO_FORK.lock:
        let_go(sock.fileno())
        sock.close()


def _held_socket() -> socket.socket:
    with NO_FORK.lock:  # no fork in between: a child that keeps it would hide our end from others
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        hold(made.fileno())
    return made


def let_go_of_socket(sock: socket.socket) -> None:
    """A socket that was made here is about to be closed by the event loop."""
    let_go(sock.fileno())


def is_trusted(sock: socket.socket, users: frozenset[int]) -> bool:
    """Whether the process at the other end runs as one of these users; where that cannot be asked, the socket's
    permissions must do.
    """
    peer = _peer(sock)
    return peer is None or peer[1] in users


def pid_namespace() -> int:
    """Return the PID namespace of this process (a container has its own), 0 where the system does not say."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def may_run(process_id: int, namespace: int) -> bool:
    """Whether a process of this PID namespace may be running. A process of another container cannot be looked at from here."""
    return namespace != pid_namespace() or is_running(process_id)


def is_running(process_id: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is another user's
    return True


def trusted_peers() -> frozenset[int]:
    """The users whose processes an owner serves: its own, and root, which nothing stops anyway."""
    return frozenset({os.geteuid(), 0})


def trusted_owners(path: str) -> frozenset[int]:
    """The users that may own a file's lock and socket: this one, root, and the owner of the file itself."""
    try:
        return trusted_peers() | {os.stat(path).st_uid}
    except OSError:
        return trusted_peers()


def _peer(sock: socket.socket) -> tuple[int, int] | None:
    """Return the process that made the other end, 0 if it is in another container, and its user. Return None if that cannot be
    asked.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process_id, user, _ = struct.unpack("3i", packed)
    return int(process_id), int(user)


@contextmanager
def _short(place: str) -> Iterator[str]:
    """An address for the socket that is short enough."""
    if _fits(place):
        yield place
        return
    directory, name = os.path.split(place)
    descriptor = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def _check_is_socket(place: str) -> None:
    """A link, or another file that is kept under this name, is not ours to follow or to remove."""
    try:
        found = os.lstat(place)
    except OSError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EEXIST, "what stands there is not a socket: move it away")


def _own_directory(path: str, place: str) -> None:
    """Where the socket does not stand beside the file, its directory must be ours alone."""
    directory = os.path.dirname(place)
    if directory == os.path.dirname(path):
        return
    os.makedirs(directory, mode=0o700, exist_ok=True)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EACCES, f"{directory} is not this user's own")


def _fits(place: str) -> bool:
    return len(os.fsencode(place)) <= _LONGEST


def _through_descriptors() -> bool:
    return sys.platform == "linux"


# --- frames ---------------------------------------------------------------------------------------------------


FRAME_LIMIT = 128 * 1024 * 1024
_HEAD = struct.Struct(">I")


class FrameStream(asyncio.Protocol):
    """One end of a connection. `on_frame` and `on_lost` are called on the loop; `on_lost` once, at the end.

    `fair`: a peer that does not read what is sent to it is not read from either, so that it cannot fill our memory
    with answers.
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
        """Whether anything can still be said."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._descriptor = transport.get_extra_info("socket").fileno()
        hold(self._descriptor)
        if self._on_made is not None:
            self._on_made()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended; its descriptor is closed after this."""
        let_go(self._descriptor)
        self._transport = None
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Hand on the frames that are complete."""
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
        """Whether the process at the other end runs as one of these users."""
        if self._transport is None:
            return False
        return is_trusted(self._transport.get_extra_info("socket"), users)

    def pause_writing(self) -> None:
        """The peer does not read: hear nothing more from it until it does."""
        if self._fair and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer reads again."""
        if self._fair and self._transport is not None:
            self._transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Send a frame; nothing if the connection has ended."""
        if self._transport is not None and self.is_open:
            self._transport.write(_HEAD.pack(len(data)) + data)

    def close(self) -> None:
        """Send what is queued and hang up."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.abort()
