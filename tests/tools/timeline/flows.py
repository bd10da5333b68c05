"""Workflows for timelines of the embedded engine."""

from __future__ import annotations

from datetime import timedelta

from hourglass import RetryPolicy, activity, workflow


@activity.defn(retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=5)))
def flaky(where: str) -> str:
    if activity.info().attempt == 1:
        raise ValueError("not yet")
    return f"{where} and back"


@workflow.defn
def trip(where: str) -> str:
    back = flaky(where)
    workflow.sleep(0.01)
    return back


@workflow.defn
def leg(where: str) -> str:
    return flaky.local(where)


@workflow.defn
def tour(where: str) -> str:
    done: list[str] = []

    @workflow.update
    def stop(name: str) -> str:
        done.append(name)
        return name

    workflow.wait_condition(lambda: bool(done))
    return leg.options(id=f"{workflow.info().workflow_id}-leg")(where)
