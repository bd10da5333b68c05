"""The activity executor: an `ActivityTask` in, an `ActivityResult` out, whatever the activity does.

The executor belongs to the control loop and never runs user code: a runner executes attempts in threads, on event loops and in
processes (`runners`), or, in tests, on the thread of the test.

Invariants:

- An attempt ends once: if it is given up it ends at that moment, and its later result is dropped. An abandoned attempt has no
  result.
- A caller that has started an attempt abandons that attempt, and not another one with the same token.
- When a later attempt of the same activity arrives, the server has given up the earlier one, and it is cancelled here.
- An attempt that the engine no longer waits for (it timed out, its workflow is closed, a later attempt has arrived) and that
  does not stop is given up after a grace period: its thread counts as lost and is replaced, its process is killed. So hung
  activities use up neither the pool nor the slots of the engine.
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
    ItemPublisher,
    LoopTimers,
    Timers,
    Waiter,
)
from hourglass._worker.activities.automatic_heartbeats import AutomaticHeartbeats
from hourglass._worker.activities.outcomes import stopped
from hourglass._worker.activity_metrics import ActivityMetrics
from hourglass._worker.mailbox import Mailbox
from hourglass.activity import ActivityDefinition
from hourglass.activity._context import PAYLOAD_LIMIT, Equipment

logger = logging.getLogger("hourglass.worker")

HEARTBEAT_INTERVAL = 10.0
"""The time between two automatic heartbeats of an attempt in seconds."""

_INTERRUPT_AGAIN = 0.02  # seconds of real time

# The reasons of a cancellation after which the engine no longer waits for the attempt's end.
_UNWANTED = frozenset(("TIMED_OUT", "NOT_FOUND", "SUPERSEDED"))
_REPORTED = frozenset(("TIMED_OUT", "NOT_FOUND"))


@dataclass(frozen=True, kw_only=True)
class ExecutorLimits:
    """The grace periods of an executor in seconds, and its sizes."""

    max_processes: int = 0
    """The number of process activities that run at a time; 0: one per processor."""
    payload_limit: int | None = PAYLOAD_LIMIT
    """The maximum size of a result or of heartbeat details in bytes; None: no limit."""
    payload_warn: int = 0
    """The size in bytes from which a result is logged as a warning; 0: never."""
    max_lost_threads: int | None = None
    """The number of hung threads that are replaced; the attempts of further ones keep their slots. None: the pool's size."""
    hang_grace: float = 5.0
    """The time from cancelling an attempt that the engine no longer waits for to giving it up."""
    cancel_grace: float = 10.0
    """The time from cancelling a process activity to killing its process."""
    late: float = 5.0
    """The time after its start-to-close timeout at which a process activity is stopped, unless the engine has cancelled
    it before.
    """
    loop_tick: float = 0.1
    """The time between two checks of the activity loop."""
    loop_limit: float = 0.4
    """The time that the activity loop may be blocked before new attempts start on another one."""
    max_blocked_loops: int = 32
    """The number of loops that may be blocked at a time; if there are more, attempts wait for the last of them."""
    waiting_least: float = 2.0
    waiting_most: float = 30.0
    """An attempt that waits on a blocked loop, and can be retried, is given up after it has waited for as long as it had run
    before, at least `waiting_least` and at most `waiting_most`. So it never loses more work than the time that it waited.
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
    """Starts attempts where their code belongs. On the control loop, except where a test runs everything on one thread."""

    def start(self, attempt: Attempt) -> None:
        """Start an attempt and set its `work`. Its end is reported by `Attempt.finish_threadsafe`."""
        ...

    def definition_of(self, task: ActivityTask) -> ActivityDefinition | None:
        """Return the activity of a task, or None if it has not been looked up yet. Imports nothing."""
        ...

    def statistics(self) -> RunnerStatistics:
        """Return the number of threads, processes and loops."""
        ...

    def stop(self) -> None:
        """Let threads, loops and processes end, without waiting. An attempt that still runs in a thread continues."""
        ...

    @property
    def trouble(self) -> str:
        """The reason why `async def` activities make no progress; "" if nothing stops them."""
        ...


class AttemptTable(Protocol):
    """The executor as its runner sees it."""

    @property
    def attempts(self) -> dict[AttemptKey, Attempt]:
        """All attempts in progress."""
        ...

    def cancel_attempt(self, attempt: Attempt, reason: str) -> None:
        """Cancel an attempt."""
        ...


MakeRunner: TypeAlias = Callable[[AttemptTable], AttemptRunner]


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
        publisher: ItemPublisher | None = None,
        mailbox: Mailbox | None = None,
        timers: Timers | None = None,
        is_quiet: bool = False,
    ) -> None:
        """Create an executor on the running loop. `mailbox` and `timers` default to that loop's.

        `is_quiet`: do not log attempts that fail or time out, because a test expects them.
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
        # The attempts that execute here. The handle's record has those that the engine waits for (`HandleRecord.attempts`).
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
        """Return the generation of the handle from which an attempt came; None if it is not in progress."""
        attempt = self.attempts.get(
            token
        )  # never a local one: only heartbeats call this, and local activities have none
        return None if attempt is None else attempt.generation

    def stacks(self, run_id: str) -> str:
        """Return the stacks of a run's attempts: the id of each activity, and the author's frames below it.

        May be called in any thread.
        """
        stacks = []
        for attempt in list(self.attempts.values()):
            if attempt.task.run_id == run_id:
                stack = "" if attempt.work is None else attempt.work.stack()
                if stack:
                    stacks.append(f"activity {attempt.task.activity_id}\n{stack}")
        return "\n".join(stacks)

    @property
    def trouble(self) -> str:
        """The reason why `async def` activities make no progress; "" if nothing stops them."""
        return self.runner.trouble

    def statistics(self) -> RunnerStatistics:
        """Return the number of threads, processes and loops."""
        return self.runner.statistics()

    def begin(self, task: ActivityTask, waiter: Waiter, generation: int = 0) -> Attempt:
        """Start an attempt from a handle of this generation. `waiter` receives its result, once, unless it is abandoned."""
        attempt = Attempt(task, waiter, self._around, generation)
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
        self._heartbeats.watch(attempt)
        return attempt

    def abandon(self, attempt: Attempt) -> None:
        """Cancel and give up an attempt whose caller no longer waits for it. It has no result."""
        if not attempt.over:
            self._leave(attempt)
            attempt.let_go()
            self.cancel_attempt(attempt, "WORKER_SHUTDOWN")
            if attempt.work is not None:
                attempt.work.give_up()

    def cancel(self, token: bytes, reason: str, generation: int | None = None) -> None:
        """Cancel the attempt with this token; does nothing if it has ended. `generation` is that of the requesting handle."""
        attempt = self.attempts.get(token) or self.attempts.get((generation or 0, token))
        if attempt is not None and generation in (None, attempt.generation):
            self.cancel_attempt(attempt, reason)

    def worker_stops(self) -> None:
        """Notify all attempts that the worker is shutting down. They continue."""
        for attempt in list(self.attempts.values()):
            attempt.context.worker_stops()

    def stop(self) -> None:
        """Let threads, loops and processes end, without waiting. An attempt that still runs in a thread continues."""
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
        if not work.give_up():
            logger.error(
                "%s does not stop (%s), and %d threads are lost already: it keeps its slot. It executes\n%s",
                work_log.named(task),
                reason,
                lost,
                stack,
                extra=work_log.facts_of(task),
            )
            attempt.after(self._limits.hang_grace, partial(self._overdue, attempt, reason))
        elif not work.is_process and not work.is_foreign:
            logger.error(
                "%s does not stop (%s): it is abandoned, with its thread if it has one; %d threads are lost. It executes\n%s",
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
            attempt.waiter.executed(result)

    def _log_failure(self, attempt: Attempt, result: AttemptFailed) -> None:
        if attempt.context.cancel_reason in _UNWANTED:
            return  # logged when the engine gave it up
        # By the engine's clock, which in tests differs from the real one.
        ran_ns = round((self._around.timers.time() - attempt.since) * 1e9)
        now_ns = attempt.task.started_time_ns + ran_ns if attempt.task.started_time_ns else time_ns()
        work_log.log_failed(attempt.task, result, now_ns, attempt.context.cancel_reason)
