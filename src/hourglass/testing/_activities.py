"""The execution of attempts in an environment: the worker's activity executor, with a runner for tests.

Contexts, heartbeats, cancellation, results and the executor's limits are the worker's. Only the place of execution differs.
A plain fake runs on the test's thread; a fake with a virtual duration first waits on the virtual clock. A real `def`
activity, including a process activity, runs in a thread. A real or fake `async def` activity runs on the activity loop.
Virtual time does not pass while an activity runs in a thread or on the loop.

Invariants:

- An attempt that runs on the test's thread is over when the step that started it is over.
- The result of an attempt that ran elsewhere is a separate step, so that the chooser decides when the engine receives it.
- During the virtual duration of a fake, the engine receives the same calls as from a worker: heartbeats, if they are automatic
  or requested, and the result. A cancellation ends the attempt immediately.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from hourglass._contract.handle import ActivityOk, ActivityResult, ActivityTask
from hourglass._embedded import VirtualClock
from hourglass._worker.activities.activity_loop import LoopWork
from hourglass._worker.activities.attempts import Attempt, AttemptWork, attempt_name
from hourglass._worker.activities.executors import RunnerStatistics
from hourglass._worker.activities.invocation import call_plainly
from hourglass._worker.activities.outcomes import ended_by, failed, stopped
from hourglass._worker.activities.runners import run_in_thread, start_on_loop
from hourglass._worker.mailbox import Mailbox
from hourglass.activity import ActivityDefinition
from hourglass.activity._context import Equipment
from hourglass.activity._options import LIVENESS_TIMEOUT
from hourglass.errors import HourglassError, WorkflowStuck
from hourglass.testing._calls import Call, RecordedAttempt
from hourglass.testing._errors import EnvironmentErrors, is_for_test_runner
from hourglass.testing._fakes import Fake, Raisable, raised
from hourglass.testing._quiet_loop import QuietLoop
from hourglass.testing._registry import EnvironmentRegistry
from hourglass.testing._shared_threads import activity_loop, activity_threads
from hourglass.testing._steps import Step
from hourglass.testing._virtual_time import VirtualTimers

if TYPE_CHECKING:
    from hourglass.testing._driver import EnvironmentDriver

T = TypeVar("T")

# Frequent enough for the timeout of automatic heartbeats, and rare enough that simulated hours pass quickly.
HEARTBEAT_INTERVAL = 0.8 * LIVENESS_TIMEOUT
# An activity that has failed this often is assumed to fail forever.
_MAX_ATTEMPTS = 5000


@dataclass(frozen=True)
class PlannedFault:
    """A fault of an attempt: an exception raised instead of the call, or a result that never reaches the engine."""

    error: Raisable | None = None
    result_lost: bool = False


_NO_FAULT = PlannedFault()


@dataclass(slots=True, eq=False)
class RunningAttempt:
    """An attempt in progress, as seen by its environment."""

    name: str
    record: RecordedAttempt
    fault: PlannedFault
    is_elsewhere: bool = False
    """Whether the attempt runs in a thread or on the activity loop."""


class EnvironmentActivities:
    """The data about activities that all task queues of an environment share: fakes, recorded calls, attempts in progress."""

    def __init__(
        self,
        registry: EnvironmentRegistry,
        errors: EnvironmentErrors,
        clock: VirtualClock,
        equipment: Equipment,
        *,
        inline: bool = False,
    ) -> None:
        """Create the shared data. With `inline`, real `def` activities also run on the test's thread, as `explore` requires."""
        self.registry = registry
        self.errors = errors
        self.clock = clock
        self.equipment = equipment
        self.inline = inline
        self.timers = VirtualTimers(clock)
        self.running: set[RunningAttempt] = set()
        """The attempts that run in threads or on the activity loop."""
        self.asleep: set[RunningAttempt] = set()
        """The attempts that are waiting for virtual time to pass."""
        self._records: dict[str, list[RecordedAttempt]] = {}
        self._watched: dict[str, tuple[Fake, ActivityDefinition]] = {}

    def calls(self, name: str) -> list[Call]:
        """Return all attempts of an activity so far."""
        calls = [record.call(self.equipment.converter) for record in self._records.get(name, ())]
        return [call for call in calls if call is not None]

    def record(self, task: ActivityTask, fake: Fake) -> RecordedAttempt:
        """Record that an attempt was started."""
        record = RecordedAttempt(task, fake, self.clock.now_ns())
        self._records.setdefault(task.activity_type, []).append(record)
        return record

    def fake_of(self, task: ActivityTask) -> Fake:
        """Return the fake to execute for a task, or the activity itself, wrapped as a fake."""
        step = self.registry.steps.get(task.run_id, {}).get(task.activity_id)
        return self.registry.activity(task.activity_type, step)

    def watched(self, name: str, fake: Fake) -> ActivityDefinition:
        """Return a fake's activity. A KeyboardInterrupt or pytest outcome that the fake raises is also raised in the test."""
        entry = self._watched.get(name)
        if entry is None or entry[0] is not fake:
            entry = self._watched[name] = fake, self._watch(fake.definition)
        return entry[1]

    def _watch(self, definition: ActivityDefinition) -> ActivityDefinition:
        errors = self.errors

        def watched(*args: Any) -> Any:
            try:
                return definition.fn(*args)
            except BaseException as error:
                if is_for_test_runner(error):
                    errors.add(error)
                raise

        return replace(definition, fn=watched)


