"""The runner of a worker, which executes attempts in threads, on the activity loop or the program's loop, and
in processes.

All steps that may run user code are executed there: looking up an activity (which may import modules), decoding
its arguments, calling its function, and encoding its result.

Blocked loops: an attempt that blocks an activity loop keeps the loop, as a `def` activity keeps its thread, and
may still succeed. An attempt that has not begun on the blocked loop begins on the next loop. An attempt that
waits on the blocked loop cannot be moved, because its coroutine belongs to that loop. It either continues when
the loop is no longer blocked, or it is failed, so that the engine retries the activity on the next loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import Executor
from functools import partial
from time import monotonic
from typing import Any, cast

from hourglass._contract.handle import ActivityTask
from hourglass._worker import cpus
from hourglass._worker.activities.activity_loop import LoopThread, LoopWork, WatchedLoop
from hourglass._worker.activities.activity_threads import OwnThread, ThreadPool
from hourglass._worker.activities.attempts import Attempt, TaskContext
from hourglass._worker.activities.executors import (
    ActivityExecutor,
    ExecutorLimits,
    RunnerStatistics,
)
from hourglass._worker.activities.invocation import call_on_loop, call_plainly
from hourglass._worker.activities.outcomes import (
    abandoned,
    died_thread,
    is_retryable,
    loop_blocked,
    rejected,
    stopped,
)
from hourglass._worker.activities.process_names import reject_in_script
from hourglass._worker.activities.process_pool import ProcessPool
from hourglass._worker.activities.program_loop import (
    BorrowedLoop,
    ProgramLoop,
    ProgramLoopClosed,
    WatchedProgramLoop,
)
from hourglass._worker.resolver import Resolver
from hourglass.activity import ActivityDefinition
from hourglass.activity._context import current
from hourglass.converter import Converter

logger = logging.getLogger("hourglass.worker")

_CLOSED = "the event loop on which its worker was started is closed"


class WorkerRunner:
    """The runner of one executor. Must be used on the control loop."""

    def __init__(
        self,
        executor: ActivityExecutor,
        resolver: Resolver,
        converter: Converter,
        *,
        max_threads: int,
        limits: ExecutorLimits = ExecutorLimits(),
        own: Executor | None = None,
        program_loop: ProgramLoop | None = None,
    ) -> None:
        """`own` is the author's executor for `def` activities, and `program_loop` is the loop for `async def`
        activities. By default, both kinds run in threads of the worker.
        """
        reject_in_script()
        self._executor = executor
        self._resolver = resolver
        self._own = own
        self._limits = limits
        self._pool = ThreadPool("hourglass-activity", max_threads, most_lost=limits.max_lost_threads)
        self._processes = ProcessPool(
            limits.max_processes or os.cpu_count() or 1, converter, limits.payload_limit
        )
        self.loop: WatchedLoop | WatchedProgramLoop = (
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

    @property
    def trouble(self) -> str:
        """The reason why `async def` activities make no progress, or "" if they can run."""
        return self.loop.trouble if isinstance(self.loop, WatchedProgramLoop) else ""

    def statistics(self) -> RunnerStatistics:
        """Return the state of the threads, processes and loops."""
        return RunnerStatistics(
            threads=self._pool.size,
            lost_threads=self._pool.lost,
            processes=self._processes.size,
            started_processes=self._processes.started,
            died_processes=self._processes.died,
            loop_blocked=self.loop.blocked,
            replaced_loops=self.loop.replacements,
        )

    def stop(self) -> None:
        """Stop threads, loops and processes, without waiting."""
        self._pool.stop()
        self._processes.stop()
        self.loop.stop()

    def definition_of(self, task: ActivityTask) -> ActivityDefinition | None:
        """Return the definition of a task's activity, or None if it is not known yet. Must not import modules."""
        if task.is_local and (step := self._resolver.steps.get(task.run_id, {}).get(task.activity_id)):
            return cast(ActivityDefinition, step)
        return self._resolver.known_activity(task.activity_type)

    def start(self, attempt: Attempt, definition: ActivityDefinition | None = None) -> None:
        """Start an attempt. If the activity has not been looked up yet, look it up in a thread, because the
        lookup may import modules.
        """
        if attempt.over:
            return
        definition = definition or self.definition_of(attempt.task)
        if definition is None:
            self._submit(attempt, self._find_and_run, attempt)
        elif definition.executor == "process":
            self._start_process(attempt, definition)
        elif definition.is_async:
            self._start_coroutine(attempt, definition)
        elif self._own is None:
            self._submit(attempt, run_in_thread, attempt, definition)
        else:
            self._start_on_executor(attempt, definition, self._own)

    def _start_on_executor(self, attempt: Attempt, definition: ActivityDefinition, own: Executor) -> None:
        attempt.work = work = OwnThread()
        try:
            work.begin(
                own,
                partial(run_in_thread, attempt, definition),
                lambda: attempt.finish_threadsafe(died_thread(attempt.task)),
            )
        except Exception as error:  # the author's executor was shut down or cannot accept the job
            attempt.finish_threadsafe(rejected(attempt.task, error))

    def _submit(self, attempt: Attempt, job: Any, *arguments: Any) -> None:
        bound = cpus.binding
        if bound is None:
            attempt.work = self._pool.submit(job, *arguments)
        else:
            attempt.work = self._pool.submit(bound.run, attempt.task.activity_type, job, *arguments)

    def _start_process(self, attempt: Attempt, definition: ActivityDefinition) -> None:
        attempt.work = self._processes.submit(attempt, definition)
        if attempt.context.cancel_reason is not None:  # cancelled before its activity was looked up
            self._executor.cancel_attempt(attempt, attempt.context.cancel_reason)
        timeout = attempt.task.spec.start_to_close_timeout
        if timeout:
            attempt.after(
                timeout + self._limits.late, partial(self._executor.cancel_attempt, attempt, "TIMED_OUT")
            )

    def _start_coroutine(self, attempt: Attempt, definition: ActivityDefinition) -> None:
        attempt.work = work = LoopWork(self.loop.current)
        try:
            start_on_loop(attempt, work, definition)
        except ProgramLoopClosed:
            attempt.finish_threadsafe(abandoned(attempt.task, _CLOSED))
        self.loop.watch()

    def _find_and_run(self, attempt: Attempt) -> None:
        """Look up an activity in the current thread, and run it there if it is a `def` activity for the
        worker's threads.
        """
        try:
            definition = self._resolver.activity(attempt.task.activity_type)
        except BaseException as error:
            attempt.finish_threadsafe(rejected(attempt.task, error))
            return
        if definition.is_async or definition.executor == "process" or self._own is not None:
            attempt.threadsafe(partial(self.start, attempt), definition)
        else:
            run_in_thread(attempt, definition)

    def uses(self, loop: LoopThread | None) -> bool:
        """Whether there are attempts on this activity loop, or on any loop if `loop` is None."""
        return any(
            isinstance(attempt.work, LoopWork) and loop in (None, attempt.work.loop)
            for attempt in self._executor.attempts.values()
        )

    def blocked(self, loop: LoopThread, seconds: float) -> None:
        """Report that an activity loop is blocked. Attempts that have not begun yet are moved to another loop."""
        waiting = []
        for attempt, work in self._on_loop(loop):
            if loop is not self.loop.current and work.take():
                self.start(attempt)
            else:
                waiting.append(attempt)
        blocking = self._blocking_task(loop)
        logger.warning(
            "%s blocks its event loop, which has not responded for %.1f s: make blocking calls in a `def` activity or with "
            "asyncio.to_thread. New async activities start on another loop; %d wait on this one until it responds, or are "
            "retried. Its stack:\n%s",
            _described(blocking),
            seconds,
            sum(attempt.task is not blocking for attempt in waiting),
            loop.stack() or "an unknown place",
        )

    def still_blocked(self, loop: LoopThread, seconds: float) -> None:
        """Fail each retryable attempt that has waited on the blocked loop for longer than the attempt had run
        before.
        """
        now = monotonic()
        least, most = self._limits.waiting_least, self._limits.waiting_most
        for attempt, _ in self._on_loop(loop):
            before = now - attempt.since - seconds
            if seconds < min(max(before, least), most) or not is_retryable(attempt.task):
                continue
            blocking = self._blocking_task(loop)
            if attempt.task is not blocking:
                attempt.context.cancel("ABANDONED")
                if attempt.work is not None:
                    attempt.work.cancel("ABANDONED")
                attempt.finish(loop_blocked(attempt.task, _described(blocking), loop.stack()))

    def program_blocked(self, loop: BorrowedLoop, seconds: float) -> None:
        """Report that the program's event loop is blocked. It is not replaced, because it belongs to the program."""
        blocking = self._blocking_task(loop)
        logger.warning(
            "%s blocks the event loop on which the worker was started, which has not responded for %.1f s: make blocking "
            "calls in a `def` activity or with asyncio.to_thread. %d async activities wait, and the worker is not ready. "
            "Its stack:\n%s",
            "code of the program" if blocking is None else _described(blocking),
            seconds,
            sum(attempt.task is not blocking for attempt, _ in self._on_loop(loop)),
            loop.stack() or "an unknown place",
        )

    def program_closed(self, loop: BorrowedLoop) -> None:
        """Fail the attempts on the program's event loop, because it was closed. Another worker may retry the
        activities.
        """
        attempts = [attempt for attempt, _ in self._on_loop(loop)]
        logger.error(
            "the event loop on which the worker was started was closed before the worker: the worker shuts down, and %d "
            "async activities fail and are retried. Leave `async with Worker(...)`, or await worker.shutdown(), before you "
            "close the loop",
            len(attempts),
        )
        for attempt in attempts:
            attempt.finish(abandoned(attempt.task, _CLOSED))

    def _on_loop(self, loop: LoopThread | BorrowedLoop) -> list[tuple[Attempt, LoopWork]]:
        return [
            (attempt, attempt.work)
            for attempt in self._executor.attempts.values()
            if isinstance(attempt.work, LoopWork) and attempt.work.loop is loop
        ]

    def _blocking_task(self, loop: LoopThread | BorrowedLoop) -> ActivityTask | None:
        """Return the activity task whose code executes on a loop now, in the attempt's own asyncio task or in a
        task created by the attempt.
        """
        running = loop.running()
        context = loop.creator_of(running)
        if isinstance(context, TaskContext):
            return context.task
        return next(
            (attempt.task for attempt, work in self._on_loop(loop) if work.task is running is not None), None
        )


