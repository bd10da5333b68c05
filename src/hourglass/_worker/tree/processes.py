"""The bodies of the tree's processes. The state that the processes share is in `application`, the structure of the tree
is in `subsystem`.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from hourglass._contract.handle import Shutdown
from hourglass._supervision import (
    KILLED,
    ChildSpec,
    Context,
    Down,
    NotRunning,
    SpecError,
    StartFailed,
    SupervisionError,
    Supervisor,
)
from hourglass._supervision.spec import Start
from hourglass._worker.handles.handles import HandleEvents, HandleRecord
from hourglass._worker.handles.holder import AlreadyRegistered, BridgeHolder, WorkerNotRegistered
from hourglass._worker.tree.application import Application
from hourglass._worker.tree.services import QueueServices, child_id
from hourglass.errors import UsageError

logger = logging.getLogger("hourglass.worker")

Item = TypeVar("Item")

_RETRY = 0.02  # seconds between two tries while a supervisor restarts
_LONGEST_RETRY = 5.0
_LOOPS = 1.0  # seconds for poll loops to end
_PASSING = (
    SupervisionError,
    WorkerNotRegistered,
    AlreadyRegistered,
)  # a part of the worker was down at that moment


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def runtime(app: Application) -> Start:
    """Return the body of the Runtime. It crashes when `app.distrust` is called, so that the whole subtree restarts."""

    async def body(context: Context) -> None:
        invalid: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        app.distrust = lambda reason: None if invalid.done() else invalid.set_result(reason)
        await context.started()
        reason = await invalid
        app.use_fresh_connections()
        raise ConnectionError(f"the connections to the engine are reopened: {reason}")

    return body


def bridge_holder(app: Application) -> Start:
    """Return the body of the BridgeHolder, which works on tables that outlive it."""

    async def body(context: Context) -> None:
        holder = BridgeHolder(
            app.connect,
            shared=app.shared,
            tables=app.tables,
            limits=app.limits,
            events=HandleEvents(
                attempt_cancelled=app.attempt_cancelled,
                ended=app.handle_ended,
                run_evicted=app.run_evicted,
                item_arrived=app.item_arrived,
                too_many_abandoned=lambda: app.distrust("too many handles were abandoned"),
            ),
        )
        await holder.start()
        # A cascade does not wait for handles to drain: the next holder finds the handles in the tables and continues
        # with them.
        context.on_terminate(lambda: holder.stop() if app.stopping else None)
        app.set_holder(holder, context.process)
        await context.started(holder)
        await _for_ever()

    return body


def worker(app: Application, services: QueueServices) -> ChildSpec:
    """Return the child spec of a Worker: it registers when it starts, and unregisters before its poll loops are stopped."""

    async def body(context: Context) -> None:
        holder = app.holder
        queue = services.queue

        def watch_death(callback: Callable[[], object]) -> Callable[[], object]:
            return context.process.monitor(lambda _: callback()).cancel

        await holder.register_worker(queue, services.plan.config, watch_death)
        context.on_terminate(lambda: _farewell(app, services, holder, context))
        app.registry.register(queue, context.process)
        workflows = _poll_loop(services, holder.serve_activations, app.dispatch.activation)
        activities = _poll_loop(services, holder.serve_activities, app.dispatch.activity)
        await Supervisor(
            "one_for_one",
            [
                ChildSpec("WorkflowPollLoop", workflows, "transient"),
                ChildSpec("ActivityPollLoop", activities, "transient"),
            ],
            max_restarts=10,
            window=5.0,
        )(context)

    return ChildSpec(
        services.child_id,
        body,
        type="supervisor",
        shutdown="infinity",
        start_timeout="infinity",
        # shorter than the time that a handle waits for its worker; an unreachable engine has pauses of its own
        backoff=(
            0.05,
            2.0,
        ),
    )


async def _farewell(
    app: Application, services: QueueServices, holder: BridgeHolder, context: Context
) -> None:
    """Unregister the Worker, and wait for a moment until its poll loops have ended."""
    await holder.unregister_worker(services.queue, returns=app.is_configured(services))
    with suppress(TimeoutError):
        async with asyncio.timeout(_LOOPS):
            for loop in tuple(context.process.links):
                await loop.wait_dead()


def _poll_loop(
    services: QueueServices,
    serve: Callable[..., Coroutine[Any, Any, NoReturn]],
    dispatch: Callable[[QueueServices, HandleRecord, Item], None],
) -> Start:
    """Return the body of a poll loop, which dispatches each item as soon as the item arrives."""

    def receiver_of(record: HandleRecord) -> Callable[[Item], None]:
        return partial(dispatch, services, record)

    async def body(context: Context) -> None:
        await context.started()
        while True:
            try:
                await serve(services.queue, receiver_of)
            except Shutdown:
                return
            except NotRunning:
                # The supervisor of the jobs is restarting; the item is kept for this poll loop or the next.
                await sleep(_RETRY)

    return body


def worker_launcher(app: Application) -> Start:
    """Return the body of the WorkerLauncher, which starts the configured workers, including after a cascade."""

    async def body(context: Context) -> None:
        for services in app.configured():
            context.spawn_task(f"launch-{services.child_id}", launch(app, services))
        await context.started()
        await _for_ever()

    return body


async def launch(app: Application, services: QueueServices) -> None:
    """Start a worker, and retry while the worker is configured."""
    pause = _RETRY
    while app.is_configured(services):
        try:
            await app.workers.start_child(worker(app, services))
            return
        except SpecError:
            if app.registry.whereis(services.queue) is not None:
                return
            # Another launch is about to start the worker. If that launch fails, only this loop retries.
        except SupervisionError as error:
            _not_yet(services, error)
        await sleep(pause)
        pause = min(2 * pause, _LONGEST_RETRY)


async def launch_first(app: Application, services: QueueServices) -> None:
    """Start a worker for a caller that waits for it. Temporary failures are retried, permanent errors are raised."""
    while app.is_configured(services):
        try:
            process = await app.workers.start_child(worker(app, services))
            app.launched(services)
            if process.alive:
                return
        except StartFailed as error:
            cause = error.__cause__
            if isinstance(cause, Exception) and not isinstance(cause, _PASSING):
                raise cause from None
            _not_yet(services, error)
        except SpecError:
            if app.registry.whereis(services.queue) is not None:
                return  # the worker died and was restarted
        except SupervisionError:
            pass  # the supervisor is restarting
        await sleep(_RETRY)
    raise UsageError(f"the worker on task queue {services.queue!r} was shut down while it was starting")


def _not_yet(services: QueueServices, error: SupervisionError) -> None:
    cause = error.__cause__ or error
    logger.warning(
        "the worker on %r could not be started, retrying: %s: %s", services.queue, type(cause).__name__, cause
    )


async def end_worker(app: Application, queue: str) -> None:
    """Stop a worker that is no longer configured."""
    try:
        await app.workers.terminate_child(child_id(queue))
    except SupervisionError as error:
        # The worker is not running, or ends with its supervisor, which is down. The launcher starts only configured
        # workers.
        logger.debug("the worker on %r was not running: %s", queue, error)


def lane_supervisor(app: Application) -> Start:
    """Return the body of the LaneSupervisor: it shows each lane as a process, so that lanes can be seen and killed."""

    async def body(context: Context) -> None:
        async def adopt() -> None:
            for services in app.configured():
                await show_lanes(app, services)

        context.spawn_task("adopt", _when_running(adopt))
        await app.lanes(context)

    return body


async def _when_running(work: Callable[[], Any]) -> None:
    for _ in range(100):
        try:
            await work()
            return
        except NotRunning:
            await sleep(_RETRY)


async def show_lanes(app: Application, services: QueueServices) -> None:
    """Add the lanes of a queue to the tree. Lanes that are already in the tree stay."""
    for name in services.lanes.names():
        if app.is_configured(services):
            try:
                await app.lanes.start_child(ChildSpec(_lane_id(services, name), _lane(services, name)))
            except SpecError:
                pass


def _lane_id(services: QueueServices, name: str) -> str:
    return f"{services.child_id}:{name}"


def _lane(services: QueueServices, name: str) -> Start:
    def ended(down: Down) -> None:
        if down.exit is KILLED:
            services.lanes.kill(name)

    async def body(context: Context) -> None:
        context.process.monitor(ended)
        await context.started()
        await _for_ever()

    return body


async def hide_lanes(app: Application, services: QueueServices) -> None:
    for name in services.lanes.names():
        try:
            await app.lanes.terminate_child(_lane_id(services, name))
        except SupervisionError:
            pass  # the lane is not in the tree
