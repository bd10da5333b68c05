"""Replay of open runs: `ok` tells whether a worker of the engine that holds the run continues it on changed code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from hourglass import Client, History, Replayer, Worker, activity, workflow
from hourglass.errors import WorkflowNotFoundError
from hourglass.testing import DevServer

go = workflow.Channel("go", str)


@activity.defn
def act(value: str) -> str:
    return value


# The command of the recorded code before its n-th signal, and the number of signals.
SHAPES: dict[str, tuple[dict[int, str], int]] = {
    "one empty task": ({}, 0),
    "two empty tasks": ({}, 1),
    "three empty tasks": ({}, 2),
    "activity, one empty task": ({0: "activity"}, 0),
    "activity, two empty tasks": ({0: "activity"}, 1),
    "timer, two empty tasks": ({0: "timer"}, 2),
    "activity after a signal, two empty tasks": ({1: "activity"}, 2),
    "patch, two empty tasks": ({0: "patch"}, 2),
    "local activity, two empty tasks": ({0: "local activity"}, 2),
}
ADDED = ("activity", "timer", "memo", "patch", "local activity", "return", "error", "cancelled timer")
CHANGES: dict[str, tuple[int, str]] = {
    **{f"{what} before signal {at}": (at, what) for what in ADDED for at in range(3)},
    "nothing": (99, ""),
    "first step removed": (0, "removed"),
}


def take_step(what: str, timers: list[Any]) -> None:
    """Issue one command."""
    match what:
        case "activity":
            workflow.execute_activity("act", "x", start_to_close_timeout=60)
        case "timer":
            timers.append(workflow.spawn(workflow.sleep, 3600))
        case "cancelled timer" if timers:
            timers[0].cancel()
        case "memo":
            workflow.upsert_memo({"note": 1})
        case "patch":
            workflow.patched("change")
        case "local activity":
            workflow.execute_local_activity("act", "x", start_to_close_timeout=10)
        case "error":
            raise RuntimeError("a bug")


def entity(shape: str, change: str, *, changed: bool) -> Any:
    """Return a workflow that waits for signals, as recorded or changed."""
    record_open_run, _ = SHAPES[shape]
    where, what = CHANGES[change] if changed else (99, "")

    def run() -> str:
        timers: list[Any] = []
        for number in range(50):
            if number == where and what == "return":
                return "early"
            if number == where and what != "removed":
                take_step(what, timers)
            if number in record_open_run and not (number == where and what == "removed"):
                take_step(record_open_run[number], timers)
            go.receive()
        return "late"

    return workflow.defn(name=f"{shape}; {change}")(run)


def entities(*, changed: bool) -> list[Any]:
    """Return all combinations of shapes and changes."""
    return [entity(shape, change, changed=changed) for shape in SHAPES for change in CHANGES]


def wait_for(pairs: dict[str, Any], ready: Callable[[str, list[dict[str, Any]]], bool]) -> None:
    """Wait until the histories of all runs are ready."""
    unready = dict(pairs)

    def are_ready() -> bool:
        for name, handle in list(unready.items()):
            if ready(name, handle.history().events):
                del unready[name]
        return not unready

    until(are_ready, "not all runs became ready", limit=300)


def event_types(events: list[dict[str, Any]]) -> list[str]:
    return [event["eventType"].removeprefix("EVENT_TYPE_") for event in events]


@contextmanager
def target_of(engine: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the target of an engine that keeps its runs while no worker is connected."""
    if engine == "embedded":
        yield f"local:{folder / 'runs.db'}"
    else:
        server: DevServer = request.getfixturevalue("quick_server")
        yield server.target


ENGINES = [pytest.param("embedded"), pytest.param("temporal", marks=pytest.mark.server)]


