"""Replay of histories through Core, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable

import pytest

from hourglass._contract.handle import Shutdown
from hourglass._evaluator import commands as cmd
from hourglass._evaluator import events as ev
from hourglass.errors import HistoryError
from hourglass.replay import History
from hourglass.testing import DevServer

from . import live

Evaluate = Callable[[ev.Activation], tuple[cmd.Command, ...]]

_QUEUE = {"name": "q", "kind": "TASK_QUEUE_KIND_NORMAL"}
_TASK = {"scheduledEventId": "2", "startedEventId": "3"}
TIMER_HISTORY = [
    (
        "WORKFLOW_EXECUTION_STARTED",
        {"workflowType": {"name": "Sample"}, "taskQueue": _QUEUE, "originalExecutionRunId": "run-1"},
    ),
    ("WORKFLOW_TASK_SCHEDULED", {"taskQueue": _QUEUE, "attempt": 1}),
    ("WORKFLOW_TASK_STARTED", {"scheduledEventId": "2"}),
    ("WORKFLOW_TASK_COMPLETED", _TASK),
    ("TIMER_STARTED", {"timerId": "1", "startToFireTimeout": "5s", "workflowTaskCompletedEventId": "4"}),
    ("TIMER_FIRED", {"timerId": "1", "startedEventId": "5"}),
    ("WORKFLOW_TASK_SCHEDULED", {"taskQueue": _QUEUE, "attempt": 1}),
    ("WORKFLOW_TASK_STARTED", {"scheduledEventId": "7"}),
    ("WORKFLOW_TASK_COMPLETED", {"scheduledEventId": "7", "startedEventId": "8"}),
    ("WORKFLOW_EXECUTION_COMPLETED", {"workflowTaskCompletedEventId": "9"}),
]


def _attributes(kind: str) -> str:
    first, *rest = kind.lower().split("_")
    return first + "".join(word.capitalize() for word in rest) + "EventAttributes"


def events() -> list[bytes]:
    """Return the history above as `GetHistory` does."""
    return [
        json.dumps(
            {
                "eventId": str(at),
                "eventTime": f"2026-01-01T00:00:{at:02}Z",
                "eventType": f"EVENT_TYPE_{kind}",
                _attributes(kind): attributes,
            }
        ).encode()
        for at, (kind, attributes) in enumerate(TIMER_HISTORY, 1)
    ]


def encoded(recorded: Iterable[bytes]) -> bytes:
    return History.from_events("w", recorded).replayable


def sleeper(activation: ev.Activation) -> tuple[cmd.Command, ...]:
    """The workflow of that history: it sleeps and returns."""
    for event in activation.events:
        if isinstance(event, ev.RunStarted):
            return (cmd.StartTimer(1, 5 * 10**9),)
        if isinstance(event, ev.TimerFired):
            return (cmd.CompleteRun(live.value(None)),)
    return ()


async def replayed(handle: live.ReplayingHandle, evaluate: Evaluate) -> ev.RunEvicted:
    """Complete activations until the run is evicted, and return the eviction."""
    while True:
        activation = await handle.next_activation()
        evicted = [event for event in activation.events if isinstance(event, ev.RunEvicted)]
        commands = () if evicted else evaluate(activation)
        await handle.complete(cmd.Succeeded(activation.run_id, commands))
        if evicted:
            return evicted[0]


async def close(handle: live.ReplayingHandle) -> None:
    handle.initiate_shutdown()
    with pytest.raises(Shutdown):
        await handle.next_activation()
    await handle.finalize()


async def test_history_of_unchanged_code_replays() -> None:
    handle = live.replay_handle()
    for number in range(3):
        await handle.push(f"w-{number}", encoded(events()))
        assert (await replayed(handle, sleeper)).reason in ("WORKFLOW_EXECUTION_ENDING", "LANG_REQUESTED")
    await close(handle)


async def test_history_of_changed_code_is_evicted_for_nondeterminism() -> None:
    def other(activation: ev.Activation) -> tuple[cmd.Command, ...]:
        return (cmd.CompleteRun(live.value(None)),)

    handle = live.replay_handle()
    await handle.push("w", encoded(events()))
    evicted = await replayed(handle, other)
    assert evicted.reason == "NONDETERMINISM"
    assert evicted.message
    await handle.push("w", encoded(events()))
    assert (await replayed(handle, sleeper)).reason != "NONDETERMINISM"
    await close(handle)


def test_malformed_history_is_rejected_before_it_is_replayed() -> None:
    with pytest.raises(HistoryError):
        encoded(events()[1:])
    with pytest.raises(HistoryError):
        encoded([b"\xff"])
    with pytest.raises(HistoryError, match="nothing to replay"):
        encoded(events()[:1])


async def test_replay_handle_without_a_history_shuts_down() -> None:
    handle = live.replay_handle()
    poll = asyncio.create_task(handle.next_activation())
    await asyncio.wait([poll], timeout=0.05)
    handle.initiate_shutdown()
    with pytest.raises(Shutdown):
        await poll
    await handle.finalize()


@pytest.mark.server
async def test_history_recorded_on_a_server_replays(server: DevServer) -> None:
    queue = live.unique("q")
    async with live.connected(server.target) as connection, live.working(connection, queue):
        await connection.call(live.start(queue, queue))
        await live.outcome(connection, queue)
        recorded = await live.history(connection, queue)
    replays: list[bool] = []

    def evaluate(activation: ev.Activation) -> tuple[cmd.Command, ...]:
        replays.append(activation.is_replaying)
        return live.one_activity(activation)

    handle = live.replay_handle()
    await handle.push(queue, encoded(recorded))
    assert (await replayed(handle, evaluate)).reason != "NONDETERMINISM"
    assert replays[0]
    assert len(replays) == 2
    await close(handle)
