"""Locks and semaphores with time limits, in the body and in handlers; several waits with limits; many sleeps at once."""

from __future__ import annotations

from typing import Any

from hourglass import workflow

from . import acts
from .scenario import scenario
from .update_handlers import Asked
from .world import World

LIMIT = 30


class Room:
    """How many are in it, and how many were at most."""

    def __init__(self, places: int) -> None:
        self.guard: Any = workflow.Semaphore(places) if places else workflow.Lock()
        self.inside = 0
        self.most = 0
        self.ever = 0

    def visit(self, stay: float, patience: float) -> None:
        """Go in, stay and leave; or give up."""
        try:
            if patience:
                with workflow.timeout(patience):
                    self.guard.acquire()
            else:
                self.guard.acquire()
        except TimeoutError:
            return
        try:
            self.inside += 1
            self.ever += 1
            self.most = max(self.most, self.inside)
            workflow.sleep(stay) if stay else acts.double(1)
        finally:
            self.inside -= 1
            self.guard.release()


@workflow.defn
def visits(places: int, stay: float, patience: float) -> list[int]:
    """Five want to go in: how many were inside in all, and at once."""
    room = Room(places)
    workflow.gather(*[workflow.spawn(room.visit, stay, patience) for _ in range(5)])
    return [room.ever, room.most]


@scenario("loose")
def a_lock_lets_one_in(world: World) -> None:
    """Five tasks share a lock around an activity: all get in, one at a time."""
    assert world.run(visits, 0, 0, 0) == [5, 1]


@scenario("loose")
def a_semaphore_lets_three_in(world: World) -> None:
    """Five tasks share three places around an activity: all get in, three at a time."""
    assert world.run(visits, 3, 0, 0) == [5, 3]


@scenario("loose")
def a_lock_that_is_not_waited_for(world: World) -> None:
    """Whoever does not get a lock in time gives up, and takes no place in the line."""
    assert world.run(visits, 0, 0.4, 0.05) == [1, 1]


@scenario("loose")
def a_semaphore_that_is_not_waited_for(world: World) -> None:
    """The same for a semaphore."""
    assert world.run(visits, 3, 0.4, 0.05) == [3, 3]


@workflow.defn
class House:
    """Its visitors come as updates."""

    @workflow.init
    def __init__(self, places: int) -> None:
        self.room = Room(places)
        self.over = False

    @workflow.run
    def run(self, places: int) -> list[int]:
        """Until it is over."""
        workflow.wait_condition(lambda: self.over)
        return [self.room.ever, self.room.most]

    @workflow.update
    def visit(self, stay: float, patience: float) -> None:
        """One visitor."""
        self.room.visit(stay, patience)

    @workflow.signal
    def finish(self) -> None:
        """End."""
        self.over = True


def visited(world: World, places: int, stay: float, patience: float) -> Any:
    """Five updates at once."""
    handle = world.start(House.run, places)
    asked = [Asked(lambda: handle.execute_update(House.visit, stay, patience)) for _ in range(5)]
    assert [each.answer for each in asked] == [None] * 5
    handle.signal(House.finish)
    return handle.result(timeout=LIMIT)


@scenario("loose")
def updates_share_a_lock(world: World) -> None:
    """Handlers of updates take turns at a lock."""
    assert visited(world, 0, 0, 0) == [5, 1]


@scenario("loose")
def updates_share_a_semaphore(world: World) -> None:
    """Handlers of updates share the places of a semaphore."""
    ever, most = visited(world, 3, 0.2, 0)
    assert ever == 5
    assert 2 <= most <= 3
    # Which of the five find each other there is a matter of chance.
    world.handles.clear()


@scenario("loose")
def an_update_that_gives_up_waiting(world: World) -> None:
    """A handler that does not get the lock in time ends, and the others do not mind."""
    ever, most = visited(world, 0, 0.5, 0.05)
    assert most == 1
    assert 1 <= ever < 5
    world.handles.clear()


