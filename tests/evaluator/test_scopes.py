"""Cancellation in `with` blocks: `scope` cancels a block, `shield` defers a cancellation."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.errors import ActivityError, TaskCancelledError

from .activities import charge, refund, work
from .conftest import Drive
from .driver import brief, cancel, signal

# --- scope ------------------------------------------------------------------------------------------------------------


@workflow.defn
class WaitsInAScope:
    @workflow.run
    def run(self) -> list[Any]:
        with workflow.scope() as self.block:
            self.side = workflow.spawn(self.helper)
            self.task = charge.start("started")
            charge("waited for")
        after = charge("after")
        return [self.block.cancelled, self.side.cancelled(), self.task.cancelled(), after]

    def helper(self) -> None:
        try:
            charge("by helper")
        finally:
            refund("helper")

    @workflow.signal
    def stop(self) -> None:
        self.block.cancel()
        self.block.cancel()


def test_cancelled_scope_cancels_its_waits_activities_and_fibers(drive: Drive) -> None:
    d = drive(WaitsInAScope)
    assert brief(d.begin()) == ["charge(started)", "charge(waited for)", "charge(by helper)"]
    assert sorted(brief(d.send(signal("stop")))) == [
        "cancel activity 1",
        "cancel activity 2",
        "cancel activity 3",
    ]
    assert sorted(brief(d.send())) == ["charge(after)", "refund(helper)"]
    d.send(d.done("refund", ""))
    d.send(d.done("charge", "A"))
    assert d.result == [True, True, True, "A"]


def test_uncancelled_scope_passes_results_and_errors_through(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[Any]:
        result = ""
        with workflow.scope() as block:
            result = charge("a")
        try:
            with workflow.scope():
                charge("b")
        except ActivityError:
            return [result, block.cancelled]
        return []

    d = begin_run(run)
    d.send(d.done("charge", "A"))
    d.send(d.failed("charge"))
    assert d.result == ["A", False]


def test_scope_cancelled_by_its_own_block_ends_at_the_next_wait(drive: Drive) -> None:
    @workflow.defn
    def run() -> list[str]:
        log = []
        with workflow.scope() as block:
            block.cancel()
            log.append("still here")
            workflow.sleep(10)
            log.append("never")
        return log

    d = drive(run)
    assert brief(d.begin())[-1] == "CompleteRun"
    assert d.result == ["still here"]


def test_scope_cancelled_after_its_last_wait_does_not_affect_later_code(drive: Drive) -> None:
    @workflow.defn
    def run() -> str:
        with workflow.scope() as block:
            block.cancel()
        return charge("after")

    d = drive(run)
    assert brief(d.begin()) == ["charge(after)"]
    d.send(d.done("charge", "A"))
    assert d.result == "A"


def test_cancelling_the_outer_scope_ends_both_scopes(begin_run: Drive) -> None:
    @workflow.defn
    class NestedScopes:
        @workflow.run
        def run(self) -> list[str]:
            log: list[str] = []
            with workflow.scope() as self.outer:
                with workflow.scope():
                    charge("inside")
                    log.append("inner went on")
                log.append("left the inner")
                workflow.sleep(10)
                log.append("outer went on")
            log.append("left the outer")
            return log

        @workflow.signal
        def stop(self) -> None:
            self.outer.cancel()

    d = begin_run(NestedScopes)
    d.send(signal("stop"))
    d.send()
    assert d.result == ["left the outer"]


def test_cancelling_an_inner_scope_does_not_end_the_outer(begin_run: Drive) -> None:
    @workflow.defn
    class NestedScopes:
        @workflow.run
        def run(self) -> str:
            with workflow.scope():
                with workflow.scope() as self.inner:
                    workflow.sleep(10)
                charge("outer")
            return "done"

        @workflow.signal
        def stop(self) -> None:
            self.inner.cancel()

    d = begin_run(NestedScopes)
    assert brief(d.send(signal("stop"))) == ["cancel timer 1", "charge(outer)"]


def test_run_cancellation_is_not_swallowed_by_a_cancelled_scope(begin_run: Drive) -> None:
    d = begin_run(WaitsInAScope)
    d.send(signal("stop"), cancel())
    while d.owed:
        d.send()
    assert d.was_cancelled


def test_scope_cancelled_during_cleanup_does_not_swallow_the_run_cancellation(begin_run: Drive) -> None:
    @workflow.defn
    class CleansUpInAScope:
        @workflow.run
        def run(self) -> str:
            with workflow.scope() as self.block:
                try:
                    workflow.sleep(1000)
                finally:
                    refund("clean up")
            return "swallowed"

        @workflow.signal
        def stop(self) -> None:
            self.block.cancel()

    d = begin_run(CleansUpInAScope)
    d.send(cancel())
    d.send(signal("stop"))
    while d.owed:
        d.send()
    assert d.was_cancelled, d.terminal


def test_cancelled_scope_does_not_cancel_activities_started_outside(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[Any]:
        before = workflow.spawn(charge, "before")
        with workflow.scope() as block:
            workflow.spawn(block.cancel)
            workflow.sleep(10)
        try:
            return [before.result()]
        except TaskCancelledError:
            return ["cancelled"]

    d = begin_run(run)
    d.send(d.done("charge", "B"))
    assert d.result == ["B"]


# --- shield -----------------------------------------------------------------------------------------------------------


def test_nested_shields_defer_cancellation_to_the_end_of_the_outer(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        with workflow.shield():
            with workflow.shield():
                work("1")
            work("2")
        workflow.sleep(10)
        return "lost"

    d = begin_run(run)
    d.send(cancel())
    assert brief(d.send(d.done("work"))) == ["work(2)"]
    d.send(d.done("work"))
    assert d.was_cancelled


def test_shield_without_cancellation_has_no_effect(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        with workflow.shield():
            work("1")
        workflow.sleep(1)
        return "fine"

    d = begin_run(run)
    d.finish()
    assert d.result == "fine"


def test_shield_in_finally_defers_a_second_cancellation_request(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> None:
        try:
            workflow.sleep(10)
        finally:
            with workflow.shield():
                refund("1")
                refund("2")

    d = begin_run(run)
    d.send(cancel())
    d.send(cancel())
    assert brief(d.send(d.done("refund", ""))) == ["refund(2)"]
    d.send(d.done("refund", ""))
    assert d.was_cancelled


def test_timeout_inside_a_shield_ends_its_block(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        with workflow.shield():
            try:
                with workflow.timeout(5):
                    charge("slow")
            except TimeoutError:
                return "late"
        return "not limited"

    d = begin_run(run)
    d.send(d.fired(1))
    assert d.owed, "the timeout did not cancel the activity"
    d.send()
    assert d.result == "late"
