"""I5: the dead do not speak, whatever their code does while it unwinds; I6: nothing leaks from one reader to another."""

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

from .acts import charge, listing, refund, work
from .conftest import Drive
from .driver import brief, signal

heard: list[Any] = []


@pytest.fixture(autouse=True)
def silence() -> None:
    """Nothing was heard yet."""
    heard.clear()


def drop(run: Any) -> None:
    """Drop a run's fibers and check that it said nothing."""
    commands, next_seq = list(run.state.commands), dict(run.state.next_seq)
    run.drop()
    assert (run.state.commands, run.state.next_seq) == (commands, next_seq)
    assert run.live is None


def test_dropped_fiber_issues_no_commands(drive: Drive) -> None:
    """Every primitive raises while a dropped fiber unwinds; plain code in `finally` still runs."""

    @workflow.defn
    def run() -> None:
        try:
            workflow.sleep(10)
        finally:
            heard.append("unwinding")
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
                    heard.append("spoke")
                except BaseException as error:
                    heard.append(type(error).__name__)

    d = drive(run, shadow=False)
    d.begin()
    drop(d.run)
    assert heard == ["unwinding", *["Dropped"] * 8]


def test_fiber_that_swallows_every_exception_is_left_suspended(drive: Drive) -> None:
    """A loop that catches BaseException and waits again does not block the drop."""

    @workflow.defn
    def run() -> None:
        while True:
            try:
                workflow.sleep(10)
            except BaseException:
                pass

    d = drive(run, shadow=False)
    d.begin()
    drop(d.run)
    d.send(d.fired())
    assert d.timers == {2: 10.0}


def test_dropped_fiber_that_returns_closes_nothing(drive: Drive) -> None:
    """A result that is returned while the fiber is dropped has no effect."""

    @workflow.defn
    def run() -> str:
        try:
            charge("a")
        except BaseException:
            return "not a result"
        return "fine"

    d = drive(run, shadow=False)
    d.begin()
    drop(d.run)
    d.send(d.done("charge", ""))
    assert d.result == "fine"


def test_drop_closes_generators_and_context_managers(drive: Drive) -> None:
    """A generator that waits inside a `with` is closed without a message."""

    @workflow.defn
    def run() -> None:
        def items() -> Iterator[int]:
            try:
                while True:
                    workflow.sleep(1)
                    yield 1
            finally:
                heard.append("closed")
                work("from a generator")

        with workflow.timeout(100), workflow.scope(), workflow.shield():
            for _ in items():
                pass

    d = drive(run, shadow=False)
    d.begin()
    d.send(d.fired(2))
    drop(d.run)
    assert heard == ["closed"]


def test_every_fiber_is_dropped(drive: Drive) -> None:
    """Spawned tasks and handlers unwind too, also those that never began."""

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
                heard.append(number)
                refund("side")

        @workflow.signal
        def poke(self) -> None:
            self.side(99)

    d = drive(Many, shadow=False)
    d.begin()
    d.send(signal("poke"))
    drop(d.run)
    assert sorted(heard) == [0, 1, 2, 3, 4, 99]


def test_dropping_twice_is_harmless(drive: Drive) -> None:
    """There is nothing left to drop."""

    @workflow.defn
    def run() -> None:
        workflow.sleep(10)

    d = drive(run, shadow=False)
    d.begin()
    drop(d.run)
    drop(d.run)


class Loud:
    """An object in a garbage cycle whose finaliser calls primitives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.me = self

    def __del__(self) -> None:
        try:
            charge.start(f"from the garbage of {self.name}")
            heard.append("reached somebody")
        except NotInWorkflowError:
            heard.append("nobody")


def test_garbage_of_one_run_issues_no_commands_in_another(drive: Drive) -> None:
    """A cycle of run A, collected while B runs, calls primitives without effect."""

    @workflow.defn
    def first() -> None:
        Loud("A")
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
    assert heard == ["nobody"]


def test_other_threads_continue_during_garbage_collection(drive: Drive) -> None:
    """A slow finaliser on one thread does not block the primitives of a run on another."""
    collecting, over = threading.Event(), threading.Event()

    class Slow:
        """A cycle whose end takes until the test says so."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            collecting.set()
            assert over.wait(60)

    def collect() -> None:
        Slow()
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


def is_anothers(callback: object) -> bool:
    """Whether a callback of the collector's is a function in Python of another package: Hypothesis has one."""
    return isinstance(callback, FunctionType) and not callback.__module__.startswith("hourglass")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_exception_of_a_signal_handler_during_garbage_collection() -> None:
    """A signal that arrives in our callback of the collector is handled after it."""

    class Interrupt(BaseException):
        """What the handler raises."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupt

    # A callback in C, before ours: its signal is pending when ours are called.
    send = ctypes.PyDLL(None)["raise"]
    send.argtypes = (ctypes.c_int, ctypes.py_object, ctypes.py_object)
    callback = partial(send, signals.SIGUSR1)
    gc.collect()  # what other tests have left may have weak references, whose callbacks are Python's
    before = signals.signal(signals.SIGUSR1, interrupt)
    as_it_was = list(gc.callbacks)
    gc.callbacks[:] = [callback, *(each for each in as_it_was if not is_anothers(each))]
    try:
        with pytest.raises(Interrupt):
            gc.collect()
    finally:
        gc.callbacks[:] = as_it_was
        signals.signal(signals.SIGUSR1, before)


def test_dropped_run_is_freed(drive: Drive) -> None:
    """Nothing keeps a dropped run's fibers alive."""

    class Marker:
        """Something that only the fiber knows."""

    watched: list[weakref.ref[Marker]] = []

    @workflow.defn
    def run() -> None:
        marker = Marker()
        watched.append(weakref.ref(marker))
        workflow.sleep(10)
        del marker

    d = drive(run, shadow=False)
    d.begin()
    drop(d.run)
    gc.collect()
    assert watched[0]() is None


# --- I6 ---------------------------------------------------------------------------------------------------------------


def test_results_are_not_shared(drive: Drive) -> None:
    """Mutating an activity's result changes neither a second `result()` nor the state."""

    @workflow.defn
    def run() -> list[list[int]]:
        task = listing.start("a")
        first = task.result()
        first.append(99)
        return [first, task.result(), *workflow.gather(task, task)]

    d = drive(run)
    d.begin()
    d.send(d.done("listing", [1]))
    assert d.result == [[1, 99], [1], [1], [1]]


def test_arguments_are_encoded_at_the_call(drive: Drive) -> None:
    """Changing an argument after the call does not change the scheduled one."""

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


def test_failure_is_raised_as_a_new_exception(drive: Drive) -> None:
    """Two readers of a failed task get errors whose tracebacks and attributes do not grow together."""

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

    d = drive(run)
    d.begin()
    d.send(d.failed("charge"))
    assert len(set(d.result)) == 1


def test_signal_arguments_are_not_shared(drive: Drive) -> None:
    """A handler that mutates its argument does not change what a re-execution sees."""

    @workflow.defn
    class Mutates:
        def __init__(self) -> None:
            self.got: list[Any] = []

        @workflow.run
        def run(self) -> list[Any]:
            workflow.wait_condition(lambda: len(self.got) == 2)
            return self.got

        @workflow.signal
        def add(self, items: list[int]) -> None:
            items.append(0)
            self.got.append(items)

    d = drive(Mutates)
    d.begin()
    d.send(signal("add", [1]))
    d.run.drop()
    d.send(signal("add", [2]))
    assert d.result == [[1, 0], [2, 0]]
