"""What is known of one open handle: its state, its two poll lines, what is outstanding on it, and the calls
in flight.

A record is what a drain needs, and all it needs: it outlives whoever opened the handle. It decides nothing.
Invariants: what a poll returned is written down here in the same step; an entry is taken out only by who then
sends its completion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hourglass._bridge.begun import begin
from hourglass._bridge.bell import Bell
from hourglass._bridge.handle_life import Deadlines, HandleState, Signal, advance
from hourglass._bridge.poll_line import PollLine, Ticket
from hourglass._contract.handle import ActivityItem, ActivityTask, Handle, HandleConfig
from hourglass._contract.service import Connection
from hourglass._engine.events import Activation, RunEvicted

T = TypeVar("T")


@dataclass(slots=True)
class Drain:
    """How far a handle's end has come."""

    deadlines: Deadlines
    quiet_since: float
    told_to_stop: bool = False
    unfinished: set[str] = field(default_factory=set)
    """Runs of which a local activity was ended by the drain, and not by itself: no workflow must hear of that end."""
    task: asyncio.Task[None] | None = None
    finalizing: asyncio.Task[None] | None = None


class Activations:
    """The book of activations: by run id, the ticket under which each may be completed."""

    def __init__(self, poll_ended: Callable[[BaseException], None]) -> None:
        self.open: dict[str, Ticket[Activation]] = {}
        self.poll_ended = poll_ended

    def arrived(self, ticket: Ticket[Activation], /) -> None:
        """The engine waits for its completion: from now on only this ticket's token counts."""
        self.open[ticket.item.run_id] = ticket

    def still_open(self, item: Activation, /) -> bool:
        """Whether the engine waits for its completion."""
        return item.run_id in self.open


class ActivityItems:
    """The book of activity items: attempts by task token. Cancellations are kept by nobody but the line."""

    def __init__(self, poll_ended: Callable[[BaseException], None]) -> None:
        self.open: dict[bytes, Ticket[ActivityItem]] = {}
        self.poll_ended = poll_ended

    def arrived(self, ticket: Ticket[ActivityItem], /) -> None:
        """The engine waits for the end of this attempt."""
        if isinstance(ticket.item, ActivityTask):
            self.open[ticket.item.token] = ticket

    def still_open(self, item: ActivityItem, /) -> bool:
        """Whether the attempt it is about has not ended."""
        return item.token in self.open


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a record is given by the tables it stands in."""

    next_token: Callable[[], int]
    now_ns: Callable[[], int]
    broken: Callable[[HandleRecord, BaseException], None]


class HandleRecord:
    """See the module."""

    def __init__(
        self,
        generation: int,
        config: HandleConfig,
        handle: Handle,
        connection: Connection,
        around: Surroundings,
    ) -> None:
        self.queue = config.task_queue
        self.generation = generation
        self.config = config
        self.handle = handle
        self.connection = connection
        self.state = HandleState.CONNECTING
        self.bell = Bell()
        """For its drain, which waits for answers, calls and polls."""
        self.opened_ns = around.now_ns()
        self.drain: Drain | None = None
        self.spare: asyncio.TimerHandle | None = None
        """Set while nobody is served by it and its worker may come back: its patience."""
        self.trusted = True
        self.calls: set[asyncio.Task[Any]] = set()
        self.tails: dict[str, asyncio.Task[None]] = {}

        def poll_ended(error: BaseException) -> None:
            around.broken(self, error)

        self.runs = Activations(poll_ended)
        self.attempts = ActivityItems(poll_ended)
        address = (self.queue, generation)
        ring = self.bell.ring

        def more_activations() -> Sequence[Activation]:
            return () if (here := handle.in_process) is None else here.take_activations()

        def more_activities() -> Sequence[ActivityItem]:
            return () if (here := handle.in_process) is None else here.take_activities()

        tokens, now_ns = around.next_token, around.now_ns
        self.activations = PollLine(
            handle.poll_activation, more_activations, self.runs, address, tokens, now_ns, ring
        )
        self.activities = PollLine(
            handle.poll_activity, more_activities, self.attempts, address, tokens, now_ns, ring
        )

    def __repr__(self) -> str:
        return f"<HandleRecord {self.queue!r} generation {self.generation} {self.state.value}>"

    def lines(self) -> Iterator[PollLine[Any]]:
        """Both kinds of polls."""
        yield self.activations
        yield self.activities

    @property
    def received(self) -> int:
        """How many items it gave so far."""
        return self.activations.received + self.activities.received

    @property
    def healthy(self) -> bool:
        """Whether it could go on serving."""
        return (
            self.state is HandleState.ACTIVE
            and self.trusted
            and all(line.end is None for line in self.lines())
        )

    def stop_waiting(self) -> None:
        """Its patience with a worker that has gone is over, one way or another."""
        if self.spare is not None:
            self.spare.cancel()
            self.spare = None

    def hears(self, signal: Signal) -> None:
        """Move on in its life."""
        self.state = advance(self.state, signal)

    def call(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T] | None:
        """Begin a call on the handle; what does not end at once goes on in a task that nobody cancels. The
        handle is not finalized while it runs.
        """
        task = begin(call)
        if task is None:
            self.bell.ring()
        else:
            self.calls.add(task)
            task.add_done_callback(self._call_ended)
        return task

    def _call_ended(self, task: asyncio.Task[Any]) -> None:
        self.calls.discard(task)
        if not task.cancelled():
            task.exception()  # read, or asyncio complains when nobody waited for it
        self.bell.ring()


def is_eviction(activation: Activation) -> bool:
    """Whether the engine wants this run forgotten."""
    for event in activation.events:  # noqa: SIM110 - asked for each activation: a generator costs more than the answer
        if type(event) is RunEvicted:
            return True
    return False
