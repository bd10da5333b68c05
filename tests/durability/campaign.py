"""Random faults in sequence and combined, while clients work; then the checker runs.

`KillCampaign` is a file, the workers on it, which are killed, and their clients, which live on. `FileCampaign` is such a file
on a failing disk and clock (`shim`), whose clients are killed, too. `ServerCampaign` is a Temporal dev server with workers and
clients on a failing network (`chaos.proxy`). The seed determines which faults come, when, and whom they hit; the timing of the
processes depends on the machine, so a seed repeats the faults, not every instant.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from hourglass import Client
from hourglass._embedded.multiprocess.ownership import FileLock
from hourglass.errors import HourglassError
from hourglass.testing import dev_server

from . import campaign_workflows
from .checker import Case, about_file, check, collect
from .clients import LEDGERS, PATIENCE, QUEUE, Journal, end_all, ledger
from .fork_server import JOURNAL, ForkServer
from .shim import Shim
from .work import BEAT
from .written import recoveries

_LEAST = {"start": 12, "signal": 25, "update": 25, "result": 2}
"""The number of answered requests of each kind before the clients are stopped."""


@dataclass
class Findings:
    """The result of a campaign."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    """Number of hits of each kind."""
    checked: Counter[str] = field(default_factory=Counter)
    """Number of checked acknowledgements and effects of each kind."""
    unanswered: Counter[str] = field(default_factory=Counter)
    """Number of requests without an answer, which may have been executed once."""
    violations: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    """Seconds from a kill of a worker until its activities in progress were retried."""
    seconds: float = 0.0
    log: str = ""


class Campaign:
    """The common part of both campaigns. `gap` is the mean of the seconds between two faults."""

    kinds: Mapping[str, int] = {}
    """The kinds of faults, with the weights of the draw."""

    workers, clients = 3, 3
    messages = campaign_workflows.MESSAGES_A_RUN

    def __init__(self, folder: Path, seed: int, faults: int, *, gap: float = 0.2) -> None:
        self.findings = Findings(seed)
        self.folder = folder
        self.journal, self.notes = folder / "journal", folder / "notes"
        self.chance = random.Random(f"campaign {type(self).__name__} {seed}")
        self._wanted = faults
        self._gap = gap
        self._clients = 0
        self._deaths: dict[int, float] = {}
        self._roles: dict[int, str] = {}
        self._later: list[tuple[float, Callable[[], None]]] = []
        self.fork_server: ForkServer
        self.case: Case

    # --- what each kind says for itself -----------------------------------------------------------------------

    @contextmanager
    def arena(self) -> Iterator[Client]:
        """Start everything that the campaign needs; yield a client that is hit by faults of the engine only."""
        raise NotImplementedError

    def inject(self, kind: str) -> bool:
        """Cause one fault; return False if there was nothing to hit."""
        raise NotImplementedError

    def end_faults(self) -> None:
        """End all faults."""
        raise NotImplementedError

    def afterwards(self) -> Iterator[str]:
        """Return the violations that are visible after all processes have ended."""
        return iter(())

    jumps: Sequence[tuple[float, float]] = ()

    # --- the campaign -------------------------------------------------------------------------------------------

    def run(self) -> Findings:
        """Cause the faults, end them, then check."""
        began = time.monotonic()
        with self.arena() as client:
            for number in range(LEDGERS):
                self._begin_ledger(client, number)
            self._faults()
            self.end_faults()
            self._end(client)
            self.case = case = collect(
                client, self.journal, self.notes, self.jumps, is_embedded=isinstance(self, KillCampaign)
            )
        findings = self.findings
        findings.violations += check(case)
        findings.violations += self.afterwards()
        findings.checked += case.checked
        findings.recoveries += recoveries(self._deaths, self.notes).values()
        for line in case.lines:
            if line.phase == "failed":
                findings.unanswered[line.what] += 1
        findings.seconds = time.monotonic() - began
        log = self.folder / "log"
        findings.log = log.read_text(errors="replace")[-20_000:] if log.exists() else ""
        return findings

    def _begin_ledger(self, client: Client, number: int) -> None:
        journal, name = Journal(self.journal, "first"), ledger(number)
        journal.request(
            "start",
            name,
            lambda _: (
                client.start_workflow(
                    campaign_workflows.Ledger.run, 0, self.messages, id=name, task_queue=QUEUE
                ).run_id
            ),
        )

    def _faults(self) -> None:
        while (done := self.findings.faults.total()) < self._wanted:
            self.keep_alive()
            self._wait(self.chance.expovariate(1 / self._gap))
            kind = self._next_kind(done)
            if self.inject(kind):
                self.findings.faults[kind] += 1

    def _next_kind(self, done: int) -> str:
        """Draw a kind of fault; each kind comes once before any comes twice. Clocks are moved in the second half
        only, so that the times of the first half can be checked."""
        is_first_half = 2 * done < self._wanted
        kinds = {
            name: weight for name, weight in self.kinds.items() if not (is_first_half and "clock" in name)
        }
        new = [name for name in kinds if name not in self.findings.faults]
        if new:
            return self.chance.choice(new)
        return self.chance.choices(list(kinds), list(kinds.values()))[0]

    def _wait(self, seconds: float) -> None:
        """Wait; meanwhile undo faults that are due."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for when, undo in [entry for entry in self._later if entry[0] <= now]:
                self._later.remove((when, undo))
                undo()
            if now >= until:
                return
            time.sleep(min(until - now, 0.01))  # random instants

    def later(self, seconds: float, undo: Callable[[], None]) -> None:
        """Schedule an action, whatever faults come before it."""
        self._later.append((time.monotonic() + seconds, undo))

    def _end(self, client: Client) -> None:
        for _, undo in self._later:
            undo()
        self._later.clear()
        self._work_on()
        for pid in self.with_role("client"):
            _send(pid, signal.SIGCONT)
            _send(pid, signal.SIGTERM)
        deadline = time.monotonic() + 2 * PATIENCE + 15.0  # a result may be asked for twice
        while self.with_role("client") and time.monotonic() < deadline:
            time.sleep(0.05)
            self.fork_server.reap()
        if self.with_role("client"):
            self.findings.violations.append("a client still waits for an answer, long after the last fault")
        try:
            self.findings.violations += end_all(client, Journal(self.journal, "last"))
        except HourglassError as error:
            self.findings.violations.append(f"after the last fault: {type(error).__name__}: {error}")

    def _work_on(self) -> None:
        """Continue until some requests of each kind are answered: on a slow machine the faults may be over before."""
        began = time.monotonic()
        while time.monotonic() < began + 90.0:
            self.keep_alive()  # processes that were stopped at the power cut die now
            answered = Counter(line.what for line in Journal.read(self.journal) if line.phase == "told")
            enough = all(answered[what] >= least for what, least in _LEAST.items())
            if enough and time.monotonic() > began + 1.0:
                return
            time.sleep(0.1)

    # --- processes ------------------------------------------------------------------------------------------------

    def keep_alive(self) -> None:
        """Fork the missing processes."""
        self.fork_server.reap()
        while len(self.with_role("worker")) < self.workers:
            pid = self.fork_server.fork("worker", str(self.chance.randrange(10**6)), QUEUE)
            self._roles[pid] = "worker"
        while len(self.with_role("client")) < self.clients:
            self._clients += 1
            self._roles[self.fork_server.fork("client", f"c{self._clients}")] = "client"

    def with_role(self, role: str) -> list[int]:
        """Return the live processes of this role."""
        return [pid for pid in self.fork_server.alive if self._roles.get(pid) == role]

    def kill(self, pid: int | None) -> bool:
        """Kill a process with SIGKILL; return False if there is none."""
        if pid is None:
            return False
        self._deaths[pid] = time.monotonic()
        self.fork_server.kill(pid)
        return True

    def stop(self, pid: int | None, longest: float) -> bool:
        """Send SIGSTOP, and SIGCONT later."""
        if pid is None or not _send(pid, signal.SIGSTOP):
            return False
        self.later(self.chance.random() * longest, lambda: _resume(self.fork_server, pid))
        return True

    def one_of(self, role: str) -> int | None:
        """Return a random live process."""
        alive = self.with_role(role)
        return self.chance.choice(alive) if alive else None

    def kill_part(self) -> bool:
        """Kill one part of the tree of a live worker."""
        pid = self.one_of("worker")
        return pid is not None and _send(pid, signal.SIGUSR1)


