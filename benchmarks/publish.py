"""Published results: a file per release, tables and plots in the docs, and the comparison of two releases.

    benchmarks/results/VERSION.json    all rows, with the machine, the versions of the peers and the command line
    docs/performance.md                the text between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->` is replaced
    docs/images/bench-NAME.svg         the plot of the section

Publishing is idempotent. Sections of parts that were not measured are left unchanged.
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

NOISE = 0.15
"""Relative difference between two releases up to which they are considered equal: repeated runs on one machine vary that much."""


@dataclass(frozen=True)
class Results:
    """Results of one run of the benchmarks, and the machine it ran on."""

    version: str
    machine: Mapping[str, str]
    command: str
    left_out: Mapping[str, str]
    rows: Sequence[Row]

    @property
    def path(self) -> Path:
        """Path of the results file."""
        return RESULTS / f"{self.version}.json"


def machine() -> dict[str, str]:
    """Return a description of the machine and the versions of the peers."""
    description = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "processors": str(os.cpu_count() or 1),
        "processor": _processor(),
        "memory": _memory(),
    }
    for name in ("temporalio", "dbos", "psycopg"):
        try:
            description[name] = version(name)
        except PackageNotFoundError:
            continue
    return description


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def _memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{pages * size / 2**30:.0f} GiB"


def results_of(rows: Sequence[Row], command: str) -> Results:
    """Return the results of these rows, filed under the installed release or, for a development version, the next release."""
    release = version("hourglass-temporal").partition(".dev")[0]
    return Results(release, machine(), command, dict(LEFT_OUT), rows)


def save(results: Results) -> None:
    """Write the results file. Rows of other parts from an earlier run of the same version are kept."""
    RESULTS.mkdir(exist_ok=True)
    parts = {row.part for row in results.rows}
    saved = load(results.path).rows if results.path.exists() else ()
    rows = [*(row for row in saved if row.part not in parts), *results.rows]
    document = {
        "version": results.version,
        "machine": dict(results.machine),
        "command": results.command,
        "left_out": dict(results.left_out),
        "rows": [asdict(row) for row in rows],
    }
    results.path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def load(path: Path) -> Results:
    """Read a results file."""
    document = json.loads(path.read_text())
    rows = [Row(**row) for row in document["rows"]]
    return Results(
        document["version"], document["machine"], document["command"], document.get("left_out", {}), rows
    )


def result_files() -> list[Path]:
    """Return the results files of all releases, earliest first."""
    return sorted(RESULTS.glob("*.json"), key=lambda path: _numbers(path.stem))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def compare(before: Results, after: Results) -> str:
    """Return a table of the rows that both releases measured, with ratios, and the differences between the machines."""
    earlier = {(row.part, row.case, row.subject, row.unit): row for row in before.rows}
    lines = [f"{before.version} → {after.version}: how many times better"]
    differences = [
        f"{name}: {before.machine.get(name, '–')} → {after.machine.get(name, '–')}"
        for name in sorted(before.machine.keys() | after.machine.keys())
        if before.machine.get(name) != after.machine.get(name)
    ]
    if differences:
        lines += [
            "",
            "measured on different machines; the ratios of the peers show how much of a difference is due to the machine:",
            *differences,
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
        mark = "" if abs(ratio - 1) <= NOISE else " better" if ratio > 1 else " WORSE"
        lines.append(
            f"{row.part:10} {row.case:24} {row.subject:26} {base.value:11.1f} {row.value:11.1f} {row.unit:18}"
            f" {ratio:6.2f}x{mark}"
        )
    return "\n".join(lines)


ValuesByCase = Mapping[str, Mapping[str, float]]
"""Values by case and subject."""


@dataclass(frozen=True)
class Section:
    """A section of the performance page: a table and a plot of the rows with one part and unit.

    `x_label` is set for line charts, whose cases begin with a number, and names their x axis. `is_case` selects the cases.
    """

    name: str
    title: str
    part: str
    unit: str
    x_label: str = ""
    is_case: Callable[[str], bool] = lambda case: True

    def select(self, rows: Sequence[Row]) -> ValuesByCase:
        """Return the values of this section."""
        values: dict[str, dict[str, float]] = {}
        for row in rows:
            if row.part == self.part and row.unit == self.unit and self.is_case(row.case):
                values.setdefault(row.case, {})[row.subject] = row.value
        return values

    def markdown(self, values_by_case: ValuesByCase) -> str:
        """Return the table and a link to the plot."""
        subjects = list(dict.fromkeys(name for values in values_by_case.values() for name in values))
        lines = [
            f"| {self.unit} | {' | '.join(values_by_case)} |",
            f"|---|{'---|' * len(values_by_case)}",
            *(
                f"| {name} | {' | '.join(_figure(values.get(name)) for values in values_by_case.values())} |"
                for name in subjects
            ),
            "",
            f"![{self.title}](images/bench-{self.name}.svg)",
        ]
        return "\n".join(lines)

    def plot(self, values_by_case: ValuesByCase) -> str:
        """Return the plot as SVG."""
        if not self.x_label:
            return plots.bars(self.title, self.unit, values_by_case)
        series: dict[str, list[plots.Point]] = {}
        for case, values in values_by_case.items():
            for name, value in values.items():
                series.setdefault(name, []).append((float(_leading_number(case)), value))
        return plots.lines(self.title, self.unit, self.x_label, series)


def _leading_number(case: str) -> int:
    return int(re.sub(r"\D", "", case.split()[0]))


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ends_with(text: str) -> Callable[[str], bool]:
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
        _ends_with("at a time"),
    ),
    Section(
        "at-a-time-memory",
        "Memory with more at a time",
        "growth",
        "MiB held",
        "workflows at a time",
        _ends_with("at a time"),
    ),
    Section(
        "steps",
        "A step of a longer workflow",
        "growth",
        "µs/step",
        "steps in one workflow",
        _ends_with("steps"),
    ),
    Section(
        "steps-disk",
        "Disk of a longer workflow",
        "growth",
        "bytes on disk/step",
        "steps in one workflow",
        _ends_with("steps"),
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
        _ends_with("closed"),
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
    """Update the sections whose parts were measured, and return their names."""
    text, updated = manual.read_text(), []
    images.mkdir(exist_ok=True)
    for section in SECTIONS:
        values_by_case = section.select(results.rows)
        if not values_by_case:
            continue
        text = replace_section(text, section.name, section.markdown(values_by_case))
        (images / f"bench-{section.name}.svg").write_text(section.plot(values_by_case))
        updated.append(section.name)
    text = replace_section(text, "machine", "\n".join(_describe_run(results)))
    manual.write_text(text)
    return updated


def replace_section(text: str, name: str, body: str) -> str:
    """Return the text with the content between the markers of a section replaced."""
    start, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    before, start_marker, remainder = text.partition(start)
    _, end_marker, after = remainder.partition(end)
    if not start_marker or not end_marker:
        raise ValueError(f"the manual has no {start} … {end}")
    return f"{before}{start}\n\n{body}\n\n{end}{after}"


def _describe_run(results: Results) -> Iterator[str]:
    machine = results.machine
    peers = [f"{name} {machine[name]}" for name in ("temporalio", "dbos") if name in machine]
    yield f"`{results.command}`, version {results.version}: {machine['processors']} processors ({machine['processor']}),"
    yield f"{machine['memory']}, {machine['system']}, Python {machine['python']}; compared with {', '.join(peers) or 'no peers'}."
    for name, reason in results.left_out.items():
        yield f"Not measured: {name} ({reason})."
