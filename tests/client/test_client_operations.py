"""Requests that client methods send, and values and errors that they return, for both clients."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.specs import made

from hourglass import RetryPolicy, workflow
from hourglass._contract import activities as ac
from hourglass._contract import workflows as wf
from hourglass._worker.portal import Portal
from hourglass.client import (
    AsyncClient,
    Client,
    IdConflictPolicy,
    IdReusePolicy,
    StartOptions,
    WorkflowStatus,
    _options,
)
from hourglass.converter import ApplicationFailure, Converter, Failure, Payload, default_converter
from hourglass.errors import (
    ApplicationError,
    ArgumentError,
    CancelledError,
    ConnectionFailedError,
    ServiceError,
    TerminatedError,
    TimedOutError,
    UsageError,
    WorkflowAlreadyStartedError,
    WorkflowContinuedAsNewError,
    WorkflowFailedError,
    WorkflowNotFoundError,
)

Do = Callable[[Any], Any]


@dataclass
class Order:
    id: str
    cents: int = 0


@workflow.defn
def checkout(order: Order, express: bool = False) -> Order:
    return order


@workflow.defn
class Cart:
    @workflow.run
    def run(self, owner: str) -> Order:
        return Order(owner)

    @workflow.signal(name="put-item")
    def put(self, item: str, count: int = 1) -> None: ...

    @workflow.query
    def total(self) -> Order:
        return Order("")


decisions = workflow.Channel("decisions", Order)


def encoded(*values: Any) -> tuple[Payload, ...]:
    return default_converter.encode_all(values)


# --- starting ---------------------------------------------------------------------------------------------


def test_start_workflow_sends_encoded_arguments_and_default_options(
    client: Any, do: Do, connection: Any
) -> None:
    handle = do(client.start_workflow(checkout, Order("o1", 5), id="order-1"))
    sent = connection.last(wf.StartWorkflow)
    assert (sent.workflow_id, sent.workflow_type, sent.spec.task_queue) == ("order-1", "checkout", "default")
    assert sent.arguments == encoded(Order("o1", 5))
    assert sent.identity == "tester"
    assert sent.request_id
    assert (handle.id, handle.run_id, handle.first_execution_run_id) == ("order-1", "run-1", "run-1")


@pytest.mark.parametrize("workflow_argument", [Cart, Cart.run])
def test_workflow_class_and_its_run_method_start_the_same_workflow(
    client: Any, do: Do, connection: Any, workflow_argument: Any
) -> None:
    handle = do(client.start_workflow(workflow_argument, "ann"))
    assert connection.last(wf.StartWorkflow).workflow_type == "Cart"
    connection.outcomes["run-1"] = [wf.RunCompleted(encoded(Order("ann")))]
    assert do(handle.result()) == Order("ann")


def test_default_workflow_ids_are_unique(client: Any, do: Do) -> None:
    first, second = do(client.start_workflow("wf")), do(client.start_workflow("wf"))
    assert first.id != second.id


def test_start_workflow_sends_every_option(client: Any, do: Do, connection: Any) -> None:
    do(
        client.start_workflow(
            "wf",
            1,
            "two",
            id="x",
            task_queue="q",
            execution_timeout=timedelta(hours=1),
            run_timeout=60,
            task_timeout=5.5,
            start_delay=3,
            id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=IdConflictPolicy.FAIL,
            retry_policy=RetryPolicy(maximum_attempts=3),
            cron_schedule="@daily",
            memo={"note": {"a": 1}},
            search_attributes={"CustomerId": "c1"},
            static_summary="short",
            static_details="long",
            start_signal="go",
            start_signal_args=[1, 2],
            request_id="r1",
            rpc_timeout=7,
        )
    )
    assert connection.last(wf.StartWorkflow) == made(
        wf.StartWorkflow,
        workflow_id="x",
        workflow_type="wf",
        task_queue="q",
        request_id="r1",
        arguments=encoded(1, "two"),
        identity="tester",
        execution_timeout=3600.0,
        run_timeout=60.0,
        task_timeout=5.5,
        start_delay=3.0,
        id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE,
        id_conflict_policy=IdConflictPolicy.FAIL,
        retry_policy=RetryPolicy(maximum_attempts=3).rule(),
        cron_schedule="@daily",
        memo={"note": encoded({"a": 1})[0]},
        search_attributes={"CustomerId": encoded("c1")[0]},
        static_summary=encoded("short")[0],
        static_details=encoded("long")[0],
        signal_name="go",
        signal_arguments=encoded(1, 2),
        rpc_timeout=7.0,
    )


@pytest.mark.parametrize(
    ("start", "error", "message"),
    [
        (lambda c: c.start_workflow(checkout), ArgumentError, "order"),
        (lambda c: c.start_workflow(checkout, Order("a"), True, 3), ArgumentError, "checkout"),
        (lambda c: c.start_workflow(lambda: 1), UsageError, r"@workflow\.defn"),
        (lambda c: c.start_workflow(7), UsageError, "an object of type int is not a workflow"),
        (lambda c: c.start_workflow(""), UsageError, "name is empty"),
        (lambda c: c.start_workflow("wf", id=""), UsageError, "id must be"),
        (lambda c: c.start_workflow("wf", task_queue=" "), UsageError, "task_queue must be"),
        (lambda c: c.start_workflow("wf", run_timeout=-1), UsageError, "run_timeout"),
        (lambda c: c.start_workflow("wf", run_timeot=1), UsageError, r"did you mean run_timeout\?"),
        (lambda c: c.start_workflow("wf", order=1), UsageError, "by position"),
        (lambda c: c.start_workflow("wf", start_signal_args=[1]), UsageError, "without start_signal"),
        (
            lambda c: c.start_workflow("wf", search_attributes={"When": datetime(2026, 1, 1)}),
            UsageError,
            "must be a datetime with a time zone",
        ),
    ],
)
def test_start_workflow_with_invalid_arguments_raises_before_sending(
    client: Any, do: Do, connection: Any, start: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        do(start(client))
    assert connection.requests == []


def test_every_start_option_has_a_reader() -> None:
    read_separately = {"id", "request_id", "start_signal", "start_signal_args"}
    assert set(_options._READERS) == set(StartOptions.__annotations__) - read_separately


def test_starting_a_workflow_with_an_id_in_use_raises_unless_policy_is_use_existing(
    client: Any, do: Do
) -> None:
    first = do(client.start_workflow("wf", id="x"))
    with pytest.raises(WorkflowAlreadyStartedError) as caught:
        do(client.start_workflow("wf", id="x"))
    assert (caught.value.workflow_id, caught.value.run_id) == ("x", first.run_id)
    existing = do(client.start_workflow("wf", id="x", id_conflict_policy=IdConflictPolicy.USE_EXISTING))
    assert (existing.run_id, existing.first_execution_run_id) == (first.run_id, None)


# --- results ----------------------------------------------------------------------------------------------


def test_result_is_decoded_to_the_return_annotation(client: Any, do: Do, connection: Any) -> None:
    handle = do(client.start_workflow(checkout, Order("o")))
    connection.outcomes["run-1"] = [wf.RunCompleted(encoded(Order("o", 7)))]
    assert do(handle.result()) == Order("o", 7)


def test_result_of_workflow_started_by_name_is_plain_json_or_result_type(
    client: Any, do: Do, connection: Any
) -> None:
    connection.outcomes["run-1"] = [wf.RunCompleted(encoded({"id": "o"})), wf.RunCompleted(())]
    connection.outcomes["run-2"] = [wf.RunCompleted(encoded({"id": "o"}))]
    handle = do(client.start_workflow("wf", id="plain"))
    assert do(handle.result()) == {"id": "o"}
    assert do(handle.result()) is None
    assert do(do(client.start_workflow("wf", result_type=Order)).result()) == Order("o")


def test_execute_workflow_starts_and_waits_in_one_portal_call(
    client: Any, do: Do, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    portal_calls: list[str] = []

    def count_calls(method_name: str) -> Callable[..., Any]:
        original = getattr(Portal, method_name)

        def counting(*args: Any) -> Any:
            portal_calls.append(method_name)
            return original(*args)

        return counting

    for method_name in ("call", "acall"):
        monkeypatch.setattr(Portal, method_name, count_calls(method_name))
    connection.outcomes["run-1"] = [wf.RunCompleted(encoded({"id": "o"}))]
    assert do(client.execute_workflow("wf", result_type=Order)) == Order("o")
    assert [type(each) for each in connection.requests] == [wf.ExecuteWorkflow, wf.WaitForClose]
    assert len(portal_calls) == 1


def test_execute_workflow_raises_if_the_start_is_rejected(client: Any, do: Do) -> None:
    do(client.start_workflow("wf", id="x"))
    with pytest.raises(WorkflowAlreadyStartedError):
        do(client.execute_workflow("wf", id="x"))


@pytest.mark.parametrize(
    ("outcome", "cause", "message"),
    [
        (
            wf.RunFailed(Failure("no money", ApplicationFailure(type="Broke"))),
            ApplicationError,
            "'x' failed: Broke: no money",
        ),
        (wf.RunCanceled(encoded("d")), CancelledError, "'x' was cancelled"),
        (wf.RunTerminated("enough", encoded("d")), TerminatedError, "'x' was terminated: enough"),
        (wf.RunTimedOut(), TimedOutError, "'x' timed out"),
    ],
)
def test_result_of_unsuccessful_run_raises_workflow_failed_error_with_its_cause(
    client: Any, do: Do, connection: Any, outcome: wf.Outcome, cause: type[Exception], message: str
) -> None:
    connection.outcomes[connection.add("x")] = [outcome]
    with pytest.raises(WorkflowFailedError, match=message) as caught:
        do(client.get_workflow_handle("x").result())
    assert isinstance(caught.value.cause, cause)
    assert list(getattr(caught.value.cause, "details", [])) in ([], ["d"])


def test_result_follows_continue_as_new_retry_and_cron_runs(client: Any, do: Do, connection: Any) -> None:
    connection.outcomes = {
        connection.add("x"): [wf.RunContinued("b")],
        "b": [wf.RunFailed(Failure("try again"), new_run_id="c")],
        "c": [wf.RunTimedOut(new_run_id="d")],
        "d": [wf.RunCompleted(encoded(1), new_run_id="e")],
        "e": [wf.RunCompleted(encoded(2))],
    }
    assert do(client.get_workflow_handle("x").result()) == 2


def test_result_with_follow_runs_false_raises_if_a_next_run_exists(
    client: Any, do: Do, connection: Any
) -> None:
    failed = wf.RunFailed(Failure("oh", ApplicationFailure("E")), "d")
    connection.outcomes[connection.add("x")] = [
        wf.RunContinued("b"),
        wf.RunCompleted(encoded(1), "c"),
        failed,
        wf.RunCompleted(encoded(1)),
    ]
    handle = client.get_workflow_handle("x")
    for following in ("b", "c", "d"):
        with pytest.raises(WorkflowContinuedAsNewError) as caught:
            do(handle.result(follow_runs=False))
        assert caught.value.new_run_id == following
    assert do(handle.result(follow_runs=False)) == 1


def test_result_can_be_requested_again_after_a_timeout(client: Any, do: Do, connection: Any) -> None:
    run_id = connection.add("x")
    handle = client.get_workflow_handle("x")
    with pytest.raises(TimeoutError, match=r"'x' did not close within 0\.01 s; it continues"):
        do(handle.result(timeout=0.01))
    connection.outcomes[run_id] = [wf.RunCompleted(encoded(1))]
    assert do(handle.result(timeout=timedelta(seconds=60))) == 1


def test_result_survives_an_unavailable_service_and_logs_it_once(
    client: Any, do: Do, connection: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gone = ConnectionFailedError("gone", status="UNAVAILABLE")
    run_id = connection.add("x")
    connection.outcomes[run_id] = [gone, gone, wf.StillOpen(run_id), wf.RunCompleted(encoded(1))]
    handle = client.get_workflow_handle("x")
    with caplog.at_level(logging.WARNING, "hourglass"):
        assert do(handle.result()) == 1
    assert caplog.text.count("the service does not answer: gone") == 1
    connection.outcomes[run_id] = [ServiceError("no", status="PERMISSION_DENIED")]
    with pytest.raises(ServiceError, match="no"):
        do(handle.result())


def test_result_logs_once_that_the_run_is_parked(
    client: Any, do: Do, connection: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = connection.add("x", history_length=2)
    connection.outcomes[run_id] = [wf.StillOpen(run_id), wf.StillOpen(run_id), wf.RunCompleted(encoded(1))]
    connection.history = (
        b'{"eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_STARTED"}',
        b'{"workflowTaskFailedEventAttributes": {"failure": {"message": "NameError: nmae"}}}',
    )
    connection.task_attempt = 4
    with caplog.at_level(logging.WARNING, "hourglass"):
        assert do(client.get_workflow_handle("x").result()) == 1
    assert caplog.text.count("is parked") == 1
    assert "attempt 4" in caplog.text
    assert "NameError: nmae" in caplog.text


def test_result_of_a_healthy_long_run_logs_nothing(
    client: Any, do: Do, connection: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = connection.add("x")
    connection.outcomes[run_id] = [wf.StillOpen(run_id), wf.RunCompleted(encoded(1))]
    assert do(client.get_workflow_handle("x").result()) == 1
    assert caplog.text == ""


# --- messages ---------------------------------------------------------------------------------------------


def test_signal_accepts_a_name_a_decorated_method_or_a_channel(client: Any, do: Do, connection: Any) -> None:
    connection.add("x")
    handle = client.get_workflow_handle("x")
    for signal, arguments, name, sent in [
        ("go", (1, 2), "go", (1, 2)),
        (Cart.put, ("apple",), "put-item", ("apple",)),
        (decisions, (Order("o"),), "decisions", (Order("o"),)),
    ]:
        do(handle.signal(signal, *arguments))
        request = connection.last(wf.SignalWorkflow)
        assert (request.signal_name, request.arguments, request.run_id) == (name, encoded(*sent), "")
        assert request.request_id


@pytest.mark.parametrize(
    ("send", "error", "message"),
    [
        (lambda h: h.signal(Cart.put), ArgumentError, "item"),
        (lambda h: h.signal(Cart.total), UsageError, "is a query, but was used as a signal"),
        (lambda h: h.query(Cart.put), UsageError, "is a signal, but was used as a query"),
        (lambda h: h.signal(print), UsageError, r"print is not a signal.*@workflow\.signal"),
        (lambda h: h.query(decisions), UsageError, "is not a query"),
        (lambda h: h.signal(decisions), ArgumentError, "takes one value, not 0"),
        (lambda h: h.signal(""), UsageError, "name is empty"),
    ],
)
def test_invalid_signal_or_query_raises_before_sending(
    client: Any, do: Do, connection: Any, send: Any, error: type[Exception], message: str
) -> None:
    connection.add("x")
    with pytest.raises(error, match=message):
        do(send(client.get_workflow_handle("x")))
    assert connection.requests == []


def test_query_answer_is_decoded_to_the_annotation_or_result_type(
    client: Any, do: Do, connection: Any
) -> None:
    connection.add("x")
    connection.answers = {"total": encoded(Order("o", 3))}
    handle = client.get_workflow_handle("x")
    assert do(handle.query(Cart.total)) == Order("o", 3)
    assert do(handle.query("total")) == {"id": "o", "cents": 3}
    assert do(handle.query("total", result_type=Order)) == Order("o", 3)
    assert do(handle.query("unanswered", 1)) is None


def test_cancel_and_terminate_send_reason_and_first_execution_run_id(
    client: Any, do: Do, connection: Any
) -> None:
    handle = do(client.start_workflow("wf", id="x"))
    do(handle.cancel("enough"))
    sent = connection.last(wf.CancelWorkflow)
    assert (sent.reason, sent.run_id, sent.first_execution_run_id) == ("enough", "", "run-1")
    do(handle.terminate("now", {"why": 1}))
    sent = connection.last(wf.TerminateWorkflow)
    assert (sent.reason, sent.details, sent.first_execution_run_id) == ("now", encoded({"why": 1}), "run-1")


def test_handle_with_run_id_sends_it_in_every_request(client: Any, do: Do, connection: Any) -> None:
    connection.add("x")
    handle = client.get_workflow_handle("x", run_id="old")
    do(handle.signal("go"))
    do(handle.describe())
    do(handle.cancel())
    assert {request.run_id for request in connection.requests} == {"old"}
    assert handle.run_id == "old"


def test_handle_of_unknown_workflow_raises_only_when_used(client: Any, do: Do) -> None:
    handle = client.get_workflow_handle("nobody")
    with pytest.raises(WorkflowNotFoundError, match="nobody"):
        do(handle.describe())
    with pytest.raises(WorkflowNotFoundError, match="nobody"):
        do(handle.result())


# --- looking ----------------------------------------------------------------------------------------------


def test_describe_returns_utc_times_decoded_memo_and_search_attributes(
    client: Any, do: Do, connection: Any
) -> None:
    undecodable = Payload(b"\x00", "binary/strange")
    connection.add(
        "x",
        start_time_ns=1_700_000_000_123_456_789,
        memo={"note": encoded([1])[0], "strange": undecodable},
        search_attributes={
            "When": Payload(b'"2026-01-02T03:04:05Z"', "json/plain", {"type": b"Datetime"}),
            "Who": encoded("me")[0],
        },
    )
    connection.task_attempt = 3
    description = do(client.get_workflow_handle("x").describe())
    assert description.start_time == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    assert description.close_time is None
    assert description.status is WorkflowStatus.RUNNING
    assert description.memo == {"note": [1], "strange": undecodable}
    assert description.search_attributes == {"When": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "Who": "me"}
    assert description.parked


def test_list_workflows_fetches_all_pages(face: Any, client: Any, connection: Any) -> None:
    for number in range(5):
        connection.add(f"w{number}")
    listed = face.collect(client.list_workflows("X = 1", page_size=2))
    assert [execution.id for execution in listed] == ["w0", "w1", "w2", "w3", "w4"]
    assert len(connection.requests) == 3
    assert connection.requests[0].query == "X = 1"


def test_partially_read_workflow_list_fetches_one_page(connection: Any) -> None:
    from conftest import Face

    for number in range(5):
        connection.add(f"w{number}")
    client = Face(Client).client(connection)
    assert next(client.list_workflows(page_size=2)).id == "w0"
    assert len(connection.requests) == 1
    client.close()


def test_count_workflows_sends_the_query_and_returns_a_number(client: Any, do: Do, connection: Any) -> None:
    connection.add("x")
    assert do(client.count_workflows("A = 1")) == 1
    assert connection.last(wf.CountWorkflows).query == "A = 1"


def test_history_contains_events_of_all_pages(
    client: Any, do: Do, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys
    import types

    replay = types.ModuleType("hourglass.replay")
    replay.History = types.SimpleNamespace(from_events=lambda *given: given)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hourglass.replay", replay)
    connection.add("x")
    connection.history = (b"1", b"2", b"3")
    assert do(client.get_workflow_handle("x").history()) == ("x", [b"1", b"2", b"3"])


# --- activities from outside ------------------------------------------------------------------------------


def test_activity_handle_completes_fails_cancels_and_heartbeats_by_token_or_ids(
    client: Any, do: Do, connection: Any
) -> None:
    by_token = client.get_activity_handle(token=b"secret-token")
    do(by_token.complete(Order("o")))
    sent = connection.last(ac.CompleteActivity)
    assert (sent.token, sent.result, sent.failure) == (b"secret-token", encoded(Order("o"))[0], None)
    by_ids = client.get_activity_handle(workflow_id="x", activity_id="stop")
    do(by_ids.fail(ApplicationError("no", type="Broke")))
    sent = connection.last(ac.CompleteActivity)
    assert (sent.workflow_id, sent.activity_id, sent.failure.message) == ("x", "stop", "no")
    do(by_ids.cancel("detail"))
    sent = connection.last(ac.CompleteActivity)
    assert (sent.cancelled, sent.cancelled_details) == (True, encoded("detail"))
    assert do(by_ids.heartbeat(50)) is True
    assert connection.last(ac.HeartbeatActivity).details == encoded(50)
    assert do(by_token.heartbeat()) is False
    assert "secret" not in repr(by_token)


@pytest.mark.parametrize("ids", [{}, {"workflow_id": "x"}, {"token": b"t", "activity_id": "a"}])
def test_activity_handle_with_incomplete_or_mixed_ids_is_rejected(client: Any, ids: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="token"):
        client.get_activity_handle(**ids)


# --- codec and converter ----------------------------------------------------------------------------------


class ReversingCodec:
    """A codec that reverses data, remembers the original encoding, and raises for payloads that it has not encoded."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        self.threads.add(threading.current_thread().name)
        return [Payload(p.encoding.encode() + b"|" + p.data[::-1], "binary/reversed") for p in payloads]

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        self.threads.add(threading.current_thread().name)
        if any(payload.encoding != "binary/reversed" for payload in payloads):
            raise ValueError("not mine")
        split = [payload.data.split(b"|", 1) for payload in payloads]
        return [Payload(data[::-1], encoding.decode()) for encoding, data in split]


