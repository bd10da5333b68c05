"""The child processes for process activities: started on demand, reused, and replaced when they die.

A thread of the pool serves each attempt. The thread acquires an idle child or starts a new one, sends the job
to the child, and receives messages until the job is done or the child is dead. These threads block. The control
loop can cancel an attempt or kill its child at any time.

Invariants:

- When a child dies, only the attempt that it ran fails.
- A child runs one attempt at a time. A child that was killed, or that has an unread message, is not reused.
"""

from __future__ import annotations

import logging
import sys
import threading

from hourglass._contract.handle import ActivityResult, ActivityTask
from hourglass._worker.activities.activity_threads import ThreadPool
from hourglass._worker.activities.attempts import Attempt, AttemptWork
from hourglass._worker.activities.child_process import ChildProcess
from hourglass._worker.activities.outcomes import died, rejected, stopped
from hourglass._worker.activities.process_names import converter_place, main_script, place_of
from hourglass._worker.activities.process_wire import Beat, Done, Published, RunAttempt, Setup
from hourglass.activity import ActivityDefinition
from hourglass.converter import Converter

logger = logging.getLogger("hourglass.worker")


class ProcessJob(AttemptWork):
    """An attempt of a process activity, which runs in a child or waits for a free child."""

    is_process = True

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.reason: str | None = None
        self.killed_for: str | None = None
        self.child: ChildProcess | None = None

    def forward(self, message: Beat | Published) -> None:
        """Forward a heartbeat or a published item of the attempt."""
        if isinstance(message, Beat):
            self.attempt.forward_heartbeat(message.details)
        else:
            self.attempt.publish((message.name, message.value))

    def cancel(self, reason: str) -> None:
        """Deliver the cancellation to the child. If the attempt still waits for a child, prevent its start."""
        self.reason = self.reason or reason
        child = self.child
        if child is not None:
            child.wake()

    def abandon(self) -> bool:
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
        return len(self._idle) + len(self._busy)

    def submit(self, attempt: Attempt, definition: ActivityDefinition) -> ProcessJob:
        """Run an attempt in a child process as soon as a child is free."""
        job = ProcessJob(attempt)

        def run() -> None:
            try:
                result = self._run(job, definition)
            except BaseException as error:
                logger.exception(
                    "the worker could not communicate with the process of activity %s",
                    attempt.task.activity_type,
                )
                result = rejected(attempt.task, error)
            attempt.finish_threadsafe(result)

        self._threads.submit(run)
        return job

    def stop(self) -> None:
        """Kill busy children and close idle children, without waiting."""
        with self._lock:
            self._stopped = True
            busy = list(self._busy)
        for child in busy:
            child.kill()
        try:
            if self.started:
                self._threads.submit(self._close_idle)
        except RuntimeError:
            pass  # no thread can be started at interpreter exit; idle children notice the end of their parent
        self._threads.stop()

    def _run(self, job: ProcessJob, definition: ActivityDefinition) -> ActivityResult:
        task = job.attempt.task
        if job.reason is not None:  # cancelled while it waited for a child
            return stopped(task, job.reason)
        try:
            place = place_of(definition)
            child = self._take()
        except BaseException as error:
            return rejected(task, error)
        job.child = child
        outcome: Done | int | None = None
        try:
            if job.killed_for is None:
                request = RunAttempt(child.jobs + 1, place, task)
                outcome = child.run(request, job.forward, lambda: job.reason)
        except BaseException as error:
            logger.exception("the process of activity %s sent an invalid message", task.activity_type)
            child.kill()
            return rejected(task, error)
        finally:
            job.child = None
            self._put_back(child, isinstance(outcome, Done) and job.killed_for is None)
        return self._result(task, job, outcome)

    def _result(self, task: ActivityTask, job: ProcessJob, outcome: Done | int | None) -> ActivityResult:
        if isinstance(outcome, Done) and outcome.result is not None:
            return outcome.result
        if job.killed_for is not None:
            logger.warning(
                "activity %s (%s): its process was killed (%s)",
                task.activity_type,
                task.activity_id,
                job.killed_for,
            )
            return stopped(task, job.killed_for)
        return died(task, outcome if isinstance(outcome, int) else None)

    def _take(self) -> ChildProcess:
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
                if child is not None and child.alive:
                    self._busy.add(child)
                    return child
            if child is None:
                break
            logger.warning("process %d ended while it was idle and is replaced", child.pid)
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
