"""The portal: calls from any thread or event loop into the control loop, which runs in its own thread.

Each process has one portal. Client calls, polls and supervision run on the portal's loop. A caller blocks its
own thread, or awaits the answer on its own loop. Must not know: workflows, targets, engines.

Invariants:

- No user code runs on the control loop. Only coroutines of Hourglass are passed to the portal.
- An answer is set on the loop, or in the thread, that waits for it. A caller that stops waiting (Ctrl-C, a
  timeout, a cancelled task) cancels its coroutine. Work that must survive the cancellation is shielded by its
  owner.
- A portal belongs to the process that created it. After a fork, the child creates its own portal, and never
  uses or frees the inherited portal, whose thread does not exist in the child. Freeing objects that this thread
  owned can hang.
- At exit, the closers run, the latest first. Then the loop stops, and the thread is joined. Each step has a
  timeout.

A call from another loop needs one future, a call from a thread one lock. `asyncio.run_coroutine_threadsafe`, with
`asyncio.wrap_future` for a loop, needs a future of each kind, a condition and two wake-ups.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from hourglass import _forks
from hourglass._forks import ForkStage, at_fork, leak
from hourglass._loops import new_event_loop
from hourglass._worker.daemon_executor import DaemonExecutor
from hourglass._worker.mailbox import Mailbox
from hourglass.errors import InternalError, UsageError

T = TypeVar("T")

Closer = Callable[[], Awaitable[object]]

logger = logging.getLogger("hourglass")

# On Windows, Ctrl-C does not interrupt an unlimited wait. On other systems signals do, and the timeout only
# guards against a control thread that has died.
_WAIT_STEP = 0.2 if sys.platform == "win32" else 5.0
_CLOSER_LIMIT = 10.0
_STOP_LIMIT = 5.0


class _Call(Generic[T]):
    """A coroutine on the control loop."""

    __slots__ = ("_coro", "_task")

    def __init__(self, coro: Coroutine[Any, Any, T]) -> None:
        self._coro = coro
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Start the coroutine. Called on the control loop."""
        self._task = asyncio.get_running_loop().create_task(self._coro)
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel the coroutine. Called on the control loop after `begin`, because one thread schedules both."""
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        raise NotImplementedError


class ForeignCall(_Call[T]):
    """A coroutine on the control loop that is awaited on another loop. The future `answer` belongs to that loop."""

    __slots__ = ("_answer", "_mailbox")

    def __init__(self, coro: Coroutine[Any, Any, T], answer: asyncio.Future[T], mailbox: Mailbox) -> None:
        super().__init__(coro)
        self._answer = answer
        self._mailbox = mailbox

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._mailbox.post(self._settle, task)

    def _settle(self, task: asyncio.Task[T]) -> None:
        """Set the answer. Called on the caller's loop."""
        if (
            self._answer.done()
        ):  # the caller has stopped waiting; retrieve the exception, so that asyncio does not log it
            if not task.cancelled():
                task.exception()
        elif task.cancelled():
            self._answer.cancel()
        elif (error := task.exception()) is not None:
            self._answer.set_exception(error)
        else:
            self._answer.set_result(task.result())


