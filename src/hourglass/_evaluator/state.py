"""The state of a run as data, sufficient to re-execute the run from the start.

Only `journal` is authoritative. It contains the run's activations in order, with payloads still encoded.
Everything else is derived from the journal: a re-execution starts with empty values and must produce the same
values. The state is plain data, so that it can be inspected, compared and, one day, sent to another process.
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

PathStep: TypeAlias = int | str
CommandId: TypeAlias = tuple[tuple[PathStep, ...], int]
"""The path of the fiber that issued a command, and the command's number in that fiber."""

Numbered: TypeAlias = tuple[str, int]
"""A kind of command and the command's number, counted from 1 for each kind."""

ACTIVITY, TIMER, CHILD, SIGNAL, CANCEL = "activity", "timer", "child", "external_signal", "external_cancel"
NEXUS = "nexus"


NOTHING: dict[Any, Any] = {}
"""A shared placeholder for every empty table of a state; never written to. An idle run has two of them."""


_nothing: Callable[[], Any] = repeat(NOTHING).__next__  # a C function, because each state calls it twice


class State(msgspec.Struct):
    """The state of one run."""

    run_id: str
    task_queue: str = ""
    workflow_type: str = ""
    journal: list[Activation] = []
    next_seq: dict[str, int] = msgspec.field(default_factory=_nothing)
    signals: dict[str, deque[SignalReceived]] = msgspec.field(default_factory=_nothing)
    result: CompleteRun | FailRun | CancelRun | ContinueAsNew | None = None
    commands: Sequence[tuple[CommandId, Command]] = ()
    patch_answers: dict[str, bool] | None = None
    """The answers of the worker's `patch_activation` callback, by patch id. They are stored because the
    callback may answer differently in a re-execution, and the journal does not contain the answers.
    """

    def forget_derived(self) -> State:
        """Return a new state with the journal of this run and without derived values."""
        return State(
            run_id=self.run_id,
            task_queue=self.task_queue,
            journal=self.journal,
            patch_answers=self.patch_answers,
        )


class CommandAccumulator:
    """A collector of the commands of an activation. It also numbers the commands."""

    __slots__ = ("_issued", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self._issued: list[tuple[CommandId, Command]] | None = None

    def number(self, kind: str) -> int:
        """Return the next number for a kind of command. A number is never reused, even if its command is
        cancelled.
        """
        state = self.state
        seq = state.next_seq.get(kind, 0) + 1
        if state.next_seq is NOTHING:
            state.next_seq = {}
        state.next_seq[kind] = seq
        return seq

    def add(self, command_id: CommandId, command: Command) -> None:
        """Add a command."""
        if self._issued is None:
            self._issued = []
        self._issued.append((command_id, command))
        if self.state.result is None and type(command) in TERMINAL_KINDS:
            self.state.result = command  # type: ignore[assignment]

    def flush(self) -> tuple[Command, ...]:
        """Return the commands of this activation in the order of issue. The state stores them newest first."""
        issued, self._issued = self._issued, None
        if issued is None:
            self.state.commands = ()
            return ()
        flushed = tuple([command for _, command in issued])
        issued.reverse()
        self.state.commands = issued
        return flushed
