"""Which runs' code was executing when a process died, so that the next one does not die of the same run, and so for ever.

Each worker process has a file of its own, with the notes of its lanes in memory that is mapped from it (see `lane_notes`). It is
locked while the process lives, and removed when it ends in order. A file that is there and not locked is what a dead process
left: the runs that were in work in it are suspects, one death more each. The files are in the system's shared memory where
there is such a place: only deaths of processes matter here, not those of machines, and a lane must not wait for a disk, nor die
because one is full.

Deaths are counted in `deaths.json`, until the run goes on or its code has changed: in a folder beside the target's file,
`orders.db-worker`, that of a server in the user's state directory. Without folders that are ours alone, or without locks,
nothing is noted.

Thread-safe. Must not know: lanes, what a death means (see `parked.Quarantine`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import mmap
import os
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time as wall_time
from typing import Any

from hourglass._forks import ForkStage, at_fork
from hourglass._worker.health.hung import RunHung
from hourglass._worker.health.lane_notes import SIZE, LaneNotes, Noted, read_notes
from hourglass._worker.targets import Target, resolve
from hourglass.errors import TargetError

logger = logging.getLogger("hourglass.worker")

STATE_VARIABLE = "HOURGLASS_STATE_DIR"
DEATHS = 2
"""So many at the same run are its own."""
LOCAL_DEATHS = 3
"""At a local activity one more: those are not made one at a time, and may take long."""
SHARED_MEMORY = Path("/dev/shm")
_TRIALS = 5
_COUNTED = "deaths.json"
_NOTES = ".notes"
_MOST_FILES = 1000
_REMEMBERED = 1000
_LONGEST = 1 << 20
_FORGOTTEN_AFTER = 30 * 86400.0


class Deaths:
    """The notes of this process for one target, and what is known of those that died. `close` when nothing is served there
    any more.
    """

    def __init__(self, folder: Path, notes: LaneNotes | None = None) -> None:
        """Raises `OSError` where the folder cannot be used."""
        self.folder = folder
        self.users = 0
        self.notes = notes if notes is not None else LaneNotes()
        self.fresh: list[RunHung] = []
        """The suspects of processes that have died since a worker last opened this folder."""
        for trial in range(_TRIALS):
            self.place = _place_of(folder)
            try:
                self._path, self._descriptor = self._begin()
                break
            except FileNotFoundError:  # the last process that ended has removed the folder
                if trial == _TRIALS - 1:
                    raise
        self._memory: mmap.mmap | None = self.notes.add(self._descriptor)

    def _begin(self) -> tuple[Path, int]:
        with _locked(self.place):
            path, descriptor, left = _claim(self.place)
            self._known = _read(self.folder)
            for each in left:
                self.fresh.append(_counted(self._known, each))
            if self.fresh:
                try:
                    _own(self.folder)
                    _write(self.folder, self._known)
                except OSError as error:
                    logger.warning("%s cannot be written: %s", self.folder / _COUNTED, error)
        return path, descriptor

    def suspects(self) -> list[RunHung]:
        """The runs at which processes died, as a quarantine wants to know them."""
        return _told(self._known)

    def forget(self, run_id: str) -> None:
        """A run went on."""
        if self._known.pop(run_id, None) is None:
            return
        try:
            with _locked(self.place):
                known = _read(self.folder)
                if known.pop(run_id, None) is not None:
                    _write(self.folder, known)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self.folder / _COUNTED, error)

    def close(self) -> None:
        """The work is done, nothing is executed any more. Leaves nothing behind but what is known of deaths."""
        memory, self._memory = self._memory, None
        if memory is None:
            return
        self.notes.remove(memory)
        with suppress(OSError):
            self._path.unlink()
        with suppress(OSError):
            os.close(self._descriptor)
        for emptied in {self.place, self.folder}:
            with suppress(OSError):
                emptied.rmdir()


def open_deaths(target: Target, notes: LaneNotes | None) -> Deaths | None:
    """The deaths of a target, shared by all that serve it in this process: `close_deaths` as often. None where they cannot be
    noted. `notes` are those that the lanes of this process take anyway.
    """
    folder = folder_of(target) if os.name == "posix" else None
    if folder is None:
        return None
    with _lock:
        found = _open.get(folder)
        if found is None:
            try:
                found = Deaths(folder, notes)
            except OSError as error:
                logger.info("which runs are executed when this process dies is not noted: %s", error)
                return None
            _open[folder] = found
            _say(found.fresh)
        found.users += 1
        return found


def close_deaths(deaths: Deaths) -> None:
    """One that shared it is done."""
    with _lock:
        deaths.users -= 1
        if not deaths.users:
            _open.pop(deaths.folder, None)
            deaths.close()


def _say(fresh: list[RunHung]) -> None:
    for each in fresh:
        logger.error(
            "a process died while %s of workflow %s (run %s) was executing, %s",
            f"local activity {each.activity}" if each.activity else "the code",
            each.workflow_type,
            each.run_id,
            "for the first time: it is tried once more"
            if each.times == 1
            else f"{each.times} times now: it is tried once more"
            if each.times < (LOCAL_DEATHS if each.activity else DEATHS)
            else f"{each.times} times now: it is not executed again before its file changes or a while has passed",
        )


def folder_of(target: Target, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where the notes of a target's processes are; None for an engine that dies with its process."""
    if target.kind == "memory":
        return None
    if target.kind == "file":
        return Path(os.path.realpath(target.path) + "-worker")
    name = hashlib.sha256(f"{target.address}\n{target.namespace}".encode()).hexdigest()[:16]
    return _state(environ) / name


