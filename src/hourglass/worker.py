"""`Worker`: runs the workflows and activities of one task queue.

    with Client.connect("local:") as client, Worker(client, workflows=[checkout], activities=[charge]):
        ...

or, as a program of its own, `Worker(client, modules=["app"]).run()`, which ends on Ctrl-C or SIGTERM. The
parts that do the work are in `_runtime`; this is their face, and the only one that threads and event loops of
the user's meet.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType, TracebackType
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from hourglass._bridge.handle import HandleConfig
from hourglass._engine.definition import check_exceptions
from hourglass._engine.options import Duration, optional_seconds, seconds
from hourglass._runtime import debugging
from hourglass._runtime.application import Application
from hourglass._runtime.evaluation import Verify
from hourglass._runtime.plan import Plan, check_config, checked_verify, checked_watch
from hourglass._runtime.portal import Portal
from hourglass._runtime.resolver import Resolver
from hourglass._runtime.services import QueueServices
from hourglass._runtime.status import StatusServer, status_report
from hourglass._runtime.stop_signals import StopSignals
from hourglass._runtime.watcher import Action
from hourglass._supervision import Tree
from hourglass.activity._plain import worker_started, worker_stopped
from hourglass.client import AsyncClient, Client
from hourglass.errors import UsageError

__all__ = ["Worker", "WorkerStatistics", "WorkerTree"]

logger = logging.getLogger("hourglass.worker")

State = Literal["new", "running", "stopping", "stopped"]

T = TypeVar("T")

_JOIN_LIMIT = 5.0
_EXIT_MARGIN = 15.0

# One Application for each client's link: the workers of a client share its tree, those of two clients share nothing.
_applications: WeakKeyDictionary[Any, Application] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class WorkerStatistics:
    """A look at a worker. `parked` names each run whose code raised a bug, and what kind of bug, where."""

    task_queue: str
    state: State
    cached_workflows: int = 0
    live_workflows: int = 0
    parked: dict[str, str] = field(default_factory=dict)
    activations: int = 0
    failed_tasks: int = 0
    cache_misses: int = 0
    open_activations: int = 0
    running_activities: int = 0
    stuck_lanes: int = 0
    restarts: int = 0


class Worker:
    """Runs workflows and activities of one task queue, until it is shut down. It can be started again after
    that.
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        task_queue: str = "default",
        *,
        workflows: Sequence[object] = (),
        activities: Sequence[object] = (),
        modules: Sequence[str | ModuleType] = (),
        max_cached_workflows: int = 1000,
        max_live_workflows: int | None = None,
        max_concurrent_workflow_tasks: int = 100,
        max_concurrent_activities: int = 100,
        max_concurrent_local_activities: int = 100,
        workflow_pollers: int = 5,
        activity_pollers: int = 5,
        sticky_timeout: Duration = 5.0,
        graceful_shutdown_timeout: Duration = 10.0,
        max_activities_per_second: float | None = None,
        failure_exceptions: Sequence[type[BaseException]] = (),
        verify: Verify = "off",
        watch: Action | Literal["off"] | None = None,
        lanes: int = 1,
        deadlock_timeout: Duration | None = 2.0,
        status_address: str | None = None,
        identity: str | None = None,
        build_id: str | None = None,
    ) -> None:
        if not isinstance(client, (Client, AsyncClient)):
            raise UsageError(f"a worker needs a Client or an AsyncClient, not {type(client).__name__}")
        self._client = client
        self._link = client._session.link
        self._portal = client._portal
        resolver = Resolver(workflows=workflows, activities=activities, modules=modules)
        graceful = seconds(graceful_shutdown_timeout, "graceful_shutdown_timeout")
        config = HandleConfig(
            task_queue=task_queue,
            identity=identity or "",
            build_id=build_id or "",
            workflows=resolver.has_workflows,
            activities=resolver.has_activities,
            max_cached_workflows=max_cached_workflows,
            max_concurrent_workflow_tasks=max_concurrent_workflow_tasks,
            max_concurrent_activities=max_concurrent_activities,
            max_concurrent_local_activities=max_concurrent_local_activities,
            workflow_pollers=workflow_pollers,
            activity_pollers=activity_pollers,
            sticky_timeout=seconds(sticky_timeout, "sticky_timeout"),
            max_activities_per_second=max_activities_per_second,
            graceful_shutdown=graceful,
        )
        check_config(config, lanes)
        self._plan = Plan(
            config=config,
            resolver=resolver,
            converter=client.converter,
            codec=client.codec,
            failure_exceptions=check_exceptions(failure_exceptions),
            verify=checked_verify(verify),
            watch=checked_watch(watch, verify),
            lanes=lanes,
            max_live_workflows=max_cached_workflows if max_live_workflows is None else max_live_workflows,
            graceful_timeout=graceful,
            deadlock_timeout=optional_seconds(deadlock_timeout, "deadlock_timeout") or None,
        )
        self._status = None if status_address is None else StatusServer(status_address, self._report)
        self._application: Application | None = None
        self._state: State = "new"
        self._services: dict[str, QueueServices] = {}
        self._forget_exit: Callable[[], None] | None = None
        self._life = threading.RLock()
        self._over = threading.Event()

    @property
    def task_queue(self) -> str:
        """The task queue it serves."""
        return self._plan.config.task_queue

    def __repr__(self) -> str:
        return f"<Worker on {self.task_queue!r}, {self._state}>"

    # --- blocking ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until `shutdown` is called; on the main thread also until Ctrl-C or SIGTERM, which let what is in flight
        finish, and a second one, which does not.
        """
        self.start()
        with StopSignals(self._over):
            try:
                while not self._over.wait(1.0):  # bounded, so that signals are handled on every platform
                    pass
            finally:
                self.shutdown()

    def start(self) -> Worker:
        """Begin to work, in the background."""
        self._portal.call(self._begin())
        self._started()
        return self

    def shutdown(self) -> None:
        """Take no new work, finish what is in flight within the graceful timeout, and end. Does nothing when
        not running.
        """
        with (
            self._life
        ):  # a second caller waits for the first; a signal handler that calls it again returns at once
            services = self._stopping()
            if services:
                try:
                    self._portal.call(self._end(services))
                finally:
                    self._stopped(all([each.lanes.join(_JOIN_LIMIT) for each in services]))

    def start_worker(self, task_queue: str) -> None:
        """Serve another task queue too, with the same workflows, activities and options."""
        self._portal.call(self._serve(self._plan_for(task_queue)))

    def stop_worker(self, task_queue: str) -> None:
        """Serve a task queue no longer; the others go on."""
        services = self._services.pop(task_queue, None)
        if services is not None:
            self._portal.call(self._app.stop_worker(task_queue))
            services.lanes.join(_JOIN_LIMIT)

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # --- on an event loop of the user's ------------------------------------------------------------------------------

    async def __aenter__(self) -> Worker:
        await self._portal.acall(self._begin())
        self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        services = self._stopping()
        if services:
            try:
                await self._portal.acall(self._end(services))
            finally:
                joined = [await asyncio.to_thread(each.lanes.join, _JOIN_LIMIT) for each in services]
                self._stopped(all(joined))

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def tree(self) -> WorkerTree:
        """The supervision tree that this worker is part of, for looking and for fire drills."""
        return WorkerTree(self._portal, lambda: self._app.require_tree())

    def statistics(self) -> WorkerStatistics:
        """How the worker is doing. Cheap, from any thread."""
        services = list(self._services.values())
        if not services:
            return WorkerStatistics(task_queue=self.task_queue, state=self._state)
        counts = [each for one in services for each in one.lanes.counts()]
        queues = {one.queue for one in services}
        handles = [h for h in self._app.tables.records.values() if h.queue in queues]
        return WorkerStatistics(
            task_queue=self.task_queue,
            state=self._state,
            cached_workflows=sum(each.cached for each in counts),
            live_workflows=sum(each.live for each in counts),
            parked={run: reason for each in counts for run, reason in each.parked.items()},
            activations=sum(each.activations for each in counts),
            failed_tasks=sum(each.failed_tasks for each in counts),
            cache_misses=sum(each.misses for each in counts),
            open_activations=sum(len(each.runs.open) for each in handles),
            running_activities=sum(each.executor.running for each in services),
            stuck_lanes=sum(each.lanes.stuck for each in services),
            restarts=self._app.restarts,
        )

    def _report(self) -> dict[str, Any]:
        return status_report(self._app, self._state)

    # --- life --------------------------------------------------------------------------------------------------------

    @property
    def _app(self) -> Application:
        if self._application is None:
            raise UsageError("this worker has not been started")
        return self._application

    def _plan_for(self, task_queue: str) -> Plan:
        config = msgspec.structs.replace(self._plan.config, task_queue=task_queue)
        check_config(config, self._plan.lanes)
        return replace(self._plan, config=config)

    async def _begin(self) -> None:
        connection = await self._link.opened()
        app = _applications.get(self._link)
        if app is None:
            app = _applications[self._link] = Application(
                connection,
                self._link.another,
                converter=self._plan.converter,
                codec=self._plan.codec,
                client=self._client,
            )
        self._application = app
        await self._serve(self._plan)
        if self._status is not None:
            try:
                await self._status.start()
            except BaseException:
                await self._end([self._services.pop(self.task_queue)])
                raise

    async def _serve(self, plan: Plan) -> None:
        self._services[plan.config.task_queue] = await self._app.start_worker(plan)

    async def _end(self, services: list[QueueServices]) -> None:
        if self._status is not None:
            await self._status.stop()
        await asyncio.gather(*[self._app.stop_worker(each.queue) for each in services])

    def _started(self) -> None:
        self._over.clear()
        self._state = "running"
        margin = self._plan.graceful_timeout + _EXIT_MARGIN
        self._forget_exit = self._portal.at_exit(lambda: self._end(list(self._services.values())), margin)
        worker_started()
        debugging.install()
        logger.info("worker on task queue %r of %s runs", self.task_queue, self._client.target)

    def _stopping(self) -> list[QueueServices]:
        if not self._services or self._state == "stopping":
            return []
        self._state = "stopping"
        if self._forget_exit is not None:
            self._forget_exit()
        return list(self._services.values())

    def _stopped(self, ended: bool) -> None:
        if not ended:
            logger.error(
                "a lane of the worker on %r hangs in workflow code and is left behind", self.task_queue
            )
        self._state = "stopped"
        self._services.clear()
        worker_stopped()
        self._over.set()


class WorkerTree:
    """The supervision tree of a worker: who is there, in which state, and a way to kill any of them."""

    def __init__(self, portal: Portal, tree: Callable[[], Tree]) -> None:
        self._portal = portal
        self._tree = tree

    def paths(self) -> list[str]:
        """The path of every process that lives, such as `Application/Subsystem/BridgeHolder`."""
        return self._portal.call(self._ask(lambda tree: list(tree.paths())))

    def render(self) -> str:
        """The tree as a drawing, with states and restarts."""
        return self._portal.call(self._ask(lambda tree: tree.render()))

    def kill(self, path: str) -> None:
        """Kill the process at a path, brutally, with all below it. The worker is to survive it: that is what it is for."""
        self._portal.call(self._ask(lambda tree: tree.kill(path)))

    async def _ask(self, question: Callable[[Tree], T]) -> T:
        return question(self._tree())
