"""Queries: their answers, and that they do not change the run."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.commands import AnswerQuery, Succeeded
from hourglass._evaluator.events import QueryReceived
from hourglass.errors import ApplicationError

from .activities import charge, work
from .conftest import Drive
from .driver import as_bytes, run_settings, signal


@workflow.defn
class Counter:
    def __init__(self) -> None:
        self.count = 0
        self.box: list[int] = []

    @workflow.run
    def run(self) -> int:
        for _ in range(3):
            work("step")
            self.count += 1
        return self.count

    @workflow.query
    def get(self, factor: int = 1) -> int:
        """The count."""
        return self.count * factor

    @workflow.query
    def broken(self) -> int:
        raise ValueError("no answer")

    @workflow.query
    def durable(self) -> str:
        return charge("x")

    @workflow.query
    def random(self) -> float:
        return workflow.random().random()

    @workflow.query
    def waits(self) -> None:
        workflow.sleep(0)

    @workflow.query
    def facts(self) -> list[Any]:
        return [workflow.info().workflow_id, workflow.now().year, workflow.is_replaying()]


@pytest.fixture(params=[True, False], ids=["verified", "plain"])
def settings(request: pytest.FixtureRequest) -> Any:
    """Queries are answered on a copy of the run if determinism is verified, otherwise on its live fibers."""
    return run_settings(verify=request.param)


def test_query_sees_the_current_state_and_binds_arguments(begin_run: Drive, settings: Any) -> None:
    d = begin_run(Counter, settings=settings)
    assert (d.query("get"), d.query("get", 5)) == (0, 0)
    d.send(d.done("work"))
    assert (d.query("get"), d.query("get", 5)) == (1, 5)
    assert d.query("facts") == ["workflow-1", 2023, False]


def test_queries_change_neither_the_journal_nor_later_commands(drive: Drive, settings: Any) -> None:
    queried, unqueried = drive(Counter, settings=settings), drive(Counter, settings=settings)
    for d in (queried, unqueried):
        d.begin()
    for name in ("get", "broken", "durable", "random", "waits", "unknown"):
        queried.answer_query(name)
    assert queried.run.state.journal == unqueried.run.state.journal
    for d in (queried, unqueried):
        d.finish()
    assert as_bytes(queried.completions) == as_bytes(unqueried.completions)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("broken", "no answer"),
        ("durable", "is not allowed in query durable"),
        ("random", "randomness is not allowed in query random"),
        ("waits", "is not allowed in query waits"),
    ],
)
def test_durable_or_random_call_fails_only_the_query(
    begin_run: Drive, settings: Any, name: str, expected: str
) -> None:
    d = begin_run(Counter, settings=settings)
    with pytest.raises(ApplicationError, match=expected):
        d.query(name)
    d.send(d.done("work"))
    assert d.query("get") == 1


def test_error_of_an_unknown_query_lists_the_known_queries(begin_run: Drive, settings: Any) -> None:
    @workflow.defn
    def run() -> None:
        @workflow.query
        def status() -> str:
            return "fine"

        workflow.sleep(10)

    d = begin_run(run, settings=settings)
    assert d.query("status") == "fine"
    with pytest.raises(ApplicationError, match="known queries: status"):
        d.query("stats")


def test_queries_of_one_activation_are_answered_by_id(begin_run: Drive, settings: Any) -> None:
    d = begin_run(Counter, settings=settings)
    completion = d.run.activate(
        d.activation(QueryReceived("1", "get"), QueryReceived("2", "broken"), QueryReceived("3", "facts"))
    )
    assert isinstance(completion, Succeeded)
    answers = completion.commands
    assert all(isinstance(answer, AnswerQuery) for answer in answers)
    assert [answer.query_id for answer in answers] == ["1", "2", "3"]  # type: ignore[attr-defined]
    assert [answer.failure is None for answer in answers] == [True, False, True]  # type: ignore[attr-defined]


def test_closed_and_dropped_run_answers_queries(begin_run: Drive, settings: Any) -> None:
    d = begin_run(Counter, settings=settings)
    d.finish()
    assert d.query("get") == 3
    d.run.drop()
    assert d.query("get") == 3


def test_stack_trace_query_shows_every_fiber(begin_run: Drive, settings: Any) -> None:
    def helper() -> None:
        workflow.sleep(50)

    @workflow.defn
    def run() -> None:
        workflow.spawn(helper)
        charge("here it waits")

    d = begin_run(run, settings=settings)
    trace = d.query("__stack_trace")
    assert 'charge("here it waits")' in trace
    assert "in helper" in trace


def test_signal_without_a_handler_is_kept_after_a_query(drive: Drive, settings: Any) -> None:
    @workflow.defn
    def run() -> list[str]:
        work("x")
        received: list[str] = []
        workflow.signal(name="add")(lambda item: received.append(item))
        workflow.wait_condition(lambda: received)
        return received

    d = drive(run, settings=settings)
    d.begin(signal("add", "a"))
    d.answer_query("nothing")
    d.send(d.done("work"))
    assert d.result == ["a"]


def test_unread_signals_query_counts_signals_by_name(drive: Drive, settings: Any) -> None:
    @workflow.defn
    def run() -> None:
        first = workflow.Channel("coins", str)
        first.receive()
        work("x")

    d = drive(run, settings=settings)
    d.begin(signal("coins", "one"), signal("coins", "two"), signal("coin", "misspelt"))
    assert d.query("__hourglass_unread_signals") == {"coins": 1, "coin": 1}
