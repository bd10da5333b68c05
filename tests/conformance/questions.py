"""Queries: who may be asked, what a handler may not do, what comes back, and questions that Temporal's tools ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import QueryRejectCondition, WorkflowHandle, WorkflowStatus
from hourglass.converter import SearchAttributeKey
from hourglass.errors import ApplicationError, QueryFailedError, QueryRejectedError, ServiceError

from . import acts
from .scenario import scenario
from .world import World, kinds

REGION = SearchAttributeKey.for_keyword("CustomKeywordField")


@dataclass
class Told:
    """An answer with a type of its own."""

    words: list[str]


@workflow.defn
class Oracle:
    """Answers until it is told to end."""

    def __init__(self) -> None:
        self.end: str | None = None

    @workflow.run
    def run(self) -> str:
        """Until the end; one of them is a failure."""
        self.waits_for_the_end()
        if self.end == "badly":
            raise ApplicationError("it had to be", type="Fate")
        return str(self.end)

    def waits_for_the_end(self) -> None:
        """Where a stack trace finds it."""
        workflow.wait_condition(lambda: self.end is not None)

    @workflow.signal(description="How it shall end.")
    def finish(self, how: str) -> None:
        """End."""
        self.end = how

    @workflow.query(name="what is said", description="What it says.")
    def says(self, *words: str) -> Told:
        """What it was told."""
        return Told(list(words))

    @workflow.query
    def adds(self, a: int, b: int = 1) -> int:
        """A sum."""
        return a + b

    @workflow.query
    def fails(self) -> None:
        """A failure with details, which do not travel."""
        raise ApplicationError("ask another", 456, type="Secretive")

    @workflow.query
    def tries(self, what: str) -> str:
        """Something that only a workflow's own code may do."""
        FORBIDDEN[what]()
        return "was allowed"

    @workflow.update
    def changes(self) -> str:
        """Described by its first line."""
        return "changed"


def late_handler() -> None:
    """Register a handler."""

    @workflow.query
    def too_late() -> None:
        """Never asked."""


FORBIDDEN: dict[str, Any] = {
    "wait": lambda: workflow.wait_condition(lambda: True),
    "sleep": lambda: workflow.sleep(1),
    "continue": lambda: workflow.continue_as_new(),
    "search attributes": lambda: workflow.upsert_search_attributes([REGION.value_set("eu")]),
    "memo": lambda: workflow.upsert_memo({"a": 1}),
    "activity": lambda: acts.double(1),
    "local activity": lambda: acts.double.local(1),
    "child": lambda: Oracle.run(),
    "random": lambda: workflow.random().random(),
    "uuid": lambda: workflow.uuid4(),
    "patch": lambda: workflow.patched("p"),
    "signal": lambda: workflow.get_external_workflow_handle("somebody").signal("word"),
    "cancel": lambda: workflow.get_external_workflow_handle("somebody").cancel(),
    "handler": late_handler,
    "spawn": lambda: workflow.spawn(lambda: None),
}


def begun(world: World) -> WorkflowHandle[str]:
    """A run that waits."""
    handle: WorkflowHandle[str] = world.start(Oracle.run)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    return handle


def ended(world: World, handle: WorkflowHandle[str], how: str = "well") -> None:
    """End it."""
    handle.signal(Oracle.finish, how)
    if how == "badly":
        assert world.failure(handle).type == "Fate"
    else:
        assert handle.result(timeout=60) == how


@scenario("loose")
def a_query_that_closed_runs_shall_not_answer(world: World) -> None:
    """NOT_OPEN: an open run is asked; one that has closed is not, and its status is told."""
    handle = begun(world)
    only_open = QueryRejectCondition.NOT_OPEN
    assert handle.query(Oracle.adds, 1, reject_condition=only_open) == 2
    ended(world, handle)
    with pytest.raises(QueryRejectedError, match="COMPLETED") as caught:
        handle.query(Oracle.adds, 1, reject_condition=only_open)
    assert caught.value.status == WorkflowStatus.COMPLETED
    assert handle.query(Oracle.adds, 1, reject_condition=QueryRejectCondition.NONE) == 2


@scenario("loose")
def a_query_that_failed_runs_shall_not_answer(world: World) -> None:
    """NOT_COMPLETED_CLEANLY: open and completed runs are asked, one that failed is not."""
    clean = QueryRejectCondition.NOT_COMPLETED_CLEANLY
    well, badly = begun(world), begun(world)
    assert well.query("adds", 1, reject_condition=clean) == 2
    ended(world, well)
    ended(world, badly, "badly")
    assert well.query("adds", 2, reject_condition=clean) == 3
    with pytest.raises(QueryRejectedError) as caught:
        badly.query("adds", 2, reject_condition=clean)
    assert caught.value.status == WorkflowStatus.FAILED


@scenario("loose")
def a_query_of_a_run_that_was_ended(world: World) -> None:
    """A run that failed, and one that was terminated, still answer from what they knew."""
    failed, terminated = begun(world), begun(world)
    ended(world, failed, "badly")
    terminated.terminate("enough")
    for handle in (failed, terminated):
        assert handle.query(Oracle.adds, 20, 22) == 42


@scenario("loose")
def queries_that_want_to_do_something(world: World) -> None:
    """Whatever leaves a trace, or changes what comes next, is refused in a query; the run is not harmed."""
    handle = begun(world)
    for what in FORBIDDEN:
        with pytest.raises(QueryFailedError):
            print(what, handle.query(Oracle.tries, what))
    assert handle.query(Oracle.adds, 1) == 2
    ended(world, handle)
    assert "WORKFLOW_TASK_FAILED" not in kinds(handle.history())


