"""Reachability of the engine: `/ready`, `/status` and the log report when a server becomes unreachable, and when it
is back.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import until

from chaos.proxy import Proxy
from hourglass import Client, Worker
from hourglass._contract.deployments import DescribeNamespace, Namespace
from hourglass._contract.workflows import CountWorkflows
from hourglass._worker.tree.application import Application
from hourglass._worker.tree.reachability import (
    Reachability,
    ReachLimits,
    check_reachability,
    watch_reachability,
)
from hourglass._worker.tree.status import status_report
from hourglass._worker.tree.worker_metrics import worker_metrics
from hourglass.errors import (
    ConnectionFailedError,
    NamespaceNotFoundError,
    ServiceError,
    ServiceTimeoutError,
)
from hourglass.testing import DevServer, dev_server
from servers import temporal_cli
from worker.handles.virtual_loop import run as on_virtual_time

from .test_status import ask
from .world import ACTIVITIES, WORKFLOWS, ScriptedConnection, scripted, steps

PROMISED = 15.0

DEAD = ConnectionFailedError("the server at x:1 cannot be reached: refused", status="UNAVAILABLE")
LATE = ServiceTimeoutError("the server at x:1 did not answer in time", status="DEADLINE_EXCEEDED")
GONE = NamespaceNotFoundError("the server at x:1 has no namespace 'default'", status="NOT_FOUND")


def refusal(status: str) -> ServiceError:
    return ServiceError(f"refused ({status})", status=status)


def reachable(app: Application) -> float:
    (family,) = [each for each in worker_metrics(app) if each.name == "hourglass_engine_reachable"]
    return family.samples[0].value


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    ours = ("the engine is not available", "the engine is available again")
    return [
        (each.levelname, each.getMessage())
        for each in caplog.records
        if each.getMessage().startswith(ours) and each.levelno >= logging.INFO
    ]


def test_reach_limits_bound_the_detection_time() -> None:
    """A loss shows within the interval and the limit of one answer, even where both are used up to the end."""
    limits = ReachLimits()
    assert limits.interval + 2 * limits.answer < PROMISED


@pytest.mark.parametrize("trouble", [DEAD, LATE, GONE, None], ids=["dead", "late", "gone", "silent"])
@pytest.mark.parametrize("after", [0.0, 1.0, 2.9, 4.0])
def test_loss_and_return_are_detected_in_time(trouble: ServiceError | None, after: float) -> None:
    """Whenever it is lost, and even if it says nothing at all, by a connection that keeps to no limit. On virtual time."""
    lost = asyncio.Event()

    class Link:
        async def call(self, request: Any) -> Any:
            if lost.is_set():
                if trouble is None:
                    await asyncio.Event().wait()
                else:
                    raise trouble
            return Namespace("default")

    app: Any = SimpleNamespace(
        raw=Link(),
        tables=SimpleNamespace(registrations={}),
        reach=ReachLimits(),
        reachability=Reachability(),
    )

    async def body() -> None:
        watch = asyncio.create_task(watch_reachability(app))
        await asyncio.sleep(after)  # virtual time
        lost.set()
        await asyncio.sleep(PROMISED)  # virtual time
        assert app.reachability.outage is not None
        lost.clear()
        await asyncio.sleep(PROMISED)  # virtual time
        assert app.reachability.outage is None
        watch.cancel()

    on_virtual_time(body)


def test_loss_and_return_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """WARNING with the reason when it is lost, INFO with the time when it is back, nothing in between."""
    caplog.set_level(logging.DEBUG)
    reach = Reachability()
    reach.answered(0.0)
    for now, error in enumerate((DEAD, LATE, DEAD), 1):
        assert reach.refused(error, float(now))
    assert reach.outage is not None
    assert reach.outage.since == 1.0
    reach.answered(31.0)
    reach.answered(32.0)
    assert reach.outage is None
    assert lines(caplog) == [
        (
            "WARNING",
            f"the engine is not available: {DEAD}. This worker receives no tasks until the engine is available again",
        ),
        ("INFO", "the engine is available again after 30 s"),
    ]


def test_change_of_problem_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A server that is back without our namespace is another loss than a server that is not there."""
    reach = Reachability()
    reach.answered(0.0)
    reach.refused(DEAD, 1.0)
    reach.refused(GONE, 2.0)
    assert [text for _, text in lines(caplog)] == [
        f"the engine is not available: {each}. This worker receives no tasks until the engine is available again"
        for each in (DEAD, GONE)
    ]


