"""What temporalio's users may look for beyond the usual: ids and randomness of several kinds, handlers as values, the next run
after a pause.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from hourglass import ApplicationError, workflow
from hourglass.errors import QueryFailedError

from .scenario import scenario
from .world import World, successor

# --- randomness -------------------------------------------------------------------------------------------------------


class OddError(Exception):
    """A failure of this family's own."""


@workflow.defn(failure_exceptions=[OddError])
class Drawing:
    """Draws from every source, and tells what follows from what."""

    @workflow.run
    def run(self) -> dict[str, Any]:
        """Draw, wait, draw again."""
        same, named, other = workflow.new_random(), workflow.new_random("a"), workflow.new_random("b")
        seed = workflow.random_seed()
        first, milliseconds = workflow.uuid7(), workflow.time_ns() // 1_000_000
        workflow.sleep(0.01)
        second = workflow.uuid7()
        workflow.new_random("late")
        return {
            "same": same.random() == Random(seed).random(),
            "apart": len({named.random(), other.random(), Random(seed).random()}) == 3,
            "version": [first.version, second.version, first.variant == second.variant],
            "time": first.int >> 80 == milliseconds,
            "sorted": first < second,
            "instance": workflow.instance() is self,
            "reason": workflow.cancellation_reason(),
            "fails": [
                workflow.is_failure_exception(e) for e in (OddError(), ApplicationError("x"), ValueError())
            ],
            "payload": workflow.payload_converter().encode([1]).data.decode(),
        }


@scenario()
def randomness_of_every_kind(world: World) -> None:
    """Sources follow from the seed, UUIDs of version 7 from the time of the task, and facts of the run are values."""
    assert world.run(Drawing.run) == {
        "same": True,
        "apart": True,
        "version": [7, 7, True],
        "time": True,
        "sorted": True,
        "instance": True,
        "reason": None,
        "fails": [True, True, False],
        "payload": "[1]",
    }


@workflow.defn
def seeded() -> list[Any]:
    """Tells whether what follows the seed was told of a new one, by a reset."""
    seeds: list[int] = []
    source = workflow.new_random("x")
    workflow.register_random_seed_callback(seeds.append)
    before = workflow.random_seed()
    workflow.sleep(0.01)  # a reset goes back to here
    go = workflow.Channel("go", str)
    go.receive()
    seed = workflow.random_seed()
    return [
        seeds == ([] if seed == before else [seed]),
        seed != before,
        source.random() == Random(f"{seed}:x").random(),
    ]


@scenario("loose")
def sources_follow_a_new_seed(world: World) -> None:
    """After a reset the run draws other numbers, from every source that it has, and its callbacks are told."""
    handle = world.start(seeded)
    world.until(handle, "WORKFLOW_TASK_COMPLETED", 2)
    again = handle.reset()
    again.signal("go", "on")
    assert again.result() == [True, True, True]


# --- handlers as values -----------------------------------------------------------------------------------------------


@workflow.defn
class Changing:
    """Its handlers are set, replaced and taken away while it runs."""

    def __init__(self) -> None:
        self.got: list[str] = []

    @workflow.run
    def run(self) -> list[Any]:
        """Until it is told to end."""
        workflow.set_signal_handler("put", self.put)
        workflow.set_update_handler("change", self.change, validator=self.refuse)
        answer = workflow.get_query_handler("count")
        assert answer is not None
        workflow.set_query_handler("again", answer)
        workflow.set_dynamic_query_handler(lambda name, args: f"no {name}")
        workflow.set_query_handler("gone", self.count)
        workflow.set_query_handler("gone", None)
        workflow.set_dynamic_query_handler(None)
        known = [workflow.get_signal_handler("put") is not None, workflow.get_signal_handler("other")]
        workflow.wait_condition(lambda: "end" in self.got)
        return [*known, workflow.get_dynamic_query_handler(), *self.got]

    def put(self, item: str) -> None:
        """Keep it."""
        self.got.append(item)

    def change(self, item: str) -> int:
        """Keep it, too."""
        self.got.append(item)
        return len(self.got)

    def refuse(self, item: str) -> None:
        """What is empty is refused."""
        if not item:
            raise ApplicationError("nothing")

    @workflow.query
    def count(self) -> int:
        """How many there are."""
        return len(self.got)


@scenario("loose")
def handlers_that_are_set_and_taken_away(world: World) -> None:
    """A method becomes a handler while the run goes on, one handler has two names, and one that was taken away is gone."""
    handle = world.start(Changing.run)
    handle.signal("put", "a")
    assert handle.execute_update("change", "b") in (1, 2)
    assert handle.query("again") == handle.query("count")
    with pytest.raises(QueryFailedError):
        handle.query("gone")
    handle.signal("put", "end")
    told = handle.result()
    assert told[:3] == [True, None, None]
    assert sorted(told[3:]) == ["a", "b", "end"]


# --- the next run -----------------------------------------------------------------------------------------------------


@workflow.defn
def pausing(rest: int) -> list[Any]:
    """Continues as new, and lets the next run wait."""
    if not rest:
        return [workflow.info().start_time > workflow.info().workflow_start_time]
    try:
        workflow.continue_as_new(rest - 1, backoff_start_interval=1)
    except workflow.ContinueAsNewError:
        raise
    except Exception:  # it is none
        return ["held"]


@scenario("loose")
def the_next_run_waits_before_it_begins(world: World) -> None:
    """`continue_as_new(backoff_start_interval=…)` begins the next run after a pause; both histories tell of it."""
    handle = world.start(pausing, 1)
    assert handle.result() == [True]
    first, second = world.histories()
    told = first.events[-1]["workflowExecutionContinuedAsNewEventAttributes"]
    begun = second.events[0]["workflowExecutionStartedEventAttributes"]
    assert told["backoffStartInterval"] == begun["firstWorkflowTaskBackoff"] == "1s"
    assert successor(first)
