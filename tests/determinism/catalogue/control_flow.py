"""Exceptions and calls that do not work in a workflow as elsewhere."""

from __future__ import annotations

from hourglass import RetryPolicy, activity, workflow

from .acts import note

# Bug `endless`: a workflow that calls itself to go on: each run waits for a child, and none ever ends.


@workflow.defn
def endless(day: int = 0) -> str:
    note(f"day {day}")
    return endless(day + 1)  # caught: check HG117


# Bug `never_caught`: a handler for what the activity raises: to the workflow it comes as the cause of an
# `ActivityError`, and passes by.


class Declined(Exception):
    """What the activity raises."""


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def pay(cents: int) -> str:
    raise Declined(f"{cents} are too much")


@workflow.defn
def never_caught() -> str:
    try:
        return pay(100)
    except Declined:  # caught: check HG116
        return "declined"
