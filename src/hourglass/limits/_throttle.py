"""`limits.throttle`: at most so many in any span of time, for whoever uses the same key."""

from __future__ import annotations

from hourglass import workflow
from hourglass._engine.options import Duration, seconds
from hourglass.errors import UsageError
from hourglass.limits._desk import desk_of_run
from hourglass.limits._places import Place
from hourglass.limits._reaching import ask, keeper_id, wait_for_answer
from hourglass.limits._throttles import MICROSECONDS, Throttle, TurnAsk, TurnKeeper, microseconds
from hourglass.limits._turns import Rate

_MOST_IN_A_WINDOW = 1000


def throttle(
    key: str,
    limit: int,
    *,
    per: Duration,
    smooth: bool = False,
    timeout: Duration | None = None,
    task_queue: str = "",
) -> None:
    """Wait for a turn: `limits.throttle("mail-api", 10, per=timedelta(seconds=1))`, then go on. In workflows only.

    In any span of `per` at most `limit` calls of the same key go on, in all workflows of the target together, first come
    first served. They may go on all at once, and then none until the span is over; `smooth` spreads them evenly. Where the
    turn would come later than `timeout`, `TimeoutError` is raised at once and no turn is used up. Whoever is cancelled
    while it waits has used up its turn.

    The turns are given out by a small workflow of their own, on the task queue of the first who asks or on `task_queue`;
    any worker there serves it.
    """
    keeper = keeper_id("throttle", key)
    rate = _checked(limit, per, smooth)
    desk = desk_of_run("limits.throttle")
    latest = None if timeout is None else microseconds() + _whole(timeout, "timeout")
    info, ticket = workflow.info(), desk.draw()
    question = TurnAsk(Place(ticket, info.workflow_id, info.run_id), rate, latest)

    def ask_for_it() -> None:
        first = Throttle(open=(question,), period=rate.period)
        ask(keeper, TurnKeeper.run, TurnKeeper.ask, question, first, task_queue)

    try:
        ask_for_it()
        wait_for_answer(desk, ticket, None, ask_for_it, f"a turn of {key!r}")
        at = desk.answers[ticket]
    finally:
        desk.forget(ticket)
    if at is None:
        raise TimeoutError(
            f"the next turn of {key!r} comes too late; {limit} in {seconds(per):g} s are allowed"
        )
    left = at - microseconds()
    if left > 0:
        workflow.sleep(left / MICROSECONDS, summary=f"until the turn of {key!r}")


def _checked(limit: int, per: Duration, smooth: bool) -> Rate:
    if not isinstance(limit, int) or limit < 1:
        raise UsageError(f"the limit of a throttle must be a number of at least 1, not {limit!r:.40}")
    if limit > _MOST_IN_A_WINDOW and not smooth:
        raise UsageError(
            f"a throttle counts at most {_MOST_IN_A_WINDOW} in a span, not {limit}: give a shorter span, or smooth=True"
        )
    period = _whole(per, "span")
    if period <= 0:
        raise UsageError("the span of a throttle must be longer than nothing")
    return Rate(limit, period, bool(smooth))


def _whole(duration: Duration, name: str) -> int:
    return round(seconds(duration, f"the {name} of a throttle") * MICROSECONDS)
