"""The protocol between processes: every request, answer and error round-trips; anything else is rejected."""

from __future__ import annotations

from inspect import signature
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.embedded.examples import example
from tests.specs import made

from hourglass import errors
from hourglass._contract import activities as ac
from hourglass._contract import deployments as dp
from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.handle import (
    ActivityCancel,
    ActivityDeferred,
    ActivityItem,
    ActivityOk,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
    HandleConfig,
    WorkKind,
)
from hourglass._contract.schedules import DeleteSchedule
from hourglass._embedded.api.requests import HANDLERS
from hourglass._embedded.multiprocess import wire
from hourglass._embedded.multiprocess.remote_handle import RemoteHandle, _Answers
from hourglass._evaluator.commands import COMMANDS, Command, StartTimer, Succeeded, TaskFailed
from hourglass._evaluator.events import EVENTS, Activation, Event
from hourglass.converter import ApplicationFailure, Failure, Payload
from hourglass.workflow import VersioningBehavior

PAYLOAD = Payload(b"\x00\xff", "binary/plain", {"key": b"value"})
START = made(
    wf.StartWorkflow,
    workflow_id="w",
    workflow_type="t",
    task_queue="q",
    request_id="r",
    arguments=(PAYLOAD,),
    memo={"m": PAYLOAD},
    rpc_timeout=1.5,
)
FAILURE = Failure("no", ApplicationFailure(type="T", details=(PAYLOAD,)), cause=Failure("why"))


def round_trip(request: s.Request[Any], value: msgspec.Struct) -> tuple[Any, Any]:
    sent_request = wire.decode_to_owner(wire.encode_request(7, "key", request))
    assert isinstance(sent_request, wire.RequestMessage)
    answered = wire.decode_to_client(wire.encode_answer(7, value))
    assert isinstance(answered, wire.AnswerMessage)
    assert (sent_request.number, sent_request.key, answered.number) == (7, "key", 7)
    return wire.decode_request(sent_request), wire.decode_answer(request, answered)


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (START, wf.Started("run", started=False)),
        (wf.SignalWorkflow(workflow_id="w", signal_name="n", request_id="r"), s.Nothing()),
        (
            wf.QueryWorkflow(workflow_id="w", query_name="n", headers={"h": PAYLOAD}),
            wf.QueryAnswer((PAYLOAD,)),
        ),
        (wf.WaitForClose(workflow_id="w"), wf.RunCompleted((PAYLOAD,), "next")),
        (wf.WaitForClose(workflow_id="w"), wf.RunFailed(FAILURE)),
        (wf.WaitForClose(workflow_id="w"), wf.RunTerminated("enough", (PAYLOAD,))),
        (wf.WaitForClose(workflow_id="w"), wf.StillOpen("run")),
        (wf.GetHistory(workflow_id="w", wait_new=True), wf.HistoryPage((b"{}", b"[]"), b"2")),
        (
            wf.ListWorkflows(query="x = 1"),
            wf.Page(
                (
                    wf.WorkflowSummary(
                        workflow_id="w",
                        run_id="r",
                        workflow_type="t",
                        status=wf.WorkflowStatus.TERMINATED,
                        memo={"m": PAYLOAD},
                    ),
                ),
                b"9",
            ),
        ),
        (ac.CompleteActivity(token=b"\x01", failure=FAILURE), s.Nothing()),
    ],
    ids=lambda each: type(each).__name__,
)
def test_requests_and_answers_round_trip(request_: s.Request[Any], answer: msgspec.Struct) -> None:
    assert round_trip(request_, answer) == (request_, answer)


def test_every_request_declares_its_effect_and_its_worker() -> None:
    assert set(HANDLERS) == set(wire.REQUESTS)
    for each in wire.REQUESTS:
        assert "effect" in vars(each), f"{each.__name__} does not say what happens if it is carried out twice"
        assert not (each.needs_worker and each.effect is s.Effect.READ)
    without_request_id = {
        ac.CompleteActivity,
        dp.CreateNamespace,
        dp.CreateNexusEndpoint,
        dp.DeleteNexusEndpoint,
        DeleteSchedule,
        dp.SetCurrentVersion,
        dp.SetRampingVersion,
        wf.TerminateWorkflow,
    }
    changes = {request for request in wire.REQUESTS if request.effect is s.Effect.CHANGE}
    identified_by_start = {wf.ExecuteWorkflow}
    assert all(
        "request_id" in each.__struct_fields__ for each in changes - without_request_id - identified_by_start
    )


