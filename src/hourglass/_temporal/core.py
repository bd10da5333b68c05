"""The one door to Core: the only file that touches its Rust objects. It knows bytes, not messages.

What Core asks of a language SDK, and this file provides:

- One runtime per process. After a fork the child must neither use nor drop what it inherited (dropping
  hangs), so the references are leaked and a new runtime is made when one is needed, which is leaked at the child's end, too.
  The threads of a leaked runtime outlive the interpreter. One that is inside Python when finalisation begins crashes the
  process (Python ends the thread below Rust's frames), so calls in flight are cancelled and such threads awaited first.
- At exit workers, then clients, then the runtime are dropped while Python still lives; any other way hangs or
  crashes. So every Rust object sits in a `Ref`, and nothing else holds it longer than one call.
- A future belongs to the loop that asked for it. Polls and completions must never be cancelled: `handle` sees
  to that.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import re
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import temporalio.bridge.temporal_sdk_bridge as _rust_module  # type: ignore[import-not-found]

from hourglass._contract.handle import HandleBroken
from hourglass._forks import ForkStage, at_fork
from hourglass._temporal.configs import NO_METADATA, TemporalSettings, call_settings
from hourglass._temporal.slots import SuppliedSlots
from hourglass._temporal.telemetry import CoreMetrics, runtime_settings
from hourglass._temporal.version import has
from hourglass.metrics._telemetry import take_telemetry

_rust: Any = _rust_module  # compiled, without type information

PollShutdown: type[Exception] = _rust.PollShutdownError
"""A poll ended because the worker is shut down."""

RpcError: type[Exception] = _rust.RPCError
"""An RPC was refused; `args` are gRPC's number, a message, and the encoded status with its details."""

load_profile: Any = _rust.envconfig.load_client_connect_config
load_profiles: Any = _rust.envconfig.load_client_config
"""Temporal's configuration file and variables, as dictionaries; they raise RuntimeError with their reason."""

_WORKER, _CLIENT, _RUNTIME = range(3)  # the order in which they must be dropped
_RUNTIMES_END = has((1, 35))


class Ref:
    """Holds one Rust object, until it is dropped: by its owner, at exit, or (leaked) after a fork."""

    __slots__ = ("__weakref__", "_object", "rank")

    def __init__(self, rank: int, rust_object: Any) -> None:
        self.rank = rank
        self._object: Any = rust_object
        _live.add(self)

    @property
    def gone(self) -> bool:
        """Whether the object was dropped."""
        return self._object is None

    def get(self) -> Any:
        """The object, for one call."""
        if self._object is None:
            raise HandleBroken("this connection to Temporal is closed, or was inherited through a fork")
        return self._object

    def drop(self) -> None:
        """Let go of the object. Can be repeated."""
        self._object = None

    def leak(self) -> None:
        """Let go without dropping: the object stays in memory for ever."""
        if self._object is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._object))
            self._object = None


_live: weakref.WeakSet[Ref] = weakref.WeakSet()
_lock = threading.Lock()
_runtime: Ref | None = None
_counts = False  # whether the runtime buffers metrics
_leaks_runtime = not _RUNTIMES_END  # also in a process that was forked from one that had a runtime
_calls: set[asyncio.Future[Any]] = set()  # in flight; recorded only where the runtime is leaked
_LEAVE_LIMIT = 1.0  # seconds that an exit waits for Core's threads to leave Python


def runtime() -> Ref:
    """The Core runtime of this process, made when it is first needed."""
    global _runtime, _counts
    with _lock:
        if _runtime is None or _runtime.gone:
            settings: Any = runtime_settings(os.environ, take_telemetry())
            _runtime = Ref(_RUNTIME, _rust.init_runtime(settings))
            _counts = (
                settings.telemetry.metrics is not None and settings.telemetry.metrics.buffered_with_size > 0
            )
        return _runtime


_metrics = CoreMetrics()


def metrics() -> CoreMetrics | None:
    """What Core has counted in this process, up to now; None where it was not told to."""
    with _lock:
        known = _runtime
    if known is None or known.gone or not _counts:
        return None
    _metrics.add(known.get().retrieve_buffered_metrics(True))
    return _metrics


