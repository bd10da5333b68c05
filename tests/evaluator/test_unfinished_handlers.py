"""Warnings when a run closes: unfinished handlers and unread messages."""

from __future__ import annotations

import warnings

from hourglass import workflow
from hourglass.testing import Environment
from hourglass.workflow import (
    Channel,
    HandlerUnfinishedPolicy,
    UnfinishedSignalHandlersWarning,
    UnfinishedUpdateHandlersWarning,
)

from .activities import work
from .conftest import Drive
from .driver import signal, update

notes: Channel[str] = Channel("notes", str)


@workflow.defn
class IgnoresItsHandlers:
    """Returns without waiting for its handlers."""

    def __init__(self) -> None:
        self.outcome = ""

    @workflow.run
    def run(self) -> str:
        workflow.wait_condition(lambda: self.outcome)
        return self.outcome

    @workflow.signal
    def end(self, outcome: str) -> None:
        self.outcome = outcome

    @workflow.signal
    def slow(self) -> None:
        work("slow")

    @workflow.update
    def change(self) -> None:
        work("change")

    @workflow.update(unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    def abandoned_update(self) -> None:
        work("abandoned_update")

    @abandoned_update.validator
    def check(self) -> None: ...

    @workflow.signal(unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    def abandoned_signal(self) -> None:
        work("abandoned_signal")


def test_closing_run_reports_unfinished_handlers(begin_run: Drive) -> None:
    """Handlers with the ABANDON policy are not reported."""
    d = begin_run(IgnoresItsHandlers)
    d.send(
        signal("slow"),
        signal("abandoned_signal"),
        update("change", id="u1"),
        update("abandoned_update", id="u2"),
    )
    assert d.run.notices == ()
    d.send(signal("end", "done"))
    (notice,) = d.run.notices
    assert "signal slow, update change (u1)." in notice
    assert "all_handlers_finished" in notice


def test_closing_run_reports_the_number_of_unread_signals(begin_run: Drive) -> None:
    """The report contains no payloads."""

    @workflow.defn
    def reads_one() -> str:
        return notes.receive()

    d = begin_run(reads_one)
    d.send(signal("notes", "first"), signal("notes", "secret"), signal("notes", "third"), signal("nots", "x"))
    assert d.result == "first"
    assert [notice.partition(",")[0] for notice in d.run.notices] == [
        "signal 'notes' has unread messages (2)",
        "signal 'nots' has unread messages (1)",
    ]
    assert "secret" not in "".join(d.run.notices)


def test_re_execution_does_not_repeat_reports_of_unfinished_handlers(begin_run: Drive) -> None:
    d = begin_run(IgnoresItsHandlers)
    d.send(signal("slow"))
    d.send(signal("end", "done"))
    assert len(d.run.notices) == 1
    d.run.drop()
    d.run.rebuild()
    assert len(d.run.notices) == 1


@workflow.defn
class ClosesDuringAHandler:
    """Returns as soon as a handler has begun."""

    begun = False

    @workflow.run
    def run(self) -> str:
        workflow.wait_condition(lambda: self.begun)
        return "left"

    @workflow.signal
    def unfinished_signal(self) -> None:
        self.begun = True
        workflow.wait_condition(lambda: False)

    @workflow.update
    def unfinished_update(self) -> None:
        self.unfinished_signal()


def test_warning_categories_distinguish_unfinished_signals_and_updates() -> None:
    """A filter that turns the warnings into errors does not fail the run."""
    with warnings.catch_warnings(record=True) as caught, Environment() as env:
        warnings.simplefilter("always")
        assert (
            env.execute_workflow(
                ClosesDuringAHandler.run, start_signal=ClosesDuringAHandler.unfinished_signal
            )
            == "left"
        )
        assert [warning.category for warning in caught] == [UnfinishedSignalHandlersWarning]
        assert "signal unfinished_signal" in str(caught[0].message)
        handle = env.start_workflow(ClosesDuringAHandler.run)
        handle.start_update(ClosesDuringAHandler.unfinished_update)
        assert handle.result() == "left"
        assert caught[-1].category is UnfinishedUpdateHandlersWarning
        warnings.simplefilter("error")
        assert (
            env.execute_workflow(
                ClosesDuringAHandler.run, start_signal=ClosesDuringAHandler.unfinished_signal
            )
            == "left"
        )
