"""I1 by comparison: random programs run under Temporal's own instance and under ours, on the same activations.

The commands, their numbers and their arguments must be equal, activation by activation. Runs with no flag of ours are compared
as they replay (a foreign history), with each combination of temporalio's flags; live runs are compared too, up to where they
follow a rule of ours that is not temporalio's.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from tests.effort import cases

from hourglass._evaluator.commands import TERMINAL, Succeeded

from .asyncio_turns import NEWER, OLDER, turns_of
from .driver import open_run
from .generated import RandomEngine, programs, steps
from .interpreted_async import InterpretedAsync
from .interpreted_plain import InterpretedPlain, departures
from .official import Official, brief_of_ours

relaxed = settings(
    max_examples=cases(200, 2000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


FLAGS: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (1, 2))
"""Of temporalio's flags each combination."""


def compare(
    program: dict[str, Any],
    script: list[tuple[list[int], int]],
    *,
    replaying: bool,
    flags: tuple[int, ...],
    turns: str = OLDER,
) -> None:
    """Drive both with the same events until the run closes or the script ends.

    `turns` says whose asyncio temporalio's instance has.
    """
    with turns_of(turns):
        _compare(program, script, replaying=replaying, flags=flags, newer_turns=turns == NEWER)


def _compare(
    program: dict[str, Any],
    script: list[tuple[list[int], int]],
    *,
    replaying: bool,
    flags: tuple[int, ...],
    newer_turns: bool,
) -> None:
    ours = open_run(InterpretedPlain, newer_turns=newer_turns)
    theirs = Official(InterpretedAsync, 5)
    engine = RandomEngine()
    departures.clear()
    try:
        for number, activation in engine.activations(program, script, replaying=replaying, flags=flags):
            expected = theirs.activate(activation)
            completion = ours.activate(activation)
            assert isinstance(completion, Succeeded), repr(ours.error)
            if departures:
                assert not replaying, departures
                break
            produced = brief_of_ours(completion.commands)
            assert produced == expected, f"activation {number}: {activation.events}"
            for command in completion.commands:
                engine.issued(command)
            if any(isinstance(command, TERMINAL) for command in completion.commands):
                break
    finally:
        theirs.evict()
        ours.drop()


@relaxed
@given(programs(), steps)
def test_foreign_histories_replay_in_the_same_order(
    program: dict[str, Any], script: list[tuple[list[int], int]]
) -> None:
    """A random program issues the same commands as temporalio's, when replaying what another SDK recorded: with each combination
    of temporalio's flags, and whichever asyncio it had. (To make a program takes longer than to run it.)
    """
    for flags, turns in product(FLAGS, (OLDER, NEWER)):
        note(f"with temporalio's flags {flags}, and asyncio {turns}")
        compare(program, script, replaying=True, flags=flags, turns=turns)


@relaxed
@given(programs(ours=True), steps)
def test_live_runs_take_the_same_order(program: dict[str, Any], script: list[tuple[list[int], int]]) -> None:
    """A live run issues the same commands as temporalio's (but where our flag says otherwise)."""
    compare(program, script, replaying=False, flags=())


