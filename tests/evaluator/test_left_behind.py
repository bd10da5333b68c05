"""What a run leaves undone when it closes is said: handlers that have not finished, and messages that nobody read."""

from __future__ import annotations

import warnings

from hourglass import workflow
from hourglass.errors import ApplicationError
from hourglass.testing import Environment
from hourglass.workflow import (
    Channel,
    HandlerUnfinishedPolicy,
    UnfinishedSignalHandlersWarning,
    UnfinishedUpdateHandlersWarning,
)

from .acts import work
from .conftest import Drive
from .driver import cancel, signal, update

notes: Channel[str] = Channel("notes", str)


@workflow.defn
class Hasty:
    """Does not wait for its handlers."""

    def __init__(self) -> None:
        self.how = ""

    @workflow.run
    def run(self) -> str:
        """Until it is told how to end."""
        workflow.wait_condition(lambda: self.how)
        if self.how == "continue":
            workflow.continue_as_new()
        if self.how == "fail":
            raise ApplicationError("by wish")
        return self.how

    @workflow.signal
    def end(self, how: str) -> None:
        """End."""
        self.how = how

    @workflow.signal
    def slow(self) -> None:
        """Takes its time."""
        work("slow")

    @workflow.update
    def change(self) -> None:
        """Takes its time."""
        work("change")

    @workflow.update(unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    def shrug(self) -> None:
        """Takes its time, and may be abandoned."""
        work("shrug")

    @shrug.validator
    def check(self) -> None:
        """All is well."""

    @workflow.signal(unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    def whisper(self) -> None:
        """Takes its time, and may be abandoned."""
        work("whisper")


def test_unfinished_handlers_are_named(drive: Drive) -> None:
    """A run that returns while handlers wait says which, once; those that may be abandoned are passed over."""
    d = drive(Hasty)
    d.begin()
    d.send(signal("slow"), signal("whisper"), update("change", id="u1"), update("shrug", id="u2"))
    assert d.run.notices == ()
    d.send(signal("end", "done"))
    (notice,) = d.run.notices
    assert "signal slow, update change (u1)." in notice
    assert "all_handlers_finished" in notice


def test_every_kind_of_end_leaves_handlers_behind(drive: Drive) -> None:
    """Handlers are left behind by continuing as new, failing and being cancelled, too."""
    for how in ("continue", "fail"):
        d = drive(Hasty)
        d.begin()
        d.send(signal("slow"))
        d.send(signal("end", how))
        assert "signal slow" in d.run.notices[0]
    d = drive(Hasty)
    d.begin()
    d.send(signal("slow"))
    d.send(cancel())
    assert "signal slow" in d.run.notices[0]


def test_handlers_that_finish_in_time_are_not_reported(drive: Drive) -> None:
    """A handler that ends in the activation in which the run closes has finished."""
    d = drive(Hasty)
    d.begin()
    d.send(signal("end", "done"))
    assert d.run.notices == ()
    assert d.result == "done"


def test_unread_messages_are_counted(drive: Drive) -> None:
    """Messages of a channel that are left when the run closes are counted, and not shown; so are unknown signals."""

    @workflow.defn
    def reads_one() -> str:
        return notes.receive()

    d = drive(reads_one)
    d.begin()
    d.send(signal("notes", "first"), signal("notes", "secret"), signal("notes", "third"), signal("nots", "x"))
    assert d.result == "first"
    assert [notice.partition(",")[0] for notice in d.run.notices] == [
        "signal 'notes' has unread messages (2)",
        "signal 'nots' has unread messages (1)",
    ]
    assert "secret" not in "".join(d.run.notices)


def test_reports_are_not_repeated_by_a_reexecution(drive: Drive) -> None:
    """A run that is executed again, up to its end, says nothing of what it said before."""
    d = drive(Hasty)
    d.begin()
    d.send(signal("slow"))
    d.send(signal("end", "done"))
    assert len(d.run.notices) == 1
    d.run.drop()
    d.run.rebuild()
    assert len(d.run.notices) == 1


@workflow.defn
class Leaving:
    """Ends as soon as a handler has begun."""

    begun = False

    @workflow.run
    def run(self) -> str:
        """Until then."""
        workflow.wait_condition(lambda: self.begun)
        return "left"

    @workflow.signal
    def told(self) -> None:
        """Never finishes."""
        self.begun = True
        workflow.wait_condition(lambda: False)

    @workflow.update
    def asked(self) -> None:
        """Never finishes."""
        self.told()


def test_unfinished_handlers_warn() -> None:
    """A filter can tell warnings of signals from those of updates; where it makes errors of them, nothing ends of it."""
    with warnings.catch_warnings(record=True) as caught, Environment() as env:
        warnings.simplefilter("always")
        assert env.execute_workflow(Leaving.run, start_signal=Leaving.told) == "left"
        assert [each.category for each in caught] == [UnfinishedSignalHandlersWarning]
        assert "signal told" in str(caught[0].message)
        handle = env.start_workflow(Leaving.run)
        handle.start_update(Leaving.asked)
        assert handle.result() == "left"
        assert caught[-1].category is UnfinishedUpdateHandlersWarning
        warnings.simplefilter("error")
        assert env.execute_workflow(Leaving.run, start_signal=Leaving.told) == "left"
