"""`HourglassDurability`: the capability that makes an agent durable. In a workflow, the agent's model requests, tool calls
and MCP calls are activities, each with its own options. The agent's loop runs in the workflow. Outside workflows, the
capability does not change the agent.

It implements Pydantic AI's interface for durable execution engines (`pydantic_ai.durable_exec`), which defines the
operations. This module adds an activity for each operation, the activities' names and options, and the run's time and ids
for the agent's loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Literal, cast

# Imported now: otherwise the first workflow that waits would import this module during a run.
import anyio._backends._asyncio  # noqa: F401
from pydantic_ai._utils import disable_threads
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.capabilities.abstract import WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    BoundDurableOperation,
    DurabilityEngineSpec,
    DurableOperation,
    DurableOperationConfig,
    DurableOperationId,
    DurableRunContext,
    JournalOperationNamer,
    ModelRequestId,
    OperationConfigRole,
    RegisteredOperationBackend,
    ToolsetCallToolId,
    ToolsetKind,
    ToolsetValidateToolArgumentsId,
    conversation_id_from_run_id,
    durable_unit_scope,
)
from pydantic_ai.exceptions import AgentRunError, FallbackExceptionGroup, UserError
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, RunContext
from pydantic_ai.toolsets import ToolsetTool

from hourglass import activity, workflow
from hourglass._evaluator.messages import count_as_failures
from hourglass.activity import Activity, ActivityOptions
from hourglass.contrib import _agents
from hourglass.contrib.pydantic_ai._errors import as_failure, from_failure
from hourglass.contrib.pydantic_ai._wire import Wire
from hourglass.errors import ActivityError, UsageError

SPEC = DurabilityEngineSpec(
    engine_name="Hourglass",
    durable_unit_noun="activity",
    durable_unit_plural="activities",
    durable_container_noun="workflow",
    codec=JSON_CODEC,
    # An activity may run in another process, so its toolsets are entered in that process.
    toolset_lifecycles={
        "function": "enter-outside-durable",
        "mcp": "enter-outside-durable",
        "dynamic": "enter-never",
    },
    unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
    tool_config_key="hourglass",
)


def _in_workflow(ours: Callable[[], Any], real: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: ours() if workflow.in_workflow() else real()


_agents.replace(
    "pydantic_ai",
    {
        "pydantic_ai._utils:datetime": lambda _: _agents.RunDatetime,
        "pydantic_ai._utils:time": lambda _: _agents.run_time,
        "pydantic_ai._utils:uuid": lambda _: SimpleNamespace(uuid4=_agents.uuid4),
        "pydantic_ai._model_request_attempts:datetime": lambda _: _agents.RunDatetime,
        "pydantic_ai._model_request_attempts:perf_counter_ns": lambda real: _in_workflow(
            workflow.time_ns, real
        ),
        "pydantic_ai._tool_execution:asyncio": lambda _: _agents.OrderedAsyncio(),
        "pydantic_ai._agent_graph:time": lambda _: _agents.run_time,
        "pydantic_ai.models:time": lambda _: _agents.run_time,
        "pydantic_ai.models._continuation:time": lambda _: _agents.run_time,
        "pydantic_ai._agent_graph:AttemptStart": lambda real: _in_workflow(
            lambda: real(workflow.now(), workflow.time_ns()), real
        ),
        "pydantic_ai._agent_graph:uuid7": lambda real: _in_workflow(_agents.uuid4, real),
        "pydantic_ai._enqueue:uuid7": lambda real: _in_workflow(_agents.uuid4, real),
        "pydantic_ai.conversation:uuid7": lambda real: _in_workflow(_agents.uuid4, real),
        "pydantic_ai.models.instrumented:time": lambda _: _agents.run_time,
        "pydantic_ai.agent:uuid4": lambda _: _agents.uuid4,
        # Names within a graph that is stored for later runs, so they must not use the random numbers of a particular run.
        "pydantic_graph.id_types:uuid": lambda _: SimpleNamespace(uuid4=_agents.any_uuid4),
    },
)

# An agent's error fails its run, and does not count as a bug in the workflow's code.
count_as_failures(AgentRunError, FallbackExceptionGroup, UserError)


class HourglassDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable: `Agent(…, name="support", capabilities=[HourglassDurability()])`.

    `name` identifies the agent's activities, and defaults to the agent's own name. It must not change while runs are open.
    `options` are the options of all activities. `model_options` (requests to the model), `tool_options` (tool and MCP calls)
    and `event_options` (the event handler) extend or override them. A tool may have its own options in
    `metadata={"hourglass": {…}}`. With `{"hourglass": False}`, an `async def` tool runs in the workflow itself, where it may
    call activities, wait for signals and run other agents.

    `models` are additional models, by the names used in `agent.run(model=…)`. `event_stream_handler` is called in the
    activity that receives the model's response, so that it can publish tokens. For all other events, it is called in a
    separate activity.
    """

    engine_spec = SPEC

    def __init__(
        self,
        *,
        name: str | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        options: ActivityOptions | None = None,
        model_options: ActivityOptions | None = None,
        tool_options: ActivityOptions | None = None,
        event_options: ActivityOptions | None = None,
        run_context_type: type[DurableRunContext[Any]] = DurableRunContext,
    ) -> None:
        handler = None if event_stream_handler is None else _guarded(event_stream_handler)
        super().__init__(models=models, event_stream_handler=handler, name=name)
        common = options or {}
        self._options: dict[OperationConfigRole, dict[str, Any]] = {
            "model": {**common, **(model_options or {})},
            "tool": {**common, **(tool_options or {})},
            "event": {**common, **(event_options or {})},
            "capability": {**common},
        }
        for role, role_options in self._options.items():
            _checked(role_options, f"{role} options")
        self._context_type = run_context_type
        self._backend: _Backend | None = None
        # Shared with the copies that agents receive, because the worker receives the original object.
        self._bound: list[HourglassDurability[Any]] = []

    def __hourglass_activities__(self) -> Sequence[Activity[..., Any]]:
        """Return the activities to register in `Worker(activities=[durability])`: the activities of all agents that have
        this capability.
        """
        if not self._bound:
            raise UsageError(
                "this HourglassDurability does not belong to an agent: pass it to Agent(…, capabilities=[durability])"
            )
        return [
            bound_activity
            for bound in self._bound
            for bound_activity in bound.get_durable_operation_backend().activities
        ]

    def _check_bindable(self) -> None:
        _agents.check_outside_workflow("a durable agent")

    def _bind_to_agent(self, agent: AbstractAgent[AgentDepsT, Any]) -> None:
        self._backend = _Backend(
            self.name, _Options(self._options), Wire(self.name, agent, SPEC, self._context_type)
        )
        self._bound.append(self)
        # Otherwise it would be bound in the first run, too late for workers to register its activities.
        if self._event_stream_handler is not None:
            self._bound_event_operation = self._bind_event_operation(self._backend)
        super()._bind_to_agent(agent)

    def get_durable_operation_backend(self) -> _Backend:
        """Return the backend that turns operations into activities."""
        assert self._backend is not None
        return self._backend

    def _toolset_base_config(self, kind: ToolsetKind) -> Any:
        return self._options["tool"]

    @property
    def in_durable_context(self) -> bool:
        """Whether the code runs in a workflow."""
        if not workflow.in_workflow():
            return False
        _agents.require_loop(
            f"agent {self.name}: run_sync",
            "workflow.run_async(agent.run(…)), or `await agent.run(…)` in an `async def`",
        )
        return True

    def get_default_run_id(self) -> str | None:
        """Return a run id that is the same in every execution."""
        return f"{workflow.info().run_id}:{_agents.uuid4()}" if self.in_durable_context else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return a conversation id that is the same in every execution."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def get_run_clock(self) -> Callable[[], datetime] | None:
        """Return the workflow's clock, for the agent's deadlines."""
        return workflow.now if self.in_durable_context else None

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Run the agent's loop. In a workflow it uses no threads: for example, functions that return instructions are called
        directly.
        """
        if not self.in_durable_context:
            return await handler()
        with disable_threads():
            return await handler()

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Disable the client's own retries unless the settings request them. Otherwise they would multiply the activity's
        retries.
        """
        model_request = await super().before_model_request(ctx, request_context)
        settings = model_request.model_settings or {}
        model: Any = model_request.model
        while isinstance(model, WrapperModel):
            model = model.wrapped
        if (
            self.in_durable_context
            and "max_retries" not in settings
            and "max_retries" not in model.unsupported_settings
        ):
            model_request.model_settings = {**settings, "max_retries": 0}
        return model_request


