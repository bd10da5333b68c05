"""The reference pages are generated from the docstrings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.architecture import reference


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="other releases of Python spell signatures otherwise"
)
@pytest.mark.parametrize("page", sorted(reference.FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_reference_page_is_up_to_date(page: Path) -> None:
    assert page.read_text() == reference.expected(page), "make reference"


def test_every_reference_page_has_a_generation_mark() -> None:
    unmarked = [
        page.name for page in reference.FOLDER.glob("*.md") if not reference.MARK.search(page.read_text())
    ]
    assert unmarked == []
