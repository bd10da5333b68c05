"""Heartbeats find their way when the handle is gone, with their details."""

from __future__ import annotations

import asyncio

import pytest

from hourglass._contract.activities import HeartbeatAnswer
from hourglass._contract.handle import HandleBroken
from hourglass._worker.activities.reporting import HeartbeatSender
from hourglass.errors import ConnectionFailedError, ServiceError

from .executing import payloads

pytestmark = pytest.mark.usefixtures("each_event_loop")


class World:
    """A handle that may be broken, a service that answers by a script, and who was cancelled."""

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


async def quiet(sender):
    async with asyncio.timeout(20):
        while sender._sending:
            await asyncio.wait(set(sender._sending))


def test_handle_is_used_before_the_service():
    """If the handle accepts heartbeats and results, the service is not called."""

    async def main():
        world = World(broken=False)
        sender = world.sender()
        sender(b"t", payloads(1))
        await quiet(sender)
        return world

    world = asyncio.run(main())
    assert (world.taken, world.asked) == ([(b"t", payloads(1))], [])


def test_newest_heartbeat_replaces_waiting_ones():
    """One call at a time, always with details; attempts do not wait for each other."""

    async def main():
        world = World()
        world.gate.clear()
        sender = world.sender()
        for number in range(4):
            sender(b"t", payloads(number))
            await asyncio.sleep(0)
        sender(b"other", payloads("o"))
        await asyncio.sleep(0)
        world.gate.set()
        await quiet(sender)
        return world.asked

    asked = asyncio.run(main())
    assert asked == [(b"t", payloads(0)), (b"other", payloads("o")), (b"t", payloads(3))]


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
def test_heartbeat_answer_cancels_the_attempt(answer, cancelled):
    """Cancelled or abandoned attempts are notified; an outage ends none."""

    async def main():
        world = World(answer)
        sender = world.sender()
        sender(b"t", payloads("cursor"))
        await quiet(sender)
        return world

    world = asyncio.run(main())
    assert world.asked == [(b"t", payloads("cursor"))]
    assert world.cancelled == cancelled
