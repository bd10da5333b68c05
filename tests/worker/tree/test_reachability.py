"""Reachability of the engine: `/ready`, `/status` and the log report when a server becomes unreachable, and when it
responds again.
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

from .test_status import fetch
from .world import ACTIVITIES, WORKFLOWS, ScriptedConnection, scripted, steps

DETECTION_TIME = 15.0

DEAD = ConnectionFailedError("the server at x:1 cannot be reached: refused", status="UNAVAILABLE")
LATE = ServiceTimeoutError("the server at x:1 did not answer in time", status="DEADLINE_EXCEEDED")
GONE = NamespaceNotFoundError("the server at x:1 has no namespace 'default'", status="NOT_FOUND")


def error_with_status(status: str) -> ServiceError:
    return ServiceError(f"refused ({status})", status=status)


def reachable(app: Application) -> float:
    (family,) = [family for family in worker_metrics(app) if family.name == "hourglass_engine_reachable"]
    return family.samples[0].value


def reachability_log(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    ours = ("the engine is not available", "the engine is available again")
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.getMessage().startswith(ours) and record.levelno >= logging.INFO
    ]


def test_reachability_limits_bound_the_detection_time() -> None:
    limits = ReachLimits()
    assert limits.interval + 2 * limits.answer < DETECTION_TIME


@pytest.mark.parametrize("trouble", [DEAD, LATE, GONE, None], ids=["dead", "late", "gone", "silent"])
@pytest.mark.parametrize("after", [0.0, 1.0, 2.9, 4.0])
def test_outage_and_recovery_are_detected_within_fifteen_seconds(
    trouble: ServiceError | None, after: float
) -> None:
    """Also if the connection raises no error and never responds."""
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
        await asyncio.sleep(DETECTION_TIME)  # virtual time
        assert app.reachability.outage is not None
        lost.clear()
        await asyncio.sleep(DETECTION_TIME)  # virtual time
        assert app.reachability.outage is None
        watch.cancel()

    on_virtual_time(body)


def test_outage_and_recovery_are_each_logged_once(caplog: pytest.LogCaptureFixture) -> None:
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
    assert reachability_log(caplog) == [
        (
            "WARNING",
            f"the engine is not available: {DEAD}. This worker receives no tasks until the engine is available again",
        ),
        ("INFO", "the engine is available again after 30 s"),
    ]


def test_different_reason_of_an_outage_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    reach = Reachability()
    reach.answered(0.0)
    reach.refused(DEAD, 1.0)
    reach.refused(GONE, 2.0)
    assert [text for _, text in reachability_log(caplog)] == [
        f"the engine is not available: {item}. This worker receives no tasks until the engine is available again"
        for item in (DEAD, GONE)
    ]


@pytest.mark.parametrize("status", ["UNIMPLEMENTED", "PERMISSION_DENIED"])
def test_unsupported_or_forbidden_query_is_no_outage_unless_it_worked_before(status: str) -> None:
    reach = Reachability()
    assert not reach.refused(error_with_status(status), 0.0)
    assert reach.outage is None
    reach.answered(1.0)
    assert reach.refused(error_with_status(status), 2.0)
    assert reach.outage is not None


@pytest.mark.parametrize("status", ["UNAUTHENTICATED", "INTERNAL", "UNKNOWN", "FAILED_PRECONDITION"])
def test_any_other_error_response_is_an_outage(status: str) -> None:
    reach = Reachability()
    assert reach.refused(error_with_status(status), 0.0)
    assert reach.outage is not None


def test_resource_exhausted_response_ends_an_outage() -> None:
    reach = Reachability()
    reach.refused(DEAD, 0.0)
    assert reach.refused(error_with_status("RESOURCE_EXHAUSTED"), 1.0)
    assert reach.outage is None


def test_unimplemented_query_after_resource_exhausted_is_no_outage() -> None:
    reach = Reachability()
    assert reach.refused(error_with_status("RESOURCE_EXHAUSTED"), 0.0)
    assert not reach.refused(error_with_status("UNIMPLEMENTED"), 1.0)
    assert reach.outage is None


def test_outage_reason_of_an_unknown_exception_is_its_type_only() -> None:
    """Its message may contain secrets."""
    reach = Reachability()
    reach.refused(RuntimeError("sesame"), 0.0)
    assert reach.outage is not None
    assert "sesame" not in reach.outage.reason
    assert "RuntimeError" in reach.outage.reason


async def test_worker_readiness_follows_reachability(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert all(isinstance(item, DescribeNamespace | CountWorkflows) for item in asked)


async def test_reachability_watch_ends_if_the_engine_does_not_support_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def call(connection: ScriptedConnection, request: Any) -> Any:
        raise error_with_status("UNIMPLEMENTED")

    monkeypatch.setattr(ScriptedConnection, "call", call)

    async with scripted() as world:
        await watch_reachability(world.app)
        assert world.app.reachability.outage is None


async def test_response_over_a_replaced_connection_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_reachability_of_an_embedded_engine_is_not_checked() -> None:
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
    code, body = fetch(worker, "/ready")
    report = json.loads(body)
    assert report["ready"] is (code == 200)
    listed = report.get("reasons", [])
    assert bool(listed) is (code == 503)
    return list(listed)


def works(worker: Worker, client: Client) -> bool:
    return client.execute_workflow(steps, 1, id=uuid.uuid4().hex, task_queue=worker.task_queue) == 4


@pytest.mark.server
def test_worker_reports_and_recovers_from_a_server_restart(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hourglass.worker")
    with dev_server(db_filename=tmp_path / "server.db") as server, worker_at(server.target) as worker:
        assert reasons(worker) == []
        server.kill()
        until(lambda: reasons(worker) != [])
        assert server.target in reasons(worker)[0]
        report = json.loads(fetch(worker, "/status")[1])
        assert (report["ready"], report["alive"], report["reasons"]) == (False, True, reasons(worker))
        assert [level for level, _ in reachability_log(caplog)] == ["WARNING"]
        server.start()
        until(lambda: reasons(worker) == [])
        assert [level for level, _ in reachability_log(caplog)] == ["WARNING", "INFO"]
        with Client.connect(server.target) as client:
            assert works(worker, client)


@pytest.mark.server
def test_worker_reports_a_connection_that_transfers_no_data(
    quick_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hourglass.worker")
    with Proxy(quick_server.target) as proxy, worker_at(proxy.target) as worker:
        proxy.swallow()
        try:
            until(lambda: reasons(worker) != [])
        finally:
            proxy.let_through()
        until(lambda: reasons(worker) == [])
    assert [level for level, _ in reachability_log(caplog)] == ["WARNING", "INFO"]


@pytest.mark.server
def test_worker_reports_a_deleted_namespace(
    quick_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert [level for level, _ in reachability_log(caplog)] == ["WARNING", "INFO"]


@pytest.mark.server
def test_single_reachability_watch_runs_after_the_watchdog_is_killed(quick_server: DevServer) -> None:
    with worker_at(quick_server.target) as worker:
        path = next(path for path in worker.tree.paths() if path.endswith("/Watchdog"))
        worker.tree.kill(path)

        async def asking() -> int:
            names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
            return names.count("watch_reachability")

        until(lambda: path in worker.tree.paths())
        until(lambda: worker._portal.call(asking()) == 1)