def run_in_thread(attempt: Attempt, definition: ActivityDefinition) -> None:
    """Call a `def` activity in this thread and report its result."""
    result = None
    try:
        result = call_plainly(attempt.task, attempt.context, definition)
    finally:
        # An exception raised from outside the thread may also arrive outside of the activity's code.
        attempt.finish_threadsafe(result or died_thread(attempt.task))


def start_on_loop(attempt: Attempt, work: LoopWork, definition: ActivityDefinition) -> None:
    """Start an `async def` activity on the loop of `work`. Raise `ProgramLoopClosed` if the program has closed
    the loop.
    """
    task = attempt.task

    def started(coroutine: asyncio.Task[None]) -> None:
        coroutine.set_name(f"activity {task.activity_type} ({task.activity_id})")
        work.task = coroutine

    work.loop.submit(lambda: _run_on_loop(attempt, work, definition), started)


async def _run_on_loop(attempt: Attempt, work: LoopWork, definition: ActivityDefinition) -> None:
    if not work.take():
        return  # this loop was blocked, and the attempt has begun on another loop
    if (reason := attempt.context.cancel_reason) is not None:  # cancelled before it began
        attempt.finish_threadsafe(stopped(attempt.task, reason))
        return
    result = None
    try:
        result = await call_on_loop(attempt.task, attempt.context, definition)
    finally:
        attempt.finish_threadsafe(result or died_thread(attempt.task))


def _described(task: ActivityTask | None) -> str:
    if task is None:
        return "a callback of an async activity"
    return f"activity {task.activity_type} ({task.activity_id}) of workflow {task.workflow_id} (run {task.run_id})"
