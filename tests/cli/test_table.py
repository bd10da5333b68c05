"""The table of `hourglass list` in little room: what gets copied is whole, the rest is cut or left out."""

from __future__ import annotations

from hourglass._cli.table import Column, lines, widths

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


def test_columns_are_left_out_from_the_right() -> None:
    """Where even that is not enough the last ones go; in the end the id stands alone, and whole."""
    assert drawn(60)[0].split() == ["ID", "STATUS", "TYPE"]
    assert drawn(50)[1] == f"{LONG}  completed"
    assert drawn(20)[1] == LONG
    assert widths(COLUMNS, [], 80) == [2, 6, 4, 7]
