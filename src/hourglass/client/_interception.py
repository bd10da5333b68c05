"""What may stand between callers and what they call: `Interceptor`, and the chains of both faces of the client.

A client's chain runs where the caller is: in its thread, or on its event loop. Each call is an `…Input` with the
arguments as they were given, before they are encoded; the last interceptor hands it to the session, which runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from hourglass._engine.interception import InterceptedCall, InterceptWorkflow, WorkflowInboundInterceptor
from hourglass.activity._context import ActivityInboundInterceptor, LastActivityInbound
from hourglass.errors import UsageError

if TYPE_CHECKING:
    from hourglass.client._session import ClientSession


@dataclass(kw_only=True)
class ClientCall(InterceptedCall):
    """A client's call on its way through a chain."""

    _method: ClassVar[str]

    id: str


@dataclass(kw_only=True)
class StartWorkflowInput(ClientCall):
    """A workflow is to be started. `options` are those of `client.StartOptions`, but for the id."""

    _method = "start_workflow"

    workflow: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(kw_only=True)
class SignalWorkflowInput(ClientCall):
    """A workflow is to be signalled."""

    _method = "signal_workflow"

    run_id: str | None = None
    signal: str


@dataclass(kw_only=True)
class QueryWorkflowInput(ClientCall):
    """A workflow is to be asked."""

    _method = "query_workflow"

    run_id: str | None = None
    query: str


@dataclass(kw_only=True)
class StartWorkflowUpdateInput(ClientCall):
    """An update is to be asked for; `update_id` is its own id, empty where a fresh one will be made."""

    _method = "start_workflow_update"

    run_id: str | None = None
    update: str
    update_id: str = ""


@dataclass(kw_only=True)
class StartUpdateWithStartInput(ClientCall):
    """A workflow is to be started, unless it runs, and an update asked of it; each of the two has arguments and headers."""

    _method = "start_update_with_start_workflow"

    start: StartWorkflowInput
    update: StartWorkflowUpdateInput


@dataclass(kw_only=True)
class CancelWorkflowInput(ClientCall):
    """A workflow is to be asked to cancel."""

    _method = "cancel_workflow"

    run_id: str | None = None
    reason: str = ""


@dataclass(kw_only=True)
class TerminateWorkflowInput(ClientCall):
    """A workflow is to be ended. `args` are the details."""

    _method = "terminate_workflow"

    run_id: str | None = None
    reason: str = ""


@dataclass(kw_only=True)
class DescribeWorkflowInput(ClientCall):
    """A workflow is to be looked at."""

    _method = "describe_workflow"

    run_id: str | None = None


class Interceptor:
    """Stands between callers and what they call, wherever it is put: override those `intercept_…` that you want.

    Given to `Client.connect(interceptors=[…])` it serves the client and every worker of that client; given to
    `Worker(interceptors=[…])` that worker alone. The first of a list is the outermost.
    """

    def intercept_client(self, next: ClientOutboundInterceptor) -> ClientOutboundInterceptor:
        """Put an interceptor before the next one, for a `Client`."""
        return next

    def intercept_async_client(self, next: AsyncClientOutboundInterceptor) -> AsyncClientOutboundInterceptor:
        """Put an interceptor before the next one, for an `AsyncClient`."""
        return next

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Put an interceptor before the next one, for the activities of a worker."""
        return next

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        """Put an interceptor before the next one, for one execution of a run. Must be deterministic, as workflow code is."""
        return next


# --- faces: awaited, the source of what follows ---


class AsyncClientOutboundInterceptor:
    """What an `AsyncClient` asks for, on its way out: as `ClientOutboundInterceptor`, and awaited."""

    def __init__(self, next: AsyncClientOutboundInterceptor) -> None:
        self.next = next

    async def start_workflow(self, input: StartWorkflowInput) -> Any:
        """Start a workflow; its handle."""
        return await self.next.start_workflow(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        """Send a signal."""
        return await self.next.signal_workflow(input)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        """Ask a question; the answer."""
        return await self.next.query_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        """Ask for an update; its handle."""
        return await self.next.start_workflow_update(input)

    async def start_update_with_start_workflow(self, input: StartUpdateWithStartInput) -> Any:
        """Start a workflow, unless it runs, and ask for an update; its handle."""
        return await self.next.start_update_with_start_workflow(input)

    async def cancel_workflow(self, input: CancelWorkflowInput) -> None:
        """Ask a workflow to cancel."""
        return await self.next.cancel_workflow(input)

    async def terminate_workflow(self, input: TerminateWorkflowInput) -> None:
        """End a workflow."""
        return await self.next.terminate_workflow(input)

    async def describe_workflow(self, input: DescribeWorkflowInput) -> Any:
        """Look at a workflow; what is seen."""
        return await self.next.describe_workflow(input)


class _LastAsyncClientOutbound(AsyncClientOutboundInterceptor):
    """The end of the chain: the call itself."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def _go_on(self, input: ClientCall) -> Any:
        return await self._session.aperform(input._proceed(input))

    start_workflow = signal_workflow = query_workflow = start_workflow_update = _go_on
    start_update_with_start_workflow = cancel_workflow = terminate_workflow = describe_workflow = _go_on


