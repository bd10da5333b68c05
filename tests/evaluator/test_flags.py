"""I9: what the evaluator does in the order of things is flagged in the history."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.commands import Succeeded
from hourglass._evaluator.events import SeedChanged
from hourglass.workflow import Channel

from .acts import charge
from .conftest import Drive
from .driver import Driver, brief, cancel, signal, update

inbox: Channel[int] = Channel("inbox", int)


def used(d: Driver) -> list[tuple[int, ...]]:
    """The flags of each completion."""
    return [completion.used_flags for completion in d.completions if isinstance(completion, Succeeded)]


@workflow.defn
def two_steps() -> None:
    """Two activities."""
    charge("a")
    charge("b")


def test_first_completion_carries_our_flag(drive: Drive) -> None:
    """1000, once, in the completion of the first task of a run that we begin."""
    d = drive(two_steps)
    d.begin()
    d.finish(lambda *_: "")
    assert used(d) == [(1000,), (), ()]


def test_foreign_history_does_not_get_our_flag(drive: Drive) -> None:
    """Replaying a run that another SDK began, and continuing it live, does not record flag 1000."""
    d = drive(two_steps)
    d.send(d.started, is_replaying=True)
    d.send(d.done("charge", ""), is_replaying=True)
    d.send(d.done("charge", ""), is_replaying=False)
    assert used(d) == [(), (), ()]


def test_own_history_is_recognised_on_replay(drive: Drive) -> None:
    """The flag is in the history, and its behaviour applies."""

    @workflow.defn
    def late() -> None:
        workflow.update(name="late")(lambda: None)
        workflow.sleep(1)

    d = drive(late, replaying=True, flags=(1000,))
    assert brief(d.begin(update("late"))) == ["timer 1", "AcceptUpdate", "CompleteUpdate"]


def test_cancellation_before_a_result_records_flag_1(drive: Drive) -> None:
    """In the completion in which it mattered."""

    @workflow.defn
    def run() -> None:
        charge("a")

    d = drive(run)
    d.begin()
    d.send(d.done("charge", ""), cancel())
    assert d.was_cancelled
    assert 1 in used(d)[-1]


@pytest.mark.parametrize(("flags", "ends"), [((), "CompleteRun"), ((1,), "CancelRun")])
def test_replay_follows_the_recorded_behaviour(drive: Drive, flags: tuple[int, ...], ends: str) -> None:
    """A history without flag 1 keeps the result, one with it the cancellation."""

    @workflow.defn
    def run() -> None:
        charge("a")

    d = drive(run, replaying=True, flags=flags)
    d.begin()
    assert brief(d.send(d.done("charge", ""), cancel()))[-1] == ends
    assert used(d) == [(), ()]


@workflow.defn
def without_time() -> None:
    """A block for which there is no time."""
    with workflow.timeout(0):
        charge("a")


@pytest.mark.parametrize("flags", [(1000,), ()], ids=["ours", "temporalio's"])
def test_timeout_of_zero_starts_no_timer(drive: Drive, flags: tuple[int, ...]) -> None:
    """A block limited to no time at all is cancelled a turn later, without a timer in the history."""
    d = drive(without_time, replaying=True, flags=flags)
    assert brief(d.begin()) == ["charge(a)", "cancel activity 1", "FailRun"]


@workflow.defn
def limited_clean_up() -> str:
    """Cleans up after a cancellation, within a time limit."""
    try:
        workflow.sleep(1000)
    except workflow.Cancelled:
        try:
            with workflow.timeout(60):
                charge("clean up")
        except TimeoutError:
            return "too slow"
    return ""


def test_timeout_during_clean_up_raises_timeout_error(drive: Drive) -> None:
    """A limit that begins while the run cleans up after its cancellation ends in `TimeoutError`, which can be caught."""
    d = drive(limited_clean_up)
    d.begin()
    d.send(cancel())
    assert brief(d.send(d.fired())) == ["cancel activity 1"]
    assert brief(d.send()) == ["CompleteRun"]
    assert d.result == "too slow"
    assert used(d) == [(1000,), (), (), ()]


@workflow.defn
class DrawsOnSignal:
    """A run whose handler and body both draw."""

    def __init__(self) -> None:
        self.drawn: list[int] = []

    @workflow.run
    def run(self) -> list[int]:
        """The body."""
        workflow.sleep(10)
        self.drawn.append(workflow.random().randint(0, 10**9))
        return self.drawn

    @workflow.signal
    def draw(self) -> None:
        """Draws."""
        self.drawn.append(workflow.random().randint(0, 10**9))


@pytest.mark.parametrize("flags", [(), (1000,)], ids=["temporalio's", "ours"])
def test_new_seed_applies_after_signals_of_the_same_activation(drive: Drive, flags: tuple[int, ...]) -> None:
    """After a reset, signal handlers of the same activation still draw by the old seed."""
    d = drive(DrawsOnSignal, replaying=True, flags=flags)
    d.begin()
    d.send(SeedChanged(99), signal("draw"), d.fired())
    first_of_new_seed = random.Random(99).randint(0, 10**9)
    assert d.result[0] != first_of_new_seed
    assert d.result[1] == first_of_new_seed
    assert used(d)[-1] == ()


def test_single_batch_flag_applies_events_before_code(drive: Drive) -> None:
    """temporalio's flag 2: all events are applied before anything runs, so a timer is not given up by a message."""

    @workflow.defn
    def run() -> list[Any]:
        try:
            return [inbox.receive(timeout=5)]
        except TimeoutError:
            return ["late"]

    plain, single = drive(run), drive(run, flags=(2,))
    for d in (plain, single):
        d.begin()
    assert brief(plain.send(signal("inbox", 1), plain.fired())) == ["cancel timer 1", "CompleteRun"]
    assert "cancel timer 1" not in brief(single.send(signal("inbox", 1), single.fired()))


def test_flags_survive_a_re_execution(drive: Drive) -> None:
    """Rebuilding the fibers does not send a flag twice, and does not forget it."""

    @workflow.defn
    def run() -> None:
        try:
            charge("a")
        except workflow.Cancelled:
            charge("b")

    d = drive(run)
    d.begin()
    d.send(d.done("charge", ""), cancel())
    d.run.drop()
    d.send(d.done("charge", ""))
    assert used(d) == [(1000,), (1,), ()]


def test_channel_drops_a_signal_without_a_value(drive: Drive) -> None:
    """A signal without a value is dropped by a channel whose type does not include None, like any that cannot be decoded."""

    @workflow.defn
    def run() -> Any:
        return workflow.Channel("words", str).receive()

    d = drive(run)
    d.begin()
    d.send(signal("words"), signal("words", "text"))
    assert d.result == "text"
    assert used(d)[-1] == ()


def test_signal_without_a_value_is_none_if_the_channel_allows_it(drive: Drive) -> None:
    """A channel of anything, or of texts or nothing, takes it; no flag is needed."""

    @workflow.defn
    def run() -> list[Any]:
        return [workflow.Channel("any").receive(), workflow.Channel("some", str | None).receive()]

    d = drive(run)
    d.begin()
    d.send(signal("any"), signal("some"))
    assert d.result == [None, None]
    assert used(d)[-1] == ()
