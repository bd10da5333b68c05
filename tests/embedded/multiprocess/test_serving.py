"""Owner and client connected by a socket: concurrent requests, invalid peers, lost connections."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.specs import made

from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._embedded.api.answering import EngineClosed
from hourglass._embedded.multiprocess import remote, serving, unix_socket, wire
from hourglass._embedded.multiprocess.remote import ForeignProtocol, OwnerConnection
from hourglass.converter import Payload
from hourglass.errors import NamespaceNotFoundError, ServiceError, StorageError, WorkflowNotFoundError

from .owner_server import connect, connection_lost, reach, serve

DESCRIBE = wf.DescribeWorkflow(workflow_id="w")
SIGNAL = wf.SignalWorkflow(workflow_id="w", signal_name="n", request_id="r")
COUNT = wf.CountWorkflows()
EXECUTE = wf.ExecuteWorkflow(
    start=made(wf.StartWorkflow, workflow_id="w", workflow_type="t", task_queue="q", request_id="r")
)


async def count(request: s.Request[Any]) -> wf.Count:
    return wf.Count(7)


async def test_concurrent_requests_are_answered_in_any_order(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def answer(request: Any) -> wf.Count:
        if request.query == "slow":
            await gate.wait()
        return wf.Count(len(request.query))

    async with serve(tmp_path / "a.db", answer):
        link = await reach(tmp_path / "a.db")
        slow = asyncio.create_task(link.request(wf.CountWorkflows(query="slow"), "k0"))
        quick = [link.request(wf.CountWorkflows(query="x" * n), f"k{n}") for n in range(1, 200)]
        assert [each.count for each in await asyncio.gather(*quick)] == list(range(1, 200))
        assert not slow.done()
        gate.set()
        assert (await slow).count == 4
        assert link.in_flight == 0
        link.close()


async def test_error_of_the_owner_is_raised_at_the_client(tmp_path: Path) -> None:
    async def answer(request: Any) -> Any:
        if isinstance(request, wf.DescribeWorkflow):
            raise WorkflowNotFoundError("no such workflow", status="NOT_FOUND")
        return wf.Count(1)

    async with serve(tmp_path / "a.db", answer):
        link = await reach(tmp_path / "a.db")
        with pytest.raises(WorkflowNotFoundError, match="no such workflow"):
            await link.request(DESCRIBE, "k1")
        assert (await link.request(COUNT, "k2")).count == 1
        link.close()


class Endless:
    """An answer that never comes; `began` and `ended` count its waits."""

    def __init__(self) -> None:
        self.began, self.ended = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def answer(self, request: s.Request[Any]) -> Any:
        self.began.release()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.release()


async def test_cancelled_request_cancels_the_owners_wait(tmp_path: Path) -> None:
    """The end of the client's connection does the same."""
    endless = Endless()
    async with serve(tmp_path / "a.db", endless.answer):
        link = await reach(tmp_path / "a.db")
        waiting = asyncio.create_task(link.request(wf.WaitForClose(workflow_id="w"), "k1"))
        await endless.began.acquire()
        waiting.cancel()
        await endless.ended.acquire()
        waiting = asyncio.create_task(link.request(wf.WaitForClose(workflow_id="w"), "k2"))
        await endless.began.acquire()
        link.close()
        await endless.ended.acquire()
        with connection_lost():
            await waiting


async def reconnect_during(path: Path, request: s.Request[Any], calls: list[Any]) -> OwnerConnection:
    """Send a request, lose the connection while the owner carries it out, and connect again."""
    link = await reach(path)
    pending = asyncio.create_task(link.request(request, "key"))
    while not calls:  # noqa: ASYNC110
        await asyncio.sleep(0)
    link.close()
    with connection_lost():
        await pending
    return await reach(path)


async def test_repeated_change_is_carried_out_once(tmp_path: Path) -> None:
    """A client that lost the connection repeats the request with the same key."""
    calls: list[Any] = []
    gate = asyncio.Event()

    async def answer(request: Any) -> Any:
        calls.append(request)
        await gate.wait()
        return s.Nothing()

    async with serve(tmp_path / "a.db", answer):
        again = await reconnect_during(tmp_path / "a.db", SIGNAL, calls)
        second = asyncio.create_task(again.request(SIGNAL, "key"))
        gate.set()
        assert await second == s.Nothing()
        assert await again.request(SIGNAL, "key") == s.Nothing()
        assert len(calls) == 1
        await again.request(SIGNAL, "another key")
        assert len(calls) == 2
        again.close()


async def test_repeated_execute_is_carried_out_once(tmp_path: Path) -> None:
    """The owner remembers the id of a closed run and not its result, which may be large."""
    closed = wf.Executed("run", wf.RunCompleted((Payload(b"1", "json/plain"),)))

    calls: list[Any] = []
    gate = asyncio.Event()

    async def answer(request: Any) -> Any:
        if request == COUNT:
            return wf.Count(7)
        calls.append(request)
        await gate.wait()
        return closed

    async with serve(tmp_path / "a.db", answer):
        again = await reconnect_during(tmp_path / "a.db", EXECUTE, calls)
        second = asyncio.create_task(again.request(EXECUTE, "key"))
        await asyncio.sleep(0)
        await again.request(COUNT, "")  # the owner has received the earlier messages
        gate.set()
        assert await second == closed
        assert await again.request(EXECUTE, "key") == wf.Executed("run", wf.StillOpen("run"))
        assert len(calls) == 1
        assert await again.request(EXECUTE, "another key") == closed
        again.close()


