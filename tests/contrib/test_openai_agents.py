"""Agents of the OpenAI Agents SDK in workflows: activities, retries, approvals, streaming, handoffs and MCP tools."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

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

from hourglass import Client, Replayer, Worker, workflow
from hourglass.contrib.openai_agents import DurableRunner
from hourglass.errors import UsageError, WorkflowFailedError
from hourglass.progress import Progress
from hourglass.testing import Environment

from .agent_calls import QUICK, call_counts, check_three_day_approval, count, scheduled_activities


def tool_outputs(call: Any) -> list[str]:
    items = [] if isinstance(call.input, str) else call.input
    return [str(each["output"]) for each in items if each.get("type") == "function_call_output"]


def scripted_model(respond: Any, times: int = 50) -> ScriptedModel:
    return ScriptedModel([ModelStep.respond(respond)] * times)


# --- once each --------------------------------------------------------------------------------------------------------


def weather_model(call: Any) -> Any:
    count("model")
    answers = tool_outputs(call)
    if not answers:
        return [function_call("weather", {"city": city}, call_id=city) for city in ("Oslo", "Rome")]
    return [assistant_message("; ".join(answers))]


@function_tool
def weather(city: str) -> str:
    count(f"weather {city}")
    return f"sun in {city}"


forecaster = DurableRunner(
    Agent(name="forecaster", model=scripted_model(weather_model), tools=[weather]),
    tool_options={"weather": {"start_to_close_timeout": 77}},
)


@workflow.defn
def forecast(question: str) -> str:
    return str(forecaster.run_sync(question).final_output)


@workflow.defn
async def forecast_async(question: str) -> str:
    return str((await forecaster.run(question)).final_output)


@pytest.mark.parametrize("definition", [forecast, forecast_async], ids=["plain", "async"])
def test_openai_agent_runs_model_and_tool_calls_as_activities(definition: Any, any_client: Client) -> None:
    """Each is called once although the workflow's code is executed twice."""
    queue = f"openai-{uuid4()}"
    with Worker(any_client, queue, workflows=[definition], activities=[forecaster], watch="error"):
        handle = any_client.start_workflow(definition, "Oslo or Rome?", task_queue=queue)
        assert handle.result() == "sun in Oslo; sun in Rome"
    assert call_counts == {"model": 2, "weather Oslo": 1, "weather Rome": 1}
    activities = scheduled_activities(handle)
    assert [(each["activityType"]["name"], each["startToCloseTimeout"]) for each in activities] == [
        ("forecaster.model", "600s"),
        ("forecaster.tool.weather", "77s"),
        ("forecaster.tool.weather", "77s"),
        ("forecaster.model", "600s"),
    ]
    with Replayer(workflows=[definition]) as replayer:
        replayer.replay(handle.history())


# --- retries ----------------------------------------------------------------------------------------------------------


def refusal(status: int) -> APIStatusError:
    request = httpx2.Request("POST", "http://localhost")
    return APIStatusError("no", response=httpx2.Response(status, request=request), body=None)


def unreliable_model(call: Any) -> Any:
    """Fails with 503 twice, then calls both tools and answers. Fails with 400 if the input contains `refused`."""
    if "refused" in str(call.input):
        count("refused")
        raise refusal(400)
    if count("busy") < 3:
        raise refusal(503)
    answers = tool_outputs(call)
    if len(answers) == 2:
        return [assistant_message(" ".join(answers))]
    return [
        function_call(
            ("tool_that_raises", "tool_that_reports_errors")[len(answers)], {}, call_id=f"c{len(answers)}"
        )
    ]


@function_tool(failure_error_function=None)
async def tool_that_raises() -> str:
    """Its activity is retried: the exception is not passed to the model."""
    if count("tool_that_raises") < 3:
        raise ConnectionError("the line is broken")
    return "third time"


@function_tool
async def tool_that_reports_errors() -> str:
    """The exception becomes an answer to the model."""
    count("tool_that_reports_errors")
    raise ConnectionError("the line is broken")


retrying_runner = DurableRunner(
    Agent(
        name="guesser",
        model=scripted_model(unreliable_model),
        tools=[tool_that_raises, tool_that_reports_errors],
    ),
    options={"retry_policy": QUICK},
)


@workflow.defn
async def ask_retrying_agent(what: str) -> str:
    return str((await retrying_runner.run(what)).final_output)