class BlockingCall(_Call[T]):
    """A coroutine on the control loop, with a thread that waits for it, blocked on a lock."""

    __slots__ = ("_bell",)

    def __init__(self, coro: Coroutine[Any, Any, T]) -> None:
        super().__init__(coro)
        self._bell = threading.Lock()
        self._bell.acquire()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it if the caller has stopped waiting
        self._bell.release()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the coroutine to end. Return whether it has ended. After True, do not call
        this method again.
        """
        return self._bell.acquire(timeout=seconds)

    def result(self) -> T:
        """Return the result of a coroutine that has ended. Raise `asyncio.CancelledError` if the control loop
        cancelled it.
        """
        assert self._task is not None
        return self._task.result()


class Portal:
    """The control loop in its own daemon thread, and the methods that call coroutines on this loop."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _current: ClassVar[Portal | None] = None
    _exiting: ClassVar[bool] = False

    def __init__(self) -> None:
        self._pid = _forks.pid
        self._loop = _new_loop()
        self._loop.set_default_executor(DaemonExecutor("hourglass-thread"))
        self._closers: dict[int, tuple[Closer, float]] = {}
        self._next_closer = 0
        self._state_lock = threading.Lock()
        self._closed = False
        self._ended = False
        self._warned_of_running_loop = False
        self._mailboxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}
        self._thread = threading.Thread(target=self._run, name="hourglass-control", daemon=True)
        self._thread.start()
        self._thread_id = self._thread.ident

    @classmethod
    def current(cls) -> Portal:
        """Return the portal of this process. Create it if necessary."""
        with cls._lock:
            if cls._exiting:
                raise UsageError("Hourglass cannot be used while the interpreter is exiting")
            if cls._current is None or cls._current._closed:
                cls._current = cls()
            return cls._current

    @property
    def closed(self) -> bool:
        """Whether the control loop has been stopped."""
        return self._closed

    @property
    def on_control_thread(self) -> bool:
        """Whether the caller is the control loop's own thread."""
        return threading.get_ident() == self._thread_id

    def __repr__(self) -> str:
        return f"<Portal of process {self._pid}{', closed' if self._closed else ''}>"

    def submit(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the control loop. Cancelling the future cancels the coroutine."""
        self._check_owner(coro)
        with self._state_lock:
            self._check_open(coro)
            return asyncio.run_coroutine_threadsafe(coro, self._loop)

    def call(self, coro: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the control loop, and block this thread until the coroutine has ended.

        A timeout (`TimeoutError`), Ctrl-C or any other exception in this thread cancels the coroutine.
        """
        if self.on_control_thread:
            coro.close()
            raise InternalError(
                "a blocking call was made on the control loop's own thread, where it would wait for itself"
            )
        if asyncio._get_running_loop() is not None:
            self._warn_of_running_loop()
        call = BlockingCall(coro)
        self._begin(call, coro)
        try:
            self._wait_for(call, timeout)
        except BaseException:
            with suppress(RuntimeError):  # the control loop has closed and has cancelled all coroutines
                self._loop.call_soon_threadsafe(call.cancel)
            raise
        try:
            return call.result()
        except asyncio.CancelledError:
            raise _closed_error() from None

    async def acall(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the control loop. May be awaited on any event loop, including the control loop
        itself.
        """
        if self.on_control_thread:
            return await coro
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        call = ForeignCall(coro, answer, self._mailbox_of(loop))
        self._begin(call, coro)
        try:
            return await answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # Not this task but the answer was cancelled, because the control loop has closed.
            if task is not None and not task.cancelling():
                raise _closed_error() from None
            with suppress(RuntimeError):  # the control loop has closed and has cancelled all coroutines
                self._loop.call_soon_threadsafe(call.cancel)
            raise

    def _mailbox_of(self, loop: asyncio.AbstractEventLoop) -> Mailbox:
        """Return the mailbox of a loop. Answers that arrive together wake the loop only once."""
        mailbox = self._mailboxes.get(loop)
        if mailbox is None:
            # If two threads do this at the same time, one new mailbox may be lost. Its loop then gets another
            # mailbox.
            mailboxes = {key: value for key, value in self._mailboxes.copy().items() if not key.is_closed()}
            mailbox = mailboxes[loop] = Mailbox()
            self._mailboxes = mailboxes
        return mailbox

    def at_exit(self, closer: Closer, limit: float = _CLOSER_LIMIT) -> Callable[[], None]:
        """Register a coroutine function to be awaited on the control loop before it stops, latest first.

        `limit` is the timeout of the closer in seconds. Return a function that removes the closer. A closer
        must not start threads, because the interpreter may no longer allow it.
        """
        self._check_owner()
        with self._state_lock:
            self._check_open()
            key = self._next_closer
            self._next_closer += 1
            self._closers[key] = (closer, limit)
        # atexit calls the latest registered function first. An object that a closer needs may have registered
        # its own exit function when it was created, and must not be cleaned up before the closer. Therefore,
        # the portal's exit function is registered again, as the latest.
        atexit.unregister(_exit)
        atexit.register(_exit)

        def remove() -> None:
            self._closers.pop(key, None)

        return remove

    def close(self) -> None:
        """Run the closers, stop the loop and join the thread. Further calls have no effect."""
        if self.on_control_thread:
            raise InternalError("the control loop cannot close itself")
        limit = 1.0 + sum(limit for _, limit in list(self._closers.values()))
        try:
            self.submit(self._run_closers()).result(limit)
        except UsageError:
            return  # already closed, or the portal of another process
        except TimeoutError:
            logger.warning("the control loop is blocked; some resources were not closed at exit")
        with self._state_lock:
            if self._closed:
                return
            self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_LIMIT)
        if self._thread.is_alive():
            logger.warning("the control loop did not stop within %g s and is abandoned", _STOP_LIMIT)

    async def _run_closers(self) -> None:
        while self._closers:
            _, (closer, limit) = self._closers.popitem()
            try:
                async with asyncio.timeout(limit):
                    await closer()
            except TimeoutError:
                logger.warning("%s did not finish within %g s at exit", _name(closer), limit)
            except Exception:
                logger.exception("%s failed at exit", _name(closer))

    def _begin(self, call: BlockingCall[T] | ForeignCall[T], coro: Coroutine[Any, Any, T]) -> None:
        self._check_owner(coro)
        with self._state_lock:
            self._check_open(coro)
            self._loop.call_soon_threadsafe(call.begin)

    def _check_owner(self, coro: Coroutine[Any, Any, T] | None = None) -> None:
        """Raise `UsageError` in a forked child. Must be called before acquiring a lock, because the fork may
        have left it locked.
        """
        if self._pid != _forks.pid:
            _reject(
                coro,
                (
                    "this object was created before the process forked and cannot be used in the child process: connect again "
                    "in the child"
                ),
            )

    def _check_open(self, coro: Coroutine[Any, Any, T] | None = None) -> None:
        if self._closed or self._ended:
            _reject(coro, "the control loop has been closed: connect again")

    def _wait_for(self, call: BlockingCall[T], timeout: float | None) -> None:
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            step = _WAIT_STEP if deadline is None else min(_WAIT_STEP, deadline - monotonic())
            if call.wait(max(step, 0.0)):
                return
            if deadline is not None and monotonic() >= deadline:
                raise TimeoutError(f"no answer within {timeout:g} s")
            if not self._thread.is_alive():
                raise InternalError("the control loop's thread ended while a call was waiting for its result")

    def _warn_of_running_loop(self) -> None:
        if self._warned_of_running_loop:
            return
        self._warned_of_running_loop = True
        # This is logged and not issued as a warning, because the call would fail if warnings are errors.
        logger.warning(
            "a blocking call of Hourglass was made in a thread that runs an event loop, and blocks that loop: use "
            "AsyncClient, which has the same methods as coroutines (this is logged once)"
        )

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._closed:
                try:
                    self._loop.run_forever()
                except (KeyboardInterrupt, SystemExit):
                    # asyncio raises these two exceptions from the loop as well as from the task, which keeps
                    # the exception for its caller.
                    logger.error("a task raised KeyboardInterrupt or SystemExit; the control loop continues")
            _finish(self._loop)
        finally:
            self._ended = True


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return new_event_loop()
    return uvloop.new_event_loop()


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the remaining tasks of a stopped loop, wait briefly for them to end, and close the loop."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_STOP_LIMIT / 2))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _reject(coro: Coroutine[Any, Any, T] | None, reason: str) -> NoReturn:
    if coro is not None:
        coro.close()
    raise UsageError(reason)


def _closed_error() -> UsageError:
    return UsageError("the control loop was closed while this call was waiting")


def _name(closer: Closer) -> str:
    return str(getattr(closer, "__qualname__", type(closer).__name__))


def _exit() -> None:
    with Portal._lock:
        Portal._exiting = True
        portal = Portal._current
    if portal is not None:
        portal.close()


def _after_fork() -> None:
    """Remove the parent's portal without freeing it, and replace the lock, which may have been locked during
    the fork.
    """
    Portal._lock = threading.Lock()
    if Portal._current is not None:
        leak(Portal._current)
        Portal._current = None


atexit.register(_exit)
at_fork(ForkStage.PORTAL, in_child=_after_fork)
