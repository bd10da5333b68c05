"""The mailbox delivers calls from other threads to an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from hourglass._worker.mailbox import Mailbox


async def test_mailbox_delivers_a_hundred_posts_in_order_with_one_wake_up(monkeypatch):
    loop, received, wakes = asyncio.get_running_loop(), [], []
    mailbox = Mailbox()
    wake = loop.call_soon_threadsafe
    monkeypatch.setattr(
        loop, "call_soon_threadsafe", lambda *call: (wakes.append(1), wake(*call)), raising=False
    )
    for number in range(100):
        mailbox.post(received.append, number)
    assert received == []
    while len(received) < 100:  # noqa: ASYNC110
        await asyncio.sleep(0)
    mailbox.post(received.append, 100)
    await asyncio.sleep(0)
    assert received == list(range(101))
    assert len(wakes) == 2


async def test_mailbox_delivers_every_post_in_the_order_of_its_thread():
    mailbox, received = Mailbox(), []

    def post(name):
        for number in range(500):
            mailbox.post(received.append, (name, number))

    threads = [threading.Thread(target=post, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    async with asyncio.timeout(60):
        while len(received) < 2000:  # noqa: ASYNC110
            await asyncio.sleep(0)
    for name in range(4):
        assert [number for whose, number in received if whose == name] == list(range(500))


async def test_mailbox_logs_a_failing_call_and_delivers_later_ones(caplog):
    mailbox, received = Mailbox(), []
    mailbox.post(received.index, "not there")
    mailbox.post(received.append, 1)
    while not received:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert received == [1]
    assert "a call from another thread failed" in caplog.text


@pytest.mark.parametrize("times", [1, 3])
def test_mailbox_ignores_posts_to_a_closed_loop(times):
    async def main():
        return Mailbox()

    mailbox = asyncio.run(main())
    received: list[int] = []
    for number in range(times):
        mailbox.post(received.append, number)
    assert received == []


@pytest.mark.parametrize("error", [asyncio.CancelledError, ValueError])
async def test_mailbox_delivers_calls_after_one_raises(error):
    mailbox, received = Mailbox(), []
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def fails(_):
        raise error

    mailbox.post(fails, None)
    for number in range(3):
        mailbox.post(received.append, number)
    for _ in range(5):
        await asyncio.sleep(0)
    assert received == [0, 1, 2]
