"""Eviction storms: many runs and a tiny cache, so that nearly every task replays its run from the start."""

from __future__ import annotations

import time

from hourglass import Client

from . import testbed
from .leaks import left_open, outstanding
from .outcome import Outcome, Scale, Tally
from .waiting import Stuck, results, until

CACHES = (0, 1, 10)


def storms(seed: int, scale: Scale) -> Outcome:
    """Run many chains with a cache for none, one and ten runs."""
    tally = Tally()
    with Client.connect(testbed.server().target) as client:
        for cache in CACHES:
            try:
                with testbed.working(client, testbed.name("evictions"), max_cached_workflows=cache) as worker:
                    began = time.monotonic()
                    handles = testbed.start_chains(client, worker.task_queue, scale.workflows)
                    values = results(handles, scale.limit, worker)
                    good = testbed.right(values)
                    took = time.monotonic() - began
                    tally.check(good == len(values), f"cache {cache}: {good} right", took)
                    until("nothing is outstanding", lambda: not outstanding(worker), 60, worker)
                tally.check(not left_open(worker), f"cache {cache}, after the shutdown: {left_open(worker)}")
            except Stuck as stuck:
                tally.failed(f"cache {cache}: {stuck}")
    return tally.outcome()
