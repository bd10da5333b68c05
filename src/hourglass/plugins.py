"""Plugins: one object that configures the clients, workers and replayers of a program.

    class Acme(Plugin):
        def configure_client(self, config: ClientConfig) -> ClientConfig:
            config["codec"] = AcmeCodec()
            return config

    Client.connect("local:", plugins=[Acme()])

A library provides a plugin to its users instead of instructions for each option. `SimplePlugin` is a plugin that only adds
options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from hourglass.activity._definition import ActivitySource
from hourglass.client._interception import Interceptor
from hourglass.client._plugins import ClientConfig, Plugin, ReplayerConfig, WorkerConfig
from hourglass.converter import Codec, Converter
from hourglass.workflow._definitions import WorkflowSource

if TYPE_CHECKING:
    from hourglass.worker import Worker

__all__ = ["ClientConfig", "Plugin", "ReplayerConfig", "SimplePlugin", "WorkerConfig"]

T = TypeVar("T")


class SimplePlugin(Plugin):
    """A plugin that adds options: interceptors, workflows, activities, resources, a converter, a codec, a
    context manager around a worker.

    Lists are appended to the existing lists. A converter or codec replaces the client's. Alternatively, pass a function that
    receives the previous converter or codec and returns the new one. `run_context` is called when a worker starts, and
    returns a context manager.
    """

    def __init__(
        self,
        name: str,
        *,
        converter: Converter | Callable[[Converter], Converter] | None = None,
        codec: Codec | Callable[[Codec | None], Codec | None] | None = None,
        interceptors: Sequence[Interceptor] = (),
        workflows: Sequence[WorkflowSource | type] = (),
        activities: Sequence[ActivitySource] = (),
        failure_exceptions: Sequence[type[BaseException]] = (),
        resources: Sequence[Any] = (),
        run_context: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._name = name
        self._converter = converter
        self._codec = codec
        self._interceptors = tuple(interceptors)
        self._workflows = tuple(workflows)
        self._activities = tuple(activities)
        self._failure_exceptions = tuple(failure_exceptions)
        self._resources = tuple(resources)
        self._run_context = run_context

    @property
    def name(self) -> str:
        """The name of the plugin."""
        return self._name

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        """Add this plugin's options to a client's configuration."""
        config["converter"] = _replaced(config["converter"], self._converter, Converter)
        config["codec"] = _replaced(config["codec"], self._codec, Codec)
        config["interceptors"] = (*config["interceptors"], *self._interceptors)
        return config

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add this plugin's options to a worker's configuration. Interceptors that the client already has are not added
        twice."""
        existing = {*config["client"]._session.interceptors, *config["interceptors"]}
        additional = [interceptor for interceptor in self._interceptors if interceptor not in existing]
        config["interceptors"] = (*config["interceptors"], *additional)
        config["workflows"] = (*config["workflows"], *self._workflows)
        config["activities"] = (*config["activities"], *self._activities)
        config["failure_exceptions"] = (*config["failure_exceptions"], *self._failure_exceptions)
        config["resources"] = (*config["resources"], *self._resources)
        return config

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """Add this plugin's options to a replayer's configuration."""
        config["converter"] = _replaced(config["converter"], self._converter, Converter)
        config["codec"] = _replaced(config["codec"], self._codec, Codec)
        config["interceptors"] = (*config["interceptors"], *self._interceptors)
        config["workflows"] = (*config["workflows"], *self._workflows)
        config["failure_exceptions"] = (*config["failure_exceptions"], *self._failure_exceptions)
        return config

    def run_worker(self, worker: Worker) -> AbstractContextManager[object]:
        """Call `run_context` and return its context manager."""
        return self._run_context()


def _replaced(previous: T, replacement: Any, kind: Any) -> T:
    if replacement is None:
        return previous
    is_instance = isinstance(replacement, kind) if kind is Converter else hasattr(replacement, "encode")
    result: T = replacement if is_instance else replacement(previous)
    return result