def test_codec_encodes_all_payloads_except_search_attributes(face: Any, connection: Any) -> None:
    """It runs in neither the control thread nor the main thread."""
    codec = ReversingCodec()
    client, do = face.client(connection, codec=codec), face.do
    handle = do(client.start_workflow(checkout, Order("o"), memo={"a": "b"}, search_attributes={"Who": "me"}))
    sent = connection.last(wf.StartWorkflow)
    assert [sent.arguments[0].encoding, sent.spec.memo["a"].encoding] == ["binary/reversed"] * 2
    assert sent.spec.search_attributes["Who"].encoding == "json/plain"
    connection.outcomes["run-1"] = [wf.RunCompleted(tuple(codec.encode(encoded(Order("o", 2)))))]
    codec.threads.clear()
    assert do(handle.result()) == Order("o", 2)
    do(client.get_activity_handle(token=b"t").fail(ValueError("a secret message")))
    assert "secret" not in repr(connection.last(ac.CompleteActivity).failure)
    assert "hourglass-control" not in codec.threads
    assert threading.main_thread().name not in codec.threads
    do(client.close())


def test_failure_encoded_by_the_codec_is_decoded(face: Any, connection: Any) -> None:
    codec = ReversingCodec()
    client, do = face.client(connection, codec=codec), face.do
    do(client.get_activity_handle(token=b"t").fail(ApplicationError("the reason", 5, type="Broke")))
    connection.outcomes[connection.add("x")] = [wf.RunFailed(connection.last(ac.CompleteActivity).failure)]
    with pytest.raises(WorkflowFailedError) as caught:
        do(client.get_workflow_handle("x").result())
    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.message, cause.type, list(cause.details)) == ("the reason", "Broke", [5])
    do(client.close())


