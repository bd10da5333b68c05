"""A handler for what the activity raises: to the workflow it comes as the cause of an `ActivityError`, and passes by."""

from __future__ import annotations

from hourglass import RetryPolicy, activity, workflow


class Declined(Exception):
    """What the activity raises."""


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def pay(cents: int) -> str:
    raise Declined(f"{cents} are too much")


@workflow.defn(name="never_caught")
def bug() -> str:
    try:
        return pay(100)
    except Declined:  # caught: check HG116
        return "declined"
