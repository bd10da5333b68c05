"""Where processes meet: the Unix socket beside a database file, how it is made, reached, and who is at its other end.

Must not know: what is said over it. A socket's name may have about a hundred bytes, a path many more; then the
socket is reached through a descriptor of its directory (Linux), or it stands under a hashed name in a directory
of the user's own. Invariants: only the owner of the lock makes or removes the socket, so that what stands there
while the lock is ours is a dead owner's; what is no socket is neither removed nor followed; only its user may connect
to it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hourglass._embedded.processes import descriptors
from hourglass._embedded.store.fork_safety import WORK
from hourglass.errors import StorageError

_BACKLOG = 512
_LONGEST = 100  # bytes; 108 on Linux, 104 elsewhere, with room for the end
_NOBODY = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR, errno.ENOTSOCK, errno.ECONNRESET})


def socket_path(path: str) -> str:
    """Where the socket of a database file stands."""
    directory, name = os.path.split(path)
    beside = f"{name}-sock"
    if _fits(f"{path}-sock") or (_through_descriptors() and _fits(f"/proc/self/fd/0123456789/{beside}")):
        return os.path.join(directory, beside)
    hashed = f".{hashlib.sha256(os.fsencode(path)).hexdigest()[:24]}-sock"
    if _through_descriptors():
        return os.path.join(directory, hashed)
    return os.path.join(tempfile.gettempdir(), f"hourglass-{os.geteuid()}", hashed)


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
    """A connection to whoever listens; None if nobody does, or somebody who is not to be trusted does."""
    connecting = _held_socket()
    connecting.setblocking(False)
    try:
        _check_is_socket(socket_path(path))
        with _short(socket_path(path)) as address:
            connecting.connect(address)
    except BlockingIOError:  # its line is full: as good as nobody, for the moment
        close(connecting)
        return None
    except OSError as error:
        close(connecting)
        if error.errno in _NOBODY:
            return None
        raise StorageError(
            f"whoever owns {path} cannot be reached over {socket_path(path)}: {error.strerror or error}",
            status="PERMISSION_DENIED",
        ) from None
    if not is_trusted(connecting, trusted_owners(path)):
        close(connecting)
        raise StorageError(
            f"the socket of {path} belongs to another user: it is not used", status="PERMISSION_DENIED"
        )
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
    """Close a socket that was made here and that nobody else closes."""
    with WORK:
        descriptors.let_go(sock.fileno())
        sock.close()


def _held_socket() -> socket.socket:
    with WORK:  # no fork in between: a child that keeps it would hide our end from others
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        descriptors.hold(made.fileno())
    return made


def let_go(sock: socket.socket) -> None:
    """A socket that was made here is about to be closed by somebody else."""
    descriptors.let_go(sock.fileno())


def is_trusted(sock: socket.socket, users: frozenset[int]) -> bool:
    """Whether the process at the other end runs as one of these users; where that cannot be asked, the socket's
    permissions must do.
    """
    peer = _peer_user(sock)
    return peer is None or peer in users


def trusted_peers() -> frozenset[int]:
    """Whom an owner serves: its own user, and root, whom nothing stops anyway."""
    return frozenset({os.geteuid(), 0})


def trusted_owners(path: str) -> frozenset[int]:
    """Who may own a file's lock and socket: this user, root, and the owner of the file itself."""
    try:
        return trusted_peers() | {os.stat(path).st_uid}
    except OSError:
        return trusted_peers()


def _peer_user(sock: socket.socket) -> int | None:
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", packed)
    return int(user)


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