class EnvironmentMailbox(Mailbox):
    """The mailbox of the environment's loop: a direct call on the loop's own thread, a wake-up from any other thread."""

    __slots__ = ("_quiet", "_thread")

    def __init__(self, loop: QuietLoop) -> None:
        super().__init__()
        self._quiet = loop
        self._thread = threading.get_ident()

    def post(self, callback: Callable[[T], object], argument: T) -> None:
        """Call `callback(argument)` on the environment's loop."""
        if threading.get_ident() == self._thread:
            self._quiet.call(callback, argument)
        else:
            super().post(callback, argument)


class SleepingFake(AttemptWork):
    """A fake activity attempt that waits until its virtual duration has passed."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def cancel(self, reason: str) -> None:
        """End the attempt as cancelled."""
        self._attempt.finish_threadsafe(stopped(self._attempt.task, reason))


class EnvironmentRunner:
    """Executes the attempts of one task queue; implements `AttemptRunner`."""

    trouble = ""

    def __init__(self, stage: EnvironmentActivities, steps: EnvironmentDriver) -> None:
        self._stage = stage
        self._steps = steps
        self._faults: dict[bytes, PlannedFault] = {}
        self._running: dict[bytes, RunningAttempt] = {}

    def plan(self, token: bytes, fault: PlannedFault) -> None:
        """Plan a fault for the attempt with this token, before the attempt is started."""
        self._faults[token] = fault

    def start(self, attempt: Attempt) -> None:
        """Start an attempt. Must be called on the environment's thread."""
        task, stage = attempt.task, self._stage
        if task.attempt > _MAX_ATTEMPTS:
            stage.errors.add(
                WorkflowStuck(
                    f"activity {task.activity_type} of workflow {task.workflow_id!r} has failed {_MAX_ATTEMPTS} times, and its "
                    f"retry policy has no limit: set maximum_attempts, or let the fake succeed"
                )
            )
        try:
            fake = stage.fake_of(task)
        except HourglassError as error:  # an error in the test itself, so another attempt would not help
            stage.errors.add(error)
            attempt.finish_threadsafe(failed(task, type(error).__name__, str(error), non_retryable=True))
            return
        fault = self._faults.pop(task.token, _NO_FAULT)
        running = RunningAttempt(attempt_name(task), stage.record(task, fake), fault)
        self._running[task.token] = running
        if fake.takes:
            self._sleep(attempt, running, fake)
        else:
            self._perform(attempt, running, fake)

    def ended(self, result: ActivityResult) -> RunningAttempt | None:
        """Remove an attempt that has ended, and return it. Return None if its activity is unknown."""
        running = self._running.pop(result.token, None)
        if running is not None:
            self._stage.asleep.discard(running)
            self._stage.running.discard(running)
            if isinstance(result, ActivityOk):
                running.record.outcome.append("returned")
        return running

    def abandon(self) -> None:
        """Drop all attempts in progress."""
        for running in self._running.values():
            self._stage.asleep.discard(running)
            self._stage.running.discard(running)
        self._running.clear()

    def definition_of(self, task: ActivityTask) -> ActivityDefinition | None:
        """Return the activity for a task; None if it is unknown."""
        running = self._running.get(task.token)
        return None if running is None else running.record.fake.definition

    def statistics(self) -> RunnerStatistics:
        """Return statistics with the number of threads that the environments of this process share."""
        threads = activity_threads()
        return RunnerStatistics(
            threads=threads.size,
            lost_threads=threads.lost,
            processes=0,
            started_processes=0,
            died_processes=0,
            loop_blocked=False,
            replaced_loops=0,
        )

    def stop(self) -> None:
        """Do nothing, because the threads and the loop are shared by all environments of this process."""

    def _sleep(self, attempt: Attempt, running: RunningAttempt, fake: Fake) -> None:
        self._stage.asleep.add(running)
        attempt.work = SleepingFake(attempt)

        def wake() -> None:
            if not attempt.over:
                self._stage.asleep.discard(running)
                self._perform(attempt, running, fake)

        attempt.after(fake.takes, lambda: self._steps.add(Step("woke", running.name, wake)))
        if fake.beats is not None:
            self._send_heartbeats(attempt, running, fake.beats)

    def _send_heartbeats(self, attempt: Attempt, running: RunningAttempt, interval: float) -> None:
        def send() -> None:
            if running in self._stage.asleep:
                attempt.send(attempt.context.last_details)
                attempt.after(interval, send)

        attempt.after(interval, send)

    def _perform(self, attempt: Attempt, running: RunningAttempt, fake: Fake) -> None:
        error = running.fault.error
        planned = fake.planned(attempt.task.attempt) if error is None else raised(error)
        if planned is not None:
            attempt.work = None
            attempt.finish_threadsafe(_raised_result(attempt, fake.definition, planned))
            return
        definition = self._definition(attempt.task, fake)
        if definition.is_async:
            self._leave_thread(running)
            attempt.work = work = LoopWork(activity_loop())
            start_on_loop(attempt, work, definition)
        elif not fake.real or self._stage.inline:
            attempt.work = None
            attempt.finish_threadsafe(call_plainly(attempt.task, attempt.context, definition))
        else:
            self._leave_thread(running)
            attempt.work = activity_threads().submit(run_in_thread, attempt, definition)

    def _leave_thread(self, running: RunningAttempt) -> None:
        running.is_elsewhere = True
        self._stage.running.add(running)

    def _definition(self, task: ActivityTask, fake: Fake) -> ActivityDefinition:
        if fake.definition.is_async or (fake.real and not self._stage.inline):
            return fake.definition
        return self._stage.watched(task.activity_type, fake)


def _raised_result(attempt: Attempt, definition: ActivityDefinition, error: BaseException) -> ActivityResult:
    """Return the result of an attempt with a planned exception. Interceptors see the exception; without interceptors, no
    code runs.
    """
    task, context = attempt.task, attempt.context
    equipment = context.equipment
    if equipment.inbound is None:
        return ended_by(task, error, context.cancel_reason, equipment.converter, equipment.payload_limit)

    def raise_error(*args: Any) -> Any:
        raise error

    return call_plainly(task, context, replace(definition, fn=raise_error, is_async=False))
