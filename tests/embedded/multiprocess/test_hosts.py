"""Hosts of one file: which owns it, and which work for the owner. Two hosts on one event loop behave like two
processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.polled import Polled
from tests.specs import made

from hourglass._contract import activities as ac
from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.handle import ActivityOk, HandleBroken, HandleConfig, Shutdown
from hourglass._embedded.clock import Bell
from hourglass._embedded.multiprocess import calls, following, unix_socket, wire, worker_peer
from hourglass._embedded.multiprocess.calls import was_carried_out
from hourglass._embedded.multiprocess.connection import FileConnection, connect_file
from hourglass._embedded.multiprocess.ownership import FileLock
from hourglass._embedded.multiprocess.remote import ForeignProtocol
from hourglass._embedded.runs.run import AttemptToken
from hourglass._embedded.store.sqlite.store import SQLITE
from hourglass._evaluator.commands import CompleteRun, ScheduleActivity, Succeeded
from hourglass._evaluator.events import ActivityFailed, RunEvicted, is_eviction
from hourglass._evaluator.specs import ActivitySpec
from hourglass.converter import Payload
from hourglass.errors import (
    InternalError,
    NamespaceNotFoundError,
    ServiceError,
    ServiceTimeoutError,
    StorageError,
)

from .hosts import hosts, look_every
from .owner_server import serve


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await body()

    asyncio.run(limited())


def config(queue: str = "q") -> HandleConfig:
    return HandleConfig(task_queue=queue, identity="me")


def start(workflow_id: str, queue: str = "q") -> wf.StartWorkflow:
    return made(
        wf.StartWorkflow,
        workflow_id=workflow_id,
        workflow_type="t",
        task_queue=queue,
        request_id=f"request of {workflow_id}",
    )


async def until(happened: Callable[[], bool]) -> None:
    """Poll a condition that is visible only in the file system."""
    while not happened():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def poll(handle: Any) -> str:
    return (await handle.poll_activation()).run_id


def activity_fields(seq: int = 1) -> dict[str, Any]:
    spec = ActivitySpec(task_queue="q", start_to_close_timeout=60.0)
    return {"seq": seq, "activity_id": str(seq), "activity_type": "a", "spec": spec}


async def test_second_process_works_for_the_owner_and_takes_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hourglass")
    async with hosts(tmp_path / "a.db", 3) as (host_a, host_b, client):
        handle = await host_a.open_handle(config())
        second = Polled(await host_b.open_handle(config()))
        assert (host_a.status().role, client.status().role) == ("owner", "client")
        assert host_b.status().role.startswith("working for process ")
        assert "receives its tasks from process" in caplog.text
        waiting = asyncio.create_task(poll(second))
        started = await client.calls.call(start("w"))
        watching = asyncio.create_task(client.calls.call(wf.WaitForClose(workflow_id="w")))
        assert await waiting == started.run_id
        handle.initiate_shutdown()
        await handle.finalize()
        with pytest.raises(HandleBroken):
            await poll(second)
        third = Polled(await host_b.open_handle(config()))
        assert await poll(third) == started.run_id, "its task is offered again"
        assert (host_a.status().role, host_b.status().role) == ("client", "owner")
        assert "took over" in caplog.text
        await host_a.calls.call(wf.TerminateWorkflow(workflow_id="w", reason="enough"))
        assert await watching == wf.RunTerminated("enough")


async def test_worker_of_a_queue_that_the_owner_does_not_serve(tmp_path: Path) -> None:
    async with hosts(tmp_path / "a.db", 2) as (host_a, host_b):
        await host_a.open_handle(config("q"))
        second = Polled(await host_b.open_handle(config("other")))
        assert host_b.status().role.startswith("working for process ")
        started = await host_a.calls.call(start("w", "other"))
        assert await poll(second) == started.run_id
        await second.complete_activation(Succeeded(started.run_id, (CompleteRun(Payload(b"1")),)))
        assert isinstance(await host_a.calls.call(wf.WaitForClose(workflow_id="w")), wf.RunCompleted)
        assert (await second.poll_activation()).events[0] == RunEvicted(
            "WORKFLOW_EXECUTION_ENDING", "the run has closed"
        )
        await second.finalize()


async def test_silent_process_loses_its_tasks_to_other_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process keeps its connection; it is notified when it runs again."""

    def speak_every(seconds: float) -> None:
        monkeypatch.setattr(wire, "REPORT_INTERVAL", seconds)
        monkeypatch.setattr(wire, "IDLE_REPORT_INTERVAL", seconds)

    async with hosts(tmp_path / "a.db", 3) as (host_a, host_b, host_c):
        await host_a.open_handle(config("the owner's"))
        speak_every(60.0)
        silent = Polled(await host_b.open_handle(config()))
        started = await host_a.calls.call(start("w"))
        assert await poll(silent) == started.run_id
        speak_every(0.001)
        handle_c = Polled(await host_c.open_handle(config()))
        look_every(0.02, monkeypatch)
        host_a._changed.ring()
        assert await poll(handle_c) == started.run_id
        with pytest.raises(HandleBroken):
            await silent.poll_activation()
        assert not handle_c.is_new, "a worker that reports keeps its tasks"


