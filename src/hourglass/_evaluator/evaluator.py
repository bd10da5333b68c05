"""The evaluator: computes the new state of a run and a completion from a definition, the run's state and an
activation.

There are three levels, each a fallback for the previous one. Live fibers are resumed, in time proportional to
the number of new events. If the fibers were dropped, the journal is re-executed. If the journal is lost, the
engine sends the whole history. Resuming and re-executing produce the same completion, byte for byte (I2).

An activation is handled in this order (I1). Patches are applied and, in the first task, the workflow object is
created. A fiber is created for each signal and update, in order, and these fibers run until all are blocked.
Then the seed changes, the body starts (in the first task), and all other events are applied, in order. Finally,
fibers run until none is ready. Conditions are checked each time the ready queue is empty. Queries are delivered
alone and are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hourglass._evaluator.apply import APPLY, await_top_level, late_seeds, prepare, run_top_level, start
from hourglass._evaluator.behaviour import OUR_FLAGS, Behaviour, Flag, behaviour_of
from hourglass._evaluator.commands import (
    Command,
    Completion,
    Succeeded,
    TaskFailed,
)
from hourglass._evaluator.context import LiveRun, RunSettings
from hourglass._evaluator.definition import WorkflowDefinition
from hourglass._evaluator.events import (
    Activation,
    AnyEvent,
    PatchNoticed,
    QueryReceived,
    RunEvicted,
    SeedChanged,
    SignalReceived,
    UpdateReceived,
)
from hourglass._evaluator.messages import Handlers
from hourglass._evaluator.state import State
from hourglass.errors import InternalError

_AHEAD = frozenset({SignalReceived, UpdateReceived, PatchNoticed, SeedChanged, QueryReceived, RunEvicted})
"""The kinds of events that are not applied in order with all others."""


class Evaluator:
    """The evaluator of one run, on one lane: its state, and its live fibers, if any."""

    __slots__ = (
        "definition",
        "error",
        "last",
        "live",
        "notices",
        "on_step",
        "record",
        "seen",
        "settings",
        "state",
        "work",
    )

    def __init__(
        self, definition: WorkflowDefinition, run_id: str, settings: RunSettings, state: State | None = None
    ) -> None:
        self.definition = definition
        self.settings = settings
        self.state = state or State(run_id=run_id, task_queue=settings.task_queue, journal=[])
        self.live: LiveRun | None = None
        self.last: Succeeded | None = None
        self.error: BaseException | None = None
        self.notices: tuple[str, ...] = ()
        self.record: list[tuple[tuple[Command, ...], list[Any]]] | None = [] if settings.verify else None
        self.work = 0  # the approximate number of steps needed to re-execute the run
        self.on_step: Callable[[], object] | None = None  # called for each re-executed activation
        # The journal of an earlier execution of the same run in this process, if there was one.
        self.seen: Sequence[Activation] = ()

    @property
    def closed(self) -> bool:
        """Whether the run has sent its last command."""
        return self.state.result is not None

    @property
    def _current_definition(self) -> WorkflowDefinition:
        """The definition of this run, including the run's own options if the workflow is dynamic."""
        return self.definition if self.live is None else self.live.definition

    @property
    def behaviour(self) -> Behaviour:
        """The order of events in this run, as determined by the first activation."""
        journal = self.state.journal
        ours = bool(journal) and (not journal[0].is_replaying or Flag.HOURGLASS in journal[0].flags)
        return behaviour_of(ours=ours)

    def activate(self, activation: Activation) -> Completion:
        """Handle an activation. If the workflow code has a bug, store the exception in `error` and return a
        failed task.
        """
        try:
            return self._activate(activation)
        except Exception as error:
            self.error = error
            # The fibers may be in an inconsistent state. This activation is not in the journal yet, so
            # re-executing the journal restores the run before it.
            self.drop()
            self.state = self.state.forget_derived()
            return TaskFailed(self.state.run_id, self.settings.converter.to_failure(error))

    def _activate(self, activation: Activation) -> Completion:
        run_id, journal = self.state.run_id, self.state.journal
        events = activation.events
        if events and type(events[0]) is QueryReceived:
            answers = self._answer(events)
            return Succeeded(
                run_id, answers, versioning_behavior=self._current_definition.versioning_behavior
            )
        if self.live is None and journal and not self.state.workflow_type:
            self.rebuild()  # only the journal is left, and shows after its re-execution whether the run has closed
        # The timestamps are compared first, because they are cheaper to compare and differ between nearly all
        # activations.
        if journal and journal[-1].timestamp_ns == activation.timestamp_ns and journal[-1] == activation:
            if self.last is None:
                self.rebuild()
            assert self.last is not None
            return self.last  # delivered again: return the same completion
        if self.state.result is not None and self.behaviour.closed_runs_are_silent:
            # I7: a closed run issues no commands, unless temporalio began the run
            return Succeeded(run_id, versioning_behavior=self._current_definition.versioning_behavior)
        live = self.live or self.rebuild()
        live.quiet = bool(self.seen) and self._was_executed_before(activation)
        completion = complete(live, activation)
        if live.notices or live.failed_tasks or self.state.result is not None:
            self._take_notices(live)
        if live.handlers.leaves_trace:
            # All activations of a run are stored, so they share one string object for the run id.
            if activation.run_id is not run_id:
                msgspec.structs.force_setattr(activation, "run_id", run_id)
            journal.append(activation)
            self.last = completion
            if self.record is not None:
                self.record.append((completion.commands, list(live.sites or ())))
                self.work += len(activation.events) + len(completion.commands)
        return completion

    def _answer(self, events: tuple[AnyEvent, ...]) -> tuple[Command, ...]:
        """Answer queries. If determinism is verified, use a copy of the run, so that the side effects of a
        query handler do not change the run.
        """
        if not self.settings.verify:
            live = self.live or self.rebuild()
            return tuple([live.handlers.query(event) for event in events if isinstance(event, QueryReceived)])
        copy = begin(self.definition, self.state.forget_derived(), self.settings)
        try:
            _feed_again(copy, self.state.journal, self.on_step)
            return tuple([copy.handlers.query(event) for event in events if isinstance(event, QueryReceived)])
        finally:
            copy.drop(self.on_step)

    def _was_executed_before(self, activation: Activation) -> bool:
        """Return whether this process has executed this activation before and the engine lost the completion."""
        position = len(self.state.journal)
        return position < len(self.seen) and self.seen[position].events == activation.events

    def _take_notices(self, live: LiveRun) -> None:
        if self.state.result is not None:
            live.notices += live.handlers.unfinished_notices()
            live.notices += live.unread_failures()
        live.drop_read_failures()
        if live.notices:
            self.notices += live.notices
            live.notices = ()

    def rebuild(self) -> LiveRun:
        """Restore the fibers by re-executing the journal."""
        if self.state.journal or self.state.workflow_type:
            self.state = self.state.forget_derived()
        live = self.live = begin(self.definition, self.state, self.settings)
        self.last = _feed_again(live, self.state.journal, self.on_step)
        return live

    def drop(self) -> None:
        """Drop the fibers and keep the state. Must run on the thread that activated the run."""
        if self.live is not None:
            self.live.drop(self.on_step)
            self.live = None


