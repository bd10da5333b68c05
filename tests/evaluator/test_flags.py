"""I9: a history records by flags which order of events its run uses."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.commands import Succeeded
from hourglass._evaluator.events import SeedChanged
from hourglass.workflow import Channel

from .activities import charge
from .conftest import Drive
from .driver import Driver, brief, cancel, signal, update

inbox: Channel[int] = Channel("inbox", int)


def used_flags(d: Driver) -> list[tuple[int, ...]]:
    """Return the flags of each completion."""
    return [completion.used_flags for completion in d.completions if isinstance(completion, Succeeded)]


@workflow.defn
def two_activities() -> None:
    charge("a")
    charge("b")


def test_new_run_records_flag_1000_once(begin_run: Drive) -> None:
    d = begin_run(two_activities)
    d.finish(lambda *_: "")
    assert used_flags(d) == [(1000,), (), ()]


def test_run_of_another_sdk_does_not_get_flag_1000(drive: Drive) -> None:
    d = drive(two_activities)
    d.send(d.started, is_replaying=True)
    d.send(d.done("charge", ""), is_replaying=True)
    d.send(d.done("charge", ""), is_replaying=False)
    assert used_flags(d) == [(), (), ()]


def test_replay_with_flag_1000_lets_an_update_wait_for_its_handler(drive: Drive) -> None:
    @workflow.defn
    def late() -> None:
        workflow.update(name="late")(lambda: None)
        workflow.sleep(1)

    d = drive(late, replaying=True, flags=(1000,))
    assert brief(d.begin(update("late"))) == ["timer 1", "AcceptUpdate", "CompleteUpdate"]


def test_cancellation_that_precedes_a_result_records_flag_1(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> None:
        charge("a")

    d = begin_run(run)
    d.send(d.done("charge", ""), cancel())
    assert d.was_cancelled
    assert 1 in used_flags(d)[-1]


@pytest.mark.parametrize(("flags", "ends"), [((), "CompleteRun"), ((1,), "CancelRun")])
def test_replay_cancels_the_run_only_with_flag_1(begin_run: Drive, flags: tuple[int, ...], ends: str) -> None:
    @workflow.defn
    def run() -> None:
        charge("a")

    d = begin_run(run, replaying=True, flags=flags)
    assert brief(d.send(d.done("charge", ""), cancel()))[-1] == ends
    assert used_flags(d) == [(), ()]


@workflow.defn
def zero_timeout() -> None:
    with workflow.timeout(0):
        charge("a")


@pytest.mark.parametrize("flags", [(1000,), ()], ids=["ours", "temporalio's"])
def test_timeout_of_zero_starts_no_timer_on_replay(drive: Drive, flags: tuple[int, ...]) -> None:
    d = drive(zero_timeout, replaying=True, flags=flags)
    assert brief(d.begin()) == ["charge(a)", "cancel activity 1", "FailRun"]


@workflow.defn
def limited_cleanup() -> str:
    try:
        workflow.sleep(1000)
    except workflow.Cancelled:
        try:
            with workflow.timeout(60):
                charge("clean up")
        except TimeoutError:
            return "too slow"
    return ""


def test_timeout_during_cleanup_of_a_cancelled_run_raises_timeout_error(begin_run: Drive) -> None:
    d = begin_run(limited_cleanup)
    d.send(cancel())
    assert brief(d.send(d.fired())) == ["cancel activity 1"]
    assert brief(d.send()) == ["CompleteRun"]
    assert d.result == "too slow"
    assert used_flags(d) == [(1000,), (), (), ()]


@workflow.defn
class DrawsOnSignal:
    """Draws random numbers in the body and in a signal handler."""

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
        self.drawn.append(workflow.random().randint(0, 10**9))


@pytest.mark.parametrize("flags", [(), (1000,)], ids=["temporalio's", "ours"])
def test_random_seed_of_a_reset_applies_after_signals_of_the_same_activation(
    begin_run: Drive, flags: tuple[int, ...]
) -> None:
    """After a reset, signal handlers of the same activation draw by the old seed."""
    d = begin_run(DrawsOnSignal, replaying=True, flags=flags)
    d.send(SeedChanged(99), signal("draw"), d.fired())
    first_of_new_seed = random.Random(99).randint(0, 10**9)
    assert d.result[0] != first_of_new_seed
    assert d.result[1] == first_of_new_seed
    assert used_flags(d)[-1] == ()


def test_flag_2_applies_all_events_before_code_runs(drive: Drive) -> None:
    """Without flag 2 a message handled first cancels the timer of the same activation."""

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


def test_re_execution_does_not_repeat_flags(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> None:
        try:
            charge("a")
        except workflow.Cancelled:
            charge("b")

    d = begin_run(run)
    d.send(d.done("charge", ""), cancel())
    d.run.drop()
    d.send(d.done("charge", ""))
    assert used_flags(d) == [(1000,), (1,), ()]


def test_channel_drops_a_signal_without_a_value_if_its_type_excludes_none(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> Any:
        return workflow.Channel("words", str).receive()

    d = begin_run(run)
    d.send(signal("words"), signal("words", "text"))
    assert d.result == "text"
    assert used_flags(d)[-1] == ()


def test_channel_reads_a_signal_without_a_value_as_none_if_its_type_includes_none(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[Any]:
        return [workflow.Channel("any").receive(), workflow.Channel("some", str | None).receive()]

    d = begin_run(run)
    d.send(signal("any"), signal("some"))
    assert d.result == [None, None]
    assert used_flags(d)[-1] == ()
