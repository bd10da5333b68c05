"""The protocol rules for the commands of a run, checked on each completion.

Sequence numbers of each kind increase and are never reused. A cancellation follows the command that it cancels and occurs
once. A run that has issued a terminal command issues no commands in later activations.
"""

from __future__ import annotations

from collections.abc import Sequence

from hourglass._evaluator.commands import (
    TERMINAL,
    AcceptUpdate,
    CancelChildWorkflow,
    CancelSignalExternal,
    CancelTimer,
    Command,
    CompleteUpdate,
    RejectUpdate,
    RequestCancelActivity,
    RequestCancelExternal,
    RequestCancelLocalActivity,
    ScheduleActivity,
    ScheduleLocalActivity,
    SignalExternalWorkflow,
    StartChildWorkflow,
    StartTimer,
)

Key = tuple[str, int]

STARTS: dict[type[Command], str] = {
    StartTimer: "timer",
    ScheduleActivity: "activity",
    ScheduleLocalActivity: "activity",
    StartChildWorkflow: "child",
    SignalExternalWorkflow: "signal",
    RequestCancelExternal: "cancel",
}
CANCELS: dict[type[Command], str] = {
    CancelTimer: "timer",
    RequestCancelActivity: "activity",
    RequestCancelLocalActivity: "activity",
    CancelChildWorkflow: "child",
    CancelSignalExternal: "signal",
}


class Protocol:
    """Checks the commands of one run."""

    def __init__(self) -> None:
        self.started: dict[Key, Command] = {}
        self.cancelled: set[Key] = set()
        self.newest: dict[str, int] = {}
        self.updates: dict[str, str] = {}
        self.closed = False

    def check(self, commands: Sequence[Command]) -> None:
        assert not (self.closed and commands), f"a closed run issued commands: {commands}"
        for command in commands:
            self._check(command)
        self.closed = self.closed or any(isinstance(command, TERMINAL) for command in commands)

    def _check(self, command: Command) -> None:
        kind = type(command)
        if kind in STARTS:
            self._start(STARTS[kind], command)
        elif kind in CANCELS:
            self._cancel(CANCELS[kind], command)
        elif isinstance(command, AcceptUpdate):
            assert command.protocol_instance_id not in self.updates, "an update was answered twice"
            self.updates[command.protocol_instance_id] = "accepted"
        elif isinstance(command, CompleteUpdate):
            assert self.updates[command.protocol_instance_id] == "accepted", "completed, but not accepted"
            self.updates[command.protocol_instance_id] = "completed"
        elif isinstance(command, RejectUpdate):
            assert self.updates.get(command.protocol_instance_id) in (None, "accepted")
            self.updates[command.protocol_instance_id] = "rejected"

    def _start(self, kind: str, command: Command) -> None:
        seq: int = command.seq  # type: ignore[attr-defined]
        assert seq > 0
        assert (kind, seq) not in self.started, f"{kind} number {seq} was used twice"
        # The next attempt of a local activity reserved its number when the back-off began.
        if not (isinstance(command, ScheduleLocalActivity) and command.attempt > 1):
            assert seq > self.newest.get(kind, 0), f"{kind} number {seq} came after {self.newest[kind]}"
        self.newest[kind] = max(seq, self.newest.get(kind, 0))
        self.started[kind, seq] = command

    def _cancel(self, kind: str, command: Command) -> None:
        key = (kind, command.seq)  # type: ignore[attr-defined]
        assert key in self.started, f"{key} was cancelled before it was started"
        if isinstance(command, RequestCancelLocalActivity):
            assert isinstance(self.started[key], ScheduleLocalActivity)
        elif isinstance(command, RequestCancelActivity):
            assert isinstance(self.started[key], ScheduleActivity)
        # The cancellation of a child, or of a signal that has not been sent, may be requested again.
        if kind in ("timer", "activity"):
            assert key not in self.cancelled, f"{key} was cancelled twice"
        self.cancelled.add(key)