@pytest.mark.parametrize(
    "error",
    [
        errors.ServiceError("a", status="UNAVAILABLE"),
        errors.WorkflowNotFoundError("b", status="NOT_FOUND"),
        errors.ServiceTimeoutError("c", status="DEADLINE_EXCEEDED"),
        errors.StorageError("d", status="DATA_LOSS"),
        errors.NamespaceNotFoundError("e", status="NOT_FOUND"),
        errors.QueryFailedError("f"),
        errors.UsageError("g"),
        errors.WorkflowAlreadyStartedError("h", workflow_id="w", workflow_type="t", run_id="r"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_errors_round_trip(error: errors.HourglassError) -> None:
    problem = msgspec.msgpack.decode(wire.encode(wire.problem_of(error)), type=wire.ErrorMessage)
    arrived = wire.error_of(problem)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.__dict__ == error.__dict__


@pytest.mark.parametrize(
    "kind",
    [kind for kind in errors.ServiceError.__subclasses__() if kind.__name__ in errors.__all__],
    ids=lambda kind: kind.__name__,
)
def test_every_service_error_keeps_its_class_and_fields(kind: type[errors.ServiceError]) -> None:
    parameters = signature(kind).parameters.values()
    fields = {
        parameter.name: f"the {parameter.name}"
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "status"
    }
    arrived = wire.error_of(wire.problem_of(kind("the message", **fields)))
    assert type(arrived) is kind
    assert str(arrived) == "the message"
    assert {name: getattr(arrived, name) for name in fields} == fields


def test_error_of_another_library_reveals_only_its_class() -> None:
    """The message of such an error may contain secrets."""
    problem = wire.problem_of(ValueError("secret"))
    assert problem.kind == "InternalError"
    assert "secret" not in problem.message
    assert isinstance(wire.error_of(problem), errors.InternalError)


def test_unknown_error_becomes_an_internal_error() -> None:
    assert type(wire.error_of(wire.ErrorMessage(kind="os.system", message="x"))) is errors.InternalError


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\xff" * 40,
        msgspec.msgpack.encode({"type": "Nonsense"}),
        msgspec.msgpack.encode([1, 2]),
    ],
)
def test_malformed_bytes_are_rejected(frame: bytes) -> None:
    with pytest.raises(wire.InvalidMessage):
        wire.decode_to_owner(frame)
    with pytest.raises(wire.InvalidMessage):
        wire.decode_to_client(frame)


@pytest.mark.parametrize("kind", ["Nothing", "os.system", "hourglass.errors.StorageError", "Request"])
def test_only_request_names_are_accepted(kind: str) -> None:
    with pytest.raises(wire.InvalidMessage):
        wire.decode_request(wire.RequestMessage(1, "k", kind, msgspec.Raw(wire.encode({}))))


def test_answer_must_match_its_request() -> None:
    message = wire.decode_to_client(wire.encode_answer(1, wf.Count(3)))
    assert isinstance(message, wire.AnswerMessage)
    with pytest.raises(wire.InvalidMessage):
        wire.decode_answer(wf.DescribeWorkflow(workflow_id="w"), message)


@pytest.mark.parametrize(
    "outcome", [wf.RunCompleted((PAYLOAD,), "next"), wf.RunFailed(FAILURE), wf.StillOpen("run")]
)
def test_execute_request_and_answer_round_trip(outcome: wf.Outcome) -> None:
    request = wf.ExecuteWorkflow(start=START)
    sent_request = wire.decode_to_owner(wire.encode_request(7, "key", request))
    assert isinstance(sent_request, wire.RequestMessage)
    assert wire.decode_request(sent_request) == request
    answered = wire.decode_to_client(wire.encode_answer(7, wf.Executed("run", outcome)))
    assert isinstance(answered, wire.AnswerMessage)
    assert wire.decode_answer(request, answered) == wf.Executed("run", outcome)


def test_request_with_wrong_types_is_rejected() -> None:
    body = msgspec.Raw(wire.encode({"workflow_id": 1, "signal_name": "n", "request_id": "r"}))
    with pytest.raises(wire.InvalidMessage):
        wire.decode_request(wire.RequestMessage(1, "k", "SignalWorkflow", body))


# --- work ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COMMANDS)
def test_every_command_round_trips(kind: type[Command]) -> None:
    sent = Succeeded("run", (example(kind),), (1, 2), VersioningBehavior.PINNED)
    answers = wire.WorkAnswers(handle=1, succeeded=(sent,))  # type: ignore[arg-type]
    received = wire.decode_to_owner(wire.encode(answers))
    assert isinstance(received, wire.WorkAnswers)
    assert [each.completion() for each in received.succeeded] == [sent]


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_round_trips(kind: type[Event]) -> None:
    sent = wire.HandleWork(handle=1, activations=(replace(example(Activation), events=(example(kind),)),))
    assert wire.decode_to_client(wire.encode(sent)) == sent


def test_attempts_and_results_round_trip() -> None:
    work = wire.HandleWork(handle=1, tasks=(example(ActivityTask),), cancels=(example(ActivityCancel),))
    assert wire.decode_to_client(wire.encode(work)) == work
    answers = wire.WorkAnswers(
        handle=1,
        heartbeats=((b"token", (PAYLOAD,)),),
        returned=(example(ActivityOk), ActivityOk(b"token")),
        failed=(example(AttemptFailed),),
        cancelled=(example(AttemptCancelled),),
        deferred=(example(ActivityDeferred),),
        failed_tasks=(example(TaskFailed),),
        evictions=("run",),
    )
    assert wire.decode_to_owner(wire.encode(answers)) == answers
    opened = wire.OpenHandle(1, 2, example(HandleConfig))
    assert wire.decode_to_owner(wire.encode(opened)) == opened


def test_unencodable_command_fails_only_its_own_task() -> None:
    answers = _Answers()
    for answer in (Succeeded("good"), Succeeded("bad", (StartTimer(1, 10**30),)), ActivityOk(b"token")):
        answers.add(answer)
    received = [wire.decode_to_owner(data) for data in answers.messages(1)]
    assert all(isinstance(each, wire.WorkAnswers) for each in received)
    answers: list[Any] = received
    assert [each.run_id for part in answers for each in part.succeeded] == ["good"]
    (failed,) = [failed_task for part in answers for failed_task in part.failed_tasks]
    assert failed.run_id == "bad"
    assert "cannot be sent to the engine" in failed.failure.message
    assert answers[0].returned == (ActivityOk(b"token"),)  # results first: a completion may depend on one


class Silent:
    """A connection to an owner that never answers."""

    is_open = True

    def tell(self, message: wire.ToOwner) -> None: ...

    def send(self, data: bytes) -> None: ...

    async def close_handle(self, handle: int) -> None: ...


@pytest.mark.parametrize("end", ["the engine failed", "the connection ended"])
async def test_worker_claims_only_delivered_attempts(end: str) -> None:
    """An attempt that arrives while the worker is paused is not claimed from the next owner: no worker would complete
    it.
    """
    handle = RemoteHandle(Silent(), 1, HandleConfig(task_queue="q"))
    delivered_task, waiting_task = (
        msgspec.structs.replace(example(ActivityTask), token=each, is_local=False)
        for each in (b"given", b"waiting")
    )
    delivered: list[ActivityItem] = []
    handle.start(lambda _: None, delivered.extend, lambda kind, why: None)
    handle.receive(wire.HandleWork(handle=1, tasks=(delivered_task,)))
    handle.pause(WorkKind.ACTIVITIES)
    handle.receive(wire.HandleWork(handle=1, tasks=(waiting_task,), cancels=(ActivityCancel(b"given"),)))
    assert delivered == [delivered_task]
    assert handle.attempts == {b"given"}
    if end == "the engine failed":
        handle.end(wire.PollEnded(1, True, end))
    else:
        handle.fail(end)
    assert handle.attempts == {b"given"}
