"""I1 by comparison: random programs, executed by temporalio and by Hourglass on the same activations.

Commands, sequence numbers and arguments must be equal in every activation. Histories of temporalio are replayed with each
combination of its flags. Live runs are compared up to the point where our order of events differs on purpose.
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
"""Every combination of temporalio's flags."""


def compare(
    program: dict[str, Any],
    script: list[tuple[list[int], int]],
    *,
    replaying: bool,
    flags: tuple[int, ...],
    turns: str = OLDER,
) -> None:
    """Deliver the same events to both until the run closes or the script ends.

    `turns` selects the version of asyncio under temporalio.
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
                engine.record_command(command)
            if any(isinstance(command, TERMINAL) for command in completion.commands):
                break
    finally:
        theirs.evict()
        ours.drop()


@relaxed
@given(programs(), steps)
def test_replayed_programs_issue_the_commands_of_temporalio(
    program: dict[str, Any], script: list[tuple[list[int], int]]
) -> None:
    """All flags and versions of asyncio share one generated program, because generation takes longer than execution."""
    for flags, turns in product(FLAGS, (OLDER, NEWER)):
        note(f"with temporalio's flags {flags}, and asyncio {turns}")
        compare(program, script, replaying=True, flags=flags, turns=turns)


@relaxed
@given(programs(ours=True), steps)
def test_live_programs_issue_the_commands_of_temporalio(
    program: dict[str, Any], script: list[tuple[list[int], int]]
) -> None:
    compare(program, script, replaying=False, flags=())


# Programs for which the two once differed, as Hypothesis found them.
REPLAY_DIFFERENCES: dict[str, tuple[list[Any], list[tuple[list[int], int]]]] = {
    "a child's start with its cancellation": (
        [["child", "try"], ["act", "try"]],
        [([0], 2), ([0], 0)],
    ),
    "two timeouts in one activation": (
        [["limit", 1, [["limit", 1, [["act", "try"]]], ["act", "try"]]]],
        [([2, 1], 9), ([0], 9), ([0], 9)],
    ),
    "a timeout that fires after its block": (
        [["limit", 1, [["cancel_other"]]], ["act", "try"]],
        [([0, 0], 9), ([0], 9)],
    ),
    "the end of a back-off with a cancellation": (
        [["local", "try"]],
        [([9], 9), ([0], 2), ([0], 9)],
    ),
    "a condition's timeout with a cancellation": (
        [["turn"], ["first", [[["until", 1, 3], ["act", "try"]]], "FIRST_COMPLETED", 0]],
        [([0], 2), ([0], 0)],
    ),
    "an inner timeout during the cleanup of the outer one": (
        [["limit", 1, [["limit", 1, [["timed", "try", 3]]], ["until", 0, 3]]]],
        [([1], 9), ([0], 9), ([0], 9), ([0], 9)],
    ),
    "a task that cancels itself in a timed-out block": (
        [
            ["spawn", [["limit", 3, [["timed", "try", 3], ["cancel", 0]]], ["local", "try"], ["act", "try"]]],
            ["sleep", 3],
        ],
        [([0, 1], 9), ([0], 9), ([0], 9)],
    ),
    "a task that cancels itself, not minimized": (
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
    "a wait with a timeout is cancelled, then the awaited activity": (
        [["first", [[["timed", "try", 3]], [["cancel", 0], ["cancel", 2]]], "FIRST_COMPLETED", 0]],
        [([0], 9)],
    ),
    "a timeout of zero": (
        [["limit", 0, [["act", "try"]]], ["limit", 0, [["add", 1]]], ["act", "try"]],
        [([0], 9), ([0], 9)],
    ),
    "an external signal in a block that times out": (
        [["limit", 2, [["signal"], ["act", "try"]]]],
        [([1], 9), ([0], 2)],
    ),
    "a child's start in a timeout block, and a cancellation": (
        [["limit", 3, [["child", "wait"], ["act", "try"]]]],
        [([1], 9), ([0], 2)],
    ),
    "a reset's seed with a signal": (
        [["draw"], ["sleep", 1], ["draw"], ["act", "try"]],
        [([0], 3), ([0], 9)],
    ),
    "a gather of finished tasks": (
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

# Programs for which live runs once differed.
LIVE_DIFFERENCES: dict[str, tuple[list[Any], list[tuple[list[int], int]]]] = {
    "a timeout of zero": REPLAY_DIFFERENCES["a timeout of zero"],
    "a reset's seed with a signal": REPLAY_DIFFERENCES["a reset's seed with a signal"],
    "a timeout that begins during cleanup after a cancellation": (
        [["try", [["until", 1, 0]], [["limit", 1, [["act", "try"]]]]]],
        [([0], 2), ([4, 1], 9)],
    ),
}


@pytest.mark.parametrize("turns", [OLDER, NEWER])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("name", REPLAY_DIFFERENCES)
def test_event_order_of_known_programs_equals_temporalios_on_replay(
    name: str, flags: tuple[int, ...], turns: str
) -> None:
    main, script = REPLAY_DIFFERENCES[name]
    program = {"main": main, "handlers": [[["draw"]], []], "limit": 40}
    compare(program, script, replaying=True, flags=flags, turns=turns)


@pytest.mark.parametrize("name", LIVE_DIFFERENCES)
def test_event_order_of_known_programs_equals_temporalios_on_first_execution(name: str) -> None:
    main, script = LIVE_DIFFERENCES[name]
    compare({"main": main, "handlers": [[["draw"]], []], "limit": 40}, script, replaying=False, flags=())
    assert not departures
