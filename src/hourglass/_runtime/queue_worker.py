"""Serves one task queue over one handle: polls, hands work to lanes and executors, and sends their answers back.

Everything here runs on the control loop and is ours; user code runs in lanes and executors only.

Invariants:

- Each activation is answered once: an answer counts only while its activation is open (fenced by a token),
  and what is open at the end of a shutdown is answered as failed.
- Answers of one run are sent in order, those of different runs at the same time. Sends are never cancelled.
- From a run's terminal command to its eviction the ends of its local activities are held back: the engine
  would record them behind the end of the run, and refuse the task.
- Shutdown: initiate first, poll until `Shutdown`, end or fail everything that is open, then finalise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from hourglass._bridge.handle import (
    ActivityCancel,
    ActivityItem,
    ActivityResult,
    ActivityTask,
    Handle,
    HandleBroken,
)
from hourglass._engine.commands import Completion, TaskFailed
from hourglass._engine.events import Activation, RunEvicted
from hourglass._runtime.evaluation import Verdict
from hourglass._runtime.executors import ActivityExecutor
from hourglass._runtime.lanes import Lanes
from hourglass._runtime.poll import PollLoop
from hourglass.converter import ApplicationFailure, Failure

logger = logging.getLogger("hourglass.worker")

CANCEL_GRACE = 1.0  # between telling activities to stop and giving them up
WORKFLOW_GRACE = 2.0  # for lanes to answer what is open
DRAIN_LIMIT = 30.0  # after that the handle is left behind
FINALIZE_LIMIT = 35.0


class QueueWorker:
    """A worker on one task queue. All methods belong to the control loop."""

    def __init__(
        self, handle: Handle, lanes: Lanes, executor: ActivityExecutor, *, name: str, graceful_timeout: float
    ) -> None:
        self.name = name
        self.fenced = 0
        self._handle = handle
        self._lanes = lanes
        self._executor = executor
        self._graceful_timeout = graceful_timeout
        self._open: dict[str, asyncio.Future[None]] = {}
        self._tails: dict[str, asyncio.Task[None]] = {}
        self._activities: set[asyncio.Task[None]] = set()
        self._held: dict[str, asyncio.Future[None]] = {}
        self._workflow_loop = PollLoop(f"{name} workflows", handle.poll_activation, self._take_activation)
        self._activity_loop = PollLoop(f"{name} activities", handle.poll_activity, self._take_activity)
        self._loops: list[asyncio.Task[None]] = []
        self._drain: asyncio.Task[None] | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to poll."""
        self._lanes.start()
        for loop in (self._workflow_loop, self._activity_loop):
            task = asyncio.get_running_loop().create_task(loop.run(), name=loop.name)
            task.add_done_callback(self._loop_ended)
            self._loops.append(task)

    async def stop(self) -> None:
        """Shut down: see the invariants. May be called more than once, and be cancelled; the shutdown goes
        on.
        """
        if self._drain is None:
            self._drain = asyncio.get_running_loop().create_task(
                self._shut_down(), name=f"{self.name} shutdown"
            )
        await asyncio.shield(self._drain)

    async def ended(self) -> None:
        """Wait until it polls no more; raises what broke it."""
        await asyncio.wait(self._loops)
        for loop in self._loops:
            loop.result()
        if self._drain is not None:
            await asyncio.shield(self._drain)

    @property
    def polling(self) -> bool:
        """Whether both polls are alive."""
        return bool(self._loops) and not any(loop.done() for loop in self._loops)

    def statistics(self) -> dict[str, int]:
        """What is in flight here."""
        return {
            "open_activations": len(self._open),
            "running_activities": self._executor.running,
            "closed_runs": len(self._held),
            "received_activations": self._workflow_loop.received,
            "received_activity_items": self._activity_loop.received,
            "fenced": self.fenced,
        }

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self._drain is None:
            logger.error("%s ended: the worker takes no more work: %s", task.get_name(), error)
            self._handle.initiate_shutdown()

    # --- workflow tasks ----------------------------------------------------------------------------------------------

    def _take_activation(self, activation: Activation) -> None:
        token: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        evicted = any(isinstance(event, RunEvicted) for event in activation.events)
        self._open[activation.run_id] = token
        self._lanes.submit(activation, lambda verdict: self._take_verdict(token, verdict, evicted=evicted))

    def _take_verdict(self, token: asyncio.Future[None], verdict: Verdict, *, evicted: bool) -> None:
        run_id = verdict.completion.run_id
        if self._open.get(run_id) is not token:
            self.fenced += 1
            return
        self._close_activation(run_id)
        if verdict.closed and run_id not in self._held:
            self._held[run_id] = asyncio.get_running_loop().create_future()
        after = (lambda: self._release(run_id)) if evicted else None
        self._send(verdict.completion, verdict.evict, after)

    def _close_activation(self, run_id: str) -> None:
        self._open.pop(run_id).set_result(None)

    def _send(
        self, completion: Completion, evict: Iterable[str] = (), after: Callable[[], None] | None = None
    ) -> None:
        run_id = completion.run_id
        former = self._tails.get(run_id)

        async def send() -> None:
            if former is not None:
                await asyncio.wait({former})
            await _logged(self._handle.complete_activation(completion), "an activation's completion", run_id)
            if after is not None:
                after()
            for each in evict:
                self._handle.request_eviction(each)

        def sent(task: asyncio.Task[None]) -> None:
            if self._tails.get(run_id) is task:
                del self._tails[run_id]

        task = asyncio.get_running_loop().create_task(send())
        self._tails[run_id] = task
        task.add_done_callback(sent)

    # --- activities --------------------------------------------------------------------------------------------------

    def _take_activity(self, item: ActivityItem) -> None:
        match item:
            case ActivityCancel():
                self._executor.cancel(item.token, item.reason)
            case ActivityTask():
                task = asyncio.get_running_loop().create_task(self._run_activity(item))
                self._activities.add(task)
                task.add_done_callback(self._activities.discard)

    async def _run_activity(self, task: ActivityTask) -> None:
        result: ActivityResult = await self._executor.execute(task)
        if task.is_local:
            held = self._held.get(task.run_id)
            if held is not None:
                await asyncio.shield(held)
        await _logged(self._handle.complete_activity(result), "an activity's result", task.activity_id)

    def _release_all(self) -> None:
        for run_id in list(self._held):
            self._release(run_id)

    def _release(self, run_id: str) -> None:
        held = self._held.pop(run_id, None)
        if held is not None:
            held.set_result(None)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _shut_down(self) -> None:
        self._handle.initiate_shutdown()
        drained = await asyncio.gather(self._drain_workflows(), self._drain_activities())
        if all(drained):
            try:
                await asyncio.wait_for(_finalized(self._handle), FINALIZE_LIMIT)
            except TimeoutError:
                logger.error(
                    "%s: the handle did not close within %g s and is left behind", self.name, FINALIZE_LIMIT
                )
        else:
            logger.error("%s: the engine did not let go of its polls; the handle is left behind", self.name)
        self._lanes.stop()
        self._executor.stop()

    async def _drain_workflows(self) -> bool:
        quiet = await self._quiet(self._workflow_work, WORKFLOW_GRACE)
        deadline = asyncio.get_running_loop().time() + self._graceful_timeout + DRAIN_LIMIT
        while not quiet and asyncio.get_running_loop().time() < deadline:
            for run_id in list(self._open):
                self._close_activation(run_id)
                self._send(_given_up(run_id))
            self._release_all()
            quiet = await self._quiet(self._workflow_work, 0.2)
        self._release_all()
        return quiet

    async def _drain_activities(self) -> bool:
        if await self._quiet(self._activity_work, self._graceful_timeout):
            return True
        self._executor.cancel_all("WORKER_SHUTDOWN")
        if await self._quiet(self._activity_work, CANCEL_GRACE):
            return True
        deadline = asyncio.get_running_loop().time() + DRAIN_LIMIT
        while asyncio.get_running_loop().time() < deadline:
            self._executor.abandon_all("given up because its worker shut down")
            if await self._quiet(self._activity_work, 0.2):
                return True
        return False

    def _workflow_work(self) -> set[asyncio.Future[None]]:
        return {
            each for each in (self._loops[0], *self._tails.values(), *self._open.values()) if not each.done()
        }

    def _activity_work(self) -> set[asyncio.Future[None]]:
        return {each for each in (self._loops[1], *self._activities) if not each.done()}

    async def _quiet(self, work: Callable[[], set[asyncio.Future[None]]], timeout: float) -> bool:
        """Wait until there is no work of a kind any more; False when the time has passed first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while open_work := work():
            left = deadline - loop.time()
            if left <= 0:
                return False
            await asyncio.wait(open_work, timeout=left)
        return True


async def _finalized(handle: Handle) -> None:
    await _logged(handle.finalize_shutdown(), "the end of the handle", "")


async def _logged(call: Coroutine[Any, Any, None], what: str, which: str) -> None:
    """Nobody can mend a send that failed: the engine's own timeouts do."""
    try:
        await call
    except HandleBroken as error:
        logger.warning("%s %s could not be sent: %s", what, which, error)
    except Exception:
        logger.exception("%s %s could not be sent", what, which)


def _given_up(run_id: str) -> TaskFailed:
    failure = Failure(
        message="the worker shut down before it answered", info=ApplicationFailure(type="WorkerShutdown")
    )
    return TaskFailed(run_id, failure)
