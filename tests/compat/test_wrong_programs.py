"""The replayer rejects wrong programs: every twin is changed in every place and replayed against its histories.

A changed program that issues the same commands, as far as histories tell, is not wrong: its commands are compared with those
of the original, without the replayer's own comparison. `UNTOLD` and `commands_by_task` list what histories do not record or
the replayer ignores; docs/replay.md names the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import msgspec
import pytest

from effort import THOROUGH
from hourglass._evaluator import commands as c
from hourglass._evaluator.specs import Spec
from hourglass._history.dialect import Dialect
from hourglass.replay import History, Replayer, _replayer
from hourglass.replay._session import HistoryExecution

from .foreign import go_twins, typescript_cancelling, typescript_everyday, typescript_random, typescript_twins
from .mutants import Mutant, mutants_of
from .twins import (
    TWINS,
    cancelling,
    cancelling_tasks,
    concurrency,
    failing,
    later,
    primitives,
    racing,
    signalling,
    waiting,
)

HERE = Path(__file__).parent
PYTHON = (
    cancelling,
    cancelling_tasks,
    concurrency,
    failing,
    later,
    primitives,
    racing,
    signalling,
    waiting,
)
TYPESCRIPT = (typescript_cancelling, typescript_everyday, typescript_random, typescript_twins)
SEED = 11

UNTOLD = frozenset(
    {
        "seq",
        "task_queue",
        "namespace",
        "run_id",
        "reason",
        "headers",
        "summary",
        "details",
        "priority_key",
        "schedule_to_close_timeout",
        "schedule_to_start_timeout",
        "start_to_close_timeout",
        "heartbeat_timeout",
        "local_retry_threshold",
        "execution_timeout",
        "run_timeout",
        "task_timeout",
        "retry_policy",
        "cancellation_type",
        "parent_close_policy",
        "id_reuse_policy",
        "cron_schedule",
        "disable_eager_execution",
        "versioning",
        "attempt",
        "original_schedule_time_ns",
        "deprecated",
        "is_child",
    }
)
"""Fields that histories do not record, or that may be changed freely."""


class RecordingExecution(HistoryExecution):
    """An execution that remembers the last instance, whose commands the tests read."""

    last: HistoryExecution | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        type(self).last = self


@pytest.fixture(autouse=True)
def record_executions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let replayers use RecordingExecution."""
    monkeypatch.setattr(_replayer, "HistoryExecution", RecordingExecution)


def comparable_fields(value: Any) -> Any:
    """Return a value as far as histories record it, without the places where failures were raised."""
    if isinstance(value, msgspec.Struct):
        left_out = {"stack_trace", "source", "identity", "scheduled_event_id", "started_event_id"}
        if isinstance(value, Spec):
            left_out |= UNTOLD
        fields = msgspec.structs.asdict(value)
        return type(value).__name__, [
            (k, comparable_fields(v)) for k, v in fields.items() if k not in left_out
        ]
    if isinstance(value, dict):
        return [(key, comparable_fields(item)) for key, item in sorted(value.items())]
    if isinstance(value, tuple):
        return [comparable_fields(item) for item in value]
    return value


def commands_by_task(execution: HistoryExecution, history: History, *, values: bool) -> list[list[str]]:
    """Return the commands of a run by task, as far as its history can tell them apart; with `values`, include
    compared values."""
    completed = {
        event["workflowTaskCompletedEventAttributes"]["startedEventId"]
        for event in history.events
        if "workflowTaskCompletedEventAttributes" in event
    }
    foreign = history._facts.dialect is not Dialect.PYTHON
    # Local activities in the place of side effects, which have no name in a history, are not told apart.
    effects = "MutableSideEffect" in history.to_json() or '"SideEffect"' in history.to_json()
    by_task: dict[int, list[c.Command]] = {}
    drawn: set[int] = set()
    for step in execution.steps:
        by_task.setdefault(step.history_length, []).extend(command for command, _ in step.commands)
        drawn |= {step.history_length} if step.has_drawn and foreign else set()
    tasks = []
    for started, commands in by_task.items():
        if str(started) not in completed:
            continue  # what was asked for there was never written down
        by_name = started in drawn or not values
        left = [
            command
            for command in _recorded_commands(commands, foreign)
            if not (effects and isinstance(command, c.ScheduleLocalActivity))
        ]
        tasks.append([_describe(command, by_name=by_name) for command in left])
    return [sorted(task) for task in tasks if task] if foreign else [task for task in tasks if task]


def _recorded_commands(commands: list[c.Command], foreign: bool) -> list[c.Command]:
    """Drop commands that were cancelled in their own task, follow the end of the run, or leave no event."""
    gone: set[tuple[type[c.Command], int]]
    gone = {(c.StartTimer, recorded.seq) for recorded in commands if isinstance(recorded, c.CancelTimer)}
    gone |= {
        (c.ScheduleActivity, recorded.seq)
        for recorded in commands
        if isinstance(recorded, c.RequestCancelActivity)
    }
    begun = {(type(recorded), getattr(recorded, "seq", 0)) for recorded in commands}
    left: list[c.Command] = []
    for command in commands:
        number = getattr(command, "seq", 0)
        if (type(command), number) in gone:
            continue
        if isinstance(command, c.CancelTimer) and (foreign or (c.StartTimer, number) in begun):
            continue
        if isinstance(command, c.RequestCancelActivity) and (c.ScheduleActivity, number) in begun:
            continue
        if isinstance(command, c.SetPatchMarker) and foreign:
            continue
        left.append(command)
        if isinstance(command, c.TERMINAL):
            # SDKs differ in whether they send an answer that is issued with the end of the run.
            answers = (c.CompleteUpdate, c.RejectUpdate) if foreign else ()
            return [recorded for recorded in left if not isinstance(recorded, answers)]
    return left