async def test_peer_that_does_not_read_receives_only_its_slots(tmp_path: Path) -> None:
    """Further tasks go to other workers, and so do those of the peer when its connection ends."""
    async with hosts(tmp_path / "a.db", 2) as (host_a, host_b):
        handle = Polled(await host_a.open_handle(config("the owner's")))
        assert handle.engine is not None
        peer = unix_socket.reach(host_a.path)
        assert peer is not None
        mute = HandleConfig(task_queue="q", identity="mute", max_concurrent_workflow_tasks=3)
        for message in (
            wire.Hello(protocol=wire.PROTOCOL, namespace="default", pid=1),
            wire.OpenHandle(1, 1, mute),
        ):
            data = wire.encode(message)
            peer.send(len(data).to_bytes(4, "big") + data)
        await until(lambda: "q" in handle.engine.engine.queues.pollers.served_queues())  # type: ignore[union-attr]
        runs = {(await host_a.calls.call(start(f"w{number}"))).run_id for number in range(20)}
        second = Polled(await host_b.open_handle(config()))
        received = {await poll(second) for _ in range(17)}
        assert len(received) == 17
        unix_socket.close(peer)
        assert received | {await poll(second) for _ in range(3)} == runs


@pytest.mark.parametrize(
    "nonsense",
    [
        wire.WorkAnswers(handle=1, returned=(ActivityOk(b"no token"),)),
        wire.WorkAnswers(handle=1, heartbeats=((b"{}", ()),)),
    ],
)
async def test_worker_with_malformed_messages_is_disconnected(
    tmp_path: Path, nonsense: wire.WorkAnswers
) -> None:
    """The owner gives the worker's tasks to others and continues; messages for unknown handles are ignored."""
    async with hosts(tmp_path / "a.db", 3) as (host_a, host_b, host_c):
        await host_a.open_handle(config("the owner's"))
        second = Polled(await host_b.open_handle(config()))
        started = await host_a.calls.call(start("w"))
        assert await poll(second) == started.run_id
        third = Polled(await host_c.open_handle(config()))
        owner = await host_b.calls.reach()
        assert owner is not None
        owner.send(wire.WorkAnswers(handle=99, evictions=("no run",)))
        owner.send(wire.ShutDownHandle(99))
        await owner.close_handle(99)
        assert owner.is_open
        owner.send(msgspec.structs.replace(nonsense, handle=next(iter(owner._handles))))
        assert await poll(third) == started.run_id
        assert host_a.status().role == "owner"


