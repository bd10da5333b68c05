"""Children: a workflow that runs other workflows, each with its own history, and handles their failures.

    python examples/children.py
    hourglass run examples/children.py:monthly_close '["north", "south"]'

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

A workflow called in a workflow is its child. `.start` starts a child without waiting; `.options(id=…)` sets its id, so that it
can be found and does not run twice. Children can run on other workers and can be cancelled and fail independently.
"""

from __future__ import annotations

from dataclasses import dataclass

from hourglass import ApplicationError, Client, Worker, activity, workflow
from hourglass.errors import ChildWorkflowError


@dataclass
class Summary:
    closed: dict[str, int]
    failed: dict[str, str]


@activity.defn
def fetch_invoices(region: str) -> list[int]:
    if region == "atlantis":
        raise ApplicationError("there is no such region", type="UnknownRegion", non_retryable=True)
    return [len(region) * 1000 + number for number in range(3)]


@activity.defn
def archive(region: str, cents: int) -> None:
    print(f"  {region}: {cents / 100:.2f} archived")


@workflow.defn
def close_region(region: str) -> int:
    cents = sum(fetch_invoices(region))
    archive(region, cents)
    return cents


@workflow.defn
def monthly_close(regions: list[str]) -> Summary:
    month = workflow.now().strftime("%Y-%m")
    children = {
        region: close_region.options(id=f"close-{month}-{region}").start(region) for region in regions
    }
    summary = Summary(closed={}, failed={})
    for region, child in children.items():
        try:
            summary.closed[region] = child.result()
        except ChildWorkflowError as error:
            summary.failed[region] = str(error.root_cause)
    return summary


def main() -> None:
    with Client.connect() as client, Worker(client, "children", modules=[__name__]):
        regions = ["north", "south", "atlantis"]
        print(client.execute_workflow(monthly_close, regions, task_queue="children"))
        for execution in client.list_workflows("WorkflowType = 'close_region'"):
            print(f"  {execution.id}: {execution.status.name.lower()}")


if __name__ == "__main__":
    main()
