"""The result sender: results go through the handle, or to the service if the handle is broken or slow."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.specs import made

from hourglass._contract.activities import CompleteActivity
from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityOk,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
    HandleBroken,
)
from hourglass._contract.service import Nothing
from hourglass._worker.activities.reporting import Delivery, ResultSender
from hourglass.converter import ApplicationFailure, CanceledFailure, Failure, Payload
from hourglass.errors import ConnectionFailedError, ServiceError

from ..scripted import payloads

pytestmark = pytest.mark.usefixtures("each_event_loop")

(DETAIL,) = payloads("detail")
OK = ActivityOk(b"t", DETAIL)
FAILED = AttemptFailed(b"t", Failure("no", ApplicationFailure("Bank")))
CANCELLED = AttemptCancelled(b"t", Failure("Cancelled", CanceledFailure((DETAIL,))))


class Service:
    """A service with scripted answers; exceptions are raised."""

    def __init__(self, *script):
        self.script = list(script)
        self.asked = []

    async def call(self, request):
        self.asked.append(request)
        answer = self.script.pop(0) if self.script else Nothing()
        if isinstance(answer, Exception):
            raise answer
        return answer


def task(**facts):
    return made(ActivityTask, token=b"t", activity_id="1", activity_type="charge", **facts)


def send(service, result, complete, *, activity_task=None, **options):
    """Send one result and return how it was delivered."""

    async def main():
        sender = ResultSender(service, **{"patience": 60.0, "pauses": (0.0, 0.0, 0.0), **options})
        async with asyncio.timeout(20):
            return await sender.send(activity_task or task(), result, complete)

    return asyncio.run(main())


async def accepted(_):
    return None


async def broken(_):
    raise HandleBroken("gone")


async def never(_):
    await asyncio.get_running_loop().create_future()


def test_result_goes_through_the_handle_if_it_works():
    service = Service()
    assert send(service, OK, accepted) is Delivery.BY_HANDLE
    assert service.asked == []


@pytest.mark.parametrize("complete", [broken, never])
def test_result_is_sent_to_the_service_if_the_handle_fails_or_hangs(complete):
    service = Service()
    how = send(service, OK, complete, patience=60.0 if complete is broken else 0.01)
    assert how is Delivery.BY_CLIENT
    (asked,) = service.asked
    assert isinstance(asked, CompleteActivity)
    assert (asked.token, asked.result, asked.failure, asked.cancelled) == (b"t", DETAIL, None, False)


def test_service_receives_failures_and_cancellations_of_attempts():
    service = Service()
    send(service, FAILED, broken)
    send(service, CANCELLED, broken)
    failed, cancelled = service.asked
    assert failed.failure == FAILED.failure
    assert (cancelled.cancelled, cancelled.cancelled_details) == (True, (DETAIL,))


def test_result_is_resent_until_the_service_answers():
    service = Service(ConnectionFailedError("down", status="UNAVAILABLE"), OSError("odd"))
    how = send(service, OK, broken)
    assert how is Delivery.BY_CLIENT
    assert len(service.asked) == 3


def test_result_is_dropped_if_the_service_does_not_know_the_attempt():
    how = send(Service(ServiceError("no such", status="NOT_FOUND")), OK, broken)
    assert how is Delivery.UNWANTED


@pytest.mark.parametrize(("status", "asked"), [("UNAVAILABLE", 4), ("INVALID_ARGUMENT", 1)])
def test_undeliverable_result_is_logged_without_its_payload(caplog, status, asked):
    service = Service(*[ServiceError("refused", status=status) for _ in range(9)])
    with caplog.at_level(logging.WARNING, logger="hourglass.worker"):
        how = send(service, OK, broken)
    assert (how, len(service.asked)) == (Delivery.LOST, asked)
    assert "charge" in caplog.text
    assert "detail" not in caplog.text


async def test_late_acknowledgement_by_the_handle_ends_resending():
    service = Service(*[ServiceError("down", status="UNAVAILABLE") for _ in range(9)])
    gate = asyncio.Event()
    sender = ResultSender(service, patience=0.0, pauses=(60.0,))

    async def late(_):
        await gate.wait()

    sending = asyncio.ensure_future(sender.send(task(), OK, late))
    async with asyncio.timeout(20):
        while not service.asked:  # noqa: ASYNC110 - one turn of the loop
            await asyncio.sleep(0)
        gate.set()
        assert await sending is Delivery.BY_HANDLE


async def test_completion_through_the_handle_continues_if_the_sender_is_cancelled():
    begun, gate, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_):
        begun.set()
        await gate.wait()
        ended.set()

    sending = asyncio.ensure_future(ResultSender(Service()).send(task(), OK, slow))
    async with asyncio.timeout(20):
        await begun.wait()
        sending.cancel()
        await asyncio.wait({sending})
        gate.set()
        await ended.wait()


def test_result_of_a_local_activity_is_not_sent_to_the_service(caplog):
    service = Service()
    with caplog.at_level(logging.WARNING, logger="hourglass.worker"):
        how = send(service, OK, broken, activity_task=task(is_local=True))
    assert (how, service.asked) == (Delivery.LOST, [])
    assert "workflow task and the activity are retried" in caplog.text


def test_no_result_is_sent_for_an_attempt_completed_async():
    service = Service()
    assert send(service, ActivityDeferred(b"t"), broken) is Delivery.LOST
    assert service.asked == []


class ReversingCodec:
    def encode(self, payloads):
        return [Payload(payload.data[::-1], "backwards") for payload in payloads]

    def decode(self, payloads):
        return payloads


def test_result_sent_to_the_service_is_encoded_by_the_codec():
    service = Service()
    send(service, OK, broken, codec=ReversingCodec())
    assert service.asked[0].result == Payload(DETAIL.data[::-1], "backwards")
