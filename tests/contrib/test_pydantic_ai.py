"""Agents of Pydantic AI in workflows: activities, retries, approvals, streaming, dependencies and MCP tools."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

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

from hourglass import Client, Replayer, RetryPolicy, Worker, workflow
from hourglass.contrib.pydantic_ai import HourglassDurability, Messages
from hourglass.errors import UsageError, WorkflowFailedError
from hourglass.progress import Progress
from hourglass.testing import DevServer, Environment

QUICK = RetryPolicy(initial_interval=0.01, maximum_interval=0.02)

done: Counter[str] = Counter()
"""The number of calls of each model and tool."""
_lock = threading.Lock()


def count(what: str) -> int:
    with _lock:
        done[what] += 1
        return done[what]


@pytest.fixture(autouse=True)
def nothing_done_yet() -> None:
    done.clear()


def last(messages: list[ModelMessage]) -> list[Any]:
    return list(messages[-1].parts)


def weatherman(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    count("model")
    told = [part for part in last(messages) if isinstance(part, ToolReturnPart)]
    if not told:
        return ModelResponse(
            parts=[ToolCallPart("weather", {"city": city}, tool_call_id=city) for city in ("Oslo", "Rome")]
        )
    return ModelResponse(parts=[TextPart("; ".join(str(part.content) for part in told))])


weather_durability = HourglassDurability(options={"retry_policy": QUICK})
forecaster = Agent(FunctionModel(weatherman), name="forecaster", capabilities=[weather_durability])


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


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client.connect("local:") as connected:
        yield connected


def scheduled(handle: Any) -> list[dict[str, Any]]:
    return [
        each["activityTaskScheduledEventAttributes"]
        for each in handle.history().events
        if "activityTaskScheduledEventAttributes" in each
    ]


@pytest.mark.parametrize("which", [forecast, forecast_async], ids=["plain", "async"])
def test_model_requests_and_tools_are_activities(which: Any, client: Client) -> None:
    """Each is called once although the workflow's code is executed twice."""
    with Worker(client, which.__name__, workflows=[which], activities=[weather_durability], watch="error"):
        handle = client.start_workflow(which, "Oslo or Rome?", task_queue=which.__name__)
        assert handle.result() == "sun in Oslo; sun in Rome"
    assert done == {"model": 2, "weather Oslo": 1, "weather Rome": 1}
    asked = scheduled(handle)
    assert [each["activityType"]["name"] for each in asked] == [
        "forecaster__model.request",
        "forecaster__tool.weather",
        "forecaster__tool.weather",
        "forecaster__model.request",
    ]
    assert [each["startToCloseTimeout"] for each in asked] == ["600s", "77s", "77s", "600s"]
    with Replayer(workflows=[which]) as replayer:
        replayer.replay(handle.history())


@pytest.mark.server
def test_agent_runs_on_a_server(quick_server: DevServer) -> None:
    with (
        Client.connect(quick_server.target) as client,
        Worker(client, "agents", workflows=[forecast], activities=[weather_durability]),
    ):
        handle = client.start_workflow(forecast, "Oslo or Rome?", task_queue="agents")
        assert handle.result() == "sun in Oslo; sun in Rome"
        assert done == {"model": 2, "weather Oslo": 1, "weather Rome": 1}
        with Replayer(workflows=[forecast]) as replayer:
            replayer.replay(handle.history())


# --- retries ----------------------------------------------------------------------------------------------------------


