"""Cancellation as `with` blocks: `timeout`, alone, nested and against a cancelled run."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator import operations
from hourglass._evaluator.events import ExternalCancelResolved
from hourglass.errors import NotInWorkflowError, UsageError

from .acts import charge, refund, work
from .conftest import Drive
from .driver import brief, cancel, signal

inbox: workflow.Channel[int] = workflow.Channel("inbox", int)


def test_timeout_block_in_time_cancels_its_timer(drive: Drive) -> None:
    """A block that ends in time leaves no timer."""

    @workflow.defn
    def run() -> list[Any]:
        with workflow.timeout(60) as limit:
            result = charge("a")
        return [result, limit.expired]

    d = drive(run)
    assert brief(d.begin()) == ["timer 1", "charge(a)"]
    assert brief(d.send(d.done("charge", "A"))) == ["cancel timer 1", "CompleteRun"]
    assert d.result == ["A", False]


def test_timeout_block_raises_timeout_error(drive: Drive) -> None:
    """The waits in the block are cancelled, its `finally` runs, and `TimeoutError` is raised."""

    @workflow.defn
    def run() -> list[Any]:
        limit = workflow.timeout(60)
        try:
            with limit:
                try:
                    charge("a")
                finally:
                    refund("a")
        except TimeoutError as error:
            return [limit.expired, "60 s" in str(error)]
        return []

    d = drive(run)
    d.begin()
    assert brief(d.send(d.fired())) == ["cancel activity 1"]
    assert brief(d.send()) == ["refund(a)"]
    d.send(d.done("refund", ""))
    assert d.result == [True, True]


@workflow.defn
def within_nothing() -> str:
    """Sleeps where there is no time for it."""
    try:
        with workflow.timeout(0):
            workflow.sleep(10)
    except TimeoutError:
        return "late"
    return ""


def test_timeout_of_zero_ends_the_first_wait(drive: Drive) -> None:
    """A timeout of 0 starts no timer: it expires a turn later, as with `asyncio.timeout`."""
    d = drive(within_nothing)
    assert brief(d.begin()) == ["timer 1", "cancel timer 1", "CompleteRun"]
    assert d.result == "late"


def test_timeout_of_zero_without_a_wait(drive: Drive) -> None:
    """A block that has ended before its turn is not cancelled later."""

    @workflow.defn
    def run() -> str:
        with workflow.timeout(0) as limit:
            pass
        charge("after")
        return f"{limit.expired}"

    d = drive(run)
    assert brief(d.begin()) == ["charge(after)"]
    d.send(d.done("charge", ""))
    assert d.result == "False"


@pytest.mark.parametrize("first", [1, 2], ids=["the outer", "the inner"])
def test_nested_timeouts_end_their_own_block(drive: Drive, first: int) -> None:
    """Each `TimeoutError` comes out of the block whose time ran out."""

    @workflow.defn
    def run() -> list[str]:
        said: list[str] = []
        try:
            with workflow.timeout(60):
                try:
                    with workflow.timeout(30):
                        workflow.sleep(100)
                except TimeoutError:
                    said.append("inner")
                    workflow.sleep(100)
        except TimeoutError:
            said.append("outer")
        return said

    d = drive(run)
    d.begin()
    d.send(d.fired(first))
    if first == 2:
        d.send(d.fired(1))
    assert d.result == (["outer"] if first == 1 else ["inner", "outer"])


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["outer first", "inner first"])
def test_both_timeouts_at_once_end_the_outer_block(drive: Drive, order: tuple[int, int]) -> None:
    """Two limits that run out in one activation: the outer block must end, whichever timer fired first."""

    @workflow.defn
    def run() -> str:
        try:
            with workflow.timeout(60):
                try:
                    with workflow.timeout(60):
                        workflow.sleep(100)
                except TimeoutError:
                    pass
                charge("beyond the limit")
        except TimeoutError:
            return "outer"
        return "not limited"

    d = drive(run)
    d.begin()
    d.send(*[d.fired(number) for number in order])
    d.finish(lambda *_: "")
    assert d.result == "outer"


def test_inner_timeout_during_clean_up_does_not_swallow_the_outer(drive: Drive) -> None:
    """The outer limit was delivered and the block cleans up when the inner one runs out: the outer block must still end."""

    @workflow.defn
    def run() -> str:
        try:
            with workflow.timeout(60):
                try:
                    with workflow.timeout(90):
                        try:
                            workflow.sleep(1000)
                        finally:
                            refund("clean up")
                except TimeoutError:
                    pass
                charge("beyond the limit")
        except TimeoutError:
            return "outer"
        return "not limited"

    d = drive(run)
    d.begin()
    assert d.timers == {1: 60.0, 2: 90.0, 3: 1000.0}
    d.send(d.fired(1))
    d.send(d.fired(2))
    d.finish(lambda *_: "")
    assert d.result == "outer"


def test_timeout_during_clean_up_does_not_swallow_the_cancellation(drive: Drive) -> None:
    """A cancelled run cleans up inside a block whose time runs out: it ends as cancelled, not as timed out."""

    @workflow.defn
    def run() -> None:
        with workflow.timeout(60):
            try:
                workflow.sleep(1000)
            finally:
                refund("clean up")

    d = drive(run)
    d.begin()
    d.send(cancel())
    d.send(d.fired(1))
    while d.owed:
        d.send()
    assert d.was_cancelled, d.terminal


def test_timer_of_a_finished_block_has_no_effect(drive: Drive) -> None:
    """The result and the timer arrive together, and the block ends first."""

    @workflow.defn
    def run() -> str:
        with workflow.timeout(60):
            operations.cancel_external("other", "", "")
        return charge("after the block")

    d = drive(run)
    d.begin()
    assert brief(d.send(ExternalCancelResolved(1), d.fired(1))) == ["charge(after the block)"]
    d.send(d.done("charge", "fine"))
    assert d.result == "fine"


def test_message_together_with_the_timer_of_a_block(drive: Drive) -> None:
    """All events of an activation are applied before any code runs (flag 2)."""

    @workflow.defn
    def run() -> str:
        with workflow.timeout(60):
            inbox.receive()
        return charge("after the block")

    d = drive(run, flags=(2,))
    d.begin()
    assert brief(d.send(signal("inbox", 1), d.fired(1))) == ["charge(after the block)"]
    d.send(d.done("charge", "fine"))
    assert d.result == "fine"


def test_message_beats_a_timeout_in_the_same_activation(drive: Drive) -> None:
    """Messages are handled before the timer of the same activation is looked at."""

    @workflow.defn
    def run() -> str:
        try:
            with workflow.timeout(60):
                inbox.receive()
        except TimeoutError:
            return "late"
        return charge("after")

    d = drive(run)
    d.begin()
    assert brief(d.send(signal("inbox", 1), d.fired(1))) == ["cancel timer 1", "charge(after)"]


def test_run_cancellation_is_not_a_timeout(drive: Drive) -> None:
    """A cancellation from outside goes through a timeout block as what it is."""

    @workflow.defn
    def run() -> None:
        try:
            with workflow.timeout(60):
                charge("a")
        except TimeoutError:
            work("wrong")

    d = drive(run)
    d.begin()
    assert brief(d.send(cancel())) == ["cancel activity 1"]
    d.send()
    assert d.was_cancelled


@pytest.mark.parametrize("cancel_first", [True, False])
def test_cancellation_and_timeout_together_cancel_the_run(drive: Drive, cancel_first: bool) -> None:
    """When both come in one activation the cancellation from outside wins."""

    @workflow.defn
    def run() -> str:
        try:
            with workflow.timeout(60):
                workflow.sleep(100)
        except TimeoutError:
            return "late"
        return ""

    d = drive(run)
    d.begin()
    events = [cancel(), d.fired(1)]
    d.send(*(events if cancel_first else reversed(events)))
    assert d.was_cancelled


def test_swallowed_timeout_is_not_delivered_later(drive: Drive) -> None:
    """A block that swallows its cancellation ends as it likes, and nothing strikes afterwards."""

    @workflow.defn
    def run() -> list[Any]:
        with workflow.timeout(60) as limit:
            try:
                workflow.sleep(100)
            except workflow.Cancelled:
                pass
        workflow.sleep(10)
        return [limit.expired]

    d = drive(run)
    d.begin()
    d.send(d.fired(1))
    d.send(d.fired())
    assert d.result == [True]


def test_timeout_blocks_are_entered_once(drive: Drive) -> None:
    """A timeout or scope object serves one block."""

    @workflow.defn
    def run() -> int:
        refused = 0
        for block in (workflow.timeout(5), workflow.scope()):
            with block:
                pass
            try:
                with block:
                    pass
            except UsageError:
                refused += 1
        return refused

    d = drive(run)
    d.begin()
    assert d.result == 2


def test_timeout_blocks_need_a_workflow() -> None:
    """Outside a workflow there is no time to limit and nothing to cancel."""
    for block in (workflow.timeout(1), workflow.scope(), workflow.shield()):
        with pytest.raises(NotInWorkflowError), block:
            pass
