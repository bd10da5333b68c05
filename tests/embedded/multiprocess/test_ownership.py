"""The lock beside a file: one holder, released at its end, and errors where no lock is possible."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from tests.waiting import until

from hourglass._embedded.multiprocess import ownership, unix_socket
from hourglass._embedded.multiprocess.ownership import FileLock
from hourglass._embedded.store.store import ALLOW_HARD_LINKS
from hourglass.errors import StorageError

from .children import Child


def failing(code: int) -> Callable[..., NoReturn]:
    """Return a function that fails like a system call."""

    def fail(*_: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return fail


def test_lock_has_one_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    lock_a, lock_b = FileLock(path), FileLock(path)
    assert lock_a.is_free()
    assert lock_a.try_take()
    assert lock_a.try_take(), "the holder can take it again"
    assert not lock_b.try_take()
    assert not lock_b.is_free()
    lock_a.drop()
    lock_a.drop()
    assert lock_b.is_free()
    assert lock_b.try_take()
    lock_b.drop()


def test_lock_file_names_its_holder(tmp_path: Path) -> None:
    """The lock file remains after the release, and is readable only by its user."""
    lock = FileLock(str(tmp_path / "a.db"))
    lock.try_take()
    note = FileLock(lock.path).note()
    assert (note.pid, note.since_ns) == (os.getpid(), lock.since_ns)
    lock.drop()
    assert os.stat(lock.lock_path).st_mode & 0o777 == 0o600


def test_malformed_lock_note_is_ignored(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    Path(f"{path}-lock").write_bytes(b"\xff{not json")
    lock = FileLock(path)
    assert lock.note().pid == 0
    assert lock.try_take()
    lock.drop()


@pytest.mark.parametrize("boot", ["77ad0000-0000-0000-0000-000000000000", ""])
def test_file_locked_by_another_machine_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot: str
) -> None:
    path = str(tmp_path / "a.db")
    with monkeypatch.context() as there:
        there.setattr("socket.gethostname", lambda: "elsewhere")
        there.setattr(ownership, "boot_id", lambda: boot)
        holder = FileLock(path)
        holder.try_take()
    with pytest.raises(StorageError, match=r"process .* on another machine, elsewhere"):
        FileLock(path).try_take()
    holder.drop()


def test_containers_on_one_machine_share_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared kernel counts, not the host name."""
    path = str(tmp_path / "a.db")
    with monkeypatch.context() as there:
        there.setattr("socket.gethostname", lambda: "container-1")
        holder = FileLock(path)
        holder.try_take()
    second_lock = FileLock(path)
    assert not second_lock.try_take()
    holder.drop()
    assert second_lock.try_take()
    second_lock.drop()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(fcntl, "lockf", failing(code))
    with pytest.raises(StorageError, match=r"does not support file locks.*Put the file on a local disk"):
        FileLock(str(tmp_path / "a.db")).try_take()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE])
def test_permission_error_names_the_owner_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """An error with another cause does not mention users."""
    path = tmp_path / "a.db"
    lock = FileLock(str(path))
    (tmp_path / "a.db-lock").touch()
    owner = pwd.getpwuid(os.geteuid()).pw_name

    monkeypatch.setattr(os, "open", failing(code))
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
    monkeypatch.setattr(os, "access", lambda *_, **__: code != errno.EACCES)
    with pytest.raises(StorageError) as caught:
        lock.try_take()
    owned = f"a.db-lock belongs to the user {owner}, and this process runs as 2147483641: run the process as {owner}, or change"
    assert (owned in str(caught.value)) == (code == errno.EACCES)
    assert os.strerror(code) in str(caught.value)
    assert ("belongs to" in str(caught.value)) == (code == errno.EACCES)


def test_lock_in_a_missing_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"none/a.db-lock cannot be opened"):
        FileLock(str(tmp_path / "none" / "a.db")).try_take()


