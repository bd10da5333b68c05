"""Agents of Pydantic AI in workflows: activities, retries, approvals, streaming, dependencies and MCP tools."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    FunctionToolset,
    ModelRetry,
    RunContext,
    Tool,
    ToolDefinition,
    UsageLimits,
)
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from hourglass import Client, Replayer, Worker, workflow
from hourglass.contrib.pydantic_ai import HourglassDurability, Messages
from hourglass.errors import UsageError, WorkflowFailedError
from hourglass.progress import Progress

from .agent_calls import QUICK, call_counts, check_three_day_approval, count, scheduled_activities


def last_parts(messages: list[ModelMessage]) -> list[Any]:
    return list(messages[-1].parts)


def weather_model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    count("model")
    answers = [part for part in last_parts(messages) if isinstance(part, ToolReturnPart)]
    if not answers:
        return ModelResponse(
            parts=[ToolCallPart("weather", {"city": city}, tool_call_id=city) for city in ("Oslo", "Rome")]
        )
    return ModelResponse(parts=[TextPart("; ".join(str(part.content) for part in answers))])


weather_durability = HourglassDurability(options={"retry_policy": QUICK})
forecaster = Agent(FunctionModel(weather_model), name="forecaster", capabilities=[weather_durability])


@forecaster.tool_plain(metadata={"hourglass": {"start_to_close_timeout": 77}})
def weather(city: str) -> str:
    count(f"weather {city}")
    return f"sun in {city}"


@workflow.defn
def forecast(question: str) -> str:
    return workflow.run_async(forecaster.run(question)).output


@workflow.defn
async def forecast_async(question: str) -> str:
    return (await forecaster.run(question)).output


@pytest.mark.parametrize("definition", [forecast, forecast_async], ids=["plain", "async"])
def test_pydantic_agent_runs_model_and_tool_calls_as_activities(definition: Any, any_client: Client) -> None:
    """Each is called once although the workflow's code is executed twice."""
    queue, activities = f"pydantic-{uuid4()}", [weather_durability]
    with Worker(any_client, queue, workflows=[definition], activities=activities, watch="error"):
        handle = any_client.start_workflow(definition, "Oslo or Rome?", task_queue=queue)
        assert handle.result() == "sun in Oslo; sun in Rome"
    assert call_counts == {"model": 2, "weather Oslo": 1, "weather Rome": 1}
    scheduled = scheduled_activities(handle)
    assert [each["activityType"]["name"] for each in scheduled] == [
        "forecaster__model.request",
        "forecaster__tool.weather",
        "forecaster__tool.weather",
        "forecaster__model.request",
    ]
    assert [each["startToCloseTimeout"] for each in scheduled] == ["600s", "77s", "77s", "600s"]
    with Replayer(workflows=[definition]) as replayer:
        replayer.replay(handle.history())


# --- retries ----------------------------------------------------------------------------------------------------------


