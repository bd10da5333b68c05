"""`/live`, `/ready` and `/status` while parts of the tree die: they always answer, and never wrongly."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from typing import Any

from hourglass import Client, Worker
from hourglass._http.server import HttpRequest

from . import fault_injection, testbed
from .outcome import Outcome, Scale, Tally
from .waiting import Stuck, results, until

_PATHS = ("/live", "/ready", "/status")


def status_while_dying(seed: int, scale: Scale) -> Outcome:
    """Request the status pages continuously while every process is killed."""
    tally, chance = Tally(), random.Random(f"status {seed}")
    with Client.connect("local:") as client:
        try:
            queue = testbed.name("status")
            with testbed.working(client, queue, status_address="127.0.0.1:0") as worker:
                _killed_and_asked(client, worker, chance, scale, tally)
        except Stuck as stuck:
            tally.failed(str(stuck))
    return tally.outcome()


def _killed_and_asked(
    client: Client, worker: Worker, chance: random.Random, scale: Scale, tally: Tally
) -> None:
    port = int((worker.status_address or "").rpartition(":")[2])
    static = frozenset(worker.tree.paths())
    asker = Asker(port)
    asker.start()
    try:
        for path in [
            process_path
            for _ in range(scale.rounds)
            for process_path in chance.sample(sorted(static), len(static))
        ]:
            handles = testbed.start_chains(client, worker.task_queue, 2)
            count = asker.requests
            fault_injection.kill(worker, path)
            until("it is asked", lambda count=count: asker.requests > count + 3, 20, worker)  # type: ignore[misc]
            took = until("it is ready again", lambda: ask(port, "/ready")[0] == 200, 30, worker)
            tally.check(testbed.right(results(handles, 60, worker)) == 2, f"{path}: wrong results", took)
        tally.check(ask(port, "/live")[0] == 200, "not alive at the end")
        paths = set(ask(port, "/status")[1]["tree"])
        tally.check(static <= paths, f"/status does not show {sorted(static - paths)}")
        _not_ready_without_workers(worker, port, tally)
    finally:
        asker.over.set()
        asker.join(10)
    tally.check(not asker.troubles, f"of {asker.requests} answers: {asker.troubles[:3]}")


def _not_ready_without_workers(worker: Worker, port: int, tally: Tally) -> None:
    """While the subsystem waits for its restart nothing polls, and `/ready` reports it."""
    answer = worker._portal.call(_killed_and_asked_at_once(worker))
    tally.check(b" 503 " in answer, f"/ready says {answer!r} while nobody polls")
    tally.passed(until("it is ready again", lambda: ask(port, "/ready")[0] == 200, 30, worker))


async def _killed_and_asked_at_once(worker: Worker) -> bytes:
    """Kill and request in one turn of the loop, because the pause before the restart is short."""
    assert worker._status is not None
    worker._app.require_tree().kill("Application/Subsystem")
    response = await worker._status._answer(HttpRequest("GET", "/ready", {}, "127.0.0.1"), b"")
    return response.encode()


def ask(port: int, path: str) -> tuple[int, Any]:
    """Send one request on a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


class Asker(threading.Thread):
    """Sends requests continuously; records wrong answers."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.requests = 0
        self.troubles: list[str] = []
        self._port = port

    def run(self) -> None:
        while not self.over.is_set():
            for path in _PATHS:
                began = time.monotonic()
                try:
                    code, _ = ask(self._port, path)
                    good = code == 200 or (code == 503 and path != "/status")
                    result = f"{path}: {code}"
                except (OSError, ValueError, http.client.HTTPException) as error:
                    good, result = False, f"{path}: {error!r}"
                if not good:
                    self.troubles.append(f"{result} after {time.monotonic() - began:.2f} s")
                self.requests += 1
            self.over.wait(0.005)
