"""The only access to Core: no other file touches its Rust objects. Messages pass as bytes.

Core has the following requirements for a language SDK. This module meets them:

- One runtime per process. After a fork the child must neither use nor drop inherited objects (dropping hangs), so the
  references are leaked, and a new runtime is created when one is needed. That runtime is leaked at the child's exit,
  too. Threads of a leaked runtime outlive the interpreter. A thread that is inside Python when finalisation begins
  crashes the process (Python ends the thread below Rust's frames), so calls in progress are cancelled and such threads
  awaited first. Core's locks keep a global table of waiting threads. In a forked child it still lists threads of the
  parent, whose memory is reused: about one worker in a hundred crashes there (SIGSEGV). Nothing here can prevent that.
- At exit, workers, then clients, then the runtime are dropped while Python is still running; any other order hangs or
  crashes. Every Rust object is therefore held by a `Ref`, and by nothing else for longer than one call.
- A future belongs to the loop that made the call. Polls and completions must never be cancelled; `handle` ensures that.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import logging
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

logger = logging.getLogger("hourglass.core")

_rust: Any = _rust_module  # compiled, without type information

PollShutdown: type[Exception] = _rust.PollShutdownError
"""The exception of a poll that ended because the worker shut down."""

RpcError: type[Exception] = _rust.RPCError
"""The exception of a failed RPC. `args` are gRPC's status number, a message, and the encoded status with details."""

load_profile: Any = _rust.envconfig.load_client_connect_config
load_profiles: Any = _rust.envconfig.load_client_config
"""Load Temporal's configuration file and variables as dictionaries. Raise RuntimeError with the reason of a
failure.
"""

_WORKER, _CLIENT, _RUNTIME = range(3)  # must be dropped in this order
_DROPS_RUNTIME = has((1, 35))


class Ref:
    """A reference to one Rust object. It ends when its owner drops the object, when the process exits, or when
    a fork leaks the object.
    """

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
        """Return the object for a single call. Raise `HandleBroken` if the object was dropped."""
        if self._object is None:
            raise HandleBroken("this connection to Temporal is closed, or was inherited through a fork")
        return self._object

    def drop(self) -> None:
        """Drop the object. May be called repeatedly."""
        self._object = None

    def leak(self) -> None:
        """Release the reference without dropping the object. The object stays in memory until the process ends."""
        if self._object is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._object))
            self._object = None


_live: weakref.WeakSet[Ref] = weakref.WeakSet()
_lock = threading.Lock()
_runtime: Ref | None = None
_buffers_metrics = False
_is_inherited = False  # whether this process was forked from one that had a runtime
_leaks_runtime = not _DROPS_RUNTIME  # also in a process that was forked from one that had a runtime
_calls: set[asyncio.Future[Any]] = set()  # in progress; recorded only if the runtime is leaked
_LEAVE_LIMIT = 1.0  # seconds that an exit waits for Core's threads to leave Python


def runtime() -> Ref:
    """Return the Core runtime of this process. It is created on first use."""
    global _runtime, _buffers_metrics
    with _lock:
        if _runtime is None or _runtime.gone:
            settings: Any = runtime_settings(os.environ, take_telemetry())
            _runtime = Ref(_RUNTIME, _rust.init_runtime(settings))
            _buffers_metrics = (
                settings.telemetry.metrics is not None and settings.telemetry.metrics.buffered_with_size > 0
            )
        return _runtime


_metrics = CoreMetrics()


def metrics() -> CoreMetrics | None:
    """Fetch Core's buffered metrics. Return all metrics recorded so far, or None if Core records none."""
    with _lock:
        current = _runtime
    if current is None or current.gone or not _buffers_metrics:
        return None
    _metrics.add(current.get().retrieve_buffered_metrics(True))
    return _metrics