def drop_all() -> None:
    """Drop every Rust object of this process, in order. Runs at exit; workers that drain have done so before."""
    for ref in sorted(_live, key=lambda ref: ref.rank):
        if ref.rank == _WORKER and not ref.gone and hasattr(ref.get(), "initiate_shutdown"):
            # A worker that is dropped without it keeps polling, and takes tasks with it.
            try:
                ref.get().initiate_shutdown()
            except BaseException as error:
                if not (isinstance(error, Exception) or is_panic(error)):
                    raise
        if ref.rank == _RUNTIME and _leaks_runtime:
            # It would wait for its threads, and they for the interpreter that this thread holds: half of the time, for ever.
            # In a child of a fork that holds for every release: Core's locks remember threads of the parent, which are not
            # here, and a wake-up that is meant for one of ours may go to one of them.
            ref.leak()
        else:
            ref.drop()
    if _leaks_runtime:
        _keep_core_out_of_python()


def _keep_core_out_of_python() -> None:
    """Cancel the calls in flight and wait until no thread of Core is inside Python, for at most `_LEAVE_LIMIT` seconds."""
    cancelled = weakref.WeakSet(filter(_cancel, list(_calls)))
    _calls.clear()
    deadline = monotonic() + _LEAVE_LIMIT
    # Core lets go of a cancelled call when its thread has left Python; until then that thread may not have entered it yet.
    while (cancelled or _foreign_threads()) and monotonic() < deadline:
        sleep(0.001)  # releases the interpreter, for which these threads wait


def _cancel(call: asyncio.Future[Any]) -> bool:
    """Cancel a call from another thread, even if its loop has stopped or is closed. Return whether it was in flight."""
    if call.done():
        return False
    loop = call.get_loop()
    if loop.is_running():
        loop.call_soon_threadsafe(call.cancel)
        return True
    callbacks = [callback for callback, _ in getattr(call, "_callbacks", None) or ()]
    with suppress(RuntimeError):  # the loop is closed; the call is cancelled all the same
        call.cancel()
    for callback in callbacks:
        if type(callback).__name__ == "PyDoneCallback":  # Core's; nobody runs the loop that would call it
            callback(call)
    return True


def _foreign_threads() -> set[int]:
    """Return the idents of threads that execute Python code and were not started by Python."""
    own = {thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}
    return sys._current_frames().keys() - own - {threading.get_ident()}


def _after_fork() -> None:
    global _lock, _runtime, _leaks_runtime, _calls
    _lock = threading.Lock()  # another thread may have held it
    _calls = set()  # the parent's calls have no thread here
    _leaks_runtime = _leaks_runtime or _runtime is not None
    for ref in list(_live):
        ref.leak()
    _runtime = None  # after the leaking: the last reference would free it here, and hang


# A worker that was not shut down loses its channel, or its polls, when it is dropped: a thread of Core's panics, and ends.
_HARMLESS_PANIC = re.compile(
    rb"\n?thread '[^'\n]*'(?: \(\d+\))? panicked at [^\n]*\n"
    rb"[^\n]*(?:Activation processor channel not dropped|JoinError::Cancelled)[^\n]*\n"
    rb"(?:stack backtrace:\n(?: +[^\n]*\n)*)?(?:note: [^\n]*\n)*"
)


def without_harmless_panics(said: bytes) -> bytes:
    """What was said on stderr while workers were dropped, without what is no failure."""
    return _HARMLESS_PANIC.sub(b"", said)


def _drop_at_exit() -> None:
    """As `drop_all`, without harmless panics on stderr, which people read: Core's threads write there past Python."""
    if all(ref.gone for ref in _live if ref.rank == _WORKER):
        return drop_all()
    try:
        stderr, held = os.dup(2), tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    except OSError:
        return drop_all()
    os.dup2(held.fileno(), 2)
    try:
        drop_all()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        held.seek(0)
        rest = without_harmless_panics(held.read())
        held.close()
        if rest:
            os.write(2, rest)


atexit.register(_drop_at_exit)
at_fork(ForkStage.CORE, in_child=_after_fork)


def is_panic(error: BaseException) -> bool:
    """Whether this is Rust's panic: a BaseException whose class cannot be imported."""
    return type(error).__name__ in ("PanicException", "RustPanic")


# --- clients ------------------------------------------------------------------------------------------------


async def connect(settings: TemporalSettings) -> Ref:
    """Connect. Raises RuntimeError with Core's reason; sets no deadline that a silent peer would respect."""
    return Ref(_CLIENT, await _future(_rust.connect_client(runtime().get(), settings)))


async def call(
    client: Ref,
    rpc: str,
    request: bytes,
    timeout: float | None,
    *,
    retry: bool = True,
    metadata: Mapping[str, str | bytes] = NO_METADATA,
    service: str = "workflow",
) -> bytes:
    """Call a service of the server. Raises `RpcError`, or TimeoutError when `timeout` seconds have passed."""
    async with asyncio.timeout(timeout):
        return await _send(
            client, service, call_settings(rpc, request, timeout, retry=retry, metadata=metadata)
        )