@scenario("loose")
def queries_that_fail(world: World) -> None:
    """A handler's failure is its asker's, in words; an unknown name is told with those that there are."""
    handle = begun(world)
    with pytest.raises(QueryFailedError, match="ask another"):
        handle.query(Oracle.fails)
    with pytest.raises(QueryFailedError, match=r"unknown query 'nonsense'.*adds"):
        handle.query("nonsense")
    ended(world, handle)


@scenario("loose")
def queries_with_wrong_arguments(world: World) -> None:
    """Too few, too many and of the wrong type: the asker hears it, and the run does not mind."""
    handle = begun(world)
    wrong: list[list[Any]] = [[], [1, 2, 3], ["one"], [{"a": 1}]]
    for arguments in wrong:
        with pytest.raises(QueryFailedError):
            handle.query("adds", *arguments)
    assert handle.query("adds", 1) == 2
    ended(world, handle)


@scenario("loose")
def queries_by_names_of_their_own(world: World) -> None:
    """A query has the name that it was given; by name its answer is plain data, unless a type is asked for."""
    handle = begun(world)
    assert handle.query(Oracle.says, "a", "b") == Told(["a", "b"])
    assert handle.query("what is said", "a") == {"words": ["a"]}
    assert handle.query("what is said", "a", result_type=Told) == Told(["a"])
    ended(world, handle)


@workflow.defn
class Fragile:
    """Its condition must not be looked at after a question."""

    def __init__(self) -> None:
        self.asked = False

    @workflow.run
    def run(self) -> None:
        """Waits for ever."""

        def holds() -> bool:
            assert not self.asked
            return False

        workflow.wait_condition(holds)

    @workflow.query
    def ask(self) -> bool:
        """Changes what no query should."""
        self.asked = True
        return True


@scenario("loose")
def a_query_does_not_look_at_conditions(world: World) -> None:
    """A question lets no code of the run go on: its conditions are not looked at."""
    handle = world.start(Fragile.run)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    assert handle.query(Fragile.ask)
    handle.terminate("seen")
    assert "WORKFLOW_TASK_FAILED" not in kinds(handle.history())


@scenario("loose")
def where_a_run_stands(world: World) -> None:
    """The question for its stack names the function in which a run waits, also after a replay."""
    handle = begun(world)
    assert "waits_for_the_end" in handle.query("__stack_trace")
    world.start_worker()
    assert "waits_for_the_end" in handle.query("__stack_trace")
    ended(world, handle)


@scenario("loose")
def what_a_workflow_says_of_its_handlers(world: World) -> None:
    """The question for its metadata tells the handlers' names with their descriptions."""
    handle = begun(world)
    told = handle.query("__temporal_workflow_metadata")["definition"]
    assert told["type"] == "Oracle"
    found = {each["name"]: each["description"] for kind in told if kind != "type" for each in told[kind]}
    assert found["finish"] == "How it shall end."
    assert found["what is said"] == "What it says."
    assert found["changes"] == "Described by its first line."
    ended(world, handle)


@scenario("loose")
def signals_that_the_code_has_not_read(world: World) -> None:
    """The question for them tells their names and how many there are, and leaves out what a handler took."""
    handle = begun(world)
    handle.signal("finnish", "well")
    handle.signal("finnish", "badly")
    assert handle.query("__hourglass_unread_signals") == {"finnish": 2}
    ended(world, handle)


@scenario("loose")
def a_history_by_pages(world: World) -> None:
    """Its events in parts, forwards and backwards, are those of the whole."""
    handle = begun(world)
    ended(world, handle)
    whole = handle.history().events
    for newest_first in (False, True):
        found, token = [], b""
        while True:
            page = handle.history_page(page_size=2, page_token=token, newest_first=newest_first)
            found += page.events
            token = page.next_page_token
            if not token:
                break
        assert found == (whole[::-1] if newest_first else whole)


@scenario("loose")
def a_query_that_nobody_answers_in_time(world: World) -> None:
    """Without a worker a question is an error after its time, and the run is as it was."""
    handle = begun(world)
    world.stop_worker()
    with pytest.raises((ServiceError, TimeoutError)):
        handle.query(Oracle.adds, 1, rpc_timeout=0.5)
    world.start_worker()
    ended(world, handle)


@workflow.defn
def registers_on_demand() -> list[str]:
    """Handlers that a signal asks for."""
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
def dynamic_handlers_that_come_late(world: World) -> None:
    """A dynamic handler that is registered later is given the signals that waited, and every question from then on."""
    handle = world.start(registers_on_demand)
    handle.signal("first", "kept")
    with pytest.raises(QueryFailedError):
        handle.query("early", "x")
    handle.signal("order", "signal")
    handle.signal("second", "at once")
    handle.signal("order", "query")
    world.until_true(lambda: answers(handle, "late", "y") == "late:y", "a dynamic query")
    handle.signal("order", "end")
    assert handle.result(timeout=60) == ["first:kept", "second:at once"]


def answers(handle: WorkflowHandle[Any], name: str, argument: str) -> Any:
    """What a query answers, None where there is no handler yet."""
    try:
        return handle.query(name, argument)
    except QueryFailedError:
        return None
