"""A handle that replays histories through Core, without a server.

It is polled and completed like any other; Core's verdict on a run is the reason of its eviction
(`NONDETERMINISM`, …). Core does not answer every malformed history, so that a caller that waits for a verdict sets a
limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from hourglass._contract.handle import HandleBroken, HandleConfig, Shutdown
from hourglass._engine.commands import Completion
from hourglass._engine.events import Activation
from hourglass._temporal import core
from hourglass._temporal.activations import activation_from_proto, completion_to_proto
from hourglass._temporal.configs import replay_settings
from hourglass._temporal.handle import CoreHandle
from hourglass._temporal.histories import check_history, history_from_events


class ReplayHandle(CoreHandle):
    """A handle over Core's replay worker. Push the next history when the last run was evicted."""

    def __init__(self, *, namespace: str = "default", task_queue: str = "replay") -> None:
        worker, self._pusher = core.new_replay_worker(replay_settings(namespace, task_queue))
        super().__init__(worker, HandleConfig(task_queue=task_queue, activities=False), namespace)

    async def push(
        self, workflow_id: str, history: bytes | Iterable[bytes], *, checked: bool = False
    ) -> None:
        """Replay a history: an encoded History message, or its events in JSON. Raises `HistoryError`.

        One that was `checked` before is not checked again: it takes as long as a good part of the replay.
        """
        encoded = history if isinstance(history, bytes) else history_from_events(history)
        if not checked:
            check_history(encoded)
        try:
            await asyncio.shield(core.push_history(self._pusher, workflow_id, encoded))
        except RuntimeError as error:
            raise HandleBroken(f"Core takes no more histories: {error}") from None

    # A session drives this handle alone, from one task that is cancelled only to be left behind. So Core's futures
    # are awaited as they are: the tasks and shields of `CoreHandle` would cost as much as Core itself.

    async def poll_activation(self) -> Activation:
        """Wait for the next activation; raise `Shutdown` at the end."""
        try:
            data = await core.poll_activation(self._worker)
        except core.PollShutdown:
            raise Shutdown("the replay worker is shut down") from None
        return activation_from_proto(data)

    async def complete_activation(self, completion: Completion) -> None:
        """Answer an activation. Core refuses nothing here that our own translation has made."""
        await core.complete_activation(self._worker, completion_to_proto(completion, self._own))

    def initiate_shutdown(self) -> None:
        """Take no more histories."""
        core.close_pusher(self._pusher)
        super().initiate_shutdown()

    async def finalize_shutdown(self) -> None:
        """Free everything. The handle is gone afterwards."""
        try:
            await super().finalize_shutdown()
        finally:
            self._pusher.drop()
