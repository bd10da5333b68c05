"""The features of temporalio's public samples, in a few lines each, written for temporalio.

`SCENARIOS` are programs: each gets a client whose worker runs everything here, and returns what it saw. The tests run them
under temporalio itself and, with the imports changed and nothing else, here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
    WorkflowUpdateStage,
)
from temporalio.common import RawValue, RetryPolicy, WorkflowIDConflictPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType, ParentClosePolicy

QUEUE = "samples"
SHORT = timedelta(seconds=20)


@dataclass
class Greeting:
    word: str
    name: str


attempts: dict[str, int] = {}


@activity.defn
def compose(greeting: Greeting) -> str:
    return f"{greeting.word}, {greeting.name}!"


@activity.defn(name="compose-slowly")
async def compose_async(word: str, name: str) -> str:
    await asyncio.sleep(0)
    return f"{word} {name}"


@activity.defn
async def fail_at_first(key: str) -> int:
    attempts[key] = attempts.get(key, 0) + 1
    if activity.info().attempt < 3:
        raise RuntimeError("not yet")
    return activity.info().attempt


@activity.defn
async def refuse(name: str) -> str:
    raise ApplicationError("no such name", name, type="NoSuchName", non_retryable=True)


@activity.defn
async def wait_for_ever() -> str:
    while True:
        activity.heartbeat("alive")
        await asyncio.sleep(0.1)


tokens: dict[str, bytes] = {}


@activity.defn
async def ask_elsewhere(question: str) -> str:
    tokens[question] = activity.info().task_token
    activity.raise_complete_async()


class Billing:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    @activity.defn
    async def bill(self, order: str) -> str:
        return f"{self.prefix}-{order}"


@activity.defn(dynamic=True)
async def anything(args: Sequence[RawValue]) -> str:
    first, second = activity.payload_converter().from_payloads([each.payload for each in args], [int, int])
    return f"{activity.info().activity_type} of {first + second}"


# --- hello: activities ------------------------------------------------------------------------------------------------


@workflow.defn
class GreetingWorkflow:
    @workflow.run
    async def run(self, name: str) -> list[str]:
        one = await workflow.execute_activity(compose, Greeting("Hello", name), start_to_close_timeout=SHORT)
        two = await workflow.execute_activity(compose_async, args=["Hi", name], start_to_close_timeout=SHORT)
        three = await workflow.execute_activity_method(Billing.bill, name, start_to_close_timeout=SHORT)
        four = await workflow.execute_local_activity(
            compose, Greeting("Local", name), start_to_close_timeout=SHORT
        )
        five = await workflow.execute_activity(
            "compose-slowly", args=["By name", name], start_to_close_timeout=SHORT
        )
        return [one, two, three, four, five]


@workflow.defn
class ParallelWorkflow:
    @workflow.run
    async def run(self, names: list[str]) -> list[str]:
        return sorted(
            await asyncio.gather(
                *[
                    workflow.execute_activity(compose, Greeting("Hello", name), start_to_close_timeout=SHORT)
                    for name in names
                ]
            )
        )


@workflow.defn
class RetryWorkflow:
    @workflow.run
    async def run(self, key: str) -> int:
        return await workflow.execute_activity(
            fail_at_first,
            key,
            start_to_close_timeout=SHORT,
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=10), backoff_coefficient=1.0),
        )


@workflow.defn
class ExceptionWorkflow:
    @workflow.run
    async def run(self, name: str) -> str:
        try:
            await workflow.execute_local_activity(refuse, name, start_to_close_timeout=SHORT)
        except ApplicationError as error:  # a local activity's comes out itself
            name = f"{name}, who is {error.type}"
        try:
            return await workflow.execute_activity(refuse, name, start_to_close_timeout=SHORT)
        except ActivityError as error:
            if not isinstance(error.cause, ApplicationError):
                raise
            raise ApplicationError(
                f"greeting failed: {error.cause.message} for {error.cause.details[0]}", type=error.cause.type
            ) from error


@workflow.defn
class CompletionWorkflow:
    @workflow.run
    async def run(self, question: str) -> str:
        return await workflow.execute_activity(ask_elsewhere, question, start_to_close_timeout=SHORT)


@workflow.defn
class CancellationWorkflow:
    @workflow.run
    async def run(self) -> str:
        try:
            return await workflow.execute_activity(
                wait_for_ever,
                start_to_close_timeout=timedelta(seconds=1000),
                heartbeat_timeout=timedelta(seconds=1),
                cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                await workflow.execute_activity(compose, Greeting("Bye", "all"), start_to_close_timeout=SHORT)
            raise


@workflow.defn(dynamic=True)
class AnyWorkflow:
    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> str:
        convert = workflow.payload_converter()
        number = convert.from_payload(args[0].payload, int)
        raised = RawValue(convert.to_payload(number + 1))
        told = await workflow.execute_activity(
            "something", args=[args[0], raised], start_to_close_timeout=SHORT
        )
        return f"{workflow.info().workflow_type} with {convert.from_payload(args[1].payload)}: {told}"


# --- children, continue as new, patching ------------------------------------------------------------------------------


@workflow.defn
class ChildWorkflow:
    def __init__(self) -> None:
        self.stopped = False

    @workflow.run
    async def run(self, name: str) -> str:
        if name == "wait":
            await workflow.wait_condition(lambda: self.stopped)
        return f"child of {name}"

    @workflow.signal
    def stop(self) -> None:
        self.stopped = True


@workflow.defn
class ParentWorkflow:
    @workflow.run
    async def run(self, name: str) -> list[str]:
        me = workflow.info().workflow_id
        first = await workflow.execute_child_workflow(ChildWorkflow.run, name, id=f"{me}-1")
        second = await workflow.start_child_workflow(
            ChildWorkflow.run, "wait", id=f"{me}-2", parent_close_policy=ParentClosePolicy.ABANDON
        )
        await second.signal(ChildWorkflow.stop)
        third = await workflow.start_child_workflow(ChildWorkflow.run, "wait", id=f"{me}-3")
        await workflow.get_external_workflow_handle_for(ChildWorkflow.run, f"{me}-3").signal(
            ChildWorkflow.stop
        )
        fourth = await workflow.start_child_workflow(ChildWorkflow.run, "wait", id=f"{me}-4")
        fourth.cancel()
        ended = "not cancelled"
        try:
            await fourth
        except Exception as error:
            if is_cancelled_exception(error):
                ended = "cancelled"
        return [first, await second, await third, ended]


@workflow.defn
class LoopingWorkflow:
    @workflow.run
    async def run(self, count: int) -> int:
        if count < 3:
            workflow.continue_as_new(count + 1)
        return count


@workflow.defn
class PatchedWorkflow:
    @workflow.run
    async def run(self) -> str:
        if workflow.patched("louder"):
            workflow.deprecate_patch("older")
            return await workflow.execute_activity(
                compose, Greeting("HELLO", "you"), start_to_close_timeout=SHORT
            )
        return "quiet"


# --- messages ---------------------------------------------------------------------------------------------------------


@workflow.defn
class SignalWorkflow:
    def __init__(self) -> None:
        self.names: asyncio.Queue[str] = asyncio.Queue()
        self.over = False

    @workflow.run
    async def run(self) -> list[str]:
        greetings = []
        while True:
            await workflow.wait_condition(lambda: not self.names.empty() or self.over)
            while not self.names.empty():
                greetings.append(f"Hello, {self.names.get_nowait()}")
            if self.over:
                return greetings

    @workflow.signal
    async def add(self, name: str) -> None:
        await self.names.put(name)

    @workflow.signal
    def finish(self) -> None:
        self.over = True

    @workflow.query
    def waiting(self) -> int:
        return self.names.qsize()


@dataclass
class ClusterState:
    started: bool = False
    over: bool = False
    nodes: dict[str, str | None] = field(default_factory=dict)


@workflow.defn
class ClusterWorkflow:
    @workflow.init
    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.lock = asyncio.Lock()

    @workflow.run
    async def run(self, state: ClusterState) -> list[str]:
        await workflow.wait_condition(lambda: self.state.started)
        try:
            await workflow.wait_condition(lambda: self.state.over, timeout=timedelta(hours=1))
        except TimeoutError:
            pass
        if workflow.info().is_continue_as_new_suggested():
            workflow.continue_as_new(self.state)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return sorted(f"{node}={job}" for node, job in self.state.nodes.items())

    @workflow.signal
    async def start(self) -> None:
        self.state.nodes = {str(number): None for number in range(4)}
        self.state.started = True

    @workflow.signal
    async def stop(self) -> None:
        await workflow.wait_condition(lambda: self.state.started)
        self.state.over = True

    @workflow.update
    async def assign(self, job: str, count: int) -> list[str]:
        await workflow.wait_condition(lambda: self.state.started)
        async with self.lock:
            free = [node for node, owner in self.state.nodes.items() if owner is None][:count]
            if len(free) < count:
                raise ApplicationError(f"there are only {len(free)} nodes")
            await workflow.execute_activity(compose, Greeting(job, str(count)), start_to_close_timeout=SHORT)
            for node in free:
                self.state.nodes[node] = job
            return free

    @assign.validator
    def check(self, job: str, count: int) -> None:
        if count <= 0:
            raise ValueError("at least one node")

    @workflow.query
    def owner(self, node: str) -> str | None:
        return self.state.nodes.get(node)


@workflow.defn
class CartWorkflow:
    def __init__(self) -> None:
        self.items: list[str] = []
        self.paid = False
        workflow.set_query_handler("size", lambda: len(self.items))

    @workflow.run
    async def run(self) -> list[str]:
        await workflow.wait_condition(lambda: self.paid and workflow.all_handlers_finished())
        return self.items

    @workflow.update
    def add(self, item: str) -> int:
        self.items.append(item)
        return len(self.items)

    @workflow.signal(name="pay-now")
    def pay(self) -> None:
        self.paid = True


# --- polling, timers --------------------------------------------------------------------------------------------------


@workflow.defn
class PollingWorkflow:
    @workflow.run
    async def run(self, key: str, rounds: int) -> str:
        for _ in range(3):
            try:
                found = await workflow.execute_activity(
                    fail_at_first,
                    key,
                    start_to_close_timeout=SHORT,
                    retry_policy=RetryPolicy(maximum_attempts=1),
                )
                return f"found after {found}"
            except ActivityError:
                workflow.logger.info("not there yet")
            await asyncio.sleep(0.01)
        if rounds:
            workflow.continue_as_new(args=[key, rounds - 1])
        return "gave up"


@workflow.defn
class SleepForDaysWorkflow:
    def __init__(self) -> None:
        self.done = False
        self.sent = 0

    @workflow.run
    async def run(self, days: int) -> int:
        while not self.done:
            await workflow.execute_activity(
                compose, Greeting("Mail", str(self.sent)), start_to_close_timeout=SHORT
            )
            self.sent += 1
            waits = [
                asyncio.create_task(workflow.sleep(timedelta(days=days), summary="until the next mail")),
                asyncio.create_task(workflow.wait_condition(lambda: self.done)),
            ]
            _, pending = await workflow.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in pending:
                each.cancel()
        return self.sent

    @workflow.update
    async def first_mail(self) -> None:
        await workflow.wait_condition(lambda: self.sent > 0)

    @workflow.signal
    def complete(self) -> None:
        self.done = True


class UpdatableTimer:
    def __init__(self, until: datetime) -> None:
        self.until = until
        self.changed = False

    async def sleep(self) -> None:
        while self.until > workflow.now():
            self.changed = False
            try:
                await workflow.wait_condition(lambda: self.changed, timeout=self.until - workflow.now())
            except TimeoutError:
                continue

    def update(self, until: datetime) -> None:
        self.until = until
        self.changed = True


@workflow.defn
class UpdatableTimerWorkflow:
    def __init__(self) -> None:
        self.timer = UpdatableTimer(workflow.now() + timedelta(days=1))

    @workflow.run
    async def run(self) -> str:
        await self.timer.sleep()
        return "rung"

    @workflow.signal
    async def ring_in(self, seconds: float) -> None:
        self.timer.update(workflow.now() + timedelta(seconds=seconds))

    @workflow.query
    def left(self) -> bool:
        return self.timer.until > workflow.now()


# --- programs ---------------------------------------------------------------------------------------------------------


async def greet(client: Client) -> Any:
    """Port the hello samples of plain, async, chosen, method, local and named activities."""
    return await client.execute_workflow(GreetingWorkflow.run, "World", id="hello", task_queue=QUEUE)


async def parallel(client: Client) -> Any:
    """Port the hello sample of parallel activities."""
    return await client.execute_workflow(
        ParallelWorkflow.run, ["a", "b", "c"], id="parallel", task_queue=QUEUE
    )


async def retry(client: Client) -> Any:
    """Port the hello sample of activity retries."""
    return await client.execute_workflow(RetryWorkflow.run, "retry", id="retry", task_queue=QUEUE)


async def exception(client: Client) -> Any:
    """Port the hello sample of exceptions."""
    try:
        await client.execute_workflow(ExceptionWorkflow.run, "Nobody", id="exception", task_queue=QUEUE)
    except WorkflowFailureError as error:
        return [getattr(error.cause, "message", None), getattr(error.cause, "type", None)]


async def cancellation(client: Client) -> Any:
    """Port the hello samples of cancellation and heartbeats."""
    handle = await client.start_workflow(CancellationWorkflow.run, id="cancellation", task_queue=QUEUE)
    while (await handle.describe()).history_length < 5:  # noqa: ASYNC110 - a server tells of nothing
        await asyncio.sleep(0.02)
    await handle.cancel()
    try:
        await handle.result()
    except WorkflowFailureError as error:
        return isinstance(error.cause, CancelledError)


async def completion(client: Client) -> Any:
    """Port the hello sample of an activity that another process completes."""
    tokens.clear()  # those of other engines
    handle = await client.start_workflow(CompletionWorkflow.run, "why", id="completion", task_queue=QUEUE)
    while "why" not in tokens:  # noqa: ASYNC110 - set in another thread
        await asyncio.sleep(0.02)
    await client.get_async_activity_handle(task_token=tokens["why"]).complete("because")
    return await handle.result()


async def dynamic(client: Client) -> Any:
    """Port the sample of dynamic workflows and activities."""
    return await client.execute_workflow("Whatever", args=[1, "two"], id="dynamic", task_queue=QUEUE)


async def family(client: Client) -> Any:
    """Port the hello samples of child workflows, and cancel and signal them."""
    return await client.execute_workflow(ParentWorkflow.run, "me", id="family", task_queue=QUEUE)


async def looping(client: Client) -> Any:
    """Port the hello sample of continue-as-new."""
    return await client.execute_workflow(LoopingWorkflow.run, 0, id="looping", task_queue=QUEUE)


async def patching(client: Client) -> Any:
    """Port the sample of patching."""
    return await client.execute_workflow(PatchedWorkflow.run, id="patching", task_queue=QUEUE)


async def signals(client: Client) -> Any:
    """Port the hello samples of signals and queries."""
    handle = await client.start_workflow(
        SignalWorkflow.run, id="signals", task_queue=QUEUE, start_signal="add", start_signal_args=["first"]
    )
    await handle.signal(SignalWorkflow.add, "second")
    waiting = await handle.query(SignalWorkflow.waiting)
    await handle.signal(SignalWorkflow.finish)
    return [waiting, await handle.result()]


async def cluster(client: Client) -> Any:
    """Port the message passing samples of safe handlers, validators, unfinished handlers and init."""
    handle = await client.start_workflow(ClusterWorkflow.run, ClusterState(), id="cluster", task_queue=QUEUE)
    early = await handle.start_update(
        ClusterWorkflow.assign, args=["first", 3], wait_for_stage=WorkflowUpdateStage.ACCEPTED
    )
    await handle.signal(ClusterWorkflow.start)
    seen: list[Any] = [await early.result()]
    for job, count in (("second", 2), ("third", 0), ("fourth", 1)):
        try:
            seen.append(await handle.execute_update(ClusterWorkflow.assign, args=[job, count]))
        except WorkflowUpdateFailedError as error:
            seen.append(str(getattr(error.cause, "message", "")))
    seen.append(await handle.query(ClusterWorkflow.owner, "0"))
    await handle.signal(ClusterWorkflow.stop)
    return [*seen, await handle.result()]


async def cart(client: Client) -> Any:
    """Port the message passing samples of update-with-start and of handlers set by the body."""
    sizes = []
    for item in ("lamp", "desk"):
        start = WithStartWorkflowOperation(
            CartWorkflow.run,
            id="cart",
            task_queue=QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        sizes.append(
            await client.execute_update_with_start_workflow(
                CartWorkflow.add, item, start_workflow_operation=start
            )
        )
        handle = await start.workflow_handle()
    sizes.append(await handle.query("size"))
    await client.get_workflow_handle("cart").signal("pay-now")
    return [*sizes, await handle.result()]


async def polling(client: Client) -> Any:
    """Port the polling samples: frequent (a loop in an activity), infrequent (a retry policy) and periodic."""
    return await client.execute_workflow(
        PollingWorkflow.run, args=["poll", 1], id="polling", task_queue=QUEUE
    )


async def days(client: Client) -> Any:
    """Port the sample of a sleep for days."""
    handle = await client.start_workflow(SleepForDaysWorkflow.run, 30, id="days", task_queue=QUEUE)
    await handle.execute_update(SleepForDaysWorkflow.first_mail)
    await handle.signal(SleepForDaysWorkflow.complete)
    return await handle.result()


async def timer(client: Client) -> Any:
    """Port the sample of an updatable timer."""
    handle = await client.start_workflow(UpdatableTimerWorkflow.run, id="timer", task_queue=QUEUE)
    left = await handle.query(UpdatableTimerWorkflow.left)
    await handle.signal(UpdatableTimerWorkflow.ring_in, 0.2)
    return [left, await handle.result()]


# --- activities that are classes, and without a workflow ----------------------------------------------------------------


@activity.defn(name="scale")
class Scale:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    async def __call__(self, number: int) -> int:
        return self.factor * number


@workflow.defn
class Scales:
    @workflow.run
    async def run(self, number: int) -> list[int]:
        return [
            await workflow.execute_activity_class(Scale, number, start_to_close_timeout=SHORT),
            await workflow.execute_local_activity_class(Scale, number + 1, start_to_close_timeout=SHORT),
        ]


async def alone(client: Client) -> list[Any]:
    """Calls with limits of their own, events as they are written, an activity that no workflow asked for."""
    handle = await client.start_workflow(
        Scales.run, 3, id="scales", task_queue=QUEUE, rpc_timeout=SHORT, rpc_metadata={"trace": "a"}
    )
    events = [each async for each in handle.fetch_history_events(wait_new_event=True, page_size=2)]
    started = await client.start_activity_class(
        Scale, 5, id="alone", task_queue=QUEUE, start_to_close_timeout=SHORT, rpc_timeout=SHORT
    )
    result = await started.result()
    seen = await started.describe(rpc_timeout=SHORT)
    again = client.get_activity_handle("alone", run_id=started.run_id)
    return [
        await handle.result(),
        len(events) == len((await handle.fetch_history(rpc_timeout=SHORT)).events),
        result,
        await again.result(),
        [seen.activity_type, seen.status.name, seen.attempt],
        await client.execute_activity("scale", 6, id="named", task_queue=QUEUE, start_to_close_timeout=SHORT),
    ]


SCENARIOS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    each.__name__: each
    for each in (
        alone,
        greet,
        parallel,
        retry,
        exception,
        cancellation,
        completion,
        dynamic,
        family,
        looping,
        patching,
        signals,
        cluster,
        cart,
        polling,
        days,
        timer,
    )
}

WORKFLOWS: list[Any] = [
    Scales,
    GreetingWorkflow,
    ParallelWorkflow,
    RetryWorkflow,
    ExceptionWorkflow,
    CancellationWorkflow,
    CompletionWorkflow,
    AnyWorkflow,
    ChildWorkflow,
    ParentWorkflow,
    LoopingWorkflow,
    PatchedWorkflow,
    SignalWorkflow,
    ClusterWorkflow,
    CartWorkflow,
    PollingWorkflow,
    SleepForDaysWorkflow,
    UpdatableTimerWorkflow,
]
ACTIVITIES: list[Any] = [
    Scale(3),
    compose,
    compose_async,
    fail_at_first,
    refuse,
    wait_for_ever,
    ask_elsewhere,
    Billing("B").bill,
    anything,
]
