"""The server dies and returns, connections are reset, or the network drops everything: the worker completes its work."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hourglass import Client, Worker, WorkflowHandle
from hourglass.testing import dev_server

from . import testbed
from .outcome import Outcome, Scale, Tally
from .proxy import Proxy
from .waiting import Stuck, results, until


def server_killed(seed: int, scale: Scale) -> Outcome:
    """Kill the server with SIGKILL under load; restart it on its file later."""
    tally, chance = Tally(), random.Random(f"server killed {seed}")
    count = min(scale.workflows, 200)
    queue = testbed.name("server-killed")
    with (
        tempfile.TemporaryDirectory() as folder,
        dev_server(db_filename=Path(folder) / "server.db", extra_args=testbed.QUICK_TIMERS) as server,
        Client.connect(server.target) as client,
        testbed.working(client, queue) as worker,
    ):

        def harm() -> None:
            time.sleep(chance.random() * 0.5)  # a random instant
            server.kill()
            time.sleep(scale.outage)  # the outage itself
            server.start()

        _survives(client, worker, count, harm, scale, tally)
    return tally.outcome()


def connections_reset(seed: int, scale: Scale) -> Outcome:
    """Reset the worker's connections repeatedly under load."""
    chance = random.Random(f"connections reset {seed}")

    def harm(proxy: Proxy) -> None:
        for _ in range(2 * scale.injections):
            time.sleep(chance.random() * 0.4)  # a random instant
            proxy.reset()

    return _behind_proxy(harm, scale)


def traffic_dropped(seed: int, scale: Scale) -> Outcome:
    """Drop all traffic for a while without closing connections."""
    chance = random.Random(f"black hole {seed}")

    def harm(proxy: Proxy) -> None:
        time.sleep(chance.random() * 0.5)  # a random instant
        proxy.swallow()
        time.sleep(scale.dropped_traffic)  # the outage itself
        proxy.let_through()

    return _behind_proxy(harm, scale)


def _behind_proxy(harm: Callable[[Proxy], None], scale: Scale) -> Outcome:
    """Run the worker behind a proxy; start and await runs past it."""
    tally = Tally()
    server, queue = testbed.server(), testbed.name("behind-proxy")
    count = min(scale.workflows, 200)
    with (
        Proxy(server.target) as proxy,
        Client.connect(server.target) as client,
        Client.connect(proxy.target) as through,
        testbed.working(through, queue) as worker,
    ):
        _survives(client, worker, count, lambda: harm(proxy), scale, tally)
    return tally.outcome()


def _survives(
    client: Client, worker: Worker, count: int, harm: Callable[[], None], scale: Scale, tally: Tally
) -> None:
    """Start runs, cause the fault, start more runs; recovery ends when a run started after the fault completes."""
    try:
        handles = testbed.start_chains(client, worker.task_queue, count)
        harm()
        began = time.monotonic()
        fresh = _start_when_possible(client, worker, scale)
        (value,) = results(fresh, scale.limit, worker)
        took = time.monotonic() - began
        tally.check(value == 5, f"a run after the outage gave {value}", took)
        found_all = results(handles, scale.limit, worker)
        tally.check(testbed.right(found_all) == count, f"wrong results: {found_all}")
    except Stuck as stuck:
        tally.failed(str(stuck))


def _start_when_possible(client: Client, worker: Worker, scale: Scale) -> Sequence[WorkflowHandle[Any]]:
    handles: list[WorkflowHandle[Any]] = []

    def start() -> bool:
        try:
            handles.extend(testbed.start_chains(client, worker.task_queue, 1))
        except Exception:
            return False
        return True

    until("a run can be started", start, scale.limit, worker)
    return handles
