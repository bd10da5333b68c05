"""The arguments of an agent's activities as JSON: the request itself, the run's context, and its dependencies.

Models, tools and toolsets are looked up in the worker's own agent, so a name in a request cannot make the worker import or
call other objects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

from pydantic import ConfigDict, PydanticUserError, RootModel, TypeAdapter, with_config
from pydantic_ai.durable_exec import (
    CapabilityMethodDeclaration,
    CapabilityOperationParams,
    DurabilityEngineSpec,
    DurableRunContext,
    DynamicToolsetCallToolParams,
    EventStreamHandlerParams,
    ModelCancelSuspendedResponseParams,
    ModelCompactMessagesParams,
    ModelRequestParams,
    ParameterTransport,
    ParameterTransports,
    ToolsetCallToolParams,
    ToolsetGetToolsParams,
    WorkspaceCall,
    WorkspaceCallParams,
    revalidate_function_call,
)
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestContext, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, FunctionToolset
from pydantic_ai.workspaces import WorkspaceRef
from pydantic_core import PydanticSerializationError

from hourglass import activity
from hourglass.contrib import _agents
from hourglass.errors import UsageError

P = TypeVar("P")


class Messages(RootModel[list[ModelMessage]]):
    """A conversation as an argument or result of a workflow: `Messages(result.all_messages())`. Its `root` is the list of
    messages.
    """

    root: list[ModelMessage] = field(default_factory=list)


_ANY = ConfigDict(arbitrary_types_allowed=True)


@with_config(_ANY)
@dataclass(kw_only=True)
class _Request:
    """The fields that every request to an activity of an agent contains."""

    context: dict[str, Any] | None = None
    deps: Any = None


@with_config(_ANY)
@dataclass(kw_only=True)
class _ModelRequest(_Request):
    model_id: str | None
    messages: list[ModelMessage]
    # `ModelSettings` is not used, because it would drop provider-specific settings.
    settings: dict[str, Any] | None
    parameters: ModelRequestParameters


@with_config(_ANY)
@dataclass(kw_only=True)
class _Compaction(_ModelRequest):
    streaming: bool
    instructions: str | None


@with_config(_ANY)
@dataclass(kw_only=True)
class _Cancellation(_Request):
    model_id: str | None
    response: ModelResponse


@with_config(_ANY)
@dataclass(kw_only=True)
class _Event(_Request):
    event: AgentStreamEvent


@with_config(_ANY)
@dataclass(kw_only=True)
class _CapabilityCall(_Request):
    model_id: str | None
    arguments: dict[str, Any]


@with_config(_ANY)
@dataclass(kw_only=True)
class _Workspace(_Request):
    call: WorkspaceCall
    ref: WorkspaceRef | None


@with_config(_ANY)
@dataclass(kw_only=True)
class _ToolCall(_Request):
    name: str
    arguments: dict[str, Any]
    definition: ToolDefinition | None
    original_name: str | None = None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the adapter for a request type. All agents share the adapters, because creating all of them takes a third of a
    second.
    """
    return TypeAdapter(kind)


class _Transport(ParameterTransport[P, dict[str, Any]], Generic[P]):
    """Converts requests of one type. `pack` and `unpack` convert the fields of that type; context and dependencies are
    converted in the same way for all types.
    """

    def __init__(
        self,
        wire: Wire,
        kind: Any,
        pack: Callable[[P], dict[str, Any]],
        unpack: Callable[[Any, RunContext[Any]], P],
        context_of: Callable[[P], RunContext[Any] | None] = attrgetter("run_context"),
        toolset: FunctionToolset[Any] | None = None,
    ) -> None:
        self._wire = wire
        self._kind = _adapter(kind)
        self._make = kind
        self._pack = pack
        self._unpack = unpack
        self._context_of = context_of
        self.toolset = toolset
        """The toolset whose functions the operation calls, if any."""

    def dump(self, params: P) -> dict[str, Any]:
        """Convert a request to JSON."""
        ctx = self._context_of(params)
        fields = self._pack(params)
        if ctx is not None:
            fields["context"] = self._wire.context_type.serialize_run_context(ctx)
            fields["deps"] = self._wire.dump_deps(ctx.deps)
        try:
            dumped: dict[str, Any] = _agents.to_json(self._make(**fields), self._kind)
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            raise UsageError(
                f"agent {self._wire.name}: its request cannot be encoded as JSON: {error}. Check the model's settings "
                f"and the metadata of runs and tools"
            ) from error
        return dumped

    def load(self, payload: dict[str, Any], *, runtime: object) -> P:
        """Convert JSON to a request. Runs in the activity."""
        request = self._kind.validate_python(payload)
        ctx: Any = None
        if request.context is not None:
            ctx = self._wire.context_type.restore(
                request.context,
                deps=self._wire.load_deps(request.deps),
                agent=self._wire.agent,
                engine_spec=self._wire.spec,
            )
        return self._unpack(request, ctx)


