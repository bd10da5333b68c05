"""`Interceptor`, and the chains of interceptors of clients, activities, workflows and Nexus operations.

A client's chain runs in the caller's thread or on the caller's event loop. Its last interceptor passes the call (see
`_calls`) to the session, which runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hourglass._evaluator.interception import InterceptWorkflow, WorkflowInboundInterceptor
from hourglass.activity._context import ActivityChain, ActivityInboundInterceptor, LastActivityInbound
from hourglass.client._outbound import (
    AsyncClientOutboundInterceptor,
    ClientOutboundInterceptor,
)
from hourglass.errors import UsageError
from hourglass.nexus import LastNexusInbound, NexusOperationInboundInterceptor

if TYPE_CHECKING:
    from hourglass.client._calls import ClientCall
    from hourglass.client._session import ClientSession


class Interceptor:
    """Intercepts calls of clients, activities, workflows and Nexus operations. Override the `intercept_…` methods that you
    need.

    An interceptor passed to `Client.connect(interceptors=[…])` applies to the client and all its workers. One passed to
    `Worker(interceptors=[…])` applies only to that worker. The first interceptor of a list is the outermost.
    """

    def intercept_client(self, next: ClientOutboundInterceptor) -> ClientOutboundInterceptor:
        """Return an interceptor for a `Client` that passes calls on to `next`."""
        return next

    def intercept_async_client(self, next: AsyncClientOutboundInterceptor) -> AsyncClientOutboundInterceptor:
        """Return an interceptor for an `AsyncClient` that passes calls on to `next`."""
        return next

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Return an interceptor for a worker's activities that passes calls on to `next`."""
        return next

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        """Return an interceptor for a single execution of a run that passes calls on to `next`. Its code must be
        deterministic, like workflow code.
        """
        return next

    def intercept_nexus_operation(
        self, next: NexusOperationInboundInterceptor
    ) -> NexusOperationInboundInterceptor:
        """Return an interceptor for a worker's Nexus operations that passes calls on to `next`."""
        return next


# --- faces: awaited, the source of what follows ---


class LastAsyncClientOutbound:
    """The end of the chain: its methods run the call."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    def __getattr__(self, method: str) -> Callable[[ClientCall], Any]:
        return self._perform

    async def _perform(self, input: ClientCall) -> Any:
        return await self._session.with_rpc(input._rpc()).aperform(input._proceed(input))


def async_client_chain(session: ClientSession) -> AsyncClientOutboundInterceptor:
    """Return the first interceptor of an `AsyncClient`; the last one calls the session."""
    last: Any = LastAsyncClientOutbound(session)
    outbound = AsyncClientOutboundInterceptor(last)
    for interceptor in reversed(session.interceptors):
        outbound = interceptor.intercept_async_client(outbound)
    return outbound


# --- faces: blocking, made by `make faces` from the lines above: edit those ---


class LastClientOutbound:
    """The end of the chain: its methods run the call."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    def __getattr__(self, method: str) -> Callable[[ClientCall], Any]:
        return self._perform

    def _perform(self, input: ClientCall) -> Any:
        return self._session.with_rpc(input._rpc()).perform(input._proceed(input))


def client_chain(session: ClientSession) -> ClientOutboundInterceptor:
    """Return the first interceptor of a `Client`; the last one calls the session."""
    last: Any = LastClientOutbound(session)
    outbound = ClientOutboundInterceptor(last)
    for interceptor in reversed(session.interceptors):
        outbound = interceptor.intercept_client(outbound)
    return outbound


# --- faces: end ---


def checked(interceptors: Sequence[Interceptor]) -> tuple[Interceptor, ...]:
    """Return the interceptors as a tuple. Raise `UsageError` if an object is not an interceptor."""
    unchecked: Sequence[Any] = interceptors
    for interceptor in unchecked:
        if not isinstance(interceptor, Interceptor):
            is_class = isinstance(interceptor, type) and issubclass(interceptor, Interceptor)
            hint = ": pass an instance" if is_class else ""
            raise UsageError(
                f"interceptors must be instances of Interceptor's subclasses, not {interceptor!r:.80}{hint}"
            )
    return tuple(interceptors)


def activity_chain(interceptors: Sequence[Interceptor]) -> ActivityChain | None:
    """Return the chain of interceptors around a worker's activities; None if no interceptor overrides `intercept_activity`."""
    overriding = [
        interceptor for interceptor in interceptors if _overrides(interceptor, "intercept_activity")
    ]
    if not overriding:
        return None
    last = LastActivityInbound()
    inbound: ActivityInboundInterceptor = last
    for interceptor in reversed(overriding):
        inbound = interceptor.intercept_activity(inbound)
    return ActivityChain(inbound, last)


def workflow_interceptors(interceptors: Sequence[Interceptor]) -> tuple[InterceptWorkflow, ...]:
    """Return the functions that create the chain of a run; empty if no interceptor overrides `intercept_workflow`."""
    return tuple(
        interceptor.intercept_workflow
        for interceptor in interceptors
        if _overrides(interceptor, "intercept_workflow")
    )


def nexus_chain(interceptors: Sequence[Interceptor]) -> NexusOperationInboundInterceptor:
    """Return the chain of interceptors around a worker's Nexus operations."""
    inbound: NexusOperationInboundInterceptor = LastNexusInbound()
    for interceptor in reversed(interceptors):
        inbound = interceptor.intercept_nexus_operation(inbound)
    return inbound


def _overrides(interceptor: Interceptor, method: str) -> bool:
    return getattr(type(interceptor), method) is not getattr(Interceptor, method)
