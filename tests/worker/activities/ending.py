"""A worker with something in flight that does not end: `python -m worker.activities.ending TARGET QUEUE DRAIN KIND`.

Says `begun` when it is in flight, works until a signal, and says `over` when its worker has shut down.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Sequence

from hourglass import RetryPolicy, activity, workflow
from hourglass.client import Client
from hourglass.converter import Payload
from hourglass.interceptors import ActivityInboundInterceptor, Interceptor
from hourglass.worker import Worker

FOR_EVER = 3600.0
LIMITS = {"start_to_close_timeout": FOR_EVER, "retry_policy": RetryPolicy(initial_interval=0.01)}


def say(word: str) -> None:
    print(word, flush=True)


@activity.defn(**LIMITS)
def sleeps(seconds: float) -> str:
    say("begun")
    time.sleep(seconds)  # the work of an activity that does not look whether it is cancelled
    return "slept"


@activity.defn(**LIMITS)
def is_told() -> str:
    say("begun")
    activity.wait_cancelled()
    raise RuntimeError("told to stop")


@activity.defn(**LIMITS)
async def swallows() -> None:
    say("begun")
    while True:
        try:
            await asyncio.sleep(FOR_EVER)  # the work of an activity that swallows its cancellation
        except asyncio.CancelledError:
            pass


@activity.defn(**LIMITS)
async def blocks() -> None:
    say("begun")
    time.sleep(FOR_EVER)  # noqa: ASYNC251 - that is what it does


@activity.defn(**LIMITS)
async def in_a_thread() -> None:
    say("begun")
    await asyncio.to_thread(time.sleep, FOR_EVER)


@activity.defn(executor="process", **LIMITS)
def elsewhere() -> None:
    say("begun")
    while True:
        time.sleep(FOR_EVER)  # a process that does not end by itself


@activity.defn(**LIMITS)
def calls() -> None:
    handle = activity.client().start_workflow(waits, task_queue="nobody serves it")
    say("begun")
    handle.result()


@workflow.defn
def waits() -> None:
    workflow.sleep(FOR_EVER)


@workflow.defn
def hangs() -> None:
    say("begun")
    while True:
        time.sleep(0.01)  # workflow code that hangs, and lets other threads run meanwhile


@workflow.defn
def holds(kind: str, seconds: float) -> str:
    match kind:
        case "local":
            return sleeps.local(seconds)
        case "local after local":
            return sleeps.local(seconds / 2) + sleeps.local(seconds / 2)  # the signal comes during the first
        case "local that is told":
            return is_told.local()
        case "local that swallows":
            swallows.local()
        case "local that blocks":
            blocks.local()
        case "thread" | "codec" | "interceptor":
            return sleeps(seconds)
        case "swallows":
            swallows()
        case "blocks":
            blocks()
        case "to_thread":
            in_a_thread()
        case "process":
            elsewhere()
        case "call":
            calls()
    return kind


class Hung:
    """Hangs at what an activity returned."""

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        if any(b"slept" in each.data for each in payloads):
            threading.Event().wait(FOR_EVER)
        return payloads

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return payloads


class Hanging(Interceptor):
    def intercept_activity(self, following: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        class Inbound(ActivityInboundInterceptor):
            def execute_activity(self, call):
                say("begun")
                threading.Event().wait(FOR_EVER)

        return Inbound(following)


def main(target: str, queue: str, drain: float, kind: str, seconds: float) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    codec = Hung() if kind == "codec" else None
    with Client.connect(target, codec=codec) as client:
        worker = Worker(
            client,
            queue,
            workflows=[holds, hangs, waits],
            activities=[sleeps, is_told, swallows, blocks, in_a_thread, elsewhere, calls],
            graceful_shutdown_timeout=drain,
            interceptors=[Hanging()] if kind == "interceptor" else [],
        )

        def begin() -> None:
            if kind == "workflow":
                client.start_workflow(hangs, id=queue, task_queue=queue)
            else:
                client.start_workflow(holds, kind, seconds, id=queue, task_queue=queue)

        worker.run(on_started=begin)
    say("over")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4], float(sys.argv[5]))
