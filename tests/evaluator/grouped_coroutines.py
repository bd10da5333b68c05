"""A temporalio workflow with event groups. Ported to Hourglass, the same source is compared with it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import FailureError

LONG = timedelta(minutes=1)
REGION = [SearchAttributeKey.for_keyword("Region").value_set("eu")]


@workflow.defn
class Grouped:
    """Issues commands of each kind: in nested blocks, in tasks, with the option, and without groups."""

    @workflow.run
    async def run(self) -> None:
        order = workflow.create_event_group("order", label="Order 7")
        billing = workflow.create_event_group("billing")
        again = workflow.create_event_group("order", label="of the same id")
        workflow.upsert_memo({"outside": True})
        workflow.upsert_memo({"of one": True}, event_groups=[billing])
        await workflow.sleep(1, event_groups=[billing])
        with order.scope():
            workflow.upsert_search_attributes(REGION, event_groups=[billing])
            workflow.deprecate_patch("old", event_groups=[again])
            with suppress(asyncio.TimeoutError):
                await workflow.wait_condition(lambda: False, timeout=1, event_groups=[billing])
        with order.scope():
            inherited = asyncio.create_task(self.charge([billing]))
            slow = workflow.start_activity("slow", start_to_close_timeout=LONG)
            with billing.scope(), suppress(asyncio.TimeoutError):
                workflow.patched("grouped")
                await asyncio.wait_for(inherited, LONG.total_seconds())
            slow.cancel()
            child = await workflow.start_child_workflow("child", id="c", event_groups=[again])
        with suppress(FailureError):
            await workflow.start_local_activity("near", start_to_close_timeout=LONG, event_groups=[again])
        child.cancel()
        with billing.scope():
            await workflow.get_external_workflow_handle("other").signal("ping")
            await workflow.get_external_workflow_handle("other").cancel()
            workflow.continue_as_new(event_groups=[order, billing])

    async def charge(self, groups: list[workflow.EventGroup]) -> None:
        await workflow.execute_activity("charge", start_to_close_timeout=LONG, event_groups=groups)
