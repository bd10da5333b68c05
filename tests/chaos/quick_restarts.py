"""Parts that die and restart quickly: the handle is adopted, so that no run waits for a task that was delivered to a dying
poll, which a server times out after ten seconds only.
"""

from __future__ import annotations

import random
import time

from hourglass import Client, Worker

from . import fault_injection, testbed
from .outcome import Outcome, Scale, Tally
from .waiting import Stuck, results, until

_RUNS = 30
_EXTRA_SECONDS = 6.0
"""Allowed delay in seconds, compared with the same runs without a kill. Without adoption it would be the task timeout of the
server, 10 s.
"""
_SUBSYSTEM = "Application/Subsystem"


def kill_above_handles(seed: int, scale: Scale) -> Outcome:
    """Kill everything above the handles, one after another, with runs in progress: they complete without delay."""
    tally, chance = Tally(), random.Random(f"promptly {seed}")
    with Client.connect(testbed.server().target) as client:
        try:
            with testbed.working(client, testbed.name("restart")) as worker:
                static = frozenset(worker.tree.paths())
                paths = _paths(worker)
                for path in scale.rounds * paths if scale.strict else paths[:2]:
                    _killed(client, worker, path, chance, scale, tally)
                    until("the tree is whole", lambda: fault_injection.whole(worker, static), 30, worker)
                counters = worker._app.tables.counters
                if scale.strict:
                    tally.check(
                        counters.opened == 1, f"{counters.opened} handles were opened, one was needed"
                    )
        except Stuck as stuck:
            tally.failed(str(stuck))
    return tally.outcome()


def _paths(worker: Worker) -> list[str]:
    parts = ("BridgeHolder", "WorkerRegistry", "WorkerSupervisor", "WorkerLauncher")
    queue = f"{fault_injection.WORKERS}/{worker.task_queue}"
    return [queue, *[f"{_SUBSYSTEM}/{part}" for part in parts], f"{_SUBSYSTEM}/Runtime", _SUBSYSTEM]


def _killed(
    client: Client, worker: Worker, path: str, chance: random.Random, scale: Scale, tally: Tally
) -> None:
    runs = min(_RUNS, scale.workflows)
    undisturbed = 0.0
    if scale.strict:  # what these runs take on this machine, as busy as it is
        began = time.monotonic()
        results(testbed.start_chains(client, worker.task_queue, runs), scale.limit, worker)
        undisturbed = time.monotonic() - began
    handles = testbed.start_chains(client, worker.task_queue, runs)
    time.sleep(chance.random() * 0.5)  # a random instant is the point
    fault_injection.kill(worker, path)
    began = time.monotonic()
    values = results(handles, scale.limit, worker)
    took, limit = time.monotonic() - began, undisturbed + _EXTRA_SECONDS
    good = testbed.right(values) == runs and (took <= limit or not scale.strict)
    tally.check(good, f"{path} killed: {values} after {took:.1f} s, of at most {limit:.1f}", took)
