"""All that is known of a run, as data: enough to execute it again from nothing.

Only `journal` is the truth: the run's activations in order, payloads still encoded. Everything else follows from it: a
re-execution starts it at nothing and must arrive at the same. Kept as data so that it can be looked at, compared and,
one day, sent to another process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import msgspec

from hourglass._evaluator.commands import (
    TERMINAL_KINDS,
    CancelRun,
    Command,
    CompleteRun,
    ContinueAsNew,
    FailRun,
)
from hourglass._evaluator.events import Activation, SignalReceived
from hourglass.converter import Failure, Payload

PathStep: TypeAlias = int | str
CommandId: TypeAlias = tuple[tuple[PathStep, ...], int]
"""The path of the fiber that asked, and the how-manieth request of that fiber it was."""

Numbered: TypeAlias = tuple[str, int]
"""A kind of command and its number, counted from 1 for each kind."""

ACTIVITY, TIMER, CHILD, SIGNAL, CANCEL = "activity", "timer", "child", "external_signal", "external_cancel"
NEXUS = "nexus"


NOTHING: dict[Any, Any] = {}
"""Stands for every table of a state that is still empty; never written to. An idle run has five of them."""


_nothing: Callable[[], Any] = repeat(NOTHING).__next__  # a function in C: each state calls it five times


class State(msgspec.Struct):
    """The state of one run."""

    run_id: str
    task_queue: str = ""
    workflow_type: str = ""
    journal: list[Activation] = []
    next_seq: dict[str, int] = msgspec.field(default_factory=_nothing)
    pending_resolvers: dict[Numbered, CommandId] = msgspec.field(default_factory=_nothing)
    command_id_to_seq: dict[CommandId, Numbered] = msgspec.field(default_factory=_nothing)
    resolved_results: dict[Numbered, Payload | Failure | None] = msgspec.field(default_factory=_nothing)
    signals: dict[str, deque[SignalReceived]] = msgspec.field(default_factory=_nothing)
    result: CompleteRun | FailRun | CancelRun | ContinueAsNew | None = None
    commands: Sequence[tuple[CommandId, Command]] = ()
    patch_answers: dict[str, bool] | None = None
    """What the worker's callback said of patches: it need not say the same again, and the journal does not hold it."""

    def forget_derived(self) -> State:
        """The same run with nothing but its journal."""
        return State(
            run_id=self.run_id,
            task_queue=self.task_queue,
            journal=self.journal,
            patch_answers=self.patch_answers,
        )


class CommandAccumulator:
    """Collects the commands of one activation into the state, newest first, and numbers them when they are issued."""

    __slots__ = ("_issued", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self._issued: list[tuple[CommandId, Command]] | None = None

    def number(self, kind: str) -> int:
        """The next number of a kind. Numbers are never used twice, also where the command is taken back."""
        state = self.state
        seq = state.next_seq.get(kind, 0) + 1
        if state.next_seq is NOTHING:
            state.next_seq = {}
        state.next_seq[kind] = seq
        return seq

    def add(self, command_id: CommandId, command: Command) -> None:
        """Issue a command."""
        if self._issued is None:
            self._issued = []
        self._issued.append((command_id, command))
        if self.state.result is None and type(command) in TERMINAL_KINDS:
            self.state.result = command  # type: ignore[assignment]

    def register_assignments(self, key: Numbered, command_id: CommandId) -> None:
        """Enter a numbered command, so that its resolution finds the fiber that asked."""
        state = self.state
        if state.command_id_to_seq is NOTHING:
            state.pending_resolvers, state.command_id_to_seq = {}, {}
        state.pending_resolvers[key] = command_id
        state.command_id_to_seq[command_id] = key

    def resolved(self, key: Numbered, result: Payload | Failure | None) -> CommandId | None:
        """A numbered command was resolved; returns the id of its request, None if no such request is pending."""
        state = self.state
        command_id = state.pending_resolvers.pop(key, None)
        if command_id is not None:
            if state.resolved_results is NOTHING:
                state.resolved_results = {}
            state.resolved_results[key] = result
        return command_id

    def flush(self) -> tuple[Command, ...]:
        """The commands of this activation in the order of issue. The state keeps them newest first."""
        issued, self._issued = self._issued, None
        if issued is None:
            self.state.commands = ()
            return ()
        flushed = tuple([command for _, command in issued])
        issued.reverse()
        self.state.commands = issued
        return flushed
