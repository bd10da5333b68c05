"""The interface between clients and engines: `Request`, and the protocol of a connection.

The type parameter of each request class is the type of its answer, so that `await service.call(DescribeWorkflow(…))` is
typed. Requests and answers are frozen data, defined in `workflows`, `activities`, `schedules`, `deployments`, `progress`
and `limits`. Their payloads are encoded, and the client converts them. Engines reject requests with
`hourglass.errors.ServiceError` and its subclasses. An unsupported request is rejected with the status `UNIMPLEMENTED`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from hourglass._contract.engine_status import EngineStatus
from hourglass._contract.handle import Handle, HandleConfig
from hourglass.metrics import Family

A = TypeVar("A")


class Effect(Enum):
    """The effect of a request, and of sending it again after its answer was lost."""

    CHANGE = "changes state, and must be executed only once"
    IDEMPOTENT = (
        "may be executed twice: the engine recognizes it by an id, or the second execution has no effect"
    )
    READ = "only reads stored data, and can be answered while the store cannot write"


class Request(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """A request to an engine. `A` is the type of its answer. After `rpc_timeout` seconds the call fails. If the class
    sets `waits`, the current state is returned instead. `needs_worker` means that an engine without a worker cannot
    answer the request.
    """

    effect: ClassVar[Effect]
    needs_worker: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    default_timeout: ClassVar[float | None] = None
    method: ClassVar[str] = ""
    """The name of the method of the client's handles that only sends this request. `make faces` generates the method.
    Its docstring is that of the class. Its parameters are the fields that neither address the run nor identify the
    caller.
    """

    rpc_timeout: float | None = None
    rpc_metadata: dict[str, str] | None = None
    """Headers of this call, in addition to those of the connection. Embedded engines ignore headers."""

    @property
    def time_limit(self) -> float | None:
        """The maximum time to wait for an answer, in seconds. None means no limit."""
        return self.default_timeout if self.rpc_timeout is None else self.rpc_timeout


AS_STORED = "; the answer is the stored state"
"""The suffix of the notice in an answer that was read while the engine could not write."""


class Nothing(msgspec.Struct, frozen=True):
    """The answer to a request without a result."""


class ReadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request that reads data. `notice` describes a current problem of the engine, such as a full disk,
    or is "".
    """

    notice: str = ""


class EngineService(Protocol):
    """The interface that a client uses to send requests to an engine."""

    def call(self, request: Request[A]) -> Coroutine[Any, Any, A]:
        """Send a request and return its answer."""
        ...


class Connection(EngineService, Protocol):
    """An open connection to an engine, for one target and namespace. All methods must be called on the control loop."""

    @property
    def target(self) -> str:
        """The address of the engine, without secrets."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace of the connection."""
        ...

    @property
    def identity(self) -> str:
        """The client identity that the engine records."""
        ...

    async def open_handle(self, config: HandleConfig) -> Handle:
        """Open a handle for a task queue. Raise `ServiceError` if the engine rejects the handle."""
        ...

    def status(self) -> EngineStatus:
        """Return the state of the engine, as far as this process knows it. May be called in any thread."""
        ...

    def metrics(self) -> list[Family]:
        """Return the metrics that the engine records itself. May be called in any thread."""
        ...

    async def close(self) -> None:
        """Close the connection and its handles."""
        ...


@runtime_checkable
class Remote(Protocol):
    """A connection to a server. Its credentials can be replaced while it is open, and it provides the server's raw gRPC
    services. `rpc` must be called on the control loop. The other methods may be called in any thread.
    """

    def set_api_key(self, api_key: str | None) -> None:
        """Use this API key for all further calls."""
        ...

    def set_rpc_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replace the headers of all further calls."""
        ...

    async def rpc(self, call: RawCall) -> Any:
        """Call a gRPC service of the server and return its answer. Raise `ServiceError` if the call fails."""
        ...


class RawCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a server's gRPC service, with Temporal's own messages."""

    service: str
    rpc: str
    message: Any
    answer: Any
    """The class of the answer."""
    retry: bool = False
    metadata: Mapping[str, str | bytes] = {}
    timeout: float | None = None


RawRpc: TypeAlias = Callable[[RawCall], Any]
"""A function that carries out a raw call and returns an awaitable."""
