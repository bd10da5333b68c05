"""Cancellation as `with` blocks: `timeout`, `scope` and `shield`, alone, nested and against a cancelled run."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass._engine import operations
from hourglass._engine.events import ExternalCancelResolved
from hourglass.errors import ActivityError, NotInWorkflowError, TaskCancelledError, UsageError

from .acts import charge, refund, work
from .conftest import Drive
from .driver import brief, cancel, signal

inbox: workflow.Channel[int] = workflow.Channel("inbox", int)

# --- timeout ----------------------------------------------------------------------------------------------------------


def test_a_block_in_time_gives_its_timer_up(drive: Drive) -> None:
    """What ends in time leaves nothing behind."""

    @workflow.defn
    def run() -> list[Any]:
        with workflow.timeout(60) as limit:
            result = charge("a")
        return [result, limit.expired]

    d = drive(run)
    assert brief(d.begin()) == ["timer 1", "charge(a)"]
    assert brief(d.send(d.done("charge", "A"))) == ["cancel timer 1", "CompleteRun"]
    assert d.result == ["A", False]


def test_a_block_out_of_time_raises_timeout_error(drive: Drive) -> None:
    """What the block waits for is cancelled, its `finally` runs, and `TimeoutError` comes out."""

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


def test_a_timeout_of_nothing_strikes_at_the_first_wait(drive: Drive) -> None:
    """A limit of 0 is a timer of 0."""

    @workflow.defn
    def run() -> str:
        try:
            with workflow.timeout(0):
                workflow.sleep(10)
        except TimeoutError:
            return "late"
        return ""

    d = drive(run)
    d.begin()
    d.send(d.fired(1))
    assert d.result == "late"


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


def test_a_block_left_while_its_timer_fires_is_over(drive: Drive) -> None:
    """The result and the timer come together, the block ends first: its timeout must not strike what follows."""

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


def test_a_message_that_ends_a_block_while_its_timer_fires(drive: Drive) -> None:
    """The same with a message, where all events of an activation are applied before anything runs (flag 2)."""

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


def test_a_message_that_comes_with_the_timeout_is_in_time(drive: Drive) -> None:
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


def test_a_cancelled_run_is_not_a_timeout(drive: Drive) -> None:
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


def test_a_swallowed_timeout_is_not_delivered_later(drive: Drive) -> None:
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


def test_blocks_are_entered_once(drive: Drive) -> None:
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


def test_blocks_need_a_workflow() -> None:
    """Outside a workflow there is no time to limit and nothing to cancel."""
    for block in (workflow.timeout(1), workflow.scope(), workflow.shield()):
        with pytest.raises(NotInWorkflowError), block:
            pass


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


def test_a_scope_cancels_all_that_was_started_in_it(drive: Drive) -> None:
    """The wait in the block, activities and spawned fibers; the block is left quietly and the run goes on."""
    d = drive(Scoped)
    assert brief(d.begin()) == ["charge(started)", "charge(waited for)", "charge(by helper)"]
    assert sorted(brief(d.send(signal("stop")))) == ["cancel activity 1", "cancel activity 2", "cancel activity 3"]
    assert sorted(brief(d.send())) == ["charge(after)", "refund(helper)"]
    d.send(d.done("refund", ""))
    d.send(d.done("charge", "A"))
    assert d.result == [True, True, True, "A"]


def test_a_scope_that_nobody_cancels_is_transparent(drive: Drive) -> None:
    """Results and errors pass through it."""

    @workflow.defn
    def run() -> list[Any]:
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


def test_a_scope_cancelled_from_within_ends_at_the_next_wait(drive: Drive) -> None:
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


def test_a_scope_cancelled_at_its_end_strikes_nobody(drive: Drive) -> None:
    """Cancelled after its last wait, the block ends; what follows is not cancelled."""

    @workflow.defn
    def run() -> str:
        with workflow.scope() as block:
            block.cancel()
        return charge("after")

    d = drive(run)
    assert brief(d.begin()) == ["charge(after)"]
    d.send(d.done("charge", "A"))
    assert d.result == "A"


def test_an_inner_scope_is_cancelled_with_the_outer(drive: Drive) -> None:
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


def test_cancelling_only_the_inner_scope(drive: Drive) -> None:
    """The outer block goes on."""

    @workflow.defn
    class Nested:
        @workflow.run
        def run(self) -> str:
            with workflow.scope():
                with workflow.scope() as self.inner:
                    workflow.sleep(10)
                return charge("outer")

        @workflow.signal
        def stop(self) -> None:
            self.inner.cancel()

    d = drive(Nested)
    d.begin()
    assert brief(d.send(signal("stop"))) == ["cancel timer 1", "charge(outer)"]


def test_the_cancelled_run_passes_through_a_scope(drive: Drive) -> None:
    """A cancellation from outside is not swallowed by a scope, also when both come together."""
    d = drive(Scoped)
    d.begin()
    d.send(signal("stop"), cancel())
    while d.owed:
        d.send()
    assert d.was_cancelled


def test_what_was_started_before_the_scope_is_not_its_own(drive: Drive) -> None:
    """An activity that was begun outside goes on when the block is cancelled; the wait for it ends."""

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


def test_a_shield_defers_the_cancellation(drive: Drive) -> None:
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


def test_a_shield_without_cancellation_does_nothing(drive: Drive) -> None:
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


def test_a_shield_in_finally_protects_the_clean_up(drive: Drive) -> None:
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


def test_a_timeout_inside_a_shield_still_works(drive: Drive) -> None:
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
