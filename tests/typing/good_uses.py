"""Correct uses of the API, with the types that both checkers must find. Read by the checkers, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from hourglass import (
    AsyncClient,
    Client,
    History,
    Replayer,
    RetryPolicy,
    Worker,
    WorkflowHandle,
    activity,
    nexus,
    workflow,
)
from hourglass.client import (
    ActivityExecutionHandle,
    ActivityHandle,
    AsyncScheduleHandle,
    AsyncWorkflowHandle,
    AutoUpgradeVersioningOverride,
    PayloadLimitsConfig,
    PinnedVersioningOverride,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleBackfill,
    ScheduleCalendarSpec,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleListDescription,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    TimeSkippingConfig,
    UpdateHandle,
    WorkflowDescription,
    WorkflowExecution,
    WorkflowExecutionCount,
)
from hourglass.converter import ActivitySerializationContext, SearchAttributeKey
from hourglass.errors import ApplicationError
from hourglass.worker import VersioningBehavior, WorkerDeploymentConfig, WorkerDeploymentVersion


@dataclass
class Order:
    id: str
    cents: int


# --- activities -------------------------------------------------------------------------------------------


@activity.defn
def charge(order_id: str, cents: int = 0) -> str:
    return order_id


@activity.defn(start_to_close_timeout=30, retry_policy=RetryPolicy(maximum_attempts=5), name="ship-it")
def ship(item: str) -> int:
    activity.heartbeat(1)
    assert_type(activity.heartbeat_details(int), int | None)
    assert_type(activity.info().attempt, int)
    return 1


@activity.defn
async def fetch(url: str) -> bytes:
    return b""


@activity.defn(heartbeat_timeout=timedelta(seconds=5))
async def fetch_slowly(url: str) -> bytes:
    return b""


class Payments:
    def __init__(self, database: str) -> None:
        self.database = database

    @activity.defn
    def refund(self, order_id: str, cents: int = 0) -> bool:
        return True

    @activity.defn(start_to_close_timeout=timedelta(seconds=3))
    async def audit(self, order_id: str) -> float:
        return 0.5


def use_activities() -> None:
    assert_type(charge("o-1", 500), str)
    assert_type(charge("o-1"), str)
    assert_type(charge(order_id="o-1", cents=500), str)
    assert_type(ship("book"), int)
    assert_type(fetch("https://example.com"), bytes)
    assert_type(fetch_slowly("https://example.com"), bytes)
    assert_type(charge.start("o-1", cents=3), workflow.Task[str])
    assert_type(charge.start("o-1").result(), str)
    assert_type(fetch.start("https://example.com").result(), bytes)
    assert_type(charge.local("o-1"), str)
    assert_type(charge.start_local("o-1", 3), workflow.Task[str])
    assert_type(charge.options(start_to_close_timeout=3, summary="later")("o-1"), str)
    assert_type(charge.options(retry_policy=RetryPolicy()).start("o-1"), workflow.Task[str])
    group = workflow.create_event_group("g", label="a group")
    assert_type(group, workflow.EventGroup)
    with group.scope():
        assert_type(charge.options(event_groups=[group])("o-1"), str)
    assert_type(Payments.refund("o-1", 5), bool)
    assert_type(Payments("db").refund("o-1"), bool)
    assert_type(Payments.refund.start("o-1"), workflow.Task[bool])
    assert_type(Payments.refund.options(task_queue="money")("o-1"), bool)
    assert_type(Payments.audit("o-1"), float)
    assert_type(charge.name, str)


def use_activities_with_options() -> None:
    assert_type(workflow.execute_activity(charge, "o-1", 3), str)
    assert_type(workflow.execute_activity(charge, "o-1", start_to_close_timeout=3), str)
    assert_type(workflow.execute_activity(fetch, "https://example.com", task_queue="io"), bytes)
    assert_type(workflow.execute_activity(Payments.refund, "o-1", 2), bool)
    assert_type(workflow.start_activity(ship, "book", summary="now"), workflow.Task[int])
    assert_type(workflow.execute_local_activity(ship, "book"), int)
    assert_type(workflow.start_local_activity(ship, "book"), workflow.Task[int])
    assert_type(workflow.execute_activity("charge", "o-1", 3, result_type=str, task_queue="go"), str)
    assert_type(workflow.execute_activity("charge", "o-1", result_type=list[Order]), list[Order])
    assert_type(workflow.execute_activity("charge", "o-1"), Any)
    assert_type(workflow.start_activity("charge", "o-1", result_type=int), workflow.Task[int])
    assert_type(workflow.execute_local_activity("charge", "o-1", result_type=int), int)
    assert_type(workflow.start_local_activity("charge", "o-1", result_type=int), workflow.Task[int])
    assert_type(workflow.start_local_activity("charge", "o-1"), workflow.Task[Any])


# --- workflows --------------------------------------------------------------------------------------------

decisions = workflow.Channel("decision", bool)
orders: workflow.Channel[Order] = workflow.Channel("order", Order)


@workflow.defn
def checkout(order: Order, express: bool = False) -> str:
    return charge(order.id, order.cents)


@workflow.defn(name="nothing", failure_exceptions=[ValueError])
def nothing() -> None:
    raise ApplicationError("no", 1, type="No", non_retryable=True)


@workflow.defn
class Cart:
    @workflow.init
    def __init__(self, owner: str, limit: int = 10) -> None:
        self.items: list[str] = []

    @workflow.run
    def run(self, owner: str, limit: int = 10) -> list[str]:
        workflow.wait_condition(lambda: self.items, timeout=timedelta(days=1))
        return self.items

    @workflow.signal
    def add(self, item: str, count: int = 1) -> None:
        self.items.append(item)

    @workflow.signal(name="clear-it")
    def clear(self) -> None:
        self.add("x")
        assert_type(self.count("x"), int)

    @workflow.query
    def count(self, item: str) -> int:
        return self.items.count(item)

    @workflow.query(name="everything", description="all items")
    def all(self) -> list[str]:
        return self.items

    @workflow.update
    def take(self, item: str) -> bool:
        return True

    @take.validator
    def check_take(self, item: str) -> None: ...


@workflow.defn(name="basket")
class Basket:
    @workflow.run
    def run(self) -> int:
        return 1


def double(number: int) -> int:
    return number * 2


@workflow.defn
def many(names: list[str]) -> int:
    tasks = [ship.start(name) for name in names]
    assert_type(workflow.gather(*tasks), list[int])
    assert_type(workflow.gather(ship.start("a"), charge.start("b")), tuple[int, str])
    assert_type(workflow.gather(ship.start("a"), charge.start("b"), fetch.start("c")), tuple[int, str, bytes])
    assert_type(workflow.gather(*tasks, return_exceptions=True), list[int | BaseException])
    task = workflow.spawn(double, 3)
    assert_type(task, workflow.Task[int])
    assert_type(task.result(), int)
    assert_type(task.done(), bool)
    assert_type(workflow.spawn(charge, "o-1", cents=3).result(), str)
    assert_type(workflow.map(double, [1, 2]), list[int])
    assert_type(workflow.map(ship, names, limit=10), list[int])
    done, waiting = workflow.wait(tasks, timeout=5, return_when="FIRST_COMPLETED")
    assert_type(done, list[workflow.Task[int]])
    assert_type(waiting, list[workflow.Task[int]])
    for each in workflow.as_completed(tasks):
        assert_type(each.result(), int)
    return sum(task.result() for task in tasks)


@workflow.defn
def messages() -> None:
    @workflow.signal
    def note(text: str) -> None: ...

    @workflow.query
    def progress() -> float:
        return 0.5

    note("local call")
    assert_type(decisions.receive(timeout=timedelta(days=3)), bool)
    assert_type(decisions.receive_nowait(), bool)
    assert_type(orders.drain(), list[Order])
    workflow.continue_as_new()


@workflow.defn
def facts() -> None:
    assert_type(workflow.now(), datetime)
    assert_type(workflow.time(), float)
    assert_type(workflow.info().workflow_id, str)
    assert_type(workflow.patched("v2"), bool)
    workflow.sleep(3)
    workflow.sleep(timedelta(days=30), summary="a month")
    queue: workflow.Queue[str] = workflow.Queue(3)
    queue.put("x")
    assert_type(queue.get(), str)
    with workflow.Lock(), workflow.Semaphore(3), workflow.timeout(5), workflow.shield():
        ...
    with workflow.scope() as scope:
        scope.cancel()


# --- clients ----------------------------------------------------------------------------------------------


def use_client(client: Client, order: Order) -> None:
    handle = client.start_workflow(checkout, order, id="order-1")
    assert_type(handle, WorkflowHandle[str])
    assert_type(handle.result(), str)
    assert_type(handle.result(timeout=timedelta(seconds=5)), str)
    assert_type(handle.id, str)
    assert_type(handle.run_id, str | None)
    assert_type(client.execute_workflow(checkout, order, True, task_queue="q"), str)
    assert_type(client.execute_activity(charge, "o-1", 5, id="a", fairness_key="acme"), str)
    assert_type(client.start_activity(ship, "book").result(timeout=5), int)
    assert_type(client.get_activity_execution_handle("a", activity=ship).result(), int)
    assert_type(client.get_workflow_handle("w").signal("s", request_id="r"), None)
    assert_type(client.with_rpc_metadata({"a": "b"}), Client)
    client.execute_workflow(nothing, execution_timeout=60, retry_policy=RetryPolicy(maximum_attempts=1))
    assert_type(client.start_workflow("checkout", order, 3, id="x", result_type=str), WorkflowHandle[str])
    assert_type(client.start_workflow("checkout", order), WorkflowHandle[Any])
    assert_type(client.execute_workflow("checkout", order, result_type=Order), Order)
    assert_type(client.execute_workflow("checkout", order), Any)
    assert_type(client.execute_activity("charge", "o-1", result_type=int), int)
    assert_type(client.start_activity("charge", result_type=int), ActivityExecutionHandle[int])
    assert_type(client.get_activity_execution_handle("a", result_type=int), ActivityExecutionHandle[int])
    assert_type(
        client.with_start("checkout", order, result_type=int).execute_update("add", result_type=str), str
    )
    assert_type(client.get_workflow_handle("order-1", workflow=checkout), WorkflowHandle[str])
    assert_type(client.get_workflow_handle("order-1", result_type=int), WorkflowHandle[int])
    assert_type(client.get_workflow_handle("order-1"), WorkflowHandle[Any])
    assert_type(client.list_workflows("WorkflowType = 'checkout'"), Iterator[WorkflowExecution])
    assert_type(client.count_workflows(), WorkflowExecutionCount)
    assert_type(handle.describe(), WorkflowDescription)
    handle.describe(rpc_timeout=3, rpc_metadata={"trace": "a"})
    assert_type(handle.history(), History)
    handle.cancel("enough")
    handle.terminate("now", 1, 2)


def use_class(client: Client) -> None:
    cart = client.start_workflow(Cart.run, "ann", id="cart-1")
    assert_type(cart, WorkflowHandle[list[str]])
    assert_type(cart.result(timeout=3), list[str])
    assert_type(client.get_workflow_handle("cart-1", workflow=Cart.run), WorkflowHandle[list[str]])
    assert_type(client.execute_workflow(Cart.run, "ann", 3), list[str])
    assert_type(client.execute_workflow(Basket.run, id="b"), int)
    cart.signal(Cart.add, "book")
    cart.signal(Cart.add, "book", 2, rpc_timeout=3)
    cart.signal(Cart.clear)
    cart.signal("add", "book", 3)
    cart.signal(decisions, True)
    cart.signal(orders, Order("o-1", 5))
    assert_type(cart.query(Cart.count, "book"), int)
    assert_type(cart.query(Cart.all), list[str])
    assert_type(cart.query("count", "book", result_type=int), int)
    assert_type(cart.query("count", "book"), Any)
    assert_type(cart.execute_update("add", "book", result_type=int), int)
    assert_type(cart.start_update("add", "book", result_type=int), UpdateHandle[int])
    assert_type(cart.get_update_handle("u-1", result_type=int), UpdateHandle[int])
    assert_type(cart.get_update_handle("u-1"), UpdateHandle[Any])


async def use_async_client(client: AsyncClient, order: Order) -> None:
    assert_type(await client.execute_workflow("checkout", order, result_type=int), int)
    assert_type(await client.start_workflow("checkout", result_type=int), AsyncWorkflowHandle[int])
    assert_type(await client.execute_activity("charge", "o-1", result_type=int), int)
    assert_type(await client.get_workflow_handle("x").query("count", result_type=int), int)
    handle = await client.start_workflow(checkout, order, id="order-1")
    assert_type(handle, AsyncWorkflowHandle[str])
    assert_type(await handle.result(), str)
    assert_type(await client.execute_workflow(Cart.run, "ann"), list[str])
    assert_type(client.list_workflows(), AsyncIterator[WorkflowExecution])
    async for execution in client.list_workflows():
        assert_type(execution, WorkflowExecution)
    await handle.signal(Cart.add, "book")
    await handle.signal(decisions, False)
    assert_type(await handle.query(Cart.count, "book"), int)
    assert_type(await handle.history(), History)


REGION = SearchAttributeKey.for_keyword("Region")


def use_schedules(client: Client, order: Order, when: datetime) -> None:
    spec = ScheduleSpec(
        cron_expressions=["0 9 * * MON-FRI"],
        calendars=[ScheduleCalendarSpec(hour=9, minute=(0, 30), day_of_week=ScheduleRange(1, 5))],
        intervals=[ScheduleIntervalSpec(timedelta(hours=1), 5)],
        jitter=2.5,
        start_at=when,
        time_zone_name="Europe/Berlin",
    )
    action = ScheduleActionStartWorkflow(checkout, order, True, id="checkout", run_timeout=60)
    ScheduleActionStartWorkflow(Cart.run, "ann", task_queue="q")
    ScheduleActionStartWorkflow("by-name", 1, 2, 3, retry_policy=RetryPolicy())
    schedule = Schedule(action, spec, SchedulePolicy(overlap=ScheduleOverlapPolicy.BUFFER_ONE))
    handle = client.create_schedule("daily", schedule, trigger_immediately=True, memo={"a": 1})
    assert_type(handle, ScheduleHandle)
    assert_type(client.get_schedule_handle("daily"), ScheduleHandle)
    assert_type(handle.describe(), ScheduleDescription)
    assert_type(handle.describe().info.next_action_times, tuple[datetime, ...])
    assert_type(client.list_schedules(), Iterator[ScheduleListDescription])
    handle.update(lambda seen: replace(seen.schedule, spec=spec))
    handle.update(lambda seen: None)
    handle.pause("enough")
    handle.unpause()
    handle.trigger(overlap=ScheduleOverlapPolicy.ALLOW_ALL)
    handle.backfill(ScheduleBackfill(start_at=when, end_at=when), rpc_timeout=3)
    handle.delete()


async def use_async_schedules(client: AsyncClient, schedule: Schedule) -> None:
    handle = await client.create_schedule("daily", schedule)
    assert_type(handle, AsyncScheduleHandle)
    assert_type(await handle.describe(), ScheduleDescription)
    assert_type(client.list_schedules("", page_size=5), AsyncIterator[ScheduleListDescription])
    await handle.update(lambda seen: seen.schedule)


def use_worker() -> None:
    with (
        Client.connect("local:") as client,
        Worker(
            client,
            workflows=[checkout, Cart, nothing],
            activities=[charge, fetch, Payments("db").refund, Payments("db")],
            modules=["app"],
            verify="always",
            watch="error",
            graceful_shutdown_timeout=timedelta(seconds=3),
        ) as worker,
    ):
        assert_type(worker, Worker)
        assert_type(worker.task_queue, str)
    Worker(client, "q", workflows=[checkout], verify=0.1, max_cached_workflows=10).run()
    all_workflows, all_activities = [checkout, nothing, Cart], [charge, fetch, Payments("db")]
    Worker(client, workflows=all_workflows, activities=all_activities).run()
    Worker(client, workflows=[Cart.run], activities=(charge, Payments("db").refund)).run()


def use_replay() -> None:
    Replayer(workflows=[checkout, Cart]).replay(History.from_file("order-1.json"))


def use_the_functions_themselves(order: Order) -> None:
    assert_type(checkout.fn(order), str)
    tools: dict[str, Callable[..., str]] = {"charge": charge}
    tools["charge"]("o-1")


@workflow.defn
def parent(order: Order) -> str:
    assert_type(checkout(order), str)
    assert_type(checkout.start(order), workflow.ChildWorkflowHandle[str])
    assert_type(checkout.options(id="c", run_timeout=timedelta(hours=1))(order), str)
    assert_type(Cart.run("ann"), list[str])
    child = Cart.run.options(parent_close_policy=workflow.ParentClosePolicy.ABANDON).start("ann", 3)
    assert_type(child, workflow.ChildWorkflowHandle[list[str]])
    child.signal(Cart.add, "book", 2)
    child.signal(decisions, True)
    assert_type(child.result(), list[str])
    assert_type(workflow.gather(checkout.start(order), charge.start("o-1")), tuple[str, str])
    assert_type(workflow.execute_child_workflow(checkout, order, id="x"), str)
    assert_type(workflow.execute_child_workflow("other", 1, result_type=int), int)
    assert_type(workflow.execute_child_workflow("other", 1), Any)
    assert_type(workflow.start_child_workflow("other", 1, result_type=int), workflow.ChildWorkflowHandle[int])
    other = workflow.get_external_workflow_handle("cart-2")
    other.signal(Cart.clear)
    other.cancel("enough")
    assert_type(workflow.memo_value("a", type=int), int)
    workflow.upsert_search_attributes([REGION.value_set("eu"), REGION.value_unset()])
    if order.cents > 10:
        workflow.continue_as_new("ann", 3, workflow=Cart.run)
    if order.cents > 9:
        workflow.continue_as_new("ann", workflow=Cart, task_queue="carts")
    if order.cents > 8:
        workflow.continue_as_new("ann", workflow="Cart", run_timeout=timedelta(days=1))
    workflow.continue_as_new(order, workflow=checkout, memo={"a": 1})


def use_updates(client: Client) -> None:
    cart = client.get_workflow_handle("cart-1", workflow=Cart.run)
    assert_type(cart.execute_update(Cart.take, "book"), bool)
    assert_type(cart.start_update(Cart.take, "book", id="u-1"), UpdateHandle[bool])
    assert_type(cart.start_update(Cart.take, "book").result(timeout=1), bool)
    assert_type(cart.reset(before=charge), WorkflowHandle[list[str]])
    assert_type(cart.fork(before=charge, id="another"), WorkflowHandle[list[str]])
    cart.pause("why")
    cart.unpause()
    cart.delete()
    planned = client.with_start(Cart.run, "ann", id="cart-1")
    assert_type(planned.execute_update(Cart.take, "book"), bool)
    assert_type(planned.signal(Cart.add, "book"), WorkflowHandle[list[str]])
    assert_type(planned.handle, WorkflowHandle[list[str]])


@workflow.defn(dynamic=True, versioning_behavior=workflow.VersioningBehavior.PINNED)
def any_flow(arguments: Sequence[workflow.RawPayload]) -> str:
    assert_type(arguments[0].decode(int), int)
    assert_type(arguments[0].decode(), Any)
    assert_type(workflow.info().get_current_deployment_version(), WorkerDeploymentVersion | None)
    return workflow.info().get_current_build_id()


@activity.defn(dynamic=True)
async def any_step(arguments: Sequence[activity.RawPayload]) -> list[Any]:
    return [each.decode() for each in arguments]


def use_versions(client: Client) -> None:
    version = WorkerDeploymentVersion("shop", "2")
    config = WorkerDeploymentConfig(version, default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
    Worker(client, workflows=[any_flow], activities=[any_step], deployment_config=config)
    assert_type(
        client.set_current_version("shop", "2", wait=timedelta(seconds=5)), WorkerDeploymentVersion | None
    )
    client.set_current_version("shop", None)
    assert_type(client.describe_deployment("shop").current, WorkerDeploymentVersion | None)
    client.start_workflow("x", versioning_override=PinnedVersioningOverride(version))
    client.start_workflow("x", versioning_override=AutoUpgradeVersioningOverride())


def use_facts(client: Client) -> None:
    assert_type(workflow.uuid7(), UUID)
    assert_type(workflow.new_random("x").random(), float)
    assert_type(workflow.random_seed(), int)
    assert_type(workflow.is_failure_exception(ValueError()), bool)
    assert_type(workflow.cancellation_reason(), str | None)
    workflow.register_random_seed_callback(lambda seed: None)
    workflow.set_signal_handler("x", lambda: None)
    workflow.set_update_handler("x", print, validator=print)
    assert_type(workflow.get_query_handler("x"), Callable[..., Any] | None)
    workflow.continue_as_new(backoff_start_interval=timedelta(minutes=1))


async def use_activity_facts(client: Client) -> None:
    assert_type(activity.cancellation_details(), activity.CancellationDetails | None)
    assert_type(activity.is_worker_shutdown(), bool)
    assert_type(activity.wait_for_worker_shutdown_sync(timedelta(seconds=1)), bool)
    await activity.wait_for_worker_shutdown()
    Worker(client, activity_executor=ThreadPoolExecutor(2), max_heartbeat_throttle_interval=1)
    client.get_activity_handle(token=b"x").fail(ValueError(), last_heartbeat_details=[1])


async def use_async_updates(client: AsyncClient) -> None:
    cart = client.get_workflow_handle("cart-1", workflow=Cart.run)
    assert_type(await cart.execute_update(Cart.take, "book"), bool)
    update = await cart.start_update(Cart.take, "book")
    assert_type(await update.result(), bool)
    planned = client.with_start(Cart.run, "ann", id="cart-1")
    assert_type(await planned.execute_update(Cart.take, "book"), bool)


def use_steps() -> None:
    def add(left: int, right: int) -> int:
        return left + right

    async def fetch(url: str) -> bytes:
        return url.encode()

    assert_type(workflow.step(add, 1, 2, start_to_close_timeout=3), int)
    assert_type(workflow.step(fetch, "x", name="get"), bytes)
    assert_type(workflow.start_step(add, 1, 2).result(), int)
    assert_type(workflow.step(lambda: "x", name="letter"), str)
    assert_type(activity.resource(UUID), UUID)


payments = nexus.Service("payments")


@payments.operation
def charge_card(order: str) -> int:
    return len(order)


@payments.operation
async def charge_soon(order: str) -> int:
    return len(order)


@payments.operation
def deliver(order: str) -> nexus.OperationHandle[int]:
    return nexus.start_workflow(lasts, order, id=order)


@payments.operation(name="deliver-later")
async def deliver_later(order: str) -> nexus.OperationHandle[bytes]:
    return nexus.start_workflow("other", order, result_type=bytes)


@deliver.on_cancel
def stop(handle: nexus.OperationHandle[int]) -> None: ...


@workflow.defn
def lasts(order: str) -> int:
    client = workflow.create_nexus_client(payments, endpoint="payments")
    assert_type(client.execute_operation(charge_card, order), int)
    assert_type(client.execute_operation(charge_soon, order, start_to_close_timeout=5), int)
    assert_type(client.execute_operation(deliver, order), int)
    assert_type(client.start_operation(deliver_later, order).result(), bytes)
    assert_type(charge_card(order), int)
    assert_type(deliver(order), nexus.OperationHandle[int])
    return 5


def use_versions_and_time(client: Client) -> None:
    assert_type(client.set_ramping_version("shop", "june", 5), WorkerDeploymentVersion | None)
    assert_type(client.update_options_of_workflows("", versioning_override=None).done, int)
    assert_type(client.get_workflow_handle("w").fast_forward(timedelta(days=1)), bool)
    client.start_workflow(lasts, "o", time_skipping=TimeSkippingConfig())
    context = ActivitySerializationContext("default", "a-1")
    assert_type(client.get_activity_handle(token=b"x").with_context(context), ActivityHandle)
    Client.connect("local:", payload_limits=PayloadLimitsConfig(payloads_warn_size=5))
