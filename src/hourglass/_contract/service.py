"""The seam between clients and engines: `Request`, and the protocol of a connection, whose `call` takes one.

Each request class names its answer as its type parameter, so that `await service.call(DescribeWorkflow(…))` is typed.
Requests and answers are frozen data, and stand by what they are about: `workflows`, `activities`, `schedules`,
`deployments`, `progress`, `limits`. Payloads are encoded; conversion happens above, transport below. Refusals are raised as
`hourglass.errors.ServiceError` and its kinds by the engine; what it cannot do has the status `UNIMPLEMENTED`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from hourglass._contract.handle import Handle, HandleConfig

A = TypeVar("A")


# --- what is asked ------------------------------------------------------------------------------------------


class Effect(Enum):
    """What happens if a request is carried out, and what if that happens twice because its answer was lost."""

    CHANGE = "changes something, and must do so once"
    IDEMPOTENT = "may be carried out twice: the engine knows it by an id, or nothing comes of the second time"
    READ = "only reads what is stored: it can be answered while nothing can be written"


class Request(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """Something asked of an engine; `A` is the answer's type. `rpc_timeout` is seconds for this one call, after which
    it fails, or (`waits`) the engine answers how it is then. `needs_worker`: an engine without a worker cannot answer.
    """

    effect: ClassVar[Effect]
    needs_worker: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    default_timeout: ClassVar[float | None] = None

    rpc_timeout: float | None = None
    rpc_metadata: dict[str, str] | None = None
    """Headers of this one call, beside those of the connection; an engine in this process reads none."""

    @property
    def time_limit(self) -> float | None:
        """How long the client waits for an answer, in seconds; None: as long as it takes."""
        return self.default_timeout if self.rpc_timeout is None else self.rpc_timeout


class Nothing(msgspec.Struct, frozen=True):
    """The answer to a request that has none."""


# --- where it is asked -----------------------------------------------------------------------------------------


class Service(Protocol):
    """The seam between client and engine."""

    def call(self, request: Request[A]) -> Coroutine[Any, Any, A]:
        """Ask, and wait for the answer."""
        ...


class Connection(Service, Protocol):
    """An open connection to an engine, for one target and namespace. All its methods run on the control loop."""

    @property
    def target(self) -> str:
        """What it is connected to, without secrets."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        ...

    @property
    def identity(self) -> str:
        """The identity that the engine is told."""
        ...

    async def open_handle(self, config: HandleConfig) -> Handle:
        """Open a handle for a task queue. Raises `ServiceError` where the engine refuses."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


@runtime_checkable
class Remote(Protocol):
    """A connection to a server: it has credentials, which can change while it is open, and raw gRPC services. All may be
    called in any thread but `rpc`, which runs on the control loop.
    """

    def set_api_key(self, api_key: str | None) -> None:
        """Send this key from now on."""
        ...

    def set_rpc_metadata(self, metadata: Mapping[str, str]) -> None:
        """Send these headers from now on, and not those of before."""
        ...

    async def rpc(self, call: RawCall) -> Any:
        """Send a message to a service of the server, and wait for its answer. Raises `ServiceError`."""
        ...


class RawCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a gRPC service of a server, as Temporal's own messages."""

    service: str
    rpc: str
    message: Any
    answer: Any
    """The class of the answer."""
    retry: bool = False
    metadata: Mapping[str, str | bytes] = {}
    timeout: float | None = None


RawRpc: TypeAlias = Callable[[RawCall], Any]
"""What carries out a raw call: gives something to await."""
