"""What a handle makes of Core's answers, with Core replaced by futures that the tests hold."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.bridge.proto import ActivityTaskCompletion
from temporalio.bridge.proto.activity_task import ActivityTask as TaskMessage
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from hourglass._contract.handle import ActivityDeferred, HandleBroken, HandleConfig, Shutdown
from hourglass._evaluator import commands as cmd
from hourglass._evaluator import events as ev
from hourglass._temporal import core
from hourglass._temporal.handle import CoreHandle, Poll

from . import examples as ex
from . import live


class PanicException(BaseException):
    """Looks like Rust's panic, whose class cannot be imported."""


class FakeWorker:
    """Core's worker, with every future in the test's hand."""

    def __init__(self) -> None:
        self.polls: list[asyncio.Future[bytes]] = []
        self.completions: list[bytes] = []
        self.answers: list[BaseException | asyncio.Future[None] | None] = []
        self.finalized = 0

    def _poll(self) -> asyncio.Future[bytes]:
        self.polls.append(asyncio.get_running_loop().create_future())
        return self.polls[-1]

    poll_workflow_activation = poll_activity_task = _poll

    def _complete(self, data: bytes) -> asyncio.Future[None]:
        self.completions.append(data)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, asyncio.Future):
            return answer
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if answer is None:
            future.set_result(None)
        else:
            future.set_exception(answer)
        return future

    complete_workflow_activation = complete_activity_task = _complete

    def initiate_shutdown(self) -> None:
        pass

    def finalize_shutdown(self) -> asyncio.Future[None]:
        self.finalized += 1
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


def handle(worker: FakeWorker) -> CoreHandle:
    return CoreHandle(core.Ref(core._WORKER, worker), HandleConfig(task_queue="q"), "ns")


def activation(run_id: str, *jobs: dict[str, Any]) -> bytes:
    return WorkflowActivation(run_id=run_id, jobs=[ex.job(job) for job in jobs]).SerializeToString()


TIMER = {"fire_timer": {"seq": 1}}


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_cancelled_poll_keeps_its_result() -> None:
    """What arrives after, before or while its asker is cancelled goes to the next who asks; nothing is polled twice."""

    async def test() -> None:
        for arrives in ("after", "before", "never"):
            worker = FakeWorker()
            it = handle(worker)
            asker = asyncio.create_task(it.poll_activation())
            await settle()
            if arrives == "before":
                worker.polls[0].set_result(activation("r", TIMER))
            asker.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asker
            assert not worker.polls[0].cancelled()
            if arrives == "after":
                worker.polls[0].set_result(activation("r", TIMER))
            following = asyncio.create_task(it.poll_activation())
            await settle()
            if arrives == "never":
                worker.polls[0].set_result(activation("r", TIMER))
            assert (await following).events == (ev.TimerFired(1),)
            assert len(worker.polls) == 1

    live.run(test)


def test_a_refused_completion_is_failed_though_its_caller_has_gone() -> None:
    """The call is seen to its end, and the handle is not freed before."""

    async def test() -> None:
        worker = FakeWorker()
        it = handle(worker)
        raw: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        worker.answers.append(raw)
        completing = asyncio.create_task(it.complete_activation(cmd.Succeeded("r")))
        await settle()
        completing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await completing
        ending = asyncio.create_task(it.finalize_shutdown())
        await settle()
        assert worker.finalized == 0
        raw.set_exception(ValueError("malformed"))
        await ending
        sent = WorkflowActivationCompletion.FromString(worker.completions[1])
        assert sent.WhichOneof("status") == "failed"
        assert (len(worker.completions), worker.finalized) == (2, 1)

    live.run(test)


def test_two_askers_get_one_item_each() -> None:
    """Two who ask at once share the poll in flight, and each item goes to one of them."""

    async def test() -> None:
        worker = FakeWorker()
        it = handle(worker)
        askers = [asyncio.create_task(it.poll_activation()) for _ in range(2)]
        await settle()
        assert len(worker.polls) == 1
        worker.polls[0].set_result(activation("a", TIMER))
        await settle()
        worker.polls[1].set_result(activation("b", TIMER))
        assert {(await asker).run_id for asker in askers} == {"a", "b"}

    live.run(test)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (core.PollShutdown(), Shutdown),
        (RuntimeError("Poll failure: gone"), HandleBroken),
        (PanicException("boom"), HandleBroken),
    ],
)
def test_how_polls_end(error: BaseException, expected: type[Exception]) -> None:
    """Core's shutdown is `Shutdown`, every other error and a panic `HandleBroken`; both are final."""

    async def test() -> None:
        worker = FakeWorker()
        it = handle(worker)
        for poll in (it.poll_activation, it.poll_activity):
            asker = asyncio.create_task(poll())
            await settle()
            worker.polls[-1].set_exception(error)
            with pytest.raises(expected):
                await asker
            with pytest.raises(expected):
                await poll()
        assert len(worker.polls) == 2

    live.run(test)