class _Options(DurableOperationConfig[dict[str, Any]]):
    """The options of the operations: the options of the operation's role, extended by a tool's metadata."""

    def __init__(self, by_role: Mapping[OperationConfigRole, dict[str, Any]]) -> None:
        self._by_role = by_role

    def base(self, role: OperationConfigRole, *, operation_id: DurableOperationId) -> dict[str, Any]:
        """Return the options of a role."""
        return self._by_role[role]

    def for_tool(
        self,
        role: OperationConfigRole,
        *,
        operation_id: DurableOperationId,
        tool: object | None,
        tool_name: str,
    ) -> dict[str, Any] | Literal[False]:
        """Return the options of a tool, or False if the tool runs in the workflow."""
        definition = tool.tool_def if isinstance(tool, ToolsetTool) else None
        tool_options = ((definition.metadata if definition is not None else None) or {}).get("hourglass", {})
        if tool_options is False:
            if not getattr(tool, "is_async", False):
                raise UserError(
                    f"tool {tool_name} has metadata {{'hourglass': False}}, so that it would run in the workflow: only an "
                    "`async def` function of a FunctionToolset can do that"
                )
            return False
        if not isinstance(tool_options, Mapping):
            raise UserError(
                f"tool {tool_name}: metadata['hourglass'] must be options or False, not {tool_options!r:.80}"
            )
        return _checked({**self._by_role[role], **tool_options}, f"tool {tool_name}")