def test_list_workflows_shows_memos_that_the_codec_cannot_decode(face: Any, connection: Any) -> None:
    codec = ReversingCodec()
    client = face.client(connection, codec=codec)
    connection.add("foreign", memo={"a": encoded("plain")[0]})
    connection.add("ours", memo={"a": codec.encode(encoded("coded"))[0]})
    listed = face.collect(client.list_workflows())
    assert [execution.memo["a"] for execution in listed] == ["plain", "coded"]
    face.do(client.close())


def test_converter_runs_in_the_calling_thread_of_the_client(face: Any, connection: Any) -> None:
    """Converters may contain user code, which must not block the control loop."""
    seen: set[str] = set()

    class Noting(Converter):
        def encode(self, value: Any) -> Payload:
            seen.add(threading.current_thread().name)
            return super().encode(value)

        def decode(self, payload: Payload, type: Any = Any) -> Any:
            seen.add(threading.current_thread().name)
            return super().decode(payload, type)

    client, do = face.client(connection, converter=Noting()), face.do
    connection.outcomes["run-1"] = [wf.RunCompleted(encoded(1))]
    assert do(client.execute_workflow("wf", 1, memo={"a": 1})) == 1
    assert seen == {threading.current_thread().name}
    do(client.close())


# --- the faces --------------------------------------------------------------------------------------------


