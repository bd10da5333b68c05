"""The activity executor, which executes each `ActivityTask` and delivers an `ActivityResult`, even if the
activity fails, hangs or kills its process.

The executor must be used on the control loop and never runs user code. A runner executes attempts in threads,
on event loops and in processes (`runners`) or, in tests, on the thread of the test.

Invariants:

- An attempt ends once. An attempt that is given up ends at that moment, and a later result is dropped. An
  abandoned attempt has no result.
- When a caller abandons the attempt that it has started, another attempt with the same token is not affected.
- When a later attempt of the same activity arrives, the earlier attempt is cancelled, because the server has
  given it up.
- The engine stops waiting for an attempt that timed out, whose workflow is closed, or that has a later attempt.
  If the attempt does not stop within a grace period, it is given up: its thread counts as lost and is replaced,
  or its process is killed. Hung activities therefore exhaust neither the pool nor the slots of the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import time_ns
from typing import Protocol, TypeAlias

from hourglass._contract.handle import ActivityResult, ActivityTask, AttemptFailed
from hourglass._worker import work_log
from hourglass._worker.activities.attempts import (
    Attempt,
    AttemptKey,
    AttemptSurroundings,
    Heartbeat,
    LoopTimers,
    Report,
    Timers,
)
from hourglass._worker.activities.automatic_heartbeats import AutomaticHeartbeats
from hourglass._worker.activities.outcomes import stopped
from hourglass._worker.activities.publishing import ProgressSender
from hourglass._worker.activity_metrics import ActivityMetrics
from hourglass._worker.mailbox import Mailbox
from hourglass.activity import ActivityDefinition
from hourglass.activity._context import PAYLOAD_LIMIT, Equipment

logger = logging.getLogger("hourglass.worker")

HEARTBEAT_INTERVAL = 10.0
"""The time in seconds between two automatic heartbeats of an attempt."""

_INTERRUPT_AGAIN = 0.02  # seconds of real time

# The cancellation reasons after which the engine no longer waits for the attempt.
_UNWANTED = frozenset(("TIMED_OUT", "NOT_FOUND", "SUPERSEDED"))
_REPORTED = frozenset(("TIMED_OUT", "NOT_FOUND"))


@dataclass(frozen=True, kw_only=True)
class ExecutorLimits:
    """The grace periods and sizes of an executor. Times are in seconds."""

    max_processes: int = 0
    """The maximum number of process activities that run at the same time. 0 means one per CPU."""
    payload_limit: int | None = PAYLOAD_LIMIT
    """The maximum size in bytes of a result or of heartbeat details. None means no limit."""
    payload_warn: int = 0
    """The size in bytes above which a result is logged as a warning. 0 means never."""
    max_lost_threads: int | None = None
    """The maximum number of hung threads that are replaced. The attempts in further hung threads keep their
    slots. None means the size of the pool.
    """
    hang_grace: float = 5.0
    """The time after which a cancelled attempt that the engine no longer waits for is given up."""
    cancel_grace: float = 10.0
    """The time after which the process of a cancelled process activity is killed."""
    late: float = 5.0
    """The time after the start-to-close timeout at which a process activity is stopped, unless the engine has
    already cancelled it.
    """
    loop_tick: float = 0.1
    """The time between two checks whether the activity loop is blocked."""
    loop_limit: float = 0.4
    """The time that the activity loop may be blocked before new attempts start on another loop."""
    max_blocked_loops: int = 32
    """The maximum number of blocked loops that are replaced. At this limit, attempts wait for the last loop."""
    waiting_least: float = 2.0
    waiting_most: float = 30.0
    """A retryable attempt that waits on a blocked loop is given up after it has waited for as long as it had
    run before, but after at least `waiting_least` and at most `waiting_most`.
    """


@dataclass(frozen=True, kw_only=True)
class RunnerStatistics:
    """The state of the threads, processes and loops where activities execute."""

    threads: int
    lost_threads: int
    processes: int
    started_processes: int
    died_processes: int
    loop_blocked: bool
    replaced_loops: int


class AttemptRunner(Protocol):
    """The part of an executor that starts each attempt in a thread, on a loop or in a process. Must be used on
    the control loop, except in tests that run on a single thread.
    """

    def start(self, attempt: Attempt) -> None:
        """Start an attempt and set its `work`. The result is reported with `Attempt.finish_threadsafe`."""
        ...

    def definition_of(self, task: ActivityTask) -> ActivityDefinition | None:
        """Return the definition of a task's activity, or None if it has not been looked up yet. Must not import
        modules.
        """
        ...

    def statistics(self) -> RunnerStatistics:
        """Return the state of the threads, processes and loops."""
        ...

    def stop(self) -> None:
        """Stop threads, loops and processes, without waiting. An attempt that runs in a thread keeps running."""
        ...

    @property
    def trouble(self) -> str:
        """The reason why `async def` activities make no progress, or "" if they can run."""
        ...


MakeRunner: TypeAlias = "Callable[[ActivityExecutor], AttemptRunner]"


class ActivityExecutor:
    """Executes the activities of one worker."""

    def __init__(
        self,
        equipment: Equipment,
        heartbeat: Heartbeat,
        make_runner: MakeRunner,
        *,
        heartbeat_interval: float = HEARTBEAT_INTERVAL,
        limits: ExecutorLimits = ExecutorLimits(),
        metrics: ActivityMetrics | None = None,
        publisher: ProgressSender | None = None,
        mailbox: Mailbox | None = None,
        timers: Timers | None = None,
        is_quiet: bool = False,
    ) -> None:
        """Create an executor on the running loop. By default, `mailbox` and `timers` are created for this loop.

        With `is_quiet`, attempts that fail or time out are not logged, because a test expects them.
        """
        mailbox = Mailbox() if mailbox is None else mailbox
        timers = LoopTimers(mailbox.loop) if timers is None else timers
        self._limits = limits
        self._is_quiet = is_quiet
        self._metrics = metrics
        self._around = AttemptSurroundings(
            equipment=equipment,
            mailbox=mailbox,
            timers=timers,
            heartbeat=heartbeat,
            publisher=publisher,
            ended=self._ended,
        )
        # The attempts that execute in this worker. The engine may not wait for all of them:
        # `HandleRecord.attempts` contains the attempts that it waits for.
        self.attempts: dict[AttemptKey, Attempt] = {}
        self._latest: dict[tuple[str, str, str], Attempt] = {}  # by activity
        self.runner = make_runner(self)
        self._heartbeats = AutomaticHeartbeats(
            heartbeat_interval, self.attempts, self.runner.definition_of, timers
        )

    @property
    def running(self) -> int:
        """The number of attempts in progress."""
        return len(self.attempts)

    def generation_of(self, token: bytes) -> int | None:
        """Return the generation of the handle that delivered an attempt, or None if the attempt is not in
        progress.
        """
        attempt = self.attempts.get(
            token
        )  # never a local activity: only heartbeats call this method, and local activities have none
        return None if attempt is None else attempt.generation

    def stacks(self, run_id: str) -> str:
        """Return the stacks of a run's attempts as text: the id of each activity, followed by the author's
        frames.

        May be called on any thread.
        """
        stacks = []
        for attempt in list(self.attempts.values()):
            if attempt.task.run_id == run_id:
                stack = "" if attempt.work is None else attempt.work.stack()
                if stack:
                    stacks.append(f"activity {attempt.task.activity_id}\n{stack}")
        return "\n".join(stacks)

    def begin(self, task: ActivityTask, report: Report, generation: int = 0) -> Attempt:
        """Start an attempt that a handle of this generation delivered. `report` receives the result once,
        unless the attempt is abandoned.
        """
        attempt = Attempt(task, report, self._around, generation)
        if self._metrics is not None:
            self._metrics.began(task)
        earlier = self._latest.get(attempt.identity)
        if earlier is not None and not task.is_local:
            self.cancel_attempt(earlier, "SUPERSEDED")
        self.attempts[attempt.key] = self._latest[attempt.identity] = attempt
        try:
            self.runner.start(attempt)
        except BaseException:
            self._leave(attempt)
            raise
        if self._heartbeats.timer is None:
            self._heartbeats.watch(attempt)
        return attempt

    def abandon(self, attempt: Attempt) -> None:
        """Cancel and give up an attempt whose caller no longer waits for it. No result is delivered."""
        if not attempt.over:
            self._leave(attempt)
            attempt.discard()
            self.cancel_attempt(attempt, "WORKER_SHUTDOWN")
            if attempt.work is not None:
                attempt.work.abandon()

    def cancel(self, token: bytes, reason: str, generation: int | None = None) -> None:
        """Cancel the attempt with this token, if it has not ended. `generation` is the generation of the
        requesting handle.
        """
        attempt = self.attempts.get(token) or self.attempts.get((generation or 0, token))
        if attempt is not None and generation in (None, attempt.generation):
            self.cancel_attempt(attempt, reason)

    def worker_stops(self) -> None:
        """Notify all attempts that the worker is shutting down. The attempts keep running."""
        for attempt in list(self.attempts.values()):
            attempt.context.worker_stops()

    def stop(self) -> None:
        """Stop threads, loops and processes, without waiting. An attempt that runs in a thread keeps running."""
        self._heartbeats.stop()
        self.runner.stop()

    def cancel_attempt(self, attempt: Attempt, reason: str) -> None:
        """Cancel an attempt, and give it up after a grace period if the engine no longer waits for it."""
        is_new = reason in _REPORTED and attempt.context.cancel_reason not in _UNWANTED
        if is_new and not self._is_quiet:
            work_log.log_unwanted(attempt.task, reason, self._around.timers.time() - attempt.since)
        attempt.context.cancel(reason)
        if attempt.work is not None:
            attempt.work.cancel(reason)
        self._interrupt(attempt)
        if reason in _UNWANTED:
            attempt.after(self._limits.hang_grace, partial(self._overdue, attempt, reason))
        elif attempt.work is not None and attempt.work.is_process:
            attempt.after(self._limits.cancel_grace, partial(self._overdue, attempt, reason))

    def _interrupt(self, attempt: Attempt) -> None:
        """Raise the cancellation in the attempt's thread as soon as it is safe, if the activity supports that."""
        if not attempt.context.interrupt() and not attempt.over:
            # Real time, even if the engine's time is virtual: this waits for a real thread.
            self._around.mailbox.loop.call_later(_INTERRUPT_AGAIN, self._interrupt, attempt)

    def _overdue(self, attempt: Attempt, reason: str) -> None:
        """Give up an attempt that has not stopped within its grace period."""
        task, work = attempt.task, attempt.work
        if work is None:
            return
        stack = work.stack() or "an unknown place"
        lost = self.runner.statistics().lost_threads
        if not work.abandon():
            logger.error(
                "%s does not stop (%s), and %d threads have been abandoned already: it keeps its slot. Its stack:\n%s",
                work_log.named(task),
                reason,
                lost,
                stack,
                extra=work_log.facts_of(task),
            )
            attempt.after(self._limits.hang_grace, partial(self._overdue, attempt, reason))
        elif not work.is_process and not work.is_foreign:
            logger.error(
                "%s does not stop (%s) and is abandoned, with its thread if it has one; %d threads are abandoned now. Its "
                "stack:\n%s",
                work_log.named(task),
                reason,
                self.runner.statistics().lost_threads,
                stack,
                extra=work_log.facts_of(task),
            )
            attempt.finish(stopped(task, reason))

    def _leave(self, attempt: Attempt) -> None:
        if self.attempts.get(attempt.key) is attempt:
            del self.attempts[attempt.key]
            if not self.attempts:
                self._heartbeats.stop()
        if self._latest.get(attempt.identity) is attempt:
            del self._latest[attempt.identity]

    def _ended(self, attempt: Attempt, result: ActivityResult) -> None:
        self._leave(attempt)
        try:
            if self._metrics is not None:
                self._metrics.ended(attempt.task, result, self._around.timers.time() - attempt.since)
            if type(result) is AttemptFailed and not self._is_quiet:
                self._log_failure(attempt, result)
        finally:
            attempt.report(result)

    def _log_failure(self, attempt: Attempt, result: AttemptFailed) -> None:
        if attempt.context.cancel_reason in _UNWANTED:
            return  # already logged when the engine gave the attempt up
        # The engine's clock differs from real time in tests.
        ran_ns = round((self._around.timers.time() - attempt.since) * 1e9)
        now_ns = attempt.task.started_time_ns + ran_ns if attempt.task.started_time_ns else time_ns()
        work_log.log_failed(attempt.task, result, now_ns, attempt.context.cancel_reason)
