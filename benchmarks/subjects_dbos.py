"""Measured workflow for DBOS: a sequence of steps, called in the caller's thread."""

from __future__ import annotations

from dbos import DBOS


@DBOS.step()
def echo(value: int) -> int:
    return value


@DBOS.workflow()
def sequence(steps: int) -> int:
    total = 0
    for number in range(steps):
        total += echo(number)
    return total
