"""The interface between clients and engines: `Request`, and the protocol of a connection.

The type parameter of each request class is its answer, so that `await service.call(DescribeWorkflow(…))` is typed. Requests and
answers are frozen data, defined in `workflows`, `activities`, `schedules`, `deployments`, `progress` and `limits`. Payloads are
encoded; the client converts them. Engines reject requests with `hourglass.errors.ServiceError` and its subclasses; an unsupported
request has the status `UNIMPLEMENTED`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from hourglass._contract.handle import Handle, HandleConfig

A = TypeVar("A")


class Effect(Enum):
    """The effect of a request, and of its repetition after the answer was lost."""

    CHANGE = "changes something, and must do so once"
    IDEMPOTENT = "may be carried out twice: the engine knows it by an id, or nothing comes of the second time"
    READ = "only reads what is stored: it can be answered while nothing can be written"


class Request(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """A request to an engine; `A` is the type of its answer. After `rpc_timeout` seconds the call fails, or, if the class sets
    `waits`, is answered with the present state. `needs_worker`: an engine without a worker cannot answer.
    """

    effect: ClassVar[Effect]
    needs_worker: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    default_timeout: ClassVar[float | None] = None
    method: ClassVar[str] = ""
    """The method of the client's handles that only sends this request. `make faces` writes it: its docstring is that of the
    class, its parameters are the fields that neither address the run nor identify the caller.
    """

    rpc_timeout: float | None = None
    rpc_metadata: dict[str, str] | None = None
    """Headers of this call, in addition to those of the connection. Embedded engines ignore them."""

    @property
    def time_limit(self) -> float | None:
        """The time in seconds for which the client waits for an answer; None: no limit."""
        return self.default_timeout if self.rpc_timeout is None else self.rpc_timeout


AS_STORED = "; the answer is the stored state"
"""The end of the notice in an answer that was read while the engine cannot write."""


class Nothing(msgspec.Struct, frozen=True):
    """The answer to a request without a result."""


class ReadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request that reads. `notice` describes a present problem of the engine (a full disk); "" if there is
    none.
    """

    notice: str = ""


class EngineService(Protocol):
    """The interface between a client and an engine."""

    def call(self, request: Request[A]) -> Coroutine[Any, Any, A]:
        """Send a request and return its answer."""
        ...


class Connection(EngineService, Protocol):
    """An open connection to an engine, for one target and namespace. All its methods run on the control loop."""

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
        """Open a handle for a task queue. Raises `ServiceError` if the engine rejects it."""
        ...

    async def close(self) -> None:
        """Close the connection and its handles."""
        ...


@runtime_checkable
class Remote(Protocol):
    """A connection to a server: its credentials can be replaced while it is open, and it offers raw gRPC services. Its methods
    may be called in any thread, except `rpc`, which runs on the control loop.
    """

    def set_api_key(self, api_key: str | None) -> None:
        """Use this API key from now on."""
        ...

    def set_rpc_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replace the headers of all calls."""
        ...

    async def rpc(self, call: RawCall) -> Any:
        """Send a message to a service of the server and return its answer. Raises `ServiceError`."""
        ...


class RawCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a gRPC service of a server, with Temporal's own messages."""

    service: str
    rpc: str
    message: Any
    answer: Any
    """The class of the answer."""
    retry: bool = False
    metadata: Mapping[str, str | bytes] = {}
    timeout: float | None = None


RawRpc: TypeAlias = Callable[[RawCall], Any]
"""A function that carries out a raw call; its result is awaited."""
