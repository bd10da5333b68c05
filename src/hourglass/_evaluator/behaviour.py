"""In what a run's order of things differs by who began it, and by what its history has recorded (I9): one table.

A run that temporalio began keeps temporalio's order of things when it is replayed or goes on here; a run of ours keeps
what held when it went that way. `Behaviour` names each difference; the code asks the run's behaviour and nothing else:
`run.behaviour.cancellation_beats_condition`. docs/compatibility.md shows the same table, held to this one by a test.

What a history records are flags: numbers that a worker says it used. 1 and 2 are temporalio's own and mean here what they
mean there; ours begin at 1000. A difference that is a flag holds where the flag is recorded, and in runs that go on: it
is taken into use, and recorded, when the code first comes to it (`LiveRun.holds`). Must not know: runs, fibers, events.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import TypeAlias

import msgspec


class Flag(IntEnum):
    """What a history may record of the order of things. A number never changes its meaning."""

    CANCEL_BEATS_RESULT = 1
    SINGLE_BATCH = 2
    HOURGLASS = 1000


Recorded: TypeAlias = bool | Flag
"""A difference that holds, does not hold, or holds where its flag is recorded or may be taken into use."""

NO_FLAGS: frozenset[int] = frozenset()
OUR_FLAGS: frozenset[int] = frozenset({int(Flag.HOURGLASS)})


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """The order of things in one run."""

    events_apply_at_once: bool = False
    """All events of an activation are applied before any code runs; else messages first, and their handlers run."""

    seeds_follow_messages: bool = True
    """A reset's new seed holds for what runs after the messages that come with it; else for their handlers too."""

    updates_wait_for_handlers: bool = True
    """An update without a handler is tried again when the body has first blocked: it may have registered one."""

    closed_runs_are_silent: bool = True
    """A run that has sent its last command answers nothing more."""

    taken_child_ids_are_named: bool = True
    """A child whose id is taken fails with a message that names the id; else in temporalio's words."""

    other_tasks_cancellation_ends_run: bool = False
    """A body that lets another task's cancellation out ends as if it had been cancelled from within."""

    cancel_beats_activity_result: Recorded = Flag.CANCEL_BEATS_RESULT
    """Cancelling an activity whose result came in the same activation raises."""

    cancel_beats_child_result: Recorded = True
    """The same for a child."""

    cancellation_survives_answer: bool = True
    """Who is cancelled while the answer of another workflow is there already sees the cancellation; else it is lost."""

    cancellation_beats_awaited_answer: bool = False
    """A coroutine that is cancelled while the answer of a child or of another workflow is there already sees the cancellation."""

    waiting_takes_request_back: bool = False
    """A cancellation that is passed on to another workflow counts no longer as a request to the one who waits."""

    cancellation_beats_condition: bool = False
    """A wait for a condition during which the workflow was asked to cancel raises, whatever ended the wait."""

    cancellation_beats_limited_wait: bool = True
    """Who is cancelled while what it waits for with a limit is done already sees the cancellation; else it is lost."""

    limited_waits_are_blocks: bool = False
    """A wait with a limit takes the turns of `asyncio.wait_for` of Python 3.12 and later; else those of 3.11."""

    gathering_done_takes_no_turn: bool = False
    """A gather of what is done already goes on at once, as from Python 3.12 on; else a turn later, as in 3.11."""

    limits_know_their_cancellation: bool = True
    """A limit turns into `TimeoutError` what itself cancelled; else whatever came while no other request was open."""

    outer_cancellation_goes_on: bool = True
    """A limit that expires while one cleans up after a cancellation from further out lets that one go on."""

    python_is_unknown: bool = False
    """The turns depend on the Python that wrote the history, which that does not say: both are tried."""


OURS = Behaviour()
"""A run that Hourglass began."""

TEMPORALIO = Behaviour(
    updates_wait_for_handlers=False,
    closed_runs_are_silent=False,
    taken_child_ids_are_named=False,
    other_tasks_cancellation_ends_run=True,
    cancel_beats_child_result=False,
    cancellation_survives_answer=False,
    waiting_takes_request_back=True,
    cancellation_beats_limited_wait=False,
    limits_know_their_cancellation=False,
    outer_cancellation_goes_on=False,
    python_is_unknown=True,
)
"""A run that temporalio began, on Python 3.11 or before."""

NEWER_PYTHON = {"limited_waits_are_blocks": True, "gathering_done_takes_no_turn": True}
"""In what a run differs that temporalio began on Python 3.12 or later."""

SINGLE_BATCH = {
    "events_apply_at_once": True,
    "seeds_follow_messages": False,
    "cancel_beats_activity_result": True,
    "cancel_beats_child_result": True,
    "cancellation_survives_answer": True,
    "cancellation_beats_awaited_answer": True,
    "cancellation_beats_condition": True,
}
"""In what a task differs whose history records temporalio's flag 2."""


@cache
def behaviour_of(*, ours: bool, single_batch: bool = False, newer_python: bool = False) -> Behaviour:
    """The behaviour of a run; one object for all that are alike."""
    changes = dict(SINGLE_BATCH) if single_batch else {}
    if newer_python and not ours:
        changes |= NEWER_PYTHON
    return msgspec.structs.replace(OURS if ours else TEMPORALIO, **changes)