@pytest.mark.parametrize("status", ["UNIMPLEMENTED", "PERMISSION_DENIED"])
def test_unsupported_query_counts_as_reachable_if_never_answered(status: str) -> None:
    """An embedded engine, or a key that may only work; but a key that was allowed and is no longer was taken away."""
    reach = Reachability()
    assert not reach.refused(refusal(status), 0.0)
    assert reach.outage is None
    reach.answered(1.0)
    assert reach.refused(refusal(status), 2.0)
    assert reach.outage is not None


@pytest.mark.parametrize("status", ["UNAUTHENTICATED", "INTERNAL", "UNKNOWN", "FAILED_PRECONDITION"])
def test_rejection_is_an_outage(status: str) -> None:
    """Any error from the server instead of an answer counts as an outage."""
    reach = Reachability()
    assert reach.refused(refusal(status), 0.0)
    assert reach.outage is not None


def test_busy_server_counts_as_answering() -> None:
    """Too many requests: it is there."""
    reach = Reachability()
    reach.refused(DEAD, 0.0)
    assert reach.refused(refusal("RESOURCE_EXHAUSTED"), 1.0)
    assert reach.outage is None


def test_busy_server_without_query_support_is_not_lost() -> None:
    """A busy server, such as a file on a full disk, does not reveal whether it supports the query; a later
    `UNIMPLEMENTED` ends the outage.
    """
    reach = Reachability()
    assert reach.refused(refusal("RESOURCE_EXHAUSTED"), 0.0)
    assert not reach.refused(refusal("UNIMPLEMENTED"), 1.0)
    assert reach.outage is None


def test_foreign_exception_is_named_by_its_kind_only() -> None:
    """An exception of unknown origin may carry secrets."""
    reach = Reachability()
    reach.refused(RuntimeError("sesame"), 0.0)
    assert reach.outage is not None
    assert "sesame" not in reach.outage.reason
    assert "RuntimeError" in reach.outage.reason


async def test_readiness_follows_reachability(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the handle's own connection; the status names the reason, and forgets it when there is an answer."""
    outcome: list[BaseException | None] = [None]
    asked: list[Any] = []

    async def call(connection: ScriptedConnection, request: Any) -> Any:
        asked.append(request)
        if outcome[0] is not None:
            raise outcome[0]
        return Namespace("default")

    monkeypatch.setattr(ScriptedConnection, "call", call)

    async with scripted() as world:
        assert await check_reachability(world.app)
        assert status_report(world.app, "running")["reasons"] == []
        outcome[0] = DEAD
        assert await check_reachability(world.app)
        report = status_report(world.app, "running")
        assert (report["ready"], report["reasons"]) == (False, [str(DEAD)])
        assert reachable(world.app) == 0.0
        outcome[0] = None
        assert await check_reachability(world.app)
        assert status_report(world.app, "running")["ready"] is True
        assert reachable(world.app) == 1.0
    assert all(isinstance(each, DescribeNamespace | CountWorkflows) for each in asked)


async def test_engine_without_query_support_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch ends when the engine does not implement the query."""

    async def call(connection: ScriptedConnection, request: Any) -> Any:
        raise refusal("UNIMPLEMENTED")

    monkeypatch.setattr(ScriptedConnection, "call", call)

    async with scripted() as world:
        await watch_reachability(world.app)
        assert world.app.reachability.outage is None


async def test_connection_replaced_during_its_query_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither an answer nor an error over it counts."""
    outcome: list[BaseException | None] = [DEAD, None]

    async with scripted() as world:

        async def call(connection: ScriptedConnection, request: Any) -> Any:
            world.app.tables.registrations.clear()
            error = outcome.pop(0)
            if error is not None:
                raise error
            return Namespace("default")

        kept = dict(world.app.tables.registrations)
        world.app.reachability = Reachability()
        monkeypatch.setattr(ScriptedConnection, "call", call)
        for _ in range(2):
            assert await check_reachability(world.app)
            assert world.app.reachability.outage is None
            assert not world.app.reachability._has_answered
            world.app.tables.registrations.update(kept)
        assert outcome == []


def test_embedded_engine_is_not_queried() -> None:
    """It lives in this process; its file has its own troubles."""
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=WORKFLOWS, activities=ACTIVITIES) as worker,
    ):

        async def once() -> bool:
            return await check_reachability(worker._app)

        assert client._portal.call(once()) is False
        assert worker._report()["reasons"] == []


