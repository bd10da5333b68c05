"""The code of the activities: calls to models, tools and MCP servers, using the worker's own objects.

The activity type of a request identifies its agent, and tools are identified by name. Names are looked up in the worker's
agent, so a request cannot make the worker import or call other objects.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
from agents import (
    Agent,
    AgentOutputSchema,
    AgentOutputSchemaBase,
    AgentsException,
    FunctionTool,
    Handoff,
    Model,
    ModelProvider,
    ModelResponse,
    ModelSettings,
    ModelTracing,
    Tool,
    Usage,
)
from agents.items import TResponseStreamEvent
from agents.mcp import MCPServer
from agents.models._retry_runtime import provider_managed_retries_disabled
from agents.run_context import RunContextWrapper
from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext
from mcp.types import CallToolResult
from mcp.types import Tool as MCPTool
from openai import APIStatusError
from openai.types.responses import Response, ResponseCompletedEvent
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from hourglass.contrib import _agents
from hourglass.errors import ApplicationError

StreamHandler: TypeAlias = Callable[[TResponseStreamEvent], "Awaitable[None] | None"]
"""A callback for the events of a model's response stream. It runs in the activity that reads the stream."""

SETTINGS: TypeAdapter[ModelSettings] = TypeAdapter(ModelSettings)
RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)
TOOLS: TypeAdapter[list[MCPTool]] = TypeAdapter(list[MCPTool])
RESULT: TypeAdapter[CallToolResult] = TypeAdapter(CallToolResult)


class Function(msgspec.Struct):
    """The description of a function that a model may call."""

    name: str
    description: str
    schema: dict[str, Any]
    strict: bool
    agent: str = ""
    """The name of a handoff's target agent."""


class ModelRequest(msgspec.Struct, kw_only=True):
    """A request to a model."""

    instructions: str | None
    input: Any
    settings: dict[str, Any]
    tools: list[str]
    """The names of the agent's own tools that this request offers to the model."""
    functions: list[Function]
    """Additional tools, from MCP servers."""
    handoffs: list[Function]
    previous_response_id: str | None
    conversation_id: str | None
    prompt: Any


async def _never(*args: Any) -> Any:
    raise RuntimeError("this tool must be called in the workflow, not by the model")


async def request_response(
    agent: Agent[Any],
    provider: Callable[[], ModelProvider],
    request: ModelRequest,
    handler: StreamHandler | None,
) -> Any:
    """Send a request to an agent's model. The client's own retries are disabled, because the activity has a retry policy."""
    model = agent.model if isinstance(agent.model, Model) else provider().get_model(agent.model)
    own_tools = {tool.name: tool for tool in agent.tools}
    missing = [name for name in request.tools if name not in own_tools]
    if missing:
        raise _agents.non_retryable(f"agent {agent.name} of this worker has no tool {', '.join(missing)}")
    arguments: dict[str, Any] = {
        "system_instructions": request.instructions,
        "input": request.input,
        "model_settings": SETTINGS.validate_python(request.settings),
        "tools": [*(own_tools[name] for name in request.tools), *map(_function, request.functions)],
        "output_schema": _output_schema(agent),
        "handoffs": list(map(_handoff, request.handoffs)),
        "tracing": ModelTracing.DISABLED,
        "previous_response_id": request.previous_response_id,
        "conversation_id": request.conversation_id,
        "prompt": request.prompt,
    }
    try:
        with provider_managed_retries_disabled(True):
            if handler is None:
                response = await model.get_response(**arguments)
            else:
                response = await _read_stream(model, arguments, handler)
    except APIStatusError as error:
        raise _status_failure(error) from error
    except AgentsException as error:
        raise _agents.non_retryable(str(error), type(error).__name__) from error
    return RESPONSE.dump_python(response, mode="json", warnings="none")


