"""The worker: its options, its start and shutdown, and the change of its client. This module is the public interface of
`hourglass._worker`, and the only one that the user's threads and event loops call.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from types import ModuleType, TracebackType
from typing import Any, Literal

from hourglass._contract.tuning import (
    PollerBehavior,
    WorkerTuner,
)
from hourglass._evaluator.options import Duration
from hourglass._evaluator.specs import WorkerDeploymentVersion
from hourglass._forks import ForkStage, at_fork, leak
from hourglass._worker.activities.program_loop import ProgramLoop
from hourglass._worker.code_origin import without_our_frames
from hourglass._worker.health import debuggers
from hourglass._worker.lanes.evaluation import Verify
from hourglass._worker.lanes.watcher import Action
from hourglass._worker.portal import Portal
from hourglass._worker.tree.application import Application
from hourglass._worker.tree.plan import (
    Plan,
    WorkerDeploymentConfig,
)
from hourglass._worker.tree.services import QueueServices
from hourglass._worker.tree.status import StatusServer
from hourglass._worker.tree.worker_metrics import worker_metrics
from hourglass._worker.tree.worker_view import StopSignals, WorkerFacts, WorkerLife
from hourglass.activity._context import PAYLOAD_LIMIT
from hourglass.activity._definition import ActivitySource, worker_started, worker_stopped
from hourglass.client import AsyncClient, Client
from hourglass.client._interception import Interceptor
from hourglass.client._link import Link
from hourglass.client._plugins import Plugin, WorkerConfig, all_plugins, configured
from hourglass.errors import HourglassError, UsageError
from hourglass.metrics import Registry
from hourglass.nexus import Service
from hourglass.worker._plan import blocking_client, plan_of
from hourglass.workflow._definitions import WorkflowSource
from hourglass.workflow._facts import PatchActivationInput

logger = logging.getLogger("hourglass.worker")

_JOIN_LIMIT = 5.0
_EXIT_MARGIN = 15.0
_START_POLL = 0.05

# One Application per client link and version. The workers of a client share a tree; workers of different clients do not. Two
# versions may serve the same queue, but a tree can serve a queue only once.
_applications: dict[tuple[Any, WorkerDeploymentVersion | None], Application] = {}


def _no_client(client: object) -> UsageError:
    hint = f": Client.connect({client!r})" if isinstance(client, str) else ""
    return UsageError(f"a worker needs a Client or an AsyncClient, not {type(client).__name__}{hint}")


class Worker(WorkerFacts):
    """Runs workflows and activities of one task queue until it is shut down. A stopped worker can be started again."""

    _forget_metrics: Callable[[], None] | None = None
    _forget_exit: Callable[[], None] | None = None
    _beginning: asyncio.Task[Any] | None = None
    _has_begun = False

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
        switch_interval: Duration | None = None,
        gc_threshold: int | None = None,
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
        every_plugin = all_plugins(client._session.plugins, plugins)
        config = self._config = configured(WorkerConfig, "configure_worker", every_plugin, locals())
        self._client = client
        self._link = client._session.link
        self._plan = plan_of(config, [partial(plugin.run_worker, self) for plugin in every_plugin])
        address = config["status_address"]
        self._status = None if address is None else StatusServer(address, self._report, self._plan.metrics)
        self._key = (self._link, self._plan.config.version)  # the key of its Application
        self._services = {}
        self._life = WorkerLife()
        self._ending = threading.RLock()  # serialises shutdowns

    def config(self) -> WorkerConfig:
        """Return the constructor arguments after the plugins have changed them: `Worker(**worker.config())`
        creates an equal worker.
        """
        return {**self._config, "plugins": ()}

    @property
    def client(self) -> Client | AsyncClient:
        """The client of this worker. Assign another client of the same engine and namespace, e.g. one with a
        new certificate, to switch to it.

        Attempts and tasks in progress continue. All workers that share the previous client's connection switch
        with this one. The converter and codec stay the same.
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
                f"this worker serves the namespace {old.namespace!r}, but the client uses {link.namespace!r}: create "
                "another worker"
            )
        kind = old.where.kind
        if kind == "memory" or link.where.kind != kind or (kind != "temporal" and link.target != old.target):
            raise UsageError(
                f"this worker serves the engine of {old.target}, but the client uses the engine of {link.target}: create "
                "another worker"
            )
        app = self._application
        if app is not None and link.target != old.target and app.queues - set(self._services):
            raise UsageError(
                f"other workers of this worker's client serve {old.target}, and would move to {link.target} too: "
                "use a separate client for each worker"
            )

    async def _move(self, client: Client | AsyncClient) -> None:
        """Switch to another client. Called on the control loop."""
        link, app = client._session.link, self._app
        connection = await link.opened()
        if app.raw is not connection:  # equal if another worker of the same client switched first
            await app.replace_client(connection, link.another, blocking_client(client))
            _forget(app)
            _applications.setdefault((link, self._plan.config.version), app)

    def __setattr__(self, name: str, value: object) -> None:
        # Otherwise Python would create an attribute without effect.
        if name in _OPTIONS and name != "client" and type(self) is Worker:
            raise AttributeError(
                f"{name} of a worker cannot be changed: shut this one down and create another one, "
                f"Worker(…, {name}=…)"
            )
        super().__setattr__(name, value)

    def run(self, *, on_started: Callable[[], object] | None = None) -> None:
        """Work until `shutdown` is called.

        On the main thread, Ctrl-C and SIGTERM also shut the worker down: the first signal lets tasks in progress finish, the
        second does not wait for them. `on_started` is called in this thread as soon as the worker is running.
        """
        self._life.begin()
        with StopSignals(self._life.over):
            try:
                self._plan.resources.open()
                beginning = self._portal.submit(self._begin())
                while not (self._life.over.wait(_START_POLL) or beginning.done()):
                    pass
                if beginning.done() and not self._life.over.is_set():
                    beginning.result()
                    if self._started() and on_started is not None:
                        on_started()
                while not self._life.over.wait(1.0):  # limited, so that signals are handled on every platform
                    pass
            except KeyboardInterrupt:
                if self._life.over.is_set():  # the second signal, before the shutdown has begun
                    self._end_without_waiting()
                raise
            finally:
                self.shutdown()

    def start(self) -> Worker:
        """Start the worker in the background. Wait until the engine is reached, and raise the engine's permanent errors."""
        self._life.begin()
        try:
            self._plan.resources.open()
            self._portal.call(self._begin())
        except BaseException as error:
            self._not_started(error)
            raise
        if not self._started():
            self._life.check_wanted()
        return self

    def shutdown(self) -> None:
        """Stop receiving tasks, finish the tasks in progress within the graceful timeout, and stop the worker.

        A start in progress is cancelled. The call has no effect if the worker is not running.
        """
        # A second caller waits for the first. A signal handler in the same thread returns immediately.
        with self._ending:
            if not self._stopping():
                return
            ended = False
            try:
                services = self._portal.call(self._end_in_time())
                joined = [queue_services.lanes.join(_JOIN_LIMIT) for queue_services in services or ()]
                ended = all(joined) and services is not None
            finally:  # if interrupted, the shutdown continues in the background
                self._stopped(ended)

    def _end_without_waiting(self) -> None:
        with self._ending:
            if self._stopping():
                self._portal.submit(self._end_in_time())
                self._stopped(False)

    def start_worker(self, task_queue: str) -> None:
        """Also serve another task queue, with the same workflows, activities and options."""
        if self._life.state != "running":
            raise UsageError(f"this worker is {self._life.state}: start it first")
        self._portal.call(self._serve(self._plan.serving(task_queue)))

    def stop_worker(self, task_queue: str) -> None:
        """Stop serving a task queue. The worker keeps serving its other queues."""
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

    async def _settle(self) -> None:
        if self._plan.program_loop is not None:
            await self._plan.program_loop.settle()

    def _use_running_loop(self) -> None:
        """Run `async def` activities on this thread's event loop, beginning with the next start."""
        self._plan = replace(self._plan, program_loop=ProgramLoop.running(self._shut_down_soon))

    def _shut_down_soon(self) -> None:
        """Shut down in a separate thread, for a caller that must not wait."""
        threading.Thread(target=self.shutdown, name="hourglass-worker-shutdown", daemon=True).start()

    async def __aenter__(self) -> Worker:
        self._life.begin()
        try:
            await asyncio.to_thread(self._plan.resources.open)
            await self._portal.acall(self._begin())
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                await asyncio.shield(self._portal.acall(self._end_begun()))
                await self._settle()
            self._not_started(error)
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
            joined = [
                await asyncio.to_thread(queue_services.lanes.join, _JOIN_LIMIT)
                for queue_services in services or ()
            ]
            ended = all(joined) and services is not None
            await self._settle()
            await asyncio.to_thread(self._plan.resources.close)
        finally:
            self._stopped(ended)

    @property
    def _portal(self) -> Portal:
        return self._link.portal

    async def _begin(self) -> None:
        self._beginning = asyncio.current_task()
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
            self._has_begun = True
        except BaseException:
            await self._end()
            raise

    async def _end_begun(self) -> None:
        """Finish a start whose caller was cancelled. The start either cleans up after itself, or has just completed."""
        if self._beginning is not None:
            await asyncio.wait({self._beginning}, timeout=self._plan.config.graceful_shutdown + _EXIT_MARGIN)
        if self._has_begun:
            await self._end_in_time()

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
        self._has_begun = False
        if self._status is not None:
            await self._status.stop()
        forget, self._forget_metrics = self._forget_metrics, None
        if forget is not None:
            forget()
        if app is not None:
            await asyncio.gather(*[app.stop_worker(queue_services.queue) for queue_services in services])
            if app.idle:
                _forget(app)  # the Application refers to the link and would keep it in memory
        return services

    async def _end_in_time(self) -> list[QueueServices] | None:
        """Shut down like `_end`. Return None if that takes longer than the graceful timeout plus a margin."""
        try:
            async with asyncio.timeout(self._plan.config.graceful_shutdown + _EXIT_MARGIN):
                return await self._end()
        except TimeoutError:
            _forget(self._application)  # it continues in the background; a later start uses a new Application
            return None

    def _not_started(self, error: BaseException) -> None:
        self._life.failed()
        self._services.clear()
        self._plan.resources.close()
        if isinstance(error, HourglassError):
            without_our_frames(error)

    def _started(self) -> bool:
        if not self._life.started():
            return False
        worker_started()
        margin = self._plan.config.graceful_shutdown + _EXIT_MARGIN
        self._forget_exit = self._portal.at_exit(self._end, margin)
        debuggers.install()
        logger.info("the worker on task queue %r of %s is running", self.task_queue, self._client.target)
        return True

    def _stopping(self) -> bool:
        previous_state = self._life.stop()
        if previous_state == "running":
            worker_stopped()
            forget, self._forget_exit = self._forget_exit, None
            if forget is not None:
                forget()
        return previous_state is not None

    def _stopped(self, ended: bool) -> None:
        if not ended:
            logger.error("the worker on %r did not end in time and was abandoned", self.task_queue)
        self._services.clear()
        self._plan.resources.close()
        self._life.stopped()


def _forget(app: Application | None) -> None:
    """Remove an Application, so that a later start creates another one."""
    for key in [key for key, entry in _applications.items() if entry is app]:
        del _applications[key]


_OPTIONS = frozenset(inspect.signature(Worker.__init__).parameters) - {"self"}


def _after_fork() -> None:
    leak(*_applications.items())
    _applications.clear()


at_fork(ForkStage.WORKERS, in_child=_after_fork)