@pytest.mark.parametrize("length", [10, 90, 150, 200])
@pytest.mark.parametrize("depth", [0, 3])
def test_sockets_of_long_paths_can_be_used(tmp_path: Path, length: int, depth: int) -> None:
    """The sockets are accessible only to their user, and are removed."""
    directory = tmp_path.joinpath(*["d" * 60] * depth)
    directory.mkdir(parents=True, exist_ok=True)
    path = str(directory / ("n" * length))
    assert unix_socket.reach(path) is None
    listening = unix_socket.listen(path)
    place = Path(unix_socket.socket_path(path))
    assert place.parent == directory
    assert place.stat().st_mode & 0o777 == 0o600
    reached = unix_socket.reach(path)
    assert reached is not None
    unix_socket.close(reached)
    unix_socket.close(listening)
    assert unix_socket.reach(path) is None, "the socket of a closed owner still answers"
    unix_socket.close(unix_socket.listen(path))
    unix_socket.remove(path)
    assert not place.exists()


def test_long_paths_have_separate_sockets(tmp_path: Path) -> None:
    names = ["n" * 200 + end for end in "ab"]
    assert len({unix_socket.socket_path(str(tmp_path / name)) for name in names}) == 2


def test_long_path_gets_a_hashed_socket_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Systems without `/proc` get a socket in a private directory of the user."""
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    path = str(tmp_path.joinpath(*["d" * 60] * 3) / "a.db")
    place = unix_socket.socket_path(path)
    assert place.startswith(f"/tmp/hourglass-{os.geteuid()}/.")
    assert len(place) <= 100


def test_file_system_without_sockets_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.bind", failing(errno.EOPNOTSUPP))
    with pytest.raises(StorageError, match=r"a.db-sock cannot be created .*Put the file on a local disk"):
        unix_socket.listen(str(tmp_path / "a.db"))


def test_peer_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    listening = unix_socket.listen(path)
    reached = unix_socket.reach(path)
    assert reached is not None
    assert unix_socket.is_trusted(reached, unix_socket.trusted_peers())
    assert not unix_socket.is_trusted(reached, frozenset({os.geteuid() + 1}))
    unix_socket.close(reached)
    unix_socket.close(listening)


def test_lock_file_with_hard_links_is_accepted_if_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup by hard links (`cp -al`) contains the lock file; other files are not mistaken for it."""
    path = str(tmp_path / "a.db")
    lock, second = FileLock(path), FileLock(str(tmp_path / "b.db"))
    assert lock.try_take()
    lock.drop()
    os.link(lock.lock_path, second.lock_path)
    with pytest.raises(StorageError, match="several names"):
        lock.try_take()
    monkeypatch.setenv(ALLOW_HARD_LINKS, "1")
    assert lock.try_take()
    assert not second.try_take()
    lock.drop()
    (tmp_path / "precious").write_text("precious")
    os.link(tmp_path / "precious", tmp_path / "c.db-lock")
    with pytest.raises(StorageError, match="several names"):
        FileLock(str(tmp_path / "c.db")).try_take()


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe", "two names"])
def test_lock_path_that_is_not_a_plain_file_is_rejected(tmp_path: Path, kind: str) -> None:
    """The other file must not be truncated."""
    path = str(tmp_path / "a.db")
    victim, place = tmp_path / "victim", Path(f"{path}-lock")
    victim.write_text("precious")
    match kind:
        case "link":
            place.symlink_to(victim)
        case "dangling":
            place.symlink_to(tmp_path / "none")
        case "folder":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
        case _:
            os.link(victim, place)
    lock = FileLock(path)
    for use in (lock.try_take, lock.is_free, lock.note):
        with pytest.raises(StorageError, match=r"the path of its lock file, .*a.db-lock, is"):
            use()
    assert not lock.held
    assert victim.read_text() == "precious"
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_lock_file_of_another_user_is_not_written(tmp_path: Path) -> None:
    """Root may use a lock file of the user who owns the database."""
    path = str(tmp_path / "a.db")
    Path(path).touch()
    Path(f"{path}-lock").write_text("precious")
    os.chown(f"{path}-lock", 12345, -1)
    lock = FileLock(path)
    with pytest.raises(StorageError, match="a file of another user"):
        lock.try_take()
    assert Path(f"{path}-lock").read_text() == "precious"
    os.chown(path, 12345, -1)
    assert lock.try_take()
    lock.drop()


