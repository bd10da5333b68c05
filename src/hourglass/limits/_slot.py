"""`limits.slot`: at most so many at a time, for whoever uses the same key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hourglass import workflow
from hourglass._engine.fibers import require_fiber
from hourglass._engine.options import Duration, seconds
from hourglass.errors import UsageError
from hourglass.limits._desk import desk_of_run
from hourglass.limits._places import Place
from hourglass.limits._reaching import ask, keeper_id, tell, wait_for_answer
from hourglass.limits._slots import Ask, SlotKeeper, first_slots


@contextmanager
def slot(
    key: str,
    limit: int = 1,
    *,
    timeout: Duration | None = None,
    notice: Duration = 10.0,
    task_queue: str = "",
) -> Iterator[None]:
    """Hold one of a key's slots for a block: `with limits.slot("customer-42", limit=2): charge(…)`. In workflows only.

    At most `limit` blocks of the same key are entered at a time, in all workflows of the target together; the others
    wait, first come first served. Whoever waits longer than `timeout` gets `TimeoutError`; whoever is cancelled gives
    its place back. A run that ends any other way than through its own code (terminated, timed out) loses its slot: within
    `notice` once somebody waits for it, later where holders have been looked after for a while.

    The slots are kept by a small workflow of their own, on the task queue of the first who asks or on `task_queue`; any
    worker there serves it.
    """
    keeper = keeper_id("slots", key)
    if not isinstance(limit, int) or limit < 1:
        raise UsageError(f"the limit of a slot must be a number of at least 1, not {limit!r:.40}")
    desk, fiber = desk_of_run("limits.slot"), require_fiber("limits.slot")
    mine = (fiber.path, key)
    if mine in desk.inside:
        raise UsageError(
            f"a slot of {key!r} is asked for inside a block that holds one: with limit={limit} it may wait for itself for ever"
        )
    deadline = None if timeout is None else workflow.time() + _positive(timeout, "timeout")
    info, ticket = workflow.info(), desk.draw()
    question = Ask(Place(ticket, info.workflow_id, info.run_id), limit, _positive(notice, "notice"))
    desk.inside.add(mine)

    def ask_for_it() -> None:
        ask(keeper, SlotKeeper.run, SlotKeeper.ask, question, first_slots(question), task_queue)

    try:
        ask_for_it()
        if not wait_for_answer(desk, ticket, deadline, ask_for_it, f"a slot of {key!r}"):
            raise TimeoutError(f"there was no free slot of {key!r} in time; {limit} at a time are allowed")
        yield
    finally:
        desk.inside.discard(mine)
        tell(keeper, SlotKeeper.give_back, ticket)
        desk.forget(ticket)


def _positive(duration: Duration, name: str) -> float:
    value = seconds(duration, f"the {name} of a slot")
    if value <= 0:
        raise UsageError(f"the {name} of a slot must be longer than nothing")
    return value
