"""A C call that holds the interpreter cannot be ended from within, but it can be seen."""

from __future__ import annotations

import subprocess
import sys
import threading

from hourglass._worker.health import hung
from hourglass._worker.health.hung import GilWatchdog

from .lane_world import Clock, done, stage, with_lanes
from .scripted import on, settled, start

PROGRAM = """
import asyncio, re, sys
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.definition import define_function
from hourglass._evaluator.events import Activation, RunStarted
from hourglass._worker.lanes.evaluation import Evaluations
from hourglass._worker.health.hung import GilWatchdog
from hourglass._worker.lanes.lanes import Lane, LaneSet

def catastrophe() -> None:
    re.match(r"(a+)+$", "a" * 200 + "b")

definition = define_function(catastrophe, None, ())

async def main():
    evaluations = Evaluations(lambda name: definition, RunSettings(task_queue="q"))
    lane = Lane("lane", evaluations, asyncio.get_running_loop())
    lanes = LaneSet([lane], deadlock_timeout=0.2, watchdog=GilWatchdog(1.0))
    lanes.start()
    started = RunStarted(workflow_type="catastrophe", workflow_id="w")
    lanes.submit(Activation(run_id="r", events=(started,)), print)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def test_a_catastrophic_regular_expression_is_shown():
    """All threads stand still, and yet the author's line is on stderr."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True)
    kill = threading.Timer(60, process.kill)  # should nothing be written at all
    kill.start()
    try:
        assert process.stderr is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if " in catastrophe" in line:
                break
        assert " in catastrophe" in seen[-1]
    finally:
        kill.cancel()
        process.kill()
        process.wait()
        process.stderr.close()


def test_it_is_fed_rarely_and_rests_when_there_is_nothing_to_do(monkeypatch):
    """Arming it takes a thread: a few times per limit at most."""
    calls = []

    class Recorded:
        dump_traceback_later = staticmethod(lambda limit, **_: calls.append(limit))
        cancel_dump_traceback_later = staticmethod(lambda: calls.append("cancelled"))

    monkeypatch.setattr(hung, "faulthandler", Recorded)
    clock = Clock()
    watchdog = GilWatchdog(20, clock=clock)
    for _ in range(100):
        clock.now += 0.5
        watchdog.feed()
    assert calls == [20] * 10
    watchdog.rest()
    watchdog.rest()
    assert calls[10:] == ["cancelled"]


def test_lanes_feed_it_while_there_is_work(monkeypatch):
    """From the first activation until the lanes are idle."""

    class Fed(GilWatchdog):
        feeds = rests = 0

        def feed(self):
            self.feeds += 1

        def rest(self):
            self.rests += 1

    watchdog = Fed(20)

    async def script(world):
        assert watchdog.feeds == 0
        await world.ask(start("r", "blocks", "r"))
        world.submit(on("r", done(1)))
        await world.begun("r")
        await settled(lambda: watchdog.feeds > 2)
        stage.go.set()
        await settled(lambda: watchdog.rests)

    with_lanes(script, watchdog=watchdog, deadlock_timeout=0.1)
