"""Runs that hung or killed worker processes of a target, remembered across processes.

Each worker process has a file with the notes of its lanes (`lane_notes`). The file is locked while the process is
running, and removed when the process ends normally. A file without a lock was left behind by a dead process. The next
process that opens the record takes over the file: the runs that were executing are suspects, with one more death each.
If the parent killed the process because it hung, only the run that held the interpreter is blamed (`blame`). The files
are in shared memory if the system has it: they must survive a process but not the machine, and a lane must not wait for
a disk.

The incidents of a run are counted in `incidents.json`, until the run makes progress or its code changes. That file is
in a folder beside the target's file (`orders.db-worker`), or in the user's state directory if the target is a server.
Nothing is recorded if the folders belong to another user or files cannot be locked.

Thread-safe. Must not know: lanes, the consequences of an incident (see `quarantine.Quarantine`).
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import logging
import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time as wall_time

import msgspec

from hourglass._forks import ForkStage, at_fork
from hourglass._worker.health.lane_notes import SIZE, LaneNotes, NotedRun, read_notes
from hourglass._worker.health.stacks import HungStack
from hourglass._worker.targets import Target, resolve
from hourglass.errors import TargetError

logger = logging.getLogger("hourglass.worker")

STATE_VARIABLE = "HOURGLASS_STATE_DIR"
DEATHS = 2
"""The number of deaths during the same run after which the run counts as the culprit."""
LOCAL_DEATHS = 3
"""The number of deaths during the same local activity after which the activity counts as the culprit. More deaths are
needed than for a run, because several local activities execute at a time, and for longer.
"""
SHARED_MEMORY = Path("/dev/shm")
_RECORD = "incidents.json"
_MOST_RUNS = 1000
_LONGEST = 1 << 20
_LONGEST_STACK = 16_000
_FORGOTTEN_AFTER = 30 * 86400.0
_STACK_FILE = re.compile(r'^  File "(.+)", line \d+', re.MULTILINE)


class Incident(msgspec.Struct, frozen=True):
    """A run whose code hung, or was executing when its process died. `times` is the number of incidents in the same
    code, `at` is the wall-clock time of the last one.

    A hang has a `stack`, its innermost `place` and the digests of the `files` on the stack; a death has none of them.
    `code` is the digest of the workflow's file, `activity_id` the local activity that was executing instead of the
    workflow's code.
    """

    run_id: str
    workflow_type: str
    times: int = 1
    at: float = 0.0
    code: str = ""
    activity_id: str = ""
    stack: str = ""
    place: str = ""
    files: dict[str, str] = {}
    stopped_process: bool = False
    """Whether the hang held the interpreter, so that the process was killed."""

    @property
    def died(self) -> bool:
        """Whether this is a death of the process, not a hang."""
        return not self.stack

    @property
    def ended_process(self) -> bool:
        """Whether the incident ended its process, by a death or because the hung process was killed."""
        return self.died or self.stopped_process

    @property
    def limit(self) -> int:
        """The number of deaths after which the run or its local activity counts as the culprit."""
        return LOCAL_DEATHS if self.activity_id else DEATHS

    def is_current(self) -> bool:
        """Whether the incident still counts: it is recent, and no file on its stack has changed since."""
        return wall_time() - self.at < _FORGOTTEN_AFTER and self.files == _digests(self.stack)


def hang(run_id: str, workflow_type: str, stack: HungStack, *, stopped_process: bool = False) -> Incident:
    """Return the incident of a run that has just hung."""
    text = stack.text[:_LONGEST_STACK] or f"  {stack.place}\n"
    return Incident(
        run_id,
        workflow_type,
        stack=text,
        place=stack.place,
        files=_digests(text),
        stopped_process=stopped_process,
    )


class Incidents:
    """The record of one target, and the notes of this process for the target. Call `close` when this process no longer
    serves the target.
    """

    def __init__(self, folder: Path) -> None:
        """Open the folder for the notes. Raises `OSError` if it cannot be used."""
        self.folder = folder
        self.users = 0
        self.fresh: list[Incident] = []
        """The new incidents, of processes that have died or been killed since the record was last opened."""
        self._own: set[str] = set()
        self._notes_folder = _notes_folder()
        prefix = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        with self._locked():
            self._incidents = _read(folder)
            for path in self._notes_folder.glob(f"{prefix}-*.notes"):
                self.fresh += [_count(self._incidents, incident) for incident in _take_over(path)]
            if self.fresh:
                _write(folder, self._incidents)
            self._path, self._descriptor = _create(self._notes_folder, prefix)
        self.notes = LaneNotes(self._descriptor)

    def current(self) -> list[Incident]:
        """Return the incidents that still count."""
        return [incident for incident in list(self._incidents.values()) if incident.is_current()]

    def add(self, incident: Incident) -> None:
        """Record a run that hung in this process. The entry is removed if the process ends normally."""
        self._own.add(incident.run_id)
        self._change(lambda recorded: _count(recorded, incident))

    def forget(self, *run_ids: str) -> None:
        """Remove the entries of runs that have made progress."""
        if [run_id for run_id in run_ids if self._incidents.pop(run_id, None) or run_id in self._own]:
            self._own.difference_update(run_ids)
            self._change(lambda recorded: [recorded.pop(run_id, None) for run_id in run_ids])

    def close(self) -> None:
        """Remove the notes of this process and the incidents that it added, because the process ends normally."""
        self.forget(*self._own)
        with suppress(OSError):
            self._path.unlink()
        with suppress(OSError):
            os.close(self._descriptor)

    def _change(self, change: Callable[[dict[str, Incident]], object]) -> None:
        with suppress(OSError), self._locked():
            recorded = _read(self.folder)
            change(recorded)
            _write(self.folder, recorded)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other threads, and other processes that use the same folder for notes."""
        with _lock:
            descriptor = os.open(self._notes_folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                _flock(descriptor)
                yield
            finally:
                os.close(descriptor)


def open_incidents(target: Target) -> Incidents | None:
    """Return the record of a target. All workers of this process that serve the target share the record, and each
    worker must call `close_incidents`.

    Return None if nothing can be recorded.
    """
    folder = folder_of(target) if os.name == "posix" else None
    if folder is None:
        return None
    with _lock:
        record = _open.get(folder)
        if record is None:
            try:
                record = _open[folder] = Incidents(folder)
            except OSError as error:
                logger.info("runs that kill this process cannot be recorded: %s", error)
                return None
            _log(record.fresh)
        record.users += 1
        return record


def close_incidents(record: Incidents) -> None:
    """End one use of the record. The last use closes the record."""
    with _lock:
        record.users -= 1
        if not record.users:
            _open.pop(record.folder, None)
            record.close()


def known_deaths(target: str, namespace: str) -> list[Incident]:
    """Return the incidents that ended processes of a target, for a command or a client on this machine."""
    try:
        folder = folder_of(resolve(target, namespace=namespace)) if os.name == "posix" else None
    except TargetError:
        folder = None
    recorded = _read(folder).values() if folder is not None else ()
    return [incident for incident in recorded if incident.is_current() and incident.ended_process]


def notes_of(pid: int) -> list[NotedRun] | None:
    """Return the runs that a living process is executing, None if the process has no notes. Called by the parent of the
    process.
    """
    contents = []
    with suppress(OSError):
        contents = [path.read_bytes() for path in _notes_folder().glob(f"*-{pid}-*.notes")]
    return [noted for content in contents for noted in read_notes(content)] if contents else None


def blame(pid: int, noted: NotedRun | None, stack: HungStack) -> None:
    """Record the run in which a process hung; `noted` is None if no run's code hung. Called by the parent before it
    kills the process.
    """
    run_id = "" if noted is None else noted.run_id
    with suppress(OSError):
        for path in _notes_folder().glob(f"*-{pid}-*.notes"):
            with open(path, "r+b") as file:
                file.seek(SIZE)
                file.write(json.dumps([run_id, stack.text[:_LONGEST_STACK], stack.place]).encode())


def folder_of(target: Target, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder for the record of a target; None for an engine in memory, which ends with its process."""
    if target.kind == "memory":
        return None
    if target.kind == "file":
        return Path(os.path.realpath(target.path) + "-worker")
    name = hashlib.sha256(f"{target.address}\n{target.namespace}".encode()).hexdigest()[:16]
    return _state_folder(environ) / name


def _log(incidents: list[Incident]) -> None:
    for incident in incidents:
        times = "for the first time" if incident.times == 1 else f"{incident.times} times so far"
        logger.error(
            "a process %s while %s of workflow %s (run %s) was executing, %s: %s",
            "died" if incident.died else "hung",
            f"local activity {incident.activity_id}" if incident.activity_id else "the code",
            incident.workflow_type,
            incident.run_id,
            times,
            "the code is executed once more"
            if incident.times < incident.limit
            else "the run is quarantined until its file changes, or for a limited time",
        )


def _take_over(path: Path) -> list[Incident]:
    """Return the incidents that a dead process left in its file of notes, and remove the file."""
    with suppress(OSError), open(path, "rb") as file:
        _flock(file.fileno(), wait=False)
        content = file.read(_LONGEST)
        path.unlink()
        return _incidents_in(content)
    return []  # the process is still running


def _incidents_in(content: bytes) -> list[Incident]:
    noted = read_notes(content)
    if len(content) <= SIZE:
        return [
            Incident(run.run_id, run.workflow_type, code=run.code, activity_id=run.activity_id)
            for run in noted
        ]
    with suppress(ValueError):
        run_id, text, place = json.loads(content[SIZE:])
        return [
            msgspec.structs.replace(
                hang(run_id, run.workflow_type, HungStack(text, place), stopped_process=True), code=run.code
            )
            for run in noted
            if run.run_id == run_id and run.native_id
        ][:1]
    return []


def _count(incidents: dict[str, Incident], incident: Incident) -> Incident:
    """Add an incident to the earlier incidents of the same run in the same code. Return the sum."""
    earlier = incidents.pop(incident.run_id, None)
    times, code = incident.times, incident.code
    is_same = earlier is not None and earlier.activity_id == incident.activity_id and earlier.is_current()
    if earlier is not None and is_same and (not code or earlier.code in ("", code)):
        times, code = times + earlier.times, code or earlier.code
    counted = msgspec.structs.replace(incident, times=times, code=code, at=wall_time())
    incidents[incident.run_id] = counted
    return counted


def _read(folder: Path) -> dict[str, Incident]:
    """Return the recorded incidents by run id; empty if the file is damaged or belongs to another user."""
    with suppress(OSError, msgspec.MsgspecError, RecursionError), open(folder / _RECORD, "rb") as file:
        if os.fstat(file.fileno()).st_uid == os.geteuid():
            incidents = msgspec.json.decode(file.read(_LONGEST), type=list[Incident])
            return {incident.run_id: incident for incident in incidents}
    return {}


def _write(folder: Path, incidents: dict[str, Incident]) -> None:
    """Replace the record. Remove the file and its folder if there are no incidents."""
    path = folder / _RECORD
    try:
        if not incidents:
            path.unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()
            return
        _make_own(folder)
        latest = sorted(incidents.values(), key=lambda incident: incident.at)[-_MOST_RUNS:]
        replacement = path.with_suffix(".new")
        replacement.unlink(missing_ok=True)
        with open(replacement, "xb") as file:
            file.write(msgspec.json.encode(latest))
        os.replace(replacement, path)
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error)


def _create(folder: Path, prefix: str) -> tuple[Path, int]:
    """Create the locked file for this process's notes.

    All its space is allocated now: writing to mapped memory on a full disk would end the process.
    """
    paths = (folder / f"{prefix}-{os.getpid()}-{number}.notes" for number in itertools.count())
    path = next(path for path in paths if not path.exists())
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _flock(descriptor)
        if os.pwrite(descriptor, bytes(SIZE), 0) < SIZE:
            raise OSError(errno.ENOSPC, f"no space left for {path}")
    except OSError:
        path.unlink()
        os.close(descriptor)
        raise
    return path, descriptor


def _notes_folder() -> Path:
    """Return the folder for the notes of all processes of this user: in shared memory, else in the state directory."""
    if os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        with suppress(OSError):
            return _make_own(SHARED_MEMORY / f"hourglass-{os.geteuid()}")
    return _make_own(_state_folder(os.environ) / "notes")


def _make_own(folder: Path) -> Path:
    """Create a folder. Reject an existing folder that another user can write to, because its content decides whether
    runs are executed.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(
            errno.EACCES, f"{folder} must belong to this user, and no other user may write to it"
        )
    return folder


def _state_folder(environ: Mapping[str, str]) -> Path:
    if chosen := environ.get(STATE_VARIABLE):
        return Path(chosen)
    with suppress(RuntimeError):  # no home directory
        base = Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        existing = next((folder for folder in (base, *base.parents) if folder.exists()), base)
        if base.is_absolute() and os.access(existing, os.W_OK | os.X_OK):
            return base / "hourglass"
    return Path(tempfile.gettempdir()) / f"hourglass-{os.geteuid()}"


def _digests(stack: str) -> dict[str, str]:
    digests = {}
    for name in _STACK_FILE.findall(stack):
        digests[name] = ""
        with suppress(OSError):
            digests[name] = hashlib.sha256(Path(name).read_bytes()).hexdigest()
    return digests


def _flock(descriptor: int, *, wait: bool = True) -> None:
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


_lock = threading.RLock()
_open: dict[Path, Incidents] = {}


def _after_fork() -> None:
    """Close the inherited files in the child: a child that kept the locks would hide its parent's death."""
    global _lock
    _lock = threading.RLock()
    for record in _open.values():
        with suppress(OSError):
            os.close(record._descriptor)
    _open.clear()


at_fork(ForkStage.INCIDENTS, in_child=_after_fork)
