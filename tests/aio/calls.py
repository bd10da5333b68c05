"""Calls as in programs for temporalio, with keyword arguments everywhere. `test_calls.py` runs them with temporalio, and with
changed imports.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    SignalWorkflowInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowUpdateStage,
)
from temporalio.common import (
    Priority,
    RetryPolicy,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.testing import ActivityEnvironment

QUEUE = "calls"
SHORT = timedelta(seconds=10)


@dataclasses.dataclass
class Order:
    id: str
    cents: int = 0


@activity.defn
async def charge(order: Order) -> str:
    return f"{order.id}: {order.cents}"


@activity.defn
async def add(one: int, two: int) -> int:
    return one + two


@activity.defn
async def nothing() -> str:
    return "nothing"


@activity.defn
class Scale:
    async def __call__(self, number: int) -> int:
        return number * 10


class Billing:
    @activity.defn
    async def bill(self, number: int) -> int:
        return number + 100


@workflow.defn
class Child:
    def __init__(self) -> None:
        self.word = ""

    @workflow.run
    async def run(self, number: int) -> str:
        await workflow.wait_condition(lambda: bool(self.word))
        return f"{self.word} {number}"

    @workflow.signal
    def tell(self, word: str) -> None:
        self.word = word


@workflow.defn
class Keywords:
    """Passes the first argument of every call by keyword, and `arg=` or `args=` to activities and children."""

    @workflow.run
    async def run(self, id: str) -> list[Any]:
        order = Order("o", 5)
        found: list[Any] = [
            await workflow.execute_activity(activity=charge, arg=order, start_to_close_timeout=SHORT),
            await workflow.execute_activity(activity=add, args=[1, 2], start_to_close_timeout=SHORT),
            await workflow.execute_activity(activity=nothing, start_to_close_timeout=SHORT),
            await workflow.execute_activity(
                activity="charge",
                arg=order,
                result_type=str,
                start_to_close_timeout=SHORT,
                priority=Priority.default,
            ),
            await workflow.start_activity(activity=add, args=[3, 4], start_to_close_timeout=SHORT),
            await workflow.execute_local_activity(activity=charge, arg=order, start_to_close_timeout=SHORT),
            await workflow.start_local_activity(activity=add, args=[5, 6], start_to_close_timeout=SHORT),
            await workflow.execute_activity_class(activity=Scale, arg=2, start_to_close_timeout=SHORT),
            await workflow.start_activity_class(activity=Scale, arg=3, start_to_close_timeout=SHORT),
            await workflow.execute_local_activity_class(activity=Scale, arg=4, start_to_close_timeout=SHORT),
            await workflow.start_local_activity_class(activity=Scale, arg=5, start_to_close_timeout=SHORT),
            await workflow.execute_activity_method(
                activity=Billing.bill, arg=1, start_to_close_timeout=SHORT
            ),
            await workflow.start_activity_method(activity=Billing.bill, arg=2, start_to_close_timeout=SHORT),
            await workflow.execute_local_activity_method(
                activity=Billing.bill, arg=3, start_to_close_timeout=SHORT
            ),
            await workflow.start_local_activity_method(
                activity=Billing.bill, args=[4], start_to_close_timeout=SHORT
            ),
        ]
        child = await workflow.start_child_workflow(workflow=Child.run, arg=7, id=f"{id}-child")
        await child.signal(signal=Child.tell, arg="told")
        found.append(await child)
        child = await workflow.start_child_workflow(
            workflow="Child", args=[8], id=f"{id}-named", result_type=str
        )
        other = workflow.get_external_workflow_handle(workflow_id=f"{id}-named")
        await other.signal(signal="tell", args=["from outside"])
        found.append(await child)
        return found


@workflow.defn
class TemporalioNames:
    """Uses temporalio's parameter names, and options that are None."""

    @workflow.run
    async def run(self, again: bool) -> list[Any]:
        if again:
            workflow.continue_as_new(arg=False, initial_versioning_behavior=None)
        workflow.deprecate_patch(id="old")
        workflow.upsert_memo(updates={"count": 3})
        workflow.set_current_details(description="at work")
        policy = RetryPolicy(timedelta(seconds=1), 2.0, None, 1, non_retryable_error_types=None)
        try:
            await workflow.execute_activity(
                charge,
                Order("p"),
                start_to_close_timeout=SHORT,
                retry_policy=policy,
                summary=None,
                task_queue=None,
            )
            result = "charged"
        except Exception as error:
            result = type(error).__name__
        return [
            workflow.patched(id="new"),
            workflow.memo_value("order", type_hint=Order) == Order("m", 1),
            workflow.memo_value(key="none", default=4, type_hint=int),
            workflow.memo_value("count", type_hint=int),
            workflow.get_last_completion_result(type_hint=Order),
            workflow.is_failure_exception(err=ApplicationError("x")),
            result,
        ]


