"""A worker under a steady load for minutes or hours: its resources must not grow.

    python -m tests.durability.soak [--minutes 10 | --hours 8] [--target local:FILE]

Memory, threads, descriptors and the file are measured repeatedly; samples before the end of the warm-up do not count. The
soak fails if one of them grows: if the median slope of its samples (the Theil-Sen estimator, which ignores a few outliers)
rises by more than a share of its value and more than a floor. The worker is a process of its own, and keeps closed workflows
for a few seconds only, so that its file keeps its size.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path

from hourglass import Client, Worker
from hourglass.errors import HourglassError

from . import campaign_workflows, work
from .clients import QUEUE

ROOT = Path(__file__).resolve().parents[2]
KIB, MIB = 1 << 10, 1 << 20
_RETENTION = 5.0
_WARM_UP = 0.3
"""The share of the time for caches to fill and retention to start."""
_FEWEST_LOOKS = 10
_MOST_SAMPLES = 300
"""For the slope; more samples would say the same."""


@dataclass(frozen=True)
class Allowance:
    """Permitted growth over the whole time: a share of the value, and a floor below which it is noise."""

    share: float
    floor: float
    unit: float = 1.0
    unit_name: str = ""


ALLOWANCES: Mapping[str, Allowance] = {
    "memory": Allowance(0.05, 6 * MIB, MIB, "MiB"),
    "threads": Allowance(0.0, 1.5),
    "descriptors": Allowance(0.0, 2.5),
    "file": Allowance(0.05, 4 * MIB, MIB, "MiB"),
    "log of the file": Allowance(0.1, 8 * MIB, MIB, "MiB"),
}


@dataclass
class Series:
    """Samples of one measure: seconds since the start, and values."""

    at: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, at: float, value: float) -> None:
        """Add a sample."""
        self.at.append(at)
        self.values.append(value)

    def settled(self, begin: float) -> Series:
        """Return the samples after the warm-up."""
        samples = [(at, value) for at, value in zip(self.at, self.values, strict=True) if at >= begin]
        return Series([at for at, _ in samples], [value for _, value in samples])

    def slope(self) -> float:
        """Return the growth per second: the median slope between any two samples."""
        step = max(1, len(self.at) // _MOST_SAMPLES)
        points = list(zip(self.at, self.values, strict=True))[::step]
        slopes = [(b - a) / (then - now) for (now, a), (then, b) in combinations(points, 2) if then > now]
        return statistics.median(slopes) if slopes else 0.0

    def growth(self) -> float:
        """Return the growth over the whole time, according to the slope."""
        return self.slope() * (self.at[-1] - self.at[0]) if self.at else 0.0

    def course(self) -> list[float]:
        """Return the values at the start, after each quarter of the time, and at the end."""
        last = len(self.values) - 1
        return [self.values[last * quarter // 4] for quarter in range(5)]


@dataclass(frozen=True)
class Verdict:
    """Whether one measure has grown."""

    name: str
    middle: float
    largest: float
    growth: float
    allowed: float
    course: list[float]

    @property
    def is_flat(self) -> bool:
        """Whether it grew by no more than the allowance."""
        return self.growth <= self.allowed

    def __str__(self) -> str:
        allowance = ALLOWANCES[self.name]
        middle, largest, growth, allowed = (
            f"{value / allowance.unit:,.1f}"
            for value in (self.middle, self.largest, self.growth, self.allowed)
        )
        mark = "" if self.is_flat else "  GROWS"
        course = " → ".join(f"{value / allowance.unit:,.1f}" for value in self.course)
        return (
            f"{self.name:16} middle {middle:>9}, most {largest:>9}, growth {growth:>8} of {allowed:>6} allowed"
            f" {allowance.unit_name}{mark}\n{'':16} {course}"
        )


def judge(name: str, seen: Series, begin: float) -> Verdict:
    """Return whether the measure has grown after the warm-up."""
    settled, allowance = seen.settled(begin), ALLOWANCES[name]
    if len(settled.at) < 3:
        raise ValueError(f"{name} was seen {len(settled.at)} times only")
    middle = statistics.median(settled.values)
    allowed = max(allowance.floor, allowance.share * middle)
    return Verdict(name, middle, max(settled.values), settled.growth(), allowed, seen.course())


# --- what a process holds -------------------------------------------------------------------------------------


def look(pid: int, path: Path | None) -> dict[str, float]:
    """Measure a process and its file."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    measured: dict[str, float] = {
        "memory": float(resident.split()[1]) * KIB,
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
    }
    if path is not None:
        log = Path(f"{path}-wal")
        measured["file"] = path.stat().st_size
        measured["log of the file"] = log.stat().st_size if log.exists() else 0
    return measured


# --- the load -------------------------------------------------------------------------------------------------