def known_deaths(target: str, namespace: str) -> list[RunHung]:
    """The deaths of a target, for a command or a client on this machine that serves nothing there."""
    try:
        where = resolve(target, namespace=namespace)
    except TargetError:
        return []
    folder = folder_of(where) if os.name == "posix" else None
    return told(folder) if folder is not None else []


def told(folder: Path) -> list[RunHung]:
    """What is known of deaths in a folder; nothing where it cannot be read."""
    return _told(_read(folder))


def _told(known: dict[str, dict[str, Any]]) -> list[RunHung]:
    now = wall_time()
    found = []
    for run_id, each in list(known.items()):
        age = max(0.0, now - each["at"])
        if age < _FORGOTTEN_AFTER:
            times = each["times"]
            found.append(
                RunHung(
                    run_id,
                    each["type"],
                    "",
                    "",
                    costly=times >= DEATHS and not each["activity"],
                    times=times,
                    age=age,
                    died=True,
                    code=each["code"],
                    activity=each["activity"],
                )
            )
    return found


_lock = threading.RLock()
_open: dict[Path, Deaths] = {}


def _after_fork() -> None:
    # A child that keeps the lock would hide our death for as long as it lives.
    global _lock
    _lock = threading.RLock()
    for each in _open.values():
        with suppress(OSError):
            os.close(each._descriptor)
    _open.clear()


at_fork(ForkStage.DEATHS, in_child=_after_fork)


def _state(environ: Mapping[str, str]) -> Path:
    chosen = environ.get(STATE_VARIABLE)
    if chosen:
        return Path(chosen)
    try:
        base = Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:  # no home
        base = None
    if base is not None and base.is_absolute() and _can_make(base):
        return base / "hourglass"
    return Path(tempfile.gettempdir()) / f"hourglass-{os.geteuid()}"


def _can_make(folder: Path) -> bool:
    there = next((each for each in (folder, *folder.parents) if each.exists()), None)
    return there is not None and os.access(there, os.W_OK | os.X_OK)


def _place_of(folder: Path) -> Path:
    """Where the notes of a target's processes are: in shared memory, else with what is counted."""
    if os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        ours = SHARED_MEMORY / f"hourglass-{os.geteuid()}"
        place = ours / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        try:
            _own(ours)
            _own(place)
            return place
        except OSError as error:
            logger.info("%s cannot be used: %s", place, error)
    _own(folder)
    return folder


def _own(folder: Path) -> None:
    """Make a folder that is this user's alone, or refuse it: what is in it decides what is executed."""
    if not folder.parent.exists():
        os.makedirs(folder.parent, mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(errno.EACCES, f"{folder} is not this user's own")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    import fcntl

    with _lock:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _claim(folder: Path) -> tuple[Path, int, list[Noted]]:
    """A file for this process, locked, and what the dead have left in theirs."""
    mine: tuple[Path, int] | None = None
    left: list[Noted] = []
    for number in range(_MOST_FILES):
        path = folder / f"{number}{_NOTES}"
        exists = path.exists()
        if mine is not None and not exists:
            continue
        descriptor = _try_lock(path)
        if descriptor is None:
            continue
        left += read_notes(os.pread(descriptor, SIZE, 0)) if exists else []
        os.ftruncate(descriptor, 0)
        if mine is None:
            mine = path, _filled(path, descriptor)
        else:
            path.unlink()
            os.close(descriptor)
    if mine is None:
        raise OSError(errno.EMFILE, f"too many processes use {folder}")
    return *mine, left


def _filled(path: Path, descriptor: int) -> int:
    """Take the room for all notes now: where none is left, memory that is written to later would end the process."""
    try:
        if os.pwrite(descriptor, bytes(SIZE), 0) < SIZE:
            raise OSError(errno.ENOSPC, f"no room for {path}")
    except OSError:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)
        raise
    return descriptor


def _try_lock(path: Path) -> int | None:
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None  # its process lives
        raise
    return descriptor


def _counted(known: dict[str, dict[str, Any]], noted: Noted) -> RunHung:
    before = known.get(noted.run_id)
    again = before is not None and before["activity"] == noted.activity
    if before is not None and noted.code and before["code"] not in ("", noted.code):
        again = False
    times = before["times"] + 1 if before is not None and again else 1
    code = noted.code or (before["code"] if before is not None else "")
    known.pop(noted.run_id, None)
    known[noted.run_id] = {
        "type": noted.workflow_type,
        "times": times,
        "at": wall_time(),
        "code": code,
        "activity": noted.activity,
    }
    return RunHung(
        noted.run_id,
        noted.workflow_type,
        "",
        "",
        times=times,
        died=True,
        code=code,
        activity=noted.activity,
    )


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    """By run; what is not understood is left out."""
    try:
        descriptor = os.open(folder / _COUNTED, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            document = json.loads(file.read(_LONGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    kinds: dict[str, Any] = {"type": str, "times": int, "at": (int, float), "code": str, "activity": str}
    return {
        run_id: each
        for run_id, each in document.items()
        if isinstance(each, dict) and all(isinstance(each.get(name), kind) for name, kind in kinds.items())
    }


def _write(folder: Path, known: dict[str, dict[str, Any]]) -> None:
    path = folder / _COUNTED
    if not known:
        path.unlink(missing_ok=True)
        return
    latest = dict(sorted(known.items(), key=lambda each: each[1]["at"])[-_REMEMBERED:])
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(latest, file)
    os.replace(fresh, path)
