"""Handles of schedules, on the asynchronous face."""

from __future__ import annotations

from hourglass._contract.schedules import OverlapPolicy
from hourglass._engine.options import Duration
from hourglass.client import _schedules
from hourglass.client._faces import ScheduleHandleFacts
from hourglass.client._schedule_data import ScheduleBackfill, ScheduleDescription


class AsyncScheduleHandle(ScheduleHandleFacts):
    """A schedule. Made by `client.create_schedule` and `client.get_schedule_handle`."""

    async def describe(self, *, rpc_timeout: Duration | None = None) -> ScheduleDescription:
        """Look at it: what it does when, what it has done and when it acts next."""
        return await self._session.arun(_schedules.describe(self._session, self.id, rpc_timeout))

    async def update(self, change: _schedules.Change, *, rpc_timeout: Duration | None = None) -> None:
        """Change it: the function gets the description and returns the new `Schedule`, or None to leave it.

        `handle.update(lambda seen: replace(seen.schedule, policy=…))` changes one part. Where somebody else changes it at
        the same time the function is called again with the schedule as it is then, so it should do nothing else.
        """
        steps = _schedules.update(self._session, self.id, change, rpc_timeout)
        answer = None
        while True:
            try:
                operation = steps.send(answer)
            except StopIteration:
                return
            answer = await self._session.arun(operation)

    async def pause(self, note: str = "", *, rpc_timeout: Duration | None = None) -> None:
        """Let it rest until it is unpaused; `note` says why. It can still be triggered."""
        note = note or _schedules.PAUSED
        await self._session.arun(_schedules.patch(self._session, self.id, rpc_timeout, pause=note))

    async def unpause(self, note: str = "", *, rpc_timeout: Duration | None = None) -> None:
        """Let it act again, from its next time on."""
        note = note or _schedules.UNPAUSED
        await self._session.arun(_schedules.patch(self._session, self.id, rpc_timeout, unpause=note))

    async def trigger(
        self, *, overlap: OverlapPolicy | None = None, rpc_timeout: Duration | None = None
    ) -> None:
        """Let it act now, besides its times; by its own overlap policy, or another one this once."""
        await self._session.arun(_schedules.trigger(self._session, self.id, overlap, rpc_timeout))

    async def backfill(self, *backfill: ScheduleBackfill, rpc_timeout: Duration | None = None) -> None:
        """Let it act for times of the past, as if they were now."""
        await self._session.arun(_schedules.backfill(self._session, self.id, backfill, rpc_timeout))

    async def delete(self, *, rpc_timeout: Duration | None = None) -> None:
        """Delete it. Workflows that it started go on."""
        await self._session.arun(_schedules.delete(self._session, self.id, rpc_timeout))