async def test_task_too_large_for_another_process_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smaller ones that together are too large are sent one by one."""
    monkeypatch.setattr(worker_peer, "FRAME_LIMIT", 3000)
    large = (Payload(b"x" * 5000),)
    async with hosts(tmp_path / "a.db", 2) as (host_a, host_b):
        await host_a.open_handle(config("the owner's"))
        handle = Polled(await host_b.open_handle(config()))
        await host_a.calls.call(msgspec.structs.replace(start("large"), arguments=large))
        medium = [
            msgspec.structs.replace(start(f"m{number}"), arguments=(Payload(b"x" * 2000),))
            for number in range(3)
        ]
        runs = {(await host_a.calls.call(request)).run_id for request in medium}
        received: set[str] = set()
        is_evicted = False
        while len(received) < len(medium) or not is_evicted:
            activation = await handle.poll_activation()
            if is_eviction(activation):  # of the run whose task failed
                is_evicted = True
            else:
                received.add(activation.run_id)
        assert received == runs
        history = b"".join((await host_a.calls.call(wf.GetHistory(workflow_id="large"))).events)
        assert b"at most 3000 bytes can be sent to another process" in history

        run_id = runs.pop()
        big = ScheduleActivity(**{**activity_fields(), "arguments": large})
        small = [
            ScheduleActivity(**{**activity_fields(seq), "arguments": medium[0].arguments}) for seq in (2, 3)
        ]
        handle.complete_workflow_task(Succeeded(run_id, (big, *small)))
        assert {(await handle.poll_activity()).activity_id for _ in small} == {"2", "3"}
        activation = await handle.poll_activation()
        assert [type(event) for event in activation.events] == [ActivityFailed]
        assert "at most 3000 bytes can be sent" in str(activation.events[0])


async def test_worker_waits_for_an_owner_of_another_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is logged once."""
    monkeypatch.setattr(following, "FOREIGN", 0.01)

    async def is_foreign() -> None:
        tried.release()
        raise ForeignProtocol("run the same release of Hourglass in both", status="FAILED_PRECONDITION")

    tried = asyncio.Semaphore(0)
    async with hosts(tmp_path / "a.db", 2) as (host_a, host_b):
        await host_a.open_handle(config("the owner's"))
        started = await host_a.calls.call(start("w"))
        with monkeypatch.context() as patch:
            patch.setattr(host_b.calls, "reach", is_foreign)
            handle = Polled(await host_b.open_handle(config()))
            for _ in range(3):
                await tried.acquire()
        assert await poll(handle) == started.run_id
    assert caplog.text.count("this worker waits until it can use") == 1
    assert "run the same release of Hourglass in both" in caplog.text


async def test_worker_rejected_by_the_owner_has_no_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next worker of the process is not affected."""
    async with hosts(tmp_path / "a.db", 2) as (host_a, host_b):
        await host_a.open_handle(config())
        checks = iter([None])  # only this process accepts it

        def check(_: HandleConfig) -> None:
            for accepted in checks:
                return accepted
            raise ValueError("not this worker")

        with monkeypatch.context() as patch:
            patch.setattr(HandleConfig, "check", check)
            with pytest.raises(ServiceError, match="not this worker"):
                await host_b.open_handle(config("other"))
        assert not (await host_b.open_handle(config("other"))).is_new
        assert host_b.status().role.startswith("working for process")


async def test_unexpected_error_breaks_handles_and_releases_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> bool:
        raise LookupError("a bug")

    async with hosts(tmp_path / "a.db", 1) as (host_a,):
        with monkeypatch.context() as patch:
            patch.setattr(host_a._lock, "try_take", fails)
            with pytest.raises(InternalError, match=r"taking ownership of .* failed: LookupError"):
                await host_a.open_handle(config())
        assert FileLock(host_a.path).is_free()
        assert await host_a.open_handle(config())
        assert host_a.status().role == "owner"
    assert "a bug" in caplog.text


async def test_rejected_worker_raises_the_reason(tmp_path: Path) -> None:
    async with hosts(tmp_path / "a.db", 2) as (host_a, host_b):
        await host_a.open_handle(config())
        owner = await host_b.calls.reach()
        assert owner is not None
        with pytest.raises(ServiceError, match="the name of the task queue must not be empty"):
            await owner.open_handle(config(" "))
        assert not (await host_b.open_handle(config())).is_new, "the connection was closed"


async def test_remote_worker_shuts_down(tmp_path: Path) -> None:
    async with hosts(tmp_path / "a.db", 2) as (host_a, host_b):
        handle = Polled(await host_a.open_handle(config()))
        second = Polled(await host_b.open_handle(config()))
        polls = [asyncio.create_task(second.poll_activation()), asyncio.create_task(second.poll_activity())]
        await asyncio.sleep(0)
        second.initiate_shutdown()
        for poll in polls:
            with pytest.raises(Shutdown):
                await poll
        await second.finalize()
        assert host_b.status().role == "client"
        await handle.finalize()
        assert host_b.status().role == "client"


async def test_engine_is_reopened_after_a_store_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Handles break and are reopened; waiting calls continue."""

    caplog.set_level(logging.ERROR, "hourglass")
    async with hosts(tmp_path / "a.db", 2) as (host_a, client):
        handle = Polled(await host_a.open_handle(config()))
        started = await host_a.calls.call(start("w"))
        waits = [
            asyncio.create_task(host.calls.call(wf.WaitForClose(workflow_id="w")))
            for host in (host_a, client)
        ]
        assert await poll(handle) == started.run_id
        polling = asyncio.create_task(poll(handle))
        await asyncio.sleep(0.01)  # the poll reaches the engine; if it is late the test shows less
        assert host_a.calls.engine is not None
        host_a.calls.engine.engine.fail(StorageError("the disk is gone", status="UNAVAILABLE"))
        with pytest.raises(HandleBroken):
            await polling
        await handle.finalize()
        reopened = Polled(await host_a.open_handle(config()))
        assert await poll(reopened) == started.run_id, "the task is offered again"
        await client.calls.call(wf.TerminateWorkflow(workflow_id="w"))
        for wait in waits:
            assert isinstance(await wait, wf.RunTerminated)
        assert "the disk is gone" in caplog.text