@workflow.defn
class Messages:
    def __init__(self) -> None:
        self.words: list[str] = []
        self.done = False

    @workflow.run
    async def run(self, first: str) -> list[str]:
        self.words.append(first)
        await workflow.wait_condition(lambda: self.done)
        return self.words

    @workflow.signal(name="say", description=None)
    def on_say(self, word: str) -> None:
        self.words.append(word)

    @workflow.signal
    def end(self) -> None:
        self.done = True

    @workflow.query(name="count", description=None)
    def count(self, more: int) -> int:
        return len(self.words) + more

    @workflow.update(name="put", description=None)
    async def put(self, word: str) -> int:
        if word == "bad":
            raise ApplicationError("a bad word")
        self.words.append(word)
        return len(self.words)


async def keywords(client: Client, id: str) -> Any:
    return await client.execute_workflow(workflow=Keywords.run, arg=id, id=id, task_queue=QUEUE)


async def temporalio_names(client: Client, id: str) -> Any:
    return await client.execute_workflow(
        workflow="TemporalioNames",
        args=[True],
        id=id,
        task_queue=QUEUE,
        result_type=list,
        memo={"order": Order("m", 1)},
        execution_timeout=None,
        run_timeout=None,
        task_timeout=None,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        id_conflict_policy=WorkflowIDConflictPolicy.UNSPECIFIED,
        retry_policy=None,
        cron_schedule="",
        search_attributes=None,
        static_summary=None,
        static_details=None,
        start_delay=None,
        start_signal=None,
        start_signal_args=[],
        rpc_metadata={},
        rpc_timeout=None,
        request_eager_start=False,
        priority=Priority.default,
        versioning_override=None,
    )


async def message_keywords(client: Client, id: str) -> Any:
    """Keyword arguments of workflow handles."""
    handle: WorkflowHandle[Messages, list[str]] = await client.start_workflow(
        workflow=Messages.run,
        arg="first",
        id=id,
        task_queue=QUEUE,
        start_signal="say",
        start_signal_args=["zero"],
    )
    await handle.signal(signal=Messages.on_say, arg="second")
    await handle.signal(signal="say", args=["third"])
    found: list[Any] = [
        await handle.query(query=Messages.count, arg=10),
        await handle.query(query="count", args=[20], result_type=int),
        await handle.execute_update(update=Messages.put, arg="fourth"),
        await handle.execute_update(update="put", args=["fifth"], id=f"{id}-u", result_type=int),
    ]
    started = await handle.start_update(
        update=Messages.put, arg="sixth", wait_for_stage=WorkflowUpdateStage.COMPLETED
    )
    found.append(await started.result())
    found.append(await handle.get_update_handle(f"{id}-u", workflow_run_id=None, result_type=int).result())
    await handle.signal(signal=Messages.end)
    return [*found, sorted(await handle.result())]


async def update_with_start(client: Client, id: str) -> Any:
    """Updates that start their workflow: a result, a failure, and a rejected start; each with the workflow handle."""

    def operation(policy: WorkflowIDConflictPolicy) -> WithStartWorkflowOperation[Messages, list[str]]:
        return WithStartWorkflowOperation(
            workflow=Messages.run, arg="start", id=id, task_queue=QUEUE, id_conflict_policy=policy
        )

    start = operation(WorkflowIDConflictPolicy.USE_EXISTING)
    waiting = asyncio.create_task(start.workflow_handle())
    found: list[Any] = [
        await client.execute_update_with_start_workflow(
            update=Messages.put, arg="one", start_workflow_operation=start
        ),
        (await waiting).id == id,
    ]
    start = operation(WorkflowIDConflictPolicy.USE_EXISTING)
    try:
        await client.execute_update_with_start_workflow(
            update="put", args=["bad"], start_workflow_operation=start
        )
    except Exception as error:
        found += [type(error.__cause__).__name__, "bad word" in str(error.__cause__)]
    found.append((await start.workflow_handle()).id == id)
    start = operation(WorkflowIDConflictPolicy.FAIL)
    for call in (
        client.execute_update_with_start_workflow(Messages.put, "two", start_workflow_operation=start),
        start.workflow_handle(),
    ):
        try:
            await call
        except Exception as error:
            found.append(type(error).__name__)
    await client.get_workflow_handle(id).signal(Messages.end)
    return found


