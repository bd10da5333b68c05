"""Runs process activities: children that are started when they are needed, reused, and replaced when they die.

A thread of the pool looks after each attempt: it takes an idle child or starts one, hands it the job and
listens until the job is done or the child is dead. Blocking, and none of it on the control loop; from there
an attempt can be cancelled or killed at any time.

Invariants:

- A child that dies fails the attempt that it ran, and no other.
- A child runs one attempt at a time, and a child that was killed or left something unsaid is not used again.
"""

from __future__ import annotations

import logging
import sys
import threading

from hourglass._contract.handle import ActivityResult, ActivityTask
from hourglass._runtime import outcomes
from hourglass._runtime.activity_threads import ThreadPool
from hourglass._runtime.attempts import Attempt
from hourglass._runtime.child_process import ChildProcess
from hourglass._runtime.process_entry import converter_place, main_script, place_of
from hourglass._runtime.process_wire import Done, Job, Setup
from hourglass.activity import ActivityDefinition
from hourglass.converter import Converter

logger = logging.getLogger("hourglass.worker")


class ProcessJob:
    """An attempt in a child, or on its way there: the `Work` of a process activity."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.reason: str | None = None
        self.killed_for: str | None = None
        self.child: ChildProcess | None = None

    def cancel(self, reason: str) -> None:
        """Tell the child, or, if it has not begun, never begin."""
        self.reason = self.reason or reason
        child = self.child
        if child is not None:
            child.wake()

    def give_up(self) -> bool:
        """Kill the child."""
        self.killed_for = self.reason or "GIVEN_UP"
        child = self.child
        if child is not None:
            child.kill()
        return True


class ProcessPool:
    """The children of one worker."""

    def __init__(self, limit: int, converter: Converter, payload_limit: int | None) -> None:
        self._threads = ThreadPool("hourglass-process", limit)
        self._converter = converter
        self._payload_limit = payload_limit
        self._lock = threading.Lock()
        self._idle: list[ChildProcess] = []
        self._busy: set[ChildProcess] = set()
        self._stopped = False
        self.started = 0
        self.died = 0

    @property
    def size(self) -> int:
        """How many children there are."""
        return len(self._idle) + len(self._busy)

    def submit(self, attempt: Attempt, definition: ActivityDefinition) -> ProcessJob:
        """Run an attempt in a child as soon as one is free."""
        job = ProcessJob(attempt)

        def run() -> None:
            try:
                result = self._run(job, definition)
            except BaseException as error:
                logger.exception(
                    "activity %s: its process cannot be looked after", attempt.task.activity_type
                )
                result = outcomes.refused(attempt.task, error)
            attempt.finish_threadsafe(result)

        self._threads.submit(run)
        return job

    def stop(self) -> None:
        """Kill what runs, let the idle ones end; waits for nothing."""
        with self._lock:
            self._stopped = True
            busy = list(self._busy)
        for child in busy:
            child.kill()
        try:
            if self.started:
                self._threads.submit(self._close_idle)
        except RuntimeError:
            pass  # no thread can be made at the end of the interpreter; children see their parent end
        self._threads.stop()

    # --- in a thread of the pool -------------------------------------------------------------------------------------

    def _run(self, job: ProcessJob, definition: ActivityDefinition) -> ActivityResult:
        task = job.attempt.task
        if job.reason is not None:  # cancelled while it waited
            return outcomes.stopped(task, job.reason)
        try:
            place = place_of(definition)
            child = self._take()
        except BaseException as error:
            return outcomes.refused(task, error)
        job.child = child
        over: Done | int | None = None
        try:
            if job.killed_for is None:
                order = Job(child.jobs + 1, place, task)
                over = child.run(order, lambda beat: job.attempt.take_beat(beat.details), lambda: job.reason)
        except BaseException as error:
            logger.exception("the process of activity %s said what cannot be read", task.activity_type)
            child.kill()
            return outcomes.refused(task, error)
        finally:
            job.child = None
            self._put_back(child, isinstance(over, Done) and job.killed_for is None)
        return self._result(task, job, child, over)

    def _result(
        self, task: ActivityTask, job: ProcessJob, child: ChildProcess, over: Done | int | None
    ) -> ActivityResult:
        if isinstance(over, Done) and over.result is not None:
            return over.result
        if job.killed_for is not None:
            logger.warning(
                "activity %s (%s): its process was killed (%s)",
                task.activity_type,
                task.activity_id,
                job.killed_for,
            )
            return outcomes.stopped(task, job.killed_for)
        result = outcomes.died(task, over if isinstance(over, int) else None)
        logger.error("%s (process %d)", result.failure.message, child.pid)
        return result

    def _take(self) -> ChildProcess:
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
                if child is not None and child.alive:
                    self._busy.add(child)
                    return child
            if child is None:
                break
            logger.warning("process %d ended while it was idle; another takes its place", child.pid)
            self.died += 1
            child.close()
        setup = Setup(
            path=list(sys.path),
            argv=list(sys.argv),
            main=main_script(),
            converter=converter_place(self._converter),
            payload_limit=self._payload_limit,
        )
        child = ChildProcess(setup)
        with self._lock:
            self.started += 1
            self._busy.add(child)
        return child

    def _put_back(self, child: ChildProcess, usable: bool) -> None:
        with self._lock:
            self._busy.discard(child)
            if usable and not self._stopped:
                self._idle.append(child)
                return
            self.died += not usable
        if not usable:
            child.kill()
        child.close()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()
