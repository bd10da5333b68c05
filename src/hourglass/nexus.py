"""Nexus: operations that workflows of other namespaces call, served as plain functions. On a Temporal server only.

    payments = nexus.Service("payments")

    @payments.operation
    def charge(order: str) -> str: ...

    Worker(client, "payments", nexus_services=[payments])

and in a workflow, anywhere:

    client = workflow.create_nexus_client(payments, endpoint="payments")
    client.execute_operation(charge, "o-1")

A caller that does not have the code names service and operation by texts. The embedded engine has no other namespaces, and
refuses both sides by name.

An operation's function is called in a thread, an `async def` on an event loop of its own; it should take seconds, and may be
called again: what takes longer is a workflow, which it starts and whose id it returns. What it raises is tried again by the
server, but for `OperationError`, which is the operation's end, and `HandlerError`, which says itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from hourglass.converter import Signature
from hourglass.errors import DefinitionError, HourglassError, UsageError

if TYPE_CHECKING:
    from hourglass.client import Client

__all__ = ["HandlerError", "Info", "Operation", "OperationError", "Service", "client", "in_operation", "info"]

P = ParamSpec("P")
R = TypeVar("R")


class OperationError(HourglassError):
    """Raised in an operation: it failed, for good. With `canceled` it ended as cancelled."""

    def __init__(self, message: str, *, canceled: bool = False) -> None:
        super().__init__(message)
        self.canceled = canceled


class HandlerError(HourglassError):
    """Raised in an operation: the call cannot be handled. `type` is one of Nexus's, such as NOT_FOUND; `retryable` says whether
    the server should try again, by default as the type has it.
    """

    def __init__(self, message: str, *, type: str = "INTERNAL", retryable: bool | None = None) -> None:
        super().__init__(message)
        self.type = type
        self.retryable = retryable


class Operation(Generic[P, R]):
    """An operation of a service. Called, it is the function."""

    def __init__(self, service: str, name: str, fn: Callable[P, R], signature: Signature) -> None:
        self.service = service
        self.name = name
        self.fn = fn
        self.signature = signature
        self.__doc__ = fn.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Nexus operation {self.service}.{self.name}>"


class Service:
    """A Nexus service: a name, and its operations."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name.strip():
            raise UsageError("a Nexus service has a name, a text that is not empty")
        self.name = name
        self.operations: dict[str, Operation[..., Any]] = {}

    @overload
    def operation(self, fn: Callable[P, R], /) -> Operation[P, R]: ...
    @overload
    def operation(self, /, *, name: str) -> Callable[[Callable[P, R]], Operation[P, R]]: ...
    def operation(self, fn: Any = None, /, *, name: str = "") -> Any:
        """Serve a function, under its own name or another. It takes one argument, or none, as Nexus has it."""
        if fn is None:
            return lambda found: self._add(found, name)
        return self._add(fn, name)

    def _add(self, fn: Callable[..., Any], name: str) -> Operation[..., Any]:
        if not inspect.isroutine(fn):
            raise DefinitionError(f"an operation of {self.name} is a function, not {fn!r:.80}")
        named = name or fn.__name__
        if named in self.operations:
            raise DefinitionError(f"the Nexus service {self.name} has two operations {named!r}")
        signature = Signature.of(fn, what=f"operation {self.name}.{named}")
        if signature.required > 1 or not (signature.takes_exactly_one or not signature.parameters):
            raise DefinitionError(
                f"operation {named!r} of the Nexus service {self.name} must take one argument, or none: put several into a "
                "dataclass"
            )
        made = self.operations[named] = Operation(self.name, named, fn, signature)
        return made

    def __repr__(self) -> str:
        return f"<Nexus service {self.name}: {', '.join(self.operations) or 'no operations'}>"


# --- inside an operation --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Info:
    """The call that an operation answers."""

    endpoint: str
    namespace: str
    task_queue: str
    service: str
    operation: str
    request_id: str
    """The same when the server tries again: a workflow that is started with an id made of it is started once."""
    headers: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class CallContext:
    """What is known while an operation runs."""

    info: Info
    client: Callable[[], Any]


current: ContextVar[CallContext | None] = ContextVar("hourglass_nexus", default=None)


def in_operation() -> bool:
    """Whether this is called by an operation."""
    return current.get() is not None


def info() -> Info:
    """The call that this operation answers."""
    return _required("info").info


def client() -> Client:
    """The worker's client, which blocks: in an `async def` use it in `asyncio.to_thread`."""
    found: Client = _required("client").client()
    return found


def _required(what: str) -> CallContext:
    context = current.get()
    if context is None:
        raise UsageError(f"nexus.{what}() works inside a running Nexus operation only")
    return context