class Wire(ParameterTransports):
    """The converters for all request types of an agent."""

    def __init__(
        self,
        name: str,
        agent: Any,
        spec: DurabilityEngineSpec,
        context_type: type[DurableRunContext[Any]],
    ) -> None:
        self.name = name
        self.agent = agent
        self.spec = spec
        self.context_type = context_type
        self._deps_type: Any = agent.deps_type

    @cached_property
    def _deps_adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self._deps_type)

    def dump_deps(self, deps: Any) -> Any:
        """Return dependencies as JSON. None represents the worker's own dependencies."""
        if deps is None:
            return None
        try:
            return _agents.to_json(deps, self._deps_adapter)
        except (PydanticUserError, PydanticSerializationError, ValueError, RecursionError) as error:
            raise UsageError(
                f"agent {self.name}: its deps, of type {type(deps).__qualname__}, cannot be encoded as JSON: {error}. Run it "
                f"without deps, and pass an object of that type to Worker(resources=[…])"
            ) from error

    def load_deps(self, encoded: Any) -> Any:
        """Return the dependencies for an activity: from the request, or else the worker's resource of the dependency type."""
        kind = self._deps_type
        if encoded is not None:
            return self._deps_adapter.validate_python(encoded)
        if isinstance(kind, type) and kind not in (type(None), object):
            try:
                return activity.resource(kind)
            except UsageError as error:
                raise _agents.non_retryable(
                    f"agent {self.name} was run without deps, so they are the worker's: {error}"
                ) from error
        return None

    def model_request(self, result_type: object) -> ParameterTransport[ModelRequestParams, Any]:
        """Return the converter for requests to the model."""
        return _Transport(
            self,
            _ModelRequest,
            lambda params: {
                "model_id": params.model_id,
                "messages": params.messages,
                "settings": params.model_settings,
                "parameters": params.model_request_parameters,
            },
            lambda request, ctx: ModelRequestParams(
                request.model_id,
                messages=request.messages,
                model_settings=request.settings,
                model_request_parameters=request.parameters,
                run_context=ctx,
            ),
        )

    def compact_messages(self) -> ParameterTransport[ModelCompactMessagesParams, Any]:
        """Return the converter for requests to shorten a conversation at the provider."""

        def unpack(request: _Compaction, ctx: RunContext[Any]) -> ModelCompactMessagesParams:
            context = ModelRequestContext(
                model=cast("Model[Any]", None),  # the activity inserts the agent's own model
                messages=request.messages,
                model_settings=cast("ModelSettings | None", request.settings),
                model_request_parameters=request.parameters,
            )
            context.model_id = request.model_id
            context.streaming = request.streaming
            return ModelCompactMessagesParams(
                request.model_id, request_context=context, instructions=request.instructions, run_context=ctx
            )

        return _Transport(
            self,
            _Compaction,
            lambda params: {
                "model_id": params.model_id,
                "messages": params.request_context.messages,
                "settings": params.request_context.model_settings,
                "parameters": params.request_context.model_request_parameters,
                "streaming": params.request_context.streaming,
                "instructions": params.instructions,
            },
            unpack,
        )

    def cancel_suspended_response(self) -> ParameterTransport[ModelCancelSuspendedResponseParams, Any]:
        """Return the converter for requests to cancel a response at the provider."""
        return _Transport(
            self,
            _Cancellation,
            lambda params: {"model_id": params.model_id, "response": params.response},
            lambda request, ctx: ModelCancelSuspendedResponseParams(
                request.model_id, response=request.response, run_context=ctx
            ),
        )

    def event_stream_handler(self) -> ParameterTransport[EventStreamHandlerParams, Any]:
        """Return the converter for events passed to the user's handler."""
        return _Transport(
            self,
            _Event,
            lambda params: {"event": params.event},
            lambda request, ctx: EventStreamHandlerParams(request.event, run_context=ctx),
        )

    def capability_operation(
        self, declaration: CapabilityMethodDeclaration
    ) -> ParameterTransport[CapabilityOperationParams, Any]:
        """Return the converter for a durable operation of another capability."""
        return _Transport(
            self,
            _CapabilityCall,
            lambda params: {"model_id": params.model_id, "arguments": params.arguments},
            lambda request, ctx: CapabilityOperationParams(
                ctx, arguments=request.arguments, model_id=request.model_id
            ),
        )

    def workspace_call(self) -> ParameterTransport[WorkspaceCallParams, Any]:
        """Return the converter for calls of the agent's workspace."""
        return _Transport(
            self,
            _Workspace,
            lambda params: {"call": params.call, "ref": params.ref},
            lambda request, ctx: WorkspaceCallParams(run_context=ctx, ref=request.ref, call=request.call),
        )

    def function_call(self, toolset: FunctionToolset[Any]) -> ParameterTransport[ToolsetCallToolParams, Any]:
        """Return the converter for calls of a function tool."""

        def unpack(request: _ToolCall, ctx: RunContext[Any]) -> ToolsetCallToolParams:
            assert request.definition is not None
            try:
                tool = toolset.tool_for_tool_def(
                    request.definition, ctx=ctx, original_name=request.original_name
                )
            except KeyError as error:
                raise _agents.non_retryable(
                    f"agent {self.name} of this worker has no tool {request.name!r}"
                ) from error
            return ToolsetCallToolParams(request.name, tool_args=request.arguments, ctx=ctx, tool=tool)

        return self._tool_call(unpack, toolset)

    async def prepare_function_call(
        self, toolset: FunctionToolset[Any], params: ToolsetCallToolParams
    ) -> ToolsetCallToolParams:
        """Convert the arguments from JSON to the annotated types of the function's parameters."""
        return await revalidate_function_call(toolset, params, engine_spec=self.spec)

    def mcp_call(self, toolset: AbstractToolset[Any]) -> ParameterTransport[ToolsetCallToolParams, Any]:
        """Return the converter for calls of an MCP server's tool."""

        def unpack(request: _ToolCall, ctx: RunContext[Any]) -> ToolsetCallToolParams:
            tool = cast(Any, toolset).tool_for_tool_def(request.definition, ctx=ctx)
            return ToolsetCallToolParams(request.name, tool_args=request.arguments, ctx=ctx, tool=tool)

        return self._tool_call(unpack)

    def _tool_call(
        self,
        unpack: Callable[[_ToolCall, RunContext[Any]], ToolsetCallToolParams],
        toolset: FunctionToolset[Any] | None = None,
    ) -> ParameterTransport[ToolsetCallToolParams, Any]:
        return _Transport(
            self,
            _ToolCall,
            lambda params: {
                "name": params.name,
                "arguments": params.tool_args,
                "definition": None if params.tool is None else params.tool.tool_def,
                "original_name": getattr(params.tool, "original_name", None),
            },
            unpack,
            attrgetter("ctx"),
            toolset,
        )

    def get_tools(self, toolset: AbstractToolset[Any]) -> ParameterTransport[ToolsetGetToolsParams, Any]:
        """Return the converter for requests for a toolset's tools."""
        return _Transport(
            self,
            _Request,
            lambda params: {},
            lambda request, ctx: ToolsetGetToolsParams(ctx),
            attrgetter("ctx"),
        )

    def get_instructions(
        self, toolset: AbstractToolset[Any]
    ) -> ParameterTransport[ToolsetGetToolsParams, Any]:
        """Return the converter for requests for a server's instructions."""
        return self.get_tools(toolset)

    def dynamic_get_tools(
        self, toolset: DynamicToolset[Any]
    ) -> ParameterTransport[ToolsetGetToolsParams, Any]:
        """Return the converter for requests for the current tools of a dynamic toolset."""
        return self.get_tools(toolset)

    def dynamic_call(
        self, toolset: DynamicToolset[Any]
    ) -> ParameterTransport[DynamicToolsetCallToolParams, Any]:
        """Return the converter for calls of a tool in a toolset that is created for each run."""
        return _Transport(
            self,
            _ToolCall,
            lambda params: {
                "name": params.name,
                "arguments": params.tool_args,
                "definition": params.tool_def,
            },
            lambda request, ctx: DynamicToolsetCallToolParams(
                request.name, tool_args=request.arguments, ctx=ctx, tool_def=request.definition
            ),
            attrgetter("ctx"),
        )
