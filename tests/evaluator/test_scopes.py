"""Cancellation as `with` blocks: `scope`, which is cancelled as a whole, and `shield`, which defers."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.errors import ActivityError, TaskCancelledError

from .acts import charge, refund, work
from .conftest import Drive
from .driver import brief, cancel, signal

# --- scope ------------------------------------------------------------------------------------------------------------


@workflow.defn
class Scoped:
    """A block that a signal cancels."""

    @workflow.run
    def run(self) -> list[Any]:
        """Work in a scope, then outside."""
        with workflow.scope() as self.block:
            self.side = workflow.spawn(self.helper)
            self.task = charge.start("started")
            charge("waited for")
        after = charge("after")
        return [self.block.cancelled, self.side.cancelled(), self.task.cancelled(), after]

    def helper(self) -> None:
        """A spawned fiber that starts things too."""
        try:
            charge("by helper")
        finally:
            refund("helper")

    @workflow.signal
    def stop(self) -> None:
        """Cancel the block."""
        self.block.cancel()
        self.block.cancel()


def test_scope_cancels_its_activities_and_fibers(drive: Drive) -> None:
    """The wait in the block, activities and spawned fibers; the block is left and the run continues."""
    d = drive(Scoped)
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


def test_uncancelled_scope_has_no_effect(drive: Drive) -> None:
    """Results and errors pass through it."""

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

    d = drive(run)
    d.begin()
    d.send(d.done("charge", "A"))
    d.send(d.failed("charge"))
    assert d.result == ["A", False]


def test_scope_cancelled_from_within_ends_at_the_next_wait(drive: Drive) -> None:
    """The block goes on to its next wait, and ends there."""

    @workflow.defn
    def run() -> list[str]:
        said = []
        with workflow.scope() as block:
            block.cancel()
            said.append("still here")
            workflow.sleep(10)
            said.append("never")
        return said

    d = drive(run)
    assert brief(d.begin())[-1] == "CompleteRun"
    assert d.result == ["still here"]


def test_scope_cancelled_after_its_last_wait(drive: Drive) -> None:
    """The block ends, and later code is not cancelled."""

    @workflow.defn
    def run() -> str:
        with workflow.scope() as block:
            block.cancel()
        return charge("after")

    d = drive(run)
    assert brief(d.begin()) == ["charge(after)"]
    d.send(d.done("charge", "A"))
    assert d.result == "A"


def test_inner_scope_is_cancelled_with_the_outer(drive: Drive) -> None:
    """Cancelling the outer block ends both; the inner one does not swallow it."""

    @workflow.defn
    class Nested:
        @workflow.run
        def run(self) -> list[str]:
            said: list[str] = []
            with workflow.scope() as self.outer:
                with workflow.scope():
                    charge("inside")
                    said.append("inner went on")
                said.append("left the inner")
                workflow.sleep(10)
                said.append("outer went on")
            said.append("left the outer")
            return said

        @workflow.signal
        def stop(self) -> None:
            self.outer.cancel()

    d = drive(Nested)
    d.begin()
    d.send(signal("stop"))
    d.send()
    assert d.result == ["left the outer"]


def test_cancelling_an_inner_scope_keeps_the_outer(drive: Drive) -> None:
    """The outer block goes on."""

    @workflow.defn
    class Nested:
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

    d = drive(Nested)
    d.begin()
    assert brief(d.send(signal("stop"))) == ["cancel timer 1", "charge(outer)"]


def test_run_cancellation_passes_through_a_scope(drive: Drive) -> None:
    """A cancellation from outside is not swallowed by a scope, also when both come together."""
    d = drive(Scoped)
    d.begin()
    d.send(signal("stop"), cancel())
    while d.owed:
        d.send()
    assert d.was_cancelled


def test_scope_cancelled_during_clean_up_does_not_swallow_the_cancellation(drive: Drive) -> None:
    """A cancelled run cleans up inside a scope that is cancelled then: the run still ends as cancelled."""

    @workflow.defn
    class Cleaning:
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

    d = drive(Cleaning)
    d.begin()
    d.send(cancel())
    d.send(signal("stop"))
    while d.owed:
        d.send()
    assert d.was_cancelled, d.terminal


def test_scope_leaves_earlier_activities_alone(drive: Drive) -> None:
    """An activity that was started outside continues when the block is cancelled; the wait for it ends."""

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

    d = drive(run)
    d.begin()
    d.send(d.done("charge", "B"))
    assert d.result == ["B"]


# --- shield -----------------------------------------------------------------------------------------------------------


def test_shield_defers_the_cancellation(drive: Drive) -> None:
    """It is delivered once, at the next wait after the block, and not lost."""

    @workflow.defn
    def run() -> str:
        with workflow.shield():
            charge("undisturbed")
            refund("undisturbed")
        try:
            workflow.sleep(10)
        except workflow.Cancelled:
            return "delivered"
        return "lost"

    d = drive(run)
    d.begin()
    assert d.send(cancel()) == ()
    d.send(d.done("charge", ""))
    d.send(d.done("refund", ""))
    assert d.result == "delivered"


def test_nested_shields_defer_to_the_end_of_the_outer(drive: Drive) -> None:
    """The inner block's end delivers nothing while the outer one holds."""

    @workflow.defn
    def run() -> str:
        with workflow.shield():
            with workflow.shield():
                work("1")
            work("2")
        workflow.sleep(10)
        return "lost"

    d = drive(run)
    d.begin()
    d.send(cancel())
    assert brief(d.send(d.done("work"))) == ["work(2)"]
    d.send(d.done("work"))
    assert d.was_cancelled


def test_shield_without_cancellation_has_no_effect(drive: Drive) -> None:
    """No request, no effect."""

    @workflow.defn
    def run() -> str:
        with workflow.shield():
            work("1")
        workflow.sleep(1)
        return "fine"

    d = drive(run)
    d.begin()
    d.finish()
    assert d.result == "fine"


def test_shield_in_finally_protects_the_clean_up(drive: Drive) -> None:
    """A second request during a shielded clean-up waits for its end."""

    @workflow.defn
    def run() -> None:
        try:
            workflow.sleep(10)
        finally:
            with workflow.shield():
                refund("1")
                refund("2")

    d = drive(run)
    d.begin()
    d.send(cancel())
    d.send(cancel())
    assert brief(d.send(d.done("refund", ""))) == ["refund(2)"]
    d.send(d.done("refund", ""))
    assert d.was_cancelled


def test_timeout_inside_a_shield_still_works(drive: Drive) -> None:
    """A shield holds back requests to stop, not the limits that its own block sets."""

    @workflow.defn
    def run() -> str:
        with workflow.shield():
            try:
                with workflow.timeout(5):
                    charge("slow")
            except TimeoutError:
                return "late"
        return "not limited"

    d = drive(run)
    d.begin()
    d.send(d.fired(1))
    assert d.owed, "the block was not ended"
    d.send()
    assert d.result == "late"
