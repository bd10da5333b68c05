"""Agents of the OpenAI Agents SDK in workflows: activities, retries, approvals, streaming, handoffs and MCP tools."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from agents import (
    Agent,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    RunContextWrapper,
    SQLiteSession,
    function_tool,
    handoff,
)
from agents.mcp import MCPServerStdio
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from openai import APIStatusError
from openai.types.responses import ResponseTextDeltaEvent

from hourglass import Client, Replayer, RetryPolicy, Worker, workflow
from hourglass.contrib.openai_agents import DurableRunner
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


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client.connect("local:") as connected:
        yield connected


def outputs(call: Any) -> list[str]:
    items = [] if isinstance(call.input, str) else call.input
    return [str(each["output"]) for each in items if each.get("type") == "function_call_output"]


def always(respond: Any, times: int = 50) -> ScriptedModel:
    return ScriptedModel([ModelStep.respond(respond)] * times)


def scheduled(handle: Any) -> list[dict[str, Any]]:
    return [
        each["activityTaskScheduledEventAttributes"]
        for each in handle.history().events
        if "activityTaskScheduledEventAttributes" in each
    ]


# --- once each --------------------------------------------------------------------------------------------------------


def weatherman(call: Any) -> Any:
    count("model")
    told = outputs(call)
    if not told:
        return [function_call("weather", {"city": city}, call_id=city) for city in ("Oslo", "Rome")]
    return [assistant_message("; ".join(told))]


@function_tool
def weather(city: str) -> str:
    count(f"weather {city}")
    return f"sun in {city}"


forecaster = DurableRunner(
    Agent(name="forecaster", model=always(weatherman), tools=[weather]),
    tool_options={"weather": {"start_to_close_timeout": 77}},
)


@workflow.defn
def forecast(question: str) -> str:
    return str(forecaster.run_sync(question).final_output)


@workflow.defn
async def forecast_async(question: str) -> str:
    return str((await forecaster.run(question)).final_output)


@pytest.mark.parametrize("which", [forecast, forecast_async], ids=["plain", "async"])
def test_model_and_tool_calls_are_activities(which: Any, client: Client) -> None:
    """Each is called once although the workflow's code is executed twice."""
    with Worker(client, which.__name__, workflows=[which], activities=[forecaster], watch="error"):
        handle = client.start_workflow(which, "Oslo or Rome?", task_queue=which.__name__)
        assert handle.result() == "sun in Oslo; sun in Rome"
    assert done == {"model": 2, "weather Oslo": 1, "weather Rome": 1}
    asked = scheduled(handle)
    assert [(each["activityType"]["name"], each["startToCloseTimeout"]) for each in asked] == [
        ("forecaster.model", "600s"),
        ("forecaster.tool.weather", "77s"),
        ("forecaster.tool.weather", "77s"),
        ("forecaster.model", "600s"),
    ]
    with Replayer(workflows=[which]) as replayer:
        replayer.replay(handle.history())


@pytest.mark.server
def test_agent_runs_on_a_server(quick_server: DevServer) -> None:
    with (
        Client.connect(quick_server.target) as client,
        Worker(client, "openai-agents", workflows=[forecast], activities=[forecaster]),
    ):
        handle = client.start_workflow(forecast, "Oslo or Rome?", task_queue="openai-agents")
        assert handle.result() == "sun in Oslo; sun in Rome"
        assert done == {"model": 2, "weather Oslo": 1, "weather Rome": 1}
        with Replayer(workflows=[forecast]) as replayer:
            replayer.replay(handle.history())


# --- retries ----------------------------------------------------------------------------------------------------------


def refusal(status: int) -> APIStatusError:
    request = httpx2.Request("POST", "http://localhost")
    return APIStatusError("no", response=httpx2.Response(status, request=request), body=None)


def moody(call: Any) -> Any:
    """Fails with 503 twice, then calls both tools and answers. Fails with 400 if the input contains `refused`."""
    if "refused" in str(call.input):
        count("refused")
        raise refusal(400)
    if count("busy") < 3:
        raise refusal(503)
    told = outputs(call)
    if len(told) == 2:
        return [assistant_message(" ".join(told))]
    return [function_call(("strict", "lenient")[len(told)], {}, call_id=f"c{len(told)}")]


@function_tool(failure_error_function=None)
async def strict() -> str:
    """Its activity is retried: the exception is not passed to the model."""
    if count("strict") < 3:
        raise ConnectionError("the line is broken")
    return "third time"


@function_tool
async def lenient() -> str:
    """The exception becomes an answer to the model."""
    count("lenient")
    raise ConnectionError("the line is broken")


guesser = DurableRunner(
    Agent(name="guesser", model=always(moody), tools=[strict, lenient]), options={"retry_policy": QUICK}
)


