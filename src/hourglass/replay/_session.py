"""A session: a thread with its own event loop and Core's replay worker. It executes one history after
another.

Unlike in a worker, workflow code runs on the thread that communicates with Core. A replay has no other work that must
continue, and switching threads for each activation would double the cost. The replayer waits in its own thread, with a
timeout; a session that does not respond is abandoned.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from hourglass._evaluator.call_sites import Site, place_in
from hourglass._evaluator.commands import Command, Completion, ScheduleLocalActivity, Succeeded, TaskFailed
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.definition import WorkflowDefinition
from hourglass._evaluator.evaluator import Evaluator
from hourglass._evaluator.events import (
    Activation,
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    RunEvicted,
    RunStarted,
)
from hourglass._evaluator.state import CommandId, PathStep
from hourglass._loops import new_event_loop
from hourglass._worker.health import stopping
from hourglass._worker.health.stacks import frame_of
from hourglass.errors import HistoryError
from hourglass.replay._moments import MomentRecorder

_TICK = 0.05
_SILENT_TICKS = (
    16  # silence for this many punctual ticks: Core, which answers within milliseconds, never will
)
_BYTES_PER_TICK = 20_000  # of the encoded history; an event takes about 100 bytes


_LOCAL_ENDS = (ActivityCompleted, ActivityFailed, ActivityCancelled)


class ReplayStep(msgspec.Struct, frozen=True):
    """The commands of a run in response to one activation, and their positions in the code."""

    history_length: int
    """The id of the event that started the workflow task."""
    commands: tuple[tuple[Command, Site], ...]
    has_drawn: bool
    """Whether the author's code had used random numbers by then."""


class HistoryExecution:
    """The replay of one history: the run, and all commands that it issued."""

    def __init__(
        self,
        resolve: Callable[[str], WorkflowDefinition],
        settings: RunSettings,
        recorder: MomentRecorder | None = None,
    ) -> None:
        self._resolve = resolve
        self.recorder = recorder
        self._settings = settings
        self.run: Evaluator | None = None
        self.commands: list[tuple[Command, Site]] = []
        self.steps: list[ReplayStep] = []
        self.error: BaseException | None = None
        self.eviction: RunEvicted | None = None
        self.activations = 0
        self._waited_on: dict[tuple[PathStep, ...], object] = {}
        self.is_evaluating = False
        """Whether workflow code is running."""
        self.difference_is_allowed = False
        """Whether no engine checks the property that differs from the history, for example arguments."""
        self._local_activities: set[int] = set()

    def activate(self, activation: Activation) -> Completion:
        """Process an activation and return the completion. Runs on the session's thread."""
        self.activations += 1
        event = activation.events[0] if activation.events else None
        if isinstance(event, RunEvicted):
            self.eviction = event
            return Succeeded(activation.run_id)
        if self.run is None:
            failure = self._begin(activation)
            if failure is not None:
                return failure
        run = self.run
        assert run is not None
        self._waited_on = {fiber.path: fiber.waiting_on for fiber in run.live.fibers} if run.live else {}
        self.is_evaluating = True
        try:
            completion = run.activate(activation)
        finally:
            self.is_evaluating = False
        issued: tuple[tuple[Command, Site], ...] = ()
        if isinstance(completion, Succeeded):
            sites = run.live.sites if run.live is not None else None
            issued = tuple(
                zip(completion.commands, sites or [("", 0)] * len(completion.commands), strict=False)
            )
            self._follow_local_activities(activation, completion)
            self.commands += issued
            drawn = run.live is not None and run.live.has_drawn
            self.steps.append(ReplayStep(activation.history_length, issued, drawn))
        else:
            self.error = run.error
        if self.recorder is not None:
            self.recorder.record(run, activation, issued)
        return completion

    def _begin(self, activation: Activation) -> TaskFailed | None:
        started = next((event for event in activation.events if isinstance(event, RunStarted)), None)
        try:
            if started is None:
                raise HistoryError("Core started in the middle of this history")
            definition = self._resolve(started.workflow_type)
        except Exception as error:
            self.error = error
            return TaskFailed(activation.run_id, self._settings.converter.to_failure(error))
        self.run = Evaluator(definition, activation.run_id, self._settings)
        return None

    def _follow_local_activities(self, activation: Activation, completion: Succeeded) -> None:
        for event in activation.events:
            if isinstance(event, _LOCAL_ENDS) and event.is_local:
                self._local_activities.discard(event.seq)
        for command in completion.commands:
            if isinstance(command, ScheduleLocalActivity):
                self._local_activities.add(command.seq)

    @property
    def waits_for_local_activity(self) -> bool:
        """Whether the run waits for a local activity that has no result in the history."""
        return bool(self._local_activities)

    def paths(self) -> frozenset[tuple[PathStep, ...]]:
        """Return the paths of all fibers that exist."""
        live = self.run.live if self.run is not None else None
        return frozenset(fiber.path for fiber in live.fibers) if live is not None else frozenset()

    def command_ids(self) -> list[CommandId]:
        """Return the ids of the commands of the last activation, in order."""
        return (
            [command_id for command_id, _ in reversed(self.run.state.commands)]
            if self.run is not None
            else []
        )

    def waiting_at(self) -> Site:
        """Return the file and line where the most recently active fiber waits. The body has priority.

        Return ("", 0) if no fiber waits in the author's code.
        """
        live = self.run.live if self.run is not None else None
        if live is None or live.main is None:
            return ("", 0)
        ran = [
            fiber for fiber in live.fibers if fiber.waiting_on is not self._waited_on.get(fiber.path, self)
        ]
        for fiber in (live.main,) if live.main in ran else (*ran, live.main):
            site = place_in(fiber.frames())
            if site[0]:
                return site
        return ("", 0)


