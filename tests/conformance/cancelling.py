"""Cancellation during every kind of wait, cleanup after it, scopes, shields and timeout blocks."""

from __future__ import annotations

from typing import Any

from hourglass import activity, workflow
from hourglass.errors import ActivityError, Cancelled, CancelledError, TaskCancelledError

from . import activities
from .scenario import returns, scenario
from .world import World, event_types

Kind = workflow.ActivityCancellationType


@workflow.defn
def waits_until_cancelled(how: str) -> str:
    """Waits in one of many ways; records a refund when it is cancelled."""
    try:
        wait_forever(how)
    finally:
        activities.record_call("refund")
    return "never"


def wait_forever(how: str) -> None:
    channel = workflow.Channel("nothing", str)
    match how:
        case "sleep":
            workflow.sleep(3600)
        case "activity":
            activities.opens_gate_and_waits_for_go("begun")
        case "wait_condition":
            workflow.wait_condition(lambda: False)
        case "wait_condition_with_timeout":
            workflow.wait_condition(lambda: False, timeout=3600)
        case "channel_receive":
            channel.receive()
        case "channel_receive_with_timeout":
            channel.receive(timeout=3600)
        case "gather":
            workflow.gather(workflow.spawn(workflow.sleep, 3600), workflow.spawn(workflow.sleep, 7200))
        case "task_result":
            workflow.spawn(workflow.sleep, 3600).result()
        case "wait":
            workflow.wait([workflow.spawn(workflow.sleep, 3600)], timeout=7200)
        case "as_completed":
            next(iter(workflow.as_completed([workflow.spawn(workflow.sleep, 3600)])))
        case "map":
            workflow.map(lambda seconds: workflow.sleep(seconds), [3600, 3600], limit=1)
        case "lock_acquire":
            lock = workflow.Lock()
            lock.acquire()
            lock.acquire()


def check_cancellation_while_waiting(world: World, how: str) -> None:
    handle = world.start_waiting(waits_until_cancelled, how)
    handle.cancel("enough")
    assert isinstance(world.failure(handle), CancelledError)
    assert activities.state.calls == ["refund"]
    types = event_types(handle.history())
    assert types.index("WORKFLOW_EXECUTION_CANCEL_REQUESTED") < types.index("ACTIVITY_TASK_COMPLETED")
    assert types[-1] == "WORKFLOW_EXECUTION_CANCELED"


def register_cancellation_of(wait: str) -> None:
    """Register the scenario in which a run is cancelled during this wait."""

    def drive(world: World) -> None:
        check_cancellation_while_waiting(world, wait)

    drive.__name__ = f"cancellation_interrupts_{wait}"
    scenario()(drive)


for _wait in (
    "sleep",
    "wait_condition",
    "wait_condition_with_timeout",
    "channel_receive",
    "channel_receive_with_timeout",
    "gather",
    "task_result",
    "wait",
    "as_completed",
    "map",
    "lock_acquire",
):
    register_cancellation_of(_wait)


@scenario("loose")
def cancellation_interrupts_activity_without_waiting_for_its_end(world: World) -> None:
    handle = world.start(waits_until_cancelled, "activity")
    activities.wait_for_gate("begun")
    handle.cancel()
    assert isinstance(world.failure(handle), CancelledError)
    assert activities.state.calls == ["refund"]


@workflow.defn
def swallows_cancellation() -> str:
    try:
        workflow.sleep(3600)
    except Cancelled:
        workflow.sleep(0.02)
        return f"went on, {workflow.info().cancel_requested}"
    return "never"


@scenario()
def workflow_may_swallow_cancellation_and_complete(world: World) -> None:
    handle = world.start(swallows_cancellation)
    world.wait_for_event(handle, "TIMER_STARTED")
    handle.cancel()
    assert handle.result(timeout=60) == "went on, True"


@workflow.defn
def waits_in_shield() -> str:
    log = []
    try:
        with workflow.shield():
            log.append(activities.opens_gate_and_waits_for_go("begun"))
        workflow.sleep(3600)
    except Cancelled:
        log.append("cancelled after the shield")
        activities.record_call(", ".join(log))
        raise
    return "never"


@scenario("loose")
def shielded_block_completes_before_cancellation(world: World) -> None:
    handle = world.start(waits_in_shield)
    activities.wait_for_gate("begun")
    handle.cancel()
    world.wait_for_event(handle, "WORKFLOW_EXECUTION_CANCEL_REQUESTED")
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", 2)
    activities.gate("go").set()
    assert isinstance(world.failure(handle), CancelledError)
    assert activities.state.calls == ["begun, cancelled after the shield"]


@returns(["cleaned", "out of time", True], 0.02, name="timeout_block_is_cancelled_and_raises_timeout_error")
@returns(["held", "cleaned", False], 60, name="timeout_block_cancels_timer_when_done_in_time")
@workflow.defn
def waits_in_timeout_block(seconds: float) -> list[Any]:
    log: list[Any] = []
    limit = workflow.timeout(seconds)
    try:
        with limit:
            try:
                workflow.wait_condition(lambda: seconds > 1)
                log.append("held")
            finally:
                log.append(activities.record_call("cleaned"))
    except TimeoutError:
        log.append("out of time")
    return [*log, limit.expired]


