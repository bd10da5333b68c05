"""`DurableRunner`: agents for workflows. The library's own loop runs in the workflow. Models, tools and MCP servers are
replaced by versions that execute the originals in activities.

The original agents are not changed: the runner uses copies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, cast

# Imported now: otherwise the first workflow that waits would import this module during a run.
import anyio._backends._asyncio  # noqa: F401
from agents import (
    Agent,
    AgentOutputSchemaBase,
    AgentsException,
    FunctionTool,
    Handoff,
    Model,
    ModelProvider,
    ModelResponse,
    ModelSettings,
    ModelTracing,
    MultiProvider,
    RunConfig,
    Runner,
    RunResult,
    RunResultStreaming,
    RunState,
    Tool,
    TResponseInputItem,
)
from agents.items import TResponseStreamEvent
from agents.mcp import MCPServer
from agents.run_context import RunContextWrapper
from agents.tool_context import ToolContext
from agents.tracing import get_trace_provider
from mcp.types import CallToolResult, GetPromptResult, ListPromptsResult
from mcp.types import Tool as MCPTool

from hourglass import activity, workflow
from hourglass._evaluator.messages import count_as_failures
from hourglass.activity import Activity, ActivityOptions
from hourglass.contrib import _agents
from hourglass.contrib.openai_agents import _activities
from hourglass.contrib.openai_agents._activities import Function, ModelRequest, StreamHandler
from hourglass.errors import UsageError

C = TypeVar("C")

_agents.replace(
    "agents",
    {
        **{
            f"agents.{module}:uuid4": lambda _: _agents.uuid4
            for module in (
                "run",
                "run_state",
                "run_internal.items",
                "run_internal.run_grouping",
                "run_internal.run_loop",
            )
        },
        # Stored with the agent for later runs, so it must not use the random numbers of a particular run.
        "agents.run_context:uuid4": lambda _: _agents.any_uuid4,
        "agents.run_internal.tool_execution:asyncio": lambda _: _agents.OrderedAsyncio(),
        # When a guardrail is triggered, the library imports `temporalio.workflow` to find out whether it runs in a workflow
        # of temporalio. The import would take half a second or more during a run, and the answer is always the same here.
        "agents.run:should_cancel_parallel_model_task_on_input_guardrail_trip": lambda real: (
            lambda: workflow.in_workflow() or real()
        ),
    },
)

get_trace_provider()  # created now instead of in the first run, because creating it reads clocks

# An agent's error fails its run, and does not count as a bug in the workflow's code.
count_as_failures(AgentsException)


class DurableRunner(Generic[C]):
    """Runs an agent in workflows: `runner.run_sync(question)`, or `await runner.run(question)` in an `async def`.

    Agents are found through the handoffs of the first agent. Pass agents that a handoff creates at run time as `agents`.
    `context_type` is the type of the `context` of runs. The context is sent to tools as JSON, and changes that a tool makes
    to it are not sent back. `model_provider` creates models from their names, in the worker.

    `options` are the options of all activities. `model_options` and `mcp_options` extend them for calls to models and MCP
    servers, and `tool_options` extends them for each tool, by name. With False instead of options, an `async def` tool runs
    in the workflow itself, where it may call activities, wait for signals and run other agents. `stream_handler` is called
    in the activity with each event of a model's stream, so that it can publish tokens. `name` is a prefix for all activity
    types, needed if two runners in the same worker share an agent.

    Outside workflows, the methods behave like the methods of `agents.Runner`.
    """

    def __init__(
        self,
        agent: Agent[C],
        *,
        agents: Sequence[Agent[C]] = (),
        name: str = "",
        context_type: Any = None,
        model_provider: ModelProvider | None = None,
        stream_handler: StreamHandler | None = None,
        options: ActivityOptions | None = None,
        model_options: ActivityOptions | None = None,
        tool_options: Mapping[str, ActivityOptions | Literal[False]] | None = None,
        mcp_options: ActivityOptions | None = None,
    ) -> None:
        _agents.check_outside_workflow("a DurableRunner")
        self._original = agent
        self._prefix = f"{name}." if name else ""
        self._context_type = context_type
        self._provider = model_provider
        self._stream_handler = stream_handler
        self._common: dict[str, Any] = {**(options or {})}
        self._model_options = {**self._common, **(model_options or {})}
        self._mcp_options = {**self._common, **(mcp_options or {})}
        self._tool_options = dict(tool_options or {})
        self._activities: list[Activity[..., Any]] = []
        self._durable: dict[int, Agent[Any]] = {}
        # keeps the agents alive, so that their ids are not reused for other agents
        self._originals: list[Agent[Any]] = []
        for given_agent in (agent, *agents):
            self._make_durable(given_agent)
        self._check(agent.name)

    def _check(self, name: str) -> None:
        tool_names = {tool.name for original in self._originals for tool in original.tools}
        unknown = sorted(set(self._tool_options) - tool_names)
        if unknown:
            raise UsageError(
                f"tool_options: agent {name} and the agents to which it hands over have no tool {', '.join(unknown)}"
            )
        names = [original.name for original in self._originals]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise UsageError(
                f"two agents of one runner have the name {duplicates[0]!r}: their activities would have the same names"
            )

    def __hourglass_activities__(self) -> Sequence[Activity[..., Any]]:
        """Return the activities to register in `Worker(activities=[runner])`."""
        return self._activities

    @property
    def agent(self) -> Agent[C]:
        """The first agent in its form for workflows, e.g. for `RunState.from_json`."""
        return self._durable[id(self._original)]

    async def run(
        self,
        input: str | list[TResponseInputItem] | RunState[C],
        *,
        starting_agent: Agent[C] | None = None,
        run_config: RunConfig | None = None,
        **options: Any,
    ) -> RunResult:
        """Run the agent. `options` are passed to `agents.Runner.run`. `starting_agent` is another agent of the runner, for
        example the `last_agent` of the previous result.
        """
        if not workflow.in_workflow():
            agent: Any = self._original if starting_agent is None else starting_agent
            return await Runner.run(agent, input, run_config=run_config, **options)
        return await Runner.run(
            self.agent if starting_agent is None else self._durable_of(starting_agent),
            input,
            run_config=_run_config_of(run_config, options),
            **options,
        )

    def run_sync(
        self,
        input: str | list[TResponseInputItem] | RunState[C],
        *,
        starting_agent: Agent[C] | None = None,
        run_config: RunConfig | None = None,
        **options: Any,
    ) -> RunResult:
        """Run the agent in a plain workflow and wait for its result."""
        if not workflow.in_workflow():
            agent: Any = self._original if starting_agent is None else starting_agent
            return Runner.run_sync(agent, input, run_config=run_config, **options)
        return workflow.run_async(
            self.run(input, starting_agent=starting_agent, run_config=run_config, **options)
        )

    def run_streamed(self, input: Any, **options: Any) -> RunResultStreaming:
        """Run the agent outside workflows and stream its events. Raise `UsageError` in a workflow."""
        if workflow.in_workflow():
            raise UsageError(
                "run_streamed is not supported in a workflow, because an activity receives the model's stream. Use "
                "DurableRunner(stream_handler=…), which the activity calls with each event and which can publish it with "
                "hourglass.progress, and call run() or run_sync()"
            )
        return Runner.run_streamed(options.pop("starting_agent", None) or self._original, input, **options)

    def _durable_of(self, agent: Agent[Any]) -> Agent[Any]:
        if any(agent is durable_agent for durable_agent in self._durable.values()):
            return agent
        durable = self._durable.get(id(agent))
        if durable is None:
            raise UsageError(
                f"agent {agent.name} is not part of this DurableRunner, so no worker has its activities: use "
                f"DurableRunner(…, agents=[{agent.name}])"
            )
        return durable

    def _make_durable(self, agent: Agent[Any]) -> Agent[Any]:
        """Return a copy of an agent that uses activities for its model, tools and servers. Also copy the targets of its
        handoffs.
        """
        existing = self._durable.get(id(agent))
        if existing is not None:
            return existing
        if agent.model_settings.retry is not None:
            raise UsageError(
                f"agent {agent.name} has ModelSettings.retry, which would multiply the retries of its activities: omit it, "
                "and use model_options={'retry_policy': RetryPolicy(…)}"
            )
        durable = self._durable[id(agent)] = dataclasses.replace(agent)
        self._originals.append(agent)
        durable.model = self._model(agent)
        durable.tools = [self._tool(agent, tool) for tool in agent.tools]
        durable.mcp_servers = [self._server(agent, server) for server in agent.mcp_servers]
        durable.handoffs = [self._handoff(handoff) for handoff in agent.handoffs]
        return durable

    def _handoff(self, original: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(original, Agent):
            return self._make_durable(original)
        target = original._agent_ref() if original._agent_ref is not None else None
        if isinstance(target, Agent):
            self._make_durable(target)
        invoke = original.on_invoke_handoff

        async def hand_over(context: RunContextWrapper[Any], arguments: str) -> Agent[Any]:
            return self._durable_of(await invoke(context, arguments))

        return dataclasses.replace(original, on_invoke_handoff=hand_over)

    def _define(self, name: str, options: Mapping[str, Any], fn: Callable[..., Any]) -> Activity[..., Any]:
        definition = activity.defn(name=self._prefix + name, **cast(ActivityOptions, options))(fn)
        self._activities.append(definition)
        return definition

    def _model(self, agent: Agent[Any]) -> Model:
        def provider() -> ModelProvider:
            if self._provider is None:
                self._provider = MultiProvider()
            return self._provider

        async def request_response(request: ModelRequest) -> Any:
            return await _activities.request_response(agent, provider, request, self._stream_handler)

        return _DurableModel(
            agent, self._define(f"{agent.name}.model", self._model_options, request_response)
        )

    def _tool(self, agent: Agent[Any], tool: Tool) -> Tool:
        tool_options = self._tool_options.get(tool.name, {})
        if not isinstance(tool, FunctionTool) or isinstance(tool_options, bool):
            return tool  # the tool runs at the provider, or in the workflow

        async def call(arguments: str, call_id: str, context: Any) -> Any:
            return await _activities.call(agent, tool, arguments, call_id, context)

        if self._context_type is not None:
            call.__annotations__["context"] = self._context_type | None
        perform = self._define(f"{agent.name}.tool.{tool.name}", {**self._common, **tool_options}, call)

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            return await _agents.execute(perform, arguments, context.tool_call_id, context.context)

        return dataclasses.replace(tool, on_invoke_tool=invoke)

    def _server(self, agent: Agent[Any], server: MCPServer) -> MCPServer:
        async def list_tools(context: Any) -> Any:
            return await _activities.list_tools(server, agent, context)

        async def call_tool(name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None) -> Any:
            return await _activities.call_server(server, name, arguments, meta)

        if self._context_type is not None:
            list_tools.__annotations__["context"] = self._context_type | None
        name = f"{agent.name}.mcp.{server.name}"
        return _DurableServer(
            server,
            self._define(f"{name}.list_tools", self._mcp_options, list_tools),
            self._define(f"{name}.call_tool", self._mcp_options, call_tool),
        )


def _run_config_of(config: RunConfig | None, options: dict[str, Any]) -> RunConfig:
    """Return the configuration for a run in a workflow. Tracing is disabled, because its spans would be repeated in every
    execution.
    """
    if options.get("session") is not None:
        raise UsageError(
            "a workflow cannot use a session, which does I/O; its own state is durable. Pass `result.to_input_list()` and "
            "the new input to the next run"
        )
    run_config = RunConfig() if config is None else config
    if not isinstance(run_config, RunConfig):
        raise UsageError(f"run_config must be a RunConfig, not {type(run_config).__name__}")
    if run_config.model is not None:
        raise UsageError(
            "run_config.model is not supported in a workflow, because workers must know the model: use Agent(model=…)"
        )
    if run_config.model_settings is not None and run_config.model_settings.retry is not None:
        raise UsageError(
            "run_config.model_settings.retry would multiply the retries of activities: omit it, and use "
            "DurableRunner(model_options={'retry_policy': RetryPolicy(…)})"
        )
    return dataclasses.replace(run_config, tracing_disabled=True)


class _DurableModel(Model):
    """A model in a workflow. Requests to the model are sent by an activity."""

    def __init__(self, agent: Agent[Any], perform: Activity[..., Any]) -> None:
        self._own = {tool.name for tool in agent.tools}
        self._perform = perform

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: Any,
    ) -> ModelResponse:
        """Request the model's response in an activity, and wait for it."""
        request = ModelRequest(
            instructions=system_instructions,
            input=_agents.to_json(input),
            settings=_agents.to_json(model_settings, _activities.SETTINGS),
            tools=[tool.name for tool in tools if tool.name in self._own],
            functions=[
                Function(tool.name, tool.description, tool.params_json_schema, tool.strict_json_schema)
                for tool in tools
                if tool.name not in self._own and isinstance(tool, FunctionTool)
            ],
            handoffs=[
                Function(
                    handoff.tool_name,
                    handoff.tool_description,
                    handoff.input_json_schema,
                    handoff.strict_json_schema,
                    handoff.agent_name,
                )
                for handoff in handoffs
            ],
            previous_response_id=previous_response_id,
            conversation_id=conversation_id,
            prompt=_agents.to_json(prompt),
        )
        return _activities.RESPONSE.validate_python(await _agents.execute(self._perform, request))

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Raise `UsageError`, because streaming is not possible in a workflow."""
        raise UsageError(
            "a workflow cannot read a model's stream: use DurableRunner(stream_handler=…), which is called in the activity"
        )


class _DurableServer(MCPServer):
    """An MCP server in a workflow. Its calls are activities."""

    def __init__(
        self, server: MCPServer, list_tools: Activity[..., Any], call_tool: Activity[..., Any]
    ) -> None:
        super().__init__()
        # Approvals, guardrails and error handling are copied from the original server.
        for setting in list(vars(self)):
            setattr(self, setting, getattr(server, setting))
        self._name = server.name
        self._list_tools = list_tools
        self._call_tool = call_tool

    @property
    def name(self) -> str:
        """The name of the original server."""
        return self._name

    async def connect(self) -> None:
        """Do nothing, because each activity opens its own connection."""

    async def cleanup(self) -> None:
        """Do nothing, because each activity closes its own connection."""

    async def list_tools(
        self, run_context: RunContextWrapper[Any] | None = None, agent: Any = None
    ) -> list[MCPTool]:
        """Return the tools of the server."""
        context = None if run_context is None else run_context.context
        return _activities.TOOLS.validate_python(await _agents.execute(self._list_tools, context))

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> CallToolResult:
        """Call a tool of the server."""
        return _activities.RESULT.validate_python(
            await _agents.execute(self._call_tool, tool_name, arguments, meta)
        )

    async def list_prompts(self) -> ListPromptsResult:
        """Raise `UsageError`, because prompts are not available in a workflow."""
        raise UsageError(_NO_PROMPTS)

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> GetPromptResult:
        """Raise `UsageError`, because prompts are not available in a workflow."""
        raise UsageError(_NO_PROMPTS)


_NO_PROMPTS = "a workflow cannot read the prompts of an MCP server: read them in an activity"
