"""`breakpoint()` in workflow code may stop it for any time."""

from __future__ import annotations

import sys
import threading

import pytest

from hourglass import Client, Worker, activity, workflow


@activity.defn
def add(a: int, b: int) -> int:
    return a + b


@workflow.defn
def with_breakpoint() -> int:
    first = add(1, 2)
    breakpoint()
    return add(first, 10)


@pytest.mark.server
def test_run_at_a_breakpoint_continues_after_its_workflow_task_timed_out(
    hourglass_client: Client, hourglass_task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[str] = []
    given_up = threading.Event()

    def stop_until_timed_out(*args: object, **kwargs: object) -> None:
        stops.append(threading.current_thread().name)
        assert given_up.wait(30)

    monkeypatch.setattr(sys, "breakpointhook", stop_until_timed_out)
    with Worker(
        hourglass_client, hourglass_task_queue, workflows=[with_breakpoint], activities=[add], verify="always"
    ):
        handle = hourglass_client.start_workflow(
            with_breakpoint, task_queue=hourglass_task_queue, task_timeout=1
        )
        for _ in range(1000):
            types = [event["eventType"] for event in handle.history().events]
            if "EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT" in types:
                break
        given_up.set()
        assert handle.result(timeout=30) == 13
    assert len(stops) == 1
    assert stops[0].startswith("hourglass-lane")
