"""`hourglass move`: move the open runs of a file, with their histories, and its schedules to a Temporal server.

A run never executes in both places. The move has five steps, and each survives the death of this process. Pause the run in
the file, with the move as the reason. Create the run on the server with its history, held back from all workers. Replay the
code against the history that the server has written. Release the run on the server. Terminate the run in the file, with the
new location as the reason. A later `move` continues an interrupted move, because the import on the server is idempotent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hourglass._tools.cli import connecting, console
from hourglass._tools.cli.connecting import Engine, Json, Namespace
from hourglass._tools.cli.console import Column, lines
from hourglass.errors import (
    HourglassError,
    ServiceError,
    UsageError,
    WorkflowAlreadyStartedError,
    WorkflowNotFoundError,
)

if TYPE_CHECKING:
    from hourglass._tools.cli.move_schedules import ScheduleMove
    from hourglass.client import Client, WorkflowExecution, WorkflowHandle
    from hourglass.replay import History, Replayer

MOVING = "moving to "
"""The prefix of the reason with which a run or schedule is paused during its move."""

IMPORTING = "hourglass-import"
"""The deployment to which a run on the server is pinned until it is released."""

_PATIENCE = 10.0
_PAUSE = 0.1


@dataclass(frozen=True)
class MoveResult:
    """The result for a run or schedule: `moves`, or `moved` after the move, or `stays` with the reason.

    A schedule has no run id. Its workflow type is the type of the workflows that it starts.
    """

    kind: str
    id: str
    run_id: str
    workflow_type: str
    verdict: str
    why: str = ""


class _CannotMove(Exception):
    """A run cannot be moved. The message is the reason."""


def move(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The engine's file, such as hourglass.db.")],
    to: Annotated[str, typer.Option(metavar="TARGET", help="The server: host:port, or profile:NAME.")],
    code: Annotated[
        list[str],
        typer.Option(
            "--code",
            "-c",
            metavar="FILE|MODULE",
            help="A file or module with the workflows; may be repeated.",
        ),
    ],
    query: Annotated[
        str, typer.Option(metavar="FILTER", help="Move only what matches a filter, as in `hourglass list`.")
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Move them. Without it, only show what would move.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would move, as without --yes.")
    ] = False,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Move open workflows and schedules of a file to a server.

    It shows which of them can move, and why others cannot; without --yes nothing is changed. Stop the file's workers before
    the move, and start the server's workers afterwards. Schedules are paused during the move. An interrupted move can be run
    again.

    \b
    Examples:
      hourglass move orders.db --to localhost:7233 --code shop.py
      hourglass move orders.db --to localhost:7233 --code shop.py --yes
    """
    from hourglass._tools.cli.loading import load
    from hourglass._worker.targets import resolve
    from hourglass.replay import Replayer

    if yes and dry_run:
        raise UsageError(
            "use either --yes, which moves the workflows, or --dry-run, which only shows what would move"
        )
    path = str(file).removeprefix("local:")
    if not Path(path).exists():
        raise UsageError(f"file {path} does not exist")
    if resolve(to).kind != "temporal":
        raise UsageError(f"--to must be a Temporal server, such as localhost:7233, not {to!r}")
    loaded = load(code)
    verdicts: list[MoveResult] = []
    failed = False
    with (
        Engine(target=f"local:{path}").connect() as source,
        Engine(target=to, namespace=namespace).connect() as destination,
        Replayer(modules=loaded.modules) as replayer,
    ):
        for verdict, counts in _moving(source, destination, replayer, query, carry_out=yes):
            verdicts.append(verdict)
            failed = failed or (counts and verdict.verdict == "stays")
            if json:
                connecting.write_json(verdict, indent=None)
    if not json:
        _print_results(verdicts, path, to, yes)
    if yes and failed:
        raise typer.Exit(1)


