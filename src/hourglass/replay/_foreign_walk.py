"""Replay of a history of another SDK without Core. Task by task, events are delivered, and the resulting commands are
compared.

Core cannot replay these histories: it accepts only its own markers and ids, and expects commands in the order of its own
languages. The rules for delivering outcomes are the embedded engine's, and match Core's. Invariants: a task's commands are
compared after all events of the task have been delivered. The first difference ends the replay. No activity or other effect
is executed.

`Origins` records for each command its position in the code, its fiber, and its place in the order of each SDK. The class is
pure and must not know: events, or the effects of commands. Two timers of the same length that were started in one task look
the same in a history, and only the order of the commands distinguishes them. That order differs between SDKs: TypeScript and
.NET run a spawned function immediately, Python and Hourglass run it in the next turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from hourglass._embedded.activations.cursor import rank, run_started, worker_event_of
from hourglass._embedded.activations.outcomes import BadCommand, Outcomes
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.behaviour import Flag
from hourglass._evaluator.call_sites import NOWHERE, Site
from hourglass._evaluator.interception import (
    SleepInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)
from hourglass._evaluator.state import CommandId, PathStep
from hourglass._evaluator.words import CommandSummary
from hourglass._history.events import (
    ActivityTaskCancelRequested,
    ActivityTaskScheduled,
    HistoryEvent,
    UpdateRequest,
    WorkflowExecutionStarted,
    WorkflowExecutionUpdateAccepted,
    WorkflowExecutionUpdateAdmitted,
)
from hourglass.errors import HistoryError, NondeterminismError
from hourglass.replay._comparison import changed_value, mismatch
from hourglass.replay._foreign_markers import Decode, MarkedTask, VersionMark, marked_tasks
from hourglass.replay._foreign_matching import ForeignLocalActivities, pair_up
from hourglass.replay._issued import summarize_issued, summarize_local, unknown_command
from hourglass.replay._session import HistoryExecution

# Order of simultaneous events, and the search for the order that another SDK used. Pure; must not know the
# events' contents or how commands are compared.
#
# Events that occur between two workflow tasks are delivered in one task. Whether a signal's handler runs
# before the body, and the winner of two timers that fired in the same task, differ between SDKs. So a
# history is first replayed in its own order. If that does not fit, the latest task with alternatives, at or
# before the one that failed, is delivered in another order, and so on, a limited number of times.
#
# `ShortSleeps`: for `workflow.sleep(0)` the SDKs of TypeScript and .NET start a timer of one millisecond;
# Python's and ours only yield for a turn. If such a history contains timers of one millisecond, a sleep of 0
# is replayed as one of them.


_SHORT_SLEEP = 0.001
_SHORT_SLEEP_NS = 1_000_000


def has_millisecond_timers(summaries: Iterable[Any]) -> bool:
    """Return whether a history contains timers of one millisecond."""
    return any(summary.duration_ns == _SHORT_SLEEP_NS for summary in summaries)


class ShortSleeps(WorkflowInboundInterceptor):
    """An interceptor that replaces sleeps of 0 seconds by timers of one millisecond."""

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """Install the outbound interceptor for the run."""
        self.next.init(_ShortSleepCalls(outbound))


class _ShortSleepCalls(WorkflowOutboundInterceptor):
    def sleep(self, input: SleepInput) -> None:
        if input.duration == 0:
            input.duration = _SHORT_SLEEP
        self.next.sleep(input)


_MODES = 6
"""The number of possible orders of delivery for the events of a task.