# --- on a real server -------------------------------------------------------------------------------------------------


@contextmanager
def worker_at(target: str, namespace: str = "default") -> Iterator[Worker]:
    with (
        Client.connect(target, namespace=namespace) as client,
        Worker(
            client,
            uuid.uuid4().hex,
            workflows=WORKFLOWS,
            activities=ACTIVITIES,
            status_address="127.0.0.1:0",
            graceful_shutdown_timeout=0.1,
        ) as worker,
    ):
        yield worker


def reasons(worker: Worker) -> list[str]:
    code, body = ask(worker, "/ready")
    found = json.loads(body)
    assert found["ready"] is (code == 200)
    told = found.get("reasons", [])
    assert bool(told) is (code == 503)
    return list(told)


def works(worker: Worker, client: Client) -> bool:
    return client.execute_workflow(steps, 1, id=uuid.uuid4().hex, task_queue=worker.task_queue) == 4


@pytest.mark.server
def test_server_restart_is_detected(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Killed, it is missed; started again on the same port it is found, and the worker works."""
    caplog.set_level(logging.INFO, "hourglass.worker")
    with dev_server(db_filename=tmp_path / "server.db") as server, worker_at(server.target) as worker:
        assert reasons(worker) == []
        server.kill()
        until(lambda: reasons(worker) != [])
        assert server.target in reasons(worker)[0]
        report = json.loads(ask(worker, "/status")[1])
        assert (report["ready"], report["alive"], report["reasons"]) == (False, True, reasons(worker))
        assert [level for level, _ in lines(caplog)] == ["WARNING"]
        server.start()
        until(lambda: reasons(worker) == [])
        assert [level for level, _ in lines(caplog)] == ["WARNING", "INFO"]
        with Client.connect(server.target) as client:
            assert works(worker, client)


@pytest.mark.server
def test_silent_link_is_detected(quick_server: DevServer, caplog: pytest.LogCaptureFixture) -> None:
    """A connection that is open but transfers nothing is reported as an outage, until data arrives again."""
    caplog.set_level(logging.INFO, "hourglass.worker")
    with Proxy(quick_server.target) as proxy, worker_at(proxy.target) as worker:
        proxy.swallow()
        try:
            until(lambda: reasons(worker) != [])
        finally:
            proxy.let_through()
        until(lambda: reasons(worker) == [])
    assert [level for level, _ in lines(caplog)] == ["WARNING", "INFO"]


@pytest.mark.server
def test_deleted_namespace_is_detected(quick_server: DevServer, caplog: pytest.LogCaptureFixture) -> None:
    """The server is there, and has nothing for us: the namespace is named in what `/ready` says."""
    caplog.set_level(logging.INFO, "hourglass.worker")
    namespace = f"short-lived-{uuid.uuid4().hex[:8]}"

    def operator(*arguments: str) -> None:
        command = [temporal_cli(), "operator", "namespace", *arguments, "--address", quick_server.target]
        subprocess.run(command, check=True, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)

    operator("create", "-n", namespace)
    with worker_at(quick_server.target, namespace) as worker:
        operator("delete", "-n", namespace, "--yes")
        until(lambda: reasons(worker) != [])
        assert namespace in reasons(worker)[0]
        operator("create", "-n", namespace)
        until(lambda: reasons(worker) == [])
    assert [level for level, _ in lines(caplog)] == ["WARNING", "INFO"]


@pytest.mark.server
def test_reachability_watch_survives_a_kill(quick_server: DevServer) -> None:
    """The watchdog that asks is restarted like every other process, and its questions do not pile up."""
    with worker_at(quick_server.target) as worker:
        path = next(each for each in worker.tree.paths() if each.endswith("/Watchdog"))
        worker.tree.kill(path)

        async def asking() -> int:
            names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
            return names.count("watch_reachability")

        until(lambda: path in worker.tree.paths())
        until(lambda: worker._portal.call(asking()) == 1)
