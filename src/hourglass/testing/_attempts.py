"""Runs attempts of activities in an environment: fakes here and now, real ones where a worker would run them.

The call itself (arguments decoded, the function called, its end turned into a result) is production's. A plain
fake is called in the environment's own thread. A real `def` activity, process activities included, runs in a
thread, a real or fake `async def` one on the activity loop; while one of those runs, virtual time stands still.

Invariants:

- An attempt is answered at most once; what an attempt says that was abandoned is dropped.
- During the virtual duration of a fake the engine sees what it would see of a worker: heartbeats, if they are
  automatic or asked for, and the end. A cancellation ends it there and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hourglass._contract.handle import ActivityCancel, ActivityItem, ActivityOk, ActivityResult, ActivityTask
from hourglass._embedded.clock import Cancel, to_ns
from hourglass._engine.specs import Payloads
from hourglass._runtime import activity_calls
from hourglass._runtime.activity_calls import call_on_loop, call_plainly
from hourglass._runtime.attempts import info_of
from hourglass.activity import ActivityDefinition
from hourglass.activity._context import (
    PAYLOAD_LIMIT,
    ActivityContext,
    ActivityInboundInterceptor,
    Equipment,
    GivenContext,
)
from hourglass.activity._options import LIVENESS_TIMEOUT
from hourglass.converter import Converter
from hourglass.errors import HourglassError, WorkflowStuck
from hourglass.metrics import Registry, default_registry
from hourglass.testing._bench import activity_loop, activity_threads
from hourglass.testing._calls import Call, Recorded
from hourglass.testing._choosing import Step, StepKind
from hourglass.testing._driver import Driver
from hourglass.testing._fakes import Fake, Raisable, raised
from hourglass.testing._queues import Queue
from hourglass.testing._trouble import is_to_be_let_out

# Often enough for the timeout of automatic heartbeats, and seldom enough for hours to pass quickly.
_BEAT = 0.8 * LIVENESS_TIMEOUT
# An activity that has failed so often will not stop failing.
_MOST_ATTEMPTS = 5000


@dataclass(frozen=True)
class Mishap:
    """What befalls an attempt: an error in the place of the call, or an answer that never reaches the engine."""

    error: Raisable | None = None
    answer_lost: bool = False


@dataclass(eq=False, slots=True)
class Attempt:
    """One attempt that is in hand."""

    queue: Queue
    task: ActivityTask
    fake: Fake
    context: ActivityContext
    recorded: Recorded
    alarms: tuple[Cancel, ...] = ()
    coroutine: asyncio.Task[None] | None = None
    over: bool = False
    mishap: Mishap | None = None

    @property
    def name(self) -> str:
        """The activity, for the story."""
        return f"{self.task.activity_type} ({self.task.activity_id}, attempt {self.task.attempt})"


class Attempts:
    """All attempts of an environment; implements `Performer`."""

    def __init__(
        self,
        driver: Driver,
        converter: Converter,
        client: Callable[[], Any],
        *,
        inbound: ActivityInboundInterceptor | None = None,
        registry: Registry = default_registry,
    ) -> None:
        self._driver = driver
        self._converter = converter
        self._equipment = Equipment(
            converter=converter,
            client=client,
            payload_limit=PAYLOAD_LIMIT,
            inbound=inbound,
            registry=registry,
        )
        self._recorded: dict[str, list[Recorded]] = {}
        self._watched: dict[str, tuple[Fake, ActivityDefinition]] = {}
        self._held: dict[bytes, Attempt] = {}
        self._asleep: set[bytes] = set()
        self._running: set[bytes] = set()
        self.inline = False
        """Whether real `def` activities are called here and now, too: `explore` wants no threads."""

    @property
    def running(self) -> int:
        """How many run in threads of their own."""
        return len(self._running)

    @property
    def asleep(self) -> int:
        """How many wait for virtual time."""
        return len(self._asleep)

    def step(self, queue: Queue, item: ActivityItem) -> tuple[StepKind, str, Callable[[], None]]:
        """What a polled item means."""
        if isinstance(item, ActivityCancel):
            held = self._held.get(item.token)
            return "cancel", "an attempt" if held is None else held.name, partial(self._cancel, item)
        name = f"{item.activity_type} ({item.activity_id}, attempt {item.attempt})"
        return "attempt", name, partial(self.begin, queue, item)

    def calls(self, name: str) -> list[Call]:
        """Every attempt of an activity so far."""
        found = [each.call(self._converter) for each in self._recorded.get(name, ())]
        return [each for each in found if each is not None]

    def abandon(self) -> None:
        """Forget all attempts; those that run elsewhere are told to stop, and not heard any more."""
        for attempt in tuple(self._held.values()):
            self._let_go(attempt)
            attempt.context.cancel("WORKER_SHUTDOWN")
            self._cancel_coroutine(attempt)

    # --- beginning ----------------------------------------------------------------------------------------

    def begin(self, queue: Queue, task: ActivityTask, mishap: Mishap | None = None) -> None:
        """Begin an attempt, which a mishap may befall."""
        if task.attempt > _MOST_ATTEMPTS:
            self._driver.troubles.add(
                WorkflowStuck(
                    f"activity {task.activity_type} of workflow {task.workflow_id!r} has failed {_MOST_ATTEMPTS} times, and its "
                    f"retry policy goes on: give it maximum_attempts, or let the fake succeed"
                )
            )
        try:
            fake = self._driver.cast.activity(task.activity_type)
        except HourglassError as error:
            self._driver.troubles.add(error)
            queue.report(activity_calls.failed(task, type(error).__name__, str(error), non_retryable=True))
            return
        recorded = Recorded(task, fake, self._driver.clock.now_ns())
        self._recorded.setdefault(task.activity_type, []).append(recorded)
        planned = None if fake.takes or mishap is not None else fake.planned(task.attempt)
        if planned is not None:  # most attempts of tests that retry: over before the test could ask for them
            queue.report(activity_calls.ended_by(task, planned, None, self._converter, PAYLOAD_LIMIT))
            return
        attempt = Attempt(queue, task, fake, self._context(queue, task), recorded, mishap=mishap)
        self._held[task.token] = attempt
        if fake.takes:
            self._sleep(attempt)
        else:
            self._perform(attempt)

    def _context(self, queue: Queue, task: ActivityTask) -> ActivityContext:
        def send(details: Payloads) -> None:
            if self._driver.at_home:
                self._driver.loop.call(queue.handle.heartbeat, task.token, details)
            else:
                self._driver.loop.call_soon_threadsafe(self._beat_if_held, task, details)

        info = partial(info_of, task, self._converter)
        return GivenContext(info, send, self._equipment, task.heartbeat_details)

    # --- virtual durations --------------------------------------------------------------------------------

    def _sleep(self, attempt: Attempt) -> None:
        clock, fake = self._driver.clock, attempt.fake
        self._asleep.add(attempt.task.token)
        wake = Step("woke", attempt.name, partial(self._wake, attempt))
        attempt.alarms = (clock.call_at(clock.now_ns() + to_ns(fake.takes), lambda: self._driver.add(wake)),)
        interval = fake.beats
        if interval is None and attempt.task.spec.heartbeat_timeout == LIVENESS_TIMEOUT:
            interval = _BEAT
        if interval is not None:
            self._beat_every(attempt, interval)

    def _beat_every(self, attempt: Attempt, interval: float) -> None:
        clock = self._driver.clock

        def beat() -> None:
            if not attempt.over and attempt.task.token in self._asleep:
                attempt.queue.handle.heartbeat(attempt.task.token, attempt.context.last_details)
                self._beat_every(attempt, interval)

        last = attempt.alarms[0]
        attempt.alarms = (last, clock.call_at(clock.now_ns() + to_ns(interval), beat))

    def _wake(self, attempt: Attempt) -> None:
        if not attempt.over:
            self._asleep.discard(attempt.task.token)
            self._perform(attempt)

    # --- the call -----------------------------------------------------------------------------------------

    def _perform(self, attempt: Attempt) -> None:
        definition, task = attempt.fake.definition, attempt.task
        planned = self._planned(attempt)
        if planned is not None:
            reason = attempt.context.cancel_reason
            self._end(attempt, activity_calls.ended_by(task, planned, reason, self._converter, PAYLOAD_LIMIT))
        elif definition.is_async:
            self._running.add(attempt.task.token)
            activity_loop().submit(partial(self._on_loop, attempt), partial(self._began, attempt))
        elif not attempt.fake.real or self.inline:
            self._end(attempt, self._call_here(attempt))
        else:
            self._running.add(attempt.task.token)
            activity_threads().submit(partial(self._in_thread, attempt))

    def _planned(self, attempt: Attempt) -> BaseException | None:
        error = None if attempt.mishap is None else attempt.mishap.error
        return attempt.fake.planned(attempt.task.attempt) if error is None else raised(error)

    def _call_here(self, attempt: Attempt) -> ActivityResult:
        fake, name = attempt.fake, attempt.task.activity_type
        watched = self._watched.get(name)
        if watched is None or watched[0] is not fake:
            watched = self._watched[name] = fake, self._watch(fake.definition)
        return call_plainly(attempt.task, attempt.context, watched[1])

    def _watch(self, definition: ActivityDefinition) -> ActivityDefinition:
        """The same activity; Ctrl-C and pytest's outcomes that it lets out are raised in the test, too."""

        def watched(*args: Any) -> Any:
            try:
                return definition.fn(*args)
            except BaseException as error:
                if is_to_be_let_out(error):
                    self._driver.troubles.add(error)
                raise

        return replace(definition, fn=watched)

    def _in_thread(self, attempt: Attempt) -> None:
        result: ActivityResult | None = None
        try:
            result = call_plainly(attempt.task, attempt.context, attempt.fake.definition)
        finally:
            self._ended_elsewhere(attempt, result)

    async def _on_loop(self, attempt: Attempt) -> None:
        result: ActivityResult | None = None
        try:
            result = await call_on_loop(attempt.task, attempt.context, attempt.fake.definition)
        finally:
            self._ended_elsewhere(attempt, result)

    def _began(self, attempt: Attempt, coroutine: asyncio.Task[None]) -> None:
        attempt.coroutine = coroutine
        if attempt.context.cancelled:
            coroutine.cancel()

    def _ended_elsewhere(self, attempt: Attempt, result: ActivityResult | None) -> None:
        final = result or activity_calls.died_thread(attempt.task)
        self._driver.from_outside(Step("ended", attempt.name, partial(self._end, attempt, final)))

    # --- ending -------------------------------------------------------------------------------------------

    def _cancel(self, cancel: ActivityCancel) -> None:
        attempt = self._held.get(cancel.token)
        if attempt is None:
            return
        attempt.context.cancel(cancel.reason)
        if cancel.token in self._asleep:
            self._end(attempt, activity_calls.stopped(attempt.task, cancel.reason))
        else:
            self._cancel_coroutine(attempt)

    def _cancel_coroutine(self, attempt: Attempt) -> None:
        if attempt.fake.definition.is_async:
            activity_loop().call_soon(lambda: attempt.coroutine is not None and attempt.coroutine.cancel())

    def _end(self, attempt: Attempt, result: ActivityResult) -> None:
        if attempt.over:
            return
        self._let_go(attempt)
        if isinstance(result, ActivityOk):
            attempt.recorded.outcome.append("returned")
        if attempt.mishap is None or not attempt.mishap.answer_lost:
            attempt.queue.report(result)

    def _let_go(self, attempt: Attempt) -> None:
        token = attempt.task.token
        attempt.over = True
        for cancel in attempt.alarms:
            cancel()
        self._held.pop(token, None)
        self._asleep.discard(token)
        self._running.discard(token)

    def _beat_if_held(self, task: ActivityTask, details: Payloads) -> None:
        attempt = self._held.get(task.token)
        if attempt is not None:
            attempt.queue.handle.heartbeat(task.token, details)