def unreliable_model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Fails with 503 twice, then calls the tool and answers. Fails with 400 if asked for `refused`."""
    if "refused" in str(last_parts(messages)[-1].content):
        count("refused")
        raise ModelHTTPError(400, "unreliable", {"error": "no"})
    if count("busy") < 3:
        raise ModelHTTPError(503, "unreliable", {"error": "busy"})
    returned = [part for part in last_parts(messages) if "it is" in str(part.content)]
    if returned:
        return ModelResponse(parts=[TextPart(str(returned[0].content))])
    number = sum(isinstance(each, ModelResponse) for each in messages)
    return ModelResponse(parts=[ToolCallPart("guess", {"number": number})])


retry_durability = HourglassDurability(options={"retry_policy": QUICK})
retrying_agent = Agent(
    FunctionModel(unreliable_model), name="guesser", retries=3, capabilities=[retry_durability]
)


@retrying_agent.tool_plain
async def guess(number: int) -> str:
    """Raises `ModelRetry` for the first guess, and a connection error in the first call of the second."""
    count(f"guess {number}")
    if number == 0:
        raise ModelRetry("another one")
    if call_counts[f"guess {number}"] == 1:
        raise ConnectionError("the line is broken")
    return f"{number} it is"


@workflow.defn
async def ask_retrying_agent(what: str) -> str:
    try:
        return (await retrying_agent.run(what)).output
    except ModelHTTPError as error:
        return f"HTTP {error.status_code}"


def test_pydantic_agent_retries_model_and_tools_by_their_activities_only(client: Client) -> None:
    """The model retries a `ModelRetry`; nothing retries HTTP 400."""
    with Worker(client, "guesses", workflows=[ask_retrying_agent], activities=[retry_durability]):
        assert client.execute_workflow(ask_retrying_agent, "well?", task_queue="guesses") == "1 it is"
        # Two refusals and three answers of the model; one `ModelRetry`, one broken call and one good one.
        assert call_counts == {"busy": 5, "guess 0": 1, "guess 1": 2}
        assert client.execute_workflow(ask_retrying_agent, "refused", task_queue="guesses") == "HTTP 400"
        assert call_counts["refused"] == 1


# --- waiting, conversations, limits -----------------------------------------------------------------------------------


def paying_model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    count("model")
    returned = [part for part in last_parts(messages) if isinstance(part, ToolReturnPart)]
    if returned:
        return ModelResponse(parts=[TextPart(f"done: {returned[0].content}")])
    return ModelResponse(parts=[ToolCallPart("pay", {"cents": 500}, tool_call_id="p1")])


bank_durability = HourglassDurability()
teller = Agent(
    FunctionModel(paying_model),
    name="teller",
    output_type=[str, DeferredToolRequests],
    capabilities=[bank_durability],
)
consents = workflow.Channel("consent", bool)


@teller.tool_plain(requires_approval=True)
def pay(cents: int) -> str:
    count("paid")
    return f"paid {cents}"


@workflow.defn
def payment(order: str) -> str:
    result = workflow.run_async(teller.run(order))
    while isinstance(result.output, DeferredToolRequests):
        answers = DeferredToolResults(
            approvals={call.tool_call_id: consents.receive() for call in result.output.approvals}
        )
        result = workflow.run_async(
            teller.run(message_history=result.all_messages(), deferred_tool_results=answers)
        )
    return str(result.output)


def test_pydantic_agent_tool_waits_three_days_for_approval() -> None:
    check_three_day_approval([bank_durability], payment, consents)


chat_durability = HourglassDurability()


def counting_model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart(f"{sum(isinstance(each, ModelResponse) for each in messages) + 1}")])


counting_agent = Agent(FunctionModel(counting_model), name="chatter", capabilities=[chat_durability])


@workflow.defn
def conversation(so_far: Messages, rounds: int) -> str:
    result = workflow.run_async(counting_agent.run("and then?", message_history=so_far.root))
    if rounds > 1:
        workflow.continue_as_new(Messages(result.all_messages()), rounds - 1)
    return result.output


def test_pydantic_agent_conversation_continues_as_new_with_its_messages(client: Client) -> None:
    with Worker(client, "chats", workflows=[conversation], activities=[chat_durability]):
        assert client.execute_workflow(conversation, Messages(), 3, task_queue="chats") == "3"


@workflow.defn
async def limited(question: str) -> str:
    return (await forecaster.run(question, usage_limits=UsageLimits(request_limit=1))).output


def test_pydantic_agent_usage_limit_fails_the_workflow(client: Client) -> None:
    with (
        Worker(client, "limits", workflows=[limited], activities=[weather_durability]),
        pytest.raises(WorkflowFailedError) as caught,
    ):
        client.execute_workflow(limited, "Oslo?", task_queue="limits")
    assert "UsageLimitExceeded" in str(caught.value)
    assert call_counts["model"] == 1


# --- streaming --------------------------------------------------------------------------------------------------------


tokens = Progress("tokens", str)


async def show(ctx: RunContext[None], events: Any) -> None:
    async for event in events:
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            tokens.publish(event.part.content)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            tokens.publish(event.delta.content_delta)


async def talking_model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    count("model")
    for piece in ("It ", "depends", "."):
        yield piece


async def failing_stream_handler(ctx: RunContext[None], events: Any) -> None:
    async for _ in events:
        raise ZeroDivisionError("a slip")


talk_durability = HourglassDurability(event_stream_handler=show)
talker = Agent(FunctionModel(stream_function=talking_model), name="talker", capabilities=[talk_durability])
slip_durability = HourglassDurability(event_stream_handler=failing_stream_handler)
failing_talker = Agent(
    FunctionModel(stream_function=talking_model), name="slipper", capabilities=[slip_durability]
)


@workflow.defn
def say(question: str) -> str:
    return workflow.run_async(talker.run(question)).output


@workflow.defn
def say_with_failing_handler(question: str) -> str:
    return workflow.run_async(failing_talker.run(question)).output


def test_pydantic_agent_publishes_streamed_tokens(client: Client) -> None:
    """An exception of the stream handler fails the run without another model request."""
    with Worker(
        client,
        "talks",
        workflows=[say, say_with_failing_handler],
        activities=[talk_durability, slip_durability],
    ):
        handle = client.start_workflow(say, "Which?", task_queue="talks")
        assert "".join(tokens.follow(handle, timeout=60)) == "It depends."
        assert handle.result() == "It depends."
        assert call_counts["model"] == 1
        with pytest.raises(WorkflowFailedError) as caught:
            client.execute_workflow(say_with_failing_handler, "Which?", task_queue="talks")
        assert "ZeroDivisionError: a slip" in str(caught.value)
        assert call_counts["model"] == 2


@workflow.defn
async def read_stream(mode: str) -> str:
    async with talker.run_stream("Which?") as result:
        if mode == "text":
            return [text async for text in result.stream_text()][-1]
        if mode == "delta":
            return "".join([text async for text in result.stream_text(delta=True)])
        if mode == "output":
            return [str(output) async for output in result.stream_output()][-1]
        return await result.get_output()


@workflow.defn
async def read_nodes() -> str:
    async with talker.iter("Which?") as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    texts = [text async for text in stream.stream_text()]
    return texts[-1]


# An execution that is dropped in the middle, to be verified, leaves the library's streams open for the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_pydantic_agent_run_stream_and_iter_work_in_a_workflow(client: Client) -> None:
    """They read only the workflow's clock: the call watcher and the second execution accept them."""
    with Worker(
        client,
        "streams",
        workflows=[read_stream, read_nodes],
        activities=[talk_durability],
        watch="error",
        verify="always",
    ):
        for mode in ("text", "delta", "output", "whole"):
            assert client.execute_workflow(read_stream, mode, task_queue="streams") == "It depends."
        assert client.execute_workflow(read_nodes, task_queue="streams") == "It depends."
    gc.collect()  # here, where the warnings are ignored, and not in the test that runs next


