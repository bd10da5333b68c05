"""Plugins: they configure clients, workers and replayers, and run around a worker's life."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from hourglass import activity, workflow
from hourglass.client import AsyncClient, Client
from hourglass.converter import Converter, Payload
from hourglass.errors import UsageError
from hourglass.interceptors import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor
from hourglass.plugins import ClientConfig, Plugin, ReplayerConfig, SimplePlugin, WorkerConfig
from hourglass.replay import Replayer
from hourglass.testing import DevServer
from hourglass.worker import Worker


@activity.defn
def greet(name: str) -> str:
    return f"hello {name}"


@workflow.defn
def greets(name: str) -> str:
    return greet(name)


@pytest.mark.parametrize(
    ("config", "call"),
    [
        (ClientConfig, Client.connect),
        (ClientConfig, AsyncClient.connect),
        (WorkerConfig, Worker),
        (ReplayerConfig, Replayer),
    ],
)
def test_plugin_config_keys_match_the_parameters_of_the_call(config: Any, call: Any) -> None:
    assert list(config.__annotations__) == list(inspect.signature(call).parameters)


class RecordingPlugin(Plugin):
    """Records its calls, and appends its name to the identity and the task queue."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name = name
        self.log = log

    @property
    def name(self) -> str:
        return self._name

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        self.log.append(f"client {self.name}")
        config["identity"] = f"{config['identity'] or ''}{self.name}"
        return config

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        self.log.append(f"worker {self.name}")
        return {**config, "task_queue": f"{config['task_queue']}-{self.name}"}

    def run_worker(self, worker: Worker) -> AbstractContextManager[object]:
        return self._around(worker)

    @contextmanager
    def _around(self, worker: Worker) -> Iterator[None]:
        self.log.append(f"in {self.name} {worker.task_queue}")
        try:
            yield
        finally:
            self.log.append(f"out {self.name}")


def test_client_and_worker_plugins_are_applied_in_order() -> None:
    """The plugins of a client also apply to its workers, before the worker's own, and once."""
    log: list[str] = []
    a, b = RecordingPlugin("a", log), RecordingPlugin("b", log)
    with Client.connect("local:", plugins=[a]) as client:
        assert client.identity == "a"
        with Worker(client, "q", workflows=[greets], activities=[greet], plugins=[a, b]) as worker:
            assert worker.task_queue == "q-a-b"
            assert client.execute_workflow(greets, "Ann", task_queue="q-a-b") == "hello Ann"
            log.append("works")
    assert log == ["client a", "worker a", "worker b", "in a q-a-b", "in b q-a-b", "works", "out b", "out a"]


async def test_plugins_apply_to_async_clients_and_workers() -> None:
    log: list[str] = []

    async with (
        await AsyncClient.connect("local:", plugins=[RecordingPlugin("a", log)]) as client,
        Worker(client, "q", workflows=[greets], activities=[greet]),
    ):
        result = await client.execute_workflow(greets, "Bob", task_queue="q-a")
    assert result == "hello Bob"
    assert log == ["client a", "worker a", "in a q-a", "out a"]


class ExclamationInterceptor(Interceptor):
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        class Inbound(ActivityInboundInterceptor):
            def execute_activity(self, input: ExecuteActivityInput) -> Any:
                return f"{super().execute_activity(input)}!"

        return Inbound(next)


class MarkingConverter(Converter):
    def encode(self, value: Any) -> Payload:
        worker = super().encode(value)
        return Payload(worker.data, worker.encoding, {"mark": b"1"})


class ReversingCodec:
    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [Payload(each.data[::-1], "binary/backwards") for each in payloads]

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [Payload(each.data[::-1]) for each in payloads]


class DeskResource:
    pass


@activity.defn
def at_desk() -> str:
    return type(activity.resource(DeskResource)).__name__


@workflow.defn
def works_at_desk() -> str:
    return at_desk()