class ReplaySession:
    """Core's replay worker and the thread that drives it."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._handle: Any = None
        self._thread = threading.Thread(target=self._run, name="hourglass-replay", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with suppress(stopping.LaneStopped):
            self._loop.run_forever()
        self._loop.close()

    def execute(self, workflow_id: str, history: bytes, execution: HistoryExecution, limit: float) -> Site:
        """Replay a history. Return the position where the run's body waits at the end; `execution` receives the results."""
        work = self._execute(workflow_id, history, execution, limit)
        return self._within(workflow_id, work, execution, limit)

    def _within(
        self, workflow_id: str, work: Coroutine[Any, Any, Site], execution: HistoryExecution, limit: float
    ) -> Site:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(limit)
        except concurrent.futures.TimeoutError:
            future.cancel()
            stack = self._stack()
            self._interrupt(execution)
            raise TimeoutError(
                f"the replay of {workflow_id!r} did not end within {limit:g} s; its stack:\n{stack}"
            ) from None

    def _interrupt(self, execution: HistoryExecution) -> None:
        """Interrupt workflow code that does not return. If the code does not react within a second, a separate thread keeps
        interrupting it.
        """
        idle = threading.Event()
        self._loop.call_soon_threadsafe(idle.set)
        stopper = threading.Thread(
            target=self._interrupt_until, args=(execution, idle), name="hourglass-replay-stopper", daemon=True
        )
        stopper.start()
        stopper.join(1.0)

    def _interrupt_until(self, execution: HistoryExecution, idle: threading.Event) -> None:
        attempt, delay = 0, 0.001
        while not idle.wait(delay) and self._thread.is_alive():
            attempt += 1
            thread_id = self._thread.ident or 0
            if execution.is_evaluating and stopping.may_interrupt(frame_of(thread_id), attempt):
                stopping.raise_briefly(thread_id, stopping.wait_of(attempt))
            delay = min(delay * 2, 5.0)

    def walk(
        self, workflow_id: str, step: Callable[[], None], execution: HistoryExecution, limit: float
    ) -> Site:
        """Run a replay without Core on the session's thread. Return the position where the run's body waits at the end."""

        async def run() -> Site:
            try:
                step()
                return execution.waiting_at()
            finally:
                if execution.run is not None:
                    execution.run.drop()

        return self._within(workflow_id, run(), execution, limit)

    async def _execute(
        self, workflow_id: str, history: bytes, execution: HistoryExecution, limit: float
    ) -> Site:
        from hourglass._temporal.activations import UnsupportedEvent
        from hourglass._temporal.handle import ReplayHandle

        if self._handle is None:
            self._handle = ReplayHandle()
        handle = self._handle
        await handle.push(workflow_id, history)
        # For a long history, Core needs up to a second per 10,000 events before the first activation.
        patience = _SILENT_TICKS + len(history) // _BYTES_PER_TICK
        watch = _Watch(self._loop, asyncio.current_task(), patience)
        try:
            while execution.eviction is None:
                activation = await handle.next_activation()
                completion = execution.activate(activation)
                watch.reset()
                await handle.complete(completion)
                watch.reset()
            return execution.waiting_at()
        except asyncio.CancelledError:
            if watch.silent and execution.waits_for_local_activity:
                return execution.waiting_at()  # the local activity is new, and a worker would now execute it
            if watch.silent:
                raise HistoryError(
                    f"the history is malformed: Core stopped without an error after {execution.activations} activations"
                ) from None
            raise
        except UnsupportedEvent as error:
            raise HistoryError(
                f"this history contains an event that Hourglass cannot replay: {error}"
            ) from None
        finally:
            watch.stop()
            if execution.run is not None:
                execution.run.drop()

    def close(self, limit: float = 5.0) -> None:
        """Shut down Core's worker and end the thread. Abandon a session that hangs."""
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        try:
            closing.result(limit)
        except Exception:
            # Core waits for a completion that was lost, so abandon the session and end the thread.
            closing.cancel()
            self._loop.call_soon_threadsafe(self._loop.call_later, 0.1, self._loop.stop)
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(limit)

    async def _close(self) -> None:
        from hourglass._contract.handle import HandleBroken, Shutdown

        handle, self._handle = self._handle, None
        if handle is None:
            return
        handle.initiate_shutdown()
        try:
            while True:
                activation = await handle.next_activation()
                await handle.complete(Succeeded(activation.run_id))
        except (Shutdown, HandleBroken):
            await handle.finalize()

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else "(the thread has ended)"


class _Watch:
    """A watchdog that cancels the task if Core does not answer within `patience` punctual ticks of the loop.

    Late ticks do not count, because the machine is then busy or workflow code is running.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None, patience: int
    ) -> None:
        self._loop = loop
        self._task = task
        self._patience = patience
        self._quiet = 0
        self.silent = False
        self._due = loop.time() + _TICK
        self._timer = loop.call_at(self._due, self._tick)

    def reset(self) -> None:
        """Restart the count, because Core has answered."""
        self._quiet = 0

    def _tick(self) -> None:
        late = self._loop.time() - self._due
        if late < _TICK / 2:
            self._quiet += 1
        if self._quiet > self._patience and self._task is not None:
            self.silent = True
            self._task.cancel()
            return
        self._due = self._loop.time() + _TICK
        self._timer = self._loop.call_at(self._due, self._tick)

    def stop(self) -> None:
        """Stop watching."""
        self._timer.cancel()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
