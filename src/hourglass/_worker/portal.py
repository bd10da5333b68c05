"""The portal: the way from any thread or event loop to the control loop, which runs in a thread of its own.

One portal serves a process. Client calls, polls and supervision run on its loop; a caller from outside waits in its
own thread, or awaits on its own loop. It knows nothing of workflows, targets or engines.

Waking a loop costs a write to a pipe, and often a change of threads, so what is posted while a loop is already on
its way waits there with the rest (`Mailbox`). A call that is awaited on another loop (`ForeignCall`) costs one
future, one that blocks a thread (`BlockingCall`) one lock; `asyncio.run_coroutine_threadsafe`, with
`asyncio.wrap_future` for a loop, does the same with a future of each kind, a condition and two wake-ups.

Invariants:

- No code of the user's runs on the control loop: coroutines given to the portal are ours.
- All that is posted to a mailbox is delivered, in the order in which it was posted; what one delivery raises harms no
  other; in a process that was forked nothing is delivered.
- An answer is settled on the loop, or in the thread, that waits for it. A caller that gives up (Ctrl-C, a timeout, a
  cancelled task) cancels what it waited for, and hears nothing of it any more; what must live on is shielded by its
  owner.
- A portal belongs to the process that made it. After a fork the child makes its own and never touches, nor
  frees, the inherited one: its thread does not exist there, and freeing what that thread held can hang.
- At exit the closers run first, latest first, then the loop stops, then the thread is joined; each within a
  limit.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from hourglass import _forks
from hourglass._forks import ForkStage, at_fork, leak
from hourglass._loops import new_event_loop
from hourglass._worker.daemon_executor import DaemonExecutor
from hourglass.errors import InternalError, UsageError

# --- mailbox ------------------------------------------------------------------------------------------------


T = TypeVar("T")

_mailbox_logger = logging.getLogger("hourglass.worker")


class Mailbox:
    """The way of other threads to a loop, one wake-up for a whole burst.

    Belongs to the loop on which it was made; `post` may be called in any thread. Must not know what is posted.
    """

    __slots__ = ("_letters", "_pid", "_woken", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._pid = _forks.here
        self._letters: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._woken = False

    def post(self, callback: Callable[[T], object], argument: T) -> None:
        """Have `callback(argument)` called on the mailbox's loop."""
        if _forks.here != self._pid:
            return
        self._letters.append((callback, argument))
        if self._woken:
            return
        self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            pass  # the loop is closed: nothing is left there that could be told

    def _deliver(self) -> None:
        self._woken = False  # first: what is posted from now on wakes the loop again
        try:
            while self._letters:
                callback, argument = self._letters.popleft()
                try:
                    callback(argument)
                except Exception:
                    _mailbox_logger.exception("what another thread said could not be taken")
        finally:
            # A cancellation or an exit got out: the rest is delivered next.
            if self._letters and not self._woken:
                self._woken = True
                self.loop.call_soon(self._deliver)


# --- calls from outside -------------------------------------------------------------------------------------


class ForeignCall(Generic[T]):
    """A coroutine on the control loop that is awaited on another loop, to which the future `answer` belongs."""

    __slots__ = ("_answer", "_coro", "_mailbox", "_task")

    def __init__(self, coro: Coroutine[Any, Any, T], answer: asyncio.Future[T], mailbox: Mailbox) -> None:
        self._answer = answer
        self._coro = coro
        self._mailbox = mailbox
        self._task: asyncio.Task[T] | None = None

    # --- on the control loop ----------------------------------------------------------------------

    def begin(self) -> None:
        """Start the coroutine."""
        self._task = asyncio.get_running_loop().create_task(self._coro)
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Comes behind `begin`: both are called from one thread."""
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._mailbox.post(self._settle, task)

    # --- on the other -----------------------------------------------------------------------------

    def _settle(self, task: asyncio.Task[T]) -> None:
        if self._answer.done():  # the caller has given up; the exception is read, or asyncio logs it
            if not task.cancelled():
                task.exception()
        elif task.cancelled():
            self._answer.cancel()
        elif (error := task.exception()) is not None:
            self._answer.set_exception(error)
        else:
            self._answer.set_result(task.result())


class BlockingCall(Generic[T]):
    """A coroutine on the control loop that a thread waits for, blocked on a lock."""

    __slots__ = ("_bell", "_coro", "_task")

    def __init__(self, coro: Coroutine[Any, Any, T]) -> None:
        self._coro = coro
        self._task: asyncio.Task[T] | None = None
        self._bell = threading.Lock()
        self._bell.acquire()

    # --- on the control loop ----------------------------------------------------------------------

    def begin(self) -> None:
        """Start the coroutine."""
        self._task = asyncio.get_running_loop().create_task(self._coro)
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Comes behind `begin`: both are called from one thread."""
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # read, or asyncio logs it where the caller has given up
        self._bell.release()

    # --- in the thread ----------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Whether it has ended; waits so long at most. Once it has, it is not asked again."""
        return self._bell.acquire(timeout=seconds)

    def result(self) -> T:
        """What came of it, once it has ended. Raises `asyncio.CancelledError` where the control loop cancelled it."""
        assert self._task is not None
        return self._task.result()


