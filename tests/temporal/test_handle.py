"""The handle over Core, with Core replaced by futures that the tests resolve."""

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
from hourglass._temporal import core
from hourglass._temporal.handle import CoreHandle
from hourglass.converter import ApplicationFailure, Failure

from . import examples as ex


class FakeWorker:
    """A Core worker whose polls and completions are resolved by the test."""

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


def handle(
    worker: FakeWorker, config: HandleConfig | None = None, *, workflow_polls_only: bool = False
) -> CoreHandle:
    """A handle over the fake. With `workflow_polls_only` its raw activity polls are not recorded and never return."""
    if workflow_polls_only:
        never = asyncio.get_running_loop().create_future()
        worker.poll_activity_task = lambda: never  # type: ignore[method-assign]
    return CoreHandle(core.Ref(core._WORKER, worker), config or HandleConfig(task_queue="q"), "ns")


def poll_shutdown() -> Exception:
    """Return the error that Core's polls raise when its worker shuts down."""
    error: Exception = core.PollShutdown()
    return error


class PanicException(BaseException):
    """A stand-in for Rust's panic exception, whose class cannot be imported."""


def activation(run_id: str, *jobs: dict[str, Any]) -> bytes:
    return WorkflowActivation(run_id=run_id, jobs=[ex.job(job) for job in jobs]).SerializeToString()


TIMER = {"fire_timer": {"seq": 1}}


async def settle() -> None:
    """Run all ready callbacks."""
    for _ in range(10):
        await asyncio.sleep(0)


class Receivers:
    """The receivers of a handle, which it starts."""

    def __init__(self, core_handle: Handle) -> None:
        self.activations: list[Any] = []
        self.activities: list[Any] = []
        self.ends: list[tuple[WorkKind, Exception]] = []
        core_handle.start(
            self.activations.extend, self.activities.extend, lambda kind, why: self.ends.append((kind, why))
        )

    @property
    def run_ids(self) -> list[str]:
        return [activation.run_id for activation in self.activations]


def config_for(kind: str) -> HandleConfig:
    """The configuration of a handle for a single kind of work."""
    return HandleConfig(task_queue="q", workflows=kind == "workflows", activities=kind == "activities")


def cancellation(token: bytes) -> bytes:
    data: bytes = ex.fill(TaskMessage(), {"task_token": token, "cancel": {"reason": 1}}).SerializeToString()
    return data


def completions(worker: FakeWorker) -> list[tuple[str, str | None]]:
    """Return the run id and status of each completion that was sent."""
    sent = (WorkflowActivationCompletion.FromString(data) for data in worker.completions)
    return [(message.run_id, message.WhichOneof("status")) for message in sent]


async def test_handle_delivers_tasks_as_they_arrive_with_one_core_poll_at_a_time() -> None:
    worker = FakeWorker()
    received = Receivers(handle(worker, workflow_polls_only=True))
    for number in range(3):
        assert len(worker.polls) == number + 1
        worker.polls[number].set_result(activation(f"r{number}", TIMER))
        await settle()
    assert received.run_ids == ["r0", "r1", "r2"]
    assert received.activations[0].events == (ev.TimerFired(1),)


async def test_paused_handle_delivers_the_result_of_its_pending_poll() -> None:
    worker = FakeWorker()
    core_handle = handle(worker, workflow_polls_only=True)
    received = Receivers(core_handle)
    core_handle.pause(WorkKind.WORKFLOWS)
    await settle()
    assert not worker.polls[0].cancelled()
    worker.polls[0].set_result(activation("in flight", TIMER))
    await settle()
    assert (received.run_ids, len(worker.polls)) == (["in flight"], 1)
    core_handle.resume(WorkKind.WORKFLOWS)
    core_handle.resume(WorkKind.WORKFLOWS)
    assert len(worker.polls) == 2
    worker.polls[1].set_result(activation("next", TIMER))
    await settle()
    assert received.run_ids == ["in flight", "next"]


async def test_handle_repeats_a_cancelled_core_poll() -> None:
    worker = FakeWorker()
    received = Receivers(handle(worker, workflow_polls_only=True))
    worker.polls[0].cancel()
    await settle()
    worker.polls[1].set_result(activation("r", TIMER))
    await settle()
    assert received.run_ids == ["r"]


async def test_handle_polls_until_core_reports_the_shutdown_even_if_paused() -> None:
    """Core's shutdown would hang on undelivered items."""
    worker = FakeWorker()
    core_handle = handle(worker, workflow_polls_only=True)
    received = Receivers(core_handle)
    core_handle.pause(WorkKind.WORKFLOWS)
    worker.polls[0].set_result(activation("first", TIMER))
    await settle()
    core_handle.initiate_shutdown()
    core_handle.pause(WorkKind.WORKFLOWS)
    worker.polls[1].set_result(activation("left", TIMER))
    await settle()
    worker.polls[2].set_exception(poll_shutdown())
    await settle()
    assert received.run_ids == ["first", "left"]
    assert len(worker.polls) == 3


@pytest.mark.parametrize("kind", ["workflows", "activities"])
async def test_disabled_kind_of_work_makes_no_polls_and_ends_at_the_shutdown(kind: str) -> None:
    """Except activity polls of a workflow handle, because of local activities."""
    worker = FakeWorker()
    core_handle = handle(worker, config_for(kind))
    received = Receivers(core_handle)
    await settle()
    assert (len(worker.polls), received.ends) == (2 if kind == "workflows" else 1, [])
    core_handle.initiate_shutdown()
    core_handle.initiate_shutdown()
    for poll in worker.polls:
        poll.set_exception(poll_shutdown())
    await settle()
    assert sorted(end.value for end, _ in received.ends) == ["activity", "workflow"]
    assert {type(why) for _, why in received.ends} == {Shutdown}


