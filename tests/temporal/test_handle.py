"""What a handle makes of Core's answers, with Core replaced by futures that the tests hold."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.bridge.proto import ActivityTaskCompletion
from temporalio.bridge.proto.activity_task import ActivityTask as TaskMessage
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from hourglass._contract.handle import (
    ActivityDeferred,
    AttemptFailed,
    CompletionResult,
    Handle,
    HandleBroken,
    HandleConfig,
    Shutdown,
    WorkKind,
)
from hourglass._evaluator import commands as cmd
from hourglass._evaluator import events as ev
from hourglass.converter import ApplicationFailure, Failure

from . import examples as ex
from .core_fakes import FakeWorker, handle, poll_shutdown


class PanicException(BaseException):
    """Looks like Rust's panic, whose class cannot be imported."""


def activation(run_id: str, *jobs: dict[str, Any]) -> bytes:
    return WorkflowActivation(run_id=run_id, jobs=[ex.job(job) for job in jobs]).SerializeToString()


TIMER = {"fire_timer": {"seq": 1}}


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Received:
    """The receivers of a handle, which is started."""

    def __init__(self, it: Handle) -> None:
        self.activations: list[Any] = []
        self.activities: list[Any] = []
        self.ends: list[tuple[WorkKind, Exception]] = []
        it.start(
            self.activations.extend, self.activities.extend, lambda kind, why: self.ends.append((kind, why))
        )

    @property
    def run_ids(self) -> list[str]:
        return [activation.run_id for activation in self.activations]


def only(kind: str) -> HandleConfig:
    """A handle that serves one kind of work."""
    return HandleConfig(task_queue="q", workflows=kind == "workflows", activities=kind == "activities")


def cancellation(token: bytes) -> bytes:
    data: bytes = ex.fill(TaskMessage(), {"task_token": token, "cancel": {"reason": 1}}).SerializeToString()
    return data


def completions(worker: FakeWorker) -> list[tuple[str, str | None]]:
    """What was sent: each run, and whether its completion is a success or a failure."""
    sent = (WorkflowActivationCompletion.FromString(data) for data in worker.completions)
    return [(each.run_id, each.WhichOneof("status")) for each in sent]


async def test_items_are_delivered_as_they_arrive() -> None:
    """Each raw poll's result goes to the receiver in the turn in which it comes, and the next raw poll is made; one at a time."""
    worker = FakeWorker()
    got = Received(handle(worker, workflow_polls_only=True))
    for number in range(3):
        assert len(worker.polls) == number + 1
        worker.polls[number].set_result(activation(f"r{number}", TIMER))
        await settle()
    assert got.run_ids == ["r0", "r1", "r2"]
    assert got.activations[0].events == (ev.TimerFired(1),)


async def test_paused_handle_keeps_its_raw_poll() -> None:
    """It is neither cancelled nor repeated: its result is delivered, and polling goes on when the handle is resumed."""
    worker = FakeWorker()
    it = handle(worker, workflow_polls_only=True)
    got = Received(it)
    it.pause(WorkKind.WORKFLOWS)
    await settle()
    assert not worker.polls[0].cancelled()
    worker.polls[0].set_result(activation("on its way", TIMER))
    await settle()
    assert (got.run_ids, len(worker.polls)) == (["on its way"], 1)
    it.resume(WorkKind.WORKFLOWS)
    it.resume(WorkKind.WORKFLOWS)
    assert len(worker.polls) == 2
    worker.polls[1].set_result(activation("next", TIMER))
    await settle()
    assert got.run_ids == ["on its way", "next"]


async def test_cancelled_raw_poll_is_repeated() -> None:
    """Against the rules, and yet the worker does not become one that polls nothing."""
    worker = FakeWorker()
    got = Received(handle(worker, workflow_polls_only=True))
    worker.polls[0].cancel()
    await settle()
    worker.polls[1].set_result(activation("r", TIMER))
    await settle()
    assert got.run_ids == ["r"]