async def test_wait_continues_under_the_next_owner(tmp_path: Path) -> None:
    async with hosts(tmp_path / "a.db", 2) as (host_a, host_b):
        handle = Polled(await host_a.open_handle(config()))
        await host_a.calls.call(start("w"))
        waiting = asyncio.create_task(host_a.calls.call(wf.WaitForClose(workflow_id="w")))
        await asyncio.sleep(0)
        await handle.finalize()
        await host_b.open_handle(config())
        assert (host_a.status().role, host_b.status().role) == ("client", "owner")
        assert not waiting.done()
        await host_b.calls.call(wf.TerminateWorkflow(workflow_id="w"))
        assert isinstance(await waiting, wf.RunTerminated)


async def test_cancelled_wait_releases_its_run(tmp_path: Path) -> None:
    async with hosts(tmp_path / "a.db", 1) as (host_a,):
        await host_a.open_handle(config())
        started = await host_a.calls.call(start("w"))
        engine_connection = host_a.calls.engine
        assert engine_connection is not None
        record = engine_connection.engine.record(started.run_id)
        assert record is not None
        waiting = asyncio.create_task(host_a.calls.call(wf.WaitForClose(workflow_id="w")))
        await asyncio.sleep(0)
        assert record.users == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert record.users == 0


async def test_client_works_without_an_owner(tmp_path: Path) -> None:
    """Concurrent requests share one opening of the file."""
    async with hosts(tmp_path / "a.db", 2) as (host_a, host_b):
        many = [host.calls.call(start(f"w{n}")) for n in range(20) for host in (host_a, host_b)]
        answers = await asyncio.gather(*many)
        assert len({answer.run_id for answer in answers}) == 20, "the same request is one run"
        assert (await host_a.calls.call(wf.CountWorkflows())).count == 20
        await host_b.calls.call(wf.SignalWorkflow(workflow_id="w1", signal_name="n", request_id="x"))
        assert (await host_a.calls.call(wf.DescribeWorkflow(workflow_id="w1"))).summary.workflow_id == "w1"
        await host_a.calls.call(wf.CancelWorkflow(workflow_id="w2", request_id="y"))
        await host_b.calls.call(wf.TerminateWorkflow(workflow_id="w3", reason="enough"))
        assert await host_a.calls.call(wf.WaitForClose(workflow_id="w3")) == wf.RunTerminated("enough")
        page = await host_a.calls.call(wf.GetHistory(workflow_id="w1"))
        assert len(page.events) == 3
        assert (host_a.status().role, host_b.status().role) == ("client", "client")


