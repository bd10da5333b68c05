"""One table of all differences between runs in the order of events, by the SDK that began the run and by the
flags in its history (I9).

A run that temporalio began keeps temporalio's order when it is replayed or continued here. A run that Hourglass
began keeps the order that was valid when it was recorded. `Behaviour` names each difference, and all other code
only reads the run's behaviour: `run.behaviour.cancellation_beats_condition`. docs/compatibility.md shows the
same table, and a test compares the two.

A history records flags: the numbers of the differences that a worker has used. Flags 1 and 2 are temporalio's
and have the same meaning here. Our own flags begin at 1000. A difference with a flag applies if the history
records the flag. It also applies once a run is not replaying: the flag is recorded when the code first reaches
the difference (`LiveRun.holds`). Must not know: runs, fibers, events.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import TypeAlias

import msgspec


class Flag(IntEnum):
    """The flags in a history that affect the order of events. The meaning of a number never changes."""

    CANCEL_BEATS_RESULT = 1
    SINGLE_BATCH = 2
    HOURGLASS = 1000


Recorded: TypeAlias = bool | Flag
"""Whether a difference applies: always, never, or (a flag) if the flag is recorded or the run is not replaying.
"""

NO_FLAGS: frozenset[int] = frozenset()
OUR_FLAGS: frozenset[int] = frozenset({int(Flag.HOURGLASS)})


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """The order of events in one run."""

    events_apply_at_once: bool = False
    """All events of an activation are applied before any code runs. Otherwise, messages are applied and handled
    first.
    """

    seeds_follow_messages: bool = True
    """The new seed of a reset takes effect after the messages of its activation have been handled. Otherwise,
    their handlers already use it.
    """

    updates_wait_for_handlers: bool = True
    """An update without a handler is tried a second time after the body has first blocked, because the body may
    have registered the handler by then.
    """

    closed_runs_are_silent: bool = True
    """A run that has sent its last command sends no further commands."""

    taken_child_ids_are_named: bool = True
    """The failure for a child id that is already in use contains the id. Otherwise, it has temporalio's
    message.
    """

    other_tasks_cancellation_ends_run: bool = False
    """A run whose body raises the cancellation of another task fails as if the workflow had cancelled itself."""

    cancel_beats_activity_result: Recorded = Flag.CANCEL_BEATS_RESULT
    """Cancelling an activity whose result arrived in the same activation raises the cancellation in the waiting
    code.
    """

    cancel_beats_child_result: Recorded = True
    """Cancelling a child whose result arrived in the same activation raises the cancellation in the waiting
    code.
    """

    cancellation_survives_answer: bool = True
    """A fiber that is cancelled after the answer of another workflow has arrived receives the cancellation.
    Otherwise, the cancellation is lost.
    """

    cancellation_beats_awaited_answer: bool = False
    """A coroutine that is cancelled after the answer of a child or of another workflow has arrived receives the
    cancellation.
    """

    waiting_takes_request_back: bool = False
    """A cancellation that is passed on to another workflow no longer counts as a request to the waiting
    fiber.
    """

    cancellation_beats_condition: bool = False
    """A wait for a condition raises the cancellation if the workflow was cancelled during the wait, regardless
    of how the wait ended.
    """

    cancellation_beats_limited_wait: bool = True
    """A fiber that is cancelled after its wait with a timeout has ended receives the cancellation. Otherwise,
    the cancellation is lost.
    """

    limited_waits_are_blocks: bool = False
    """A wait with a timeout takes as many turns as `asyncio.wait_for` in Python 3.12 and later. Otherwise, it
    takes as many as in 3.11.
    """

    gathering_done_takes_no_turn: bool = False
    """A gather of finished tasks continues immediately, as in Python 3.12 and later. Otherwise, it continues
    one turn later, as in 3.11.
    """

    limits_know_their_cancellation: bool = True
    """A timeout raises `TimeoutError` only for the cancellation that it requested itself. Otherwise, it does so
    for any cancellation while no other request is pending.
    """

    outer_cancellation_goes_on: bool = True
    """A timeout that expires during the cleanup after an outer cancellation does not stop the outer
    cancellation.
    """

    python_is_unknown: bool = False
    """The number of turns depends on the Python version, which the history does not record, so both numbers are
    tried.
    """


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
"""The values that differ from `TEMPORALIO` for a run that temporalio began on Python 3.12 or later."""

SINGLE_BATCH = {
    "events_apply_at_once": True,
    "seeds_follow_messages": False,
    "cancel_beats_activity_result": True,
    "cancel_beats_child_result": True,
    "cancellation_survives_answer": True,
    "cancellation_beats_awaited_answer": True,
    "cancellation_beats_condition": True,
}
"""The values that change for a task whose history records temporalio's flag 2."""


@cache
def behaviour_of(*, ours: bool, single_batch: bool = False, newer_python: bool = False) -> Behaviour:
    """Return the behaviour of a run. The result is cached, so that equal behaviours are the same object."""
    changes = dict(SINGLE_BATCH) if single_batch else {}
    if newer_python and not ours:
        changes |= NEWER_PYTHON
    return msgspec.structs.replace(OURS if ours else TEMPORALIO, **changes)