def _checked(options: dict[str, Any], where: str) -> dict[str, Any]:
    try:
        _probe.options(**cast(ActivityOptions, options))
    except UsageError as error:
        raise UserError(f"{where}: {error}") from error
    return options


@activity.defn(name="hourglass.agents")
def _probe() -> None:
    """Do nothing: this activity exists only to validate options, and never runs."""


class _Backend(RegisteredOperationBackend[dict[str, Any]]):
    """Defines an activity for each operation of an agent."""

    def __init__(self, name: str, options: _Options, wire: Wire) -> None:
        super().__init__(namer=JournalOperationNamer(name), config=options, parameter_transports=wire)
        self._name = name
        self._bound: list[_Bound] = []

    @property
    def activities(self) -> list[Activity[..., Any]]:
        """All activities: one for each operation, and one for each tool known so far."""
        return [bound_activity for bound in self._bound for bound_activity in bound.activities()]

    def register(
        self, operation: DurableOperation[Any, Any, Any], *, name: str, config: dict[str, Any]
    ) -> tuple[BoundDurableOperation[Any, Any, Any], Sequence[Callable[..., object]]]:
        """Define the activity for an operation."""

        async def perform(request: dict[str, Any]) -> Any:
            try:
                params = operation.parameter_transport.load(request, runtime=self)
                with durable_unit_scope():
                    return operation.result_codec.dump(await operation.handler(params))
            except Exception as error:
                failure = as_failure(error)
                if failure is error:
                    raise
                raise failure from error

        def define(type_name: str) -> Activity[..., Any]:
            return activity.defn(name=type_name, **cast(ActivityOptions, config))(perform)

        bound = _Bound(operation, name, define, _tool_namer(self._name, operation))
        self._bound.append(bound)
        return bound, ()


def _tool_namer(agent: str, operation: DurableOperation[Any, Any, Any]) -> Callable[[str], str] | None:
    """Return a function from a tool's name to the name of its activity if the operation is on function tools. Return None
    for other operations.
    """
    operation_id = operation.operation_id
    if (
        not isinstance(operation_id, (ToolsetCallToolId, ToolsetValidateToolArgumentsId))
        or operation_id.toolset_kind != "function"
    ):
        return None
    # The id of a toolset is used only if an agent has several toolsets, because these may have tools with the same name.
    suffix = "" if operation_id.toolset_id == "<agent>" else f"__{operation_id.toolset_id}"
    step = "" if isinstance(operation_id, ToolsetCallToolId) else ".validate_args"
    return lambda tool: f"{agent}__tool{suffix}.{tool}{step}"