def drop_all() -> None:
    """Drop every Rust object of this process, in the required order. Called at exit. Workers that were drained
    have already dropped their objects.
    """
    for ref in sorted(_live, key=lambda ref: ref.rank):
        if ref.rank == _WORKER and not ref.gone and hasattr(ref.get(), "initiate_shutdown"):
            # Without this call, a dropped worker keeps polling and loses the tasks that it receives.
            try:
                ref.get().initiate_shutdown()
            except BaseException as error:
                if not (isinstance(error, Exception) or is_panic(error)):
                    raise
        if ref.rank == _RUNTIME and _leaks_runtime:
            # Dropping would wait for Core's threads, which wait for the GIL that this thread holds. About every
            # second exit would hang. In a forked child, every release of temporalio has this problem: Core's
            # locks refer to threads that exist only in the parent, and these may receive a wake-up that is
            # meant for a thread of this process.
            ref.leak()
        else:
            ref.drop()
    if _leaks_runtime:
        _keep_core_out_of_python()


def _keep_core_out_of_python() -> None:
    """Cancel calls in progress, and wait up to `_LEAVE_LIMIT` seconds until no thread of Core executes Python
    code.
    """
    cancelled = weakref.WeakSet(filter(_cancel, list(_calls)))
    _calls.clear()
    deadline = monotonic() + _LEAVE_LIMIT
    # Core releases a cancelled call when its thread has left Python. Until then, the thread may not even have
    # entered Python yet.
    while (cancelled or _foreign_threads()) and monotonic() < deadline:
        sleep(0.001)  # releases the GIL, for which these threads wait


def _cancel(call: asyncio.Future[Any]) -> bool:
    """Cancel a call from another thread, even if the call's loop has stopped or is closed. Return whether the
    call was in progress.
    """
    if call.done():
        return False
    loop = call.get_loop()
    if loop.is_running():
        loop.call_soon_threadsafe(call.cancel)
        return True
    callbacks = [callback for callback, _ in getattr(call, "_callbacks", None) or ()]
    with suppress(RuntimeError):  # raised if the loop is closed, after the call is cancelled
        call.cancel()
    for callback in callbacks:
        if type(callback).__name__ == "PyDoneCallback":  # Core's; its loop no longer runs callbacks
            callback(call)
    return True


def _foreign_threads() -> set[int]:
    """Return the idents of threads that execute Python code and were not started by Python."""
    own = {thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}
    return sys._current_frames().keys() - own - {threading.get_ident()}


def _after_fork() -> None:
    global _lock, _runtime, _is_inherited, _leaks_runtime, _calls
    _lock = threading.Lock()  # another thread may have held it
    _calls = set()  # the threads of the parent's calls do not exist here
    _is_inherited = _is_inherited or _runtime is not None
    _leaks_runtime = _leaks_runtime or _is_inherited
    for ref in list(_live):
        ref.leak()
    _runtime = (
        None  # must follow the leaking: releasing the last reference would drop the runtime here, and hang
    )


# A worker that is dropped without shutdown loses its channel or its polls, so one of Core's threads panics and
# ends.
_HARMLESS_PANIC = re.compile(
    rb"\n?thread '[^'\n]*'(?: \(\d+\))? panicked at [^\n]*\n"
    rb"[^\n]*(?:Activation processor channel not dropped|JoinError::Cancelled)[^\n]*\n"
    rb"(?:stack backtrace:\n(?: +[^\n]*\n)*)?(?:note: [^\n]*\n)*"
)


def without_harmless_panics(captured: bytes) -> bytes:
    """Remove from captured stderr the panics that dropped workers cause. These panics are harmless."""
    return _HARMLESS_PANIC.sub(b"", captured)


def _drop_at_exit() -> None:
    """Run `drop_all` and hide harmless panics, which Core's threads write directly to the stderr descriptor."""
    if all(ref.gone for ref in _live if ref.rank == _WORKER):
        return drop_all()
    try:
        stderr, captured = os.dup(2), tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    except OSError:
        return drop_all()
    os.dup2(captured.fileno(), 2)
    try:
        drop_all()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        captured.seek(0)
        remaining = without_harmless_panics(captured.read())
        captured.close()
        if remaining:
            os.write(2, remaining)


atexit.register(_drop_at_exit)
at_fork(ForkStage.CORE, in_child=_after_fork)


def is_panic(error: BaseException) -> bool:
    """Whether the exception is a Rust panic, a BaseException with a class that cannot be imported."""
    return type(error).__name__ in ("PanicException", "RustPanic")