# --- portal -------------------------------------------------------------------------------------------------


Closer = Callable[[], Awaitable[object]]

logger = logging.getLogger("hourglass")

# A wait that is not bounded cannot be interrupted by Ctrl-C on Windows; elsewhere signals interrupt it, and
# the bound only guards against a control thread that died.
_WAIT_STEP = 0.2 if sys.platform == "win32" else 5.0
_CLOSER_LIMIT = 10.0
_STOP_LIMIT = 5.0


class Portal:
    """The control loop in its own daemon thread, and the doors to it."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _current: ClassVar[Portal | None] = None
    _exiting: ClassVar[bool] = False
    # Inherited portals, kept for ever: a loop must not be freed by a process in which it does not run.

    def __init__(self) -> None:
        self._pid = _forks.here
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

    @classmethod
    def current(cls) -> Portal:
        """The process's portal, started when it is first asked for."""
        with cls._lock:
            if cls._exiting:
                raise UsageError("the interpreter is exiting: Hourglass cannot be used any more")
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
        return threading.get_ident() == self._thread.ident

    def __repr__(self) -> str:
        return f"<Portal of process {self._pid}{', closed' if self._closed else ''}>"

    # --- the doors --------------------------------------------------------------------------------

    def submit(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the control loop. Cancelling the future cancels the coroutine."""
        self._check_owner(coro)
        with self._state_lock:
            self._check_open(coro)
            return asyncio.run_coroutine_threadsafe(coro, self._loop)

    def call(self, coro: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the control loop and block this thread until it is done.

        On a timeout (`TimeoutError`), Ctrl-C or any other exception in this thread the coroutine is
        cancelled.
        """
        if self.on_control_thread:
            coro.close()
            raise InternalError("a blocking call from the control loop's own thread would wait for itself")
        self._warn_of_running_loop()
        call = BlockingCall(coro)
        self._begin(call, coro)
        try:
            self._wait_for(call, timeout)
        except BaseException:
            with suppress(RuntimeError):  # the control loop has closed, and cancelled everything itself
                self._loop.call_soon_threadsafe(call.cancel)
            raise
        try:
            return call.result()
        except asyncio.CancelledError:
            raise _given_up() from None

    async def acall(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the control loop and await it from another event loop, or from this very one."""
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
            # Not this task was cancelled but its answer was: the control loop has closed.
            if task is not None and not task.cancelling():
                raise _given_up() from None
            with suppress(RuntimeError):  # the control loop has closed, and cancelled everything itself
                self._loop.call_soon_threadsafe(call.cancel)
            raise

    def _mailbox_of(self, loop: asyncio.AbstractEventLoop) -> Mailbox:
        """Answers that come together wake the loop that waits for them once."""
        mailbox = self._mailboxes.get(loop)
        if mailbox is None:
            # Two threads may do this at once: a loop whose mailbox is lost to that gets another.
            living = {each: box for each, box in self._mailboxes.copy().items() if not each.is_closed()}
            mailbox = living[loop] = Mailbox()
            self._mailboxes = living
        return mailbox

    def at_exit(self, closer: Closer, limit: float = _CLOSER_LIMIT) -> Callable[[], None]:
        """Have `closer` awaited on the control loop before it stops, the latest registered first.

        `limit` is how many seconds it may take. Gives the function that takes it back. A closer must not
        start threads: the interpreter may be past that.
        """
        self._check_owner()
        with self._state_lock:
            self._check_open()
            key = self._next_closer
            self._next_closer += 1
            self._closers[key] = (closer, limit)
        # atexit runs the latest registration first. What a closer closes may have registered an exit of its
        # own while it was made, and must outlive the closer: so we move to the front again.
        atexit.unregister(_exit)
        atexit.register(_exit)

        def take_back() -> None:
            self._closers.pop(key, None)

        return take_back

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Run the closers, stop the loop and join the thread. Safe to call twice."""
        if self.on_control_thread:
            raise InternalError("the control loop cannot close itself")
        limit = 1.0 + sum(limit for _, limit in list(self._closers.values()))
        try:
            self.submit(self._run_closers()).result(limit)
        except UsageError:
            return  # closed already, or another process's
        except TimeoutError:
            logger.warning("the control loop is blocked: not everything was closed at exit")
        with self._state_lock:
            if self._closed:
                return
            self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_LIMIT)
        if self._thread.is_alive():
            logger.warning("the control loop did not stop within %g s and is left behind", _STOP_LIMIT)

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

    # --- inside -----------------------------------------------------------------------------------

    def _begin(self, call: BlockingCall[T] | ForeignCall[T], coro: Coroutine[Any, Any, T]) -> None:
        self._check_owner(coro)
        with self._state_lock:
            self._check_open(coro)
            self._loop.call_soon_threadsafe(call.begin)

    def _check_owner(self, coro: Coroutine[Any, Any, T] | None = None) -> None:
        """Before the lock is taken: one that was held when the process forked is never released."""
        if self._pid != _forks.here:
            _refuse(
                coro,
                "this was made before the process forked and cannot be used in the child: connect again there",
            )

    def _check_open(self, coro: Coroutine[Any, Any, T] | None = None) -> None:
        if self._closed or self._ended:
            _refuse(coro, "the control loop has been closed: connect again")

    def _wait_for(self, call: BlockingCall[T], timeout: float | None) -> None:
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            step = _WAIT_STEP if deadline is None else min(_WAIT_STEP, deadline - monotonic())
            if call.wait(max(step, 0.0)):
                return
            if deadline is not None and monotonic() >= deadline:
                raise TimeoutError(f"no answer within {timeout:g} s")
            if not self._thread.is_alive():
                raise InternalError("the control loop's thread has ended while a call was waiting for it")

    def _warn_of_running_loop(self) -> None:
        if self._warned_of_running_loop or asyncio._get_running_loop() is None:
            return
        self._warned_of_running_loop = True
        # Logged, not warned: where warnings are errors the call would break.
        logger.warning(
            "a blocking call of Hourglass was made in a thread that runs an event loop, which it blocks; "
            "AsyncClient has the same methods as coroutines (said once)"
        )

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._closed:
                try:
                    self._loop.run_forever()
                except (KeyboardInterrupt, SystemExit):
                    # asyncio lets these two out of a task and of the loop; the task has kept it for its waiter.
                    logger.error("a task tried to end the control loop, which goes on")
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
    """Cancel what is left on a stopped loop, give it a moment to unwind, and close the loop."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_STOP_LIMIT / 2))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _refuse(coro: Coroutine[Any, Any, T] | None, why: str) -> NoReturn:
    if coro is not None:
        coro.close()
    raise UsageError(why)


def _given_up() -> UsageError:
    return UsageError("the control loop was closed while this call waited")


def _name(closer: Closer) -> str:
    return str(getattr(closer, "__qualname__", type(closer).__name__))


def _exit() -> None:
    with Portal._lock:
        Portal._exiting = True
        portal = Portal._current
    if portal is not None:
        portal.close()


def _after_fork() -> None:
    """In the child: forget the portal without freeing it; replace a lock that may have been held."""
    Portal._lock = threading.Lock()
    if Portal._current is not None:
        leak(Portal._current)
        Portal._current = None


atexit.register(_exit)
at_fork(ForkStage.PORTAL, in_child=_after_fork)