def moody(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Fails with 503 twice, then calls the tool and answers. Fails with 400 if asked for `refused`."""
    if "refused" in str(last(messages)[-1].content):
        count("refused")
        raise ModelHTTPError(400, "moody", {"error": "no"})
    if count("busy") < 3:
        raise ModelHTTPError(503, "moody", {"error": "busy"})
    returned = [part for part in last(messages) if "it is" in str(part.content)]
    if returned:
        return ModelResponse(parts=[TextPart(str(returned[0].content))])
    number = sum(isinstance(each, ModelResponse) for each in messages)
    return ModelResponse(parts=[ToolCallPart("guess", {"number": number})])


moody_durability = HourglassDurability(options={"retry_policy": QUICK})
guesser = Agent(FunctionModel(moody), name="guesser", retries=3, capabilities=[moody_durability])


@guesser.tool_plain
async def guess(number: int) -> str:
    """Raises `ModelRetry` for the first guess, and a connection error in the first call of the second."""
    count(f"guess {number}")
    if number == 0:
        raise ModelRetry("another one")
    if done[f"guess {number}"] == 1:
        raise ConnectionError("the line is broken")
    return f"{number} it is"


@workflow.defn
async def guessing(what: str) -> str:
    try:
        return (await guesser.run(what)).output
    except ModelHTTPError as error:
        return f"HTTP {error.status_code}"


def test_retries_do_not_multiply(client: Client) -> None:
    """The model retries a `ModelRetry`; nothing retries HTTP 400."""
    with Worker(client, "guesses", workflows=[guessing], activities=[moody_durability]):
        assert client.execute_workflow(guessing, "well?", task_queue="guesses") == "1 it is"
        # Two refusals and three answers of the model; one `ModelRetry`, one broken call and one good one.
        assert done == {"busy": 5, "guess 0": 1, "guess 1": 2}
        assert client.execute_workflow(guessing, "refused", task_queue="guesses") == "HTTP 400"
        assert done["refused"] == 1


# --- waiting, conversations, limits -----------------------------------------------------------------------------------


def banker(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    count("model")
    returned = [part for part in last(messages) if isinstance(part, ToolReturnPart)]
    if returned:
        return ModelResponse(parts=[TextPart(f"done: {returned[0].content}")])
    return ModelResponse(parts=[ToolCallPart("pay", {"cents": 500}, tool_call_id="p1")])


bank_durability = HourglassDurability()
teller = Agent(
    FunctionModel(banker),
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


def test_tool_waits_days_for_approval() -> None:
    with Environment(activities=[bank_durability]) as env:
        for agreed in (True, False):
            run = env.start_workflow(payment, "pay")
            env.after(days=3).signal(run, consents, agreed)
            before = env.now()
            assert ("paid 500" in run.result()) is agreed
            assert env.now() - before == timedelta(days=3)
    assert done == {"model": 4, "paid": 1}


chat_durability = HourglassDurability()


def counting(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart(f"{sum(isinstance(each, ModelResponse) for each in messages) + 1}")])


chatter = Agent(FunctionModel(counting), name="chatter", capabilities=[chat_durability])


@workflow.defn
def conversation(so_far: Messages, rounds: int) -> str:
    result = workflow.run_async(chatter.run("and then?", message_history=so_far.root))
    if rounds > 1:
        workflow.continue_as_new(Messages(result.all_messages()), rounds - 1)
    return result.output


def test_conversation_continues_as_new(client: Client) -> None:
    with Worker(client, "chats", workflows=[conversation], activities=[chat_durability]):
        assert client.execute_workflow(conversation, Messages(), 3, task_queue="chats") == "3"


@workflow.defn
async def limited(question: str) -> str:
    return (await forecaster.run(question, usage_limits=UsageLimits(request_limit=1))).output


def test_usage_limit_fails_the_run(client: Client) -> None:
    with (
        Worker(client, "limits", workflows=[limited], activities=[weather_durability]),
        pytest.raises(WorkflowFailedError) as caught,
    ):
        client.execute_workflow(limited, "Oslo?", task_queue="limits")
    assert "UsageLimitExceeded" in str(caught.value)
    assert done["model"] == 1


# --- streaming --------------------------------------------------------------------------------------------------------


tokens = Progress("tokens", str)


async def show(ctx: RunContext[None], events: Any) -> None:
    async for event in events:
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            tokens.publish(event.part.content)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            tokens.publish(event.delta.content_delta)


async def talk(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    count("model")
    for piece in ("It ", "depends", "."):
        yield piece


async def clumsy(ctx: RunContext[None], events: Any) -> None:
    async for _ in events:
        raise ZeroDivisionError("a slip")


talk_durability = HourglassDurability(event_stream_handler=show)
talker = Agent(FunctionModel(stream_function=talk), name="talker", capabilities=[talk_durability])
slip_durability = HourglassDurability(event_stream_handler=clumsy)
slipper = Agent(FunctionModel(stream_function=talk), name="slipper", capabilities=[slip_durability])


@workflow.defn
def say(question: str) -> str:
    return workflow.run_async(talker.run(question)).output


@workflow.defn
def slip(question: str) -> str:
    return workflow.run_async(slipper.run(question)).output


def test_streamed_tokens_are_published_as_they_arrive(client: Client) -> None:
    """An exception of the stream handler fails the run without another model request."""
    with Worker(client, "talks", workflows=[say, slip], activities=[talk_durability, slip_durability]):
        handle = client.start_workflow(say, "Which?", task_queue="talks")
        assert "".join(tokens.follow(handle, timeout=60)) == "It depends."
        assert handle.result() == "It depends."
        assert done["model"] == 1
        with pytest.raises(WorkflowFailedError) as caught:
            client.execute_workflow(slip, "Which?", task_queue="talks")
        assert "ZeroDivisionError: a slip" in str(caught.value)
        assert done["model"] == 2


@workflow.defn
async def read_stream(how: str) -> str:
    async with talker.run_stream("Which?") as result:
        if how == "text":
            return [text async for text in result.stream_text()][-1]
        if how == "delta":
            return "".join([text async for text in result.stream_text(delta=True)])
        if how == "output":
            return [str(output) async for output in result.stream_output()][-1]
        return await result.get_output()


@workflow.defn
async def read_nodes() -> str:
    async with talker.iter("Which?") as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    said = [text async for text in stream.stream_text()]
    return said[-1]


# An execution that is dropped in the middle, to be verified, leaves the library's streams open for the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_streamed_answer_is_read_in_a_workflow(client: Client) -> None:
    """They read only the workflow's clock: the call watcher and the second execution accept them."""
    with Worker(
        client,
        "streams",
        workflows=[read_stream, read_nodes],
        activities=[talk_durability],
        watch="error",
        verify="always",
    ):
        for how in ("text", "delta", "output", "whole"):
            assert client.execute_workflow(read_stream, how, task_queue="streams") == "It depends."
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
def lead_and_follow(question: str) -> str:
    return workflow.run_async(lead.run(question)).output


def test_agent_delegates_to_another_agent(client: Client) -> None:
    with Worker(
        client,
        "leads",
        workflows=[lead_and_follow],
        activities=[lead_durability, weather_durability],
    ):
        handle = client.start_workflow(lead_and_follow, "who knows?", task_queue="leads")
        assert json.loads(handle.result()) == {"ask_forecaster": "sun in Oslo; sun in Rome"}
    assert len(scheduled(handle)) == 6


@dataclass
class Customer:
    name: str


class Bank:
    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()


customer_durability = HourglassDurability()
by_customer = Agent(
    TestModel(call_tools=["whose"]),
    name="by-customer",
    deps_type=Customer,
    capabilities=[customer_durability],
)
bank_of_worker = HourglassDurability()
by_bank = Agent(
    TestModel(call_tools=["which"]), name="by-bank", deps_type=Bank, capabilities=[bank_of_worker]
)


@by_customer.tool
def whose(ctx: RunContext[Customer]) -> str:
    return ctx.deps.name


@by_bank.tool
def which(ctx: RunContext[Bank]) -> str:
    return ctx.deps.name


@workflow.defn
async def depending(how: str) -> str:
    match how:
        case "travels":
            return (await by_customer.run("?", deps=Customer("ann"))).output
        case "worker's":
            return (await by_bank.run("?")).output
        case _:
            return (await by_bank.run("?", deps=Bank("here"))).output


def test_dependencies_are_sent_or_come_from_the_worker(client: Client) -> None:
    activities = [customer_durability, bank_of_worker]
    with Worker(client, "deps", workflows=[depending], activities=activities, resources=[Bank("ours")]):
        assert client.execute_workflow(depending, "travels", task_queue="deps") == '{"whose":"ann"}'
        assert client.execute_workflow(depending, "worker's", task_queue="deps") == '{"which":"ours"}'
    with Worker(client, "none", workflows=[depending], activities=activities):
        with pytest.raises(WorkflowFailedError, match="was run without deps, so they are the worker's"):
            client.execute_workflow(depending, "worker's", task_queue="none")
        handle = client.start_workflow(depending, "wrong", task_queue="none")
        assert "cannot be encoded as JSON" in parked(handle)


def parked(handle: Any) -> str:
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
def blocking(question: str) -> str:
    """What `agent.run_sync` does, except that this event loop is closed."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(forecaster.run(question)).output


@workflow.defn
async def strange(question: str) -> str:
    return (await forecaster.run(question, model=TestModel())).output


def test_misuse_errors_suggest_a_fix(client: Client) -> None:
    with Worker(client, "slips", workflows=[blocking, strange], activities=[weather_durability]):
        handle = client.start_workflow(blocking, "?", task_queue="slips")
        assert "workflow.run_async(agent.run(" in parked(handle)
        with pytest.raises(WorkflowFailedError, match="was not registered with `HourglassDurability`"):
            client.execute_workflow(strange, "?", task_queue="slips")
    with pytest.raises(UsageError, match="belongs to no agent"):
        Worker(client, "slips", activities=[HourglassDurability()])
    with pytest.raises(UserError, match="did you mean start_to_close_timeout"):
        HourglassDurability(options={"start_to_close": 3})  # type: ignore[typeddict-unknown-key]
    outside = asyncio.run(forecaster.run("outside of workflows it is what it was"))
    assert outside.output == "sun in Oslo; sun in Rome"


def test_tools_appear_under_their_own_names(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Includes a tool of a prefixed toolset, and one that is renamed for the model."""

    async def renamed(ctx: RunContext[None], definition: ToolDefinition) -> ToolDefinition:
        return replace(definition, name="look_up_now")

    def look_up(order: int) -> str:
        if count("look_up") == 1:
            raise ConnectionError("the line is broken")
        return "a lamp"

    shelf: FunctionToolset[None] = FunctionToolset(id="shelf")
    durability = HourglassDurability(options={"retry_policy": QUICK})
    clerk = Agent(
        TestModel(),
        name="clerk",
        tools=[Tool(look_up, prepare=renamed)],
        toolsets=[shelf.prefixed("shelf")],
        capabilities=[durability],
    )

    @clerk.tool_plain
    def late(order: int) -> str:  # added after the capability was bound
        return "added"

    @shelf.tool_plain
    def count_items() -> int:
        return 3

    @workflow.defn
    def ask_clerk() -> str:
        return workflow.run_async(clerk.run("well?")).output

    with Worker(client, "clerks", workflows=[ask_clerk], activities=[durability]):
        handle = client.start_workflow(ask_clerk, task_queue="clerks")
        assert json.loads(handle.result())["shelf_count_items"] == 3
    called = [each["activityType"]["name"] for each in scheduled(handle)][1:-1]
    assert sorted(called) == ["clerk__tool.late", "clerk__tool.look_up", "clerk__tool__shelf.count_items"]
    assert any("activity clerk__tool.look_up " in each.getMessage() for each in caplog.records)
    with Replayer(workflows=[ask_clerk]) as replayer:
        replayer.replay(handle.history())


def test_mcp_tools_are_activities(client: Client, tmp_path: Path) -> None:
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
    assert "buyer__mcp_server__shop.call_tool" in {each["activityType"]["name"] for each in scheduled(handle)}