The orders are: all together; messages first; one by one; one by one in reverse; all together, but timers last and in
reverse; one by one, but timers last and in reverse.
"""
_MODES_WITHOUT_TIMERS = 4  # the number of modes if there are no timers to reorder
_MAX_TRIES = 48
_MAX_EVENTS = 50_000  # upper limit of events over all attempts
_RANK_AFTER_MESSAGES = 3  # messages have lower ranks, and are delivered before all other events


class Order(msgspec.Struct, frozen=True):
    """The delivery order of each task, by the task's index. Tasks without an entry use the first order."""

    modes: Mapping[int, int] = {}
    """The delivery order by task index. Numbers beyond the last delivery order repeat the delivery orders with another
    pairing of commands.
    """
    late_updates: bool = False
    """Whether updates wait for handlers that the body registers."""
    eager: bool = False
    """Whether commands are first paired as if spawned functions began immediately."""

    def choices(self, due: Sequence[e.AnyEvent]) -> int:
        """Return the number of possible orders of delivery for these events."""
        if len([event for event in due if rank(event) > 1]) < 2 and not _meets_start(due):
            return 1
        return _MODES if len(_timers(due)) > 1 else _MODES_WITHOUT_TIMERS

    def of(self, index: int, due: list[e.AnyEvent]) -> tuple[tuple[int, ...], list[list[e.AnyEvent]]]:
        """Return the flags for a task, and the batches in which the task's events are delivered."""
        mode = self.modes.get(index, 0) % self.choices(due)
        flags = (
            *((Flag.SINGLE_BATCH,) if mode != 1 else ()),
            *((Flag.HOURGLASS,) if self.late_updates else ()),
        )
        if mode > 3:
            due = [*_others(due), *reversed(_timers(due))]
        if mode in (0, 1, 4):
            return flags, [due] if due else []
        messages = [event for event in due if rank(event) < _RANK_AFTER_MESSAGES]
        batches = [[event] for event in due if rank(event) >= _RANK_AFTER_MESSAGES]
        ordered = batches[::-1] if mode == 3 else batches
        return flags, [messages, *ordered] if messages else ordered

    def pairing_of(self, index: int, choices: int) -> int:
        """Return the pairing order of a task's commands; `choices` is the number of delivery orders."""
        pairing = self.modes.get(index, 0) // choices
        return 1 - pairing if self.eager and pairing < 2 else pairing


def _timers(due: Sequence[e.AnyEvent]) -> list[e.AnyEvent]:
    return [event for event in due if isinstance(event, e.TimerFired)]


def _others(due: Sequence[e.AnyEvent]) -> list[e.AnyEvent]:
    return [event for event in due if not isinstance(event, e.TimerFired)]


def _meets_start(due: Sequence[e.AnyEvent]) -> bool:
    return len(due) > 1 and isinstance(due[0], e.RunStarted)