def _send(pid: int, which: signal.Signals) -> bool:
    try:
        os.kill(pid, which)
    except ProcessLookupError:
        return False
    return True


def _resume(fork_server: ForkServer, pid: int) -> None:
    if pid in fork_server.alive:
        _send(pid, signal.SIGCONT)


class KillCampaign(Campaign):
    """Workers on one file that are killed; their clients live on. Ledgers continue as new after each message."""

    kinds = {"owner killed": 2, "worker killed": 1}
    clients = 8
    messages = 1
    environment: Mapping[str, str] = {BEAT: "0.05"}  # so that other processes have work in progress

    def __init__(self, folder: Path, seed: int, faults: int, *, gap: float = 0.2) -> None:
        super().__init__(folder, seed, faults, gap=gap)
        self.path = folder / "campaign.db"

    @contextmanager
    def arena(self) -> Iterator[Client]:
        environment = {**self.environment, JOURNAL: str(self.journal)}
        with (
            ForkServer(self.path, self.notes, self.folder / "log", **environment) as self.fork_server,
            Client.connect(f"local:{self.path}") as client,
        ):
            yield client

    def inject(self, kind: str) -> bool:
        return self.kill(self._owner() if kind == "owner killed" else self.one_of("worker"))

    def _owner(self) -> int | None:
        owner = FileLock(str(self.path)).note().pid
        return owner if owner in self.fork_server.alive else None

    def end_faults(self) -> None:
        self._wait(0.0)

    def afterwards(self) -> Iterator[str]:
        return about_file(self.path)


