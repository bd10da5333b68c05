"""Queries: they look at a run and leave no trace."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.commands import AnswerQuery, Succeeded
from hourglass._evaluator.events import QueryReceived
from hourglass.errors import ApplicationError

from .acts import charge, work
from .conftest import Drive
from .driver import as_bytes, run_settings, signal


@workflow.defn
class Counter:
    """Counts, and answers."""

    def __init__(self) -> None:
        self.count = 0
        self.box: list[int] = []

    @workflow.run
    def run(self) -> int:
        """Three steps."""
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
        """A query that fails."""
        raise ValueError("no answer")

    @workflow.query
    def durable(self) -> str:
        """A query that does what it must not."""
        return charge("x")

    @workflow.query
    def random(self) -> float:
        """A query that draws a number."""
        return workflow.random().random()

    @workflow.query
    def waits(self) -> None:
        """A query that waits."""
        workflow.sleep(0)

    @workflow.query
    def facts(self) -> list[Any]:
        """What may be looked at."""
        return [workflow.info().workflow_id, workflow.now().year, workflow.is_replaying()]

    @workflow.query(dynamic=True)
    def any(self, name: str, arguments: list[Any]) -> str:
        """All other questions."""
        return f"{name} {[argument.decode() for argument in arguments]}"


@pytest.fixture(params=[True, False], ids=["verified", "plain"])
def settings(request: pytest.FixtureRequest) -> Any:
    """Queries are answered on a copy where determinism is checked, on the live fibers elsewhere."""
    return run_settings(verify=request.param)


def test_queries_of_a_class(drive: Drive, settings: Any) -> None:
    """Answers follow the run, arguments are bound, defaults filled in."""
    d = drive(Counter, settings=settings)
    d.begin()
    assert (d.query("get"), d.query("get", 5)) == (0, 0)
    d.send(d.done("work"))
    assert (d.query("get"), d.query("get", 5)) == (1, 5)
    assert d.query("facts") == ["workflow-1", 2023, False]


def test_queries_have_no_effect_on_the_run(drive: Drive, settings: Any) -> None:
    """Neither the journal nor later commands depend on queries."""
    asked, silent = drive(Counter, settings=settings), drive(Counter, settings=settings)
    for d in (asked, silent):
        d.begin()
    for name in ("get", "broken", "durable", "random", "waits", "unknown"):
        asked.ask(name)
    assert asked.run.state.journal == silent.run.state.journal
    for d in (asked, silent):
        d.finish()
    assert as_bytes(asked.completions) == as_bytes(silent.completions)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("broken", "no answer"),
        ("durable", "is not allowed in query durable"),
        ("random", "randomness is not allowed in query random"),
        ("waits", "is not allowed in query waits"),
    ],
)
def test_forbidden_call_fails_only_the_query(drive: Drive, settings: Any, name: str, expected: str) -> None:
    """The answer is a failure with the reason; the run is not affected."""
    d = drive(Counter, settings=settings)
    d.begin()
    with pytest.raises(ApplicationError, match=expected):
        d.query(name)
    d.send(d.done("work"))
    assert d.query("get") == 1


def test_dynamic_query_handles_unknown_names(drive: Drive) -> None:
    """Unknown names go to the dynamic handler, with undecoded arguments."""
    d = drive(Counter)
    d.begin()
    assert d.query("what", 1, "a") == "what [1, 'a']"


def test_unknown_query_lists_the_known_ones(drive: Drive, settings: Any) -> None:
    """Without a dynamic handler the answer says what could be asked."""

    @workflow.defn
    def run() -> None:
        @workflow.query
        def status() -> str:
            return "fine"

        workflow.sleep(10)

    d = drive(run, settings=settings)
    d.begin()
    assert d.query("status") == "fine"
    with pytest.raises(ApplicationError, match="known queries: status"):
        d.query("stats")


def test_several_queries_in_one_activation(drive: Drive, settings: Any) -> None:
    """Each is answered, by its id."""
    d = drive(Counter, settings=settings)
    d.begin()
    completion = d.run.activate(
        d.activation(QueryReceived("1", "get"), QueryReceived("2", "broken"), QueryReceived("3", "facts"))
    )
    assert isinstance(completion, Succeeded)
    answers = completion.commands
    assert all(isinstance(answer, AnswerQuery) for answer in answers)
    assert [answer.query_id for answer in answers] == ["1", "2", "3"]  # type: ignore[attr-defined]
    assert [answer.failure is None for answer in answers] == [True, False, True]  # type: ignore[attr-defined]


def test_closed_run_answers_queries(drive: Drive, settings: Any) -> None:
    """Also after its fibers were dropped."""
    d = drive(Counter, settings=settings)
    d.begin()
    d.finish()
    assert d.query("get") == 3
    d.run.drop()
    assert d.query("get") == 3


def test_stack_trace_shows_every_fiber(drive: Drive, settings: Any) -> None:
    """`__stack_trace` names the function and line where each line of execution stands."""

    def helper() -> None:
        workflow.sleep(50)

    @workflow.defn
    def run() -> None:
        workflow.spawn(helper)
        charge("here it waits")

    d = drive(run, settings=settings)
    d.begin()
    trace = d.query("__stack_trace")
    assert 'charge("here it waits")' in trace
    assert "in helper" in trace


def test_metadata_lists_the_handlers(drive: Drive) -> None:
    """What Temporal's UI asks for: names and descriptions."""
    d = drive(Counter)
    d.begin()
    answer = d.ask("__temporal_workflow_metadata")
    assert answer.result.encoding == "json/protobuf"
    assert b"The count." in answer.result.data


def test_query_keeps_a_waiting_signal(drive: Drive, settings: Any) -> None:
    """A signal that waits for its handler is still there after a query."""

    @workflow.defn
    def run() -> list[str]:
        work("x")
        got: list[str] = []
        workflow.signal(name="add")(lambda item: got.append(item))
        workflow.wait_condition(lambda: got)
        return got

    d = drive(run, settings=settings)
    d.begin(signal("add", "a"))
    d.ask("nothing")
    d.send(d.done("work"))
    assert d.result == ["a"]


def test_unread_signals_are_counted_by_name(drive: Drive, settings: Any) -> None:
    """`__hourglass_unread_signals` counts signals that neither a handler nor a channel has read."""

    @workflow.defn
    def run() -> None:
        first = workflow.Channel("coins", str)
        first.receive()
        work("x")

    d = drive(run, settings=settings)
    d.begin(signal("coins", "one"), signal("coins", "two"), signal("coin", "misspelt"))
    assert d.query("__hourglass_unread_signals") == {"coins": 1, "coin": 1}