def _moving(
    source: Client, destination: Client, replayer: Replayer, query: str, *, carry_out: bool
) -> Iterator[tuple[MoveResult, bool]]:
    """Move runs and schedules, or only plan the move. Yield each result, and whether it is a failure if the object stays.

    Schedules are paused while the runs move, so that no schedule starts a run that would not be moved.
    """
    from hourglass._tools.cli.move_schedules import ScheduleMover

    mover, schedule_mover = _Mover(source, destination, replayer), ScheduleMover(source, destination)
    schedules = schedule_mover.plan(is_selected=not query.strip())
    if carry_out:
        schedules = [schedule if schedule.stays else schedule_mover.begin(schedule) for schedule in schedules]
    schedules_by_run = {
        run: schedule
        for schedule in schedules
        if schedule.stays and not schedule.paused
        for run in schedule.running
    }
    staying: set[str] = set()
    both = "(ExecutionStatus = 'Running' OR ExecutionStatus = 'Paused')"
    for run in list(source.list_workflows(f"({query}) AND {both}" if query.strip() else both)):
        verdict = mover.handle(run, carry_out=carry_out, schedule=schedules_by_run.get(run.id))
        if verdict.verdict == "stays":
            staying.add(run.id)
        yield verdict, True
    for schedule in schedules:
        if schedule.stays:
            result = "stays", schedule.stays
        elif carry_out:
            result = schedule_mover.finish(schedule, staying)
        else:
            result = schedule_mover.foresee(schedule, staying)
        yield MoveResult("schedule", schedule.id, "", schedule.workflow_type, *result), schedule.counts


_COLUMNS = (Column("ID"), Column("TYPE"), Column("VERDICT", fixed=True), Column("WHY"))


def _print_results(verdicts: list[MoveResult], path: str, to: str, done: bool) -> None:
    if not verdicts:
        console.show(f"{path} has no open workflows and no schedules")
        return
    for line in lines(
        _COLUMNS,
        [
            [
                (verdict.id, ""),
                (verdict.workflow_type if verdict.run_id else f"schedule of {verdict.workflow_type}", ""),
                (verdict.verdict, "yellow" if verdict.verdict == "stays" else "green"),
                (verdict.why, ""),
            ]
            for verdict in verdicts
        ],
        None,
    ):
        console.show(line, soft_wrap=True)
    counted = " and ".join(filter(None, (_count(verdicts, kind) for kind in ("workflow", "schedule"))))
    if done:
        console.show(f"moved: {counted}, to {to}")
    else:
        console.show(f"{counted} can move to {to}; use --yes to move them. Nothing was changed")


def _count(verdicts: list[MoveResult], kind: str) -> str:
    selected = [verdict for verdict in verdicts if verdict.kind == kind]
    moved = sum(verdict.verdict != "stays" for verdict in selected)
    return f"{moved} of {len(selected)} {kind}s" if selected else ""


