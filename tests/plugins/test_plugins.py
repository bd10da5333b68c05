"""Plugins: they configure clients, workers and replayers, and run around a worker's life."""

from __future__ import annotations

import asyncio
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
def test_plugin_settings_match_the_arguments(config: Any, call: Any) -> None:
    assert list(config.__annotations__) == list(inspect.signature(call).parameters)


class Noting(Plugin):
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


def test_plugins_are_applied_in_order() -> None:
    """The plugins of a client also apply to its workers, before the worker's own, and once."""
    log: list[str] = []
    a, b = Noting("a", log), Noting("b", log)
    with Client.connect("local:", plugins=[a]) as client:
        assert client.identity == "a"
        with Worker(client, "q", workflows=[greets], activities=[greet], plugins=[a, b]) as worker:
            assert worker.task_queue == "q-a-b"
            assert client.execute_workflow(greets, "Ann", task_queue="q-a-b") == "hello Ann"
            log.append("works")
    assert log == ["client a", "worker a", "worker b", "in a q-a-b", "in b q-a-b", "works", "out b", "out a"]


def test_plugins_on_an_event_loop() -> None:
    log: list[str] = []

    async def main() -> str:
        async with (
            await AsyncClient.connect("local:", plugins=[Noting("a", log)]) as client,
            Worker(client, "q", workflows=[greets], activities=[greet]),
        ):
            answer: str = await client.execute_workflow(greets, "Bob", task_queue="q-a")
            return answer

    assert asyncio.run(main()) == "hello Bob"
    assert log == ["client a", "worker a", "in a q-a", "out a"]


class Loud(Interceptor):
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        class Inbound(ActivityInboundInterceptor):
            def execute_activity(self, input: ExecuteActivityInput) -> Any:
                return f"{super().execute_activity(input)}!"

        return Inbound(next)


class Marked(Converter):
    def encode(self, value: Any) -> Payload:
        made = super().encode(value)
        return Payload(made.data, made.encoding, {"mark": b"1"})


class Backwards:
    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [Payload(each.data[::-1], "binary/backwards") for each in payloads]

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [Payload(each.data[::-1]) for each in payloads]


class Desk:
    pass


@activity.defn
def at_desk() -> str:
    return type(activity.resource(Desk)).__name__


@workflow.defn
def works_at_desk() -> str:
    return at_desk()


@pytest.mark.parametrize("where", ["memory", pytest.param("server", marks=pytest.mark.server)])
def test_simple_plugin_adds_parts(where: str, request: pytest.FixtureRequest) -> None:
    life: list[str] = []

    @contextmanager
    def around() -> Iterator[Desk]:
        life.append("in")
        yield Desk()
        life.append("out")

    loud = Loud()
    plugin = SimplePlugin(
        "acme",
        converter=lambda before: Marked(),
        codec=Backwards(),
        interceptors=[loud],
        workflows=[greets, works_at_desk],
        activities=[greet, at_desk],
        failure_exceptions=[KeyError],
        run_context=around,
    )
    target = "local:"
    if where == "server":
        server: DevServer = request.getfixturevalue("quick_server")
        target = server.target
    with Client.connect(target, plugins=[plugin]) as client, Worker(client, "acme") as worker:
        assert client.execute_workflow(greets, "Cid", task_queue="acme", id="acme-1") == "hello Cid!"
        assert client.execute_workflow(works_at_desk, task_queue="acme") == "Desk!"
        history = client.get_workflow_handle("acme-1").history()
        told = worker.config()
        assert told["failure_exceptions"] == (KeyError,)
        assert isinstance(client.config()["codec"], Backwards)
        assert life == ["in"]
    assert life == ["in", "out"]
    again = Replayer(plugins=[plugin])
    assert again.replay(history).ok
    assert Replayer(**again.config()).replay(history).ok


def test_config_creates_an_equal_object() -> None:
    log: list[str] = []
    with Client.connect("local:", plugins=[Noting("a", log)]) as client:
        made = Worker(client, "q", workflows=[greets], activities=[greet])
        with Client.connect(**client.config()) as other:
            assert other.identity == "a"
            again = Worker(**{**made.config(), "client": other})
            assert again.task_queue == "q-a"
    assert log == ["client a", "worker a"]


class Forgets(Plugin):
    def configure_client(self, config: ClientConfig) -> ClientConfig:
        return None  # type: ignore[return-value]

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        return {**config, "task_que": "q"}  # type: ignore[typeddict-unknown-key]


def test_invalid_plugins_are_rejected() -> None:
    with pytest.raises(UsageError, match=r"Plugin's subclasses, not .*give an instance"):
        Client.connect("local:", plugins=[Plugin])  # type: ignore[list-item]
    with pytest.raises(UsageError, match=r"configure_client of plugin .*Forgets must return the settings"):
        Client.connect("local:", plugins=[Forgets()])
    with (
        Client.connect("local:") as client,
        pytest.raises(UsageError, match=r"Forgets made settings .* WorkerConfig: task_que"),
    ):
        Worker(client, plugins=[Forgets()])


def test_failing_run_worker_of_a_plugin() -> None:
    log: list[str] = []

    class Bad(Plugin):
        fails = True

        @contextmanager
        def _around(self) -> Iterator[None]:
            if self.fails:
                raise OSError("no room")
            yield

        def run_worker(self, worker: Worker) -> AbstractContextManager[object]:
            return self._around()

    bad = Bad()
    with Client.connect("local:") as client:
        worker = Worker(client, "q", workflows=[greets], activities=[greet], plugins=[Noting("a", log), bad])
        with pytest.raises(OSError, match="no room"):
            worker.start()
        assert log[-2:] == ["in a q-a", "out a"]
        bad.fails = False
        with worker:
            assert client.execute_workflow(greets, "Dan", task_queue="q-a") == "hello Dan"
