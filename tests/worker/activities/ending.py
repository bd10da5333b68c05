"""A worker with work in progress that does not end: `python -m worker.activities.ending TARGET QUEUE DRAIN KIND`.

Prints `begun` when the work is in progress, runs until a signal, and prints `over` when its worker has shut down.
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
    time.sleep(seconds)  # the work of an activity that does not check for cancellation
    return "slept"


@activity.defn(**LIMITS)
def waits_for_cancellation() -> str:
    say("begun")
    activity.wait_cancelled()
    raise RuntimeError("cancelled")


@activity.defn(**LIMITS)
async def ignores_cancellation_async() -> None:
    say("begun")
    while True:
        try:
            await asyncio.sleep(FOR_EVER)  # the work of an activity that swallows its cancellation
        except asyncio.CancelledError:
            pass


@activity.defn(**LIMITS)
async def blocks_its_loop() -> None:
    say("begun")
    time.sleep(FOR_EVER)  # noqa: ASYNC251 - the activity must block its loop


@activity.defn(**LIMITS)
async def sleeps_in_a_thread() -> None:
    say("begun")
    await asyncio.to_thread(time.sleep, FOR_EVER)


@activity.defn(executor="process", **LIMITS)
def sleeps_in_a_process() -> None:
    say("begun")
    while True:
        time.sleep(FOR_EVER)  # a process that never ends


@activity.defn(**LIMITS)
def waits_for_a_workflow() -> None:
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
        time.sleep(0.01)  # workflow code that hangs without holding the GIL


@workflow.defn
def holds(kind: str, seconds: float) -> str:
    match kind:
        case "local":
            return sleeps.local(seconds)
        case "local after local":
            return sleeps.local(seconds / 2) + sleeps.local(seconds / 2)  # the signal comes during the first
        case "local, waits for cancellation":
            return waits_for_cancellation.local()
        case "local, ignores cancellation":
            ignores_cancellation_async.local()
        case "local, blocks its loop":
            blocks_its_loop.local()
        case "thread" | "codec" | "interceptor":
            return sleeps(seconds)
        case "ignores cancellation":
            ignores_cancellation_async()
        case "blocks its loop":
            blocks_its_loop()
        case "to_thread":
            sleeps_in_a_thread()
        case "process":
            sleeps_in_a_process()
        case "call":
            waits_for_a_workflow()
    return kind


class HangingCodec:
    """A codec that hangs while it encodes an activity's result."""

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        if any(b"slept" in payload.data for payload in payloads):
            threading.Event().wait(FOR_EVER)
        return payloads

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return payloads


class HangingInterceptor(Interceptor):
    def intercept_activity(self, following: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        class Inbound(ActivityInboundInterceptor):
            def execute_activity(self, call):
                say("begun")
                threading.Event().wait(FOR_EVER)

        return Inbound(following)


def main(target: str, queue: str, drain: float, kind: str, seconds: float) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    codec = HangingCodec() if kind == "codec" else None
    with Client.connect(target, codec=codec) as client:
        worker = Worker(
            client,
            queue,
            workflows=[holds, hangs, waits],
            activities=[
                sleeps,
                waits_for_cancellation,
                ignores_cancellation_async,
                blocks_its_loop,
                sleeps_in_a_thread,
                sleeps_in_a_process,
                waits_for_a_workflow,
            ],
            graceful_shutdown_timeout=drain,
            interceptors=[HangingInterceptor()] if kind == "interceptor" else [],
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
