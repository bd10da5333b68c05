"""A task that can be killed, not only cancelled.

`Task.cancel()` is only a request: it is passed to the awaited object, and has no effect until that object
yields. A driver wraps the task's coroutine, resumes the coroutine itself and knows the awaited object, so that
it can interrupt the wait at any time.

- `cancel` is asyncio's own.
- `kill` raises `Killed` in the coroutine at its current await, in the next iteration of the event loop, in the
  coroutine's own task. The awaited object is cancelled but not waited for. Repeated kills have no effect.
- A coroutine that keeps running after `Killed` (because it swallowed the exception, or a `finally` block
  awaits) lingers until `discard` closes it and ends the task unconditionally.
- Whenever the coroutine ends, its owner is notified once (`ended` or `discarded`), and the task itself ends
  without an error. `KeyboardInterrupt` and `SystemExit` are also raised in the event loop, as for any task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from hourglass._supervision.process import Process


class Killed(BaseException):
    """Raised in the coroutine of a killed process. It is not caught by `except Exception`."""


class _Awaited:
    """The awaitable that the task sees instead of the real future, so that the wait can be interrupted.

    It implements the protocol of future-like objects that `asyncio.isfuture` documents. The task's wake-up
    callback is passed to the real future unchanged, so that the wrapper adds no iteration of the event loop.
    """

    __slots__ = ("_asyncio_future_blocking", "_context", "_future", "_wakeup")

    def __init__(self, future: Any) -> None:
        self._asyncio_future_blocking = True
        self._future = future
        self._wakeup: Callable[[Any], object] | None = None
        self._context: Context | None = None

    def get_loop(self) -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = self._future.get_loop()
        return loop

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        self._wakeup, self._context = callback, context
        self._future.add_done_callback(callback, context=context)

    def cancel(self, msg: Any = None) -> bool:
        is_cancelled: bool = self._future.cancel(msg=msg)
        return is_cancelled

    def result(self) -> None:
        """Return None. The task calls this method after `interrupt` has woken it, and the driver ignores the
        value.
        """

    def interrupt(self) -> None:
        """Wake the task immediately. If the future is done, its wake-up has already been scheduled."""
        if self._wakeup is None or not self._future.remove_done_callback(self._wakeup):
            return
        self.get_loop().call_soon(self._wakeup, self, context=self._context)
        self._future.cancel()


class TaskDriver(Coroutine[Any, Any, None]):
    """A coroutine run by a task that can kill it."""

    def __init__(self, body: Coroutine[Any, Any, Any], owner: Process, name: str) -> None:
        # used by the `repr` of the task
        self.__name__ = self.__qualname__ = getattr(body, "__qualname__", type(body).__name__)
        self._body = body
        self._owner = owner
        self._waiting: _Awaited | None = None
        self._end_requested = ""  # "", "killed" or "discarded"
        self._thrown = False
        self._task = asyncio.get_running_loop().create_task(self, name=name)

    def cancel(self) -> None:
        """Request the cancellation of the coroutine, like asyncio."""
        if not self._end_requested:
            self._task.cancel()

    def kill(self) -> None:
        """End the coroutine by raising `Killed` at its current await."""
        if not self._end_requested:
            self._end_requested = "killed"
            self._wake()

    def discard(self) -> None:
        """Close a coroutine that survived a kill."""
        self._end_requested = "discarded"
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.interrupt()

    def send(self, value: Any) -> Any:
        """Resume the coroutine, or end it if the driver was killed in the meantime."""
        return self._advance(self._body.send, value)

    def throw(self, *error: Any) -> Any:
        """Resume the coroutine with an exception: a cancellation, or the exception of the awaited object."""
        return self._advance(self._body.throw, *error)

    def close(self) -> None:
        """Close the coroutine. Called when the task is dropped before it has finished."""
        self._body.close()

    def __await__(self) -> Any:
        raise RuntimeError("a driver must be run by its own task")

    def _advance(self, resume: Callable[..., Any], *arguments: Any) -> Any:
        self._waiting = None
        if self._end_requested == "discarded":
            self._close_body()
        try:
            return self._wait_for(self._step(resume, arguments))
        except StopIteration:
            self._owner.ended(self, None)
            raise StopIteration from None
        except BaseException as error:
            self._fail(error)

    def _step(self, resume: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run the coroutine until its next await. If the driver is killed, raise `Killed` in the coroutine."""
        awaited = None
        if not self._must_die():
            awaited = resume(*arguments)
            if self._must_die() and asyncio.isfuture(awaited):
                awaited.cancel()  # like `interrupt`: the coroutine will not wait for it
        if self._must_die():  # killed before this step, or by the coroutine itself during the step
            self._thrown = True
            awaited = self._body.throw(Killed())
            self._owner.lingers(self)
        return awaited

    def _must_die(self) -> bool:
        return bool(self._end_requested) and not self._thrown

    def _wait_for(self, awaited: Any) -> Any:
        if not getattr(awaited, "_asyncio_future_blocking", None):
            return awaited  # a bare yield; the task rejects other objects
        awaited._asyncio_future_blocking = False
        self._waiting = _Awaited(awaited)
        return self._waiting

    def _fail(self, error: BaseException) -> NoReturn:
        """Handle an exception. The frames of this module are removed from its traceback, because they would
        create a reference cycle between the error and its process.
        """
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error.__traceback__ = trace
        self._owner.ended(self, error)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
        raise StopIteration from None

    def _close_body(self) -> NoReturn:
        close_error: BaseException | None = None
        try:
            self._body.close()
        except BaseException as error:
            close_error = error
        self._owner.discarded(self, close_error)
        raise StopIteration