def test_closed_client_rejects_calls(client: Any, do: Do, connection: Any) -> None:
    handle = client.get_workflow_handle("x")
    do(client.close())
    do(client.close())
    assert connection.closed == 1
    assert client.closed
    with pytest.raises(UsageError, match="this client is closed"):
        do(handle.describe())


def test_leaving_the_context_manager_closes_the_client(connection: Any) -> None:
    from conftest import Face

    with Face(Client).client(connection) as client:
        assert client.count_workflows() == 0

    async def main() -> None:
        async with Face(AsyncClient).client(connection) as client:
            assert await client.count_workflows() == 0

    asyncio.run(main())
    assert connection.closed == 2


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_constructing_a_client_directly_raises_and_suggests_connect(kind: Any) -> None:
    with pytest.raises(UsageError, match=rf"{kind.__name__}\.connect"):
        kind("localhost:7233")


def test_client_and_handle_reprs_show_target_and_ids(client: Any, do: Do) -> None:
    handle = do(client.start_workflow("wf", id="x"))
    assert "fake:1 namespace=default" in repr(client)
    assert "x run_id=run-1" in repr(handle)


def test_blocking_client_is_usable_from_many_threads_at_once(connection: Any) -> None:
    from conftest import Face

    client = Face(Client).client(connection)
    connection.outcomes = {f"run-{number}": [wf.RunCompleted(encoded(number))] for number in range(1, 33)}
    results: list[bool] = []

    def work() -> None:
        for _ in range(4):
            handle = client.start_workflow("wf")
            results.append(handle.result() == int(handle.run_id.removeprefix("run-")))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 32
    client.close()