def begin(definition: WorkflowDefinition, state: State, settings: RunSettings) -> LiveRun:
    """Return a new live run that has received no events yet."""
    live = LiveRun(definition, state, settings)
    live.handlers = Handlers(live, run_top_level, await_top_level)
    return live


def _feed_again(
    live: LiveRun, journal: list[Activation], on_step: Callable[[], object] | None
) -> Succeeded | None:
    """Restore a run by re-executing its journal. Return the run's last completion. Nothing is logged, because
    the first execution has logged everything.
    """
    live.quiet = True
    last = None
    for activation in journal:
        last = complete(live, activation)
        if on_step is not None:
            on_step()
    live.quiet = False
    live.notices = ()
    return last


def complete(live: LiveRun, activation: Activation) -> Succeeded:
    """Deliver the next events to a run. Return a completion with the run's commands and the flags that were
    used.
    """
    flags = live.flags
    commands = feed(live, activation)
    used = () if live.flags is flags else tuple(sorted(live.flags - flags))
    return Succeeded(live.state.run_id, commands, used, live.definition.versioning_behavior)


def feed(live: LiveRun, activation: Activation) -> tuple[Command, ...]:
    """Deliver the next events to a run, run its fibers until all are blocked, and return the new commands."""
    previous_facts = live.facts
    live.facts = activation
    if activation.flags is not previous_facts.flags:
        live.update_behaviour()
    if live.sites is not None:
        live.sites.clear()
    live.scheduler.open()
    _take_turns(live, activation)
    live.scheduler.close()
    if not live.handlers.leaves_trace:
        live.facts = previous_facts
        if activation.flags is not previous_facts.flags:
            live.update_behaviour()
    return live.accumulator.flush()


def _take_turns(live: LiveRun, activation: Activation) -> None:
    first, messages, ordinary = _sort(activation.events)
    live.handlers.leaves_trace = bool(ordinary or first) or any(
        type(event) is not UpdateReceived for event in messages
    )
    if live.started is None and (not activation.is_replaying or Flag.HOURGLASS in activation.flags):
        # A run is ours if it begins here or if its history has our flag. A run that temporalio began keeps
        # temporalio's order of events, even if Hourglass continues the run.
        live.flags = live.flags | OUR_FLAGS if live.flags else OUR_FLAGS
        live.update_behaviour()
    single = live.behaviour.events_apply_at_once
    late_seeds_of_task = late_seeds(live, first) if first and messages else ()
    for event in first:
        if event not in late_seeds_of_task:
            prepare(live, event)
    if live.started is None:
        start(live, ordinary)
    drain = live.scheduler.drain
    if messages:
        _apply(live, messages)
        if not single:
            drain(live.check_conditions)
    for event in late_seeds_of_task:
        prepare(live, event)
    if ordinary or single:
        _apply(live, ordinary)
        drain(live.check_conditions)
    if live.handlers.late_updates and live.handlers.answer_late_updates():
        drain(live.check_conditions)


def _sort(events: tuple[AnyEvent, ...]) -> tuple[list[AnyEvent], list[AnyEvent], list[AnyEvent]]:
    first: list[AnyEvent] = []
    messages: list[AnyEvent] = []
    ordinary: list[AnyEvent] = []
    for event in events:
        kind = type(event)
        if kind not in _AHEAD:
            ordinary.append(event)
        elif kind is SignalReceived or kind is UpdateReceived:
            messages.append(event)
        elif kind is PatchNoticed or kind is SeedChanged:
            first.append(event)
        else:
            raise InternalError(f"{kind.__name__} must not be delivered together with other events")
    return first, messages, ordinary


def _apply(live: LiveRun, events: list[AnyEvent]) -> None:
    for event in events:
        APPLY[type(event)](live, event)