# --- other agents, dependencies, servers ------------------------------------------------------------------------------


lead_durability = HourglassDurability()
lead = Agent(TestModel(call_tools=["ask_forecaster"]), name="lead", capabilities=[lead_durability])


@lead.tool_plain(metadata={"hourglass": False})
async def ask_forecaster(question: str) -> str:
    """Runs in the workflow itself; the other agent's calls are activities."""
    return (await forecaster.run(question)).output


@workflow.defn
def ask_lead(question: str) -> str:
    return workflow.run_async(lead.run(question)).output


def test_pydantic_agent_tool_in_workflow_runs_another_agent(client: Client) -> None:
    with Worker(
        client,
        "leads",
        workflows=[ask_lead],
        activities=[lead_durability, weather_durability],
    ):
        handle = client.start_workflow(ask_lead, "who knows?", task_queue="leads")
        assert json.loads(handle.result()) == {"ask_forecaster": "sun in Oslo; sun in Rome"}
    assert len(scheduled_activities(handle)) == 6


@dataclass
class Customer:
    name: str


class Bank:
    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()


customer_durability = HourglassDurability()
by_customer = Agent(
    TestModel(call_tools=["customer_name"]),
    name="by-customer",
    deps_type=Customer,
    capabilities=[customer_durability],
)
bank_of_worker = HourglassDurability()
by_bank = Agent(
    TestModel(call_tools=["which"]), name="by-bank", deps_type=Bank, capabilities=[bank_of_worker]
)


@by_customer.tool
def customer_name(ctx: RunContext[Customer]) -> str:
    return ctx.deps.name


@by_bank.tool
def which(ctx: RunContext[Bank]) -> str:
    return ctx.deps.name


@workflow.defn
async def run_with_deps(mode: str) -> str:
    match mode:
        case "travels":
            return (await by_customer.run("?", deps=Customer("ann"))).output
        case "worker's":
            return (await by_bank.run("?")).output
        case _:
            return (await by_bank.run("?", deps=Bank("here"))).output


def test_pydantic_agent_deps_are_sent_as_json_or_taken_from_worker_resources(client: Client) -> None:
    activities = [customer_durability, bank_of_worker]
    with Worker(client, "deps", workflows=[run_with_deps], activities=activities, resources=[Bank("ours")]):
        assert (
            client.execute_workflow(run_with_deps, "travels", task_queue="deps") == '{"customer_name":"ann"}'
        )
        assert client.execute_workflow(run_with_deps, "worker's", task_queue="deps") == '{"which":"ours"}'
    with Worker(client, "none", workflows=[run_with_deps], activities=activities):
        with pytest.raises(WorkflowFailedError, match="was run without deps, so they are the worker's"):
            client.execute_workflow(run_with_deps, "worker's", task_queue="none")
        handle = client.start_workflow(run_with_deps, "wrong", task_queue="none")
        assert "cannot be encoded as JSON" in wait_for_task_failure(handle)


