"""Cancellation in every kind of wait, with cleaning up that is recorded; blocks that cancel, hold back and limit."""

from __future__ import annotations

from typing import Any

from hourglass import activity, workflow
from hourglass.errors import ActivityError, Cancelled, CancelledError, TaskCancelledError

from . import acts
from .scenario import scenario
from .world import World, kinds

Kind = workflow.ActivityCancellationType


@workflow.defn
def waits_forever(how: str) -> str:
    """Waits in one of many ways; whatever happens, refunds."""
    try:
        wait_for_ever(how)
    finally:
        acts.note("refund")
    return "never"


def wait_for_ever(how: str) -> None:
    channel = workflow.Channel("nothing", str)
    match how:
        case "sleep":
            workflow.sleep(3600)
        case "activity":
            acts.passes("begun")
        case "condition":
            workflow.wait_condition(lambda: False)
        case "condition with timeout":
            workflow.wait_condition(lambda: False, timeout=3600)
        case "channel":
            channel.receive()
        case "channel with timeout":
            channel.receive(timeout=3600)
        case "gather":
            workflow.gather(workflow.spawn(workflow.sleep, 3600), workflow.spawn(workflow.sleep, 7200))
        case "task":
            workflow.spawn(workflow.sleep, 3600).result()
        case "wait":
            workflow.wait([workflow.spawn(workflow.sleep, 3600)], timeout=7200)
        case "as_completed":
            next(iter(workflow.as_completed([workflow.spawn(workflow.sleep, 3600)])))
        case "map":
            workflow.map(lambda seconds: workflow.sleep(seconds), [3600, 3600], limit=1)
        case "lock":
            lock = workflow.Lock()
            lock.acquire()
            lock.acquire()


def cancelled_in(world: World, how: str) -> None:
    handle = world.start(waits_forever, how)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    handle.cancel("enough")
    assert isinstance(world.failure(handle), CancelledError)
    assert acts.place.calls == ["refund"]
    found = kinds(handle.history())
    assert found.index("WORKFLOW_EXECUTION_CANCEL_REQUESTED") < found.index("ACTIVITY_TASK_COMPLETED")
    assert found[-1] == "WORKFLOW_EXECUTION_CANCELED"


@scenario()
def cancel_in_sleep(world: World) -> None:
    """The timer is cancelled, the refund runs, the run ends as cancelled."""
    cancelled_in(world, "sleep")


@scenario("loose")
def cancel_in_activity(world: World) -> None:
    """The activity is asked to stop; the workflow does not wait until it has."""
    handle = world.start(waits_forever, "activity")
    acts.arrived("begun")
    handle.cancel()
    assert isinstance(world.failure(handle), CancelledError)
    assert acts.place.calls == ["refund"]


@scenario()
def cancel_in_condition(world: World) -> None:
    """A condition without a timer."""
    cancelled_in(world, "condition")


@scenario()
def cancel_in_condition_with_timeout(world: World) -> None:
    """A condition's timer is cancelled with it."""
    cancelled_in(world, "condition with timeout")


@scenario()
def cancel_in_channel(world: World) -> None:
    """Receiving from a channel."""
    cancelled_in(world, "channel")


@scenario()
def cancel_in_channel_with_timeout(world: World) -> None:
    """Receiving from a channel, for a time."""
    cancelled_in(world, "channel with timeout")


@scenario()
def cancel_in_gather(world: World) -> None:
    """What is gathered is cancelled."""
    cancelled_in(world, "gather")


@scenario()
def cancel_in_task(world: World) -> None:
    """Waiting for a task cancels the task."""
    cancelled_in(world, "task")


@scenario()
def cancel_in_wait(world: World) -> None:
    """`wait` is left; its tasks go on."""
    cancelled_in(world, "wait")


@scenario()
def cancel_in_as_completed(world: World) -> None:
    """`as_completed` is left."""
    cancelled_in(world, "as_completed")


@scenario()
def cancel_in_map(world: World) -> None:
    """`map` cancels what it began."""
    cancelled_in(world, "map")


