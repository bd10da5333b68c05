"""`workflow.timeout` blocks: alone, nested, and in a cancelled run."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator import operations
from hourglass._evaluator.events import ExternalCancelResolved
from hourglass.errors import NotInWorkflowError, UsageError

from .activities import charge, refund, work
from .conftest import Drive
from .driver import brief, cancel, signal

inbox: workflow.Channel[int] = workflow.Channel("inbox", int)


def test_expired_timeout_block_cancels_its_waits_and_raises_timeout_error(begin_run: Drive) -> None:
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

    d = begin_run(run)
    assert brief(d.send(d.fired())) == ["cancel activity 1"]
    assert brief(d.send()) == ["refund(a)"]
    d.send(d.done("refund", ""))
    assert d.result == [True, True]


@workflow.defn
def zero_timeout() -> str:
    try:
        with workflow.timeout(0):
            workflow.sleep(10)
    except TimeoutError:
        return "late"
    return ""


def test_timeout_of_zero_cancels_the_first_wait_without_a_timer(drive: Drive) -> None:
    """It expires one turn later, as with `asyncio.timeout`."""
    d = drive(zero_timeout)
    assert brief(d.begin()) == ["timer 1", "cancel timer 1", "CompleteRun"]
    assert d.result == "late"


def test_timeout_of_zero_does_not_expire_without_a_wait(drive: Drive) -> None:
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
def test_nested_timeouts_raise_from_their_own_blocks(begin_run: Drive, first: int) -> None:
    @workflow.defn
    def run() -> list[str]:
        log: list[str] = []
        try:
            with workflow.timeout(60):
                try:
                    with workflow.timeout(30):
                        workflow.sleep(100)
                except TimeoutError:
                    log.append("inner")
                    workflow.sleep(100)
        except TimeoutError:
            log.append("outer")
        return log

    d = begin_run(run)
    d.send(d.fired(first))
    if first == 2:
        d.send(d.fired(1))
    assert d.result == (["outer"] if first == 1 else ["inner", "outer"])


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["outer first", "inner first"])
def test_nested_timeouts_that_expire_together_end_the_outer_block(
    begin_run: Drive, order: tuple[int, int]
) -> None:
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

    d = begin_run(run)
    d.send(*[d.fired(number) for number in order])
    d.finish(lambda *_: "")
    assert d.result == "outer"


def test_inner_timeout_during_cleanup_does_not_swallow_the_outer_timeout(begin_run: Drive) -> None:
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

    d = begin_run(run)
    assert d.timers == {1: 60.0, 2: 90.0, 3: 1000.0}
    d.send(d.fired(1))
    d.send(d.fired(2))
    d.finish(lambda *_: "")
    assert d.result == "outer"


def test_timeout_during_cleanup_does_not_swallow_the_run_cancellation(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> None:
        with workflow.timeout(60):
            try:
                workflow.sleep(1000)
            finally:
                refund("clean up")

    d = begin_run(run)
    d.send(cancel())
    d.send(d.fired(1))
    while d.owed:
        d.send()
    assert d.was_cancelled, d.terminal


def test_timeout_that_fires_with_the_result_of_its_block_has_no_effect(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        with workflow.timeout(60):
            operations.cancel_external("other", "", "")
        return charge("after the block")

    d = begin_run(run)
    assert brief(d.send(ExternalCancelResolved(1), d.fired(1))) == ["charge(after the block)"]
    d.send(d.done("charge", "fine"))
    assert d.result == "fine"


def test_flag_2_applies_a_message_before_the_timeout_of_its_block(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        with workflow.timeout(60):
            inbox.receive()
        return charge("after the block")

    d = begin_run(run, flags=(2,))
    assert brief(d.send(signal("inbox", 1), d.fired(1))) == ["charge(after the block)"]
    d.send(d.done("charge", "fine"))
    assert d.result == "fine"


def test_message_wins_over_a_timeout_of_the_same_activation(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        try:
            with workflow.timeout(60):
                inbox.receive()
        except TimeoutError:
            return "late"
        return charge("after")

    d = begin_run(run)
    assert brief(d.send(signal("inbox", 1), d.fired(1))) == ["cancel timer 1", "charge(after)"]


def test_run_cancellation_in_a_timeout_block_raises_no_timeout_error(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> None:
        try:
            with workflow.timeout(60):
                charge("a")
        except TimeoutError:
            work("wrong")

    d = begin_run(run)
    assert brief(d.send(cancel())) == ["cancel activity 1"]
    d.send()
    assert d.was_cancelled


@pytest.mark.parametrize("cancel_first", [True, False])
def test_cancellation_wins_over_a_timeout_of_the_same_activation(
    begin_run: Drive, cancel_first: bool
) -> None:
    @workflow.defn
    def run() -> str:
        try:
            with workflow.timeout(60):
                workflow.sleep(100)
        except TimeoutError:
            return "late"
        return ""

    d = begin_run(run)
    events = [cancel(), d.fired(1)]
    d.send(*(events if cancel_first else reversed(events)))
    assert d.was_cancelled


def test_swallowed_timeout_is_not_delivered_again(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[Any]:
        with workflow.timeout(60) as limit:
            try:
                workflow.sleep(100)
            except workflow.Cancelled:
                pass
        workflow.sleep(10)
        return [limit.expired]

    d = begin_run(run)
    d.send(d.fired(1))
    d.send(d.fired())
    assert d.result == [True]


def test_timeout_and_scope_objects_cannot_be_entered_twice(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> int:
        rejected = 0
        for block in (workflow.timeout(5), workflow.scope()):
            with block:
                pass
            try:
                with block:
                    pass
            except UsageError:
                rejected += 1
        return rejected

    d = begin_run(run)
    assert d.result == 2


def test_timeout_scope_and_shield_are_rejected_outside_a_workflow() -> None:
    for block in (workflow.timeout(1), workflow.scope(), workflow.shield()):
        with pytest.raises(NotInWorkflowError), block:
            pass