async def test_cancelled_execute_ends_the_owners_wait(tmp_path: Path) -> None:
    """One request is cancelled while it waits, another immediately after it was sent."""
    endless = Endless()
    async with serve(tmp_path / "a.db", endless.answer) as server:
        link = await reach(tmp_path / "a.db")
        waiting = asyncio.create_task(link.request(EXECUTE, "waited for"))
        await endless.began.acquire()
        waiting.cancel()
        await endless.ended.acquire()
        cancelled = asyncio.create_task(link.request(EXECUTE, "given up at once"))
        await asyncio.sleep(0)  # it is sent
        cancelled.cancel()
        await endless.began.acquire()
        await endless.ended.acquire()
        while server._answers:  # noqa: ASYNC110
            await asyncio.sleep(0)
        link.close()


async def test_closing_owner_disconnects_pending_requests(tmp_path: Path) -> None:
    """The client can repeat them at the next owner."""
    closing = asyncio.Event()

    async def answer(request: Any) -> Any:
        await closing.wait()
        raise EngineClosed("closed")

    async with serve(tmp_path / "a.db", answer) as server:
        link = await reach(tmp_path / "a.db")
        waiting = asyncio.create_task(link.request(COUNT, "k"))
        while not server.peers or not link.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0)
        server.stop_listening()
        assert await connect(tmp_path / "a.db") is None
        closing.set()
        await asyncio.sleep(0)
        server.disconnect_all()
        with connection_lost():
            await waiting
        await link.lost.wait()
        with connection_lost():
            await link.request(COUNT, "k")


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x03abc",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        os.urandom(4096),
        b"\x00\x00\x00\x40" + wire.encode(wire.AbandonMessage(1)).ljust(64, b"\x00"),
    ],
    ids=["http", "nonsense", "huge", "empty", "noise", "no greeting"],
)
async def test_malformed_message_disconnects_only_its_peer(tmp_path: Path, garbage: bytes) -> None:
    async with serve(tmp_path / "a.db", count):
        link = await reach(tmp_path / "a.db")
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "a.db-sock"))
        writer.write(garbage)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        assert (await link.request(COUNT, "k")).count == 7
        link.close()


async def test_malformed_request_disconnects_its_peer(tmp_path: Path) -> None:
    """An unknown request, or a repeated number."""
    async with serve(tmp_path / "a.db", lambda _: asyncio.Event().wait()):
        bad = [
            wire.encode(wire.RequestMessage(1, "k", "os.system", msgspec.Raw(wire.encode({"x": 1})))),
            wire.encode_request(1, "k", DESCRIBE),
        ]
        for frame in bad:
            link = await reach(tmp_path / "a.db")
            link.stream.send(frame)
            link.stream.send(frame)
            await link.lost.wait()


async def test_owner_with_malformed_messages_is_disconnected(tmp_path: Path) -> None:
    async def answer(request: Any) -> Any:
        return s.Nothing()  # an answer of another type

    async with serve(tmp_path / "a.db", answer):
        link = await reach(tmp_path / "a.db")
        with connection_lost("sent an invalid answer"):
            await link.request(COUNT, "k")
        await link.lost.wait()


async def test_other_protocol_version_is_rejected(tmp_path: Path) -> None:
    async with serve(tmp_path / "a.db", count):
        with pytest.raises(ForeignProtocol, match="run the same release of Hourglass in both"):
            await connect(tmp_path / "a.db", protocol=99)


async def test_other_namespace_is_rejected(tmp_path: Path) -> None:
    async with serve(tmp_path / "a.db", count, namespace="shop"):
        with pytest.raises(NamespaceNotFoundError, match="contains the namespace 'shop', not 'default'"):
            await connect(tmp_path / "a.db")


async def test_oversized_message_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (unix_socket, remote, serving):
        monkeypatch.setattr(module, "FRAME_LIMIT", 2000)

    async def answer(request: Any) -> Any:
        if isinstance(request, wf.GetHistory):
            return wf.HistoryPage((b"x" * 3000,))
        return wf.Count(7)

    async with serve(tmp_path / "a.db", answer):
        link = await reach(tmp_path / "a.db")
        with pytest.raises(ServiceError, match=r"the request has .* bytes") as caught:
            await link.request(wf.CountWorkflows(query="x" * 3000), "k1")
        assert caught.value.status == "INVALID_ARGUMENT"
        with pytest.raises(ServiceError, match=r"the answer has .* bytes"):
            await link.request(wf.GetHistory(workflow_id="w"), "k2")
        assert (await link.request(COUNT, "k3")).count == 7
        link.close()


async def test_socket_of_another_user_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(tmp_path / "a.db", count) as server:
        with monkeypatch.context() as stranger:
            stranger.setattr(unix_socket, "_peer", lambda _: (0, 54321))
            with pytest.raises(StorageError, match="belongs to another user and is not trusted"):
                unix_socket.reach(str(tmp_path / "a.db"))
            raw = socket.socket(socket.AF_UNIX)
            raw.setblocking(False)
            raw.connect(str(tmp_path / "a.db-sock"))
            assert await asyncio.get_running_loop().sock_recv(raw, 10) == b""
            raw.close()
        while server.peers:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "a.db-sock"))
    dead.listen()
    dead.close()
    assert await connect(tmp_path / "a.db") is None
    async with serve(tmp_path / "a.db", count):
        link = await reach(tmp_path / "a.db")
        assert (await link.request(COUNT, "k")).count == 7
        link.close()
    assert not (tmp_path / "a.db-sock").exists()