@scenario()
def cancel_in_lock(world: World) -> None:
    """Waiting for a lock that is held."""
    cancelled_in(world, "lock")


@workflow.defn
def swallows() -> str:
    try:
        workflow.sleep(3600)
    except Cancelled:
        workflow.sleep(0.02)
        return f"went on, {workflow.info().cancel_requested}"
    return "never"


@scenario()
def cancel_swallowed(world: World) -> None:
    """A workflow may refuse: it completes."""
    handle = world.start(swallows)
    world.until(handle, "TIMER_STARTED")
    handle.cancel()
    assert handle.result(timeout=60) == "went on, True"


@workflow.defn
def shielded() -> str:
    log = []
    try:
        with workflow.shield():
            log.append(acts.passes("begun"))
        workflow.sleep(3600)
    except Cancelled:
        log.append("cancelled after the shield")
        acts.note(", ".join(log))
        raise
    return "never"


@scenario("loose")
def shield(world: World) -> None:
    """What is shielded ends first; the cancellation strikes at the next wait."""
    handle = world.start(shielded)
    acts.arrived("begun")
    handle.cancel()
    world.until(handle, "WORKFLOW_EXECUTION_CANCEL_REQUESTED")
    world.until(handle, "WORKFLOW_TASK_COMPLETED", 2)
    acts.gate("go").set()
    assert isinstance(world.failure(handle), CancelledError)
    assert acts.place.calls == ["begun, cancelled after the shield"]


@workflow.defn
def limited(seconds: float) -> list[Any]:
    log: list[Any] = []
    limit = workflow.timeout(seconds)
    try:
        with limit:
            try:
                workflow.wait_condition(lambda: seconds > 1)
                log.append("held")
            finally:
                log.append(acts.note("cleaned"))
    except TimeoutError:
        log.append("out of time")
    return [*log, limit.expired]


@scenario()
def timeout_block(world: World) -> None:
    """The block is cancelled, cleans up, and TimeoutError is raised."""
    assert world.run(limited, 0.02) == ["cleaned", "out of time", True]


@scenario()
def timeout_block_in_time(world: World) -> None:
    """A block that ends in time cancels its timer."""
    assert world.run(limited, 60) == ["held", "cleaned", False]


@workflow.defn
def scoped() -> list[Any]:
    started: list[workflow.Task[None]] = []
    with workflow.scope() as block:
        started.append(workflow.spawn(workflow.sleep, 3600))

        def stop() -> None:
            workflow.sleep(0.02)
            block.cancel()

        workflow.spawn(stop)
        workflow.sleep(7200)
    return [block.cancelled, type(started[0].exception()).__name__]


@scenario()
def scope(world: World) -> None:
    """A scope is cancelled from inside: its wait and its tasks end, the workflow goes on."""
    assert world.run(scoped) == [True, "TaskCancelledError"]


@workflow.defn
def cancels_task() -> str:
    task = workflow.spawn(workflow.sleep, 3600)
    workflow.sleep(0.01)
    task.cancel()
    try:
        task.result()
    except TaskCancelledError:
        return acts.note("the task was cancelled, not I")
    return "never"


@scenario()
def other_task_cancelled(world: World) -> None:
    """A cancelled task is an ordinary error to whoever waits for it, and the run completes."""
    assert world.run(cancels_task) == "the task was cancelled, not I"


@workflow.defn
def cancels_running_activity(kind: int) -> list[str]:
    task = acts.stops_when_told.options(cancellation_type=Kind(kind), heartbeat_timeout=60).start("begun")
    told = workflow.Channel("now", str)
    told.receive()
    task.cancel()
    error = task.exception()
    assert isinstance(error, ActivityError)
    return [type(error).__name__, type(error.cause).__name__]


