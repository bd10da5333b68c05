"""Wrong uses of `hourglass.aio`: both checkers must report each line that ends in `# E`, and no other. Never run."""

# ruff: noqa: F841

from __future__ import annotations

from hourglass import activity as plain_activity
from hourglass import workflow as plain
from hourglass.aio import activity, workflow
from hourglass.aio.client import Client


@activity.defn
async def fetch(url: str) -> bytes:
    return b""


@plain_activity.defn
def charge(order: str) -> float:
    return 1.0


@workflow.defn
class Cart:
    @workflow.run
    async def run(self, owner: str) -> int:
        a: str = await workflow.execute_activity(fetch, "x")  # E
        b: bytes = workflow.execute_activity(fetch, "x")  # E
        await workflow.execute_activity(fetch, 3)  # E
        await workflow.execute_activity(activity=fetch, arg=3)  # E
        await workflow.execute_activity(fetch, "x", start_to_close="3")  # E
        await workflow.execute_child_workflow(Cart.run, 3)  # E
        await workflow.execute_child_workflow(Cart.run, "x", idd="c")  # E
        c: str = await workflow.execute_child_workflow(Cart.run, "x")  # E
        d: str = await charge.start("o")  # E
        await charge("o")  # E
        await workflow.wait_condition(3)  # E
        await workflow.sleep("1")  # E
        return 1

    @workflow.signal
    async def put(self, item: str) -> None: ...

    @workflow.update
    async def take(self, item: str) -> bool:
        return True

    @take.validator  # E
    def check(self, item: int) -> None: ...


async def use_client(client: Client) -> None:
    await client.execute_workflow(Cart.run, 3, id="c", task_queue="q")  # E
    handle = await client.start_workflow(Cart.run, "x", id="c", task_queue="q")
    await handle.signal(Cart.put, 3)  # E
    await client.execute_workflow(workflow=Cart.run, arg=3, id="c")  # E
    e: str = await handle.execute_update(Cart.take, "x")  # E
    f: str = await handle.result()  # E


async def both() -> int:
    return 1


@plain.defn
def mixes() -> int:
    g: str = plain.run_async(both())  # E
    plain.run_async(3)  # E
    return 1
