"""What was measured, kept: as a file for each release, as tables and plots in the manual, and compared with what was kept before.

    benchmarks/results/VERSION.json    all rows, with the machine, the versions of the peers and the command
    docs/performance.md                the text between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->` is written anew
    docs/images/bench-NAME.svg         the plot that goes with it

Writing twice gives the same. A section whose part was not measured stays as it was.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import plots
from .report import LEFT_OUT, Row, better

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MANUAL = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"

SAME = 0.15
"""What differs by less between two releases is called the same: machines are no better than that."""


# --- a file for each release ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """All that one run of the benchmarks said, and where."""

    version: str
    machine: Mapping[str, str]
    command: str
    left_out: Mapping[str, str]
    rows: Sequence[Row]

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return RESULTS / f"{self.version}.json"


def machine() -> dict[str, str]:
    """What it was measured on, and against."""
    found = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "processors": str(os.cpu_count() or 1),
        "processor": _processor(),
        "memory": _memory(),
    }
    for name in ("temporalio", "dbos", "psycopg"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown"


def _memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{pages * size / 2**30:.0f} GiB"


def results_of(rows: Sequence[Row], command: str) -> Results:
    """What was measured just now, under the release that is installed or that the installed version leads to."""
    release = version("hourglass-temporal").partition(".dev")[0]
    return Results(release, machine(), command, dict(LEFT_OUT), rows)


def save(results: Results) -> None:
    """Keep it. What an earlier run of the same version measured of other parts stays."""
    RESULTS.mkdir(exist_ok=True)
    parts = {row.part for row in results.rows}
    before = load(results.path).rows if results.path.exists() else ()
    rows = [*(row for row in before if row.part not in parts), *results.rows]
    told = {
        "version": results.version,
        "machine": dict(results.machine),
        "command": results.command,
        "left_out": dict(results.left_out),
        "rows": [asdict(row) for row in rows],
    }
    results.path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


def load(path: Path) -> Results:
    """What was kept."""
    told = json.loads(path.read_text())
    rows = [Row(**row) for row in told["rows"]]
    return Results(told["version"], told["machine"], told["command"], told.get("left_out", {}), rows)


def kept() -> list[Path]:
    """The files of all releases, the earliest first."""
    return sorted(RESULTS.glob("*.json"), key=lambda each: _numbers(each.stem))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", text))


# --- compared -------------------------------------------------------------------------------------------------


def compared(before: Results, after: Results) -> str:
    """What both have measured, and how many times better the second is; machines that differ are named."""
    earlier = {(row.part, row.case, row.subject, row.unit): row for row in before.rows}
    lines = [f"{before.version} → {after.version}: how many times better"]
    differ = [
        f"{name}: {before.machine.get(name, '–')} → {after.machine.get(name, '–')}"
        for name in sorted(before.machine.keys() | after.machine.keys())
        if before.machine.get(name) != after.machine.get(name)
    ]
    if differ:
        lines += [
            "",
            "measured on different machines; only what peers do on both says how they differ:",
            *differ,
        ]
    lines += [
        "",
        f"{'part':10} {'case':24} {'subject':26} {'before':>11} {'after':>11} {'unit':18} {'ratio':>7}",
    ]
    for row in after.rows:
        base = earlier.get((row.part, row.case, row.subject, row.unit))
        if base is None or base.value <= 0 or row.value <= 0:
            continue
        ratio = better(base, row)
        mark = "" if abs(ratio - 1) <= SAME else " better" if ratio > 1 else " WORSE"
        lines.append(
            f"{row.part:10} {row.case:24} {row.subject:26} {base.value:11.1f} {row.value:11.1f} {row.unit:18}"
            f" {ratio:6.2f}x{mark}"
        )
    return "\n".join(lines)


# --- in the manual --------------------------------------------------------------------------------------------

Chosen = Mapping[str, Mapping[str, float]]
"""Values by subject, in each case."""


@dataclass(frozen=True)
class Section:
    """One section of the manual: a table and a plot of the rows of one part that have one unit.

    `grows` names what the cases of a curve count ("at a time"): they are plotted along an axis. `words` turns the
    name of a case into the head of a column.
    """

    name: str
    title: str
    part: str
    unit: str
    grows: str = ""
    is_case: Callable[[str], bool] = lambda case: True

    def chosen(self, rows: Sequence[Row]) -> Chosen:
        """Its values."""
        found: dict[str, dict[str, float]] = {}
        for row in rows:
            if row.part == self.part and row.unit == self.unit and self.is_case(row.case):
                found.setdefault(row.case, {})[row.subject] = row.value
        return found

    def markdown(self, chosen: Chosen) -> str:
        """Its table, and its plot."""
        subjects = list(dict.fromkeys(name for values in chosen.values() for name in values))
        lines = [
            f"| {self.unit} | {' | '.join(chosen)} |",
            f"|---|{'---|' * len(chosen)}",
            *(
                f"| {name} | {' | '.join(_figure(values.get(name)) for values in chosen.values())} |"
                for name in subjects
            ),
            "",
            f"![{self.title}](images/bench-{self.name}.svg)",
        ]
        return "\n".join(lines)

    def plot(self, chosen: Chosen) -> str:
        """Its plot."""
        if not self.grows:
            return plots.bars(self.title, self.unit, chosen)
        series: dict[str, list[plots.Point]] = {}
        for case, values in chosen.items():
            for name, value in values.items():
                series.setdefault(name, []).append((float(_count(case)), value))
        return plots.lines(self.title, self.unit, self.grows, series)


def _count(case: str) -> int:
    return int(re.sub(r"\D", "", case.split()[0]))


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ends(text: str) -> Callable[[str], bool]:
    return lambda case: case.endswith(text)


SECTIONS = (
    Section("throughput", "Throughput", "embedded", "steps/s"),
    Section("cpu", "CPU of a step", "embedded", "µs CPU/step"),
    Section("held", "Memory of the process", "embedded", "MiB held"),
    Section("disk", "Disk taken by a step", "embedded", "bytes on disk/step"),
    Section("latency-p50", "Start to result, the middle one", "latency", "ms p50"),
    Section("latency-p99", "Start to result, one in a hundred is slower", "latency", "ms p99"),
    Section("latency-p999", "Start to result, one in a thousand is slower", "latency", "ms p99.9"),
    Section(
        "at-a-time",
        "Throughput with more at a time",
        "growth",
        "steps/s",
        "workflows at a time",
        _ends("at a time"),
    ),
    Section(
        "at-a-time-memory",
        "Memory with more at a time",
        "growth",
        "MiB held",
        "workflows at a time",
        _ends("at a time"),
    ),
    Section(
        "steps", "A step of a longer workflow", "growth", "µs/step", "steps in one workflow", _ends("steps")
    ),
    Section(
        "steps-disk",
        "Disk of a longer workflow",
        "growth",
        "bytes on disk/step",
        "steps in one workflow",
        _ends("steps"),
    ),
    Section(
        "closed-open",
        "Opening beside closed workflows",
        "growth",
        "s to the first result",
        "closed workflows",
    ),
    Section("closed-list", "A page of the list", "growth", "ms for a page of the list", "closed workflows"),
    Section(
        "closed-step",
        "A step beside closed workflows",
        "growth",
        "µs CPU/step",
        "closed workflows",
        _ends("closed"),
    ),
    Section(
        "many-processes",
        "Processes at work on one file",
        "growth",
        "steps/s",
        "processes",
        lambda case: "process" in case,
    ),
)


def write_manual(results: Results, manual: Path = MANUAL, images: Path = IMAGES) -> list[str]:
    """Write the sections that were measured anew; gives their names."""
    text, written = manual.read_text(), []
    images.mkdir(exist_ok=True)
    for section in SECTIONS:
        chosen = section.chosen(results.rows)
        if not chosen:
            continue
        text = replaced(text, section.name, section.markdown(chosen))
        (images / f"bench-{section.name}.svg").write_text(section.plot(chosen))
        written.append(section.name)
    text = replaced(text, "machine", "\n".join(_told(results)))
    manual.write_text(text)
    return written


def replaced(text: str, name: str, body: str) -> str:
    """The text with what stands between the marks of a section replaced."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the manual has no {begin} … {end}")
    return f"{before}{begin}\n\n{body}\n\n{end}{after}"


def _told(results: Results) -> Iterator[str]:
    of = results.machine
    peers = [f"{name} {of[name]}" for name in ("temporalio", "dbos") if name in of]
    yield f"`{results.command}`, version {results.version}: {of['processors']} processors ({of['processor']}), {of['memory']},"
    yield f"{of['system']}, Python {of['python']}; beside {', '.join(peers) or 'no peers'}."
    for name, why in results.left_out.items():
        yield f"Not measured: {name} ({why})."
