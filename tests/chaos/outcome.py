"""Results of faults, the size at which faults run, and the table of all of them."""

from __future__ import annotations

import json
import platform
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The size and patience of a run of faults. `strict` requires recovery within the promised seconds."""

    name: str
    workflows: int
    rounds: int
    injections: int
    hang_watch: float
    nap: float
    outage: float
    dropped_traffic: float
    liveness: float
    limit: float
    strict: bool


FULL = Scale(
    name="full",
    workflows=500,
    rounds=3,
    injections=12,
    hang_watch=180.0,
    nap=60.0,
    outage=3.0,
    dropped_traffic=15.0,
    liveness=30.0,
    limit=400.0,
    strict=True,
)
QUICK = Scale(
    name="quick",
    workflows=60,
    rounds=1,
    injections=4,
    hang_watch=10.0,
    nap=20.0,
    outage=3.0,
    dropped_traffic=15.0,
    liveness=3.0,
    limit=180.0,
    strict=True,
)
SHORT = Scale(
    name="short",
    workflows=12,
    rounds=1,
    injections=2,
    hang_watch=1.0,
    nap=4.0,
    outage=0.5,
    dropped_traffic=2.0,
    liveness=1.0,
    limit=100.0,
    strict=False,
)


@dataclass(frozen=True)
class Outcome:
    """The result of a fault: tries, survivals, the seconds of each recovery, and errors."""

    tries: int
    survived: int
    recoveries: tuple[float, ...] = ()
    troubles: tuple[str, ...] = ()
    faults: Mapping[str, int] = field(default_factory=dict)
    """How many faults of each kind there were, where one outcome is of several kinds."""
    checked: Mapping[str, int] = field(default_factory=dict)
    """How many acknowledgements and effects of each kind were checked afterwards."""

    @property
    def good(self) -> bool:
        """Whether it was tried, and survived each time."""
        return 0 < self.tries == self.survived and not self.troubles

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.tries + other.tries,
            self.survived + other.survived,
            self.recoveries + other.recoveries,
            self.troubles + other.troubles,
            Counter(self.faults) + Counter(other.faults),
            Counter(self.checked) + Counter(other.checked),
        )


Fault = Callable[[int, Scale], Outcome]


@dataclass
class Tally:
    """Collects the result of a fault."""

    tries: int = 0
    survived: int = 0
    recoveries: list[float] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def passed(self, seconds: float | None = None) -> None:
        """Count a survived try."""
        self.tries += 1
        self.survived += 1
        if seconds is not None:
            self.recoveries.append(seconds)

    def failed(self, why: str) -> None:
        """Count a failed try."""
        self.tries += 1
        self.troubles.append(why)

    def check(self, good: bool, why: str, seconds: float | None = None) -> None:
        """Count a try."""
        if good:
            self.passed(seconds)
        else:
            self.failed(why)

    def outcome(self) -> Outcome:
        """Return the result."""
        return Outcome(self.tries, self.survived, tuple(self.recoveries), tuple(self.troubles))


Row = tuple[str, Outcome, float]
"""A fault's name, what became of it, and the seconds that took."""


def faults_by_kind(rows: Sequence[Row]) -> Counter[str]:
    """Return the number of faults of each kind."""
    counts: Counter[str] = Counter()
    for name, outcome, _ in rows:
        counts.update(outcome.faults or {name: outcome.tries})
    return counts


def checked_by_kind(rows: Sequence[Row]) -> Counter[str]:
    """Return the number of checked acknowledgements and effects of each kind."""
    return sum((Counter(outcome.checked) for _, outcome, _ in rows), Counter())


def as_text(rows: Sequence[Row], seed: int, scale: Scale) -> str:
    """Return the report as text."""
    faults, checked = faults_by_kind(rows), checked_by_kind(rows)
    troubles = [f"- {name}: {trouble}" for name, outcome, _ in rows for trouble in outcome.troubles]
    lines = [f"seed {seed}, {scale.name}", "", table(rows), "", f"{faults.total():,} faults:", ""]
    lines += [f"{count:7,}  {name}" for name, count in faults.most_common()]
    if checked:
        lines += ["", f"{checked.total():,} acknowledgements and effects checked:", ""]
        lines += [f"{count:7,}  {name}" for name, count in checked.most_common()]
    lines += ["", f"{len(troubles)} violations" if troubles else "no violation", *troubles]
    lines += ["", f"to repeat the faults: python -m tests.chaos --seed {seed}{_flag(scale)}"]
    return "\n".join(lines)


def _flag(scale: Scale) -> str:
    return "" if scale.name == "full" else f" --{scale.name}"


def as_json(rows: Sequence[Row], seed: int, scale: Scale) -> str:
    """Return the report as JSON."""
    document = {
        "seed": seed,
        "scale": scale.name,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "faults": dict(faults_by_kind(rows)),
        "checked": dict(checked_by_kind(rows)),
        "scenarios": [
            {
                "name": name,
                "tries": outcome.tries,
                "survived": outcome.survived,
                "recoveries": list(outcome.recoveries),
                "violations": list(outcome.troubles),
                "seconds": round(took, 1),
            }
            for name, outcome, took in rows
        ],
        "violations": sum(len(outcome.troubles) for _, outcome, _ in rows),
    }
    return json.dumps(document, indent=2)


def table(rows: Iterable[Row]) -> str:
    """Return a table with tries, survivals, recovery times (median, maximum) and duration."""
    lines = [
        "| fault | tries | survived | recovery, median s | recovery, max s | took s |",
        "|---|---|---|---|---|---|",
    ]
    for name, outcome, took in rows:
        times = outcome.recoveries
        median, most = (f"{statistics.median(times):.2f}", f"{max(times):.2f}") if times else ("–", "–")
        mark = "" if outcome.good else " **!**"
        lines.append(
            f"| {name} | {outcome.tries} | {outcome.survived}{mark} | {median} | {most} | {took:.0f} |"
        )
    return "\n".join(lines)