def test_deleted_lock_file_is_recreated_by_its_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    lock_a, lock_b = FileLock(path), FileLock(path)
    assert lock_a.try_take()
    assert lock_a.still_held()
    os.unlink(lock_a.lock_path)
    assert lock_a.still_held()
    assert not lock_b.try_take()
    assert lock_b.note().pid == os.getpid()
    lock_a.drop()
    assert not lock_a.still_held()


def test_lock_is_lost_with_the_folder_of_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    lock = FileLock(str(folder / "a.db"))
    assert lock.try_take()
    shutil.rmtree(folder)
    assert not lock.still_held()
    lock.drop()


def test_interrupted_acquisition_leaves_the_lock_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception occurs between locking and writing the note."""

    def interrupts(_: int) -> None:
        raise KeyboardInterrupt

    path = str(tmp_path / "a.db")
    lock = FileLock(path)
    with monkeypatch.context() as patch:
        patch.setattr(lock, "_write_note", interrupts)
        with pytest.raises(KeyboardInterrupt):
            lock.try_take()
    assert not lock.held
    assert FileLock(path).is_free()
    assert lock.try_take()
    with monkeypatch.context() as patch:
        patch.setattr(lock, "_write_note", interrupts)
        os.unlink(lock.lock_path)
        with pytest.raises(KeyboardInterrupt):
            lock.still_held()
    lock.drop()
    assert FileLock(path).try_take()


def test_lost_record_lock_is_taken_over_after_a_grace_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other code of the owner's process may have released the record lock by mistake."""
    path = str(tmp_path / "a.db")
    lock = FileLock(path)
    assert lock.try_take()  # writes the note of a living process
    lock.drop()
    now = 100.0
    monkeypatch.setattr(ownership, "monotonic", lambda: now)
    holder = os.open(lock.lock_path, os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    for seconds in (0.0, 1.0, 1.0):
        now += seconds
        assert not lock.try_take()
    now += ownership._GRACE
    assert lock.try_take()
    lock.drop()
    os.close(holder)


def test_other_lock_errors_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FileLock(str(tmp_path / "a.db"))
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", failing(errno.EIO))
        with pytest.raises(OSError, match="Input/output error"):
            lock.try_take()
    assert not lock.held
    assert lock.try_take()
    lock.drop()


def test_lock_taken_by_another_process_is_lost(tmp_path: Path) -> None:
    """The lock file was deleted."""
    path = str(tmp_path / "a.db")
    lock_a, lock_b = FileLock(path), FileLock(path)
    assert lock_a.try_take()
    os.unlink(lock_a.lock_path)
    assert lock_b.try_take()
    assert not lock_a.still_held()
    assert lock_b.still_held()
    lock_a.drop()
    lock_b.drop()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_socket_path_that_is_not_a_socket_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "a.db")
    place, victim = Path(unix_socket.socket_path(path)), tmp_path / "victim"
    victim.write_text("precious")
    if kind == "file":
        place.write_text("precious")
    else:
        place.symlink_to(victim)
    with pytest.raises(StorageError, match="not a socket"):
        unix_socket.listen(path)
    with pytest.raises(StorageError, match="not a socket"):
        unix_socket.reach(path)
    unix_socket.remove(path)
    assert place.read_text() == "precious"


def test_copying_the_lock_file_in_the_holders_process_keeps_the_lock(tmp_path: Path) -> None:
    """Closing any descriptor of a file releases the record locks of the process."""
    path = tmp_path / "shared.db"
    second = FileLock(str(path))
    with Child("lock", path) as holder:
        assert holder.line() == "held"
        assert holder.ask("copy") == "copied"
        assert not second.is_free()
        assert not second.is_abandoned()
        assert not second.try_take()
        assert holder.ask("confirm") == "True"
        assert not second.try_take()
        assert holder.ask("copy") == "copied"
        holder.kill()
        assert second.try_take()
        second.drop()


def test_zombie_process_counts_as_ended() -> None:
    process = subprocess.Popen(["true"])
    until(lambda: not unix_socket.is_running(process.pid), "it counts as running", 20)
    assert process.wait() == 0
    assert unix_socket.is_running(os.getpid())