async def connect(settings: TemporalSettings) -> Ref:
    """Connect a client. Raise RuntimeError with Core's reason on failure. The caller must set a timeout,
    because the peer may never answer.
    """
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
    """Call a service of the server. Raise `RpcError` on failure, or TimeoutError after `timeout` seconds."""
    settings = call_settings(rpc, request, timeout, retry=retry, metadata=metadata)
    async with asyncio.timeout(timeout):
        answer: bytes = await _future(getattr(client.get(), _SERVICES[service])(settings))
        return answer


_SERVICES = {
    "workflow": "call_workflow_service",
    "operator": "call_operator_service",
    "test": "call_test_service",
    "health": "call_health_service",
}


def set_api_key(client: Ref, api_key: str | None) -> None:
    """Set the API key for subsequent calls."""
    client.get().update_api_key(api_key)


def set_metadata(client: Ref, metadata: Mapping[str, str]) -> None:
    """Set the RPC headers for subsequent calls."""
    client.get().update_metadata(dict(metadata))


def new_worker(client: Ref, settings: TemporalSettings) -> Ref:
    """Create a worker. Raise an exception if the client already has a worker on the same task queue."""
    if _is_inherited:
        logger.warning(
            "this process was forked from a process that had connected to a Temporal server. A worker in this process "
            "can crash (SIGSEGV), because locks of Temporal's Core refer to threads that exist only in the parent. "
            "Connect for the first time after the fork, or start the process with `spawn` or as a separate command"
        )
    suppliers = vars(settings)["tuner"].__dict__
    for kind, supplier in suppliers.items():
        if isinstance(supplier, SuppliedSlots):
            suppliers[kind] = _rust.CustomSlotSupplier(supplier)
    return Ref(_WORKER, _rust.new_worker(runtime().get(), client.get(), settings))


def new_replay_worker(settings: TemporalSettings) -> tuple[Ref, Ref]:
    """Create a replay worker, and the pusher that passes histories to the worker."""
    worker, pusher = _rust.new_replay_worker(runtime().get(), settings)
    return Ref(_WORKER, worker), Ref(_WORKER, pusher)


def validate(worker: Ref) -> asyncio.Future[bytes]:
    """Make the worker validate its namespace. Must be called once per worker, before the first poll."""
    return _future(worker.get().validate())


# The four calls that every step makes access the object directly, because a Python function call takes as long
# as a call of Core.


def poll_activation(worker: Ref) -> asyncio.Future[bytes]:
    """Poll for the next activation."""
    call: asyncio.Future[bytes] = (worker._object or worker.get()).poll_workflow_activation()
    if _leaks_runtime:
        _record(call)
    return call


def poll_activity(worker: Ref) -> asyncio.Future[bytes]:
    """Poll for the next activity task."""
    call: asyncio.Future[bytes] = (worker._object or worker.get()).poll_activity_task()
    if _leaks_runtime:
        _record(call)
    return call


def complete_activation(worker: Ref, completion: bytes) -> asyncio.Future[None]:
    """Complete an activation. If the completion is malformed, the future fails and the activation stays
    outstanding.
    """
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
    """Poll for the next Nexus task."""
    return _future(worker.get().poll_nexus_task())


def complete_nexus(worker: Ref, completion: bytes) -> asyncio.Future[None]:
    """Complete a Nexus task."""
    return _future(worker.get().complete_nexus_task(completion))


def heartbeat(worker: Ref, beat: bytes) -> None:
    """Record an activity heartbeat."""
    worker.get().record_activity_heartbeat(beat)


def request_eviction(worker: Ref, run_id: str) -> None:
    """Request the eviction of a run."""
    worker.get().request_workflow_eviction(run_id)


def initiate_shutdown(worker: Ref) -> None:
    """Stop accepting new work. May be called repeatedly."""
    worker.get().initiate_shutdown()


def finalize_shutdown(worker: Ref) -> asyncio.Future[None]:
    """Free the worker. Must be called only once, with no call in progress. Otherwise, the future fails with
    ValueError, and the worker is lost.
    """
    return _future(worker.get().finalize_shutdown())


def push_history(pusher: Ref, workflow_id: str, history: bytes) -> asyncio.Future[None]:
    """Pass a history to a replay worker."""
    return _future(pusher.get().push_history(workflow_id, history))


def close_pusher(pusher: Ref) -> None:
    """Close a replay worker's input. May be called repeatedly."""
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