@pytest.mark.parametrize("engine", ["memory", pytest.param("server", marks=pytest.mark.server)])
def test_simple_plugin_adds_all_its_parts_to_client_worker_and_replayer(
    engine: str, request: pytest.FixtureRequest
) -> None:
    lifecycle: list[str] = []

    @contextmanager
    def run_context() -> Iterator[DeskResource]:
        lifecycle.append("in")
        yield DeskResource()
        lifecycle.append("out")

    interceptor = ExclamationInterceptor()
    plugin = SimplePlugin(
        "acme",
        converter=lambda before: MarkingConverter(),
        codec=ReversingCodec(),
        interceptors=[interceptor],
        workflows=[greets, works_at_desk],
        activities=[greet, at_desk],
        failure_exceptions=[KeyError],
        run_context=run_context,
    )
    target = "local:"
    if engine == "server":
        server: DevServer = request.getfixturevalue("quick_server")
        target = server.target
    with Client.connect(target, plugins=[plugin]) as client, Worker(client, "acme") as worker:
        assert client.execute_workflow(greets, "Cid", task_queue="acme", id="acme-1") == "hello Cid!"
        assert client.execute_workflow(works_at_desk, task_queue="acme") == "DeskResource!"
        history = client.get_workflow_handle("acme-1").history()
        config = worker.config()
        assert config["failure_exceptions"] == (KeyError,)
        assert isinstance(client.config()["codec"], ReversingCodec)
        assert lifecycle == ["in"]
    assert lifecycle == ["in", "out"]
    recreated = Replayer(plugins=[plugin])
    assert recreated.replay(history).ok
    assert Replayer(**recreated.config()).replay(history).ok


def test_config_of_client_and_worker_recreates_them_without_applying_plugins_again() -> None:
    log: list[str] = []
    with Client.connect("local:", plugins=[RecordingPlugin("a", log)]) as client:
        worker = Worker(client, "q", workflows=[greets], activities=[greet])
        with Client.connect(**client.config()) as other:
            assert other.identity == "a"
            recreated = Worker(**{**worker.config(), "client": other})
            assert recreated.task_queue == "q-a"
    assert log == ["client a", "worker a"]


class FaultyPlugin(Plugin):
    def configure_client(self, config: ClientConfig) -> ClientConfig:
        return None  # type: ignore[return-value]

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        return {**config, "task_que": "q"}  # type: ignore[typeddict-unknown-key]


def test_invalid_plugins_are_rejected() -> None:
    with pytest.raises(UsageError, match=r"Plugin's subclasses, not .*pass an instance"):
        Client.connect("local:", plugins=[Plugin])  # type: ignore[list-item]
    with pytest.raises(
        UsageError, match=r"configure_client of plugin .*FaultyPlugin must return the settings"
    ):
        Client.connect("local:", plugins=[FaultyPlugin()])
    with (
        Client.connect("local:") as client,
        pytest.raises(
            UsageError, match=r"FaultyPlugin returned settings that WorkerConfig does not have: task_que"
        ),
    ):
        Worker(client, plugins=[FaultyPlugin()])


def test_failing_run_worker_of_a_plugin_exits_earlier_plugins_and_allows_a_restart() -> None:
    log: list[str] = []

    class FailingPlugin(Plugin):
        fails = True

        @contextmanager
        def _around(self) -> Iterator[None]:
            if self.fails:
                raise OSError("no room")
            yield

        def run_worker(self, worker: Worker) -> AbstractContextManager[object]:
            return self._around()

    failing_plugin = FailingPlugin()
    with Client.connect("local:") as client:
        worker = Worker(
            client,
            "q",
            workflows=[greets],
            activities=[greet],
            plugins=[RecordingPlugin("a", log), failing_plugin],
        )
        with pytest.raises(OSError, match="no room"):
            worker.start()
        assert log[-2:] == ["in a q-a", "out a"]
        failing_plugin.fails = False
        with worker:
            assert client.execute_workflow(greets, "Dan", task_queue="q-a") == "hello Dan"
