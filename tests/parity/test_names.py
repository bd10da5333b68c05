"""Every public name of temporalio has a counterpart here or a listed reason, and the manual is up to date."""

from __future__ import annotations

import pytest
from tests.parity import table


def test_every_public_module_of_temporalio_is_in_the_table() -> None:
    known = {*table.ROWS, *table.PACKAGES}
    new = sorted(set(table.public_modules()) - known)
    assert not new, f"temporalio has modules that tests/parity/names.toml does not know: {', '.join(new)}"


@pytest.mark.parametrize("section", table.ROWS)
def test_every_public_name_of_temporalio_has_a_counterpart_or_a_reason(section: str) -> None:
    names, known = table.sections()[section], set(table.ROWS[section])
    has = set(names)
    new = sorted(name for name, found in names.items() if not found)
    assert not new, (
        f"{section} has names without a counterpart of the same name: {', '.join(new)}. Give each, in tests/parity/names.toml, a "
        "counterpart or a reason (-reason: left out on purpose, ?reason: not here yet), and run `make names`."
    )
    if table.installed() >= table.tabled():
        gone = sorted(known - has)
        assert not gone, f"{section} no longer has these names; remove them from the table: {', '.join(gone)}"


@pytest.mark.parametrize("section", [*table.ROWS, "packages"])
def test_every_counterpart_of_a_temporalio_name_exists(section: str) -> None:
    names = table.PACKAGES if section == "packages" else table.ROWS[section]
    wrong = {
        name: found
        for name, found in names.items()
        if not (found[1:] in table.REASONS if found[:1] in ("-", "?") else table.exists(found))
    }
    assert not wrong, f"counterparts in tests/parity/names.toml that do not exist: {wrong}"


def test_counterpart_lookup_resolves_modules_members_fields_and_options() -> None:
    for existing in ("workflow.sleep", "Client.connect(namespace)", "workflow.Info.run_id", "Worker(lanes)"):
        assert table.exists(existing)
    for missing in ("workflow.slumber", "Client.connect(address)", "workflow.Info.number", "nowhere.at_all"):
        assert not table.exists(missing)


@pytest.mark.skipif(
    table.installed() != table.tabled(), reason="the pages list the names of another release of temporalio"
)
@pytest.mark.parametrize("name", table.PAGES)
def test_manual_pages_equal_the_generated_parity_tables(name: str) -> None:
    assert (table.DOCS / name).read_text() == table.page(name), (
        f"docs/{name} is not up to date: run `make names`"
    )
