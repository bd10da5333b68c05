"""Counts of habits that make text hard to read: `prose.toml` has the maximum of each kind per package."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import prose, source


def test_counts_of_prose_habits_do_not_rise() -> None:
    allowed = prose.limits()
    risen = {
        (part, kind): (allowed.get(part, {}).get(kind, 0), count)
        for part, counts in prose.current().items()
        for kind, count in counts.items()
        if count > allowed.get(part, {}).get(kind, 0)
    }
    assert not risen, _explain(risen)


def test_every_package_of_the_prose_table_exists() -> None:
    assert set(prose.limits()) - set(prose.current()) == set(), (
        "run python -m tests.architecture.prose --update"
    )


def test_prose_offences_have_the_lines_of_their_text() -> None:
    text = '"""What it is.\n\nSays so.\n"""\n\n\nsaid = 1  # it is said once more\n'
    assert [(found.kind, found.line, found.text) for found in prose.offences(text)] == [
        ("opening", 1, "What"),
        ("clause", 1, "What"),
        ("tell", 3, "Says"),
        ("tell", 7, "said"),
        ("name", 7, "said"),
    ]


def test_prose_update_lowers_but_never_raises_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "prose.toml"
    table.write_text("errors = { opening = 5, clause = 1 }\n")
    counts = dict.fromkeys(prose.KINDS, 2)
    monkeypatch.setattr(prose, "TABLE", table)
    monkeypatch.setattr(prose, "current", lambda: {"errors": counts, "metrics": counts})
    prose.update()
    limits = prose.limits()
    assert (limits["errors"]["opening"], limits["errors"]["clause"]) == (2, 1)
    assert limits["metrics"] == counts


def _explain(risen: dict[tuple[str, str], tuple[int, int]]) -> str:
    lines = [f"{part}: {kind} rose from {limit} to {count}" for (part, kind), (limit, count) in risen.items()]
    added = list(_added(risen))
    lines += ["New since the table was last changed:", *added] if added else []
    return "\n".join(
        [
            "More text in habits that are hard to read (see CONTRIBUTING.md, How we write):",
            *lines,
            "Rewrite them. A good sentence that is counted anyway: change another one of the package, or raise its count in "
            "tests/architecture/prose.toml by hand. `python -m tests.architecture.prose --update` lowers the table.",
        ]
    )


def _added(risen: dict[tuple[str, str], tuple[int, int]]) -> Iterator[str]:
    """Yield the counted places on lines that were added since the last change of the table."""
    for module in source.modules():
        kinds = {kind for part, kind in risen if part == (module.part or "hourglass")}
        lines = _added_lines(module) if kinds else set()
        for found in prose.offences(module.text) if lines else ():
            if found.kind in kinds and found.line in lines:
                yield f"    {module.path.relative_to(source.ROOT)}:{found.line}: {found.kind}: {found.text}"


def _added_lines(module: source.Module) -> set[int]:
    """Return the lines of a file that differ from the last commit that changed the table; empty without git."""
    base = _git("log", "-1", "--format=%H", "--", str(prose.TABLE)).strip()
    difference = _git("diff", "-U0", base, "--", str(module.path)) if base else ""
    return {
        line
        for hunk in re.finditer(r"^@@ [^+]*\+(\d+)(?:,(\d+))? @@", difference, re.MULTILINE)
        for line in range(int(hunk[1]), int(hunk[1]) + int(hunk[2] or 1))
    }


def _git(*arguments: str) -> str:
    finished = subprocess.run(
        ["git", *arguments], cwd=source.ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return finished.stdout if finished.returncode == 0 else ""
