"""The twin of `interpreted_async`: the same programs, interpreted by a plain Hourglass workflow.

In live runs one rule of ours differs from asyncio's: how a timeout block ends when it expires together with other requests to
cancel. `departures` records where the rule applied; from there on a run cannot be compared.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tests.specs import made

from hourglass import workflow
from hourglass._evaluator import operations
from hourglass._evaluator.commands import SignalExternalWorkflow, StartChildWorkflow
from hourglass.errors import FailureError, ServiceError, TaskCancelledError
from hourglass.workflow import ActivityCancellationType, ChildCancellationType, Timeout

KINDS = {
    "try": ActivityCancellationType.TRY_CANCEL,
    "wait": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    "abandon": ActivityCancellationType.ABANDON,
}


class _Failed(Exception):
    """Raised by the operation `raise`."""


CAUGHT = (FailureError, TaskCancelledError, ServiceError, _Failed)


departures: list[str] = []


class _Limit(Timeout):
    """A timeout that records where `asyncio.timeout`, which only counts requests, would have ended differently."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timed_out = False
        try:
            super().__exit__(kind, error, trace)
        except TimeoutError:
            timed_out = True
            raise
        finally:
            assert self._fiber is not None
            by_count = self._fiber.cancel_count <= self._requests_before
            if timed_out != (self.expired and isinstance(error, workflow.Cancelled) and by_count):
                departures.append("end of a timeout block")