@returns([True, "TaskCancelledError"])
@workflow.defn
def cancelled_scope_ends_its_waits_and_tasks_but_not_the_run() -> list[Any]:
    started: list[workflow.Task[None]] = []
    with workflow.scope() as block:
        started.append(workflow.spawn(workflow.sleep, 3600))

        def stop() -> None:
            workflow.sleep(0.02)
            block.cancel()

        workflow.spawn(stop)
        workflow.sleep(7200)
    return [block.cancelled, type(started[0].exception()).__name__]


@returns("the task was cancelled, not I")
@workflow.defn
def waiting_for_a_cancelled_task_raises_task_cancelled_error() -> str:
    task = workflow.spawn(workflow.sleep, 3600)
    workflow.sleep(0.01)
    task.cancel()
    try:
        task.result()
    except TaskCancelledError:
        return activities.record_call("the task was cancelled, not I")
    return "never"


@workflow.defn
def cancels_running_activity(kind: int) -> list[str]:
    task = activities.stops_when_cancelled.options(cancellation_type=Kind(kind), heartbeat_timeout=60).start(
        "begun"
    )
    channel = workflow.Channel("now", str)
    channel.receive()
    task.cancel()
    error = task.exception()
    assert isinstance(error, ActivityError)
    return [type(error).__name__, type(error.cause).__name__]


@scenario("loose")
def try_cancel_does_not_wait_for_activity(world: World) -> None:
    handle = world.start(cancels_running_activity, Kind.TRY_CANCEL.value)
    activities.wait_for_gate("begun")
    handle.signal("now", "")
    assert handle.result(timeout=60) == ["ActivityError", "CancelledError"]


@scenario("loose")
def abandon_sends_no_cancellation_to_activity(world: World) -> None:
    handle = world.start(cancels_running_activity, Kind.ABANDON.value)
    activities.wait_for_gate("begun")
    handle.signal("now", "")
    assert handle.result(timeout=60) == ["ActivityError", "CancelledError"]
    assert "ACTIVITY_TASK_CANCEL_REQUESTED" not in event_types(handle.history())


@activity.defn(retry_policy=activities.ONCE)
def runs_cleanup_when_cancelled() -> str:
    go = activities.gate("go")
    activities.gate("begun").set()
    try:
        while not go.wait(0.01):
            activity.heartbeat()
        return "let go"
    finally:
        activities.state.calls.append("cleaned up")


@workflow.defn
def waits_for_cancelled_activity_to_end() -> list[str]:
    kind = Kind.WAIT_CANCELLATION_COMPLETED
    task = runs_cleanup_when_cancelled.options(cancellation_type=kind, heartbeat_timeout=1).start()
    channel = workflow.Channel("now", str)
    channel.receive()
    task.cancel()
    error = task.exception()
    assert isinstance(error, ActivityError)
    return [type(error).__name__, type(error.cause).__name__]


@scenario("loose")
def wait_cancellation_completed_waits_for_activity(world: World) -> None:
    handle = world.start(waits_for_cancelled_activity_to_end)
    activities.wait_for_gate("begun")
    handle.signal("now", "")
    assert handle.result(timeout=60) == ["ActivityError", "CancelledError"]
    assert activities.state.calls == ["cleaned up"]


@workflow.defn
def raises_cancelled() -> None:
    raise Cancelled


@scenario()
def cancelled_error_without_request_fails_run(world: World) -> None:
    handle = world.start(raises_cancelled)
    assert isinstance(world.failure(handle), CancelledError)
    assert event_types(handle.history())[-1] == "WORKFLOW_EXECUTION_FAILED"


@workflow.defn
def cancels_and_awaits_activity() -> None:
    task = activities.double.options(task_queue="nobody-serves-this").start(1)
    workflow.sleep(0.01)
    task.cancel()
    task.result()


@scenario()
def cancelled_activity_fails_run_without_cancel_request(world: World) -> None:
    handle = world.start(cancels_and_awaits_activity)
    error = world.failure(handle)
    assert isinstance(error, ActivityError)
    assert isinstance(error.cause, CancelledError)
    assert event_types(handle.history())[-1] == "WORKFLOW_EXECUTION_FAILED"


@workflow.defn
def swallows_every_cancellation() -> list[str]:
    log: list[str] = []

    @workflow.query
    def strikes() -> list[str]:
        return log

    for _ in range(2):
        try:
            workflow.sleep(3600)
        except Cancelled:
            log.append(activities.record_call("strike"))
    return log


@scenario()
def swallowed_cancellation_is_not_raised_again(world: World) -> None:
    handle = world.start(swallows_every_cancellation)
    world.wait_for_event(handle, "TIMER_STARTED")
    handle.cancel()
    world.wait_for_event(handle, "TIMER_STARTED", 2)
    assert handle.query("strikes") == ["strike"]
    handle.terminate("seen")
    world.failure(handle)


@scenario("loose")
def run_cancelled_before_first_task_starts_and_is_cancelled_at_first_wait(world: World) -> None:
    world.stop_worker()
    handle = world.start(waits_until_cancelled, "sleep")
    handle.cancel()
    world.start_worker()
    assert isinstance(world.failure(handle), CancelledError)
    assert activities.state.calls == ["refund"]