class Load:
    """Clients in this process that start, signal, update, query and wait in turn."""

    def __init__(self, client: Client, at_once: int) -> None:
        self.done = 0
        self.errors: list[str] = []
        self._client = client
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._drive, args=(n,), daemon=True) for n in range(at_once)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(120)

    def _drive(self, place: int) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            try:
                self._trip(f"trip-{place}-{number}", number)
                self.done += 1
            except HourglassError as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                if len(self.errors) > 100:
                    return

    def _trip(self, name: str, number: int) -> None:
        plan = campaign_workflows.Plan(number, 0.005)
        handle = self._client.start_workflow(campaign_workflows.Trip.run, plan, id=name, task_queue=QUEUE)
        current = self._client.get_workflow_handle(name)
        current.signal(campaign_workflows.Trip.tell, "soak", number)
        current.execute_update(campaign_workflows.Trip.ask, "soak", number)
        current.query(campaign_workflows.Trip.all_heard)
        current.signal(campaign_workflows.Trip.finish)
        receipt = handle.result(timeout=120)
        if receipt.heard != [["soak", number]]:
            self.errors.append(f"{name} heard {receipt.heard}")


@dataclass
class Report:
    """The result of a soak test."""

    minutes: float
    workflows: int
    errors: list[str]
    verdicts: list[Verdict]

    @property
    def is_good(self) -> bool:
        """Whether nothing grew and no request failed."""
        return not self.errors and all(verdict.is_flat for verdict in self.verdicts)

    def as_text(self) -> str:
        """Return the report as text."""
        lines = [
            f"{self.minutes:.1f} minutes, {self.workflows:,} workflows",
            *map(str, self.verdicts),
            *self.errors[:10],
        ]
        return "\n".join([*lines, "flat" if self.is_good else "NOT FLAT"])

    def as_json(self) -> str:
        """Return the report as JSON."""
        document = {
            "minutes": self.minutes,
            "workflows": self.workflows,
            "errors": self.errors[:100],
            "held": [{**asdict(verdict), "is_flat": verdict.is_flat} for verdict in self.verdicts],
        }
        return json.dumps(document, indent=2)


def soak(
    minutes: float, target: str, path: Path | None, folder: Path, *, at_once: int = 4, every: float = 0.0
) -> Report:
    """Run the load for this time and judge the measures."""
    every = every or max(0.5, minutes * 60 / 600)
    seen: dict[str, Series] = {}
    with _worker(target, folder) as process, Client.connect(target) as client, Load(client, at_once) as load:
        began, looks = time.monotonic(), 0
        while (passed := time.monotonic() - began) < minutes * 60 or looks < _FEWEST_LOOKS:
            looks += 1
            if process.poll() is not None:
                raise RuntimeError(f"the worker has ended with {process.returncode}")
            for name, value in look(process.pid, path).items():
                seen.setdefault(name, Series()).add(passed, value)
            time.sleep(every)  # the soak itself
    verdicts = [judge(name, series, _WARM_UP * minutes * 60) for name, series in seen.items()]
    return Report(minutes, load.done, load.errors, verdicts)


@contextmanager
def _worker(target: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.durability.soak", "--serve", target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**os.environ, work.NOTES: os.devnull},
        )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError((folder / "log").read_text()[-2000:])
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def serve(target: str) -> None:
    """Run the worker until its parent exits."""
    retention = {"retention": _RETENTION} if target.startswith("local:") else {}
    with (
        Client.connect(target, **retention) as client,  # type: ignore[arg-type]
        Worker(
            client,
            QUEUE,
            workflows=campaign_workflows.WORKFLOWS,
            activities=campaign_workflows.ACTIVITIES,
            deadlock_timeout=None,
        ),
    ):
        print("ready", flush=True)
        sys.stdin.read()


def main(arguments: Sequence[str]) -> int:
    """Run by `make soak`; exit with status 1 if a measure has grown."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.durability.soak", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--at-once", type=int, default=4, help="workflows under way at a time (4)")
    parser.add_argument("--target", default="", help="a server instead of a file of its own")
    parser.add_argument("--report", type=Path, default=Path("soak-report"), metavar="NAME")
    parser.add_argument("--serve", metavar="TARGET", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve)
        return 0
    minutes = (options.minutes + 60 * options.hours) or 10.0
    with tempfile.TemporaryDirectory(prefix="hourglass-soak-", dir=".") as name:
        folder = Path(name).resolve()
        path = None if options.target else folder / "soak.db"
        report = soak(minutes, options.target or f"local:{path}", path, folder, at_once=options.at_once)
    print(report.as_text())
    options.report.with_suffix(".txt").write_text(f"{report.as_text()}\n")
    options.report.with_suffix(".json").write_text(f"{report.as_json()}\n")
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
