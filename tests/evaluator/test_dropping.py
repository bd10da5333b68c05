"""I5: dropped fibers issue no commands, whatever their code does while it unwinds. I6: readers of a value share no objects."""

from __future__ import annotations

import ctypes
import gc
import signal as signals
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from types import FunctionType
from typing import Any

import pytest

from hourglass import workflow
from hourglass.errors import NotInWorkflowError

from .activities import charge, listing, refund, work
from .conftest import Drive
from .driver import brief, signal

events: list[Any] = []


@pytest.fixture(autouse=True)
def clear_events() -> None:
    events.clear()


def drop_silently(run: Any) -> None:
    """Drop a run's fibers and check that this changes neither commands nor sequence numbers."""
    commands, next_seq = list(run.state.commands), dict(run.state.next_seq)
    run.drop()
    assert (run.state.commands, run.state.next_seq) == (commands, next_seq)
    assert run.live is None


def test_dropped_fiber_issues_no_commands(begin_run: Drive) -> None:
    """Every workflow function raises while a dropped fiber unwinds; other code in `finally` runs."""

    @workflow.defn
    def run() -> None:
        try:
            workflow.sleep(10)
        finally:
            events.append("unwinding")
            for call in (
                lambda: refund("a"),
                lambda: charge.start("b"),
                lambda: workflow.sleep(0),
                lambda: workflow.spawn(work, "c"),
                lambda: workflow.wait_condition(lambda: True),
                lambda: workflow.uuid4(),
                lambda: workflow.patched("p"),
                lambda: workflow.continue_as_new(),
            ):
                try:
                    call()
                    events.append("issued a command")
                except BaseException as error:
                    events.append(type(error).__name__)

    d = begin_run(run, shadow=False)
    drop_silently(d.run)
    assert events == ["unwinding", *["Dropped"] * 8]


