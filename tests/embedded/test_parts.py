"""Clocks, failure and time formats of the embedded engine."""

from __future__ import annotations

import asyncio
import json
from typing import get_args

import pytest
from temporalio.api.enums.v1 import WorkflowTaskFailedCause

from hourglass._embedded import RealClock, VirtualClock
from hourglass._history import shapes, times
from hourglass._history.tables import TASK_FAILURE_CAUSES, write_failure
from hourglass.converter import Failure, FailureInfo

from .memory_world import text


def test_virtual_clock_advances_only_on_request() -> None:
    clock = VirtualClock(0)
    log: list[tuple[int, str]] = []

    def note(what: str) -> None:
        log.append((clock.now_ns(), what))

    clock.call_at(2, lambda: note("second"))
    clock.call_at(1, lambda: clock.call_at(1, lambda: note("nested")) and note("first"))
    clock.call_at(1, lambda: note("never"))()
    clock.call_at(2, lambda: note("third"))
    assert clock.next_due_ns() == 1
    clock.advance(3e-9)
    assert log == [(1, "first"), (1, "nested"), (2, "second"), (2, "third")]
    assert (clock.now_ns(), clock.advance_to_next()) == (3, False)
    with pytest.raises(ValueError, match="cannot be moved back"):
        clock.advance(-1)


def test_overdue_callback_runs_at_the_current_time() -> None:
    clock = VirtualClock(10)
    seen: list[int] = []
    clock.call_at(5, lambda: seen.append(clock.now_ns()))
    assert clock.advance_to_next()
    assert seen == [10]


async def test_real_clock_runs_due_callbacks_on_its_loop() -> None:
    clock = RealClock()
    done = asyncio.get_running_loop().create_future()
    clock.call_at(clock.now_ns(), lambda: pytest.fail("cancelled"))()
    clock.call_at(clock.now_ns() + 1000, lambda: done.set_result(clock.now_ns()))
    assert await done <= clock.now_ns()


async def test_real_clock_sleeps_in_intervals() -> None:
    """A distant callback wakes up repeatedly to read the wall clock."""
    clock = RealClock()
    clock.longest_wait = 0.0
    offsets = iter([0, 0, 5, 10**12])
    start = clock.now_ns()
    clock.now_ns = lambda: start + next(offsets)  # type: ignore[method-assign]
    done = asyncio.get_running_loop().create_future()
    clock.call_at(start + 10**12, lambda: done.set_result(None))
    await done
    assert next(offsets, "used up") == "used up"


def test_temporal_reads_every_failure_kind() -> None:
    from google.protobuf.json_format import Parse
    from temporalio.api.failure.v1 import Failure as ProtoFailure

    for info in get_args(FailureInfo):
        document = write_failure(Failure("m", info(), cause=Failure("c"), encoded_attributes=text("e")))
        proto = Parse(json.dumps(document), ProtoFailure())
        assert proto.WhichOneof("failure_info") is not None
        assert (proto.message, proto.cause.message) == ("m", "c")


def test_task_failure_causes_match_temporals() -> None:
    for number, name in TASK_FAILURE_CAUSES.items():
        assert WorkflowTaskFailedCause.Value(f"WORKFLOW_TASK_FAILED_CAUSE_{name}") == number


def test_times_and_durations_round_trip() -> None:
    assert times.moment_text(1_700_000_000_000_000_001) == "2023-11-14T22:13:20.000000001Z"
    assert times.moment_text(1_700_000_000_000_500_000) == "2023-11-14T22:13:20.000500Z"
    assert times.moment_text(1_700_000_000_500_000_000) == "2023-11-14T22:13:20.500Z"
    assert times.moment_text(1_700_000_000_000_000_000) == "2023-11-14T22:13:20Z"
    assert [shapes.write_seconds(each) for each in (0.0, 0.5, 30.0, 100.25)] == [
        "0s",
        "0.5s",
        "30s",
        "100.25s",
    ]
