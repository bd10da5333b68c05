"""Schedules with temporalio's names: the action of a schedule, and the schedule methods of a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Unpack

from hourglass.aio._standalone import NO_TOKEN
from hourglass.aio._values import UNSET, chosen_options, positional_values, reject_option, takes
from hourglass.aio.common import Priority
from hourglass.client import (
    AsyncClient,
    AsyncScheduleHandle,
    RpcOptions,
    Schedule,
    ScheduleBackfill,
    ScheduleListDescription,
    ScheduleStartOptions,
)
from hourglass.client import ScheduleActionStartWorkflow as _ScheduleActionStartWorkflow
from hourglass.converter import SearchAttributes
from hourglass.errors import UsageError


class _ScheduledStart(ScheduleStartOptions, total=False):
    """Options of the workflows that a schedule starts, with temporalio's names."""

    typed_search_attributes: SearchAttributes
    untyped_search_attributes: Mapping[str, Any]
    raw_info: Any
    priority: Priority


class ScheduleActionStartWorkflow(_ScheduleActionStartWorkflow):
    """A schedule action that starts a workflow, with the same arguments as `Client.start_workflow`."""

    @takes(_ScheduledStart)
    def __init__(
        self, workflow: Any, arg: Any = UNSET, *positional: Any, args: Sequence[Any] = (), **options: Any
    ) -> None:
        priority: Priority = options.pop("priority", None) or Priority.default
        if priority.fairness_key or priority.fairness_weight:
            raise UsageError(
                "workflows of a schedule can have a priority_key, but no fairness_key or fairness_weight"
            )
        chosen = chosen_options(options)
        if priority.priority_key:
            chosen["priority_key"] = priority.priority_key
        for name in ("untyped_search_attributes", "raw_info"):
            if chosen.pop(name, None):
                raise UsageError(
                    f"{name} of a schedule's action is not supported: pass typed_search_attributes="
                )
        typed = chosen.pop("typed_search_attributes", None)
        if typed:
            chosen["search_attributes"] = typed
        super().__init__(workflow, *positional_values(arg, positional, args), **chosen)


class ScheduleClient:
    """The schedule methods of a client."""

    wrapped: AsyncClient

    async def create_schedule(
        self,
        id: str,
        schedule: Schedule,
        *,
        trigger_immediately: bool = False,
        backfill: Sequence[ScheduleBackfill] = (),
        memo: Mapping[str, Any] | None = None,
        search_attributes: SearchAttributes | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> AsyncScheduleHandle:
        """Create a schedule, which starts workflows at defined times, and return its handle."""
        return await self.wrapped.create_schedule(
            id,
            schedule,
            trigger_immediately=trigger_immediately,
            backfill=backfill,
            memo=memo,
            search_attributes=search_attributes,
            **rpc,
        )

    def get_schedule_handle(self, id: str) -> AsyncScheduleHandle:
        """Return a handle to an existing schedule. Does not check whether the schedule exists."""
        return self.wrapped.get_schedule_handle(id)

    async def list_schedules(
        self,
        query: str | None = None,
        *,
        page_size: int = 1000,
        next_page_token: bytes | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> AsyncIterator[ScheduleListDescription]:
        """Return an iterator over the schedules that match a filter."""
        reject_option(next_page_token, "next_page_token", NO_TOKEN)
        return self.wrapped.list_schedules(query or "", page_size=page_size, **rpc)