class _Mover:
    """A mover that checks the runs of one engine and moves them to another engine."""

    def __init__(self, source: Client, destination: Client, replayer: Replayer) -> None:
        self._source = source
        self._destination = destination
        self._replayer = replayer
        self._mark = f"{MOVING}{destination.target}"

    def handle(
        self, run: WorkflowExecution, *, carry_out: bool, schedule: ScheduleMove | None = None
    ) -> MoveResult:
        """Return the result for a run. `schedule` is a schedule that stays in the file because it waits for the run."""
        handle = self._source.get_workflow_handle(run.id, run_id=run.run_id)
        named = ("workflow", run.id, run.run_id, run.workflow_type)
        try:
            if schedule is not None:
                raise _CannotMove(
                    f"its schedule {schedule.id} stays in the file, and would start another workflow: pause the schedule first"
                )
            self._check(run, handle)
            if not carry_out:
                return MoveResult(*named, "moves")
            return MoveResult(*named, "moved", f"continues as run {self._move(run, handle)}")
        except _CannotMove as stays:
            return MoveResult(*named, "stays", console.one_line(str(stays)))
        except HourglassError as error:
            return MoveResult(*named, "stays", console.one_line(str(error)))

    def _check(self, run: WorkflowExecution, handle: WorkflowHandle[Any]) -> None:
        if run.parent_id:
            raise _CannotMove(f"it is a child of {run.parent_id}, which stays in the file")
        seen, history = handle.describe(), handle.history()
        if seen.status.name == "PAUSED" and not _pause_reason(history).startswith(MOVING):
            raise _CannotMove("it is paused, and would not be paused on the server: resume it first")
        for activity in seen.pending_activities:
            if activity.state != "SCHEDULED":
                raise _CannotMove(
                    f"an attempt of {activity.activity_type} is running: stop the workers of the file first"
                )
        result = self._replayer.try_replay(history)
        if not result.does_the_same:
            raise _CannotMove(
                f"the code does not match its history: {str(result.difference).splitlines()[0]}"
            )
        try:
            self._destination.import_workflow(history, dry_run=True)
        except ServiceError as error:
            raise _CannotMove(str(error)) from error
        self._check_id(run)

    def _check_id(self, run: WorkflowExecution) -> None:
        """Raise `_CannotMove` if the id is in use on the server, except by an interrupted move of this run."""
        try:
            existing = self._destination.get_workflow_handle(run.id).describe()
        except WorkflowNotFoundError:
            return
        first = self._source.get_workflow_handle(run.id, run_id=run.run_id)
        if existing.close_time is None and not _pause_reason(first.history()).startswith(MOVING):
            raise _CannotMove(f"an open workflow on the server already has this id (run {existing.run_id})")

    def _move(self, run: WorkflowExecution, handle: WorkflowHandle[Any]) -> str:
        """Move a run and return its run id on the server. Undo the pause if a step before the release fails."""
        from hourglass._tools.diagnosis.reasons_closed import moved

        if handle.describe().status.name != "PAUSED":
            handle.pause(self._mark)
        request_id = f"moved-{run.run_id}"
        try:
            history = self._at_rest(handle)
            held = self._destination.import_workflow(history, request_id=request_id, hold=True)
            if self._is_held(held):
                self._verify(held, history)
        except (HourglassError, _CannotMove) as error:
            handle.unpause(f"not moved: {error}"[:200])
            if isinstance(error, WorkflowAlreadyStartedError):
                raise _CannotMove("a workflow on the server already has this id") from error
            raise
        self._destination.import_workflow(history, request_id=request_id)
        handle.terminate(moved(self._destination.target, str(held.run_id)))
        return str(held.run_id)

    def _at_rest(self, handle: WorkflowHandle[Any]) -> History:
        """Return the history of a paused run once no worker has a task of the run in progress."""
        pause = threading.Event()
        for _ in range(round(_PATIENCE / _PAUSE)):
            history, seen = handle.history(), handle.describe()
            if seen.close_time is not None:
                raise _CannotMove("it has closed in the meantime")
            running = [activity for activity in seen.pending_activities if activity.state != "SCHEDULED"]
            if not running and not _has_task(history):
                return history
            pause.wait(_PAUSE)
        raise _CannotMove("a worker is still executing it: stop the workers of the file first")

    def _is_held(self, held: WorkflowHandle[Any]) -> bool:
        """Whether the run on the server is still held.

        A run that an earlier move has released may have made progress. It stays on the server, whatever the local code does.
        """
        seen = self._destination.get_workflow_handle(held.id, run_id=held.run_id).describe()
        version = seen.deployment_version
        pinned = seen.versioning_behavior.name == "PINNED"
        return (
            seen.close_time is None
            and pinned
            and version is not None
            and version.deployment_name == IMPORTING
        )

    def _verify(self, held: WorkflowHandle[Any], source: History) -> None:
        """Replay the code against the history that the server has written.

        The code must issue the same commands with the same arguments, although times and random numbers differ.
        """
        from hourglass.replay import History

        written = self._destination.get_workflow_handle(held.id, run_id=held.run_id).history()
        result = self._replayer.try_replay(
            History(held.id, msgspec.json.encode({"events": _with_timers_of(source, written)}))
        )
        if result.does_the_same:
            return
        self._destination.get_workflow_handle(held.id, run_id=held.run_id).delete()
        raise _CannotMove(
            "its code issues other commands if the time or the random numbers differ: "
            + str(result.difference).splitlines()[0]
        )


def _pause_reason(history: History) -> str:
    reason = ""
    for event in history.events:
        if event["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_PAUSED":
            reason = event["workflowExecutionPausedEventAttributes"].get("reason", "")
        elif event["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_UNPAUSED":
            reason = ""
    return reason


def _has_task(history: History) -> bool:
    tasks = [
        event["eventType"] for event in history.events if "EVENT_TYPE_WORKFLOW_TASK_" in event["eventType"]
    ]
    return bool(tasks) and tasks[-1] == "EVENT_TYPE_WORKFLOW_TASK_STARTED"


def _with_timers_of(source: History, written: History) -> list[dict[str, Any]]:
    """Return the server's history with the original timer durations: timers need only fire in the same order."""
    key, name = "timerStartedEventAttributes", "startToFireTimeout"
    spans = {
        event[key]["timerId"]: event[key].get(name) for event in source.events if event.get(key) is not None
    }
    changed: list[dict[str, Any]] = []
    for event in written.events:
        if event.get(key) is not None:
            span = spans.get(event[key]["timerId"], event[key].get(name))
            event = {**event, key: {**event[key], name: span}}
        changed.append(event)
    return changed