@scenario("loose")
def activity_cancelled_at_once(world: World) -> None:
    """TRY_CANCEL: the workflow gets its error without waiting for the activity."""
    handle = world.start(cancels_running_activity, Kind.TRY_CANCEL.value)
    acts.arrived("begun")
    handle.signal("now", "")
    assert handle.result(timeout=60) == ["ActivityError", "CancelledError"]


@scenario("loose")
def activity_abandoned(world: World) -> None:
    """ABANDON: nobody asks the activity to stop."""
    handle = world.start(cancels_running_activity, Kind.ABANDON.value)
    acts.arrived("begun")
    handle.signal("now", "")
    assert handle.result(timeout=60) == ["ActivityError", "CancelledError"]
    assert "ACTIVITY_TASK_CANCEL_REQUESTED" not in kinds(handle.history())


@activity.defn(retry_policy=acts.ONCE)
def stops_politely() -> str:
    """Runs until it is asked to stop, and says so in its own way."""
    go = acts.gate("go")
    acts.gate("begun").set()
    try:
        while not go.wait(0.01):
            activity.heartbeat()
        return "let go"
    finally:
        acts.place.calls.append("cleaned up")


@workflow.defn
def waits_for_the_stop() -> list[str]:
    kind = Kind.WAIT_CANCELLATION_COMPLETED
    task = stops_politely.options(cancellation_type=kind, heartbeat_timeout=1).start()
    told = workflow.Channel("now", str)
    told.receive()
    task.cancel()
    error = task.exception()
    assert isinstance(error, ActivityError)
    return [type(error).__name__, type(error.cause).__name__]


@scenario("loose")
def activity_cancelled_and_waited_for(world: World) -> None:
    """WAIT_CANCELLATION_COMPLETED: the workflow goes on when the activity has stopped."""
    handle = world.start(waits_for_the_stop)
    acts.arrived("begun")
    handle.signal("now", "")
    assert handle.result(timeout=60) == ["ActivityError", "CancelledError"]
    assert acts.place.calls == ["cleaned up"]


@workflow.defn
def cancels_itself() -> None:
    raise Cancelled


@scenario()
def cancelled_without_request(world: World) -> None:
    """A run ends as cancelled only if its cancellation was requested: else it fails."""
    handle = world.start(cancels_itself)
    assert isinstance(world.failure(handle), CancelledError)
    assert kinds(handle.history())[-1] == "WORKFLOW_EXECUTION_FAILED"


@workflow.defn
def waits_for_cancelled_activity() -> None:
    task = acts.double.options(task_queue="nobody-serves-this").start(1)
    workflow.sleep(0.01)
    task.cancel()
    task.result()


@scenario()
def activity_error_of_own_cancel_fails(world: World) -> None:
    """Without a request to cancel the run, an activity's cancellation that escapes fails it."""
    handle = world.start(waits_for_cancelled_activity)
    error = world.failure(handle)
    assert isinstance(error, ActivityError)
    assert isinstance(error.cause, CancelledError)
    assert kinds(handle.history())[-1] == "WORKFLOW_EXECUTION_FAILED"


@workflow.defn
def struck_twice() -> list[str]:
    log: list[str] = []

    @workflow.query
    def strikes() -> list[str]:
        return log

    for _ in range(2):
        try:
            workflow.sleep(3600)
        except Cancelled:
            log.append(acts.note("strike"))
    return log


@scenario()
def cancelled_once_per_request(world: World) -> None:
    """A cancellation that was swallowed does not strike again at the next wait."""
    handle = world.start(struck_twice)
    world.until(handle, "TIMER_STARTED")
    handle.cancel()
    world.until(handle, "TIMER_STARTED", 2)
    assert handle.query("strikes") == ["strike"]
    handle.terminate("seen")
    world.failure(handle)


@scenario("loose")
def cancel_before_first_task(world: World) -> None:
    """A run that is cancelled before it has begun begins, and is cancelled at its first wait."""
    world.stop_worker()
    handle = world.start(waits_forever, "sleep")
    handle.cancel()
    world.start_worker()
    assert isinstance(world.failure(handle), CancelledError)
    assert acts.place.calls == ["refund"]
