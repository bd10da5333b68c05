"""A program with one agent of each library, which kills itself in the middle of their calls; run by `test_agents`.

    python agent_program.py FILE LOG MARKS

The process dies when both agents are in their first model call, and again in their first tool call; each time, a new process
continues. LOG has a line for the beginning and the end of each call. The program prints both answers and the number of kills.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from agents import Agent as OpenAIAgent
from agents import function_tool
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from hourglass import Client, RetryPolicy, Worker, workflow
from hourglass.activity import ActivityOptions
from hourglass.contrib.openai_agents import DurableRunner
from hourglass.contrib.pydantic_ai import HourglassDurability

LIBRARIES = ("pydantic", "openai")
OPTIONS: ActivityOptions = {
    "start_to_close_timeout": 4,
    "heartbeat_timeout": None,
    "retry_policy": RetryPolicy(initial_interval=0.01, maximum_interval=0.1),
}


def note(line: str) -> None:
    descriptor = os.open(sys.argv[2], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


async def do(action: str, library: str) -> None:
    """Do one call. The first time, kill the process once the other library is in the same call."""
    note(f"{library} {action} begins")
    marks = Path(sys.argv[3])
    if not (marks / action).exists():
        (marks / f"{library} {action}").touch()
        while not all((marks / f"{each} {action}").exists() for each in LIBRARIES):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (marks / action).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    note(f"{library} {action} ends")


async def pydantic_model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    await do("model", "pydantic")
    tool_results = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    return ModelResponse(
        parts=[TextPart(str(tool_results[0].content))]
        if tool_results
        else [ToolCallPart("charge", {"cents": 5})]
    )


durability = HourglassDurability(options=OPTIONS)
agent = Agent(FunctionModel(pydantic_model), name="cashier", capabilities=[durability])


@agent.tool_plain
async def charge(cents: int) -> str:
    await do("tool", "pydantic")
    return f"charged {cents}"


async def openai_model(call: Any) -> Any:
    await do("model", "openai")
    items = [] if isinstance(call.input, str) else call.input
    tool_outputs = [each["output"] for each in items if each.get("type") == "function_call_output"]
    return (
        [assistant_message(tool_outputs[0])]
        if tool_outputs
        else [function_call("debit", {"cents": 5}, call_id="c1")]
    )


@function_tool
async def debit(cents: int) -> str:
    await do("tool", "openai")
    return f"charged {cents}"


runner = DurableRunner(
    OpenAIAgent(name="clerk", model=ScriptedModel([ModelStep.respond(openai_model)] * 9), tools=[debit]),
    options=OPTIONS,
    tool_options={"debit": OPTIONS},
)


@workflow.defn
def by_pydantic() -> str:
    return workflow.run_async(agent.run("charge me")).output


@workflow.defn
def by_openai() -> str:
    return str(runner.run_sync("charge me").final_output)


def serve() -> None:
    with (
        Client.connect(f"local:{sys.argv[1]}") as client,
        Worker(client, workflows=[by_pydantic, by_openai], activities=[durability, runner]),
    ):
        handles = [
            client.start_workflow(each, id=each.__name__, request_id=each.__name__)
            for each in (by_pydantic, by_openai)
        ]
        print(*[handle.result() for handle in handles], sep="\n")


if __name__ == "__main__":
    from restarts import run_until_exit  # in the directory of this program

    run_until_exit(serve)
