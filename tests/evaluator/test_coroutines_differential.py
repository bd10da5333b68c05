"""I1 for `async def`: random programs of coroutines, under Temporal's own instance and under ours, on the same activations.

The two workflows are one source with other imports. Their commands, numbers and arguments must be equal, activation by
activation: as a history of temporalio's replays here, with each of its flags, and as a run that begins here, which
temporalio may have to replay.
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
from .test_order_differential import FLAGS, FOUND

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
    """Drive both with the same events until the run closes or the script ends.

    Our live coroutines are thrown away after the activations of `drop`: they must come back the same.
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
                engine.issued(command)
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
def test_histories_of_temporalio_replay_in_the_same_order(
    program: dict[str, Any], script: list[tuple[list[int], int]]
) -> None:
    """A random program of coroutines issues the same commands as temporalio's, when what temporalio recorded is replayed, with
    each combination of its flags.
    """
    for flags in FLAGS:
        note(f"with temporalio's flags {flags}")
        compare(program, script, replaying=True, flags=flags)


@relaxed
@given(coroutine_programs(), steps, st.frozensets(st.integers(0, 12), max_size=3))
def test_live_runs_take_the_same_order(
    program: dict[str, Any], script: list[tuple[list[int], int]], drop: frozenset[int]
) -> None:
    """A run that begins here issues the same commands as temporalio's, also after its coroutines were thrown away and brought
    back; and executed again it asks for the same.
    """
    compare(program, script, replaying=False, flags=(), drop=drop)


# Programs in which a cancellation meets something else; those of plain workflows, and what only coroutines have.
MEETINGS: dict[str, tuple[list[Any], list[tuple[list[int], int]]]] = {
    **FOUND,
    "cancelled before it began": (
        [["start", "try"], ["cancel", 0], ["start", "wait"], ["cancel", 1], ["join", 0], ["act", "try"]],
        [([0], 9), ([0], 9), ([0], 9)],
    ),
    "a group of which one fails while the others clean up": (
        [["group", [[["sleep", 1], ["raise"]], [["try", [["act", "wait"]], [["act", "try"]]]]]]],
        [([1], 9), ([1], 9), ([0], 9), ([0], 9)],
    ),
    "a shield that is given up, and what it shields": (
        [["limit", 1, [["shield", [["act", "try"], ["act", "try"]]]]], ["act", "try"]],
        [([1], 9), ([0], 9), ([0], 9), ([0], 9)],
    ),
    "a limit within a limit, both around a block that is waited for": (
        [["timed_block", 2, [["timed_block", 1, [["child", "wait"]]], ["act", "try"]]]],
        [([2, 1], 9), ([0], 9), ([0], 9)],
    ),
    "requests to cancel that are taken back": (
        [["try", [["act", "wait"]], [["uncancel"], ["limit", 1, [["signal"]]], ["act", "try"]]]],
        [([], 2), ([1], 9), ([0], 9), ([1], 9), ([0], 9)],
    ),
    "one signal's handler wakes the body, which asks whether it has ended": (
        [["await_flag"], ["handled"], ["act", "try"]],
        [([], 6), ([0], 9), ([0], 9)],
    ),
    "a context of its own for each task": (
        [["deeper", [["show"], ["deeper", [["show"]]]]], ["show"], ["act", "try"]],
        [([0], 9)],
    ),
    "an update that does things, and one that is refused": (
        [["until", 2, 0], ["act", "try"]],
        [([], 4), ([], 5), ([0], 9), ([0], 9)],
    ),
}


@pytest.mark.parametrize("flags", [None, (), (1,), (2,)], ids=["live", "no flags", "flag 1", "flag 2"])
@pytest.mark.parametrize("name", MEETINGS)
def test_coinciding_events_have_temporalios_order(name: str, flags: tuple[int, ...] | None) -> None:
    """Small programs in which a cancellation, a timeout or a message coincides with another event."""
    main, script = MEETINGS[name]
    program = {"main": main, "handlers": [[["draw"]], [["act", "try"]]], "limit": 40}
    compare(program, script, replaying=flags is not None, flags=flags or ())
