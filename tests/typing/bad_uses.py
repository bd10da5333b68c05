"""Wrong uses of the API: both checkers must report each line that ends in `# E`, and no other. Never run."""

# The wrong lines assign unused variables: the assignment is what the checkers report.
# ruff: noqa: F841

from __future__ import annotations

from good_uses import Order, charge, checkout, decisions, fetch

from hourglass import AsyncClient, Client, History, Replayer, RetryPolicy, Worker, activity, nexus, workflow
from hourglass.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleCalendarSpec,
    ScheduleIntervalSpec,
    SchedulePolicy,
    ScheduleSpec,
)


class Payments:
    @activity.defn
    def refund(self, order_id: str) -> bool:
        return True


@workflow.defn
class Cart:
    @workflow.run
    def run(self, owner: str, limit: int = 10) -> int:
        return 1

    @workflow.signal
    def add(self, item: str) -> None: ...

    @workflow.query
    def count(self, item: str) -> int:
        return 1

    @workflow.update
    def take(self, item: str) -> bool:
        self.add(3)  # E
        return True

    @take.validator  # E
    def check_take(self, item: int) -> None: ...


def double(number: int) -> int:
    return number * 2


def wrong_activities() -> None:
    charge(3)  # E
    charge()  # E
    charge("o-1", 3, 4)  # E
    charge("o-1", pence=3)  # E
    charge("o-1").upper(1)  # E
    charge.start(3)  # E
    charge.local(3)  # E
    charge.start_local(3)  # E
    charge.options(start_to_clos_timeout=3)  # E
    charge.options(start_to_close_timeout="3s")  # E
    charge.options(retry_policy=3)  # E
    charge.options(event_groups=["g"])  # E
    workflow.create_event_group(3)  # E
    fetch(3)  # E
    number: int = fetch("https://example.com")  # E
    Payments.refund(3)  # E
    Payments().refund(3)  # E
    Payments.refund.start()  # E
    workflow.execute_activity(charge, 3)  # E
    workflow.execute_activity(charge)  # E
    by_name: str = workflow.execute_activity("charge", "o-1", result_type=int)  # E
    workflow.execute_activity(charge, "o-1", start_to_clos_timeout=3)  # E
    workflow.execute_activity(Payments.refund, 3)  # E
    workflow.start_activity(charge, "o-1", 3, 4)  # E
    workflow.execute_local_activity(charge, 3)  # E
    workflow.start_local_activity(charge, 3)  # E


def wrong_definitions() -> None:
    activity.defn(timeout=3)  # E
    activity.defn(executor="fibre")  # E
    workflow.defn(nam="x")  # E
    workflow.defn(failure_exceptions=["ValueError"])  # E
    workflow.signal(nam="x")  # E
    workflow.Channel(3, bool)  # E


def wrong_workflow_calls() -> None:
    workflow.sleep("3s")  # E
    workflow.spawn(double, "3")  # E
    workflow.spawn(double)  # E
    workflow.spawn(3)  # E
    text: str = workflow.spawn(double, 3).result()  # E
    workflow.map(double, ["3"])  # E
    workflow.map(charge, [3])  # E
    workflow.map(double, [3], limit="2")  # E
    workflow.gather(3)  # E
    first: tuple[str, str] = workflow.gather(workflow.spawn(double, 3), charge.start("o-1"))  # E
    workflow.wait([charge.start("o-1")], return_when="SOMETIME")  # E
    workflow.wait_condition(True)  # E
    answer: str = decisions.receive()  # E
    decisions.receive(timeout="3s")  # E
    workflow.info().workflow_idd  # E
    Cart.run.fnn  # E


def wrong_client(client: Client, order: Order) -> None:
    client.start_workflow(checkout, "order")  # E
    client.start_workflow(checkout)  # E
    client.start_workflow(checkout, order, True, 3)  # E
    client.start_workflow(checkout, order, idd="order-1")  # E
    client.start_workflow(checkout, order, id=3)  # E
    client.start_workflow(checkout, order, run_timeout="3s")  # E
    client.execute_workflow(checkout, "order")  # E
    client.start_activity(charge, 3)  # E
    client.execute_activity(charge, "o-1", idd="a")  # E
    number: int = client.execute_workflow(checkout, order)  # E
    client.start_workflow(Cart.run, 3)  # E
    client.start_workflow(Cart.run)  # E
    client.execute_workflow(Cart.run, "ann", "3")  # E
    handle = client.start_workflow(checkout, order)
    result: int = handle.result()  # E
    handle.result("3s")  # E
    handle.signal(Cart.add, 3)  # E
    handle.signal(Cart.add)  # E
    handle.signal(decisions, "yes")  # E
    handle.signal(decisions)  # E
    handle.signal(3)  # E
    handle.query(Cart.count, 3)  # E
    handle.query(Cart.count)  # E
    answer: str = handle.query(Cart.count, "book")  # E
    handle.cancle()  # E
    handle.describe(rpc_limit=3)  # E
    handle.cancel("enough", rpc_metadata=["trace"])  # E
    client.count_workflows(3)  # E
    Client.connect("local:", tls="yes")  # E


async def wrong_async_client(client: AsyncClient, order: Order) -> None:
    await client.start_workflow(checkout, "order")  # E
    number: int = await client.execute_workflow(checkout, order)  # E
    handle = await client.start_workflow(Cart.run, "ann")
    await handle.signal(Cart.add, 3)  # E
    await handle.query(Cart.count)  # E