def test_openai_agent_retries_model_and_tools_by_their_activities_only(client: Client) -> None:
    """An exception that the tool reports to the model is not retried."""
    with Worker(client, "guesses", workflows=[ask_retrying_agent], activities=[retrying_runner]):
        answer = client.execute_workflow(ask_retrying_agent, "well?", task_queue="guesses")
        assert answer.startswith("third time")
        assert "error occurred while running the tool" in answer
        assert call_counts == {"busy": 5, "tool_that_raises": 3, "tool_that_reports_errors": 1}
        with pytest.raises(WorkflowFailedError, match="HTTP 400"):
            client.execute_workflow(ask_retrying_agent, "refused", task_queue="guesses")
        assert call_counts["refused"] == 1
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=2))
    with pytest.raises(UsageError, match="would multiply the retries of its activities"):
        DurableRunner(Agent(name="eager", model_settings=settings))


# --- waiting, conversations, limits -----------------------------------------------------------------------------------


consents = workflow.Channel("consent", bool)


@function_tool(needs_approval=True)
def pay(cents: int) -> str:
    count("paid")
    return f"paid {cents}"


def paying_model(call: Any) -> Any:
    count("model")
    answers = tool_outputs(call)
    return (
        [assistant_message(answers[0])] if answers else [function_call("pay", {"cents": 500}, call_id="p1")]
    )


teller = DurableRunner(Agent(name="teller", model=scripted_model(paying_model), tools=[pay]))


@workflow.defn
def payment(order: str) -> str:
    result = teller.run_sync(order)
    while result.interruptions:
        state = result.to_state()
        for item in result.interruptions:
            state.approve(item) if consents.receive() else state.reject(item)
        result = teller.run_sync(state)
    return str(result.final_output)


def test_openai_agent_tool_waits_three_days_for_approval() -> None:
    check_three_day_approval([teller], payment, consents)


def counting_model(call: Any) -> Any:
    items = [] if isinstance(call.input, str) else call.input
    return [assistant_message(str(sum(each.get("role") == "assistant" for each in items) + 1))]


counting_runner = DurableRunner(Agent(name="chatter", model=scripted_model(counting_model)))


@workflow.defn
def conversation(so_far: list[Any], rounds: int) -> str:
    result = counting_runner.run_sync([*so_far, {"role": "user", "content": "and then?"}])
    if rounds > 1:
        workflow.continue_as_new(result.to_input_list(), rounds - 1)
    return str(result.final_output)


@workflow.defn
async def limited(question: str) -> str:
    return str((await forecaster.run(question, max_turns=1)).final_output)


def test_openai_agent_continues_as_new_and_fails_at_its_turn_limit(client: Client) -> None:
    with Worker(client, "chats", workflows=[conversation, limited], activities=[counting_runner, forecaster]):
        assert client.execute_workflow(conversation, [], 3, task_queue="chats") == "3"
        with pytest.raises(WorkflowFailedError, match="MaxTurnsExceeded"):
            client.execute_workflow(limited, "Oslo?", task_queue="chats")
    assert call_counts["model"] == 1


# --- streaming --------------------------------------------------------------------------------------------------------


tokens = Progress("tokens", str)


def show(event: Any) -> None:
    if isinstance(event, ResponseTextDeltaEvent):
        tokens.publish(event.delta)


def failing_stream_handler(event: Any) -> None:
    raise ZeroDivisionError("a slip")


def talking_model(call: Any) -> Any:
    count("model")
    return [assistant_message("It depends.")]


talker = DurableRunner(Agent(name="talker", model=scripted_model(talking_model)), stream_handler=show)
failing_talker = DurableRunner(
    Agent(name="slipper", model=scripted_model(talking_model)), stream_handler=failing_stream_handler
)


@workflow.defn
def say(question: str) -> str:
    return str(talker.run_sync(question).final_output)


@workflow.defn
def say_with_failing_handler(question: str) -> str:
    return str(failing_talker.run_sync(question).final_output)


def test_openai_agent_publishes_streamed_tokens(client: Client) -> None:
    """An exception of the stream handler fails the run without another model request."""
    with Worker(
        client, "talks", workflows=[say, say_with_failing_handler], activities=[talker, failing_talker]
    ):
        handle = client.start_workflow(say, "Which?", task_queue="talks")
        assert "".join(tokens.follow(handle, timeout=60)) == "It depends."
        assert handle.result() == "It depends."
        assert call_counts["model"] == 1
        with pytest.raises(WorkflowFailedError, match="ZeroDivisionError: a slip"):
            client.execute_workflow(say_with_failing_handler, "Which?", task_queue="talks")
        assert call_counts["model"] == 2