@workflow.defn
def sleeps_with_words() -> int:
    """Many timers at once, each with its own summary."""

    def nap(number: int) -> None:
        workflow.sleep(0.02, summary=f"t{number}")

    def some(first: int, last: int) -> None:
        workflow.gather(*[workflow.spawn(nap, number) for number in range(first, last)])

    def patient() -> None:
        try:
            workflow.wait_condition(lambda: False, timeout=0.02, timeout_summary="condition")
        except TimeoutError:
            return

    workflow.gather(workflow.spawn(some, 0, 3), workflow.spawn(patient), workflow.spawn(workflow.sleep, 0.02))
    workflow.gather(workflow.spawn(some, 10, 12), workflow.spawn(some, 12, 14))
    return 9


@scenario("loose")
def timers_keep_their_summaries(world: World) -> None:
    """Each of many timers that are started side by side has its own summary, or none."""
    handle = world.start(sleeps_with_words)
    assert handle.result(timeout=LIMIT) == 9
    found = [
        event.get("userMetadata", {}).get("summary") is not None
        for event in handle.history().events
        if event["eventType"] == "EVENT_TYPE_TIMER_STARTED"
    ]
    assert sorted(found) == [False] + [True] * 8


@workflow.defn
def waits_in_order() -> list[str]:
    """Ten tasks that end at once are done in the order in which they were given."""
    tasks = [workflow.spawn(lambda n=n: f"task {n}") for n in range(10)]  # type: ignore[misc]
    done, pending = workflow.wait(tasks)
    assert not pending
    return [acts.note(task.result()) for task in done]


@scenario(max_cached_workflows=0)
def waiting_keeps_the_order(world: World) -> None:
    """`wait` gives tasks back in their order, so that what follows is the same on every replay."""
    assert world.run(waits_in_order) == [f"task {n}" for n in range(10)]


@workflow.defn
def completes_in_order() -> list[int]:
    """As they end, on every replay the same."""
    tasks = [acts.double.start(number) for number in range(6)]
    return [acts.increase(task.result()) for task in workflow.as_completed(tasks)]


@scenario("loose", max_cached_workflows=0)
def as_completed_without_a_cache(world: World) -> None:
    """`as_completed` replays in the order in which things ended."""
    result = world.run(completes_in_order)
    assert sorted(result) == [1, 3, 5, 7, 9, 11]
    # In which order six activities end is a matter of chance.
    with_history = world.handles.pop()
    assert with_history.describe().status.name == "COMPLETED"


@workflow.defn
def limits(kind: str) -> str:
    """An activity under a time limit, of each kind."""
    slow = acts.stops_when_told.start("begun")
    try:
        match kind:
            case "block":
                with workflow.timeout(0.1):
                    slow.result()
            case "wait_for":
                workflow.wait_for(slow, timeout=0.1)
            case _:
                workflow.wait_condition(lambda: slow.done(), timeout=0.1)
    except TimeoutError as error:
        slow.cancel()
        return type(error).__name__
    return "in time"


@scenario("loose")
def an_activity_under_a_time_limit(world: World) -> None:
    """A block with a limit ends the wait for an activity, which is cancelled, with TimeoutError."""
    assert world.run(limits, "block") == "TimeoutError"


@scenario("loose")
def a_condition_under_a_time_limit(world: World) -> None:
    """So does a condition with a limit."""
    assert world.run(limits, "condition") == "TimeoutError"


@workflow.defn
def lets_time_run_out(kind: str) -> None:
    """Does not catch it."""
    if kind == "block":
        with workflow.timeout(0.05):
            workflow.sleep(1000)
    workflow.wait_for(workflow.spawn(workflow.sleep, 1000), timeout=0.05)


@scenario()
def time_runs_out_of_a_block(world: World) -> None:
    """A block's TimeoutError that the workflow lets out fails the run, by its name."""
    assert world.fails(lets_time_run_out, "block").type == "TimeoutError"


@scenario()
def time_runs_out_of_a_wait(world: World) -> None:
    """So does one of `wait_for`."""
    assert world.fails(lets_time_run_out, "wait").type == "TimeoutError"
