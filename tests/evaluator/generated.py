"""Random programs for the interpreters, and an engine that answers them at random. It contains no workflow code.

A program is a tree of operations in lists, so it can be an argument of a workflow and shrinks to a readable example.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from hourglass._evaluator import events as ev
from hourglass._evaluator.commands import (
    CancelChildWorkflow,
    CancelSignalExternal,
    CancelTimer,
    Command,
    RequestCancelActivity,
    RequestCancelLocalActivity,
    ScheduleLocalActivity,
    StartChildWorkflow,
)
from hourglass.converter import (
    ApplicationFailure,
    CanceledFailure,
    ChildWorkflowFailure,
    Failure,
)
from hourglass.workflow import ActivityCancellationType, ChildCancellationType

from .driver import EPOCH, SECOND, activity_failure, encode, signal, update
from .protocol import STARTS, Key

Block = list[list[Any]]

kinds = st.sampled_from(["try", "wait", "abandon"])
small = st.integers(0, 4)


def leaves(*, ours: bool) -> st.SearchStrategy[list[Any]]:
    """Generate operations without blocks.

    Programs for live runs (`ours`) omit those that differ from temporalio on purpose: where a result coincides with a
    cancellation, ours is not lost.
    """
    differing = (
        ()
        if ours
        else (
            st.tuples(st.just("until"), st.integers(0, 2), st.just(3)),
            st.tuples(st.just("timed"), kinds, st.just(3)),
            st.tuples(st.just("again"), st.booleans()),
            st.tuples(st.just("child"), st.sampled_from(["try", "wait"])),
            st.tuples(st.just("signal")),
        )
    )
    return st.one_of(
        *differing,
        st.tuples(st.just("act"), kinds),
        st.tuples(st.just("act"), kinds),
        st.tuples(st.just("local"), kinds),
        st.tuples(st.just("start"), kinds),
        st.tuples(st.just("join"), small),
        st.tuples(st.just("sleep"), st.integers(1, 3)),
        st.tuples(st.just("turn")),
        st.tuples(st.just("completed"), st.lists(kinds, min_size=2, max_size=3)),
        st.tuples(st.just("add"), st.integers(1, 3)),
        st.tuples(st.just("until"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("cancel"), small),
        st.tuples(st.just("flag"), st.booleans()),
        st.tuples(st.just("await_flag")),
        st.tuples(st.just("draw")),
        st.tuples(st.just("raise")),
        st.tuples(st.just("cancel_other")),
    ).map(list)


def nested(inner: st.SearchStrategy[list[Any]]) -> st.SearchStrategy[list[Any]]:
    """Generate operations with blocks."""
    block = st.lists(inner, min_size=1, max_size=3)
    when = st.sampled_from(["FIRST_COMPLETED", "FIRST_EXCEPTION", "ALL_COMPLETED"])
    return st.one_of(
        st.tuples(st.just("spawn"), block),
        st.tuples(st.just("spawn"), block),
        st.tuples(st.just("gather"), st.lists(block, min_size=1, max_size=3), st.booleans()),
        st.tuples(st.just("first"), st.lists(block, min_size=1, max_size=3), when, st.sampled_from([0, 2])),
        st.tuples(st.just("limit"), st.integers(0, 3), block),
        st.tuples(st.just("try"), block, block),
        st.tuples(st.just("lock"), block),
        st.tuples(st.just("semaphore"), block),
        st.tuples(st.just("patch"), st.integers(0, 2), block),
    ).map(list)


def programs(*, ours: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """Generate programs: a body, and the operations of the signal handlers."""
    operation = st.recursive(leaves(ours=ours), nested, max_leaves=8)
    return st.fixed_dictionaries(
        {
            "main": st.lists(operation, min_size=2, max_size=6),
            "handlers": st.lists(st.lists(operation, max_size=2), min_size=2, max_size=2),
            "limit": st.just(40),
        }
    )


def coroutine_programs() -> st.SearchStrategy[dict[str, Any]]:
    """Generate programs for coroutines, with asyncio's other operations."""
    leaf = st.one_of(
        leaves(ours=False),
        leaves(ours=False),
        st.sampled_from(
            [["put"], ["get"], ["notify"], ["notified"], ["uncancel"], ["show"], ["called"], ["handled"]]
        ),
        st.tuples(st.just("nap"), st.integers(0, 3)).map(list),
        st.tuples(st.just("later"), st.integers(0, 3)).map(list),
    )

    def outer(inner: st.SearchStrategy[list[Any]]) -> st.SearchStrategy[list[Any]]:
        block = st.lists(inner, min_size=1, max_size=3)
        blocks = st.lists(block, min_size=1, max_size=3)
        more = st.one_of(
            st.tuples(st.just("group"), blocks),
            st.tuples(st.just("bare"), blocks),
            st.tuples(st.just("shield"), block),
            st.tuples(st.just("deeper"), block),
            st.tuples(st.just("timed_block"), st.integers(0, 3), block),
        ).map(list)
        return nested(inner) | more

    operation = st.recursive(leaf, outer, max_leaves=8)
    return st.fixed_dictionaries(
        {
            "main": st.lists(operation, min_size=2, max_size=6),
            "handlers": st.lists(st.lists(operation, max_size=2), min_size=2, max_size=2),
            "limit": st.just(40),
        }
    )