# Programs on which the two once differed, as they were found.
FOUND: dict[str, tuple[list[Any], list[tuple[list[int], int]]]] = {
    "a child's start with its cancellation": (
        [["child", "try"], ["act", "try"]],
        [([0], 2), ([0], 0)],
    ),
    "two timeouts in one activation": (
        [["limit", 1, [["limit", 1, [["act", "try"]]], ["act", "try"]]]],
        [([2, 1], 9), ([0], 9), ([0], 9)],
    ),
    "a timeout that fires behind its block": (
        [["limit", 1, [["cancel_other"]]], ["act", "try"]],
        [([0, 0], 9), ([0], 9)],
    ),
    "the end of a pause with a cancellation": (
        [["local", "try"]],
        [([9], 9), ([0], 2), ([0], 9)],
    ),
    "a condition's timeout with a cancellation": (
        [["turn"], ["first", [[["until", 1, 3], ["act", "try"]]], "FIRST_COMPLETED", 0]],
        [([0], 2), ([0], 0)],
    ),
    "an inner timeout while the outer one is cleaned up after": (
        [["limit", 1, [["limit", 1, [["timed", "try", 3]]], ["until", 0, 3]]]],
        [([1], 9), ([0], 9), ([0], 9), ([0], 9)],
    ),
    "a task that asks itself to stop in a block whose time is up": (
        [
            ["spawn", [["limit", 3, [["timed", "try", 3], ["cancel", 0]]], ["local", "try"], ["act", "try"]]],
            ["sleep", 3],
        ],
        [([0, 1], 9), ([0], 9), ([0], 9)],
    ),
    "the same as hypothesis met it": (
        [
            ["until", 0, 3],
            ["timed", "try", 3],
            ["until", 0, 3],
            [
                "spawn",
                [
                    ["add", 1],
                    ["limit", 3, [["timed", "try", 3], ["cancel", 0], ["draw"]]],
                    ["limit", 1, [["local", "try"]]],
                ],
            ],
            ["until", 0, 3],
            ["gather", [[["until", 0, 3], ["child", "try"]], [["until", 0, 3]]], False],
        ],
        [([0], 0), ([0, 0, 0, 0], 0), ([0], 0), ([0], 0)],
    ),
    "one who waits with a limit is cancelled, and then what it waits for": (
        [["first", [[["timed", "try", 3]], [["cancel", 0], ["cancel", 2]]], "FIRST_COMPLETED", 0]],
        [([0], 9)],
    ),
    "a limit of nothing": (
        [["limit", 0, [["act", "try"]]], ["limit", 0, [["add", 1]]], ["act", "try"]],
        [([0], 9), ([0], 9)],
    ),
    "a signal to another within a limit that runs out": (
        [["limit", 2, [["signal"], ["act", "try"]]]],
        [([1], 9), ([0], 2)],
    ),
    "a child's start within a limit, and a cancellation": (
        [["limit", 3, [["child", "wait"], ["act", "try"]]]],
        [([1], 9), ([0], 2)],
    ),
    "a reset's seed with a signal": (
        [["draw"], ["sleep", 1], ["draw"], ["act", "try"]],
        [([0], 3), ([0], 9)],
    ),
    "a gather of what is done": (
        [
            ["spawn", [["act", "try"], ["again", False], ["act", "try"]]],
            ["sleep", 1],
            ["turn"],
            ["act", "try"],
            ["sleep", 1],
        ],
        [([0, 0], 9), ([0], 9)],
    ),
}

# The same of live runs.
FOUND_LIVE: dict[str, tuple[list[Any], list[tuple[list[int], int]]]] = {
    "a limit of nothing": FOUND["a limit of nothing"],
    "a reset's seed with a signal": FOUND["a reset's seed with a signal"],
    "a limit that begins while one cleans up after a cancellation": (
        [["try", [["until", 1, 0]], [["limit", 1, [["act", "try"]]]]]],
        [([0], 2), ([4, 1], 9)],
    ),
}


@pytest.mark.parametrize("turns", [OLDER, NEWER])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("name", FOUND)
def test_fixed_replay_differences_stay_fixed(name: str, flags: tuple[int, ...], turns: str) -> None:
    """Small programs whose order once differed from temporalio's."""
    main, script = FOUND[name]
    program = {"main": main, "handlers": [[["draw"]], []], "limit": 40}
    compare(program, script, replaying=True, flags=flags, turns=turns)


@pytest.mark.parametrize("name", FOUND_LIVE)
def test_fixed_live_differences_stay_fixed(name: str) -> None:
    """Small programs whose live runs once differed from temporalio's."""
    main, script = FOUND_LIVE[name]
    compare({"main": main, "handlers": [[["draw"]], []], "limit": 40}, script, replaying=False, flags=())
    assert not departures
