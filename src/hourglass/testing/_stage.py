"""The fixture: what an environment is made of, put together: engine, clock, driver, attempts, a client.

A stage belongs to the thread that makes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType
from typing import Literal

from hourglass._embedded import VirtualClock, connect_memory
from hourglass._embedded.clock import to_ns
from hourglass._engine.context import RunSettings
from hourglass._engine.definition import check_exceptions
from hourglass._engine.options import Duration, seconds
from hourglass._runtime.cache import CacheLimits
from hourglass._runtime.evaluation import Evaluations, Verify
from hourglass._runtime.plan import checked_verify, checked_watch
from hourglass._runtime.watcher import Action, Watcher
from hourglass.client import Client
from hourglass.client._interception import Interceptor, activity_chain, workflow_interceptors
from hourglass.converter import Converter
from hourglass.metrics import Registry, default_registry
from hourglass.testing._attempts import Attempts
from hourglass.testing._bench import current_loop
from hourglass.testing._calls import as_ns
from hourglass.testing._cast import Cast
from hourglass.testing._choosing import Chooser
from hourglass.testing._driver import Driver, DriverPolicy
from hourglass.testing._guard import Guard
from hourglass.testing._session import EnvironmentLink, EnvironmentSession, Runner
from hourglass.testing._trouble import Troubles

IDENTITY = "test"

_LIMITS = CacheLimits(live=1_000_000, states=1_000_000)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What an environment was asked to be."""

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
    metrics: Registry = default_registry

    def cast(self) -> Cast:
        """Those who play; refuses what is no workflow and no activity."""
        return Cast(self.workflows, self.activities, self.modules, self.real_activities)

    def clock(self) -> VirtualClock:
        """A clock that stands at the start."""
        return VirtualClock() if self.start is None else VirtualClock(as_ns(self.start))

    def evaluations(self, cast: Cast, namespace: str) -> Callable[[str, Troubles], Evaluations]:
        """How the runs of a queue are evaluated: as in production."""
        verify, watch = checked_verify(self.verify), checked_watch(self.watch, self.verify)
        if sys.getprofile() is not None:
            watch = None  # this thread is being profiled, and has one place for that
        exceptions = check_exceptions(self.failure_exceptions)
        return lambda queue, troubles: Evaluations(
            cast.workflow,
            RunSettings(
                task_queue=queue,
                namespace=namespace,
                converter=self.converter,
                failure_exceptions=exceptions,
                interceptors=workflow_interceptors(self.interceptors),
                metrics=self.metrics,
            ),
            limits=_LIMITS,
            verify=verify,
            watcher=Watcher(watch) if watch is not None else None,
            parked=troubles,
            on_demand=self.verify_on_demand,
        )


class Stage:
    """An open environment."""

    def __init__(
        self,
        setting: Setting,
        runner: Runner | None = None,
        *,
        cast: Cast | None = None,
        make_driver: Callable[..., Driver] = Driver,
    ) -> None:
        loop, clock = current_loop(), setting.clock()
        cast = setting.cast() if cast is None else cast
        policy = DriverPolicy()
        connection = loop.do(connect_memory(identity=IDENTITY, clock=clock, policy=policy))
        self.driver = make_driver(
            connection,
            clock,
            loop,
            cast,
            setting.chooser,
            setting.evaluations(cast, connection.namespace),
            to_ns(seconds(setting.horizon, "horizon")),
            Guard(setting.deadlock_timeout),
            policy,
        )
        link = EnvironmentLink(connection)
        self.session = EnvironmentSession(
            link, setting.converter, None, setting.interceptors, driver=self.driver, runner=runner
        )
        self.client = Client(self.session)
        self.attempts = Attempts(
            self.driver,
            setting.converter,
            lambda: self.client,
            inbound=activity_chain(setting.interceptors),
            registry=setting.metrics,
        )
        self.driver.performer = self.attempts

    def close(self) -> None:
        """End it, in its own thread."""
        self.driver.close()
        self.session.link.closed = True