@workflow.defn
async def guessing(what: str) -> str:
    return str((await guesser.run(what)).final_output)


def test_retries_do_not_multiply(client: Client) -> None:
    """An exception that the tool reports to the model is not retried."""
    with Worker(client, "guesses", workflows=[guessing], activities=[guesser]):
        answer = client.execute_workflow(guessing, "well?", task_queue="guesses")
        assert answer.startswith("third time")
        assert "error occurred while running the tool" in answer
        assert done == {"busy": 5, "strict": 3, "lenient": 1}
        with pytest.raises(WorkflowFailedError, match="HTTP 400"):
            client.execute_workflow(guessing, "refused", task_queue="guesses")
        assert done["refused"] == 1
    theirs = ModelSettings(retry=ModelRetrySettings(max_retries=2))
    with pytest.raises(UsageError, match="would multiply with the retries of its activities"):
        DurableRunner(Agent(name="eager", model_settings=theirs))


# --- waiting, conversations, limits -----------------------------------------------------------------------------------


consents = workflow.Channel("consent", bool)


@function_tool(needs_approval=True)
def pay(cents: int) -> str:
    count("paid")
    return f"paid {cents}"


def banker(call: Any) -> Any:
    count("model")
    told = outputs(call)
    return [assistant_message(told[0])] if told else [function_call("pay", {"cents": 500}, call_id="p1")]


teller = DurableRunner(Agent(name="teller", model=always(banker), tools=[pay]))


@workflow.defn
def payment(order: str) -> str:
    result = teller.run_sync(order)
    while result.interruptions:
        state = result.to_state()
        for item in result.interruptions:
            state.approve(item) if consents.receive() else state.reject(item)
        result = teller.run_sync(state)
    return str(result.final_output)


def test_tool_waits_days_for_approval() -> None:
    with Environment(activities=[teller]) as env:
        for agreed in (True, False):
            run = env.start_workflow(payment, "pay")
            env.after(days=3).signal(run, consents, agreed)
            before = env.now()
            assert ("paid 500" in run.result()) is agreed
            assert env.now() - before == timedelta(days=3)
    assert done == {"model": 4, "paid": 1}


def counting(call: Any) -> Any:
    items = [] if isinstance(call.input, str) else call.input
    return [assistant_message(str(sum(each.get("role") == "assistant" for each in items) + 1))]


chatter = DurableRunner(Agent(name="chatter", model=always(counting)))


@workflow.defn
def conversation(so_far: list[Any], rounds: int) -> str:
    result = chatter.run_sync([*so_far, {"role": "user", "content": "and then?"}])
    if rounds > 1:
        workflow.continue_as_new(result.to_input_list(), rounds - 1)
    return str(result.final_output)


@workflow.defn
async def limited(question: str) -> str:
    return str((await forecaster.run(question, max_turns=1)).final_output)


def test_conversation_continues_and_limit_ends_the_run(client: Client) -> None:
    with Worker(client, "chats", workflows=[conversation, limited], activities=[chatter, forecaster]):
        assert client.execute_workflow(conversation, [], 3, task_queue="chats") == "3"
        with pytest.raises(WorkflowFailedError, match="MaxTurnsExceeded"):
            client.execute_workflow(limited, "Oslo?", task_queue="chats")
    assert done["model"] == 1


# --- streaming --------------------------------------------------------------------------------------------------------


tokens = Progress("tokens", str)


def show(event: Any) -> None:
    if isinstance(event, ResponseTextDeltaEvent):
        tokens.publish(event.delta)


def slip_up(event: Any) -> None:
    raise ZeroDivisionError("a slip")


def talk(call: Any) -> Any:
    count("model")
    return [assistant_message("It depends.")]


talker = DurableRunner(Agent(name="talker", model=always(talk)), stream_handler=show)
slipper = DurableRunner(Agent(name="slipper", model=always(talk)), stream_handler=slip_up)


@workflow.defn
def say(question: str) -> str:
    return str(talker.run_sync(question).final_output)


@workflow.defn
def slip(question: str) -> str:
    return str(slipper.run_sync(question).final_output)


def test_streamed_tokens_are_published_as_they_arrive(client: Client) -> None:
    """An exception of the stream handler fails the run without another model request."""
    with Worker(client, "talks", workflows=[say, slip], activities=[talker, slipper]):
        handle = client.start_workflow(say, "Which?", task_queue="talks")
        assert "".join(tokens.follow(handle, timeout=60)) == "It depends."
        assert handle.result() == "It depends."
        assert done["model"] == 1
        with pytest.raises(WorkflowFailedError, match="ZeroDivisionError: a slip"):
            client.execute_workflow(slip, "Which?", task_queue="talks")
        assert done["model"] == 2


# --- other agents, contexts, servers ----------------------------------------------------------------------------------