async def test_waiting_without_an_owner_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SILENCE", 0.0)

    caplog.set_level(logging.WARNING, "hourglass")
    async with hosts(tmp_path / "a.db", 2) as (client, worker):
        started = await client.calls.call(start("w"))
        waiting = asyncio.create_task(client.calls.call(wf.WaitForClose(workflow_id="w")))
        while "no worker is running" not in caplog.text:  # noqa: ASYNC110 - a log has no notification
            await asyncio.sleep(0.005)
        assert f"no worker is running on {tmp_path / 'a.db'}" in caplog.text
        assert ".run()" in caplog.text
        handle = Polled(await worker.open_handle(config()))
        assert await poll(handle) == started.run_id
        await worker.calls.call(wf.TerminateWorkflow(workflow_id="w"))
        assert isinstance(await waiting, wf.RunTerminated)
        assert caplog.text.count("no worker is running") == 1


async def test_repeated_activity_result_is_recognised(tmp_path: Path) -> None:
    """The history shows which attempt the result ended."""
    async with hosts(tmp_path / "a.db", 1) as (host_a,):
        handle = Polled(await host_a.open_handle(config()))
        await host_a.calls.call(start("w"))
        handle.complete_workflow_task(Succeeded(await poll(handle), (ScheduleActivity(**activity_fields()),)))
        task = await handle.poll_activity()
        result = ac.CompleteActivity(token=task.token)
        assert not await was_carried_out(result, host_a.calls.call), "it has not ended"
        await host_a.calls.call(result)
        assert await was_carried_out(result, host_a.calls.call)
        token = AttemptToken.decode(task.token)
        for foreign_token in (
            AttemptToken(token.run_id, token.scheduled_event_id, token.attempt + 1),
            AttemptToken(token.run_id, token.scheduled_event_id + 1, token.attempt),
            AttemptToken("unknown", token.scheduled_event_id, token.attempt),
        ):
            assert not await was_carried_out(
                ac.CompleteActivity(token=foreign_token.encode()), host_a.calls.call
            )
        assert not await was_carried_out(ac.CompleteActivity(token=b"no token"), host_a.calls.call)
        assert not await was_carried_out(ac.CompleteActivity(activity_id="1"), host_a.calls.call)
        handle.complete_workflow_task(Succeeded(await poll(handle)))


async def test_repeated_termination_is_recognised_by_its_request_id(tmp_path: Path) -> None:
    async with hosts(tmp_path / "a.db", 1) as (host_a,):
        await host_a.calls.call(start("w"))
        for _ in range(2):
            await host_a.calls.call(wf.TerminateWorkflow(workflow_id="w", request_id="t"))
        with pytest.raises(ServiceError):
            await host_a.calls.call(wf.TerminateWorkflow(workflow_id="w", request_id="another"))
        signal = wf.SignalWorkflow(workflow_id="w", signal_name="n", request_id="x")
        assert not await was_carried_out(signal, host_a.calls.call)


