"""The workflows and activities that the faults run, small and with predictable results."""

from __future__ import annotations

import asyncio
import os
import threading

from hourglass import RetryPolicy, activity, workflow

STEPS = 5

# Faults fail attempts; how long the next one waits is not what is looked at.
_SOON = RetryPolicy(initial_interval=0.1, maximum_interval=1.0)

# A server that gave a task to a connection that was reset waits for so long before it gives it to another.
_LOST = 5.0

go = workflow.Channel("go", int)


@activity.defn(retry_policy=_SOON, start_to_close_timeout=_LOST)
def step(number: int) -> int:
    return number + 1


@activity.defn(retry_policy=_SOON, start_to_close_timeout=_LOST)
async def astep(number: int) -> int:
    await asyncio.sleep(0.005)  # work that takes a moment, so that faults meet it
    return number + 1


@workflow.defn
def chain(number: int) -> int:
    """Five activities in sequence."""
    for place in range(STEPS):
        number = astep(number) if place % 2 else step(number)
    return number


@workflow.defn
def idle(number: int) -> int:
    """Waits between tasks until its `go` signal."""
    before = step(number)
    return before + go.receive()


@workflow.defn
def held(number: int) -> int:
    """Stays inside a task: the worst instant for a worker to die."""
    value = step(number)
    if os.environ.get("CHAOS_HOLD"):
        print("in task", flush=True)
        threading.Event().wait()
    return step(value)


@activity.defn(heartbeat_timeout=3.0, retry_policy=_SOON)
def crawl() -> list[object]:
    """Heartbeats its progress and stays there."""
    return _crawled()


def _crawled() -> list[object]:
    if os.environ.get("CHAOS_HOLD"):
        activity.heartbeat("page 7")
        print("in activity", flush=True)
        threading.Event().wait()
    print("again", flush=True)
    return [activity.heartbeat_details(str), activity.info().attempt]


@activity.defn(retry_policy=_SOON)
def crawl_alive() -> list[object]:
    """The same with automatic heartbeats, which repeat the last details while the process is alive."""
    return _crawled()


@workflow.defn
def crawling(promised: bool, liveness: float) -> list[object]:
    return crawl.options(heartbeat_timeout=liveness)() if promised else crawl_alive()


@activity.defn(retry_policy=_SOON)
def finishes(seconds: float) -> str:
    """Runs until a graceful shutdown ends it."""
    print("in activity", flush=True)
    threading.Event().wait(seconds)
    return f"attempt {activity.info().attempt}"


@workflow.defn
def finishing(seconds: float) -> str:
    return finishes(seconds)


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def forks() -> int:
    """The copy returns from here too; its end must affect only itself."""
    child = os.fork()
    return 0 if child == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@workflow.defn
def forking() -> int:
    return forks()


WORKFLOWS = [chain, idle, held, crawling, finishing, forking]
ACTIVITIES = [step, astep, crawl, crawl_alive, finishes, forks]
