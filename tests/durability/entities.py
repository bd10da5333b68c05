"""Clients that send updates and signals to an entity which continues as new after each message, while its owners are killed.

The entity counts the messages that it has processed, and the file has the history of each run: both must contain each
message once. `python -m tests.durability.entities KILLS SECONDS` runs longer, with owners that live for SECONDS on average.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hourglass import Client
from hourglass._embedded.multiprocess.ownership import FileLock
from hourglass._embedded.store.sqlite.records import decode_events
from hourglass._history import events as h
from hourglass._history import events as u
from hourglass.errors import WorkflowAlreadyStartedError

from . import work
from .fork_server import ForkServer

ENTITY = "entity"


@dataclass
class Report:
    """The answers that the clients received, and the errors found."""

    updates: int = 0
    signals: int = 0
    refusals: list[tuple[str, str]] = field(default_factory=list)
    """Workflow and run ids of which a client was told that they were started already."""
    kills: int = 0
    errors: list[str] = field(default_factory=list)


class Messages:
    """Sends messages until the last kill, and then until each thread has sent `least`. An owner lives for `life`
    seconds on average."""

    def __init__(
        self, folder: Path, *, kills: int, seed: int, life: float = 0.25, threads: int = 6, least: int = 20
    ) -> None:
        self.path = folder / "entity.db"
        self.log = folder / "log"
        self.report = Report()
        self._notes = folder / "notes"
        self._kills = kills
        self._life = life
        self._threads = threads
        self._least = least
        self._seed = seed
        self._kills_done = threading.Event()
        self._lock = threading.Lock()

    def run(self, limit: float) -> Report:
        """Send messages and kill owners, then count the messages."""
        with (
            Client.connect(f"local:{self.path}") as client,
            ForkServer(self.path, self._notes, self.log) as fork_server,
        ):
            client.start_workflow(work.Entity.run, 0, id=ENTITY)
            threads = [
                threading.Thread(target=self._send, args=(client, place), daemon=True)
                for place in range(self._threads)
            ]
            for thread in threads:
                thread.start()
            self._kill(fork_server)
            self._kills_done.set()
            fork_server.fork()
            deadline = time.monotonic() + limit
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            if any(thread.is_alive() for thread in threads):
                self.report.errors.append("some messages were not answered")
            else:
                self._ask_the_entity(client)
        self._count()
        return self.report

    def _kill(self, fork_server: ForkServer) -> None:
        chance, wanted = random.Random(self._seed), FileLock(str(self.path))
        for _ in range(self._kills):
            while len(fork_server.alive) < 2:
                fork_server.fork()
            time.sleep(chance.expovariate(1 / self._life))  # a random instant
            owner = wanted.note().pid
            fork_server.kill(owner if owner in fork_server.alive else chance.choice(fork_server.alive))
            self.report.kills += 1

    def _send(self, client: Client, place: int) -> None:
        handle, number = client.get_workflow_handle(ENTITY), 0
        while number < self._least or not self._kills_done.is_set():
            name = f"{place}-{number}"
            number += 1
            try:
                if (place + number) % 2:
                    result = handle.execute_update(work.Entity.do, name, id=name)
                    assert result == name, f"the answer to {name} is {result}"
                    with self._lock:
                        self.report.updates += 1
                else:
                    handle.signal(work.Entity.tell, name)
                    with self._lock:
                        self.report.signals += 1
                if number % 5 == 0:
                    self._race(client, f"{number}")
            except Exception as error:
                self.report.errors.append(f"{name}: {type(error).__name__}: {error}")

    def _race(self, client: Client, name: str) -> None:
        """Start the same workflow in all threads; each rejected start must name the run that exists."""
        try:
            client.start_workflow(work.errand, 1, id=name, task_queue="nobody's")
        except WorkflowAlreadyStartedError as error:
            self.report.refusals.append((name, error.run_id))

    def _ask_the_entity(self, client: Client) -> None:
        sent = self.report.updates + self.report.signals
        total = client.get_workflow_handle(ENTITY).query(work.Entity.total)
        if total != sent:
            self.report.errors.append(f"{sent} messages were sent, the entity has carried out {total}")

    def _count(self) -> None:
        """Count the messages in the histories of all runs."""
        counted: Counter[str] = Counter()
        connection = sqlite3.connect(self.path)
        try:
            for (data,) in connection.execute("SELECT data FROM events"):
                for event in decode_events(data):
                    match event.attributes:
                        case h.WorkflowExecutionSignaled(arguments=(payload,)):
                            counted[payload.data.decode().strip('"')] += 1
                        case u.WorkflowExecutionUpdateAccepted(update_id=update_id):
                            counted[update_id] += 1
            known = set(connection.execute("SELECT workflow_id, run_id FROM runs").fetchall())
        finally:
            connection.close()
        report = self.report
        report.errors += [
            f"{name} was carried out {times} times" for name, times in counted.items() if times > 1
        ]
        if len(counted) != report.updates + report.signals:
            report.errors.append(
                f"{report.updates + report.signals} were acknowledged, {len(counted)} stand in histories"
            )
        report.errors += [
            f"{run} was reported as started and is not there" for run in report.refusals if run not in known
        ]


def main(kills: int, life: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        report = Messages(Path(folder), kills=kills, seed=kills, life=life, threads=12).run(120)
        print(
            f"{report.kills} kills, {report.updates} updates, {report.signals} signals, {len(report.refusals)} refusals,"
            f" {time.monotonic() - began:.0f} s"
        )
        print("\n".join(report.errors[:20]) or "each message was processed once")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
