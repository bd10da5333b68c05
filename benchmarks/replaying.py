"""Part `replay`: elapsed and CPU time per activation while a history is replayed.

Each subject receives the history in its native form, converted in advance. Work that a subject does once per history falls into
the first round and does not affect the median.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

import uvloop
from temporalio.api.history.v1 import History as HistoryMessage
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer as PeerReplayer
from temporalio.worker import UnsandboxedWorkflowRunner

from hourglass.replay import History, Replayer

from . import core_alone, subjects_hourglass, subjects_temporalio
from .made_histories import sequence_history
from .report import Row, interleave

_REPETITIONS = {10: 60, 100: 12, 1000: 2}


def measure(*, quick: bool) -> list[Row]:
    """Replay sequences of 10, 100 and 1,000 activities."""
    rows = []
    for steps, times in _REPETITIONS.items():
        if quick and steps > 100:
            continue
        history = sequence_history(steps)
        message = HistoryMessage(events=history.events).SerializeToString()
        subjects: dict[str, Callable[[], None]] = {
            "temporalio": partial(_run_peer, history, times, sandboxed=True),
            "temporalio unsandboxed": partial(_run_peer, history, times, sandboxed=False),
            "Core alone": partial(_run_core, message, times),
            "Hourglass": partial(_run_ours, History.from_json(history.to_json()), times),
        }
        timed = {name: _per_activation(run, times * (steps + 1)) for name, run in subjects.items()}
        rows += interleave(timed, rounds=3 if quick else 7, part="replay", case=f"{steps} activities")
    return rows


def _per_activation(run: Callable[[], None], activations: int) -> Callable[[], dict[str, float]]:
    def timed() -> dict[str, float]:
        elapsed, cpu = time.perf_counter(), time.process_time()
        run()
        elapsed, cpu = time.perf_counter() - elapsed, time.process_time() - cpu
        return {"µs/activation": elapsed / activations * 1e6, "µs CPU/act.": cpu / activations * 1e6}

    return timed


def _run_peer(history: WorkflowHistory, times: int, *, sandboxed: bool) -> None:
    asyncio.run(_replay_peer(history, times, sandboxed=sandboxed))


def _run_core(message: bytes, times: int) -> None:
    uvloop.run(core_alone.replay(message, times))


async def _replay_peer(history: WorkflowHistory, times: int, *, sandboxed: bool) -> None:
    definitions = [subjects_temporalio.Sequence]
    if sandboxed:
        replayer = PeerReplayer(workflows=definitions)
    else:
        replayer = PeerReplayer(workflows=definitions, workflow_runner=UnsandboxedWorkflowRunner())

    async def histories() -> AsyncIterator[WorkflowHistory]:
        for _ in range(times):
            yield history

    await replayer.replay_workflows(histories(), raise_on_replay_failure=True)


def _run_ours(history: History, times: int) -> None:
    with Replayer(workflows=[subjects_hourglass.sequence]) as replayer:
        for _ in range(times):
            replayer.replay(history)
