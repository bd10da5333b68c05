"""Runs one attempt of an activity: an `ActivityTask` in, an `ActivityResult` out, whatever the activity does.

The executor lives on the control loop; the activity does not. It is found, its arguments are decoded, it is
called and its result is encoded in a thread of the pool, on the activity loop or in a process of its own,
because all of that may run user code.

Invariants:

- An attempt ends once: one that is given up has its result there and then, and what it says later is dropped.
  One that is abandoned has none.
- Attempts are known by task token; of local ones by their handle's generation too, for each handle counts its own from one.
  A caller that began an attempt gives up that one, and not another that came with the same token.
- When a later attempt of the same activity arrives, the former one has been given up by the server and is cancelled here.
- An attempt for which the engine does not wait any more (it timed out, its workflow is gone, a later one has come)
  and that does not stop is given up after a grace period: its thread is counted as lost and replaced, its process is
  killed. So hung activities use up neither the pool nor the engine's slots.
- Where the author left heartbeats to the worker, they repeat the last details: one without details would wipe them on
  the server. While attempts are in flight none of these goes without one for longer than an interval and a look.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from time import monotonic, time_ns
from typing import Any, cast

from hourglass._contract.handle import (
    ActivityResult,
    ActivityTask,
    AttemptFailed,
)
from hourglass._worker import processors, work_log
from hourglass._worker.activities.activity_loop import LoopThread, LoopWork, WatchedLoop
from hourglass._worker.activities.activity_threads import OwnThread, Seat, ThreadPool
from hourglass._worker.activities.attempts import (
    Attempt,
    AttemptSurroundings,
    Heartbeat,
    ItemPublisher,
    TaskContext,
    Waiter,
)
from hourglass._worker.activities.invocation import call_on_loop, call_plainly
from hourglass._worker.activities.outcomes import (
    abandoned,
    can_be_tried_again,
    died_thread,
    loop_blocked,
    refused,
    stopped,
)
from hourglass._worker.activities.process_pool import ProcessPool
from hourglass._worker.activities.process_wire import refuse_in_script
from hourglass._worker.activities.program_loop import (
    BorrowedLoop,
    ProgramLoop,
    ProgramLoopClosed,
    WatchedProgramLoop,
)
from hourglass._worker.portal import Mailbox
from hourglass._worker.resolver import Resolver
from hourglass._worker.work_log import ActivityMetrics
from hourglass.activity import ActivityDefinition
from hourglass.activity._context import (
    PAYLOAD_LIMIT,
    ActivityChain,
    Equipment,
    Resources,
    current,
)
from hourglass.activity._options import LIVENESS_TIMEOUT
from hourglass.converter import Converter
from hourglass.metrics import Registry, default_registry

# --- limits and statistics -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExecutorLimits:
    """How patient an executor is, in seconds, and how much it holds."""

    max_processes: int = 0
    """How many process activities run at a time; 0: one for each processor."""
    payload_limit: int | None = PAYLOAD_LIMIT
    """The most bytes that an activity may report at once; None: no limit."""
    payload_warn: int = 0
    """From so many bytes on a result is warned of; 0: none is."""
    max_lost_threads: int | None = None
    """How many hung threads are replaced before their attempts hold their slots; None: as many as there are."""
    hang_grace: float = 5.0
    """From telling an attempt that the engine does not wait for it any more to giving it up."""
    cancel_grace: float = 10.0
    """From asking a process activity to stop to killing its process."""
    late: float = 5.0
    """How long after its start-to-close timeout a process activity is stopped, if the engine does not say so before."""
    loop_tick: float = 0.1
    """How often the activity loop is asked whether it lives."""
    loop_limit: float = 0.4
    """How long the activity loop may be blocked before new attempts are made on another."""
    max_blocked_loops: int = 32
    """How many loops may be blocked at a time before attempts wait for the last of them."""
    waiting_least: float = 2.0
    waiting_most: float = 30.0
    """An attempt that waits on a blocked loop, and can be made again, is given up after as long as it had been running before,
    but not sooner and not later than this: what it loses is no more than what it waited.
    """


@dataclass(frozen=True, kw_only=True)
class ExecutorStatistics:
    """A look at where activities run."""

    running: int
    threads: int
    lost_threads: int
    processes: int
    started_processes: int
    died_processes: int
    loop_blocked: bool
    replaced_loops: int


# --- heartbeats that are left to the worker --------------------------------------------------------------------------


_LOOKS = 8  # in an interval


class Beats:
    """Heartbeats that the author left to the worker: an attempt that promised no progress of its own is said to live,
    from time to time. `attempts` is the executor's table.

    One timer looks at all attempts a few times in an interval, for most are over long before their first heartbeat:
    an attempt costs nothing here. Belongs to the control loop.
    """

    def __init__(
        self, interval: float, attempts: Mapping[bytes | tuple[int, bytes], Attempt], resolver: Resolver
    ) -> None:
        self.timer: asyncio.TimerHandle | None = None
        self._interval = interval
        self._attempts = attempts
        self._resolver = resolver

    def begin(self) -> None:
        """An attempt is in flight: look from now on, until none is."""
        self.timer = asyncio.get_running_loop().call_later(self._interval / _LOOKS, self._look)

    def _look(self) -> None:
        self.timer = None
        if self._attempts:
            self.begin()
        now = monotonic()
        for attempt in list(self._attempts.values()):
            if now - attempt.told_at >= self._interval and self._is_left_to_us(attempt.task):
                attempt.beat_again(now)

    def _is_left_to_us(self, task: ActivityTask) -> bool:
        """Whether the author promised no progress, here or in the call."""
        if task.is_local or task.spec.heartbeat_timeout not in (0.0, LIVENESS_TIMEOUT):
            return False
        definition = self._resolver.known_activity(task.activity_type)
        return definition is None or definition.beats_by_itself


# --- the executor ----------------------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.worker")

BEAT_INTERVAL = 10.0
_INTERRUPT_AGAIN = 0.02
_CLOSED = "the event loop on which its worker was started is closed"

# Reasons of a cancellation after which the engine does not wait for the attempt's end any more.
_UNWANTED = frozenset(("TIMED_OUT", "NOT_FOUND", "SUPERSEDED"))
_GIVEN_UP = frozenset(("TIMED_OUT", "NOT_FOUND"))


class ActivityExecutor:
    """Runs the activities of one worker. `client` is what `activity.client()` gives."""

    def __init__(
        self,
        resolver: Resolver,
        converter: Converter,
        heartbeat: Heartbeat,
        *,
        max_threads: int,
        beat_interval: float = BEAT_INTERVAL,
        limits: ExecutorLimits = ExecutorLimits(),
        own: Executor | None = None,
        client: Callable[[], Any] | None = None,
        inbound: ActivityChain | None = None,
        registry: Registry = default_registry,
        resources: Resources = Resources(),
        metrics: ActivityMetrics | None = None,
        publisher: ItemPublisher | None = None,
        program_loop: ProgramLoop | None = None,
    ) -> None:
        refuse_in_script()
        self._resolver = resolver
        self._own = own
        self._limits = limits
        self._metrics = metrics
        self._around = AttemptSurroundings(
            equipment=Equipment(
                converter=converter,
                client=client,
                payload_limit=limits.payload_limit,
                payload_warn=limits.payload_warn,
                inbound=inbound,
                registry=registry,
                resources=resources,
                variables=None if program_loop is None else program_loop.variables,
            ),
            mailbox=Mailbox(),
            heartbeat=heartbeat,
            publisher=publisher,
            ended=self._ended,
        )
        self._pool = ThreadPool("hourglass-activity", max_threads, most_lost=limits.max_lost_threads)
        self._processes = ProcessPool(
            limits.max_processes or os.cpu_count() or 1, converter, limits.payload_limit
        )
        self._loop: WatchedLoop | WatchedProgramLoop = (
            WatchedLoop(
                "hourglass-activity-loop",
                self,
                interval=limits.loop_tick,
                limit=limits.loop_limit,
                most=limits.max_blocked_loops,
                mark=lambda: current.get(None),
            )
            if program_loop is None
            else WatchedProgramLoop(program_loop, self)
        )
        # What executes here; what an engine waits for is in its handle's book (`HandleRecord.attempts`).
        self._attempts: dict[bytes | tuple[int, bytes], Attempt] = {}
        self._latest: dict[tuple[str, str, str], Attempt] = {}  # of each activity
        self._beats = Beats(beat_interval, self._attempts, resolver)

    @property
    def running(self) -> int:
        """How many attempts are in flight."""
        return len(self._attempts)

    def generation_of(self, token: bytes) -> int | None:
        """From which generation of its handle an attempt came; None if it is not in flight."""
        attempt = self._attempts.get(token)  # never a local one: only heartbeats ask, and those have none
        return None if attempt is None else attempt.generation

    def stacks(self, run_id: str) -> str:
        """Where the attempts of a run stand that execute here: the id of each activity, and the author's frames below it. From
        any thread.
        """
        found = []
        for attempt in list(self._attempts.values()):
            if attempt.task.run_id == run_id:
                where = "" if attempt.work is None else attempt.work.stack()
                if where:
                    found.append(f"activity {attempt.task.activity_id}\n{where}")
        return "\n".join(found)

    @property
    def trouble(self) -> str:
        """Why `async def` activities make no progress here; "" if nothing stops them."""
        return self._loop.trouble if isinstance(self._loop, WatchedProgramLoop) else ""

    def statistics(self) -> ExecutorStatistics:
        """How activities are doing here."""
        return ExecutorStatistics(
            running=len(self._attempts),
            threads=self._pool.size,
            lost_threads=self._pool.lost,
            processes=self._processes.size,
            started_processes=self._processes.started,
            died_processes=self._processes.died,
            loop_blocked=self._loop.blocked,
            replaced_loops=self._loop.replacements,
        )

    # --- on the control loop -----------------------------------------------------------------------------------------

    def begin(self, task: ActivityTask, waiter: Waiter, generation: int = 0) -> Attempt:
        """Start an attempt, which came from a handle of this generation; `waiter` is told once, with its result, unless it
        is abandoned.
        """
        attempt = Attempt(task, waiter, self._around, generation)
        if self._metrics is not None:
            self._metrics.began(task)
        former = self._latest.get(attempt.identity)
        if former is not None and not task.is_local:
            self._cancel(former, "SUPERSEDED")
        self._attempts[attempt.key] = self._latest[attempt.identity] = attempt
        try:
            self._start(attempt, self._known(task))
        except BaseException:
            self._leave(attempt)
            raise
        if self._beats.timer is None:
            self._beats.begin()
        return attempt

    def _known(self, task: ActivityTask) -> ActivityDefinition | None:
        if task.is_local and (found := self._resolver.steps.get(task.run_id, {}).get(task.activity_id)):
            return cast(ActivityDefinition, found)
        return self._resolver.known_activity(task.activity_type)

    def abandon(self, attempt: Attempt) -> None:
        """The caller does not wait for this attempt any more: it is told to stop, and given up where it stands."""
        if not attempt.over:
            self._leave(attempt)
            attempt.let_go()
            self._cancel(attempt, "WORKER_SHUTDOWN")
            if attempt.work is not None:
                attempt.work.give_up()

    def cancel(self, token: bytes, reason: str, generation: int | None = None) -> None:
        """Ask an attempt to stop; one that is not here has ended already. `generation` is that of the handle that says so."""
        attempt = self._attempts.get(token) or self._attempts.get((generation or 0, token))
        if attempt is not None and generation in (None, attempt.generation):
            self._cancel(attempt, reason)

    def worker_stops(self) -> None:
        """The worker begins to shut down: every attempt is told, and goes on."""
        for attempt in list(self._attempts.values()):
            attempt.context.worker_stops()

    def stop(self) -> None:
        """Let the threads end, and the processes. Whatever still runs in a thread is on its own."""
        self._pool.stop()
        self._processes.stop()
        self._loop.stop()

    def _leave(self, attempt: Attempt) -> None:
        if self._attempts.get(attempt.key) is attempt:
            del self._attempts[attempt.key]
        if self._latest.get(attempt.identity) is attempt:
            del self._latest[attempt.identity]

    def _ended(self, attempt: Attempt, result: ActivityResult) -> None:
        self._leave(attempt)
        try:
            if self._metrics is not None:
                self._metrics.ended(attempt.task, result, monotonic() - attempt.since)
            if type(result) is AttemptFailed:
                self._say_failed(attempt, result)
        finally:
            attempt.waiter.executed(result)

    def _say_failed(self, attempt: Attempt, result: AttemptFailed) -> None:
        if attempt.context.cancel_reason in _UNWANTED:
            return  # said when the engine gave it up
        # By the engine's clock, which in tests is not this machine's.
        ran_ns = round((monotonic() - attempt.since) * 1e9)
        now_ns = attempt.task.started_time_ns + ran_ns if attempt.task.started_time_ns else time_ns()
        work_log.say_failed(attempt.task, result, now_ns, attempt.context.cancel_reason)

    # --- stopping what runs ------------------------------------------------------------------------------------------

    def _cancel(self, attempt: Attempt, reason: str) -> None:
        if reason in _GIVEN_UP and attempt.context.cancel_reason not in _UNWANTED:
            work_log.say_unwanted(attempt.task, reason, monotonic() - attempt.since)
        attempt.context.cancel(reason)
        if attempt.work is not None:
            attempt.work.cancel(reason)
        self._interrupt(attempt)
        if reason in _UNWANTED:
            attempt.after(self._limits.hang_grace, partial(self._overdue, attempt, reason))
        elif not isinstance(attempt.work, (Seat, LoopWork, OwnThread)):
            attempt.after(self._limits.cancel_grace, partial(self._overdue, attempt, reason))

    def _interrupt(self, attempt: Attempt) -> None:
        """Raise the cancellation in the attempt's thread, if it takes that, as soon as it is safe."""
        if not attempt.context.interrupt():
            attempt.after(_INTERRUPT_AGAIN, partial(self._interrupt, attempt))

    def _overdue(self, attempt: Attempt, reason: str) -> None:
        """It was told, and goes on."""
        task, work = attempt.task, attempt.work
        if work is None or (isinstance(work, Seat) and reason not in _UNWANTED):
            return
        where = work.stack() or "an unknown place"
        if not work.give_up():
            logger.error(
                "%s does not stop (%s), and %d threads are lost already: it keeps its slot. It stands at\n%s",
                work_log.named(task),
                reason,
                self._pool.lost,
                where,
                extra=work_log.facts_of(task),
            )
            attempt.after(self._limits.hang_grace, partial(self._overdue, attempt, reason))
        elif isinstance(work, (Seat, LoopWork)):
            logger.error(
                "%s does not stop (%s): it is given up, with its thread if it has one; %d threads are lost. It stands at\n%s",
                work_log.named(task),
                reason,
                self._pool.lost,
                where,
                extra=work_log.facts_of(task),
            )
            attempt.finish(stopped(task, reason))

    # --- loops that are blocked --------------------------------------------------------------------------------------
    # An attempt that blocks a loop keeps it, as a `def` activity its thread, and may still end well. One that has not
    # begun there begins on the next. One that waits there cannot be moved, for its coroutine belongs to that loop: it
    # goes on when the loop does, or is tried again on the next.

    def uses(self, loop: LoopThread | None) -> bool:
        """Whether an attempt is on this activity loop; None: on any."""
        return any(
            isinstance(attempt.work, LoopWork) and loop in (None, attempt.work.loop)
            for attempt in self._attempts.values()
        )

    def blocked(self, loop: LoopThread, seconds: float) -> None:
        """An activity loop is blocked: say by which attempt, and begin on another loop what has not begun."""
        here = self._on_loop(loop)
        waiting = []
        for attempt, work in here:
            if loop is not self._loop.current and work.take():
                self._start(attempt, self._known(attempt.task))
            else:
                waiting.append(attempt)
        guilty = self._who_blocks(loop)
        logger.warning(
            "%s blocks its event loop, which has not come round for %.1f s: blocking calls belong in a `def` activity or in "
            "asyncio.to_thread. Other async activities begin on another loop; %d wait on this one, and go on with it or are "
            "tried again. It stands at\n%s",
            _described(guilty),
            seconds,
            sum(each.task is not guilty for each in waiting),
            loop.stack() or "an unknown place",
        )

    def still_blocked(self, loop: LoopThread, seconds: float) -> None:
        """An activity loop stays blocked: an attempt that waits there for longer than it had run, and may have
        another one, is failed, so that the engine makes that.
        """
        now = monotonic()
        least, most = self._limits.waiting_least, self._limits.waiting_most
        for attempt, _ in self._on_loop(loop):
            before = now - attempt.since - seconds
            if seconds < min(max(before, least), most) or not can_be_tried_again(attempt.task):
                continue
            guilty = self._who_blocks(loop)
            if attempt.task is not guilty:
                attempt.context.cancel("ABANDONED")
                if attempt.work is not None:
                    attempt.work.cancel("ABANDONED")
                attempt.finish(loop_blocked(attempt.task, _described(guilty), loop.stack()))

    def program_blocked(self, loop: BorrowedLoop, seconds: float) -> None:
        """The program's event loop is blocked: say by what. It is not ours to replace."""
        guilty = self._who_blocks(loop)
        logger.warning(
            "%s blocks the event loop on which the worker was started, which has not come round for %.1f s: blocking calls "
            "belong in a `def` activity or in asyncio.to_thread. %d async activities wait, and the worker is not ready. It "
            "stands at\n%s",
            "code of the program" if guilty is None else _described(guilty),
            seconds,
            sum(attempt.task is not guilty for attempt, _ in self._on_loop(loop)),
            loop.stack() or "an unknown place",
        )

    def program_closed(self, loop: BorrowedLoop) -> None:
        """The program's event loop was closed: what runs there ends nowhere, and another worker may try."""
        here = self._on_loop(loop)
        logger.error(
            "the event loop on which the worker was started is closed while the worker still runs: it shuts down. %d async "
            "activities are failed, to be tried again. Leave `async with Worker(...)`, or await worker.shutdown(), first",
            len(here),
        )
        for attempt, _ in here:
            attempt.finish(abandoned(attempt.task, _CLOSED))

    def _on_loop(self, loop: LoopThread | BorrowedLoop) -> list[tuple[Attempt, LoopWork]]:
        return [
            (attempt, attempt.work)
            for attempt in self._attempts.values()
            if isinstance(attempt.work, LoopWork) and attempt.work.loop is loop
        ]

    def _who_blocks(self, loop: LoopThread | BorrowedLoop) -> ActivityTask | None:
        """The attempt whose code has a loop now: its own task, or one that it made."""
        running = loop.running()
        context = loop.creator_of(running)
        if isinstance(context, TaskContext):
            return context.task
        return next(
            (attempt.task for attempt, work in self._on_loop(loop) if work.task is running is not None), None
        )

    # --- starting it -------------------------------------------------------------------------------------------------

    def _start(self, attempt: Attempt, definition: ActivityDefinition | None) -> None:
        """Begin where it belongs; an activity that is not known yet is looked for in a thread, for that may
        import modules.
        """
        if attempt.over:
            return
        if definition is None:
            self._submit(attempt, self._find_and_run, attempt)
        elif definition.executor == "process":
            self._start_process(attempt, definition)
        elif definition.is_async:
            self._start_coroutine(attempt, definition)
        else:
            self._start_in_thread(attempt, definition)

    def _start_in_thread(self, attempt: Attempt, definition: ActivityDefinition) -> None:
        if self._own is None:
            self._submit(attempt, _run_in_thread, attempt, definition)
            return
        attempt.work = work = OwnThread()
        try:
            work.begin(
                self._own,
                partial(_run_in_thread, attempt, definition),
                lambda: attempt.finish_threadsafe(died_thread(attempt.task)),
            )
        except Exception as error:  # it was shut down, or cannot take it
            attempt.finish_threadsafe(refused(attempt.task, error))

    def _submit(self, attempt: Attempt, job: Callable[..., object], *arguments: Any) -> None:
        bound = processors.binding
        if bound is None:
            attempt.work = self._pool.submit(job, *arguments)
        else:
            attempt.work = self._pool.submit(bound.run, attempt.task.activity_type, job, *arguments)

    def _start_process(self, attempt: Attempt, definition: ActivityDefinition) -> None:
        attempt.work = self._processes.submit(attempt, definition)
        if attempt.context.cancel_reason is not None:  # before it was known to belong here
            self._cancel(attempt, attempt.context.cancel_reason)
        limit = attempt.task.spec.start_to_close_timeout
        if limit:
            attempt.after(limit + self._limits.late, partial(self._cancel, attempt, "TIMED_OUT"))

    def _start_coroutine(self, attempt: Attempt, definition: ActivityDefinition) -> None:
        attempt.work = work = LoopWork(self._loop.current)
        task = attempt.task

        def started(coroutine: asyncio.Task[None]) -> None:
            coroutine.set_name(f"activity {task.activity_type} ({task.activity_id})")
            work.task = coroutine

        try:
            work.loop.submit(lambda: _run_on_loop(attempt, work, definition), started)
        except ProgramLoopClosed:
            attempt.finish_threadsafe(abandoned(task, _CLOSED))
        self._loop.watch()

    # --- in the activity's thread or on its loop ---------------------------------------------------------------------

    def _find_and_run(self, attempt: Attempt) -> None:
        try:
            definition = self._resolver.activity(attempt.task.activity_type)
        except BaseException as error:
            attempt.finish_threadsafe(refused(attempt.task, error))
            return
        # Such a one does not belong to these threads.
        if definition.is_async or definition.executor == "process" or self._own is not None:
            attempt.threadsafe(lambda found: self._start(attempt, found), definition)
        else:
            _run_in_thread(attempt, definition)


def _described(task: ActivityTask | None) -> str:
    if task is None:
        return "a callback of an async activity"
    return f"activity {task.activity_type} ({task.activity_id}) of workflow {task.workflow_id}, run {task.run_id},"


def _run_in_thread(attempt: Attempt, definition: ActivityDefinition) -> None:
    result: ActivityResult | None = None
    try:
        result = call_plainly(attempt.task, attempt.context, definition)
    finally:
        # An exception that was set off from outside may arrive in our own lines.
        attempt.finish_threadsafe(result or died_thread(attempt.task))


async def _run_on_loop(attempt: Attempt, work: LoopWork, definition: ActivityDefinition) -> None:
    if not work.take():
        return  # this loop was blocked: it has begun on another
    if (reason := attempt.context.cancel_reason) is not None:  # before it began
        attempt.finish_threadsafe(stopped(attempt.task, reason))
        return
    result: ActivityResult | None = None
    try:
        result = await call_on_loop(attempt.task, attempt.context, definition)
    finally:
        attempt.finish_threadsafe(result or died_thread(attempt.task))