# --- other agents, contexts, servers ----------------------------------------------------------------------------------


@dataclass
class Customer:
    name: str


@function_tool
async def customer_name(ctx: RunContextWrapper[Customer]) -> str:
    return f"{ctx.context.name}'s"


@function_tool
async def confirm_in_workflow() -> str:
    """Runs in the workflow itself, and sleeps there."""
    return "yes" if await workflow_confirms() else "no"


async def workflow_confirms() -> bool:
    from hourglass.aio import workflow as aio

    await aio.sleep(3600)
    return True


def triage_model(call: Any) -> Any:
    names = [each.tool_name for each in call.handoffs]
    return [function_call(names["billing" in str(call.input)], {}, call_id="h1")]


def expert_model(call: Any) -> Any:
    answers = [each for each in tool_outputs(call) if each in ("ann's", "yes")]
    steps = ("customer_name", "confirm_in_workflow")
    if len(answers) < 2:
        return [function_call(steps[len(answers)], {}, call_id=f"e{len(answers)}")]
    return [assistant_message(" ".join(answers))]


refunds: Agent[Customer] = Agent(
    name="refunds", model=scripted_model(expert_model), tools=[customer_name, confirm_in_workflow]
)
billing: Agent[Customer] = Agent(
    name="billing", model=scripted_model(expert_model), tools=[customer_name, confirm_in_workflow]
)
desk = DurableRunner(
    Agent[Customer](name="desk", model=scripted_model(triage_model), handoffs=[refunds, handoff(billing)]),
    context_type=Customer,
    tool_options={"confirm_in_workflow": False},
)


@workflow.defn
async def ask_desk(question: str) -> list[str]:
    result = await desk.run(question, context=Customer("ann"))
    return [result.last_agent.name, str(result.final_output)]


def test_openai_agent_handoff_continues_with_the_other_agent() -> None:
    """Both kinds of handoff; the tools get the run's context or run in the workflow."""
    with Environment(activities=[desk]) as env:
        assert env.execute_workflow(ask_desk, "a refund") == ["refunds", "ann's yes"]
        before = env.now()
        assert env.execute_workflow(ask_desk, "billing") == ["billing", "ann's yes"]
        assert env.now() - before == timedelta(hours=1)


def buyer_model(call: Any) -> Any:
    answers = tool_outputs(call)
    offered = [tool.name for tool in call.tools]
    return (
        [assistant_message(answers[0])]
        if answers
        else [function_call(offered[0], {"item": "fish"}, call_id="b1")]
    )


def test_openai_agent_calls_mcp_tools_as_activities(client: Client, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    program = str(Path(__file__).with_name("mcp_stdio.py"))
    server = MCPServerStdio(
        {"command": sys.executable, "args": ["-S", program, str(log)]},
        name="shop",
        client_session_timeout_seconds=60,
    )
    runner = DurableRunner(Agent(name="buyer", model=scripted_model(buyer_model), mcp_servers=[server]))

    @workflow.defn
    def buy() -> str:
        return str(runner.run_sync("how much?").final_output)

    with Worker(client, "shops", workflows=[buy], activities=[runner]):
        handle = client.start_workflow(buy, task_queue="shops")
        assert "3 crowns" in handle.result()
    assert log.read_text().splitlines() == ["fish"]
    assert "buyer.mcp.shop.call_tool" in {
        each["activityType"]["name"] for each in scheduled_activities(handle)
    }


# --- mistakes ---------------------------------------------------------------------------------------------------------


@workflow.defn
async def misuse(mistake: str) -> str:
    options: dict[str, Any] = {
        "session": {"session": SQLiteSession("s")},
        "model": {"run_config": RunConfig(model="gpt-5")},
        "stranger": {"starting_agent": Agent(name="stranger")},
        "stream": {},
    }[mistake]
    try:
        if mistake == "stream":
            forecaster.run_streamed("?")
        await forecaster.run("?", **options)
    except UsageError as error:
        return str(error)
    return "nothing was wrong"


def test_openai_agent_misuse_raises_errors_with_a_fix(client: Client) -> None:
    with Worker(client, "slips", workflows=[misuse], activities=[forecaster]):
        for what, said in (
            ("session", "to_input_list"),
            ("model", "Agent(model="),
            ("stranger", "agents=[stranger]"),
            ("stream", "DurableRunner(stream_handler="),
        ):
            assert said in client.execute_workflow(misuse, what, task_queue="slips")
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
