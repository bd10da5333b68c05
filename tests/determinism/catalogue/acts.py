"""Activities for the catalogue. What they do does not matter; what they are given does."""

from __future__ import annotations

from hourglass import activity


@activity.defn
def note(what: str) -> str:
    return f"noted {what}"


@activity.defn
def fetch(name: str) -> int:
    return len(name)


@activity.defn
def charge(cents: int) -> str:
    return f"charged {cents}"