def wait_for_task_failure(handle: Any) -> str:
    """Wait until the run's workflow task fails, terminate the run, and return the failure."""
    while not (why := _failure(handle)):
        threading.Event().wait(0.02)
    handle.terminate()
    return why


def _failure(handle: Any) -> str:
    for event in handle.history().events:
        if "workflowTaskFailedEventAttributes" in event:
            return str(event["workflowTaskFailedEventAttributes"]["failure"])
    return ""


@workflow.defn
def run_sync_in_workflow(question: str) -> str:
    """What `agent.run_sync` does, except that this event loop is closed."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(forecaster.run(question)).output


@workflow.defn
async def use_unregistered_model(question: str) -> str:
    return (await forecaster.run(question, model=TestModel())).output


def test_pydantic_agent_misuse_raises_errors_with_a_fix(client: Client) -> None:
    with Worker(
        client,
        "slips",
        workflows=[run_sync_in_workflow, use_unregistered_model],
        activities=[weather_durability],
    ):
        handle = client.start_workflow(run_sync_in_workflow, "?", task_queue="slips")
        assert "workflow.run_async(agent.run(" in wait_for_task_failure(handle)
        with pytest.raises(WorkflowFailedError, match="was not registered with `HourglassDurability`"):
            client.execute_workflow(use_unregistered_model, "?", task_queue="slips")
    with pytest.raises(UsageError, match="does not belong to an agent"):
        Worker(client, "slips", activities=[HourglassDurability()])
    with pytest.raises(UserError, match="did you mean start_to_close_timeout"):
        HourglassDurability(options={"start_to_close": 3})  # type: ignore[typeddict-unknown-key]
    outside = asyncio.run(forecaster.run("outside of workflows it is what it was"))
    assert outside.output == "sun in Oslo; sun in Rome"


def test_pydantic_agent_tool_activities_and_logs_name_the_tool(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Includes a tool of a prefixed toolset, and one that is renamed for the model."""

    async def rename_for_model(ctx: RunContext[None], definition: ToolDefinition) -> ToolDefinition:
        return replace(definition, name="look_up_now")

    def look_up(order: int) -> str:
        if count("look_up") == 1:
            raise ConnectionError("the line is broken")
        return "a lamp"

    shelf_tools: FunctionToolset[None] = FunctionToolset(id="shelf")
    durability = HourglassDurability(options={"retry_policy": QUICK})
    clerk = Agent(
        TestModel(),
        name="clerk",
        tools=[Tool(look_up, prepare=rename_for_model)],
        toolsets=[shelf_tools.prefixed("shelf")],
        capabilities=[durability],
    )

    @clerk.tool_plain
    def late(order: int) -> str:  # added after the capability was bound
        return "added"

    @shelf_tools.tool_plain
    def count_items() -> int:
        return 3

    @workflow.defn
    def ask_clerk() -> str:
        return workflow.run_async(clerk.run("well?")).output

    with Worker(client, "clerks", workflows=[ask_clerk], activities=[durability]):
        handle = client.start_workflow(ask_clerk, task_queue="clerks")
        assert json.loads(handle.result())["shelf_count_items"] == 3
    called = [each["activityType"]["name"] for each in scheduled_activities(handle)][1:-1]
    assert sorted(called) == ["clerk__tool.late", "clerk__tool.look_up", "clerk__tool__shelf.count_items"]
    assert any("activity clerk__tool.look_up " in each.getMessage() for each in caplog.records)
    with Replayer(workflows=[ask_clerk]) as replayer:
        replayer.replay(handle.history())


def test_pydantic_agent_calls_mcp_tools_as_activities(client: Client, tmp_path: Path) -> None:
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai.mcp import MCPToolset

    log = tmp_path / "calls"
    program = str(Path(__file__).with_name("mcp_stdio.py"))
    server = MCPToolset(StdioTransport(sys.executable, ["-S", program, str(log)]), id="shop")
    durability = HourglassDurability()
    buyer = Agent(TestModel(), name="buyer", toolsets=[server], capabilities=[durability])

    @workflow.defn
    def buy() -> str:
        return workflow.run_async(buyer.run("how much?")).output

    with Worker(client, "shops", workflows=[buy], activities=[durability]):
        handle = client.start_workflow(buy, task_queue="shops")
        assert json.loads(handle.result()) == {"price": "3 crowns"}
    assert len(log.read_text().splitlines()) == 1
    assert "buyer__mcp_server__shop.call_tool" in {
        each["activityType"]["name"] for each in scheduled_activities(handle)
    }