async def test_closing_handle_polls_to_the_end() -> None:
    """Also while it is paused: Core's shutdown would hang on what is not fetched."""
    worker = FakeWorker()
    it = handle(worker, workflow_polls_only=True)
    got = Received(it)
    it.pause(WorkKind.WORKFLOWS)
    worker.polls[0].set_result(activation("first", TIMER))
    await settle()
    it.initiate_shutdown()
    it.pause(WorkKind.WORKFLOWS)
    worker.polls[1].set_result(activation("left", TIMER))
    await settle()
    worker.polls[2].set_exception(poll_shutdown())
    await settle()
    assert got.run_ids == ["first", "left"]
    assert len(worker.polls) == 3


@pytest.mark.parametrize("kind", ["workflows", "activities"])
async def test_disabled_kind_ends_with_the_shutdown(kind: str) -> None:
    """It makes no raw poll, and ends no sooner. (Where there are workflows there are local activities.)"""
    worker = FakeWorker()
    it = handle(worker, only(kind))
    got = Received(it)
    await settle()
    assert (len(worker.polls), got.ends) == (2 if kind == "workflows" else 1, [])
    it.initiate_shutdown()
    it.initiate_shutdown()
    for poll in worker.polls:
        poll.set_exception(poll_shutdown())
    await settle()
    assert sorted(end.value for end, _ in got.ends) == ["activity", "workflow"]
    assert {type(why) for _, why in got.ends} == {Shutdown}


async def test_rejected_completion_is_failed_without_a_waiter() -> None:
    """The call is seen to its end, and the handle is not freed before."""
    worker = FakeWorker()
    it = handle(worker)
    raw: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    worker.answers.append(raw)
    it.complete_workflow_task(cmd.Succeeded("r")).cancel()
    ending = asyncio.create_task(it.finalize())
    await settle()
    assert (worker.finalized, raw.cancelled()) == (0, False)
    raw.set_exception(ValueError("malformed"))
    await ending
    assert completions(worker) == [("r", "successful"), ("r", "failed")]
    assert worker.finalized == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (poll_shutdown(), Shutdown),
        (RuntimeError("Poll failure: gone"), HandleBroken),
        (PanicException("boom"), HandleBroken),
    ],
)
async def test_errors_that_end_polls(error: BaseException, expected: type[Exception]) -> None:
    """Core's shutdown is `Shutdown`, every other error and a panic `HandleBroken`; both are final, and said once per kind."""
    worker = FakeWorker()
    it = handle(worker)
    got = Received(it)
    for poll in tuple(worker.polls):
        poll.set_exception(error)
    await settle()
    for kind in WorkKind:
        it.resume(kind)
    it.initiate_shutdown()
    await settle()
    assert [(kind, type(why)) for kind, why in got.ends] == [(kind, expected) for kind in WorkKind]
    assert len(worker.polls) == 2


async def test_activities_have_their_own_receiver() -> None:
    """Activity tasks and cancellations; kinds that we do not know are passed over."""
    worker = FakeWorker()
    got = Received(handle(worker, only("activities")))
    worker.polls[0].set_result(TaskMessage(task_token=b"odd").SerializeToString())
    await settle()
    worker.polls[1].set_result(cancellation(b"t"))
    await settle()
    assert [item.token for item in got.activities] == [b"t"]
    assert len(worker.polls) == 3


async def test_unsupported_event_fails_its_task() -> None:
    """An activation that we cannot read is completed as failed, and the next one is delivered."""
    worker = FakeWorker()
    got = Received(handle(worker, workflow_polls_only=True))
    worker.polls[0].set_result(activation("odd", {"resolve_nexus_operation": {"seq": 1}}))
    await settle()
    worker.polls[1].set_result(activation("fine", TIMER))
    await settle()
    assert got.run_ids == ["fine"]
    (failed,) = (WorkflowActivationCompletion.FromString(data) for data in worker.completions)
    assert (failed.run_id, failed.WhichOneof("status")) == ("odd", "failed")
    assert "resolve_nexus_operation" in failed.failed.failure.message