@dataclass
class Customer:
    name: str


@function_tool
async def whose(ctx: RunContextWrapper[Customer]) -> str:
    return f"{ctx.context.name}'s"


@function_tool
async def confirmed() -> str:
    """Runs in the workflow itself, and sleeps there."""
    return "yes" if await workflow_confirms() else "no"


async def workflow_confirms() -> bool:
    from hourglass.aio import workflow as aio

    await aio.sleep(3600)
    return True


def triage(call: Any) -> Any:
    names = [each.tool_name for each in call.handoffs]
    return [function_call(names["billing" in str(call.input)], {}, call_id="h1")]


def expert(call: Any) -> Any:
    told = [each for each in outputs(call) if each in ("ann's", "yes")]
    steps = ("whose", "confirmed")
    if len(told) < 2:
        return [function_call(steps[len(told)], {}, call_id=f"e{len(told)}")]
    return [assistant_message(" ".join(told))]


refunds: Agent[Customer] = Agent(name="refunds", model=always(expert), tools=[whose, confirmed])
billing: Agent[Customer] = Agent(name="billing", model=always(expert), tools=[whose, confirmed])
desk = DurableRunner(
    Agent[Customer](name="desk", model=always(triage), handoffs=[refunds, handoff(billing)]),
    context_type=Customer,
    tool_options={"confirmed": False},
)


@workflow.defn
async def helped(question: str) -> list[str]:
    result = await desk.run(question, context=Customer("ann"))
    return [result.last_agent.name, str(result.final_output)]


def test_handoff_continues_with_another_agent() -> None:
    """Both kinds of handoff; the tools get the run's context or run in the workflow."""
    with Environment(activities=[desk]) as env:
        assert env.execute_workflow(helped, "a refund") == ["refunds", "ann's yes"]
        before = env.now()
        assert env.execute_workflow(helped, "billing") == ["billing", "ann's yes"]
        assert env.now() - before == timedelta(hours=1)


def buyer_model(call: Any) -> Any:
    told = outputs(call)
    offered = [tool.name for tool in call.tools]
    return (
        [assistant_message(told[0])] if told else [function_call(offered[0], {"item": "fish"}, call_id="b1")]
    )


def test_mcp_tools_are_activities(client: Client, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    program = str(Path(__file__).with_name("mcp_stdio.py"))
    server = MCPServerStdio(
        {"command": sys.executable, "args": ["-S", program, str(log)]},
        name="shop",
        client_session_timeout_seconds=60,
    )
    runner = DurableRunner(Agent(name="buyer", model=always(buyer_model), mcp_servers=[server]))

    @workflow.defn
    def buy() -> str:
        return str(runner.run_sync("how much?").final_output)

    with Worker(client, "shops", workflows=[buy], activities=[runner]):
        handle = client.start_workflow(buy, task_queue="shops")
        assert "3 crowns" in handle.result()
    assert log.read_text().splitlines() == ["fish"]
    assert "buyer.mcp.shop.call_tool" in {each["activityType"]["name"] for each in scheduled(handle)}


# --- mistakes ---------------------------------------------------------------------------------------------------------


@workflow.defn
async def refused(what: str) -> str:
    options: dict[str, Any] = {
        "session": {"session": SQLiteSession("s")},
        "model": {"run_config": RunConfig(model="gpt-5")},
        "stranger": {"starting_agent": Agent(name="stranger")},
        "stream": {},
    }[what]
    try:
        if what == "stream":
            forecaster.run_streamed("?")
        await forecaster.run("?", **options)
    except UsageError as error:
        return str(error)
    return "nothing was wrong"


def test_misuse_errors_suggest_a_fix(client: Client) -> None:
    with Worker(client, "slips", workflows=[refused], activities=[forecaster]):
        for what, said in (
            ("session", "to_input_list"),
            ("model", "Agent(model="),
            ("stranger", "agents=[stranger]"),
            ("stream", "DurableRunner(stream_handler="),
        ):
            assert said in client.execute_workflow(refused, what, task_queue="slips")
    with pytest.raises(UsageError, match="have no tool wether"):
        DurableRunner(Agent(name="x", tools=[weather]), tool_options={"wether": {}})
    with pytest.raises(UsageError, match="two agents of one runner have the name 'x'"):
        DurableRunner(Agent(name="x"), agents=[Agent(name="x")])
    outside = asyncio.run(forecaster.run("outside of workflows it is the library's"))
    assert outside.final_output == "sun in Oslo; sun in Rome"
    assert asyncio.run(streamed_outside()) == "sun in Oslo; sun in Rome"


async def streamed_outside() -> str:
    result = forecaster.run_streamed("outside of workflows it is the library's")
    async for _ in result.stream_events():
        pass
    return str(result.final_output)
