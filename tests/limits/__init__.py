"""Tests of limits on every engine, on virtual time and in real time."""

from __future__ import annotations

from hourglass._contract.limits import SlotTable


def is_idle(slots: SlotTable) -> bool:
    """Whether no run holds a slot or waits for one."""
    return not (slots.held or slots.waiting)
