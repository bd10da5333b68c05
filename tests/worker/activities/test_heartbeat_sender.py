"""The heartbeat sender: heartbeats go through the handle, or to the service if the handle is broken."""

from __future__ import annotations

import asyncio

import pytest

from hourglass._contract.activities import HeartbeatAnswer
from hourglass._contract.handle import HandleBroken
from hourglass._worker.activities.reporting import HeartbeatSender
from hourglass.errors import ConnectionFailedError, ServiceError

from ..scripted import payloads

pytestmark = pytest.mark.usefixtures("each_event_loop")


class World:
    """A handle that may be broken, and a service with scripted answers; records heartbeats and cancellations."""

    def __init__(self, *script, broken=True):
        self.script = list(script)
        self.broken = broken
        self.taken, self.asked, self.cancelled = [], [], []
        self.gate = asyncio.Event()
        self.gate.set()

    def heartbeat(self, token, details):
        if self.broken:
            raise HandleBroken("gone")
        self.taken.append((token, details))

    async def call(self, request):
        self.asked.append((request.token, request.details))
        await self.gate.wait()
        answer = self.script.pop(0) if self.script else HeartbeatAnswer()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sender(self):
        return HeartbeatSender(self.heartbeat, self, lambda *why: self.cancelled.append(why), throttle=0.0)


async def all_sent(sender):
    async with asyncio.timeout(20):
        while sender._sending:
            await asyncio.wait(set(sender._sending))


async def test_heartbeat_goes_through_the_handle_if_it_works():
    world = World(broken=False)
    sender = world.sender()
    sender(b"t", payloads(1))
    await all_sent(sender)
    assert (world.taken, world.asked) == ([(b"t", payloads(1))], [])


async def test_latest_heartbeat_replaces_pending_heartbeats_of_the_attempt():
    world = World()
    world.gate.clear()
    sender = world.sender()
    for number in range(4):
        sender(b"t", payloads(number))
        await asyncio.sleep(0)
    sender(b"other", payloads("o"))
    await asyncio.sleep(0)
    world.gate.set()
    await all_sent(sender)
    assert world.asked == [(b"t", payloads(0)), (b"other", payloads("o")), (b"t", payloads(3))]


@pytest.mark.parametrize(
    ("answer", "cancelled"),
    [
        (HeartbeatAnswer(True), [(b"t", "CANCELLED")]),
        (ServiceError("no such", status="NOT_FOUND"), [(b"t", "NOT_FOUND")]),
        (ConnectionFailedError("down", status="UNAVAILABLE"), []),
        (OSError("odd"), []),
        (HeartbeatAnswer(), []),
    ],
)
async def test_heartbeat_response_cancels_the_attempt_unless_it_is_a_connection_error(answer, cancelled):
    world = World(answer)
    sender = world.sender()
    sender(b"t", payloads("cursor"))
    await all_sent(sender)
    assert world.asked == [(b"t", payloads("cursor"))]
    assert world.cancelled == cancelled
