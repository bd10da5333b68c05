"""The table of `hourglass list` in small terminals: ids are complete, other columns are shortened or omitted."""

from __future__ import annotations

import pytest
from rich.text import Text

from hourglass._tools.cli.console import Column, cut, lines, widths

COLUMNS = (Column("ID"), Column("STATUS", fixed=True), Column("TYPE"), Column("STARTED", fixed=True))
LONG = "8dbdaef7-4b64-4054-b992-7986e1293f1a"
ROWS = [[LONG, "completed", "monthly_invoice_run", "15:45:41"], ["o-1", "running", "order", "15:45:42"]]


def render_table(width: int | None) -> list[str]:
    return [str(each) for each in lines(COLUMNS, [[(text, "") for text in row] for row in ROWS], width)]


@pytest.mark.parametrize(
    ("width", "line", "expected"),
    [
        (None, 1, [f"{LONG}  completed  monthly_invoice_run  15:45:41"]),
        (72, 1, [f"{LONG}  completed  monthly_invo…  15:45:41"]),
        (60, 0, [LONG, "  completed  monthly_invoice_run  15:45:41"]),
        (
            40,
            0,
            [
                LONG,
                "  completed  monthly_invoice_…  15:45:41",
                "o-1",
                "  running    order              15:45:42",
            ],
        ),
        (30, 0, [LONG, "  completed  monthly_invoice_…"]),
        (20, 0, [LONG, "  completed"]),
    ],
)
def test_narrow_table_shortens_types_then_moves_ids_then_omits_columns(
    width: int | None, line: int, expected: list[str]
) -> None:
    found = render_table(width)
    assert found[line : line + len(expected)] == expected
    assert width is None or max(len(text) for text in found if text not in (LONG, "o-1")) <= width


def test_table_without_rows_shows_its_headings() -> None:
    assert str(lines(COLUMNS, [], 10)[0]).split() == ["ID", "STATUS"]
    assert widths(COLUMNS, [], 80) == [2, 6, 4, 7]


def test_table_in_a_short_terminal_counts_omitted_lines() -> None:
    assert [str(each) for each in cut([Text(str(at)) for at in range(9)], 3)] == ["0", "1", "… 7 more lines"]
    assert len(cut([Text("a")] * 3, 3)) == 3
