"""Twin of `programs.interpreted`."""

from __future__ import annotations

from typing import Any

from hourglass import RetryPolicy, workflow
from hourglass.errors import ActivityError, TaskCancelledError
from hourglass.workflow import ActivityCancellationType

from ._corpus import MINUTE, start, twin, wait_for

KINDS = {
    "try": ActivityCancellationType.TRY_CANCEL,
    "wait": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    "abandon": ActivityCancellationType.ABANDON,
}
ONCE = RetryPolicy(maximum_attempts=1)


@twin("Interpreted")
class Interpreted:
    def __init__(self) -> None:
        self.number = 0
        self.steps = 0
        self.open: list[Any] = []
        self.handles: list[Any] = []
        self.program: dict[str, Any] = {}

    @workflow.run
    def run(self, program: dict[str, Any]) -> list[Any]:
        self.program = program
        self._block(program["main"])
        return [self.number, self.steps, str(workflow.uuid4())]

    @workflow.signal
    def poke(self, which: int) -> None:
        self.number += 1
        if self.program:
            self._block(self.program["handlers"][which])

    def _block(self, block: list[list[Any]]) -> None:
        for name, *arguments in block:
            self.steps += 1
            if self.steps <= self.program["limit"]:
                getattr(self, "_do_" + name)(*arguments)

    def _start(self, pause: int, fails: bool = False, kind: str = "try", note: str = "") -> Any:
        facts = [note, self.number, self.steps, len(self.open)]
        handle = start(
            "work",
            pause,
            fails,
            facts,
            start_to_close_timeout=MINUTE,
            heartbeat_timeout=20,
            retry_policy=ONCE,
            cancellation_type=KINDS[kind],
        )
        self.open.append(handle)
        self.handles.append(handle)
        return handle

    def _spawn(self, block: list[list[Any]]) -> Any:
        task = workflow.spawn(self._block, block)
        self.open.append(task)
        return task

    def _wait(self, task: Any) -> None:
        try:
            task.result()
        except (ActivityError, TaskCancelledError):
            self.number += 1

    def _do_act(self, pause: int, fails: bool, kind: str) -> None:
        self._wait(self._start(pause, fails, kind))

    def _do_start(self, pause: int, fails: bool, kind: str) -> None:
        self._start(pause, fails, kind)

    def _do_join(self, which: int) -> None:
        handles = [handle for handle in self.handles if not handle.done()]
        if handles:
            self._wait(handles[which % len(handles)])

    def _do_timed(self, pause: int, limit: int) -> None:
        try:
            wait_for(self._start(pause), limit / 1000)
        except (ActivityError, TaskCancelledError):
            self.number += 1
        except TimeoutError:
            self.number += 2

    def _do_sleep(self, pause: int) -> None:
        workflow.sleep(pause / 1000)

    def _do_turn(self) -> None:
        workflow.sleep(0)

    def _do_spawn(self, block: list[list[Any]]) -> None:
        self._spawn(block)

    def _do_gather(self, blocks: list[Any]) -> None:
        tasks = [self._spawn(block) for block in blocks]
        try:
            workflow.gather(*tasks)
        except (ActivityError, TaskCancelledError):
            self.number += 1

    def _do_first(self, blocks: list[Any]) -> None:
        tasks = [self._spawn(block) for block in blocks]
        done, _ = workflow.wait(tasks, return_when="FIRST_COMPLETED")
        self.number += len(done)

    def _do_all(self, blocks: list[Any], limit: int) -> None:
        tasks = [self._spawn(block) for block in blocks]
        done, _ = workflow.wait(tasks, timeout=limit / 1000)
        self.number += len(done)

    def _do_completed(self, *pauses: int) -> None:
        handles = [self._start(pause) for pause in pauses]
        for number, task in enumerate(workflow.as_completed(handles)):
            self._wait(task)
            self._start(0, note=f"follow {number}")

    def _do_limit(self, limit: int, block: list[list[Any]]) -> None:
        try:
            with workflow.timeout(limit / 1000):
                self._block(block)
        except TimeoutError:
            self.number += 1

    def _do_add(self, number: int) -> None:
        self.number += number

    def _do_until(self, number: int, limit: int) -> None:
        wanted = self.number + number
        try:
            workflow.wait_condition(lambda: self.number >= wanted, timeout=limit / 1000)
        except TimeoutError:
            self.number += 1

    def _do_cancel(self, which: int) -> None:
        tasks = [task for task in self.open if not task.done()]
        if tasks:
            tasks[which % len(tasks)].cancel()

    def _do_try(self, block: list[list[Any]], cleanup: list[list[Any]]) -> None:
        try:
            self._block(block)
        except workflow.Cancelled:
            self._start(0, note="stopped")
            self._block(cleanup)
        finally:
            self.number += 1

    def _do_draw(self) -> None:
        self.number += workflow.random().randint(0, 2)
