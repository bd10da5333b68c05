"""A change that swaps two activities under open runs."""

from __future__ import annotations

from hourglass import workflow

from .acts import charge, note


@workflow.defn(name="changed_order")
def old() -> str:
    note("begin")
    return charge(100)


@workflow.defn(name="changed_order")
def bug() -> str:
    charged = charge(100)  # caught: replay
    note("begin")
    return charged
