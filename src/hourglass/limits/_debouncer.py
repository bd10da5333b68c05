"""`hourglass.debounce`: the workflow that collects the calls of one key until they have calmed down. One for each key in use.

It sleeps until the calls it knows are due, looks whether others have come meanwhile, and sleeps again: one timer for
each pause, however many calls there are. Then it starts the run with the last arguments, as a child that it leaves to
itself, and ends; calls that came in this very moment begin the next burst.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hourglass import workflow
from hourglass._engine.versions import VersioningBehavior
from hourglass.converter import Payload
from hourglass.errors import Cancelled
from hourglass.limits._reaching import is_long
from hourglass.progress import Progress
from hourglass.workflow import ParentClosePolicy

_MANY_CALLS = 10_000


@dataclass(frozen=True)
class Call:
    """One call: what to run, and how long to wait for further calls. Durations are seconds."""

    ticket: str
    workflow: str
    wait: float
    max_wait: float | None
    prefix: str
    task_queue: str
    execution_timeout: float | None = None
    run_timeout: float | None = None
    task_timeout: float | None = None


@dataclass(frozen=True)
class Burst:
    """Calls that will be one run: the last of them, when they came (in seconds), and everybody's ticket."""

    call: Call
    first: float
    last: float
    tickets: tuple[str, ...]

    @property
    def due(self) -> float:
        """When to stop waiting."""
        if len(self.tickets) >= _MANY_CALLS:
            return self.last
        calm = self.last + self.call.wait
        return calm if self.call.max_wait is None else min(calm, self.first + self.call.max_wait)


@dataclass(frozen=True)
class Fired:
    """A burst became this workflow."""

    workflow_id: str
    tickets: tuple[str, ...]


fired = Progress("fired", Fired)


def joined(burst: Burst | None, call: Call, now: float) -> Burst:
    """The burst with one call more."""
    if burst is None:
        return Burst(call, now, now, (call.ticket,))
    return replace(burst, call=call, last=now, tickets=(*burst.tickets, call.ticket))


@workflow.defn(name="hourglass.debounce", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class Debouncer:
    """Collects the calls of one key."""

    @workflow.init
    def __init__(self, burst: Burst | None = None, *arguments: Payload) -> None:
        self.burst = burst
        self.arguments = arguments
        self.messages = 0
        self.is_long = False

    @workflow.signal
    def call(self, call: Call, *arguments: Payload) -> None:
        """Somebody calls."""
        self.burst = joined(self.burst, call, workflow.time())
        self.arguments = arguments
        self.messages += 1
        self.is_long = is_long(self.messages)

    @workflow.run
    def run(self, burst: Burst | None = None, *arguments: Payload) -> None:
        """Wait until it is calm, start the run, and end."""
        number = 0
        while self.burst is not None:
            self._wait_until_due()
            burst, arguments, self.burst = self.burst, self.arguments, None
            number += 1
            id = f"{burst.call.prefix}:{workflow.info().run_id}" + (f":{number}" if number > 1 else "")
            with workflow.shield():
                workflow.start_child_workflow(
                    burst.call.workflow,
                    *arguments,
                    id=id,
                    task_queue=burst.call.task_queue,
                    execution_timeout=burst.call.execution_timeout,
                    run_timeout=burst.call.run_timeout,
                    task_timeout=burst.call.task_timeout,
                    parent_close_policy=ParentClosePolicy.ABANDON,
                )
            fired.publish(Fired(id, burst.tickets))

    def _wait_until_due(self) -> None:
        while self.burst is not None and self.burst.due > workflow.time():
            if self.is_long:
                workflow.continue_as_new(self.burst, *self.arguments)
            self._wait_until(self.burst.due)

    def _wait_until(self, due: float) -> None:
        """Until then, or until something has come that must be looked at sooner."""
        try:
            workflow.wait_condition(
                lambda: self.is_long or (self.burst is not None and self.burst.due < due),
                timeout=due - workflow.time(),
            )
        except TimeoutError:
            pass
        except Cancelled:
            workflow.logger.info("nothing is run: the calls of this key were cancelled")
            raise