class TurnSearch:
    """An iterator over the orders to try. The caller rejects an order that does not match before it takes the next."""

    def __init__(self, event_count: int, *, has_updates: bool, eager: bool = False) -> None:
        self._tries = max(3, min(_MAX_TRIES, _MAX_EVENTS // max(event_count, 1)))
        self._late_updates = (False, True) if has_updates else (False,)
        self._modes: dict[int, int] = {}
        self._again = True
        self._eager = eager

    def reject(self, at: int, choices: Sequence[int]) -> None:
        """Reject the current order because it failed in the task at index `at`. `choices` contains the number of orders of
        each task.
        """
        for index in range(min(at, len(choices) - 1), -1, -1):
            mode = self._modes.get(index, 0) + 1
            if mode < choices[index]:
                self._modes[index] = mode
                return
            self._modes.pop(index, None)
        self._again = False

    def orders(self) -> Iterator[Order]:
        """Yield the orders to try. A long history is tried in fewer orders."""
        for late_updates in self._late_updates:
            self._modes, self._again = {}, True
            for _ in range(self._tries):
                if not self._again:
                    break
                yield Order(dict(self._modes), late_updates, self._eager)


ORDERS = 3
"""The number of pairing orders: as issued here, as if spawned functions began immediately, and in reverse."""

C = TypeVar("C", bound=c.Command)
_Path: TypeAlias = tuple[PathStep, ...]
Turn: TypeAlias = tuple[int, int, tuple[tuple[bool, PathStep], ...], int]


class _Origin(msgspec.Struct, frozen=True):
    command: c.Command
    site: Site
    turn: Turn
    """The position of the command if spawned functions began immediately. Commands of the same fiber stay in sequence."""


class Origins:
    """The origins of all commands of a run."""

    def __init__(self) -> None:
        self._known: dict[int, _Origin] = {}
        self._numbered: dict[tuple[type[c.Command], int], _Origin] = {}
        self._batches = 0

    def note(
        self,
        commands: Sequence[tuple[c.Command, Site]],
        ids: Iterable[CommandId],
        existing: Collection[_Path],
    ) -> None:
        """Record the commands of one activation, in order. `existing` contains the paths of the fibers that existed before
        the activation.
        """
        self._batches += 1
        first_index: dict[_Path, int] = {}
        for index, ((command, site), (path, _)) in enumerate(zip(commands, ids, strict=True)):
            ancestor = _earlier_fiber(path, existing)
            steps = tuple((isinstance(step, str), step) for step in path[len(ancestor) :])
            turn = (self._batches, first_index.setdefault(ancestor, index), steps, index)
            origin = self._known[id(command)] = _Origin(command, site, turn)
            self._numbered[type(command), getattr(command, "seq", 0)] = origin

    def site(self, command: c.Command) -> Site:
        """Return the file and line that issued the command."""
        origin = self._find(command)
        return NOWHERE if origin is None else origin.site

    def _find(self, command: c.Command) -> _Origin | None:
        origin = self._known.get(id(command))
        if origin is not None and origin.command is command:
            return origin
        # A child's command is a copy with the namespace filled in, so look it up by its number.
        return self._numbered.get((type(command), getattr(command, "seq", 0)))

    def ordered(self, commands: Sequence[C], order: int) -> list[C]:
        """Return the commands in one of the `ORDERS`."""
        if order == 0 or len(commands) < 2:
            return list(commands)
        if order == 2:
            return list(reversed(commands))
        return sorted(commands, key=self.turn)

    def turn(self, command: c.Command) -> Turn:
        """Return the position of a command if spawned functions began immediately."""
        origin = self._find(command)
        return (0, 0, (), 0) if origin is None else origin.turn


def _earlier_fiber(path: _Path, existing: Collection[_Path]) -> _Path:
    """Return the fiber's path, or the path of its nearest ancestor that existed before the activation."""
    # a handler's path has two steps, the body's none
    root_size = 2 if path and isinstance(path[0], str) else 0
    return next(
        (path[:size] for size in range(len(path), root_size, -1) if path[:size] in existing), path[:root_size]
    )


class Walk:
    """The replay of one history of another SDK through a workflow's code."""

    def __init__(
        self,
        run_id: str,
        execution: HistoryExecution,
        recorded: Mapping[int, CommandSummary],
        *,
        compare: bool = True,
        order: Order = Order(),
        decode: Decode | None = None,
    ) -> None:
        self._run_id = run_id
        self._execution = execution
        self._recorded = recorded
        self._compare = compare
        self._order = order
        self._decode = decode
        self._outcomes = Outcomes.for_replay(run_id)
        self._admitted: dict[str, UpdateRequest] = {}
        self._names: dict[str, str] = {}
        self._origins = Origins()
        self._locals = ForeignLocalActivities()
        self._task = MarkedTask(new_events=())
        self.at = 0
        self.choices: list[int] = []
        self._time_ns = 0
        self._timers: dict[int, int] = {}
        self._cancelled_timers: list[int] = []
        self._cancelled_activities: list[c.ScheduleActivity] = []
        self._patches: set[str] = set()

    def run(self, events: Sequence[HistoryEvent]) -> None:
        """Replay the events. Raise `NondeterminismError` or `HistoryError`."""
        tasks = marked_tasks(events, self._decode)
        self._locals.prepare(mark for task in tasks for mark in task.marks)
        for at, task in enumerate(tasks):
            self.at, self._task = at, task
            self._begin(task)
            if self._execution.error is not None or not task.is_completed:
                return
            self._compare_task(task)

    def _begin(self, task: MarkedTask) -> None:
        self._locals.begin_task(task.marks)
        self._timers.clear()
        self._cancelled_timers.clear()
        self._cancelled_activities.clear()
        self._time_ns = max(self._time_ns, task.time_ns)
        due: list[e.AnyEvent] = []
        for mark in task.marks:
            if isinstance(mark, VersionMark):
                due += [e.PatchNoticed(patch) for patch in mark.patches]
        for event in task.new_events:
            due += self._events_of(event.attributes, event.id, event.time_ns)
        for accepted in task.updates:
            due.append(self._receive(accepted))
        flags, batches = self._order.of(self.at, due)
        self.choices.append(self._order.choices(due))
        for batch in batches:
            if not self._has_closed():
                self._deliver(batch, flags)
        self._deliver([], flags)

    def _deliver(self, due: list[e.AnyEvent], flags: tuple[int, ...]) -> None:
        """Deliver events, and then the events that follow from the issued commands. With no events, deliver the results of
        local activities.
        """
        is_last = not due
        while self._execution.error is None:
            due = due or self._zero_timers() or (self._locals.next_end() if is_last else [])
            if not due:
                return
            due = self._activate(sorted(due, key=rank), flags)

    def _has_closed(self) -> bool:
        run = self._execution.run
        return run is not None and run.closed

    def _events_of(self, attributes: Any, event_id: int, time_ns: int) -> list[e.AnyEvent]:
        if isinstance(attributes, WorkflowExecutionStarted):
            return [run_started(attributes, time_ns)]
        if isinstance(attributes, WorkflowExecutionUpdateAdmitted):
            self._admitted[attributes.request.update_id] = attributes.request
            return []
        event = worker_event_of(attributes)
        return self._outcomes.resolve(attributes, event_id) if event is None else [event]

    def _receive(self, accepted: WorkflowExecutionUpdateAccepted) -> e.AnyEvent:
        request = accepted.request or self._admitted.get(accepted.update_id)
        if request is None:
            raise HistoryError(
                f"the history contains the acceptance of update {accepted.update_id!r}, but not its request"
            )
        return self._outcomes.updates.receive(request, 0, is_replaying=True)

    def _activate(self, due: list[e.AnyEvent], flags: tuple[int, ...]) -> list[e.AnyEvent]:
        """Activate the run. Return the events that follow from its commands."""
        self._time_ns = max(self._time_ns, self._locals.time_ns)
        activation = e.Activation(
            run_id=self._run_id,
            events=tuple(due),
            timestamp_ns=self._time_ns,
            is_replaying=True,
            history_length=self._task.history_length,
            history_size=self._task.history_size,
            continue_as_new_suggested=self._task.suggest_continue_as_new,
            flags=flags,
        )
        issued_before, existing_paths = len(self._execution.commands), self._execution.paths()
        self._execution.activate(activation)
        commands = self._execution.commands[issued_before:]
        if commands:
            self._origins.note(commands, self._execution.command_ids(), existing_paths)
        return [follows for command, _ in commands for follows in self._issue(command)]

    def _issue(self, command: c.Command) -> list[e.AnyEvent]:
        match command:
            case c.ScheduleLocalActivity():
                turn = self._origins.turn(command)
                self._locals.schedule(command, turn if self._order.eager else (turn[0], turn[-1]))
                return []
            case c.RequestCancelLocalActivity():
                return self._locals.cancel(command.seq)
            case c.StartTimer():
                self._timers[command.seq] = command.duration_ns
            case c.CancelTimer() if command.seq in self._timers:
                self._cancelled_timers.append(self._timers.pop(command.seq))
            case c.RequestCancelActivity():
                scheduled = [
                    activity for activity in self._outcomes.issued if isinstance(activity, c.ScheduleActivity)
                ]
                self._cancelled_activities += [
                    activity for activity in scheduled if activity.seq == command.seq
                ]
            case c.SetPatchMarker():
                self._patches.add(command.patch_id)
                return []  # the history's own markers have already delivered the version
            case _:
                pass
        try:
            return self._outcomes.issue(command, replaying=True)
        except BadCommand as error:
            raise NondeterminismError(str(error)) from None

    def _zero_timers(self) -> list[e.AnyEvent]:
        """Return the events for timers of 0 seconds. Go and Java start no timer for them, so if the history has none, ours
        fire immediately.
        """
        if any(getattr(event.attributes, "duration_ns", None) == 0 for event in self._task.command_events):
            return []
        issued = self._outcomes.issued
        zero_timers = [
            command for command in issued if isinstance(command, c.StartTimer) and command.duration_ns <= 0
        ]
        for command in zero_timers:
            self._outcomes.issue(c.CancelTimer(command.seq))
        return [e.TimerFired(command.seq) for command in zero_timers]

    def _compare_task(self, task: MarkedTask) -> None:
        issued = list(self._outcomes.issued)
        terminal = [command for command in issued if isinstance(command, c.TERMINAL)]
        ordinary = [command for command in issued if not isinstance(command, c.TERMINAL)]
        ordered = self._origins.ordered(ordinary, self._order.pairing_of(self.at, self.choices[-1]))
        pairing = pair_up(
            task.command_events, ordered + terminal[:1], self._outcomes, self._names, self._recorded
        )
        abandoned = self._cancelled_in_this_task(pairing.missing)
        missing = tuple(
            event
            for event in pairing.missing
            if event.id not in abandoned and not self._was_cancelled_timer(event.attributes)
        )
        # Not every history contains commands issued after the terminal command, because some SDKs discard them.
        late = issued[issued.index(terminal[0]) + 1 :] if terminal else []
        surplus = tuple(
            command
            for command in pairing.surplus
            if not any(command is late_command for late_command in late)
        )
        if missing or surplus:
            self._raise_mismatch(missing, surplus)
        self._check_marks()
        self._check_patches(task)
        for event, command in pairing.pairs:
            if isinstance(command, c.StartChildWorkflow):
                self._names[command.workflow_id] = getattr(event.attributes, "workflow_id", "")
            self._compare_pair(event.id, command)
            self._outcomes.bind(command, event.id)
        self._outcomes.issued.clear()
        if pairing.is_ambiguous:
            # the commands are interchangeable in this task, but their order may matter in a later task
            self.choices[-1] *= ORDERS

    def _was_cancelled_timer(self, attributes: Any) -> bool:
        """Return whether our code also started this timer, and cancelled it in the same task."""
        duration = getattr(attributes, "duration_ns", None)
        if duration not in self._cancelled_timers:
            return False
        self._cancelled_timers.remove(duration)
        return True

    def _cancelled_in_this_task(self, missing: Sequence[HistoryEvent]) -> set[int]:
        """Return the ids of the events of activities that were scheduled and cancelled in the same task. Some SDKs send both
        commands.
        """
        event_ids: set[int] = set()
        cancels = {
            event.attributes.scheduled_event_id: event.id
            for event in missing
            if isinstance(event.attributes, ActivityTaskCancelRequested)
        }
        candidates = list(self._cancelled_activities)
        for event in missing:
            if not isinstance(event.attributes, ActivityTaskScheduled) or event.id not in cancels:
                continue
            fit = next(
                (
                    activity
                    for activity in candidates
                    if activity.activity_type == event.attributes.activity_type
                ),
                None,
            )
            if fit is not None:
                candidates.remove(fit)
                event_ids |= {event.id, cancels[event.id]}
        return event_ids

    def _has_drawn(self) -> bool:
        """Return whether the code has used random numbers. After that, its values differ from the recorded values."""
        run = self._execution.run
        return run is not None and run.live is not None and run.live.has_drawn

    def _compare_pair(self, event_id: int, command: c.Command) -> None:
        recorded, issued = self._recorded.get(event_id), self._summarize(command)
        if recorded is None:
            return
        if recorded.kind != issued.kind:
            raise mismatch(recorded, issued, issued.site, self._where())
        if self._compare and not self._has_drawn():
            changed = changed_value(recorded, issued, foreign=True)
            if changed is not None:
                raise changed

    def _raise_mismatch(self, missing: tuple[HistoryEvent, ...], surplus: tuple[c.Command, ...]) -> None:
        expected = [self._recorded.get(event.id) or unknown_command(event) for event in missing]
        issued = [self._summarize(command) for command in surplus]
        issued += [
            _summarize_waiting(command, self._origins.site(command)) for command in self._locals.waiting
        ]
        site = issued[0].site if issued else self._execution.waiting_at()
        raise mismatch(expected[0] if expected else None, issued[0] if issued else None, site, self._where())

    def _check_marks(self) -> None:
        unmatched_mark = self._locals.unmatched_mark()
        if unmatched_mark is not None:
            expected = summarize_local(unmatched_mark)
            waiting = self._locals.waiting
            issued = _summarize_waiting(waiting[0], self._origins.site(waiting[0])) if waiting else None
            site = issued.site if issued is not None else self._execution.waiting_at()
            raise mismatch(expected, issued, site, self._where())
        for mark, command in self._locals.changed:
            if not self._compare or self._has_drawn():
                break
            arguments = mark.arguments or ()
            recorded = CommandSummary(
                "local activity", "", mark.activity_type, arguments, event_id=mark.event_id
            )
            changed = changed_value(
                recorded, _summarize_waiting(command, self._origins.site(command)), foreign=True
            )
            if changed is not None:
                raise changed
        self._locals.changed.clear()

    def _check_patches(self, task: MarkedTask) -> None:
        """Raise `NondeterminismError` if the code no longer checks a recorded patch that is not deprecated.

        In Go and Java, the code may remove the check without deprecating the patch first.
        """
        if not self._order.eager:
            return
        for mark in task.marks:
            if not isinstance(mark, VersionMark) or not mark.patches or mark.is_deprecated:
                continue
            if not self._patches.intersection(mark.patches):
                recorded = CommandSummary(f"patch {mark.change_id!r}", event_id=mark.event_id)
                raise mismatch(recorded, None, self._execution.waiting_at(), self._where())

    def _where(self) -> str:
        return f"in the workflow task that started with event {self._task.history_length}"

    def _summarize(self, command: c.Command) -> CommandSummary:
        return summarize_issued(command, self._origins.site(command), self._outcomes)


def _summarize_waiting(command: c.ScheduleLocalActivity, site: Site) -> CommandSummary:
    return CommandSummary("local activity", "", command.activity_type, command.arguments, site=site)