@pytest.mark.parametrize("engine", ENGINES)
def test_replay_of_an_open_run_agrees_with_a_worker_of_its_engine(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """For every change of an entity workflow, before and after the next signal, `ok` tells whether a worker with
    the changed code continues the open run. The result names the engine, and the engines whose workers would
    reject the run."""
    continued: dict[str, bool] = {}
    queue = f"open-runs-{engine}"
    with target_of(engine, tmp_path, request) as target, Client.connect(target) as client:
        runs = {}
        options: dict[str, Any] = {"task_queue": queue, "activities": [act], "verify": "off"}
        with Worker(client, workflows=entities(changed=False), **options):
            for shape in SHAPES:
                for change in CHANGES:
                    name = f"{shape}; {change}"
                    runs[name] = client.start_workflow(name, id=name, task_queue=queue)
            for number in range(3):
                # A run is at rest when a task has completed after its n-th signal.
                def at_rest(name: str, events: list[dict[str, Any]], number: int = number) -> bool:
                    seen = event_types(events)
                    expected = min(number, SHAPES[name.partition(";")[0]][1])
                    return (
                        seen.count("WORKFLOW_EXECUTION_SIGNALED") == expected
                        and seen[-1] not in ("WORKFLOW_TASK_SCHEDULED", "WORKFLOW_TASK_STARTED")
                        and seen[-1] not in ("WORKFLOW_EXECUTION_SIGNALED", "WORKFLOW_EXECUTION_STARTED")
                        and not seen[-1].startswith("ACTIVITY")
                    )

                wait_for(runs, at_rest)
                for name, handle in runs.items():
                    if number < SHAPES[name.partition(";")[0]][1]:
                        handle.signal("go", "on")
        before = {name: handle.history() for name, handle in runs.items()}
        for handle in runs.values():
            handle.signal("go", "on")
        pending = {name: handle.history() for name, handle in runs.items()}
        with Worker(client, workflows=entities(changed=True), **options):

            def decided(name: str, events: list[dict[str, Any]]) -> bool:
                for kind in event_types(events[len(before[name]) :]):
                    if kind in ("WORKFLOW_TASK_COMPLETED", "WORKFLOW_TASK_FAILED"):
                        continued[name] = kind == "WORKFLOW_TASK_COMPLETED"
                        return True
                return False

            wait_for(runs, decided)
        for handle in runs.values():
            with suppress(WorkflowNotFoundError):  # it has returned
                handle.terminate()

    wrong = []
    with Replayer(workflows=entities(changed=True)) as replayer:
        for name, is_continued in continued.items():
            after = replayer.try_replay(pending[name])
            result = replayer.try_replay(before[name])
            raises_next = name.endswith(f"error before signal {SHAPES[name.partition(';')[0]][1] + 1}")
            assert result.engine == after.engine == engine
            if after.ok is not is_continued or (result.ok is not is_continued and not raises_next):
                wrong.append(f"{name}: worker {is_continued}, replay {result.ok} and {after.ok}")
            if (engine in result.refused_by) is not (not result.ok):
                wrong.append(f"{name}: {result.refused_by}")
    assert wrong == []


def record_open_run(signals: int) -> History:
    """Return the open history of an entity that issued no command after its signals."""
    with Client.connect("local:") as client, Worker(client, workflows=[waits_for_end_signal], verify="off"):
        handle = client.start_workflow(waits_for_end_signal)
        for number in range(signals + 1):
            limit = time.monotonic() + 60
            while event_types(handle.history().events).count("WORKFLOW_TASK_COMPLETED") <= number:
                assert time.monotonic() < limit
            if number < signals:
                handle.signal("go", "on")
        return handle.history()


@workflow.defn(name="waits")
def waits_for_end_signal() -> None:
    while go.receive() != "end":
        pass


@workflow.defn(name="waits")
def calls_activity_after_second_signal() -> None:
    go.receive()
    go.receive()
    workflow.execute_activity("act", "x", start_to_close_timeout=60)  # here


def without_sdk_name(history: History) -> History:
    """Return the history without the fields that tell its engine."""
    events = json.loads(history.to_json())["events"]
    for event in events:
        completed = event.get("workflowTaskCompletedEventAttributes")
        if completed is not None:
            completed["sdkMetadata"] = {"coreUsedFlags": [1, 2, 3], "sdkName": "temporal-python"}
    return History.from_json(json.dumps({"events": events}))


def with_task_ids(history: History) -> History:
    """Return the history with task ids, as a server writes them."""
    events = json.loads(history.to_json())["events"]
    for event in events:
        event["taskId"] = str(1_000_000 + int(event["eventId"]))
    return History.from_json(json.dumps({"events": events}))


def test_new_command_in_an_empty_last_task_is_rejected_by_the_embedded_engine_only() -> None:
    """The replay rejects it too if the history does not tell its engine."""
    history = record_open_run(2)
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.endswith("# here")
    )
    with Replayer(workflows=[calls_activity_after_second_signal]) as replayer:
        embedded = replayer.try_replay(history)
        server = replayer.try_replay(with_task_ids(history))
        unknown = replayer.try_replay(without_sdk_name(history))
    assert (embedded.engine, server.engine, unknown.engine) == ("embedded", "temporal", "")
    assert (embedded.ok, server.ok, unknown.ok) == (False, True, False)
    assert {embedded.refused_by, server.refused_by, unknown.refused_by} == {("embedded",)}
    assert not server.does_the_same
    assert f":{line}" in str(embedded.error)


def test_moments_of_an_open_run_end_with_its_last_empty_task() -> None:
    history = record_open_run(2)
    with Replayer(workflows=[waits_for_end_signal]) as replayer:
        moments, result = replayer.moments(history)
    assert result.ok
    assert len(moments) == 3
