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
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from hourglass._contract.handle import ActivityCancel, ActivityItem, ActivityOk, ActivityResult, ActivityTask
from hourglass._contract.progress import ProgressItems
from hourglass._embedded.clock import SECOND, Cancel, to_ns
from hourglass._embedded.runs.progress import Publisher
from hourglass._embedded.runs.run import AttemptToken
from hourglass._evaluator.options import Duration, seconds
from hourglass._evaluator.specs import Payloads
from hourglass._worker.activities.attempts import info_of
from hourglass._worker.activities.invocation import call_on_loop, call_plainly
from hourglass._worker.activities.outcomes import died_thread, ended_by, failed, stopped
from hourglass.activity import ActivityDefinition
from hourglass.activity._context import (
    PAYLOAD_LIMIT,
    ActivityChain,
    ActivityContext,
    Equipment,
    GivenContext,
    Resources,
)
from hourglass.activity._options import LIVENESS_TIMEOUT
from hourglass.converter import Converter, Payload
from hourglass.errors import HourglassError, UsageError, WorkflowStuck
from hourglass.metrics import Registry, default_registry
from hourglass.testing._driver import EnvironmentDriver, ServedQueue, Step, StepKind
from hourglass.testing._registry import Fake, Raisable, raised
from hourglass.testing._threads import activity_loop, activity_threads
from hourglass.testing._trouble import is_to_be_let_out

# --- virtual time ---------------------------------------------------------------------------------
#
# Times and durations are `datetime`, `timedelta`, `days=3` where a test writes them, and nanoseconds inside.


