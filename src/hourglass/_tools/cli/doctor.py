"""`hourglass doctor`: check that the installation and the target work, and that open runs make progress."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from hourglass._built_in import without_keepers
from hourglass._tools.cli import connecting, console
from hourglass._tools.cli.connecting import Engine, Json
from hourglass._tools.timeline.run_state import Problem
from hourglass._tools.timeline.text import duration
from hourglass.errors import HourglassError, ServiceTimeoutError, StorageError

if TYPE_CHECKING:
    from hourglass._worker.targets import Target as Where
    from hourglass.client import Client

T = TypeVar("T")

_OLDEST_SQLITE = (3, 37, 0)
_LONGEST_LOOK = 5.0  # seconds, for reading a whole file
_PATIENCE = 10.0  # seconds for one call
_LONGEST_QUESTION = 25.0  # seconds for all calls of one check, including the connection
_PACKAGES = ("hourglass-temporal", "temporalio", "greenlet", "msgspec", "uvloop")


@dataclass(frozen=True)
class HealthCheck:
    """The result of one check. If `ok` is None, the result is only information."""

    check: str
    detail: str
    ok: bool | None = None


def doctor(
    *,
    engine: Engine,
    task_queue: Annotated[str, typer.Option(metavar="NAME", help="The task queue to check.")] = "default",
    json: Json = False,
) -> None:
    """Check the installation and the target. Exit code 1 if something is wrong.

    Checks versions, the target, the packages that it needs, and its workers.

    \b
    Example:
      hourglass doctor --target localhost:7233
    """
    findings = list(_findings(engine, task_queue))
    if json:
        for finding in findings:
            connecting.write_json(finding, indent=None)
    else:
        for finding in findings:
            mark = {True: "ok   ", False: "WRONG", None: "     "}[finding.ok]
            console.show(f"{mark} {finding.check:<18} {finding.detail}")
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)


def _findings(engine: Engine, task_queue: str) -> Iterator[HealthCheck]:
    yield HealthCheck(
        "python", f"{platform.python_version()} ({sys.executable})", sys.version_info >= (3, 11)
    )
    for package in _PACKAGES:
        yield HealthCheck(package, _version(package))
    sqlite = tuple(int(part) for part in sqlite3.sqlite_version.split("."))
    yield HealthCheck("sqlite", sqlite3.sqlite_version, sqlite >= _OLDEST_SQLITE)
    yield from _target(engine, task_queue)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _target(engine: Engine, task_queue: str) -> Iterator[HealthCheck]:
    from hourglass._worker.targets import resolve

    try:
        where = resolve(engine.target, namespace=engine.namespace)
    except HourglassError as error:
        yield HealthCheck("target", str(error), False)
        return
    yield HealthCheck("target", f"{where} (from {where.origin})")
    if where.kind == "file":
        yield from _file(where)
        if not Path(where.path).exists():
            return  # opening the file would create it
        stopped = _stopped_owner(where.path)
        if stopped is not None:
            yield stopped
            return  # nothing else can be checked
    advice = partial(_silent_owner, where.path) if where.kind == "file" else str
    yield from _engine(engine, task_queue, advice)
    yield from _deaths(where)


def _engine(engine: Engine, task_queue: str, advice: Callable[[], str]) -> Iterator[HealthCheck]:
    """Yield the checks that query the engine. `advice` is called if the engine does not answer in time."""
    with ExitStack() as stack:
        try:
            client = _in_time(lambda: stack.enter_context(engine.connect()))
        except HourglassError as error:
            yield HealthCheck("reachable", str(error), False)
            return
        reached = _tried(
            "reachable",
            lambda: connecting.workflows(client.count_workflows(rpc_timeout=_PATIENCE)),
            advice,
        )
        yield reached
        if reached.ok:
            yield _tried("workers", lambda: _workers(client, task_queue))
            yield from _runs(client, engine.options)


def _file(where: Where) -> Iterator[HealthCheck]:
    path = Path(where.path)
    if not path.exists():
        folder = path.parent
        writable = folder.is_dir() and os.access(folder, os.W_OK)
        description = "does not exist yet; hourglass run, start, worker and dev create it"
        yield HealthCheck(
            "file", description if writable else f"cannot be created: {folder} is not writable", writable
        )
        if writable:
            yield _disk(path)
        return
    writable = os.access(path, os.R_OK | os.W_OK)
    yield HealthCheck("file", f"{path}, {path.stat().st_size / 1e6:.1f} MB", writable)
    if writable:
        yield _pages(path)
    yield _disk(path)


def _stopped_owner(path: str) -> HealthCheck | None:
    """Return a failed check if the owner of the file is stopped: no other process can own the file then."""
    from hourglass._worker.health.inspection import is_stopped

    pid = _owner(path)
    if not pid or not is_stopped(pid):
        return None
    problem = f"process {pid}, which holds the file, is suspended, and all other processes wait for it: "
    return HealthCheck(
        "owner", f"{problem}resume the process (kill -CONT {pid}) or end it (kill -KILL {pid})", False
    )


def _silent_owner(path: str) -> str:
    """Return advice about a process that owns the file and does not answer, for example in a frozen container."""
    pid = _owner(path)
    if not pid:
        return ""
    return (
        f": process {pid}, which holds the file, does not respond. If the process is suspended (a paused container), resume "
        f"it; if it hangs, end it (kill -KILL {pid})"
    )


def _owner(path: str) -> int:
    """Return the process id of the owner of the file, or 0 if there is no owner or it is unknown."""
    from hourglass._embedded.multiprocess.ownership import FileLock

    lock = FileLock(path)
    try:
        return 0 if lock.is_free() else lock.note().pid
    except HourglassError:
        return 0  # the query to the engine reports the problem


def _pages(path: Path) -> HealthCheck:
    """Check the integrity of the file with SQLite, for at most a few seconds."""
    from hourglass._embedded.store.sqlite import inherited
    from hourglass._embedded.store.sqlite.database import connect_read_only

    over = monotonic() + _LONGEST_LOOK
    try:
        connection = connect_read_only(str(path))
    except StorageError as error:
        return HealthCheck("pages", f"could not be read: {error}")
    try:
        connection.set_progress_handler(lambda: monotonic() > over, 10_000)
        rows = [str(row[0]) for row in connection.execute("PRAGMA quick_check(1)")]
    except sqlite3.OperationalError as error:
        if monotonic() > over:
            return HealthCheck("pages", f"no damage found within {_LONGEST_LOOK:g} s")
        return HealthCheck("pages", f"could not be read: {error}")
    except sqlite3.DatabaseError as error:
        rows = [str(error)]
    finally:
        inherited.close(connection)
    if rows == ["ok"]:
        return HealthCheck("pages", "not damaged", True)
    reason = " ".join(rows[0].split()) if rows else "SQLite does not say why"
    return HealthCheck("pages", f"damaged: {reason}. See `hourglass docs operations` about backups", False)


def _disk(path: Path) -> HealthCheck:
    from hourglass._contract.engine_status import FULL_BYTES
    from hourglass._embedded.store.sqlite.store import RESERVE_BYTES
    from hourglass._embedded.store.store import free_bytes

    free = free_bytes(str(path))
    if free is None:
        return HealthCheck("disk", "free space unknown")
    space = f"{free / 1e6:.1f} MB free"
    if free >= RESERVE_BYTES:
        return HealthCheck("disk", space, True)
    full = "full: no change can be written" if free < FULL_BYTES else "nearly full"
    return HealthCheck(
        "disk", f"{space}: {full}; new workflows are rejected below {RESERVE_BYTES / 1e6:.0f} MB", False
    )


def _deaths(where: Where) -> Iterator[HealthCheck]:
    """Yield the runs during which processes on this machine died, until these runs have made progress."""
    from hourglass._worker.health.incidents import known_deaths

    for death in known_deaths(str(where), where.namespace):
        what = (
            f"local activity {death.activity_id} of {death.workflow_type}"
            if death.activity_id
            else death.workflow_type
        )
        description = f"a worker's process died {death.times}× while it executed {what} (run {death.run_id})"
        yield HealthCheck("deaths", description)


_HELP = {
    Problem.PARKED: ("parked, because their code fails", "hourglass list --parked"),
    Problem.ACTIVITY_FAILS: ("with an activity that keeps failing", "hourglass list --failing"),
    Problem.NO_WORKER: ("without a worker on their task queue", "hourglass list --no-worker"),
}


def _runs(client: Client, options: str) -> Iterator[HealthCheck]:
    """Yield the numbers of open runs with problems, by kind, each with a command that lists the runs."""
    from hourglass._tools.diagnosis.problems import count

    try:
        counts = _in_time(lambda: count(client, without_keepers("")))
    except HourglassError as error:
        yield HealthCheck("runs", str(error), False)
        return
    for counted in counts:
        what, command = _HELP[counted.problem]
        among = f" (among the newest {counted.limit} open ones)" if counted.limit else ""
        description = f"{connecting.workflows(counted.count)} {what}{among}"
        advice = f": {command} {options}".rstrip() if counted.count else ""
        yield HealthCheck(counted.problem.value, f"{description}{advice}", not counted.count)


def _workers(client: Client, task_queue: str) -> str:
    queue = client.describe_task_queue(task_queue, rpc_timeout=_PATIENCE)
    who = sorted({poller.identity for poller in (*queue.workflow_pollers, *queue.activity_pollers)})
    waiting = [
        f"backlog of {what}: {statistics.backlog}, the oldest waits for "
        + duration(int(statistics.backlog_age.total_seconds() * 1e9))
        for statistics, what in (
            (queue.workflow_stats, "workflow tasks"),
            (queue.activity_stats, "activities"),
        )
        if statistics is not None and statistics.backlog
    ]
    return f"on queue {task_queue!r}: {'; '.join([', '.join(who) or 'no worker polls it', *waiting])}"


def _tried(what: str, check: Callable[[], str], advice: Callable[[], str] = str) -> HealthCheck:
    try:
        return HealthCheck(what, _in_time(check), True)
    except ServiceTimeoutError as error:
        return HealthCheck(what, f"{error}{advice()}", False)
    except HourglassError as error:
        return HealthCheck(what, str(error), False)


def _in_time(check: Callable[[], T]) -> T:
    """Return the result of a check. Raise `ServiceTimeoutError` if it takes too long for any reason."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(check())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, name="hourglass-doctor", daemon=True).start()
    try:
        return answer.result(_LONGEST_QUESTION)
    except TimeoutError as error:
        if isinstance(error, HourglassError):
            raise
        raise ServiceTimeoutError(
            f"no answer within {_LONGEST_QUESTION:g} s: the target is busy, stopped, or cannot write",
            status="DEADLINE_EXCEEDED",
        ) from None
