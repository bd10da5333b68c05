"""I1 for `async def`: random coroutine programs, executed by temporalio and by Hourglass on the same activations.

Both workflows are one source with different imports. Their commands, sequence numbers and arguments must be equal in every
activation: when Hourglass replays a history of temporalio, with each of temporalio's flags, and in a live run of Hourglass,
which temporalio may have to replay.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.aio.porting import ported_module
from tests.effort import cases

from hourglass._evaluator.commands import TERMINAL, Succeeded, TaskFailed

from . import interpreted_coroutines
from .driver import open_run, verify
from .generated import RandomEngine, coroutine_programs, steps
from .interpreted_coroutines import Interpreted
from .official import Official, brief_of_ours
from .test_order_differential import FLAGS, REPLAY_DIFFERENCES

relaxed = settings(
    max_examples=cases(100, 1000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

OURS = ported_module(interpreted_coroutines.__file__, "tests.evaluator.interpreted_ported").Interpreted


def compare(
    program: dict[str, Any],
    script: list[tuple[list[int], int]],
    *,
    replaying: bool,
    flags: tuple[int, ...],
    drop: frozenset[int] = frozenset(),
) -> None:
    """Deliver the same events to both until the run closes or the script ends.

    Our fibers are dropped after the activations of `drop`; re-execution must restore them.
    """
    ours = open_run(OURS, verify=not replaying)
    theirs = Official(Interpreted, 5, counting=False)
    engine = RandomEngine(messages=True)
    try:
        for number, activation in engine.activations(program, script, replaying=replaying, flags=flags):
            expected = theirs.activate(activation)
            completion = ours.activate(activation)
            if expected and expected[0][0] == "task failed":
                assert isinstance(completion, TaskFailed)
                break
            assert isinstance(completion, Succeeded), repr(ours.error)
            produced = brief_of_ours(completion.commands)
            assert produced == expected, f"activation {number}: {activation.events}"
            for command in completion.commands:
                engine.record_command(command)
            if any(isinstance(command, TERMINAL) for command in completion.commands):
                break
            if number in drop:
                ours.drop()
        if not replaying:
            assert verify(ours) is None
    finally:
        theirs.evict()
        ours.drop()


@relaxed
@given(coroutine_programs(), steps)
def test_replayed_coroutines_issue_the_commands_of_temporalio(
    program: dict[str, Any], script: list[tuple[list[int], int]]
) -> None:
    for flags in FLAGS:
        note(f"with temporalio's flags {flags}")
        compare(program, script, replaying=True, flags=flags)


@relaxed
@given(coroutine_programs(), steps, st.frozensets(st.integers(0, 12), max_size=3))
def test_live_coroutines_issue_the_commands_of_temporalio(
    program: dict[str, Any], script: list[tuple[list[int], int]], drop: frozenset[int]
) -> None:
    """The result also holds after fibers were dropped, and re-execution issues the same commands."""
    compare(program, script, replaying=False, flags=(), drop=drop)


# Programs in which a cancellation coincides with another event: those of plain workflows, and some for coroutines only.
COINCIDENCES: dict[str, tuple[list[Any], list[tuple[list[int], int]]]] = {
    **REPLAY_DIFFERENCES,
    "task cancelled before it began": (
        [["start", "try"], ["cancel", 0], ["start", "wait"], ["cancel", 1], ["join", 0], ["act", "try"]],
        [([0], 9), ([0], 9), ([0], 9)],
    ),
    "task group in which a task fails while another cleans up": (
        [["group", [[["sleep", 1], ["raise"]], [["try", [["act", "wait"]], [["act", "try"]]]]]]],
        [([1], 9), ([1], 9), ([0], 9), ([0], 9)],
    ),
    "timeout around a shield": (
        [["limit", 1, [["shield", [["act", "try"], ["act", "try"]]]]], ["act", "try"]],
        [([1], 9), ([0], 9), ([0], 9), ([0], 9)],
    ),
    "nested timeouts around an awaited block": (
        [["timed_block", 2, [["timed_block", 1, [["child", "wait"]]], ["act", "try"]]]],
        [([2, 1], 9), ([0], 9), ([0], 9)],
    ),
    "uncancel": (
        [["try", [["act", "wait"]], [["uncancel"], ["limit", 1, [["signal"]]], ["act", "try"]]]],
        [([], 2), ([1], 9), ([0], 9), ([1], 9), ([0], 9)],
    ),
    "signal handler wakes a body that waits for handlers": (
        [["await_flag"], ["handled"], ["act", "try"]],
        [([], 6), ([0], 9), ([0], 9)],
    ),
    "context variables of tasks": (
        [["deeper", [["show"], ["deeper", [["show"]]]]], ["show"], ["act", "try"]],
        [([0], 9)],
    ),
    "accepted and rejected update": (
        [["until", 2, 0], ["act", "try"]],
        [([], 4), ([], 5), ([0], 9), ([0], 9)],
    ),
}


@pytest.mark.parametrize("flags", [None, (), (1,), (2,)], ids=["live", "no flags", "flag 1", "flag 2"])
@pytest.mark.parametrize("name", COINCIDENCES)
def test_coinciding_events_are_handled_in_the_order_of_temporalio(
    name: str, flags: tuple[int, ...] | None
) -> None:
    main, script = COINCIDENCES[name]
    program = {"main": main, "handlers": [[["draw"]], [["act", "try"]]], "limit": 40}
    compare(program, script, replaying=flags is not None, flags=flags or ())
