"""How tables of names are written here: as words in a text, which a reader takes in at a glance."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())