def test_fiber_that_swallows_every_exception_is_left_suspended(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> None:
        while True:
            try:
                workflow.sleep(10)
            except BaseException:
                pass

    d = begin_run(run, shadow=False)
    drop_silently(d.run)
    d.send(d.fired())
    assert d.timers == {2: 10.0}


def test_result_returned_while_the_fiber_is_dropped_is_ignored(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        try:
            charge("a")
        except BaseException:
            return "not a result"
        return "fine"

    d = begin_run(run, shadow=False)
    drop_silently(d.run)
    d.send(d.done("charge", ""))
    assert d.result == "fine"


def test_drop_closes_generators_and_context_managers(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> None:
        def items() -> Iterator[int]:
            try:
                while True:
                    workflow.sleep(1)
                    yield 1
            finally:
                events.append("closed")
                work("from a generator")

        with workflow.timeout(100), workflow.scope(), workflow.shield():
            for _ in items():
                pass

    d = begin_run(run, shadow=False)
    d.send(d.fired(2))
    drop_silently(d.run)
    assert events == ["closed"]


def test_drop_unwinds_spawned_tasks_and_handlers(begin_run: Drive) -> None:
    """Tasks that never began are unwound, too."""

    @workflow.defn
    class Many:
        @workflow.run
        def run(self) -> None:
            for number in range(5):
                workflow.spawn(self.side, number)
            workflow.sleep(10)

        def side(self, number: int) -> None:
            try:
                workflow.sleep(10)
            finally:
                events.append(number)
                refund("side")

        @workflow.signal
        def poke(self) -> None:
            self.side(99)

    d = begin_run(Many, shadow=False)
    d.send(signal("poke"))
    drop_silently(d.run)
    assert sorted(events) == [0, 1, 2, 3, 4, 99]


def test_dropping_a_run_twice_has_no_effect(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> None:
        workflow.sleep(10)

    d = begin_run(run, shadow=False)
    drop_silently(d.run)
    drop_silently(d.run)


class CallsWorkflowInFinalizer:
    """An object in a reference cycle whose finalizer calls workflow functions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.me = self

    def __del__(self) -> None:
        try:
            charge.start(f"from the garbage of {self.name}")
            events.append("issued a command")
        except NotInWorkflowError:
            events.append("not in a workflow")


def test_finalizer_of_one_run_issues_no_commands_in_another(drive: Drive) -> None:
    @workflow.defn
    def first() -> None:
        CallsWorkflowInFinalizer("A")
        workflow.sleep(10)

    @workflow.defn
    def second() -> str:
        gc.collect()
        return charge("by B itself")

    gc.disable()
    try:
        a, b = drive(first, shadow=False), drive(second, shadow=False)
        a.begin()
        assert brief(b.begin()) == ["charge(by B itself)"]
    finally:
        gc.enable()
    assert events == ["not in a workflow"]


def test_slow_finalizer_does_not_block_runs_on_other_threads(drive: Drive) -> None:
    collecting, over = threading.Event(), threading.Event()

    class SlowFinalizer:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            collecting.set()
            assert over.wait(60)

    def collect() -> None:
        SlowFinalizer()
        gc.collect()

    @workflow.defn
    def run() -> str:
        return charge("meanwhile")

    other = threading.Thread(target=collect)
    other.start()
    try:
        assert collecting.wait(60)
        assert brief(drive(run, shadow=False).begin()) == ["charge(meanwhile)"]
    finally:
        over.set()
        other.join()


def is_foreign_callback(callback: object) -> bool:
    """Whether a callback of the garbage collector is a Python function of another package; Hypothesis has one."""
    return isinstance(callback, FunctionType) and not callback.__module__.startswith("hourglass")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_posix_signal_during_garbage_collection_raises_after_our_callback() -> None:
    class Interrupt(BaseException): ...

    def interrupt(number: int, frame: object) -> None:
        raise Interrupt

    # A callback in C that precedes ours: its signal is pending when ours is called.
    send = ctypes.PyDLL(None)["raise"]
    send.argtypes = (ctypes.c_int, ctypes.py_object, ctypes.py_object)
    callback = partial(send, signals.SIGUSR1)
    gc.collect()  # garbage of other tests may have weak references with Python callbacks
    before = signals.signal(signals.SIGUSR1, interrupt)
    previous_callbacks = list(gc.callbacks)
    gc.callbacks[:] = [
        callback,
        *(previous for previous in previous_callbacks if not is_foreign_callback(previous)),
    ]
    try:
        with pytest.raises(Interrupt):
            gc.collect()
    finally:
        gc.callbacks[:] = previous_callbacks
        signals.signal(signals.SIGUSR1, before)


def test_dropped_fibers_are_garbage_collected(begin_run: Drive) -> None:
    class Marker: ...

    watched: list[weakref.ref[Marker]] = []

    @workflow.defn
    def run() -> None:
        marker = Marker()
        watched.append(weakref.ref(marker))
        workflow.sleep(10)
        del marker

    d = begin_run(run, shadow=False)
    drop_silently(d.run)
    gc.collect()
    assert watched[0]() is None


# --- I6 ---------------------------------------------------------------------------------------------------------------


def test_mutating_an_activity_result_does_not_change_the_state(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[list[int]]:
        task = listing.start("a")
        first = task.result()
        first.append(99)
        return [first, task.result(), *workflow.gather(task, task)]

    d = begin_run(run)
    d.send(d.done("listing", [1]))
    assert d.result == [[1, 99], [1], [1], [1]]


def test_activity_arguments_are_encoded_at_the_call(drive: Drive) -> None:
    @workflow.defn
    def run(names: list[str]) -> list[str]:
        task = workflow.start_activity("echo", names)
        names.append("later")
        task.result()
        return names

    d = drive(run, ["now"])
    assert brief(d.begin()) == ["echo(['now'])"]
    d.send(d.done("echo"))
    assert d.result == ["now", "later"]
    d.run.drop()
    d.run.rebuild()
    assert d.run.state.result == d.terminal


def test_failed_task_raises_a_new_exception_for_each_reader(begin_run: Drive) -> None:
    """Otherwise the traceback of a shared exception would grow with each reader."""

    @workflow.defn
    def run() -> list[int]:
        task = charge.start("a")
        sizes: list[int] = []
        for _ in range(5):
            try:
                task.result()
            except Exception as error:
                size, trace = 0, error.__traceback__
                while trace is not None:
                    size, trace = size + 1, trace.tb_next
                sizes.append(size)
        return sizes

    d = begin_run(run)
    d.send(d.failed("charge"))
    assert len(set(d.result)) == 1


def test_mutating_a_signal_argument_does_not_change_re_execution(begin_run: Drive) -> None:
    @workflow.defn
    class Mutates:
        def __init__(self) -> None:
            self.received: list[Any] = []

        @workflow.run
        def run(self) -> list[Any]:
            workflow.wait_condition(lambda: len(self.received) == 2)
            return self.received

        @workflow.signal
        def add(self, items: list[int]) -> None:
            items.append(0)
            self.received.append(items)

    d = begin_run(Mutates)
    d.send(signal("add", [1]))
    d.run.drop()
    d.send(signal("add", [2]))
    assert d.result == [[1, 0], [2, 0]]
