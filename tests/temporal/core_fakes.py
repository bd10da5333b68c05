"""A fake of Core's worker whose futures a test resolves, and a handle over it."""

from __future__ import annotations

import asyncio

from hourglass._contract.handle import HandleConfig
from hourglass._temporal import core
from hourglass._temporal.handle import CoreHandle


class FakeWorker:
    """A Core worker whose polls and completions are resolved by the test."""

    def __init__(self) -> None:
        self.polls: list[asyncio.Future[bytes]] = []
        self.completions: list[bytes] = []
        self.answers: list[BaseException | asyncio.Future[None] | None] = []
        self.finalized = 0

    def _poll(self) -> asyncio.Future[bytes]:
        self.polls.append(asyncio.get_running_loop().create_future())
        return self.polls[-1]

    poll_workflow_activation = poll_activity_task = _poll

    def _complete(self, data: bytes) -> asyncio.Future[None]:
        self.completions.append(data)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, asyncio.Future):
            return answer
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if answer is None:
            future.set_result(None)
        else:
            future.set_exception(answer)
        return future

    complete_workflow_activation = complete_activity_task = _complete

    def initiate_shutdown(self) -> None:
        pass

    def finalize_shutdown(self) -> asyncio.Future[None]:
        self.finalized += 1
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


def handle(
    worker: FakeWorker, config: HandleConfig | None = None, *, workflow_polls_only: bool = False
) -> CoreHandle:
    """A handle over the fake. With `workflow_polls_only` its raw activity polls are not recorded and never return."""
    if workflow_polls_only:
        never = asyncio.get_running_loop().create_future()
        worker.poll_activity_task = lambda: never  # type: ignore[method-assign]
    return CoreHandle(core.Ref(core._WORKER, worker), config or HandleConfig(task_queue="q"), "ns")


def poll_shutdown() -> Exception:
    """Return the error that Core's polls raise when its worker shuts down."""
    error: Exception = core.PollShutdown()
    return error