def wrong_schedules(client: Client, order: Order, schedule: Schedule) -> None:
    ScheduleActionStartWorkflow(checkout, "order")  # E
    ScheduleActionStartWorkflow(checkout)  # E
    ScheduleActionStartWorkflow(checkout, order, True, 3)  # E
    ScheduleActionStartWorkflow(checkout, order, idd="x")  # E
    ScheduleActionStartWorkflow(checkout, order, cron_schedule="@daily")  # E
    ScheduleActionStartWorkflow(Cart.run, 3)  # E
    ScheduleSpec(cron="@daily")  # E
    ScheduleSpec(jitter="3s")  # E
    ScheduleSpec(start_at="tomorrow")  # E
    ScheduleCalendarSpec(hour="9")  # E
    ScheduleIntervalSpec("1h")  # E
    SchedulePolicy(overlap="skip")  # E
    client.create_schedule(schedule)  # E
    client.create_schedule("daily", ScheduleSpec())  # E
    handle = client.create_schedule("daily", schedule)
    handle.update(lambda seen: 3)  # E
    handle.trigger("now")  # E
    handle.backfill(3)  # E
    number: int = handle.describe()  # E


def wrong_options(client: Client) -> None:
    RetryPolicy("3")  # E
    RetryPolicy(maximum_attempts="3")  # E
    RetryPolicy(max_attempts=3)  # E
    Worker("local:")  # E
    Worker(client, workflow=[checkout])  # E
    Worker(client, verify="sometimes")  # E
    Worker(client, watch="loud")  # E
    Worker(client, max_cached_workflows="10")  # E
    Worker(client, workflows=[charge])  # E
    Worker(client, workflows=[checkout, fetch])  # E
    Worker(client, activities=[checkout])  # E
    Worker(client, activities=[charge, Cart.run])  # E
    Worker(client, activities=[Cart.run])  # E
    Worker(client, workflows=[Payments().refund])  # E
    Replayer(workflow=[checkout])  # E
    Replayer(workflows=[charge])  # E
    History.from_file(3)  # E


@workflow.defn
def bad_parent(order: Order) -> None:
    checkout("o-1")  # E
    checkout.start()  # E
    checkout.options(idd="x")  # E
    number: int = checkout(order)  # E
    Cart.run(3)  # E
    child = Cart.run.start("ann")
    child.signal(Cart.add, 3)  # E
    child.signal(decisions, "yes")  # E
    workflow.execute_child_workflow(checkout, "o-1")  # E
    workflow.execute_child_workflow(checkout, order, name="x")  # E
    if order.cents == 1:
        workflow.continue_as_new("o-1", workflow=checkout)  # E
    if order.cents == 2:
        workflow.continue_as_new(order, "yes", workflow=checkout)  # E
    if order.cents == 3:
        workflow.continue_as_new(workflow=checkout)  # E
    if order.cents == 4:
        workflow.continue_as_new(3, workflow=Cart.run)  # E
    if order.cents == 5:
        workflow.continue_as_new(order, workflow=checkout, task_quene="q")  # E
    if order.cents == 6:
        workflow.continue_as_new(order, run_timeout="long")  # E
    if order.cents == 7:
        workflow.continue_as_new(order, workflow=3)  # E


def bad_versions(client: Client) -> None:
    Worker(client, deployment_config="shop.1")  # E
    client.set_current_version("shop")  # E
    client.start_workflow(checkout, Order("o-1", 3), versioning_override="pinned")  # E
    workflow.defn(versioning_behavior="pinned")  # E
    workflow.defn(dynamic="yes")  # E
    activity.defn(dynamic="yes")  # E


def bad_updates(client: Client) -> None:
    cart = client.get_workflow_handle("cart-1", workflow=Cart.run)
    cart.execute_update(Cart.take, 3)  # E
    cart.fork(before="charge")  # E
    cart.execute_update(Cart.take)  # E
    text: str = cart.execute_update(Cart.take, "book")  # E
    cart.start_update(Cart.take, "book", stage=1)  # E
    client.with_start(Cart.run, 3, id="cart-1")  # E
    client.with_start(Cart.run, "ann", id="cart-1").signal(Cart.add, 3)  # E


def bad_facts() -> None:
    workflow.new_random(3)  # E
    workflow.register_random_seed_callback(3)  # E
    workflow.set_signal_handler("x")  # E
    workflow.set_query_handler(lambda: None)  # E
    workflow.continue_as_new(backoff_start_interval="soon")  # E


def bad_steps() -> None:
    def add(left: int, right: int) -> int:
        return left + right

    workflow.step(add, 1)  # E
    workflow.step(add, 1, "2")  # E
    workflow.step(add, 1, 2, heartbeat_timeout=3)  # E
    text: str = workflow.step(add, 1, 2)  # E
    other: int = activity.resource(str)  # E


def bad_activity_facts(client: Client) -> None:
    activity.wait_for_worker_shutdown_sync("soon")  # E
    Worker(client, activity_executor=4)  # E
    client.get_activity_handle(token=b"x").fail(ValueError(), [1])  # E


def bad_nexus(service: nexus.Service, client: Client) -> None:
    @service.operation
    def charge_card(order: str) -> int:
        return len(order)

    calls = workflow.create_nexus_client(service, endpoint="e")
    text: str = calls.execute_operation(charge_card, "o")  # E
    calls.execute_operation(charge_card, "o", start_to_close="5")  # E
    client.set_ramping_version("shop", "june", "5")  # E
    client.get_workflow_handle("w").fast_forward("a day")  # E
    Client.connect("local:", payload_limits=5)  # E