async def test_unreadable_bytes_end_the_handle() -> None:
    """Which run they concern is unknown, so nothing can be failed: the handle is replaced."""
    worker = FakeWorker()
    got = Received(handle(worker, workflow_polls_only=True))
    worker.polls[0].set_result(b"\xff")
    await settle()
    assert [(kind, type(why)) for kind, why in got.ends] == [(WorkKind.WORKFLOWS, HandleBroken)]
    assert len(worker.polls) == 1


async def test_dropped_core_worker_ends_the_handle() -> None:
    """If no further raw poll can be made the kind ends; what was delivered before stays delivered."""
    worker = FakeWorker()
    it = handle(worker, workflow_polls_only=True)
    got = Received(it)
    it._worker.drop()
    worker.polls[0].set_result(activation("last", TIMER))
    await settle()
    assert got.run_ids == ["last"]
    assert [(kind, type(why)) for kind, why in got.ends] == [(WorkKind.WORKFLOWS, HandleBroken)]


@pytest.mark.parametrize("error", [ValueError("Invalid proto"), RuntimeError("Completion failure")])
async def test_rejected_completion_becomes_a_failed_task(error: Exception) -> None:
    """Core keeps an activation open whose completion it refused, so that a failed task follows at once."""
    worker = FakeWorker()
    worker.answers = [error]
    assert await handle(worker).complete_workflow_task(cmd.Succeeded("r")) is CompletionResult.REFUSED
    assert completions(worker) == [("r", "successful"), ("r", "failed")]


async def test_unencodable_completion_becomes_a_failed_task() -> None:
    """It never reaches Core, which would wait for it."""
    worker = FakeWorker()
    broken = cmd.Succeeded("r", (object(),))  # type: ignore[arg-type]
    assert await handle(worker).complete_workflow_task(broken) is CompletionResult.REFUSED
    assert completions(worker) == [("r", "failed")]


async def test_rejected_result_becomes_a_failed_attempt() -> None:
    """An activity's result that Core refuses is followed by a failed attempt, or the attempt would never end."""
    worker = FakeWorker()
    worker.answers = [RuntimeError("Malformed activity completion")]
    await handle(worker).complete_activity(ActivityDeferred(b"t"))
    _, second = (ActivityTaskCompletion.FromString(data) for data in worker.completions)
    assert (second.task_token, second.result.WhichOneof("status")) == (b"t", "failed")


@pytest.mark.parametrize("is_last_here", [False, True])
async def test_last_local_attempt_before_shutdown_is_final_for_core(is_last_here: bool) -> None:
    """Core would begin it again on the very handle that shuts down, and never end."""
    worker = FakeWorker()
    failure = Failure("stopped", ApplicationFailure(type="WorkerShutdown"))
    await handle(worker).complete_activity(AttemptFailed(b"t", failure, is_last_here))
    (sent,) = (ActivityTaskCompletion.FromString(data) for data in worker.completions)
    assert sent.result.failed.failure.application_failure_info.non_retryable is is_last_here


async def test_completion_rejected_twice_breaks_the_handle() -> None:
    """A handle that refuses even the failed task, or panics, is broken."""
    for answers in ([RuntimeError("a"), RuntimeError("b")], [PanicException("p")]):
        worker = FakeWorker()
        worker.answers = list(answers)
        with pytest.raises(HandleBroken):
            await handle(worker).complete_workflow_task(cmd.Succeeded("r"))


async def test_cancelled_completion_is_still_sent() -> None:
    """A future that a caller cancels is not Core's: the completion goes on, and freeing the handle waits for it."""
    worker = FakeWorker()
    held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    worker.answers = [held]
    it = handle(worker)
    it.complete_workflow_task(cmd.Succeeded("r")).cancel()
    assert not held.cancelled()
    freeing = asyncio.create_task(it.finalize())
    await settle()
    assert worker.finalized == 0
    held.set_result(None)
    await freeing
    assert worker.finalized == 1
