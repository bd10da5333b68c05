"""The parts of an environment, assembled: engine, clock, driver, client."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from types import ModuleType
from typing import Any, Literal

import msgspec

from hourglass._embedded import VirtualClock, connect_memory
from hourglass._embedded.clock import to_ns
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.definition import check_exceptions
from hourglass._evaluator.options import Duration, seconds
from hourglass._worker.daemon_executor import DaemonExecutor
from hourglass._worker.lanes.cache import CacheLimits, StateCache
from hourglass._worker.lanes.evaluation import Evaluations, LaneContext, Verify
from hourglass._worker.lanes.nesting import NestingDepths
from hourglass._worker.lanes.watcher import Action, Watcher
from hourglass._worker.tree.plan import checked_verify, checked_watch
from hourglass.activity._context import PAYLOAD_LIMIT, Equipment, Resources
from hourglass.client import Client
from hourglass.client._interception import Interceptor, activity_chain, workflow_interceptors
from hourglass.converter import Converter
from hourglass.metrics import Registry, default_registry
from hourglass.testing._driver import EnvironmentDriver
from hourglass.testing._errors import EnvironmentErrors
from hourglass.testing._guard import Guard
from hourglass.testing._registry import EnvironmentRegistry
from hourglass.testing._session import EnvironmentLink, EnvironmentSession
from hourglass.testing._shared_threads import current_loop
from hourglass.testing._steps import Chooser
from hourglass.testing._virtual_time import as_ns

IDENTITY = "test"
NAMESPACE = "default"

_LIMITS = CacheLimits(live=1_000_000, states=1_000_000)


_MAX_NESTING = 1000
"""The maximum depth of child workflows: the same number as Python's default recursion limit."""

_FIRST_CHECK = 4
"""The number of activations after which an open run is executed a second time. Most runs of a test close earlier, and are
then executed again. Runs that are still open at the end of their environment are executed again at that point.
"""


class FixtureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an environment."""

    workflows: Sequence[object]
    activities: Sequence[object]
    modules: Sequence[str | ModuleType]
    real_activities: bool
    converter: Converter
    verify: Verify
    watch: Action | Literal["off"] | None
    failure_exceptions: Sequence[type[BaseException]]
    start: datetime | None
    horizon: Duration
    chooser: Chooser
    deadlock_timeout: float
    verify_on_demand: bool = False
    interceptors: tuple[Interceptor, ...] = ()
    resources: Sequence[Any] = ()
    metrics: Registry = default_registry

    def registry(self) -> EnvironmentRegistry:
        """Return a registry of the listed workflows and activities. Raise if one of them is neither."""
        return EnvironmentRegistry(self.workflows, self.activities, self.modules, self.real_activities)

    def clock(self) -> VirtualClock:
        """Return a clock that shows the start time."""
        return VirtualClock() if self.start is None else VirtualClock(as_ns(self.start))

    def evaluations(self, registry: EnvironmentRegistry) -> Callable[[str, EnvironmentErrors], Evaluations]:
        """Return a factory of evaluations for one task queue, as in production."""
        verify, watch = checked_verify(self.verify), checked_watch(self.watch, self.verify)
        if sys.getprofile() is not None:
            watch = None  # this thread is being profiled, and can have only one profile function
        exceptions = check_exceptions(self.failure_exceptions)
        nesting = NestingDepths(most=_MAX_NESTING)
        return lambda queue, errors: Evaluations(
            LaneContext(
                registry.workflow,
                RunSettings(
                    task_queue=queue,
                    namespace=NAMESPACE,
                    converter=self.converter,
                    failure_exceptions=exceptions,
                    interceptors=workflow_interceptors(self.interceptors),
                    metrics=self.metrics,
                    on_activity=registry.register_activity,
                    steps=registry.steps,
                ),
                verify=verify,
                watcher=Watcher(watch) if watch is not None else None,
                cache=StateCache(_LIMITS),
                parked=errors,
                first_check=_FIRST_CHECK,
                on_demand=self.verify_on_demand,
                nesting=nesting,
            )
        )


class Fixture:
    """The parts of an open environment: engine, clock, driver, client. Belongs to the thread that creates it."""

    def __init__(
        self,
        settings: FixtureSettings,
        runner: DaemonExecutor | None = None,
        *,
        registry: EnvironmentRegistry | None = None,
        make_driver: Callable[..., EnvironmentDriver] = EnvironmentDriver,
    ) -> None:
        loop, clock = current_loop(), settings.clock()
        registry = settings.registry() if registry is None else registry
        self.resources = Resources(settings.resources)
        self.driver = make_driver(
            clock,
            loop,
            registry,
            settings.chooser,
            settings.evaluations(registry),
            to_ns(seconds(settings.horizon, "horizon")),
            Guard(settings.deadlock_timeout),
            Equipment(
                converter=settings.converter,
                client=lambda: self.client,
                payload_limit=PAYLOAD_LIMIT,
                inbound=activity_chain(settings.interceptors),
                registry=settings.metrics,
                resources=self.resources,
            ),
        )
        connection = loop.do(
            connect_memory(namespace=NAMESPACE, identity=IDENTITY, clock=clock, policy=self.driver)
        )
        self.driver.connect(connection)
        link = EnvironmentLink(connection)
        self.session = EnvironmentSession(
            link, settings.converter, None, settings.interceptors, driver=self.driver, runner=runner
        )
        self.client = Client(self.session)
        self.resources.open()

    def close(self) -> None:
        """Close it, on its own thread. Raise `WorkflowParked` for an open run that issues other commands when it is executed a
        second time.
        """
        try:
            self.driver.close()
        finally:
            self.session.link.closed = True
            self.resources.close()