async def test_connection_of_a_dead_owner_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays open, but the lock is free."""
    monkeypatch.setattr(calls, "CHECK_INTERVAL", 0.01)

    async def silent(request: s.Request[Any]) -> Any:
        await asyncio.Event().wait()

    # Without the lock, as if another process had inherited the connections.
    async with serve(tmp_path / "a.db", silent) as server, hosts(tmp_path / "a.db", 1) as (client,):
        counting = asyncio.create_task(client.calls.call(wf.CountWorkflows()))
        while not server.peers:  # noqa: ASYNC110
            await asyncio.sleep(0)
        server.stop_listening()
        assert (await counting).count == 0


async def test_connections_of_a_process_share_an_engine(tmp_path: Path) -> None:
    """The file is released with the last of them."""
    host_a = await connect_file(str(tmp_path / "a.db"), identity="one")
    host_b = await connect_file(str(tmp_path / "." / "a.db"), identity="two")
    assert isinstance(host_a, FileConnection)
    await host_a.open_handle(HandleConfig(task_queue="q"))
    assert (host_b.status().role, host_b.identity) == ("owner", "two")
    (tmp_path / "a.db-sock").unlink()  # so that there is no other way
    await host_b.call(start("w"))
    with pytest.raises(NamespaceNotFoundError, match="a file has only one namespace"):
        await connect_file(str(tmp_path / "a.db"), namespace="other")
    await host_b.close()
    assert host_a.status().role == "owner"
    await host_a.close()
    await host_a.close()
    with pytest.raises(ServiceError, match="the connection is closed"):
        await host_a.call(wf.CountWorkflows())
    async with hosts(tmp_path / "a.db", 1) as (after,):
        assert (await after.calls.call(wf.CountWorkflows())).count == 1


async def test_timeout_or_close_ends_a_call(tmp_path: Path) -> None:
    link = await connect_file(str(tmp_path / "a.db"))
    await link.call(start("w"))
    with pytest.raises(ServiceTimeoutError, match=r"QueryWorkflow was not answered within 0.05 s"):
        await link.call(wf.QueryWorkflow(workflow_id="w", query_name="n", rpc_timeout=0.05))
    waiting = asyncio.create_task(link.call(wf.WaitForClose(workflow_id="w")))
    await asyncio.sleep(0.01)  # the wait reaches the engine; if it is late the test shows less
    await link.close()
    with pytest.raises(ServiceError, match="the connection is closed"):
        await waiting


async def test_unusable_file_is_rejected_and_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"not a database at all" * 100)
    async with hosts(tmp_path / "a.db", 1) as (host_a,):
        with pytest.raises(StorageError, match="is not a database"):
            await host_a.calls.call(wf.CountWorkflows())
        with pytest.raises(StorageError, match="is not a database"):
            await host_a.open_handle(config())
        assert host_a._lock.is_free()
        assert (tmp_path / "a.db").read_bytes() == b"not a database at all" * 100
    with pytest.raises(StorageError, match="is a directory"):
        await connect_file(str(tmp_path))
    with pytest.raises(StorageError, match=r"the directory .* does not exist"):
        await connect_file(str(tmp_path / "none" / "a.db"))


async def test_deleted_socket_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look_every(0.01, monkeypatch)

    async with hosts(tmp_path / "a.db", 3) as (host_a, host_b, host_c):
        await host_a.open_handle(config())
        await host_b.calls.call(start("w"))
        os.unlink(unix_socket.socket_path(host_a.path))
        await until(lambda: unix_socket.identity(host_a.path) is not None)
        assert (await host_c.calls.call(wf.DescribeWorkflow(workflow_id="w"))).summary.workflow_id == "w"
        assert (await host_b.calls.call(wf.DescribeWorkflow(workflow_id="w"))).summary.workflow_id == "w"
        assert host_a.status().role == "owner"


async def test_missing_socket_of_an_owner_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "_UNREACHED", 0.01)
    monkeypatch.setattr(calls, "_UNREACHABLE", 0.1)
    monkeypatch.setattr(calls, "CHECK_INTERVAL", 0.01)

    caplog.set_level(logging.WARNING, "hourglass")
    lock = FileLock(str(tmp_path / "a.db"))
    lock.try_take()
    async with hosts(tmp_path / "a.db", 1) as (client,):
        with pytest.raises(StorageError, match=r"process \d+ owns .*-sock does not exist"):
            await client.calls.call(start("w"))
    lock.drop()
    assert "db-sock does not exist" in caplog.text


async def test_transactions_of_clients_are_not_taken_for_an_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A waiting call finds the lock held by different transactions; the same holder twice is an owner without a socket."""
    for name in ("_UNREACHED", "_UNREACHABLE", "CHECK_INTERVAL"):
        monkeypatch.setattr(calls, name, 0.0)

    caplog.set_level(logging.WARNING, "hourglass")
    path = str(tmp_path / "a.db")
    router = calls.CallRouter(SQLITE, path, "default", Bell())
    search = calls._Search("request", time.monotonic() - 3600)
    lock = FileLock(path)
    for _ in range(3):
        assert lock.try_take()
        router._check_unreachable_owner(search)
        lock.drop()
    assert "db-sock does not exist" not in caplog.text
    assert lock.try_take()
    router._check_unreachable_owner(search)
    with pytest.raises(StorageError, match=r"process \d+ owns .*-sock does not exist"):
        router._check_unreachable_owner(search)
    lock.drop()
    await router.close()


async def test_deleted_lock_file_allows_no_second_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_every(0.01, monkeypatch)

    async with hosts(tmp_path / "a.db", 2) as (host_a, host_b):
        await host_a.open_handle(config())
        os.unlink(f"{host_a.path}-lock")
        await until(lambda: os.path.exists(f"{host_a.path}-lock"))
        await host_b.open_handle(config())
        assert host_a.status().role == "owner"
        assert host_b.status().role.startswith("working for")


