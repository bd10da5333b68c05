"""Results find their way when the handle is gone, slow or wrong."""

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

from .executing import payloads

pytestmark = pytest.mark.usefixtures("each_event_loop")

(DETAIL,) = payloads("detail")
OK = ActivityOk(b"t", DETAIL)
FAILED = AttemptFailed(b"t", Failure("no", ApplicationFailure("Bank")))
CANCELLED = AttemptCancelled(b"t", Failure("Cancelled", CanceledFailure((DETAIL,))))


class Service:
    """Answers by a script: an exception is raised, anything else is an answer."""

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


def send(service, result, complete, *, given=None, **options):
    """Send one result; gives how it arrived."""

    async def main():
        sender = ResultSender(service, **{"patience": 60.0, "pauses": (0.0, 0.0, 0.0), **options})
        async with asyncio.timeout(20):
            return await sender.send(given or task(), result, complete)

    return asyncio.run(main())


async def through(_):
    return None


async def broken(_):
    raise HandleBroken("gone")


async def never(_):
    await asyncio.get_running_loop().create_future()


def test_handle_is_used_before_the_service():
    """If the handle accepts heartbeats and results, the service is not called."""
    service = Service()
    assert send(service, OK, through) is Delivery.BY_HANDLE
    assert service.asked == []


@pytest.mark.parametrize("complete", [broken, never])
def test_result_is_sent_to_the_service_if_the_handle_fails(complete):
    """The same result goes to the service, by its token."""
    service = Service()
    how = send(service, OK, complete, patience=60.0 if complete is broken else 0.01)
    assert how is Delivery.BY_CLIENT
    (asked,) = service.asked
    assert isinstance(asked, CompleteActivity)
    assert (asked.token, asked.result, asked.failure, asked.cancelled) == (b"t", DETAIL, None, False)


def test_failures_and_cancellations_are_sent_as_such():
    """Each end has its own request."""
    service = Service()
    send(service, FAILED, broken)
    send(service, CANCELLED, broken)
    failed, cancelled = service.asked
    assert failed.failure == FAILED.failure
    assert (cancelled.cancelled, cancelled.cancelled_details) == (True, (DETAIL,))


def test_result_is_resent_until_the_service_answers():
    """Until the service answers."""
    service = Service(ConnectionFailedError("down", status="UNAVAILABLE"), OSError("odd"))
    how = send(service, OK, broken)
    assert how is Delivery.BY_CLIENT
    assert len(service.asked) == 3


def test_result_of_an_unknown_attempt_is_dropped():
    """Another sender was faster, or nobody waits."""
    how = send(Service(ServiceError("no such", status="NOT_FOUND")), OK, broken)
    assert how is Delivery.UNWANTED


@pytest.mark.parametrize(("status", "asked"), [("UNAVAILABLE", 4), ("INVALID_ARGUMENT", 1)])
def test_retries_are_bounded(caplog, status, asked):
    """After the last pause, or an answer that will not change, the loss is logged without the payload."""
    service = Service(*[ServiceError("refused", status=status) for _ in range(9)])
    with caplog.at_level(logging.WARNING, logger="hourglass.worker"):
        how = send(service, OK, broken)
    assert (how, len(service.asked)) == (Delivery.LOST, asked)
    assert "charge" in caplog.text
    assert "detail" not in caplog.text


def test_late_acknowledgement_ends_resending():
    """The handle's completion succeeds while the service is down."""
    service = Service(*[ServiceError("down", status="UNAVAILABLE") for _ in range(9)])

    async def main():
        gate = asyncio.Event()
        sender = ResultSender(service, patience=0.0, pauses=(60.0,))

        async def late(_):
            await gate.wait()

        sending = asyncio.ensure_future(sender.send(task(), OK, late))
        async with asyncio.timeout(20):
            while not service.asked:  # noqa: ASYNC110 - a step of the loop
                await asyncio.sleep(0)
            gate.set()
            return await sending

    assert asyncio.run(main()) is Delivery.BY_HANDLE


def test_started_completion_is_never_cancelled():
    """Whoever waits for the sender may be cancelled; the handle's completion goes on."""

    async def main():
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

    asyncio.run(main())


def test_local_results_are_not_resent(caplog):
    """A local activity belongs to its handle: the loss is logged."""
    service = Service()
    with caplog.at_level(logging.WARNING, logger="hourglass.worker"):
        how = send(service, OK, broken, given=task(is_local=True))
    assert (how, service.asked) == (Delivery.LOST, [])
    assert "workflow task and the activity are retried" in caplog.text


def test_deferred_attempt_sends_nothing():
    """Another client completes it."""
    service = Service()
    assert send(service, ActivityDeferred(b"t"), broken) is Delivery.LOST
    assert service.asked == []


class Backwards:
    """A codec that anybody can break."""

    def encode(self, payloads):
        return [Payload(each.data[::-1], "backwards") for each in payloads]

    def decode(self, payloads):
        return payloads


def test_resent_results_are_encoded():
    """With a codec the service sees encoded payloads only."""
    service = Service()
    send(service, OK, broken, codec=Backwards())
    assert service.asked[0].result == Payload(DETAIL.data[::-1], "backwards")