def async_client_chain(session: ClientSession) -> AsyncClientOutboundInterceptor:
    """What stands between an `AsyncClient` and its session."""
    outbound: AsyncClientOutboundInterceptor = _LastAsyncClientOutbound(session)
    for each in reversed(session.interceptors):
        outbound = each.intercept_async_client(outbound)
    return outbound


# --- faces: blocking, made by `make faces` from the lines above: edit those ---


class ClientOutboundInterceptor:
    """What a `Client` asks for, on its way out. Override what you want to see; call `self.next` to go on."""

    def __init__(self, next: ClientOutboundInterceptor) -> None:
        self.next = next

    def start_workflow(self, input: StartWorkflowInput) -> Any:
        """Start a workflow; its handle."""
        return self.next.start_workflow(input)

    def signal_workflow(self, input: SignalWorkflowInput) -> None:
        """Send a signal."""
        return self.next.signal_workflow(input)

    def query_workflow(self, input: QueryWorkflowInput) -> Any:
        """Ask a question; the answer."""
        return self.next.query_workflow(input)

    def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        """Ask for an update; its handle."""
        return self.next.start_workflow_update(input)

    def start_update_with_start_workflow(self, input: StartUpdateWithStartInput) -> Any:
        """Start a workflow, unless it runs, and ask for an update; its handle."""
        return self.next.start_update_with_start_workflow(input)

    def cancel_workflow(self, input: CancelWorkflowInput) -> None:
        """Ask a workflow to cancel."""
        return self.next.cancel_workflow(input)

    def terminate_workflow(self, input: TerminateWorkflowInput) -> None:
        """End a workflow."""
        return self.next.terminate_workflow(input)

    def describe_workflow(self, input: DescribeWorkflowInput) -> Any:
        """Look at a workflow; what is seen."""
        return self.next.describe_workflow(input)


class _LastClientOutbound(ClientOutboundInterceptor):
    """The end of the chain: the call itself."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    def _go_on(self, input: ClientCall) -> Any:
        return self._session.perform(input._proceed(input))

    start_workflow = signal_workflow = query_workflow = start_workflow_update = _go_on
    start_update_with_start_workflow = cancel_workflow = terminate_workflow = describe_workflow = _go_on


def client_chain(session: ClientSession) -> ClientOutboundInterceptor:
    """What stands between a `Client` and its session."""
    outbound: ClientOutboundInterceptor = _LastClientOutbound(session)
    for each in reversed(session.interceptors):
        outbound = each.intercept_client(outbound)
    return outbound


# --- faces: end ---


def checked(interceptors: Sequence[Interceptor]) -> tuple[Interceptor, ...]:
    """Interceptors as given, or a `UsageError` that says which is none."""
    given: Sequence[Any] = interceptors
    for each in given:
        if not isinstance(each, Interceptor):
            hint = ": give an instance" if isinstance(each, type) and issubclass(each, Interceptor) else ""
            raise UsageError(f"interceptors are objects of Interceptor's subclasses, not {each!r:.80}{hint}")
    return tuple(interceptors)


def activity_chain(interceptors: Sequence[Interceptor]) -> ActivityInboundInterceptor | None:
    """What stands between a worker and its activities; None, which costs nothing, where no interceptor wants to."""
    wanted = [each for each in interceptors if _overrides(each, "intercept_activity")]
    if not wanted:
        return None
    inbound: ActivityInboundInterceptor = LastActivityInbound()
    for each in reversed(wanted):
        inbound = each.intercept_activity(inbound)
    return inbound


def workflow_interceptors(interceptors: Sequence[Interceptor]) -> tuple[InterceptWorkflow, ...]:
    """What makes the chain of a run; empty, which costs nothing, where no interceptor wants to see runs."""
    return tuple(each.intercept_workflow for each in interceptors if _overrides(each, "intercept_workflow"))


def _overrides(interceptor: Interceptor, method: str) -> bool:
    return getattr(type(interceptor), method) is not getattr(Interceptor, method)