class ChangingInterceptor(Interceptor):
    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return ChangingCalls(super().intercept_client(next))


class ChangingCalls(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> Any:
        if input.id.startswith("changed"):
            input.workflow = "Messages"
            input.args = ["changed"]
            input.id = f"{input.id}-more"
            input.task_queue = QUEUE
            input.memo = {**(input.memo or {}), "by": "interceptor"}
            input.run_timeout = timedelta(seconds=77)
            input.execution_timeout = timedelta(seconds=99)
            input.static_summary = "a summary"
            input.retry_policy = RetryPolicy(maximum_attempts=3)
            input.search_attributes = TypedSearchAttributes(
                [SearchAttributePair(SearchAttributeKey.for_keyword("CustomKeywordField"), "blue")]
            )
            input.priority = Priority(priority_key=2)
            input.start_signal = "say"
            input.start_signal_args = ["along"]
        return await super().start_workflow(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        if input.args == ["plain"]:
            input.args = ["changed signal"]
        return await super().signal_workflow(input)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        if input.query == "nothing":
            input.query = "count"
            input.args = [1]
            input.ret_type = int
        return await super().query_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        if input.args == ["plain"]:
            input = dataclasses.replace(input, args=["changed update"])
            input.update_id = f"{input.id}-interceptor"
            input.wait_for_stage = WorkflowUpdateStage.COMPLETED
        return await super().start_workflow_update(input)


async def changed_inputs(client: Client, id: str) -> Any:
    """Inputs changed by an interceptor: fields of the start and of messages."""
    handle = await client.start_workflow("Unknown", "plain", id=id, task_queue="nobody", memo={"own": 1})
    await handle.signal("say", "plain")
    count = await handle.query("nothing")
    update = await handle.start_update("put", "plain", wait_for_stage=WorkflowUpdateStage.ACCEPTED)
    words = await update.result()
    description = await client.get_workflow_handle(f"{id}-more").describe()
    await handle.signal("end")
    events = [each async for each in handle.fetch_history_events()]
    return [
        handle.id == f"{id}-more",
        update.id == f"{handle.id}-interceptor",
        count,
        words,
        description.workflow_type,
        description.task_queue,
        len(events) > 5,
        sorted(await handle.result()),
    ]


@activity.defn
def heartbeats_and_returns_info(number: int) -> list[Any]:
    for each in range(number):
        activity.heartbeat(Order("beat", each))
    info = activity.info()
    return [info.attempt, info.workflow_id, list(info.heartbeat_details)]


@activity.defn
def heartbeats_until_cancelled() -> str:
    try:
        while True:
            activity.heartbeat("alive")
    except CancelledError:
        details = activity.cancellation_details()
        return f"stopped {details is not None and details.timed_out}"


async def activity_environment(client: Client, id: str) -> Any:
    env = ActivityEnvironment()
    heartbeats: list[Any] = []
    env.on_heartbeat = lambda *details: heartbeats.append(details)
    env.info = dataclasses.replace(
        ActivityEnvironment.default_info(), attempt=3, workflow_id="mine", heartbeat_details=[1, "two"]
    )
    found: list[Any] = [
        env.run(heartbeats_and_returns_info, number=2),
        heartbeats == [(Order("beat", 0),), (Order("beat", 1),)],
    ]
    env = ActivityEnvironment()
    env.on_heartbeat = lambda *details: env.cancel(activity.ActivityCancellationDetails(timed_out=True))
    found.append(env.run(heartbeats_until_cancelled))
    env = ActivityEnvironment(client)
    found += [
        await env.run(charge, Order("e", 1)),
        await env.run(Scale(), 4),
        env.info.workflow_id,
        env.info.priority == Priority.default,
    ]

    async def until_shutdown() -> str:
        await activity.wait_for_worker_shutdown()
        return "shut down"

    task = asyncio.create_task(env.run(until_shutdown))
    await asyncio.sleep(0)
    env.worker_shutdown()
    found.append(await task)
    return found


SCENARIOS: dict[str, Callable[[Client, str], Coroutine[Any, Any, Any]]] = {
    "keywords": keywords,
    "renamed": temporalio_names,
    "asked": message_keywords,
    "with_start": update_with_start,
    "changed": changed_inputs,
    "environment": activity_environment,
}
WORKFLOWS: list[Any] = [Keywords, TemporalioNames, Messages, Child]
ACTIVITIES: list[Any] = [charge, add, nothing, Scale(), Billing().bill]