class FileCampaign(KillCampaign):
    """Processes on one file, whose disk and clock fail."""

    kinds = {
        "owner killed": 14,
        "worker killed": 10,
        "client killed": 8,
        "part killed": 14,
        "owner stopped": 5,
        "process stopped": 6,
        "disk full": 6,
        "write error": 7,
        "sync error": 7,
        "slow disk": 4,
        "torn write": 8,
        "power cut": 6,
        "clock forward": 4,
        "clock back": 3,
    }
    clients = 3
    messages = campaign_workflows.MESSAGES_A_RUN

    def __init__(self, folder: Path, seed: int, faults: int, *, gap: float = 0.2) -> None:
        super().__init__(folder, seed, faults, gap=gap)
        self.jumps: list[tuple[float, float]] = []
        self._ahead = 0.0
        self._shim = Shim(folder / "control", self.path, seed)
        self.environment = self._shim.environment
        self._hits: Counter[str] = Counter()

    def inject(self, kind: str) -> bool:
        chance = self.chance
        match kind:
            case "owner killed" | "worker killed":
                return super().inject(kind)
            case "client killed":
                return self.kill(self.one_of("client"))
            case "part killed":
                return self.kill_part()
            case "owner stopped":
                return self.stop(self._owner(), 2.0)
            case "process stopped":
                return self.stop(self.one_of(chance.choice(("worker", "client"))), 3.0)
            case "clock forward" | "clock back":
                return self._move_clock(kind)
            case "power cut":
                self._shim.cut_power()
                return self._has_hit("power-cut")
        name = {"disk full": "disk-full", "slow disk": "slow-sync"}.get(kind, kind.replace(" ", "-"))
        self._shim.tell(name, chance.randrange(1, 4) if name in ("write-error", "sync-error") else 1)
        if not self._has_hit(name):
            self._shim.tell(name, 0)
            return False
        if name == "disk-full":
            self.later(chance.random(), lambda: self._shim.tell(name, 0))
        return True

    def _has_hit(self, name: str) -> bool:
        """Return whether a process has met the fault; most do within a few milliseconds."""
        before = self._hits[name]
        deadline = time.monotonic() + 2.0
        while self._shim.hits(name) <= before and time.monotonic() < deadline:
            time.sleep(0.002)
        self._hits[name] = self._shim.hits(name)
        return self._hits[name] > before

    def _move_clock(self, kind: str) -> bool:
        """Move the clock by seconds, minutes or hours, and back some time later."""
        if self._ahead:
            return False
        self._ahead = self.chance.choice((2.0, 90.0, 3 * 3600.0)) * (1 if kind == "clock forward" else -1)
        self._shim.set_clock(self._ahead)
        began = time.monotonic()

        def back() -> None:
            self._shim.set_clock(0.0)
            self._ahead = 0.0
            self.jumps.append((began - 1.0, time.monotonic() + 1.0))

        self.later(0.5 + 2 * self.chance.random(), back)
        return True

    def end_faults(self) -> None:
        super().end_faults()
        self._shim.reset()


