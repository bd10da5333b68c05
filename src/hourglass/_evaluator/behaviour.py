"""Differences in the order of events between runs, by the SDK that began a run and by the flags in its
history (I9), in one table.

A run that temporalio began keeps temporalio's order when it is replayed or continued here; a run of ours
keeps the order that was valid when it was recorded. `Behaviour` names each difference; code only reads the
run's behaviour: `run.behaviour.cancellation_beats_condition`. docs/compatibility.md shows the same table; a test
compares them.

A history records flags: numbers that a worker has used. 1 and 2 are temporalio's own, with the same meaning;
ours begin at 1000. A difference with a flag applies if the flag is recorded, and in runs that continue: then
it is used, and recorded, when the code first reaches it (`LiveRun.holds`). Must not know: runs, fibers,
events.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import TypeAlias

import msgspec


class Flag(IntEnum):
    """The flags in a history that concern the order of events. A number never changes its meaning."""

    CANCEL_BEATS_RESULT = 1
    SINGLE_BATCH = 2
    HOURGLASS = 1000


Recorded: TypeAlias = bool | Flag
"""A difference that applies, does not apply, or applies if its flag is recorded or may be used."""

NO_FLAGS: frozenset[int] = frozenset()
OUR_FLAGS: frozenset[int] = frozenset({int(Flag.HOURGLASS)})


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """The order of events in one run."""

    events_apply_at_once: bool = False
    """All events of an activation are applied before any code runs; else messages and their handlers come
    first.
    """

    seeds_follow_messages: bool = True
    """A reset's new seed applies after the messages that come with it; else to their handlers too."""

    updates_wait_for_handlers: bool = True
    """An update without a handler is retried when the body has first blocked, because the body may have
    registered one.
    """

    closed_runs_are_silent: bool = True
    """A run that has sent its last command sends no more commands."""

    taken_child_ids_are_named: bool = True
    """The failure for a child id already in use names the id; else it has temporalio's message."""

    other_tasks_cancellation_ends_run: bool = False
    """A body that raises another task's cancellation ends as if it had been cancelled from within."""

    cancel_beats_activity_result: Recorded = Flag.CANCEL_BEATS_RESULT
    """Cancelling an activity whose result came in the same activation raises."""

    cancel_beats_child_result: Recorded = True
    """Cancelling a child whose result came in the same activation raises."""

    cancellation_survives_answer: bool = True
    """A fiber that is cancelled when the answer of another workflow has already arrived receives the
    cancellation; else it is lost.
    """

    cancellation_beats_awaited_answer: bool = False
    """A coroutine that is cancelled when the answer of a child or of another workflow has already arrived
    receives the cancellation.
    """

    waiting_takes_request_back: bool = False
    """A cancellation that is passed on to another workflow no longer counts as a request to the waiting
    fiber.
    """

    cancellation_beats_condition: bool = False
    """A wait for a condition raises if the workflow was cancelled meanwhile, whatever ended the wait."""

    cancellation_beats_limited_wait: bool = True
    """A fiber that is cancelled when its wait with a timeout has already ended receives the cancellation;
    else it is lost.
    """

    limited_waits_are_blocks: bool = False
    """A wait with a timeout takes the turns of `asyncio.wait_for` in Python 3.12 and later; else those of
    3.11.
    """

    gathering_done_takes_no_turn: bool = False
    """A gather of finished tasks continues at once, as from Python 3.12 on; else a turn later, as in 3.11."""

    limits_know_their_cancellation: bool = True
    """A timeout raises `TimeoutError` only for its own cancellation; else for any cancellation while no other
    request was open.
    """

    outer_cancellation_goes_on: bool = True
    """A timeout that expires during the cleanup after an outer cancellation lets the outer one continue."""

    python_is_unknown: bool = False
    """The turns depend on the Python version, which the history does not record: both are tried."""


OURS = Behaviour()
"""The behaviour of a run that Hourglass began."""

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
"""The behaviour of a run that temporalio began, on Python 3.11 or before."""

NEWER_PYTHON = {"limited_waits_are_blocks": True, "gathering_done_takes_no_turn": True}
"""The differences of a run that temporalio began on Python 3.12 or later."""

SINGLE_BATCH = {
    "events_apply_at_once": True,
    "seeds_follow_messages": False,
    "cancel_beats_activity_result": True,
    "cancel_beats_child_result": True,
    "cancellation_survives_answer": True,
    "cancellation_beats_awaited_answer": True,
    "cancellation_beats_condition": True,
}
"""The differences of a task whose history records temporalio's flag 2."""


@cache
def behaviour_of(*, ours: bool, single_batch: bool = False, newer_python: bool = False) -> Behaviour:
    """Return the behaviour of a run; equal ones are the same object."""
    changes = dict(SINGLE_BATCH) if single_batch else {}
    if newer_python and not ours:
        changes |= NEWER_PYTHON
    return msgspec.structs.replace(OURS if ours else TEMPORALIO, **changes)
