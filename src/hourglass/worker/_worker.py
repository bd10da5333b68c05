"""The worker: how it begins, moves, and ends. The parts that do the work are in `_runtime`; this is their face, and the only
one that threads and event loops of the user's meet.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from types import ModuleType, TracebackType
from typing import Any, Literal

from hourglass._contract.tuning import PollerBehavior, WorkerTuner
from hourglass._engine.options import Duration
from hourglass._engine.versions import WorkerDeploymentVersion
from hourglass._forks import ForkStage, at_fork, leak
from hourglass._runtime import hung
from hourglass._runtime.application import Application
from hourglass._runtime.evaluation import Verify
from hourglass._runtime.plan import Plan, WorkerDeploymentConfig
from hourglass._runtime.portal import Portal
from hourglass._runtime.services import QueueServices
from hourglass._runtime.status import StatusServer, worker_metrics
from hourglass._runtime.watcher import Action
from hourglass._runtime.worker_view import StopSignals, WorkerFacts, WorkerLife
from hourglass.activity._context import PAYLOAD_LIMIT
from hourglass.activity._definition import ActivitySource, worker_started, worker_stopped
from hourglass.client import AsyncClient, Client
from hourglass.client._interception import Interceptor
from hourglass.client._link import Link
from hourglass.client._plugins import Plugin, WorkerConfig, all_plugins, configured
from hourglass.errors import UsageError
from hourglass.metrics import Registry
from hourglass.nexus import Service
from hourglass.worker._options import blocking_client, plan_of
from hourglass.workflow._definitions import WorkflowSource
from hourglass.workflow._facts import PatchActivationInput

logger = logging.getLogger("hourglass.worker")

_JOIN_LIMIT = 5.0
_EXIT_MARGIN = 15.0
_GLANCE = 0.05

# One Application for each client's link and version: the workers of a client share its tree, those of two clients share
# nothing. Two versions may serve the same queue, which one tree cannot do twice.
_applications: dict[tuple[Any, WorkerDeploymentVersion | None], Application] = {}


def _no_client(given: object) -> UsageError:
    how = f": Client.connect({given!r})" if isinstance(given, str) else ""
    return UsageError(f"a worker needs a Client or an AsyncClient, not {type(given).__name__}{how}")


class Worker(WorkerFacts):
    """Runs workflows and activities of one task queue, until it is shut down. It can be started again after
    that.
    """

    _forget_metrics: Callable[[], None] | None = None
    _forget_exit: Callable[[], None] | None = None

    def __init__(
        self,
        client: Client | AsyncClient,
        task_queue: str = "default",
        *,
        workflows: Sequence[WorkflowSource | type] = (),
        activities: Sequence[ActivitySource] = (),
        modules: Sequence[str | ModuleType] = (),
        max_cached_workflows: int | None = None,
        max_live_workflows: int | None = None,
        max_concurrent_workflow_tasks: int = 100,
        max_concurrent_activities: int = 100,
        max_concurrent_local_activities: int = 100,
        tuner: WorkerTuner | None = None,
        workflow_pollers: int = 5,
        activity_pollers: int = 5,
        workflow_task_poller_behavior: PollerBehavior | None = None,
        activity_task_poller_behavior: PollerBehavior | None = None,
        nonsticky_to_sticky_poll_ratio: float = 0.2,
        sticky_timeout: Duration = 5.0,
        graceful_shutdown_timeout: Duration = 10.0,
        max_activities_per_second: float | None = None,
        max_task_queue_activities_per_second: float | None = None,
        no_remote_activities: bool = False,
        max_eager_activity_reservations_per_workflow_task: int = 3,
        disable_eager_activity_execution: bool = False,
        failure_exceptions: Sequence[type[BaseException]] = (),
        nexus_services: Sequence[Service] = (),
        max_concurrent_nexus_tasks: int = 100,
        nexus_task_poller_behavior: PollerBehavior | None = None,
        nexus_task_executor: Executor | None = None,
        patch_activation_callback: Callable[[PatchActivationInput], bool] | None = None,
        verify: Verify | None = None,
        watch: Action | Literal["off"] | None = None,
        max_process_activities: int = 0,
        activity_executor: Executor | None = None,
        max_heartbeat_throttle_interval: Duration = 5.0,
        default_heartbeat_throttle_interval: Duration = 5.0,
        payload_limit: int | None = PAYLOAD_LIMIT,
        lanes: int = 1,
        deadlock_timeout: Duration | None = 2.0,
        status_address: str | None = None,
        interceptors: Sequence[Interceptor] = (),
        resources: Sequence[Any] = (),
        metrics: Registry | None = None,
        identity: str | None = None,
        build_id: str | None = None,
        deployment_config: WorkerDeploymentConfig | None = None,
        plugins: Sequence[Plugin] = (),
    ) -> None:
        if not isinstance(client, (Client, AsyncClient)):
            raise _no_client(client)
        every = all_plugins(client._session.plugins, plugins)
        said = self._config = configured(WorkerConfig, "configure_worker", every, locals())
        self._client = client
        self._link = client._session.link
        self._plan = plan_of(said, [partial(each.run_worker, self) for each in every])
        address = said["status_address"]
        self._status = None if address is None else StatusServer(address, self._report, self._plan.metrics)
        self._key = (self._link, self._plan.config.version)  # of its Application
        self._services = {}
        self._life = WorkerLife()
        self._ending = threading.RLock()  # one shutdown at a time

    def config(self) -> WorkerConfig:
        """What it was made with, after its plugins had their way: `Worker(**worker.config())` is another of its kind."""
        return {**self._config, "plugins": ()}

    @property
    def client(self) -> Client | AsyncClient:
        """The client that it works for. It can be set, to one of the same engine and namespace, such as one with a new
        certificate: what comes next is asked for and answered over that one, and what is in flight goes on. So do the other
        workers of the client of before, which share its connection. How values travel stays as it was.
        """
        return self._client

    @client.setter
    def client(self, client: Client | AsyncClient) -> None:
        if not isinstance(client, (Client, AsyncClient)):
            raise _no_client(client)
        link = client._session.link
        if link is not self._link:
            self._check_same_engine(link)
            if self._life.state == "running":
                self._portal.call(self._move(client))
            self._link, self._key = link, (link, self._plan.config.version)
        self._client = self._config["client"] = client

    def _check_same_engine(self, link: Link) -> None:
        old = self._link
        if link.namespace != old.namespace:
            raise UsageError(
                f"this worker serves the namespace {old.namespace!r}, and that client is of {link.namespace!r}: make "
                "another worker"
            )
        kind = old.where.kind
        if kind == "memory" or link.where.kind != kind or (kind != "temporal" and link.target != old.target):
            raise UsageError(
                f"this worker serves the engine of {old.target}, and that client is of another one, {link.target}: make another "
                "worker"
            )
        app = self._application
        if app is not None and link.target != old.target and app.queues - set(self._services):
            raise UsageError(
                f"other workers of this worker's client serve {old.target}, and would move to {link.target} with it: give each "
                "worker a client of its own"
            )

    async def _move(self, client: Client | AsyncClient) -> None:
        """Work for another client, on the control loop."""
        link, app = client._session.link, self._app
        connection = await link.opened()
        if app.raw is not connection:  # it is, where another worker of the same client was first
            await app.replace_client(connection, link.another, blocking_client(client))
            _forget(app)
            _applications.setdefault((link, self._plan.config.version), app)

    def __setattr__(self, name: str, value: object) -> None:
        # Else Python would make a new attribute, and nothing else would happen.
        if name in _OPTIONS and name != "client" and type(self) is Worker:
            raise AttributeError(
                f"{name} of a worker is said when it is made, and stays: shut this one down and make another one, "
                f"Worker(…, {name}=…)"
            )
        super().__setattr__(name, value)

    # --- blocking ----------------------------------------------------------------------------------------------------

    def run(self, *, on_started: Callable[[], object] | None = None) -> None:
        """Work until `shutdown` is called; on the main thread also until Ctrl-C or SIGTERM, which let what is in flight
        finish, and a second one, which does not. `on_started` is called once it works, in this thread.
        """
        self._life.begin()
        with StopSignals(self._life.over):
            try:
                self._plan.resources.open()
                beginning = self._portal.submit(self._begin())
                while not (self._life.over.wait(_GLANCE) or beginning.done()):
                    pass
                if beginning.done() and not self._life.over.is_set():
                    beginning.result()
                    if self._started() and on_started is not None:
                        on_started()
                while not self._life.over.wait(1.0):  # bounded, so that signals are handled on every platform
                    pass
            except KeyboardInterrupt:
                if self._life.over.is_set():  # the second one, and the end has not even begun
                    self._end_without_waiting()
                raise
            finally:
                self.shutdown()

    def start(self) -> Worker:
        """Begin to work, in the background. Waits until the engine is reached; raises what it refuses for good."""
        self._life.begin()
        try:
            self._plan.resources.open()
            self._portal.call(self._begin())
        except BaseException:
            self._not_started()
            raise
        if not self._started():
            self._life.check_wanted()
        return self

    def shutdown(self) -> None:
        """Take no new work, finish what is in flight within the graceful timeout, and end. One that is starting gives that
        up. Does nothing when not running.
        """
        with self._ending:  # a second caller waits for the first; a signal handler in it returns at once
            if not self._stopping():
                return
            ended = False
            try:
                services = self._portal.call(self._end_in_time())
                joined = [each.lanes.join(_JOIN_LIMIT) for each in services or ()]
                ended = all(joined) and services is not None
            finally:  # interrupted, it goes on in the background
                self._stopped(ended)

    def _end_without_waiting(self) -> None:
        with self._ending:
            if self._stopping():
                self._portal.submit(self._end_in_time())
                self._stopped(False)

    def start_worker(self, task_queue: str) -> None:
        """Serve another task queue too, with the same workflows, activities and options."""
        if self._life.state != "running":
            raise UsageError(f"this worker is {self._life.state}: start it first")
        self._portal.call(self._serve(self._plan.serving(task_queue)))

    def stop_worker(self, task_queue: str) -> None:
        """Serve a task queue no longer; the others go on."""
        services = self._services.get(task_queue)
        if services is not None:
            self._portal.call(self._app.stop_worker(task_queue))
            self._services.pop(task_queue, None)
            services.lanes.join(_JOIN_LIMIT)

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # --- on an event loop of the user's ------------------------------------------------------------------------------

    async def __aenter__(self) -> Worker:
        self._life.begin()
        try:
            await asyncio.to_thread(self._plan.resources.open)
            await self._portal.acall(self._begin())
        except BaseException:
            self._not_started()
            raise
        if not self._started():
            self._life.check_wanted()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._stopping():
            return
        ended = False
        try:
            services = await self._portal.acall(self._end_in_time())
            joined = [await asyncio.to_thread(each.lanes.join, _JOIN_LIMIT) for each in services or ()]
            ended = all(joined) and services is not None
            await asyncio.to_thread(self._plan.resources.close)
        finally:
            self._stopped(ended)

    # --- life --------------------------------------------------------------------------------------------------------

    @property
    def _portal(self) -> Portal:
        return self._link.portal

    async def _begin(self) -> None:
        connection = await self._link.opened()
        self._life.check_wanted()
        app = _applications.get(self._key)
        if app is None:
            app = _applications[self._key] = Application(
                connection,
                self._link.another,
                converter=self._plan.converter,
                codec=self._plan.codec,
                client=blocking_client(self._client),
            )
        self._application = app
        self._forget_metrics = self._plan.metrics.add_source(lambda: worker_metrics(app))
        try:
            await self._serve(self._plan)
            if self._status is not None:
                await self._status.start()
        except BaseException:
            await self._end()
            raise

    async def _serve(self, plan: Plan) -> None:
        queue = plan.config.task_queue
        services = self._services[queue] = self._app.reserve(plan)
        try:
            await self._app.serve(services)
        except BaseException:
            self._services.pop(queue, None)
            raise

    async def _end(self) -> list[QueueServices]:
        services, app = list(self._services.values()), self._application
        if self._status is not None:
            await self._status.stop()
        forget, self._forget_metrics = self._forget_metrics, None
        if forget is not None:
            forget()
        if app is not None:
            await asyncio.gather(*[app.stop_worker(each.queue) for each in services])
            if app.idle:
                _forget(app)  # it holds the link, which would never be freed
        return services

    async def _end_in_time(self) -> list[QueueServices] | None:
        """As `_end`; None if that takes longer than the graceful timeout and a margin, whatever does not end."""
        try:
            async with asyncio.timeout(self._plan.config.graceful_shutdown + _EXIT_MARGIN):
                return await self._end()
        except TimeoutError:
            _forget(self._application)  # it goes on in the background; what is served next has another
            return None

    def _not_started(self) -> None:
        self._life.failed()
        self._services.clear()
        self._plan.resources.close()

    def _started(self) -> bool:
        if not self._life.started():
            return False
        worker_started()
        margin = self._plan.config.graceful_shutdown + _EXIT_MARGIN
        self._forget_exit = self._portal.at_exit(self._end, margin)
        hung.install()
        logger.info("worker on task queue %r of %s runs", self.task_queue, self._client.target)
        return True

    def _stopping(self) -> bool:
        before = self._life.stop()
        if before == "running":
            worker_stopped()
            forget, self._forget_exit = self._forget_exit, None
            if forget is not None:
                forget()
        return before is not None

    def _stopped(self, ended: bool) -> None:
        if not ended:
            logger.error("the worker on %r was left behind before it had ended", self.task_queue)
        self._services.clear()
        self._plan.resources.close()
        self._life.stopped()


def _forget(app: Application | None) -> None:
    """What is served next has another Application."""
    for key in [key for key, each in _applications.items() if each is app]:
        del _applications[key]


_OPTIONS = frozenset(inspect.signature(Worker.__init__).parameters) - {"self"}


def _after_fork() -> None:
    leak(*_applications.items())
    _applications.clear()


at_fork(ForkStage.WORKERS, in_child=_after_fork)
