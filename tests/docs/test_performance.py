"""The performance page, as `python -m benchmarks --publish` writes it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import plots, publish, report
from benchmarks.publish import MANUAL, SECTIONS, Results, compare, load, replace_section, write_manual
from benchmarks.report import NotHere, Row, TooSlow, better, interleave

CASES = {
    "embedded": ("1 at a time", "50 at a time"),
    "latency": ("20 a second", "100 a second"),
    "growth": ("10 steps", "100 steps", "1 at a time", "1,000 closed", "1 process", "2 processes"),
}


@pytest.fixture(autouse=True)
def _reset_left_out() -> Iterator[None]:
    report.LEFT_OUT.clear()
    yield
    report.LEFT_OUT.clear()


def example_results(version: str = "1.0", factor: float = 1.0) -> Results:
    """Return results for every section."""
    rows = [
        Row(section.part, case, subject, value * factor, section.unit)
        for section in SECTIONS
        for case in CASES[section.part]
        if section.is_case(case)
        for subject, value in (("Hourglass, file", 1234.5), ("a peer <&>", 0.25))
    ]
    machine = {"processors": "2", "processor": "a", "memory": "4 GiB", "system": "Linux", "python": "3.11"}
    return Results(version, machine, "python -m benchmarks", {"DBOS, SQLite": "not installed"}, rows)


def test_publishing_benchmarks_rewrites_sections_with_table_and_plot(tmp_path: Path) -> None:
    """Publishing twice leaves the same page."""
    page = tmp_path / "performance.md"
    page.write_text(MANUAL.read_text())
    written = write_manual(example_results(), page, tmp_path / "images")
    assert written == [section.name for section in SECTIONS]
    first_page = page.read_text()
    for section in SECTIONS:
        assert f"(images/bench-{section.name}.svg)" in first_page
        ElementTree.parse(tmp_path / "images" / f"bench-{section.name}.svg")
    assert "| Hourglass, file | 1,2" in first_page
    assert "Not measured: DBOS, SQLite (not installed)" in first_page
    write_manual(example_results(), page, tmp_path / "images")
    assert page.read_text() == first_page


def test_publishing_some_benchmarks_keeps_other_sections(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(MANUAL.read_text())
    write_manual(example_results(), page, tmp_path / "images")
    before = page.read_text()
    latency_results = example_results("1.0", 2.0)
    latency_results = Results(
        "1.0",
        latency_results.machine,
        latency_results.command,
        {},
        [row for row in latency_results.rows if row.part == "latency"],
    )
    written = write_manual(latency_results, page, tmp_path / "images")
    assert written == ["latency-p50", "latency-p99", "latency-p999"]
    cpu_section = before.partition("<!-- bench:cpu -->")[2].partition("<!-- /bench:cpu -->")[0]
    assert cpu_section in page.read_text()
    with pytest.raises(ValueError, match="has no <!-- bench:throughput -->"):
        replace_section("", "throughput", "")


def test_benchmark_results_are_stored_and_compared_by_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "RESULTS", tmp_path)
    publish.save(example_results("0.9"))
    publish.save(example_results("0.10", 2.0))
    fewer = [row for row in example_results("0.10", 4.0).rows if row.part == "latency"]
    publish.save(Results("0.10", {}, "", {}, fewer))
    assert [path.stem for path in publish.result_files()] == ["0.9", "0.10"]
    before, after = map(load, publish.result_files())
    assert len(after.rows) == len(before.rows)
    comparison = compare(before, after)
    lines = {line.split("  ")[0] + line.split()[-1] for line in comparison.splitlines() if "steps/s" in line}
    assert all(line.endswith("better") for line in lines)
    assert "ms p50" in comparison
    assert "0.25x WORSE" in comparison
    assert "0.50x WORSE" in comparison


def test_higher_rates_and_lower_times_are_better() -> None:
    rate, time = Row("p", "c", "s", 1.0, "steps/s"), Row("p", "c", "s", 1.0, "µs/step")
    assert better(rate, Row("p", "c", "s", 2.0, "steps/s")) == 2.0
    assert better(time, Row("p", "c", "s", 0.5, "µs/step")) == 2.0


def test_missing_benchmark_subject_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A subject that is too slow is left out of one case only."""

    def missing() -> dict[str, float]:
        raise NotHere("not installed")

    def slow() -> dict[str, float]:
        raise TooSlow("too slow")

    subjects = {"gone": missing, "slow": slow, "here": lambda: {"s": 1.0}}
    rows = interleave(subjects, rounds=2, part="p", case="c")
    assert [row.subject for row in rows] == ["here"]
    assert report.LEFT_OUT == {"gone": "not installed"}
    assert capsys.readouterr().out.count("left out: gone: not installed") == 1


def test_empty_benchmark_plots_are_valid_svg() -> None:
    for text in (
        plots.lines("t", "u", "n", {}),
        plots.lines("t", "u", "n", {"a": [(1, 0)]}),
        plots.bars("t", "u", {}),
    ):
        ElementTree.fromstring(text)
    ElementTree.fromstring(plots.bars("t", "u", {"case": {"a": 0.0}}))