def _send(client: Ref, service: str, settings: TemporalSettings) -> asyncio.Future[bytes]:
    match service:
        case "workflow":
            return _future(client.get().call_workflow_service(settings))
        case "operator":
            return _future(client.get().call_operator_service(settings))
        case "test":
            return _future(client.get().call_test_service(settings))
        case _:
            return _future(client.get().call_health_service(settings))


def set_api_key(client: Ref, api_key: str | None) -> None:
    """Send another API key from the next call on."""
    client.get().update_api_key(api_key)


def set_metadata(client: Ref, metadata: Mapping[str, str]) -> None:
    """Send other headers from the next call on."""
    client.get().update_metadata(dict(metadata))


# --- workers ------------------------------------------------------------------------------------------------
# The four calls that each step makes look at the object themselves: a call of ours costs as much as one of theirs.


def new_worker(client: Ref, settings: TemporalSettings) -> Ref:
    """Make a worker. Raises where this client has one on the same queue already."""
    slots = vars(settings)["tuner"].__dict__
    for kind, supplier in slots.items():
        if isinstance(supplier, SuppliedSlots):
            slots[kind] = _rust.CustomSlotSupplier(supplier)
    return Ref(_WORKER, _rust.new_worker(runtime().get(), client.get(), settings))


def new_replay_worker(settings: TemporalSettings) -> tuple[Ref, Ref]:
    """Make a worker that replays, and what feeds it histories."""
    worker, pusher = _rust.new_replay_worker(runtime().get(), settings)
    return Ref(_WORKER, worker), Ref(_WORKER, pusher)


def validate(worker: Ref) -> asyncio.Future[bytes]:
    """Let the worker check its namespace. Once per worker, before it is polled."""
    return _future(worker.get().validate())


def poll_activation(worker: Ref) -> asyncio.Future[bytes]:
    """Ask for the next activation."""
    call: asyncio.Future[bytes] = (worker._object or worker.get()).poll_workflow_activation()
    if _leaks_runtime:
        _record(call)
    return call


def poll_activity(worker: Ref) -> asyncio.Future[bytes]:
    """Ask for the next activity task."""
    call: asyncio.Future[bytes] = (worker._object or worker.get()).poll_activity_task()
    if _leaks_runtime:
        _record(call)
    return call


def complete_activation(worker: Ref, completion: bytes) -> asyncio.Future[None]:
    """Complete an activation; a malformed completion raises and leaves it open."""
    call: asyncio.Future[None] = (worker._object or worker.get()).complete_workflow_activation(completion)
    if _leaks_runtime:
        _record(call)
    return call


def complete_activity(worker: Ref, completion: bytes) -> asyncio.Future[None]:
    """Complete an activity task."""
    call: asyncio.Future[None] = (worker._object or worker.get()).complete_activity_task(completion)
    if _leaks_runtime:
        _record(call)
    return call


def poll_nexus(worker: Ref) -> asyncio.Future[bytes]:
    """Ask for the next call of a Nexus operation."""
    return _future(worker.get().poll_nexus_task())


def complete_nexus(worker: Ref, completion: bytes) -> asyncio.Future[None]:
    """Answer a call of a Nexus operation."""
    return _future(worker.get().complete_nexus_task(completion))


def heartbeat(worker: Ref, beat: bytes) -> None:
    """Record that an activity lives."""
    worker.get().record_activity_heartbeat(beat)


def request_eviction(worker: Ref, run_id: str) -> None:
    """Ask for a run to be evicted."""
    worker.get().request_workflow_eviction(run_id)


def initiate_shutdown(worker: Ref) -> None:
    """Stop taking new work. Can be repeated."""
    worker.get().initiate_shutdown()


def finalize_shutdown(worker: Ref) -> asyncio.Future[None]:
    """Free the worker. Once, with no call in flight: otherwise ValueError, and it is gone all the same."""
    return _future(worker.get().finalize_shutdown())


def push_history(pusher: Ref, workflow_id: str, history: bytes) -> asyncio.Future[None]:
    """Feed a history to a replay worker."""
    return _future(pusher.get().push_history(workflow_id, history))


def close_pusher(pusher: Ref) -> None:
    """No more histories."""
    if not pusher.gone:
        pusher.get().close()


def _future(raw: Any) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = raw
    if _leaks_runtime:
        _record(future)
    return future


def _record(call: asyncio.Future[Any]) -> None:
    _calls.add(call)
    call.add_done_callback(_calls.discard)
