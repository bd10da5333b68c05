"""The result sender: results whose handle has ended go to the service."""

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
from hourglass._worker.activities.reporting import ResultSender
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


def send(service, result, *, activity_task=None, **options):
    """Send one result whose handle has ended."""

    async def main():
        sender = ResultSender(service, **{"pauses": (0.0, 0.0, 0.0), **options})
        async with asyncio.timeout(20):
            await sender.send(activity_task or task(), result, HandleBroken("gone"))

    asyncio.run(main())


def test_service_receives_results_failures_and_cancellations_of_attempts():
    service = Service()
    for result in (OK, FAILED, CANCELLED):
        send(service, result)
    succeeded, failed, cancelled = service.asked
    assert isinstance(succeeded, CompleteActivity)
    assert (succeeded.token, succeeded.result, succeeded.failure, succeeded.cancelled) == (
        b"t",
        DETAIL,
        None,
        False,
    )
    assert failed.failure == FAILED.failure
    assert (cancelled.cancelled, cancelled.cancelled_details) == (True, (DETAIL,))


def test_result_is_resent_until_the_service_answers():
    service = Service(ConnectionFailedError("down", status="UNAVAILABLE"), OSError("odd"))
    send(service, OK)
    assert len(service.asked) == 3


@pytest.mark.parametrize(
    ("status", "asked", "is_lost"),
    [("NOT_FOUND", 1, False), ("UNAVAILABLE", 4, True), ("INVALID_ARGUMENT", 1, True)],
)
def test_undeliverable_result_is_logged_without_its_payload(caplog, status, asked, is_lost):
    """A result for which the engine no longer waits (NOT_FOUND) is not lost."""
    service = Service(*[ServiceError("refused", status=status) for _ in range(9)])
    with caplog.at_level(logging.WARNING, logger="hourglass.worker"):
        send(service, OK)
    assert len(service.asked) == asked
    assert ("is lost" in caplog.text) == is_lost
    assert "charge" in caplog.text
    assert "detail" not in caplog.text


@pytest.mark.parametrize(
    ("result", "facts", "message"),
    [
        (OK, {"is_local": True}, "workflow task and the activity are retried"),
        (ActivityDeferred(b"t"), {}, "no client can send it"),
    ],
)
def test_result_that_only_its_handle_can_report_is_not_sent_to_the_service(caplog, result, facts, message):
    service = Service()
    with caplog.at_level(logging.WARNING, logger="hourglass.worker"):
        send(service, result, activity_task=task(**facts))
    assert service.asked == []
    assert message in caplog.text


class ReversingCodec:
    def encode(self, payloads):
        return [Payload(payload.data[::-1], "backwards") for payload in payloads]

    def decode(self, payloads):
        return payloads


def test_result_sent_to_the_service_is_encoded_by_the_codec():
    service = Service()
    send(service, OK, codec=ReversingCodec())
    assert service.asked[0].result == Payload(DETAIL.data[::-1], "backwards")
