"""Queries: who answers them, what a handler must not do, what they return, and the built-in queries of Temporal's tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import QueryRejectCondition, WorkflowHandle, WorkflowStatus
from hourglass.converter import SearchAttributeKey
from hourglass.errors import ApplicationError, QueryFailedError, QueryRejectedError, ServiceError

from . import activities
from .scenario import scenario
from .world import World, event_types

REGION = SearchAttributeKey.for_keyword("CustomKeywordField")


@dataclass
class Answer:
    words: list[str]


@workflow.defn
class AnswersQueries:
    """Answers queries until the `finish` signal."""

    def __init__(self) -> None:
        self.end: str | None = None

    @workflow.run
    def run(self) -> str:
        self.waits_for_the_end()
        if self.end == "badly":
            raise ApplicationError("it had to be", type="Fate")
        return str(self.end)

    def waits_for_the_end(self) -> None:
        """Wait in a function of its own, so that the stack trace names it."""
        workflow.wait_condition(lambda: self.end is not None)

    @workflow.signal(description="How it shall end.")
    def finish(self, how: str) -> None:
        self.end = how

    @workflow.query(name="what is said", description="What it says.")
    def echoes(self, *words: str) -> Answer:
        return Answer(list(words))

    @workflow.query
    def sums(self, a: int, b: int = 1) -> int:
        return a + b

    @workflow.query
    def fails(self) -> None:
        """Fail with details, which are not sent to the caller."""
        raise ApplicationError("ask another", 456, type="Secretive")

    @workflow.query
    def calls_forbidden(self, what: str) -> str:
        """Call something that is not allowed in a query."""
        FORBIDDEN[what]()
        return "was allowed"

    @workflow.update
    def changes(self) -> str:
        """Described by its first line."""
        """Described by its first line."""
        return "changed"


def late_handler() -> None:
    @workflow.query
    def too_late() -> None:
        pass


FORBIDDEN: dict[str, Any] = {
    "wait": lambda: workflow.wait_condition(lambda: True),
    "sleep": lambda: workflow.sleep(1),
    "continue": lambda: workflow.continue_as_new(),
    "search attributes": lambda: workflow.upsert_search_attributes([REGION.value_set("eu")]),
    "memo": lambda: workflow.upsert_memo({"a": 1}),
    "activity": lambda: activities.double(1),
    "local activity": lambda: activities.double.local(1),
    "child": lambda: AnswersQueries.run(),
    "random": lambda: workflow.random().random(),
    "uuid": lambda: workflow.uuid4(),
    "patch": lambda: workflow.patched("p"),
    "signal": lambda: workflow.get_external_workflow_handle("somebody").signal("word"),
    "cancel": lambda: workflow.get_external_workflow_handle("somebody").cancel(),
    "handler": late_handler,
    "spawn": lambda: workflow.spawn(lambda: None),
}


def waiting_run(world: World) -> WorkflowHandle[str]:
    """Start a run; wait for its first workflow task."""
    handle: WorkflowHandle[str] = world.start(AnswersQueries.run)
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED")
    return handle


def finish_run(world: World, handle: WorkflowHandle[str], how: str = "well") -> None:
    """Let the run end with the given result or failure."""
    handle.signal(AnswersQueries.finish, how)
    if how == "badly":
        assert world.failure(handle).type == "Fate"
    else:
        assert handle.result(timeout=60) == how


@scenario("loose")
def query_reject_condition_not_open_rejects_closed_run(world: World) -> None:
    handle = waiting_run(world)
    only_open = QueryRejectCondition.NOT_OPEN
    assert handle.query(AnswersQueries.sums, 1, reject_condition=only_open) == 2
    finish_run(world, handle)
    with pytest.raises(QueryRejectedError, match="COMPLETED") as caught:
        handle.query(AnswersQueries.sums, 1, reject_condition=only_open)
    assert caught.value.status == WorkflowStatus.COMPLETED
    assert handle.query(AnswersQueries.sums, 1, reject_condition=QueryRejectCondition.NONE) == 2


@scenario("loose")
def query_reject_condition_not_completed_cleanly_rejects_failed_run(world: World) -> None:
    clean = QueryRejectCondition.NOT_COMPLETED_CLEANLY
    well, badly = waiting_run(world), waiting_run(world)
    assert well.query("sums", 1, reject_condition=clean) == 2
    finish_run(world, well)
    finish_run(world, badly, "badly")
    assert well.query("sums", 2, reject_condition=clean) == 3
    with pytest.raises(QueryRejectedError) as caught:
        badly.query("sums", 2, reject_condition=clean)
    assert caught.value.status == WorkflowStatus.FAILED


@scenario("loose")
def query_is_answered_by_failed_and_terminated_runs(world: World) -> None:
    failed, terminated = waiting_run(world), waiting_run(world)
    finish_run(world, failed, "badly")
    terminated.terminate("enough")
    for handle in (failed, terminated):
        assert handle.query(AnswersQueries.sums, 20, 22) == 42


@scenario("loose")
def query_handler_cannot_issue_commands_or_change_state(world: World) -> None:
    handle = waiting_run(world)
    for what in FORBIDDEN:
        with pytest.raises(QueryFailedError):
            print(what, handle.query(AnswersQueries.calls_forbidden, what))
    assert handle.query(AnswersQueries.sums, 1) == 2
    finish_run(world, handle)
    assert "WORKFLOW_TASK_FAILED" not in event_types(handle.history())


@scenario("loose")
def failed_query_reports_error_of_handler_or_known_names(world: World) -> None:
    handle = waiting_run(world)
    with pytest.raises(QueryFailedError, match="ask another"):
        handle.query(AnswersQueries.fails)
    with pytest.raises(QueryFailedError, match=r"unknown query 'nonsense'.*sums"):
        handle.query("nonsense")
    finish_run(world, handle)


@scenario("loose")
def query_with_invalid_arguments_fails_without_harming_run(world: World) -> None:
    handle = waiting_run(world)
    wrong: list[list[Any]] = [[], [1, 2, 3], ["one"], [{"a": 1}]]
    for arguments in wrong:
        with pytest.raises(QueryFailedError):
            handle.query("sums", *arguments)
    assert handle.query("sums", 1) == 2
    finish_run(world, handle)


@scenario("loose")
def query_by_custom_name_returns_plain_data_or_result_type(world: World) -> None:
    handle = waiting_run(world)
    assert handle.query(AnswersQueries.echoes, "a", "b") == Answer(["a", "b"])
    assert handle.query("what is said", "a") == {"words": ["a"]}
    assert handle.query("what is said", "a", result_type=Answer) == Answer(["a"])
    finish_run(world, handle)


@workflow.defn
class FailsWhenConditionIsChecked:
    """Its wait condition fails once the query was answered."""

    def __init__(self) -> None:
        self.asked = False

    @workflow.run
    def run(self) -> None:
        def holds() -> bool:
            assert not self.asked
            return False

        workflow.wait_condition(holds)

    @workflow.query
    def ask(self) -> bool:
        self.asked = True
        return True


@scenario("loose")
def query_does_not_evaluate_wait_conditions(world: World) -> None:
    handle = world.start_waiting(FailsWhenConditionIsChecked.run)
    assert handle.query(FailsWhenConditionIsChecked.ask)
    handle.terminate("seen")
    assert "WORKFLOW_TASK_FAILED" not in event_types(handle.history())


@scenario("loose")
def stack_trace_query_names_waiting_function(world: World) -> None:
    handle = waiting_run(world)
    assert "waits_for_the_end" in handle.query("__stack_trace")
    world.start_worker()
    assert "waits_for_the_end" in handle.query("__stack_trace")
    finish_run(world, handle)


@scenario("loose")
def metadata_query_describes_handlers(world: World) -> None:
    handle = waiting_run(world)
    definition = handle.query("__temporal_workflow_metadata")["definition"]
    assert definition["type"] == "AnswersQueries"
    descriptions = {
        handler["name"]: handler["description"]
        for kind in definition
        if kind != "type"
        for handler in definition[kind]
    }
    assert descriptions["finish"] == "How it shall end."
    assert descriptions["what is said"] == "What it says."
    assert descriptions["changes"] == "Described by its first line."
    finish_run(world, handle)


@scenario("loose")
def unread_signals_query_counts_unhandled_signals(world: World) -> None:
    handle = waiting_run(world)
    handle.signal("finnish", "well")
    handle.signal("finnish", "badly")
    assert handle.query("__hourglass_unread_signals") == {"finnish": 2}
    finish_run(world, handle)


@scenario("loose")
def history_pages_add_up_to_history_in_both_directions(world: World) -> None:
    handle = waiting_run(world)
    finish_run(world, handle)
    all_events = handle.history().events
    for newest_first in (False, True):
        events: list[dict[str, Any]] = []
        token = b""
        while True:
            page = handle.history_page(page_size=2, page_token=token, newest_first=newest_first)
            events += page.events
            token = page.next_page_token
            if not token:
                break
        assert events == (all_events[::-1] if newest_first else all_events)


@scenario("loose")
def query_without_worker_times_out(world: World) -> None:
    handle = waiting_run(world)
    world.stop_worker()
    with pytest.raises((ServiceError, TimeoutError)):
        handle.query(AnswersQueries.sums, 1, rpc_timeout=0.5)
    world.start_worker()
    finish_run(world, handle)


@workflow.defn
def registers_dynamic_handlers_on_demand() -> list[str]:
    log: list[str] = []
    orders: list[str] = []

    @workflow.signal
    def order(name: str) -> None:
        orders.append(name)

    workflow.wait_condition(lambda: "signal" in orders)

    @workflow.signal(dynamic=True)
    def any_signal(name: str, arguments: list[workflow.RawPayload]) -> None:
        log.append(f"{name}:{arguments[0].decode(str)}")

    workflow.wait_condition(lambda: "query" in orders)

    @workflow.query(dynamic=True)
    def any_question(name: str, arguments: list[workflow.RawPayload]) -> str:
        return f"{name}:{arguments[0].decode(str)}"

    workflow.wait_condition(lambda: "end" in orders)
    return log


@scenario("loose")
def late_dynamic_handler_receives_buffered_signals_and_queries(world: World) -> None:
    handle = world.start(registers_dynamic_handlers_on_demand)
    handle.signal("first", "kept")
    with pytest.raises(QueryFailedError):
        handle.query("early", "x")
    handle.signal("order", "signal")
    handle.signal("second", "at once")
    handle.signal("order", "query")
    world.wait_until(lambda: query_or_none(handle, "late", "y") == "late:y", "a dynamic query")
    handle.signal("order", "end")
    assert handle.result(timeout=60) == ["first:kept", "second:at once"]


def query_or_none(handle: WorkflowHandle[Any], name: str, argument: str) -> Any:
    """Return the answer of a query, or None if it has no handler yet."""
    try:
        return handle.query(name, argument)
    except QueryFailedError:
        return None
