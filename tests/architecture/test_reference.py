"""The reference is what the docstrings say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.architecture import reference


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="other releases of Python spell signatures otherwise"
)
@pytest.mark.parametrize("page", sorted(reference.FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_reference_is_up_to_date(page: Path) -> None:
    """Each page is as `make reference` writes it."""
    assert page.read_text() == reference.expected(page), "make reference"


def test_every_public_module_has_a_reference_page() -> None:
    """No page of the reference is left without its names."""
    unmarked = [
        page.name for page in reference.FOLDER.glob("*.md") if not reference.MARK.search(page.read_text())
    ]
    assert unmarked == []