# A script: in each step, which pending commands are answered, in this order, and which other event arrives.
steps = st.lists(
    st.tuples(st.lists(st.integers(0, 11), min_size=1, max_size=4), st.integers(0, 15)),
    min_size=4,
    max_size=40,
)

APPLICATION = Failure("broken", ApplicationFailure(type="Broken"))
CANCELLED = Failure("cancelled", CanceledFailure())
CHILD_CANCELLED = Failure("child", ChildWorkflowFailure(), CANCELLED)
CHILD_FAILED = Failure("child", ChildWorkflowFailure(), APPLICATION)


class RandomEngine:
    """Keeps the pending commands and turns the numbers of a script into events."""

    def __init__(self, *, messages: bool = False) -> None:
        self.messages = messages  # whether updates and signals for a plain handler arrive
        self.updates = 0
        self.pending: dict[Key, Command] = {}
        self.started_children: set[int] = set()
        self.owed: list[ev.AnyEvent] = []
        self.cancel_requested: set[Key] = set()
        self.cancelled = False

    def activations(
        self,
        program: dict[str, Any],
        script: list[tuple[list[int], int]],
        *,
        replaying: bool,
        flags: tuple[int, ...],
    ) -> Iterator[tuple[int, ev.Activation]]:
        """Return the numbered activations of a run that interprets a program, until the script ends or a step has no event."""
        started = ev.RunStarted(
            workflow_type="Interpreted", workflow_id="workflow-1", arguments=(encode(program),), seed=5
        )
        for number, (picks, extra) in enumerate([([], 15), *script]):
            events = self.next_events(picks, extra)
            if number == 0:
                events.insert(0, started)
            if not events:
                return
            yield (
                number,
                ev.Activation(
                    run_id="run-1",
                    events=tuple(events),
                    timestamp_ns=EPOCH + number * SECOND,
                    is_replaying=replaying,
                    flags=flags,
                ),
            )

    def record_command(self, command: Command) -> None:
        """Record a command of the run."""
        kind = STARTS.get(type(command))
        if kind is not None:
            self.pending[kind, command.seq] = command  # type: ignore[attr-defined]
        match command:
            case CancelTimer():
                self.pending.pop(("timer", command.seq), None)
            case RequestCancelActivity() | RequestCancelLocalActivity():
                self._cancel_activity(command.seq)
            case CancelChildWorkflow():
                self._cancel_child(command.seq)
            case CancelSignalExternal():
                if self.pending.pop(("signal", command.seq), None) is not None:
                    self.owed.append(ev.ExternalSignalResolved(command.seq, CANCELLED))
            case _:
                pass

    def _cancel_activity(self, seq: int) -> None:
        command: Any = self.pending.get(("activity", seq))
        if command is None:
            return
        if command.spec.cancellation_type == ActivityCancellationType.WAIT_CANCELLATION_COMPLETED:
            self.cancel_requested.add(("activity", seq))
            return
        del self.pending["activity", seq]
        is_local = isinstance(command, ScheduleLocalActivity)
        self.owed.append(ev.ActivityCancelled(seq, activity_failure(command, CANCELLED), is_local))

    def _cancel_child(self, seq: int) -> None:
        command = self.pending.get(("child", seq))
        if not isinstance(command, StartChildWorkflow):
            return
        self.cancel_requested.add(("child", seq))
        if seq not in self.started_children:
            del self.pending["child", seq]
            self.owed.append(ev.ChildStartCancelled(seq, CHILD_CANCELLED))
        elif command.child.cancellation_type == ChildCancellationType.TRY_CANCEL:
            del self.pending["child", seq]
            self.owed.append(ev.ChildCancelled(seq, CHILD_CANCELLED))

    def next_events(self, picks: list[int], extra: int) -> list[ev.AnyEvent]:
        """Return the events of the next activation."""
        events, self.owed = self.owed, []
        for pick in picks:
            if self.pending:
                keys = sorted(self.pending)
                event = self._answer(keys[pick % len(keys)], pick)
                if isinstance(event, ev.ActivityBackedOff):
                    # In an activation of its own: with a cancellation, temporalio cancels a number that it has not used yet.
                    self.owed = events
                    return [event]
                events.append(event)
        if extra in (0, 1):
            events.append(signal("poke", extra))
        elif self.messages and extra in (4, 5):
            self.updates += 1
            events.append(update("change", extra - 4, id=f"u-{self.updates}"))
        elif self.messages and extra == 6:
            events.append(signal("push", 1))
        elif extra == 2 and not self.cancelled:
            self.cancelled = True
            events.append(ev.CancelRequested("enough"))
        elif extra == 3:  # the run was reset: a new seed and a reapplied signal
            events = [ev.SeedChanged(len(self.pending) + 1), *events, signal("poke", 0)]
        return events

    def _answer(self, key: Key, pick: int) -> ev.AnyEvent:
        kind, seq = key
        command = self.pending.pop(key)
        match kind:
            case "timer":
                return ev.TimerFired(seq)
            case "activity":
                return self._activity(command, key, pick)
            case "signal":
                return ev.ExternalSignalResolved(seq, APPLICATION if pick > 9 else None)
            case "cancel":
                return ev.ExternalCancelResolved(seq, APPLICATION if pick > 9 else None)
            case _:
                return self._child(command, key, pick)

    def _activity(self, command: Any, key: Key, pick: int) -> ev.AnyEvent:
        seq = key[1]
        is_local = isinstance(command, ScheduleLocalActivity)
        if key in self.cancel_requested and pick % 2:
            return ev.ActivityCancelled(seq, activity_failure(command, CANCELLED), is_local)
        if pick > 9:
            return ev.ActivityFailed(seq, activity_failure(command, APPLICATION), is_local)
        if is_local and pick == 9:
            return ev.ActivityBackedOff(seq, max(command.attempt, 1) + 1, 2.0, 10**18)
        return ev.ActivityCompleted(seq, encode(pick), is_local)

    def _child(self, command: Any, key: Key, pick: int) -> ev.AnyEvent:
        seq = key[1]
        if seq not in self.started_children:
            if pick > 9:
                return ev.ChildStartFailed(seq, command.workflow_id, command.workflow_type)
            self.started_children.add(seq)
            self.pending[key] = command
            return ev.ChildStarted(seq, "run of a child")
        if key in self.cancel_requested and pick % 2:
            return ev.ChildCancelled(seq, CHILD_CANCELLED)
        if pick > 9:
            return ev.ChildFailed(seq, CHILD_FAILED)
        return ev.ChildCompleted(seq, encode(pick))
