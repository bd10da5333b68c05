"""The table of `hourglass list` in little room: what gets copied is whole, the rest is cut or left out."""

from __future__ import annotations

import pytest
from rich.text import Text

from hourglass._tools.cli.console import Column, cut, lines, widths

COLUMNS = (Column("ID"), Column("STATUS", whole=True), Column("TYPE"), Column("STARTED", whole=True))
LONG = "8dbdaef7-4b64-4054-b992-7986e1293f1a"
ROWS = [[LONG, "completed", "monthly_invoice_run", "15:45:41"], ["o-1", "running", "order", "15:45:42"]]


def drawn(room: int | None) -> list[str]:
    return [str(each) for each in lines(COLUMNS, [[(text, "") for text in row] for row in ROWS], room)]


@pytest.mark.parametrize(
    ("room", "line", "expected"),
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
def test_table_in_a_narrow_terminal(room: int | None, line: int, expected: list[str]) -> None:
    """The type is cut first; then the id gets a line of its own, whole; then columns are left out from the right."""
    found = drawn(room)
    assert found[line : line + len(expected)] == expected
    assert room is None or max(len(text) for text in found if text not in (LONG, "o-1")) <= room


def test_table_without_rows() -> None:
    """An empty table has its headings, however little room there is."""
    assert str(lines(COLUMNS, [], 10)[0]).split() == ["ID", "STATUS"]
    assert widths(COLUMNS, [], 80) == [2, 6, 4, 7]


def test_table_in_a_short_terminal() -> None:
    """As many lines as fit, the last of which says how many are missing."""
    assert [str(each) for each in cut([Text(str(at)) for at in range(9)], 3)] == ["0", "1", "… 7 more lines"]
    assert len(cut([Text("a")] * 3, 3)) == 3