def span(
    duration: Duration | None, weeks: float, days: float, hours: float, minutes: float, seconds_: float
) -> int:
    """A duration, given as one or in parts, as nanoseconds."""
    parts = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds_)
    if duration is not None and parts:
        raise UsageError("give a duration, or its parts by name (days=3, hours=12), not both")
    if duration is None and not parts:
        raise UsageError("give a duration: a timedelta, seconds, or its parts by name (days=3, hours=12)")
    chosen = parts if duration is None else duration
    if isinstance(chosen, timedelta):
        seconds(chosen)
        return (chosen // timedelta(microseconds=1)) * 1000
    return round(seconds(chosen) * SECOND)


def as_datetime(ns: int) -> datetime:
    """A virtual time as a `datetime` in UTC, to the microsecond."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=ns // 1000)


def as_ns(time: datetime) -> int:
    """A `datetime` as nanoseconds since the epoch; it must know its time zone."""
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise UsageError("a time must be a datetime with a time zone")
    return ((time - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)) * 1000


# --- calls: `env.calls(charge) == [call("o-1", 1200)]` --------------------------------------------


@dataclass(frozen=True, eq=False)
class Call:
    """One attempt of an activity: with what it was called, the how-manieth attempt it was, and when.

    Equal to another, or to `call(…)`, if the arguments are, however they were given: by position, by name or by
    default.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    activity: str = ""
    attempt: int = 0
    time_ns: int = field(default=0, repr=False)
    workflow_id: str = ""
    function: Callable[..., Any] | None = field(default=None, repr=False)
    outcome: list[str] = field(default_factory=list, repr=False)

    @property
    def returned(self) -> bool:
        """Whether it did its work and returned, be it that its answer was lost."""
        return "returned" in self.outcome

    @property
    def time(self) -> datetime:
        """When, in virtual time."""
        return as_datetime(self.time_ns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Call):
            return NotImplemented
        signature = _signature(self.function or other.function)
        return self._bound(signature) == other._bound(signature)

    __hash__ = None  # type: ignore[assignment]  # arguments may be anything

    def __repr__(self) -> str:
        given = [repr(each) for each in self.args] + [
            f"{key}={value!r}" for key, value in self.kwargs.items()
        ]
        again = f" (attempt {self.attempt})" if self.attempt > 1 else ""
        return f"call({', '.join(given)}){again}"

    def _bound(self, signature: inspect.Signature | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if signature is None:
            return self.args, self.kwargs
        try:
            bound = signature.bind(*self.args, **self.kwargs)
        except TypeError:  # not a call of this function: equal to none that is
            return self.args, self.kwargs
        bound.apply_defaults()
        return bound.args, bound.kwargs


@dataclass(slots=True, eq=False)
class RecordedAttempt:
    """An attempt that was begun, as it came. What it was called with is decoded when the test asks: few do."""

    task: ActivityTask
    fake: Fake
    time_ns: int
    outcome: list[str] = field(default_factory=list)
    _call: Call | None = None
    _is_decoded: bool = False

    def call(self, converter: Converter) -> Call | None:
        """The call; None where its arguments cannot be decoded: the attempt has failed with that."""
        if not self._is_decoded:
            self._is_decoded = True
            try:
                arguments = self.fake.definition.arguments(converter, self.task.arguments)
            except HourglassError:
                return None
            self._call = Call(
                tuple(arguments),
                activity=self.task.activity_type,
                attempt=self.task.attempt,
                time_ns=self.time_ns,
                workflow_id=self.task.workflow_id,
                function=self.fake.shown,
                outcome=self.outcome,
            )
        return self._call


def _signature(function: Callable[..., Any] | None) -> inspect.Signature | None:
    try:
        return None if function is None else inspect.signature(function)
    except (TypeError, ValueError):
        return None  # some callables of C do not say what they take


def call(*args: Any, **kwargs: Any) -> Call:
    """What a call is compared with."""
    return Call(args, kwargs)


# --- attempts -------------------------------------------------------------------------------------


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
class EnvironmentAttempt:
    """One attempt that is in hand."""

    queue: ServedQueue
    task: ActivityTask
    fake: Fake
    context: ActivityContext
    recorded: RecordedAttempt
    alarms: tuple[Cancel, ...] = ()
    coroutine: asyncio.Task[None] | None = None
    over: bool = False
    mishap: Mishap | None = None
    published: dict[str, int] = field(default_factory=dict)
    """The number of the last item, by name."""

    @property
    def name(self) -> str:
        """The activity, for the story."""
        return f"{self.task.activity_type} ({self.task.activity_id}, attempt {self.task.attempt})"


class Attempts:
    """All attempts of an environment; implements `Performer`."""

    def __init__(
        self,
        driver: EnvironmentDriver,
        converter: Converter,
        client: Callable[[], Any],
        *,
        inbound: ActivityChain | None = None,
        registry: Registry = default_registry,
        resources: Resources = Resources(),
    ) -> None:
        self._driver = driver
        self._converter = converter
        self._equipment = Equipment(
            converter=converter,
            client=client,
            payload_limit=PAYLOAD_LIMIT,
            inbound=inbound,
            registry=registry,
            resources=resources,
        )
        self._recorded: dict[str, list[RecordedAttempt]] = {}
        self._watched: dict[str, tuple[Fake, ActivityDefinition]] = {}
        self._held: dict[bytes, EnvironmentAttempt] = {}
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

    def step(self, queue: ServedQueue, item: ActivityItem) -> tuple[StepKind, str, Callable[[], None]]:
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

    def begin(self, queue: ServedQueue, task: ActivityTask, mishap: Mishap | None = None) -> None:
        """Begin an attempt, which a mishap may befall."""
        if task.attempt > _MOST_ATTEMPTS:
            self._driver.troubles.add(
                WorkflowStuck(
                    f"activity {task.activity_type} of workflow {task.workflow_id!r} has failed {_MOST_ATTEMPTS} times, and its "
                    f"retry policy goes on: give it maximum_attempts, or let the fake succeed"
                )
            )
        try:
            registry = self._driver.registry
            fake = registry.activity(
                task.activity_type, registry.steps.get(task.run_id, {}).get(task.activity_id)
            )
        except HourglassError as error:
            self._driver.troubles.add(error)
            queue.report(failed(task, type(error).__name__, str(error), non_retryable=True))
            return
        recorded = RecordedAttempt(task, fake, self._driver.clock.now_ns())
        self._recorded.setdefault(task.activity_type, []).append(recorded)
        planned = None if fake.takes or mishap is not None else fake.planned(task.attempt)
        if planned is not None:  # most attempts of tests that retry: over before the test could ask for them
            queue.report(ended_by(task, planned, None, self._converter, PAYLOAD_LIMIT))
            return
        attempt = EnvironmentAttempt(queue, task, fake, self._context(queue, task), recorded, mishap=mishap)
        self._held[task.token] = attempt
        if fake.takes:
            self._sleep(attempt)
        else:
            self._perform(attempt)

    def _context(self, queue: ServedQueue, task: ActivityTask) -> ActivityContext:
        def send(details: Payloads) -> None:
            if self._driver.at_home:
                self._driver.loop.call(queue.handle.heartbeat, task.token, details)
            else:
                self._driver.loop.call_soon_threadsafe(self._beat_if_held, task, details)

        def publish(name: str, value: Payload) -> None:
            if self._driver.at_home:
                self._driver.loop.call(self._publish_if_held, task, name, value)
            else:
                self._driver.loop.call_soon_threadsafe(self._publish_if_held, task, name, value)

        info = partial(info_of, task, self._converter)
        return GivenContext(info, send, self._equipment, task.heartbeat_details, publish)

    # --- virtual durations --------------------------------------------------------------------------------

    def _sleep(self, attempt: EnvironmentAttempt) -> None:
        clock, fake = self._driver.clock, attempt.fake
        self._asleep.add(attempt.task.token)
        wake = Step("woke", attempt.name, partial(self._wake, attempt))
        attempt.alarms = (clock.call_at(clock.now_ns() + to_ns(fake.takes), lambda: self._driver.add(wake)),)
        interval = fake.beats
        if interval is None and attempt.task.spec.heartbeat_timeout == LIVENESS_TIMEOUT:
            interval = _BEAT
        if interval is not None:
            self._beat_every(attempt, interval)

    def _beat_every(self, attempt: EnvironmentAttempt, interval: float) -> None:
        clock = self._driver.clock

        def beat() -> None:
            if not attempt.over and attempt.task.token in self._asleep:
                attempt.queue.handle.heartbeat(attempt.task.token, attempt.context.last_details)
                self._beat_every(attempt, interval)

        last = attempt.alarms[0]
        attempt.alarms = (last, clock.call_at(clock.now_ns() + to_ns(interval), beat))

    def _wake(self, attempt: EnvironmentAttempt) -> None:
        if not attempt.over:
            self._asleep.discard(attempt.task.token)
            self._perform(attempt)

    # --- the call -----------------------------------------------------------------------------------------

    def _perform(self, attempt: EnvironmentAttempt) -> None:
        definition, task = attempt.fake.definition, attempt.task
        planned = self._planned(attempt)
        if planned is not None:
            reason = attempt.context.cancel_reason
            self._end(attempt, ended_by(task, planned, reason, self._converter, PAYLOAD_LIMIT))
        elif definition.is_async:
            self._running.add(attempt.task.token)
            activity_loop().submit(partial(self._on_loop, attempt), partial(self._began, attempt))
        elif not attempt.fake.real or self.inline:
            self._end(attempt, self._call_here(attempt))
        else:
            self._running.add(attempt.task.token)
            activity_threads().submit(partial(self._in_thread, attempt))

    def _planned(self, attempt: EnvironmentAttempt) -> BaseException | None:
        error = None if attempt.mishap is None else attempt.mishap.error
        return attempt.fake.planned(attempt.task.attempt) if error is None else raised(error)

    def _call_here(self, attempt: EnvironmentAttempt) -> ActivityResult:
        fake, name = attempt.fake, attempt.task.activity_type
        watched = self._watched.get(name)
        if watched is None or watched[0] is not fake:
            watched = self._watched[name] = fake, self._watch(fake.definition)
        return call_plainly(attempt.task, attempt.context, watched[1])

    def _watch(self, definition: ActivityDefinition) -> ActivityDefinition:
        """The same activity; Ctrl-C and pytest's outcomes that it lets out are raised in the test, too."""
        troubles = self._driver.troubles

        def watched(*args: Any) -> Any:
            try:
                return definition.fn(*args)
            except BaseException as error:
                if is_to_be_let_out(error):
                    troubles.add(error)
                raise

        return replace(definition, fn=watched)

    def _in_thread(self, attempt: EnvironmentAttempt) -> None:
        result: ActivityResult | None = None
        try:
            result = call_plainly(attempt.task, attempt.context, attempt.fake.definition)
        finally:
            self._ended_elsewhere(attempt, result)

    async def _on_loop(self, attempt: EnvironmentAttempt) -> None:
        result: ActivityResult | None = None
        try:
            result = await call_on_loop(attempt.task, attempt.context, attempt.fake.definition)
        finally:
            self._ended_elsewhere(attempt, result)

    def _began(self, attempt: EnvironmentAttempt, coroutine: asyncio.Task[None]) -> None:
        attempt.coroutine = coroutine
        if attempt.context.cancelled:
            coroutine.cancel()

    def _ended_elsewhere(self, attempt: EnvironmentAttempt, result: ActivityResult | None) -> None:
        final = result or died_thread(attempt.task)
        self._driver.from_outside(Step("ended", attempt.name, partial(self._end, attempt, final)))

    # --- ending -------------------------------------------------------------------------------------------

    def _cancel(self, cancel: ActivityCancel) -> None:
        attempt = self._held.get(cancel.token)
        if attempt is None:
            return
        attempt.context.cancel(cancel.reason)
        if cancel.token in self._asleep:
            self._end(attempt, stopped(attempt.task, cancel.reason))
        else:
            self._cancel_coroutine(attempt)

    def _cancel_coroutine(self, attempt: EnvironmentAttempt) -> None:
        if attempt.fake.definition.is_async:
            activity_loop().call_soon(lambda: attempt.coroutine is not None and attempt.coroutine.cancel())

    def _end(self, attempt: EnvironmentAttempt, result: ActivityResult) -> None:
        if attempt.over:
            return
        self._let_go(attempt)
        if isinstance(result, ActivityOk):
            attempt.recorded.outcome.append("returned")
        if attempt.mishap is None or not attempt.mishap.answer_lost:
            attempt.queue.report(result)

    def _let_go(self, attempt: EnvironmentAttempt) -> None:
        token = attempt.task.token
        attempt.over = True
        for cancel in attempt.alarms:
            cancel()
        self._held.pop(token, None)
        self._asleep.discard(token)
        self._running.discard(token)

    def _publish_if_held(self, task: ActivityTask, name: str, value: Payload) -> None:
        attempt = self._held.get(task.token)
        if attempt is not None:
            first = attempt.published[name] = attempt.published.get(name, -1) + 1
            token = AttemptToken.decode(task.token)
            publisher = Publisher(
                task.activity_id, task.activity_type, task.attempt, token.scheduled_event_id
            )
            items = ProgressItems(name=name, first=first, items=(value,))
            self._driver.engine.progress.publish(task.run_id, publisher, (items,))

    def _beat_if_held(self, task: ActivityTask, details: Payloads) -> None:
        attempt = self._held.get(task.token)
        if attempt is not None:
            attempt.queue.handle.heartbeat(task.token, details)