@workflow.defn(name="Interpreted", failure_exceptions=[_Failed])
class InterpretedPlain:
    """Executes the program that is its argument."""

    def __init__(self) -> None:
        self.number = 0
        self.steps = 0
        self.open: list[Any] = []
        self.program: dict[str, Any] = {}
        self.lock = workflow.Lock()
        self.semaphore = workflow.Semaphore(2)
        self.event = workflow.Event()

    @workflow.run
    def run(self, program: dict[str, Any]) -> list[Any]:
        self.program = program
        self._block(program["main"], 0)
        return [self.number, self.steps, str(workflow.uuid4())]

    @workflow.signal
    def poke(self, which: int) -> None:
        self.number += 1
        if self.program:
            self._block(self.program["handlers"][which], 0)

    def _block(self, block: list[list[Any]], first_task: int) -> None:
        for name, *arguments in block:
            self.steps += 1
            if self.steps <= self.program["limit"]:
                getattr(self, "_do_" + name)(first_task, *arguments)

    def _start(self, kind: str, note: str = "", local: bool = False) -> Any:
        start = workflow.start_local_activity if local else workflow.start_activity
        handle = start("work", note, self.number, start_to_close_timeout=60, cancellation_type=KINDS[kind])
        self.open.append(handle)
        return handle

    def _spawn(self, block: list[list[Any]]) -> Any:
        task = workflow.spawn(self._block, block, len(self.open) + 1)
        self.open.append(task)
        return task

    def _wait(self, task: Any) -> None:
        try:
            task.result()
        except CAUGHT:
            self.number += 1

    # --- operations ---------------------------------------------------------------------------------------------------

    def _do_act(self, first_task: int, kind: str) -> None:
        self._wait(self._start(kind, "act"))

    def _do_local(self, first_task: int, kind: str) -> None:
        self._wait(self._start(kind, "local", local=True))

    def _do_start(self, first_task: int, kind: str) -> None:
        self._start(kind, "start")

    def _do_join(self, first_task: int, which: int) -> None:
        later = [task for task in self.open[first_task:] if not task.done()]
        if later:
            self._wait(later[which % len(later)])

    def _do_timed(self, first_task: int, kind: str, limit: int) -> None:
        try:
            workflow.wait_for(self._start(kind, "timed"), limit)
        except TimeoutError:
            self.number += 2
        except CAUGHT:
            self.number += 1

    def _do_sleep(self, first_task: int, pause: int) -> None:
        workflow.sleep(pause)

    def _do_turn(self, first_task: int) -> None:
        workflow.sleep(0)

    def _do_spawn(self, first_task: int, block: list[Any]) -> None:
        self._spawn(block)

    def _do_gather(self, first_task: int, blocks: list[Any], keep: bool) -> None:
        tasks = [self._spawn(block) for block in blocks]
        try:
            workflow.gather(*tasks, return_exceptions=True) if keep else workflow.gather(*tasks)
        except CAUGHT:
            self.number += 1

    def _do_again(self, first_task: int, keep: bool) -> None:
        tasks = self.open[first_task:][-3:]
        try:
            if tasks:
                workflow.gather(*tasks, return_exceptions=True) if keep else workflow.gather(*tasks)
        except CAUGHT:
            self.number += 1

    def _do_first(self, first_task: int, blocks: list[Any], when: Any, limit: int) -> None:
        tasks = [self._spawn(block) for block in blocks]
        done, _ = workflow.wait(tasks, timeout=limit or None, return_when=when)
        self.number += len(done)

    def _do_completed(self, first_task: int, kinds: list[str]) -> None:
        handles = [self._start(kind, "one of") for kind in kinds]
        for number, task in enumerate(workflow.as_completed(handles)):
            self._wait(task)
            self._start("try", f"follow {number}")

    def _do_limit(self, first_task: int, limit: int, block: list[Any]) -> None:
        try:
            with _Limit(limit):
                self._block(block, first_task)
        except TimeoutError:
            self.number += 1

    def _do_add(self, first_task: int, number: int) -> None:
        self.number += number

    def _do_until(self, first_task: int, number: int, limit: int) -> None:
        wanted = self.number + number
        try:
            workflow.wait_condition(lambda: self.number >= wanted, timeout=limit or None)
        except TimeoutError:
            self.number += 1

    def _do_cancel(self, first_task: int, which: int) -> None:
        tasks = [task for task in self.open if not task.done()]
        if tasks:
            tasks[which % len(tasks)].cancel()

    def _do_try(self, first_task: int, block: list[Any], cleanup: list[Any]) -> None:
        try:
            self._block(block, first_task)
        except workflow.Cancelled:
            self._start("try", "stopped")
            self._block(cleanup, first_task)
        finally:
            self.number += 1
            self._start("try", "finally")

    def _do_lock(self, first_task: int, block: list[Any]) -> None:
        with self.lock:
            self._block(block, first_task)

    def _do_semaphore(self, first_task: int, block: list[Any]) -> None:
        with self.semaphore:
            self._block(block, first_task)

    def _do_flag(self, first_task: int, up: bool) -> None:
        self.event.set() if up else self.event.clear()

    def _do_await_flag(self, first_task: int) -> None:
        self.event.wait()

    def _do_draw(self, first_task: int) -> None:
        self.number += workflow.random().randint(0, 2)

    def _do_raise(self, first_task: int) -> None:
        raise _Failed

    def _do_patch(self, first_task: int, which: int, block: list[Any]) -> None:
        if workflow.patched(f"patch {which}"):
            self._block(block, first_task)

    # Children and other workflows are called below the public functions, whose additional turns would not be comparable.

    def _do_child(self, first_task: int, kind: str) -> None:
        kinds = ChildCancellationType
        command = made(
            StartChildWorkflow,
            seq=0,
            workflow_id=f"child of {self.steps}",
            workflow_type="child",
            cancellation_type=kinds.TRY_CANCEL if kind == "try" else kinds.WAIT_CANCELLATION_COMPLETED,
        )
        try:
            operations.start_child(command, Any).result()
        except CAUGHT:
            self.number += 1

    def _do_signal(self, first_task: int) -> None:
        try:
            operations.signal_external(
                SignalExternalWorkflow(seq=0, workflow_id="other", signal_name="hello")
            )
        except CAUGHT:
            self.number += 1

    def _do_cancel_other(self, first_task: int) -> None:
        try:
            operations.cancel_external("other", "", "")
        except CAUGHT:
            self.number += 1
