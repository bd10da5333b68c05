"""A handle that replays histories through Core, without a server.

It is polled and completed like any other; Core's verdict on a run is the reason of its eviction
(`NONDETERMINISM`, …). Core cannot be trusted to answer every malformed history, so that whoever waits for one
sets a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from hourglass._bridge.handle import HandleBroken, HandleConfig
from hourglass._temporal import core
from hourglass._temporal.configs import replay_settings
from hourglass._temporal.handle import CoreHandle
from hourglass._temporal.histories import check_history, history_from_events


class ReplayHandle(CoreHandle):
    """A handle over Core's replay worker. Push the next history when the last run was evicted."""

    def __init__(self, *, namespace: str = "default", task_queue: str = "replay") -> None:
        worker, self._pusher = core.new_replay_worker(replay_settings(namespace, task_queue))
        super().__init__(worker, HandleConfig(task_queue=task_queue, activities=False), namespace)

    async def push(self, workflow_id: str, history: bytes | Iterable[bytes]) -> None:
        """Replay a history: an encoded History message, or its events in JSON. Raises `HistoryError`."""
        if isinstance(history, bytes):
            check_history(history)
            encoded = history
        else:
            encoded = history_from_events(history)
        try:
            await asyncio.shield(core.push_history(self._pusher, workflow_id, encoded))
        except RuntimeError as error:
            raise HandleBroken(f"Core takes no more histories: {error}") from None

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