def test_a_receiver_is_given_what_comes_while_a_poll_waits() -> None:
    """Items go to the receiver, in order, and wake no poll; without a receiver, or a poll that waits, they are polled."""

    async def test() -> None:
        worker = FakeWorker()
        it = handle(worker)
        got: list[Any] = []
        it.on_activations = got.extend
        asker = asyncio.create_task(it.poll_activation())
        await settle()
        for number in range(3):
            worker.polls[number].set_result(activation(f"r{number}", TIMER))
            await settle()
        assert [each.run_id for each in got] == ["r0", "r1", "r2"]
        assert not asker.done()
        assert len(worker.polls) == 4
        it.on_activations = None
        worker.polls[3].set_result(activation("polled", TIMER))
        assert (await asker).run_id == "polled"
        it.on_activations = got.extend
        cancelled = asyncio.create_task(it.poll_activation())
        await settle()
        cancelled.cancel()
        await settle()
        worker.polls[4].set_result(activation("kept", TIMER))  # no poll waits: it is in no worker's hands yet
        await settle()
        assert len(got) == 3
        assert len(worker.polls) == 5
        assert (await it.poll_activation()).run_id == "kept"

    live.run(test)


def test_a_receiver_hears_of_activities_too() -> None:
    """Activity tasks and cancellations go to their own receiver; kinds that we do not know are passed over."""

    async def test() -> None:
        worker = FakeWorker()
        it = handle(worker)
        got: list[Any] = []
        it.on_activities = got.extend
        asker = asyncio.create_task(it.poll_activity())
        await settle()
        worker.polls[0].set_result(TaskMessage(task_token=b"odd").SerializeToString())
        await settle()
        message = ex.fill(TaskMessage(), {"task_token": b"t", "cancel": {"reason": 1}})
        worker.polls[1].set_result(message.SerializeToString())
        await settle()
        assert [each.token for each in got] == [b"t"]
        assert not asker.done()
        asker.cancel()

    live.run(test)


def test_a_result_that_a_caller_has_taken_is_not_given_again() -> None:
    """A caller may come by between a call's end and the news of it: the item is its own, and no call is lost."""

    async def test() -> None:
        calls: list[asyncio.Future[bytes]] = []
        given: list[bytes] = []

        def start() -> asyncio.Future[bytes]:
            calls.append(asyncio.get_running_loop().create_future())
            return calls[-1]

        def give(data: bytes) -> bool:
            given.append(data)
            return True

        poll = Poll(start, give)
        first = asyncio.create_task(poll.take())
        await asyncio.sleep(0)
        first.cancel()
        calls[0].set_result(b"one")  # what is to be done then is done in the loop's next turn
        with pytest.raises(StopIteration) as taken:
            poll.take().send(None)
        later = poll.take()
        later.send(None)
        await asyncio.gather(first, return_exceptions=True)
        assert (taken.value.value, given, len(calls)) == (b"one", [], 2)
        later.close()

    live.run(test)


def test_what_a_receiver_cannot_be_given_is_the_polls() -> None:
    """An activation that we cannot read fails its task though there is a receiver; the ends are raised by the poll."""

    async def test() -> None:
        worker = FakeWorker()
        it = handle(worker)
        got: list[Any] = []
        it.on_activations = got.extend
        asker = asyncio.create_task(it.poll_activation())
        await settle()
        worker.polls[0].set_result(activation("odd", {"resolve_nexus_operation": {"seq": 1}}))
        await settle()
        worker.polls[1].set_result(activation("fine", TIMER))
        await settle()
        assert [each.run_id for each in got] == ["fine"]
        (failed,) = (WorkflowActivationCompletion.FromString(data) for data in worker.completions)
        assert (failed.run_id, failed.WhichOneof("status")) == ("odd", "failed")
        worker.polls[2].set_exception(core.PollShutdown())
        with pytest.raises(Shutdown):
            await asker

    live.run(test)


