"""Wrong uses of `hourglass.limits` and `hourglass.progress`: each line that ends in `# E` must be reported. Read, never run."""

from __future__ import annotations

from good_limits_uses import Step, pay, steps

from hourglass import AsyncClient, Client, WorkflowHandle, limits
from hourglass.progress import Progress


def in_a_workflow() -> None:
    limits.slot(5)  # E
    limits.slot("k", "2")  # E
    limits.slot("k", timeout="soon")  # E
    limits.throttle("k", 10)  # E
    limits.throttle("k", 10, per="second")  # E
    limits.throttle("k", per=1)  # E
    steps.publish("one")  # E
    steps.publish(Step("one"))  # E
    steps.publish()  # E
    Progress(5)  # E
    Progress("p", int, keep="all")  # E


def use_client(client: Client, handle: WorkflowHandle[str]) -> None:
    limits.debounce(client, pay, "i-1", key="k", wait=5)  # E
    limits.debounce(client, pay, "i-1", "100", key="k", wait=5)  # E
    limits.debounce(client, pay, "i-1", 100, wait=5)  # E
    limits.debounce(client, pay, "i-1", 100, key="k")  # E
    limits.debounce(client, pay, "i-1", 100, key="k", wait=5, id="other")  # E
    limits.debounce("client", pay, "i-1", 100, key="k", wait=5)  # E
    limits.once(client, pay, "i-1", key="k")  # E
    limits.once(client, pay, "i-1", 100)  # E
    limits.once(client, pay, "i-1", 100, key="k", window="an hour")  # E
    steps.follow("id")  # E
    steps.follow(handle, after=5)  # E
    steps.follow(handle, last="1")  # E


async def use_async_client(client: AsyncClient) -> None:
    limits.debounce(client, pay, "i-1", 100, key="k", wait=5).result()  # E
    limits.once(client, pay, "i-1", 100, key="k").result()  # E