async def test_rejected_completion_fails_its_task_although_its_caller_was_cancelled() -> None:
    worker = FakeWorker()
    core_handle = handle(worker)
    raw: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    worker.answers.append(raw)
    core_handle.complete_workflow_task(cmd.Succeeded("r")).cancel()
    ending = asyncio.create_task(core_handle.finalize())
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
async def test_poll_errors_end_both_kinds_of_work_once(
    error: BaseException, expected: type[Exception]
) -> None:
    worker = FakeWorker()
    core_handle = handle(worker)
    received = Receivers(core_handle)
    for poll in tuple(worker.polls):
        poll.set_exception(error)
    await settle()
    for kind in WorkKind:
        core_handle.resume(kind)
    core_handle.initiate_shutdown()
    await settle()
    assert [(kind, type(why)) for kind, why in received.ends] == [(kind, expected) for kind in WorkKind]
    assert len(worker.polls) == 2


async def test_handle_delivers_activity_cancellations_and_skips_unknown_messages() -> None:
    worker = FakeWorker()
    received = Receivers(handle(worker, config_for("activities")))
    worker.polls[0].set_result(TaskMessage(task_token=b"odd").SerializeToString())
    await settle()
    worker.polls[1].set_result(cancellation(b"t"))
    await settle()
    assert [item.token for item in received.activities] == [b"t"]
    assert len(worker.polls) == 3


async def test_activation_with_an_unsupported_event_fails_its_task() -> None:
    worker = FakeWorker()
    received = Receivers(handle(worker, workflow_polls_only=True))
    worker.polls[0].set_result(activation("odd", {"resolve_nexus_operation": {"seq": 1}}))
    await settle()
    worker.polls[1].set_result(activation("fine", TIMER))
    await settle()
    assert received.run_ids == ["fine"]
    (failed,) = (WorkflowActivationCompletion.FromString(data) for data in worker.completions)
    assert (failed.run_id, failed.WhichOneof("status")) == ("odd", "failed")
    assert "resolve_nexus_operation" in failed.failed.failure.message


async def test_unreadable_activation_breaks_the_handle() -> None:
    worker = FakeWorker()
    received = Receivers(handle(worker, workflow_polls_only=True))
    worker.polls[0].set_result(b"\xff")
    await settle()
    assert [(kind, type(why)) for kind, why in received.ends] == [(WorkKind.WORKFLOWS, HandleBroken)]
    assert len(worker.polls) == 1


async def test_handle_breaks_if_its_core_worker_was_dropped() -> None:
    worker = FakeWorker()
    core_handle = handle(worker, workflow_polls_only=True)
    received = Receivers(core_handle)
    core_handle._worker.drop()
    worker.polls[0].set_result(activation("last", TIMER))
    await settle()
    assert received.run_ids == ["last"]
    assert [(kind, type(why)) for kind, why in received.ends] == [(WorkKind.WORKFLOWS, HandleBroken)]


@pytest.mark.parametrize("error", [ValueError("Invalid proto"), RuntimeError("Completion failure")])
async def test_completion_rejected_by_core_becomes_a_failed_task(error: Exception) -> None:
    worker = FakeWorker()
    worker.answers = [error]
    assert await handle(worker).complete_workflow_task(cmd.Succeeded("r")) is CompletionResult.REJECTED
    assert completions(worker) == [("r", "successful"), ("r", "failed")]


async def test_unencodable_completion_becomes_a_failed_task() -> None:
    worker = FakeWorker()
    broken = cmd.Succeeded("r", (object(),))  # type: ignore[arg-type]
    assert await handle(worker).complete_workflow_task(broken) is CompletionResult.REJECTED
    assert completions(worker) == [("r", "failed")]


async def test_activity_result_rejected_by_core_becomes_a_failed_attempt() -> None:
    worker = FakeWorker()
    worker.answers = [RuntimeError("Malformed activity completion")]
    await handle(worker).complete_activity(ActivityDeferred(b"t"))
    _, second = (ActivityTaskCompletion.FromString(data) for data in worker.completions)
    assert (second.task_token, second.result.WhichOneof("status")) == (b"t", "failed")


@pytest.mark.parametrize("is_last_here", [False, True])
async def test_last_local_attempt_before_shutdown_is_sent_as_non_retryable(is_last_here: bool) -> None:
    """Core would retry it on the handle that is shutting down, and never end."""
    worker = FakeWorker()
    failure = Failure("stopped", ApplicationFailure(type="WorkerShutdown"))
    await handle(worker).complete_activity(AttemptFailed(b"t", failure, is_last_here))
    (sent,) = (ActivityTaskCompletion.FromString(data) for data in worker.completions)
    assert sent.result.failed.failure.application_failure_info.non_retryable is is_last_here


async def test_completion_rejected_twice_breaks_the_handle() -> None:
    for answers in ([RuntimeError("a"), RuntimeError("b")], [PanicException("p")]):
        worker = FakeWorker()
        worker.answers = list(answers)
        with pytest.raises(HandleBroken):
            await handle(worker).complete_workflow_task(cmd.Succeeded("r"))
