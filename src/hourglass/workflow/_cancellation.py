"""Cancellation as `with` blocks: a timeout, a scope that is cancelled as a whole, and a shield for cleanup code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from hourglass._evaluator.fibers import FiberTask, Task, depth_of, require_fiber
from hourglass._evaluator.operations import Timer
from hourglass._evaluator.options import Duration, seconds
from hourglass.errors import Cancelled, UsageError


class Timeout:
    """The timeout of a `with` block, created by `workflow.timeout`."""

    def __init__(self, limit: float, summary: str = "") -> None:
        self.depth = 0
        self._limit = limit
        self._summary = summary
        self._fiber: FiberTask[Any] | None = None
        self._timer: Timer | None = None
        self._inside = False
        self._expired = False
        self._requests_before = 0
        self._handled_before: BaseException | None = None

    @property
    def expired(self) -> bool:
        """Whether the timeout has expired."""
        return self._expired

    def __enter__(self) -> Timeout:
        if self._fiber is not None:
            raise UsageError("a timeout can be entered only once")
        fiber = self._fiber = require_fiber("workflow.timeout")
        if self._limit > 0:
            self._timer = Timer(fiber, self._limit, self._expire, self._summary)
        else:  # like `asyncio.timeout`
            fiber.scheduler.soon(self._expire)
        self._inside = True
        fiber.depth += 1
        self.depth = fiber.depth
        self._requests_before = fiber.cancel_count
        self._handled_before = sys.exception()
        return self

    def _expire(self, _: Any) -> None:
        assert self._fiber is not None
        if not self._inside:
            return
        self._timer = None
        self._expired = True
        self._fiber.cancel(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._fiber is not None
        self._fiber.depth -= 1
        self._inside = False
        handled_before, self._handled_before = self._handled_before, None
        if self._timer is not None:
            self._timer.cancel()
        if self._expired:
            self._fiber.withdraw_request()
            withdraw_undelivered(self._fiber, self)
            if isinstance(error, Cancelled) and self._caused(error):
                interrupted = outermost(error, handled_before)
                if interrupted is not error and self._fiber.run.behaviour.outer_cancellation_goes_on:
                    raise interrupted
                raise TimeoutError(f"the block took longer than {self._limit:g} s") from error

    def _caused(self, error: Cancelled) -> bool:
        # In runs that another SDK began, any other cancellation request, even a handled one, takes precedence
        # over the timeout, as in `asyncio.timeout`.
        assert self._fiber is not None
        if self._fiber.run.behaviour.limits_know_their_cancellation:
            return getattr(error, "source", None) is self
        return self._fiber.cancel_count <= self._requests_before


def _reach(error: Cancelled) -> int:
    return depth_of(getattr(error, "source", None))


def outermost(error: Cancelled, handled_before: BaseException | None) -> Cancelled:
    """Return the cancellation with the outermost source: `error`, or a cancellation interrupted by it during cleanup.

    Cancellations that were already being handled when the block began (`handled_before`) are excluded, because they
    propagate automatically.
    """
    result, context = error, error.__context__
    while context is not None and context is not handled_before:
        if isinstance(context, Cancelled) and _reach(context) < _reach(result):
            result = context
        context = context.__context__
    return result


def timeout(limit: Duration, /) -> Timeout:
    """Limit the duration of a block. When the limit expires, cancel the wait in the block and raise `TimeoutError`.

    with workflow.timeout(timedelta(hours=6)):
        while job_state(job) == "running":
            workflow.sleep(30)
    """
    return Timeout(seconds(limit, "the limit of workflow.timeout"))


class Scope:
    """A block that can be cancelled together with everything started in it. Created by `workflow.scope`."""

    def __init__(self) -> None:
        self.depth = 0
        self._fiber: FiberTask[Any] | None = None
        self._outer: Scope | None = None
        self._members: dict[Task[Any] | Scope, None] = {}
        self._limit = 64
        self._inside = False
        self._cancelled = False
        self._handled_before: BaseException | None = None

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def add(self, member: Task[Any] | Scope) -> None:
        """Add a task or an inner scope that was started in this scope."""
        if len(self._members) >= self._limit:
            open_members = {m: None for m in self._members if isinstance(m, Scope) or not m.done()}
            self._members = open_members
            self._limit = max(64, 2 * len(open_members))
        self._members[member] = None

    def cancel(self) -> None:
        """Cancel the wait in the block, and every task, activity and child started in it."""
        require_fiber("cancelling a scope")
        if self._cancelled:
            return
        self._cancelled = True
        for member in list(self._members):
            member.cancel()
        if self._inside and self._fiber is not None:
            self._fiber.cancel(self)

    def __enter__(self) -> Scope:
        if self._fiber is not None:
            raise UsageError("a scope can be entered only once")
        fiber = self._fiber = require_fiber("workflow.scope")
        fiber.depth += 1
        self.depth = fiber.depth
        self._outer = fiber.scope
        if self._outer is not None:
            self._outer.add(self)
        fiber.scope = self
        self._handled_before = sys.exception()
        self._inside = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._fiber is not None
        self._inside = False
        self._fiber.depth -= 1
        self._fiber.scope = self._outer
        handled_before, self._handled_before = self._handled_before, None
        withdraw_undelivered(self._fiber, self)
        if not (isinstance(error, Cancelled) and getattr(error, "source", None) is self):
            return False
        interrupted = outermost(error, handled_before)
        if interrupted is not error:
            raise interrupted
        return True


def scope() -> Scope:
    """Begin a block that can be cancelled: `with workflow.scope() as s: …` and, from anywhere in the
    workflow, `s.cancel()`.

    Cancelling ends the wait in the block and cancels everything started in it. The block ends without an
    exception; `s.cancelled` is then True.
    """
    return Scope()


def withdraw_undelivered(fiber: FiberTask[Any], source: object) -> None:
    """Withdraw a cancellation that was not delivered before the end of the block that requested it. It must not interrupt
    later code.
    """
    if fiber.must_cancel and fiber.cancel_source is source:
        fiber.must_cancel = False
    if fiber.deferred and fiber.cancel_source is source:
        fiber.deferred = False


@contextmanager
def shield() -> Iterator[None]:
    """Defer cancellation during a block. A deferred cancellation is delivered, once, at the next wait after the block."""
    fiber = require_fiber("workflow.shield")
    fiber.depth += 1
    outer, fiber.shield_depth = fiber.shield_depth, fiber.depth
    try:
        yield
    finally:
        fiber.depth -= 1
        fiber.shield_depth = outer
        if fiber.deferred and not (outer and depth_of(fiber.cancel_source) < outer):
            fiber.deferred = False
            fiber.must_cancel = True