class ServerCampaign(Campaign):
    """Workers and clients of a Temporal dev server, over a network that fails."""

    kinds = {
        "worker killed": 6,
        "client killed": 4,
        "part killed": 8,
        "process stopped": 5,
        "connections reset": 8,
        "network silent": 6,
        "connections frozen": 4,
        "server killed": 3,
    }

    @contextmanager
    def arena(self) -> Iterator[Client]:
        above = (__package__ or "").rpartition(".")[0]
        chaos = import_module(f"{above}.chaos.proxy" if above else "chaos.proxy")
        with ExitStack() as stack:
            self._server = stack.enter_context(
                dev_server(
                    db_filename=self.folder / "server.db",
                    extra_args=["--dynamic-config-value", 'history.timerProcessorMaxTimeShift="1ms"'],
                )
            )
            self._proxy: Any = stack.enter_context(chaos.Proxy(self._server.target))
            client = stack.enter_context(Client.connect(self._server.target))
            self.fork_server = stack.enter_context(
                ForkServer(
                    self._proxy.target, self.notes, self.folder / "log", **{JOURNAL: str(self.journal)}
                )
            )
            yield client

    def inject(self, kind: str) -> bool:
        match kind:
            case "worker killed":
                return self.kill(self.one_of("worker"))
            case "client killed":
                return self.kill(self.one_of("client"))
            case "part killed":
                return self.kill_part()
            case "process stopped":
                return self.stop(self.one_of(self.chance.choice(("worker", "client"))), 3.0)
            case "connections reset":
                return bool(self._proxy.reset())
            case "network silent":
                self._proxy.swallow()
                self.later(2 * self.chance.random(), self._proxy.let_through)
                return True
            case "connections frozen":
                self._proxy.freeze()
                self.later(2 * self.chance.random(), self._proxy.let_through)
                return True
            case _:
                self._server.kill()
                time.sleep(self.chance.random())  # duration of the outage
                self._server.start()
                return True

    def end_faults(self) -> None:
        self._proxy.let_through()


def kills(seed: int, faults: int, *, gap: float = 0.4) -> Findings:
    """Run a campaign of kills on a file in a temporary folder."""
    return _kept_if_wrong(lambda folder: KillCampaign(folder, seed, faults, gap=gap))


def on_file(seed: int, faults: int, *, gap: float = 0.2) -> Findings:
    """Run a campaign on a file in a temporary folder."""
    return _kept_if_wrong(lambda folder: FileCampaign(folder, seed, faults, gap=gap))


def on_server(seed: int, faults: int, *, gap: float = 1.0) -> Findings:
    """Run a campaign on a dev server in a temporary folder."""
    return _kept_if_wrong(lambda folder: ServerCampaign(folder, seed, faults, gap=gap))


def _kept_if_wrong(made: Callable[[Path], Campaign]) -> Findings:
    """Create a folder for the file, the journals, the notes and the log; keep it if the campaign fails."""
    folder = Path(tempfile.mkdtemp(prefix="hourglass-campaign-"))
    findings = made(folder).run()
    if findings.violations:
        findings.violations.append(f"what was left behind is in {folder}")
    else:
        shutil.rmtree(folder)
    return findings