async def test_peer_does_not_take_a_deleted_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The living owner recreates the lock file itself."""
    async with hosts(tmp_path / "a.db", 2) as (host_a, host_b):
        look_every(60.0, monkeypatch)
        await host_a.open_handle(config())
        await host_b.open_handle(config())
        os.unlink(f"{host_a.path}-lock")
        there = partial(os.path.lexists, f"{host_a.path}-lock")
        for _ in range(5):
            host_b._changed.ring()
            await asyncio.sleep(0.01)  # the check must change nothing
        assert not there()
        host_a._changed.ring()
        await until(there)
        host_b._changed.ring()
        await asyncio.sleep(0.01)  # the check must change nothing
        assert host_a.status().role == "owner"
        assert host_b.status().role.startswith("working for")


async def test_former_owner_stops_at_its_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lock and socket were deleted and another process took over, which answers the callers."""
    look_every(60.0, monkeypatch)  # the former owner does not check

    caplog.set_level(logging.ERROR, "hourglass")
    async with hosts(tmp_path / "a.db", 2) as (host_a, host_b):
        handle = Polled(await host_a.open_handle(config()))
        first = await host_a.calls.call(start("w"))
        os.unlink(f"{host_a.path}-lock")
        os.unlink(unix_socket.socket_path(host_a.path))
        second = Polled(await host_b.open_handle(config()))
        assert (host_a.status().role, host_b.status().role) == ("owner", "owner")
        assert await poll(second) == first.run_id
        later = await host_a.calls.call(start("later"))
        assert host_a.status().role != "owner"
        assert await poll(second) == later.run_id
        with suppress(HandleBroken):
            while True:
                await handle.poll_activation()
        await host_b.calls.call(wf.TerminateWorkflow(workflow_id="w"))
        assert "another process now owns the file" in caplog.text
        assert unix_socket.identity(host_b.path) is not None, (
            "the former owner left the socket of the new one"
        )


async def test_former_owner_stops_when_it_notices_the_loss_of_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosts(tmp_path / "a.db", 1) as (host_a,):
        look_every(60.0, monkeypatch)
        handle = Polled(await host_a.open_handle(config()))
        os.unlink(f"{host_a.path}-lock")
        file_lock = FileLock(host_a.path)
        assert file_lock.try_take()
        host_a._changed.ring()
        with pytest.raises(HandleBroken):
            await handle.poll_activation()
        assert host_a.status().role != "owner"
        file_lock.drop()


@pytest.mark.parametrize("needs_worker", [False, True])
async def test_damaged_file_is_reported_to_callers(tmp_path: Path, needs_worker: bool) -> None:
    path = tmp_path / "a.db"

    async with hosts(path, 1) as (host_a,):
        await host_a.calls.call(start("w"))
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE visibility RENAME COLUMN status TO other")
    connection.commit()
    connection.close()
    async with hosts(path, 1) as (host_a,):

        async def work() -> None:
            while True:
                handle = Polled(await host_a.open_handle(config()))
                with suppress(HandleBroken):
                    while True:
                        run_id = await poll(handle)
                        await handle.complete_activation(Succeeded(run_id, (CompleteRun(Payload(b"1")),)))
                await handle.finalize()

        working = asyncio.create_task(work())
        request = wf.WaitForClose(workflow_id="w") if needs_worker else start("another")
        with pytest.raises(StorageError, match="is damaged: tables or columns are missing"):
            await host_a.calls.call(request)
        working.cancel()


async def test_failing_file_is_reopened_with_backoff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async with hosts(tmp_path / "a.db", 1) as (host_a,):
        for _ in range(10):
            host_a._failed(StorageError("an error of the disk", status="UNAVAILABLE"))
            pauses.append(host_a._not_before - time.monotonic())
        assert host_a.calls.broken is None, "a temporary error is retried"
        host_a._failed(StorageError("corrupt", status="DATA_LOSS"))
        assert host_a.calls.broken is not None
    assert [round(pause, 2) for pause in pauses] == sorted(round(pause, 2) for pause in pauses)
    assert pauses[0] < 0.1
    assert 4.0 < pauses[-1] <= 5.0
