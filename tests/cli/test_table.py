"""The table of `hourglass list` in little room: what gets copied is whole, the rest is cut or left out."""

from __future__ import annotations

from rich.text import Text

from hourglass._tools.cli.console import Column, cut, lines, widths

COLUMNS = (Column("ID"), Column("STATUS", whole=True), Column("TYPE"), Column("STARTED", whole=True))
LONG = "8dbdaef7-4b64-4054-b992-7986e1293f1a"
ROWS = [[LONG, "completed", "monthly_invoice_run", "15:45:41"], ["o-1", "running", "order", "15:45:42"]]


def drawn(room: int | None) -> list[str]:
    return [str(each) for each in lines(COLUMNS, [[(text, "") for text in row] for row in ROWS], room)]


def test_all_of_it_where_a_program_reads() -> None:
    """Without a limit nothing is cut."""
    assert drawn(None)[1] == f"{LONG}  completed  monthly_invoice_run  15:45:41"


def test_the_type_is_cut_first() -> None:
    """In 72 columns all four stay, and every line keeps to them."""
    found = drawn(72)
    assert found[1] == f"{LONG}  completed  monthly_invo…  15:45:41"
    assert max(map(len, found)) <= 72


def test_a_row_becomes_two_lines() -> None:
    """Where even that is not enough the id has a line of its own, whole, and all the rest stands below it."""
    assert drawn(60)[:2] == [LONG, "  completed  monthly_invoice_run  15:45:41"]
    assert drawn(40)[:4] == [
        LONG,
        "  completed  monthly_invoice_…  15:45:41",
        "o-1",
        "  running    order              15:45:42",
    ]


def test_columns_are_left_out_from_the_right() -> None:
    """Below the id, too, the room may be too little: then the last columns go."""
    assert drawn(30)[:2] == [LONG, "  completed  monthly_invoice_…"]
    assert drawn(20)[:2] == [LONG, "  completed"]
    assert widths(COLUMNS, [], 80) == [2, 6, 4, 7]


def test_headings_alone_are_no_rows() -> None:
    """An empty table has its headings, however little room there is."""
    assert str(lines(COLUMNS, [], 10)[0]).split() == ["ID", "STATUS"]


def test_a_screen_that_is_too_small() -> None:
    """As many lines as fit, the last of which says how many are missing."""
    assert [str(each) for each in cut([Text(str(at)) for at in range(9)], 3)] == ["0", "1", "… 7 lines more"]
    assert len(cut([Text("a")] * 3, 3)) == 3
