"""Handles of schedules, on the blocking face."""

from __future__ import annotations

from hourglass._contract.schedules import OverlapPolicy
from hourglass._engine.options import Duration
from hourglass.client import _schedules
from hourglass.client._faces import ScheduleHandleFacts
from hourglass.client._schedule_data import ScheduleBackfill, ScheduleDescription


class ScheduleHandle(ScheduleHandleFacts):
    """A schedule. Made by `client.create_schedule` and `client.get_schedule_handle`."""

    def describe(self, *, rpc_timeout: Duration | None = None) -> ScheduleDescription:
        """Look at it: what it does when, what it has done and when it acts next."""
        return self._session.run(_schedules.describe(self._session, self.id, rpc_timeout))

    def update(self, change: _schedules.Change, *, rpc_timeout: Duration | None = None) -> None:
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
            answer = self._session.run(operation)

    def pause(self, note: str = "", *, rpc_timeout: Duration | None = None) -> None:
        """Let it rest until it is unpaused; `note` says why. It can still be triggered."""
        note = note or _schedules.PAUSED
        self._session.run(_schedules.patch(self._session, self.id, rpc_timeout, pause=note))

    def unpause(self, note: str = "", *, rpc_timeout: Duration | None = None) -> None:
        """Let it act again, from its next time on."""
        note = note or _schedules.UNPAUSED
        self._session.run(_schedules.patch(self._session, self.id, rpc_timeout, unpause=note))

    def trigger(self, *, overlap: OverlapPolicy | None = None, rpc_timeout: Duration | None = None) -> None:
        """Let it act now, besides its times; by its own overlap policy, or another one this once."""
        self._session.run(_schedules.trigger(self._session, self.id, overlap, rpc_timeout))

    def backfill(self, *backfill: ScheduleBackfill, rpc_timeout: Duration | None = None) -> None:
        """Let it act for times of the past, as if they were now."""
        self._session.run(_schedules.backfill(self._session, self.id, backfill, rpc_timeout))

    def delete(self, *, rpc_timeout: Duration | None = None) -> None:
        """Delete it. Workflows that it started go on."""
        self._session.run(_schedules.delete(self._session, self.id, rpc_timeout))