def test_a_worker_that_is_gone_ends_the_poll_and_not_the_receiver() -> None:
    """If no further raw poll can be made, the poll that waits says so; what was given before stays given."""

    async def test() -> None:
        worker = FakeWorker()
        it = handle(worker)
        got: list[Any] = []
        it.on_activations = got.extend
        asker = asyncio.create_task(it.poll_activation())
        await settle()
        it._worker.drop()
        worker.polls[0].set_result(activation("last", TIMER))
        with pytest.raises(HandleBroken):
            await asker
        assert [each.run_id for each in got] == ["last"]

    live.run(test)


def test_an_unsupported_event_fails_its_task() -> None:
    """An activation that we cannot read is completed as failed, and the next one is delivered."""

    async def test() -> None:
        worker = FakeWorker()
        it = handle(worker)
        asker = asyncio.create_task(it.poll_activation())
        await settle()
        worker.polls[0].set_result(activation("odd", {"resolve_nexus_operation": {"seq": 1}}))
        await settle()
        worker.polls[1].set_result(activation("fine", TIMER))
        assert (await asker).run_id == "fine"
        await settle()
        (failed,) = (WorkflowActivationCompletion.FromString(data) for data in worker.completions)
        assert (failed.run_id, failed.WhichOneof("status")) == ("odd", "failed")
        assert "resolve_nexus_operation" in failed.failed.failure.message

    live.run(test)


def test_an_unknown_activity_item_is_skipped() -> None:
    """An activity item of a kind that we do not know is passed over."""

    async def test() -> None:
        worker = FakeWorker()
        it = handle(worker)
        asker = asyncio.create_task(it.poll_activity())
        await settle()
        worker.polls[0].set_result(TaskMessage(task_token=b"odd").SerializeToString())
        await settle()
        message = ex.fill(TaskMessage(), {"task_token": b"t", "cancel": {"reason": 1}})
        worker.polls[1].set_result(message.SerializeToString())
        assert (await asker).token == b"t"

    live.run(test)


@pytest.mark.parametrize("error", [ValueError("Invalid proto"), RuntimeError("Completion failure")])
def test_a_refused_completion_becomes_a_failed_task(error: Exception) -> None:
    """Core keeps an activation open whose completion it refused, so that a failed task follows at once."""

    async def test() -> None:
        worker = FakeWorker()
        worker.answers = [error]
        await handle(worker).complete_activation(cmd.Succeeded("r"))
        first, second = (WorkflowActivationCompletion.FromString(data) for data in worker.completions)
        assert (first.run_id, first.WhichOneof("status")) == ("r", "successful")
        assert (second.run_id, second.WhichOneof("status")) == ("r", "failed")

    live.run(test)


def test_a_refused_result_becomes_a_failed_attempt() -> None:
    """An activity's result that Core refuses is followed by a failed attempt, or the attempt would never end."""

    async def test() -> None:
        worker = FakeWorker()
        worker.answers = [RuntimeError("Malformed activity completion")]
        await handle(worker).complete_activity(ActivityDeferred(b"t"))
        _, second = (ActivityTaskCompletion.FromString(data) for data in worker.completions)
        assert (second.task_token, second.result.WhichOneof("status")) == (b"t", "failed")

    live.run(test)


def test_a_completion_that_is_refused_twice() -> None:
    """A handle that refuses even the failed task, or panics, is broken."""

    async def test() -> None:
        for answers in ([RuntimeError("a"), RuntimeError("b")], [PanicException("p")]):
            worker = FakeWorker()
            worker.answers = list(answers)
            with pytest.raises(HandleBroken):
                await handle(worker).complete_activation(cmd.Succeeded("r"))

    live.run(test)


def test_a_cancelled_completion_goes_through() -> None:
    """Whoever completes may be cancelled: the completion itself is not, and freeing the handle waits for it."""

    async def test() -> None:
        worker = FakeWorker()
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        worker.answers = [held]
        it = handle(worker)
        completing = asyncio.create_task(it.complete_activation(cmd.Succeeded("r")))
        await settle()
        completing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await completing
        assert not held.cancelled()
        freeing = asyncio.create_task(it.finalize_shutdown())
        await settle()
        assert worker.finalized == 0
        held.set_result(None)
        await freeing
        assert worker.finalized == 1

    live.run(test)