class _Bound(BoundDurableOperation[Any, Any, Any]):
    """An operation as called by the agent's loop in the workflow.

    Each function tool has its own activity type, so that timelines, logs and metrics can distinguish tools. A tool of an MCP
    server, or of a toolset that is created for each run, is known only during the run. A call of this tool has the
    operation's activity type, and the tool's name is in the summary.
    """

    def __init__(
        self,
        operation: DurableOperation[Any, Any, Any],
        name: str,
        define: Callable[[str], Activity[..., Any]],
        tool_name: Callable[[str], str] | None,
    ) -> None:
        self._operation = operation
        self._perform = define(name)
        self._define = define
        self._type_of = tool_name
        self._by_tool: dict[str, Activity[..., Any]] = {}

    def activities(self) -> list[Activity[..., Any]]:
        """Return the activities that a worker must register."""
        return [self._perform, *filter(None, map(self._activity_of_tool, self._tools()))]

    def _tools(self) -> Mapping[str, object]:
        toolset = getattr(self._operation.parameter_transport, "toolset", None)
        return {} if toolset is None or self._type_of is None else toolset.tools

    def _activity_of_tool(self, tool: str) -> Activity[..., Any] | None:
        if self._type_of is None or tool not in self._tools():
            return None
        if tool not in self._by_tool:
            self._by_tool[tool] = self._define(self._type_of(tool))
        return self._by_tool[tool]

    @property
    def operation(self) -> DurableOperation[Any, Any, Any]:
        """The operation that this object calls."""
        return self._operation

    async def __call__(self, params: Any, *, config: object | None = None) -> Any:
        """Run the operation's activity and wait for its result."""
        options = {"summary": _summary(self._operation, params), **cast("dict[str, Any]", config or {})}
        request = self._operation.parameter_transport.dump(params)
        try:
            result = await _agents.execute(self._activity_for(params), request, **options)
        except ActivityError as error:
            rebuilt = from_failure(error)
            if rebuilt is None:
                raise
            raise rebuilt from error
        return self._operation.result_codec.load(result)

    def _activity_for(self, params: Any) -> Activity[..., Any]:
        name = getattr(params, "name", None)
        # A tool's `prepare` may have renamed the tool for the model.
        name = getattr(getattr(params, "tool", None), "original_name", None) or name
        return (self._activity_of_tool(name) if isinstance(name, str) else None) or self._perform


def _summary(operation: DurableOperation[Any, Any, Any], params: Any) -> str:
    """Return a summary of a call, to be recorded in the history."""
    operation_id = operation.operation_id
    if isinstance(operation_id, ModelRequestId):
        return f"request {params.model_id or operation_id.model_name}"
    if operation.invocation_label is not None:
        return f"call {operation.invocation_label(params)}"
    name = getattr(params, "name", None)
    return f"call {name}" if isinstance(name, str) else ""


def _guarded(handler: EventStreamHandler[AgentDepsT]) -> EventStreamHandler[AgentDepsT]:
    """Wrap an event handler for use in an activity. If the handler raises, the run fails instead of repeating the model
    request.
    """

    async def guarded(ctx: RunContext[AgentDepsT], events: AsyncIterable[AgentStreamEvent]) -> None:
        stream_errors: list[Exception] = []

        async def watched() -> AsyncGenerator[AgentStreamEvent]:
            try:
                async for event in events:
                    yield event
            except Exception as error:
                stream_errors.append(error)
                raise
            finally:  # a handler that raises leaves the stream unfinished
                if isinstance(events, AsyncGenerator):
                    await events.aclose()

        try:
            async with aclosing(watched()) as stream:
                await handler(ctx, stream)
        except Exception as error:
            if stream_errors or not activity.in_activity():
                raise
            message = f"the event_stream_handler raised {type(error).__name__}: {error}"
            raise _agents.non_retryable(message, "EventStreamHandlerError") from error

    return guarded
