"""Clients that start, signal and wait, while the workers that serve them are killed at random instants.

The clients are threads of this process and never die: whatever was acknowledged to them must be true. They are clients of
the owner of the file, and own it themselves only while no worker does.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from hourglass import Client
from hourglass._embedded.multiprocess.ownership import FileLock

from . import work
from .fork_server import ForkServer


@dataclass(frozen=True, kw_only=True)
class Size:
    """The number of workflows and kills: a kill every `life` seconds on average. With several `processes` any of
    them is killed, otherwise the owner. An activity with heartbeats sends one every `beat` seconds: the
    longer the interval, the more work other processes have in progress."""

    workflows: int
    kills: int
    processes: int = 0
    threads: int = 8
    life: float = 0.15
    beat: float = 0.002
    limit: float = 120.0


@dataclass(frozen=True)
class Death:
    """A killed process: its id, the monotonic time, and whether it owned the file."""

    process: int
    at: float
    is_owner: bool


@dataclass
class Answers:
    """The answers that the clients received."""

    started: dict[str, str] = field(default_factory=dict)
    """Run ids, by workflow id."""
    signalled: dict[str, list[int]] = field(default_factory=dict)
    receipts: dict[str, work.Receipt] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    unserved: int = 0
    """How often no process was left after a kill."""

    @property
    def kills(self) -> int:
        """Number of kills."""
        return len(self.deaths)

    @property
    def owners(self) -> int:
        """Number of kills that hit the owner."""
        return sum(death.is_owner for death in self.deaths)


class KillLoad:
    """Starts, signals and awaits workflows while workers are killed."""

    def __init__(self, folder: Path, size: Size, seed: int) -> None:
        self.path = folder / "orders.db"
        self.notes = folder / "notes"
        self.log = folder / "log"
        self.answers = Answers()
        self._size = size
        self._seed = seed
        self._chance = random.Random(f"storm {seed}")
        self._lock = threading.Lock()
        self._next = 0
        self._kills_done = threading.Event()

    def run(self) -> Answers:
        """Run until all kills are done and all workflows have ended, or the limit has passed."""
        deadline = time.monotonic() + self._size.limit
        with (
            Client.connect(f"local:{self.path}") as client,
            ForkServer(self.path, self.notes, self.log, **{work.BEAT: str(self._size.beat)}) as fork_server,
        ):
            threads = [
                threading.Thread(target=self._drive, args=(client, place), daemon=True)
                for place in range(self._size.threads)
            ]
            for thread in threads:
                thread.start()
            self._kill_repeatedly(fork_server)
            self._kills_done.set()
            if not fork_server.alive:
                fork_server.fork()
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            if any(thread.is_alive() for thread in threads):
                self.answers.errors.append(self._what_is_open(client))
        return self.answers

    # --- killing --------------------------------------------------------------------------------------------

    def _kill_repeatedly(self, fork_server: ForkServer) -> None:
        chance, wanted = self._chance, FileLock(str(self.path))
        for left in reversed(range(self._size.kills)):
            while len(fork_server.alive) < (self._size.processes or (1 if chance.random() < 0.3 else 2)):
                fork_server.fork()
            time.sleep(chance.expovariate(1 / self._size.life))  # a random instant
            owner = wanted.note().pid
            while not left and not self.answers.owners and owner not in fork_server.alive:
                time.sleep(
                    0.01
                )  # on a busy machine none has lived long enough to own the file: the last victim does
                owner = wanted.note().pid
            victim = chance.choice(fork_server.alive)
            if owner in fork_server.alive and (
                not self._size.processes or (not left and not self.answers.owners)
            ):
                victim = owner
            self.answers.deaths.append(Death(victim, time.monotonic(), victim == owner))
            fork_server.kill(victim)
            if not fork_server.alive:
                self.answers.unserved += 1
                time.sleep(chance.random() * self._size.life)  # a random instant

    # --- driving --------------------------------------------------------------------------------------------

    def _drive(self, client: Client, place: int) -> None:
        chance = random.Random(f"{self._seed} {place}")
        while (number := self._number()) is not None:
            try:
                self._order(client, number, chance)
            except Exception as error:
                self.answers.errors.append(f"order {number}: {type(error).__name__}: {error}")

    def _number(self) -> int | None:
        """Return the number of the next order; None once there are enough and no more kills follow."""
        with self._lock:
            if self._next >= self._size.workflows and self._kills_done.is_set():
                return None
            self._next += 1
            return self._next

    def _order(self, client: Client, number: int, chance: random.Random) -> None:
        name = f"order-{number}"
        plan = work.Plan(number, chance.random() * 0.03)
        handle = client.start_workflow(work.Order.run, plan, id=name)
        self.answers.started[name] = handle.run_id
        heard = self.answers.signalled[name] = []
        current = client.get_workflow_handle(name)  # the latest run
        for signal in chance.sample(range(work.SIGNALS), work.SIGNALS):
            threading.Event().wait(chance.choice((0.0, 0.0, 0.01, 0.05)))
            current.signal(work.Order.tell, signal)
            heard.append(signal)
        self.answers.receipts[name] = handle.result(timeout=self._size.limit)

    def _what_is_open(self, client: Client) -> str:
        listed = client.list_workflows("ExecutionStatus = 'Running'")
        stories = [_story(client, run.id) for run, _ in zip(listed, range(3), strict=False)]
        return "\n".join(["these have not ended:", *stories])


def _story(client: Client, workflow_id: str) -> str:
    events = client.get_workflow_handle(workflow_id).history().events
    return f"{workflow_id}: " + " ".join(
        event["eventType"].removeprefix("EVENT_TYPE_") for event in events[-12:]
    )
