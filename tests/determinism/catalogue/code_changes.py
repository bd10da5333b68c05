"""Changes of the code under open runs."""

from __future__ import annotations

from datetime import timedelta

from hourglass import workflow

from .acts import charge, note

# Bug `changed_argument`: a change of what an activity is given: the same command, with other data.


@workflow.defn(name="changed_argument")
def changed_argument_before() -> str:
    return charge(100)


@workflow.defn
def changed_argument() -> str:
    return charge(120)  # caught: replay


# Bug `changed_order`: a change that swaps two activities under open runs.


@workflow.defn(name="changed_order")
def changed_order_before() -> str:
    note("begin")
    return charge(100)


@workflow.defn
def changed_order() -> str:
    charged = charge(100)  # caught: replay
    note("begin")
    return charged


# Bug `changed_timer`: a change of how long a run waits: open runs have a timer of the old length.


@workflow.defn(name="changed_timer")
def changed_timer_before() -> str:
    workflow.sleep(timedelta(days=30))
    return note("a month")


@workflow.defn
def changed_timer() -> str:
    workflow.sleep(timedelta(days=7))  # caught: replay
    return note("a month")


# Bug `removed_activity`: a change that removes a step under open runs.


@workflow.defn(name="removed_activity")
def removed_activity_before() -> str:
    note("begin")
    return charge(100)


@workflow.defn
def removed_activity() -> str:
    return charge(100)  # caught: replay
