"""Every process of the tree is killed, in turn and repeatedly, under load: nothing is lost or leaks, and the tree is
complete afterwards.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

from hourglass import Client, Worker, WorkflowHandle

from . import fault_injection, testbed, work
from .leaks import holdings as held_now
from .leaks import leaked, left_open, outstanding
from .outcome import Outcome, Scale, Tally
from .waiting import Stuck, describe, results, until

_LONGEST_PAUSE = 0.25
_WHOLE_LIMIT = 60.0
_SETTLE_LIMIT = 60.0

# The instants at which the blows beside plain kills fall.
_DELIVERIES = [
    (loop, instant)
    for loop in ("WorkflowPollLoop", "ActivityPollLoop")
    for instant in ("arrived", "dispatched")
]


def on_server(seed: int, scale: Scale) -> Outcome:
    """Kill processes of a worker on a dev server."""
    return _kill_all(testbed.server().target, 0.9, random.Random(f"server {seed}"), scale)


def in_memory(seed: int, scale: Scale) -> Outcome:
    """Kill processes of a worker on the engine in memory."""
    return _kill_all("local:", 0.5, random.Random(f"memory {seed}"), scale)


def _kill_all(target: str, at_once: float, chance: random.Random, scale: Scale) -> Outcome:
    tally = Tally()
    with Client.connect(target) as client:
        # What is made once and kept (the runtime, pools of threads) is no leak.
        with testbed.working(client, testbed.name("warm-up")) as worker:
            results(testbed.start_chains(client, worker.task_queue, 3), 60, worker)
        before = held_now(client._portal)
        try:
            _under_load(client, at_once, chance, scale, tally)
        except Stuck as stuck:
            tally.failed(str(stuck))
        trouble = leaked(client._portal, before, _SETTLE_LIMIT)
        tally.check(not trouble, trouble)
    return tally.outcome()


def _under_load(client: Client, at_once: float, chance: random.Random, scale: Scale, tally: Tally) -> None:
    queue = testbed.name("kills")
    with testbed.working(client, queue, lanes=2) as worker:
        static = frozenset(worker.tree.paths())
        blows = scale.rounds * len(static) + 3 * scale.injections
        runs = max(scale.workflows, 3 * blows)
        load = Load(client, queue, runs, int(at_once * runs), blows)
        struck = 0
        for blow in _blows(worker, queue, sorted(static), load, chance, scale):
            load.more()
            time.sleep(chance.random() * _LONGEST_PAUSE)  # a random instant
            if not blow():
                continue
            if chance.random() < 0.6:  # else the next blow meets a tree that is on its way back
                _recovers(worker, static, tally)
            else:
                struck += 1
        values = results(load.handles, scale.limit, worker)
        tally.check(testbed.right(values) == runs, f"wrong results: {values}")
        for _ in range(struck):
            tally.passed()
        _recovers(worker, static, tally)
        until("nothing is outstanding", lambda: not outstanding(worker), _SETTLE_LIMIT, worker)
        after = frozenset(worker.tree.paths())
        tally.check(
            after == static, f"the tree has {sorted(after ^ static)} more or less\n{describe(worker)}"
        )
    tally.check(not left_open(worker), f"after the shutdown: {left_open(worker)}")


class Load:
    """Runs in progress during the kills: some from the start, the others along with the kills."""

    def __init__(self, client: Client, queue: str, runs: int, at_once: int, blows: int) -> None:
        self.handles: list[WorkflowHandle[int]] = []
        self._client = client
        self._queue = queue
        self._prefix = testbed.name("chain")
        self._left = runs
        self._slice = -(-(runs - at_once) // blows)
        self._start(at_once)

    def more(self) -> None:
        """Start the next runs."""
        self._start(min(self._slice, self._left))

    def _start(self, count: int) -> None:
        for _ in range(count):
            place = len(self.handles)
            self.handles.append(
                self._client.start_workflow(
                    work.chain, place, id=f"{self._prefix}-{place}", task_queue=self._queue
                )
            )
        self._left -= count


def _recovers(worker: Worker, static: frozenset[str], tally: Tally) -> None:
    tally.passed(
        until("the tree is whole", lambda: fault_injection.whole(worker, static), _WHOLE_LIMIT, worker)
    )


def _blows(
    worker: Worker, queue: str, static: list[str], load: Load, chance: random.Random, scale: Scale
) -> list[Callable[[], bool]]:
    """Return every path `rounds` times and the special faults, in random order."""
    blows: list[Callable[[], bool]] = []
    for _ in range(scale.rounds):
        blows += [partial(fault_injection.kill, worker, path) for path in static]
    for number in range(scale.injections):
        loop, instant = _DELIVERIES[number % len(_DELIVERIES)]
        blows.append(partial(fault_injection.at_delivery, worker, queue, loop, instant, load.more))
        blows.append(partial(fault_injection.recycle_in_flight, worker, queue, load.more))
        blows.append(partial(fault_injection.kill, worker, f"{fault_injection.WORKERS}/{queue}"))
    chance.shuffle(blows)
    return blows
