"""The parts of lanes: interrupting threads, reading their stacks, and quarantine."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading

import pytest

from hourglass._evaluator.definition import define_function
from hourglass._worker.health.debuggers import is_debugged
from hourglass._worker.health.quarantine import Quarantine
from hourglass._worker.health.stacks import HungStack, frame_of, take_stack
from hourglass._worker.health.stopping import (
    STUCK_AFTER,
    LaneStopped,
    Stopper,
    may_interrupt,
    raise_briefly,
)

from ..scripted import settled
from .lane_world import Clock


class BlockedThread:
    """A thread that waits in C until it is released."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()
        self.raised: list[str] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.begun.wait()

    def _run(self) -> None:
        try:
            self.begun.set()
            self.go.wait()
        except LaneStopped:
            self.raised.append("late")


def test_exception_for_a_blocked_lane_thread_is_withdrawn_if_not_delivered():
    """On Python 3.11 a pending exception would make profiled threads spin."""
    blocked = BlockedThread()
    calls = []

    def profiled():
        sys.setprofile(lambda *_: calls.append(1))
        profiled_call()
        sys.setprofile(None)

    def profiled_call():
        return 1

    raise_briefly(blocked.thread.ident, 0.001)
    other = threading.Thread(target=profiled)
    other.start()
    other.join(10)
    assert not other.is_alive()
    assert calls
    blocked.go.set()
    blocked.thread.join(10)
    assert blocked.raised == []


def test_thread_in_a_python_loop_is_interrupted():
    seen = []

    def loop():
        try:
            while True:
                pass
        except LaneStopped:
            seen.append("stopped")

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    for _ in range(1000):
        if seen:
            break
        raise_briefly(thread.ident, 0.005)
    thread.join(10)
    assert seen == ["stopped"]


def test_logging_and_library_code_is_not_interrupted():
    """Logging holds shared locks and is never interrupted; library code only after many attempts."""
    frames = {}

    class FrameRecorder(logging.Handler):
        def emit(self, record):
            frames["logging"] = sys._getframe(1)

    logger = logging.getLogger("test of interrupting")
    logger.propagate = False
    logger.addHandler(FrameRecorder())
    logger.warning("now")
    assert not may_interrupt(frames["logging"], attempt=1000)

    import statistics

    statistics.mean(_values_from_library(frames))
    assert not may_interrupt(frames["library"], attempt=1)
    assert may_interrupt(frames["library"], attempt=1000)
    assert may_interrupt(sys._getframe(), attempt=1)
    assert may_interrupt(None, attempt=1)


def _values_from_library(frames):
    frames["library"] = sys._getframe(1)
    yield 1


class FakeLane:
    """An abandoned lane as the stopper sees it."""

    def __init__(self, name="lane") -> None:
        self.name = name
        self.ended = False
        self.progress = 0
        self.attempts: list[int] = []

    def interrupt(self, attempt: int) -> None:
        self.attempts.append(attempt)

    def join(self, timeout: float) -> bool:
        return self.ended


async def test_lane_stopper_retries_and_reports_too_many_stuck_lanes_once():
    reports = []
    loop = asyncio.get_running_loop()
    stopper = Stopper(1, lambda: reports.append(stopper.stuck()))
    first = [FakeLane("a"), FakeLane("b")]
    for lane in first:
        stopper.stop(lane, loop)
    await settled(lambda: reports)
    assert reports == [2]
    assert all(len(lane.attempts) > STUCK_AFTER - 1 for lane in first)
    assert stopper.too_many
    assert stopper.stuck("a") == 1
    first[0].ended = True
    assert stopper.stuck() == 1
    stopper.stop(FakeLane("c"), loop)
    await settled(lambda: len(reports) == 2)
    assert len(stopper.abandoned()) == 2


async def test_lane_that_is_unwinding_is_not_interrupted():
    """An interrupted unwinding would leak fibers."""
    stopper, lane = Stopper(8, None), FakeLane()
    lane.progress = 1
    stopper.stop(lane, asyncio.get_running_loop())
    assert lane.attempts == []
    lane.progress = 2
    lane.ended = True


def test_hung_stack_shows_only_the_users_frames():
    blocked = BlockedThread()
    try:
        stack = take_stack(frame_of(blocked.thread.ident))
        assert stack.place.endswith("in _run")
        assert "self.go.wait()" in stack.text
        assert "threading.py" not in stack.text
    finally:
        blocked.go.set()
    assert take_stack(frame_of(12345)) == HungStack()
    assert take_stack(None).place == "an unknown place"
    library = sys._current_frames()[threading.main_thread().ident]
    while library.f_back is not None:
        library = library.f_back
    assert ":" in take_stack(library).place


@pytest.mark.parametrize(
    ("module", "debugged"), [("bdb", True), ("_pydevd_bundle.x", True), ("coverage.tracer", False)]
)
def test_debugger_is_distinguished_from_coverage_tracing(module, debugged):
    def tracer(*_):
        return None

    tracer.__module__ = module

    def traced():
        frame = sys._getframe()
        frame.f_trace = tracer
        try:
            return is_debugged(0, frame)
        finally:
            frame.f_trace = None

    assert traced() is debugged


def new_definition(name="hangs"):
    def hangs() -> None: ...

    return define_function(hangs, name, ())


def test_run_that_hangs_during_import_is_quarantined_until_the_back_off():
    clock = Clock()
    quarantine = Quarantine(back_off=10, clock=clock)
    for _ in range(2):
        quarantine.add("r", None, HungStack())
    assert quarantine.held("r", None) is not None
    clock.now += 10
    assert quarantine.held("r", None) is None


def test_quarantine_remembers_at_most_a_thousand_runs():
    quarantine = Quarantine()
    for n in range(1100):
        quarantine.add(str(n), None, HungStack())
    assert len(quarantine) == 1000