async def _read_stream(model: Model, arguments: dict[str, Any], handler: StreamHandler) -> ModelResponse:
    finished: Response | None = None
    stream: Any = model.stream_response(**arguments)
    try:
        async for event in stream:
            if isinstance(event, ResponseCompletedEvent):
                finished = event.response
            try:
                waited = handler(event)
                if inspect.isawaitable(waited):
                    await waited
            except Exception as error:
                raise _agents.non_retryable(
                    f"the stream_handler raised {type(error).__name__}: {error}", "StreamHandlerError"
                ) from error
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
    if finished is None:
        raise ApplicationError("the model's stream ended before its answer was complete", type="StreamEnded")
    used = finished.usage
    usage = Usage()
    if used is not None:
        usage = Usage(
            requests=1,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        )
    return ModelResponse(output=finished.output, usage=usage, response_id=finished.id)


def _function(function: Function) -> Tool:
    return FunctionTool(
        name=function.name,
        description=function.description,
        params_json_schema=function.schema,
        on_invoke_tool=_never,
        strict_json_schema=function.strict,
    )


def _handoff(function: Function) -> Handoff[Any, Any]:
    return Handoff(
        tool_name=function.name,
        tool_description=function.description,
        input_json_schema=function.schema,
        on_invoke_handoff=_never,
        agent_name=function.agent,
        strict_json_schema=function.strict,
    )


def _output_schema(agent: Agent[Any]) -> AgentOutputSchemaBase | None:
    kind = agent.output_type
    if kind is None or kind is str:
        return None
    return kind if isinstance(kind, AgentOutputSchemaBase) else AgentOutputSchema(kind)


def _status_failure(error: APIStatusError) -> ApplicationError:
    """Return the failure for an error response. It determines whether the error is final, and the delay before the next
    attempt.
    """
    is_retryable = _agents.is_retryable_status(error.status_code)
    return ApplicationError(
        f"HTTP {error.status_code}: {error.message}",
        type=type(error).__name__,
        non_retryable=not is_retryable,
        next_retry_delay=_retry_after(error.response.headers) if is_retryable else None,
    )


def _retry_after(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit)
        except (KeyError, ValueError):  # absent, or a date instead of a number
            continue
    return None


async def call(agent: Agent[Any], tool: FunctionTool, arguments: str, call_id: str, context: Any) -> Any:
    """Call a function tool. Its `failure_error_function` decides whether an exception is reported to the model or raised."""
    result = await tool.on_invoke_tool(
        ToolContext(
            context=context,
            tool_name=tool.name,
            tool_call_id=call_id,
            tool_arguments=arguments,
            agent=agent,
        ),
        arguments,
    )
    return _output(result)


def _output(result: Any) -> Any:
    """Return the result of a tool as JSON. Structured outputs of the library are kept; other values are converted to `str`."""
    if result is None or isinstance(
        result, (str, dict, ToolOutputText, ToolOutputImage, ToolOutputFileContent)
    ):
        return to_jsonable_python(result, fallback=str)
    if isinstance(result, list):
        return [_output(item) for item in result]
    return str(result)


_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, asyncio.Lock]] = WeakKeyDictionary()


@asynccontextmanager
async def _connected(server: MCPServer) -> AsyncIterator[MCPServer]:
    """Connect to a server for a single call. The server object has only one connection, so concurrent calls wait."""
    lock = _locks.setdefault(asyncio.get_running_loop(), {}).setdefault(id(server), asyncio.Lock())
    untyped: Any = server
    async with lock:
        try:
            await untyped.connect()
            yield server
        finally:
            await untyped.cleanup()


async def list_tools(server: MCPServer, agent: Agent[Any], context: Any) -> Any:
    """Return the tools of a server."""
    async with _connected(server):
        tools = await server.list_tools(RunContextWrapper(context), agent)
    return TOOLS.dump_python(tools, mode="json", by_alias=True, exclude_none=True)


async def call_server(
    server: MCPServer, name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None
) -> Any:
    """Call a tool of a server."""
    async with _connected(server):
        result = await server.call_tool(name, arguments, meta)
    return RESULT.dump_python(result, mode="json", by_alias=True, exclude_none=True)