def _describe(command: c.Command, *, by_name: bool) -> str:
    """Describe a command as a string. `by_name`: its values depend on random numbers of another language."""
    fields = msgspec.structs.asdict(command)
    if by_name:
        named = ("activity_type", "workflow_type", "signal_name", "protocol_instance_id")
        return repr((type(command).__name__, [fields.get(key) for key in named]))
    untold = UNTOLD | ({"arguments"} if isinstance(command, c.ScheduleLocalActivity) else set())
    if isinstance(command, (c.ScheduleActivity, c.ScheduleLocalActivity)) and command.activity_id == str(
        command.seq
    ):
        untold |= {"activity_id"}
    return repr(
        (type(command).__name__, [(k, comparable_fields(v)) for k, v in fields.items() if k not in untold])
    )


def corpus() -> dict[str, list[Path]]:
    """Return the recorded histories by workflow type."""
    found: dict[str, list[Path]] = {}
    for folder in (
        "histories",
        "histories_3_13",
        "foreign/typescript",
        "foreign/typescript_1_8",
        "foreign/typescript_1_10",
        "foreign/go",
    ):
        for path in sorted((HERE / folder).glob("*.json")):
            found.setdefault(History.from_file(path).workflow_type, []).append(path)
    return found


def wrong_programs(modules: tuple[Any, ...], seed: int, count: int | None) -> Iterator[Mutant]:
    """Yield `count` wrong programs of these modules in a fixed order, or all for None."""
    every = [make for module in modules for make in mutants_of(Path(module.__file__), module.__package__)]
    random.Random(seed).shuffle(every)
    return islice(filter(None, (make() for make in every)), count)


def definition(mutant: Mutant) -> Any:
    """Return the workflow of a wrong program."""
    right = dict(TWINS)
    try:
        module = mutant.load()
        table: dict[str, Any] = getattr(module, "TWINS", TWINS)
        return table[mutant.workflow_type]
    finally:
        TWINS.update(right)  # Python's twins register themselves there


def accepted_histories(mutant: Mutant, paths: list[Path]) -> list[str]:
    """Return the histories that the replayer accepts although the program issues different commands."""
    right = _original_definition(mutant)
    found = []
    changed = definition(mutant)
    for path in paths:
        history = History.from_file(path)
        foreign = history._facts.dialect is Dialect.OTHER
        compare = not foreign or path.stem in GO_JSON
        with Replayer(workflows=[changed], compare_arguments=compare, timeout=10) as replayer:
            ok = replayer.try_replay(history).ok
        if not ok:
            continue
        wrong = (
            commands_by_task(RecordingExecution.last, history, values=compare)
            if RecordingExecution.last is not None
            else []
        )
        with Replayer(workflows=[right], compare_arguments=compare) as replayer:
            error = replayer.try_replay(history).error
        right_commands = (
            commands_by_task(RecordingExecution.last, history, values=compare)
            if RecordingExecution.last is not None
            else wrong
        )
        if wrong != right_commands:
            pairs = zip_longest(wrong, right_commands)
            first = next((task, pair) for task, pair in enumerate(pairs) if pair[0] != pair[1])
            found.append(f"{mutant.name} on {path.stem}: in task {first}; the right program: {error}")
    return found


GO_JSON = {"delete-namespace", "reclaim-namespace", "reclaim-cancelled", "delete-executions"}
"""Go histories whose arguments are JSON and are compared."""


def _original_definition(mutant: Mutant) -> Any:
    for module in (*PYTHON, *TYPESCRIPT, go_twins):
        if Path(str(module.__file__)) == mutant.source:
            return (
                module.TWINS[mutant.workflow_type]
                if hasattr(module, "TWINS")
                else TWINS[mutant.workflow_type]
            )
    raise LookupError(mutant.name)


def accepted_wrong_programs(module: Any, usual: int) -> list[str]:
    """Return the wrong programs of a module that the replayer accepts: of a selection, or of all if THOROUGH."""
    histories = corpus()
    found: list[str] = []
    tried = 0
    for mutant in wrong_programs((module,), SEED, None if THOROUGH else usual):
        paths = histories.get(mutant.workflow_type, [])
        tried += len(paths)
        found += accepted_histories(mutant, paths if THOROUGH else paths[:2])
    assert tried
    return found


def _stem(module: Any) -> str:
    return str(module.__name__).rpartition(".")[2]


@pytest.mark.parametrize("module", PYTHON, ids=_stem)
def test_replayer_rejects_wrong_programs_for_python_histories(module: Any) -> None:
    assert accepted_wrong_programs(module, 10) == []


@pytest.mark.parametrize("module", TYPESCRIPT, ids=_stem)
def test_replayer_rejects_wrong_programs_for_typescript_histories(module: Any) -> None:
    assert accepted_wrong_programs(module, 3 if module is typescript_random else 12) == []


def test_replayer_rejects_wrong_programs_for_go_histories() -> None:
    assert accepted_wrong_programs(go_twins, 40) == []


def test_core_alone_accepts_some_wrong_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_replayer.Replayer, "_first_difference", lambda *_: None)
    assert accepted_wrong_programs(concurrency, 20) != []
