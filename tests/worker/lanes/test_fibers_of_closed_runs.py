"""Runs that the engine closed while they had fibers: their lane unwinds them."""

from __future__ import annotations

import threading

from hourglass import workflow
from hourglass._worker.lanes.cache import Key, StateCache
from hourglass.client import Client
from hourglass.worker import Worker

from ..scripted import start
from .lane_world import stage
from .test_cache import evaluations


def test_discarded_state_with_fibers_is_unwound_by_its_own_lane() -> None:
    cache = StateCache()
    lane, other = evaluations(cache), evaluations(cache)
    stage.ended.clear()
    lane.evaluate(start("r", "adds", "left to its lane"))
    left = cache.discard(Key("q", "r"))
    assert left is not None
    assert (len(cache), stage.ended) == (0, [])
    other.drop(left)
    assert stage.ended == []
    lane.drop(left)
    lane.drop(left)
    assert stage.ended == ["left to its lane"]
    assert (lane.counts.live, lane.counts.cached, lane.unwound) == (0, 0, 1)
    assert cache.discard(Key("q", "r")) is None


class Meeting:
    """Synchronization between a query and a test."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()
        self.unwound = 0


meeting = Meeting()


@workflow.defn
class Waits:
    @workflow.run
    def run(self) -> None:
        try:
            workflow.wait_condition(lambda: False)
        finally:
            meeting.unwound += 1

    @workflow.query
    def slowly(self) -> str:
        meeting.asked.set()
        meeting.answer.wait(20)
        return "here"


@workflow.defn
def returns() -> int:
    return 1


def test_run_terminated_during_a_query_is_unwound() -> None:
    with (
        Client.connect("local:") as client,
        Worker(
            client, workflows=[Waits, returns], lanes=1, deadlock_timeout=60, verify="off", watch="off"
        ) as worker,
    ):
        handle = client.start_workflow(Waits)
        answers: list[str] = []
        asking = threading.Thread(target=lambda: answers.append(handle.query(Waits.slowly)))
        asking.start()
        assert meeting.asked.wait(20)
        handle.terminate("enough")
        meeting.answer.set()
        asking.join(20)
        assert answers == ["here"]
        assert client.execute_workflow(returns) == 1  # queued behind the unwinding
        seen = worker.statistics()
        assert (meeting.unwound, seen.cached_workflows, seen.live_workflows) == (1, 0, 0)
