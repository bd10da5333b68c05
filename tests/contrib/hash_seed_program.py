"""A program whose workflow runs agents of both libraries with sets in all their arguments; run by `test_agents`.

    python hash_seed_program.py record FILE
    python hash_seed_program.py replay FILE

`record` writes the run's history to FILE; `replay` fails if the workflow does not match it. The test runs each with another
`PYTHONHASHSEED`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic
from agents import Agent as OpenAIAgent
from agents import ModelSettings, RunContextWrapper, function_tool
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from hourglass import Client, History, Replayer, Worker, workflow
from hourglass.contrib.openai_agents import DurableRunner
from hourglass.contrib.pydantic_ai import HourglassDurability, Messages

WORDS = ["pear", "fig", "apple", "kiwi", "plum", "date", "lime", "nut"]


class Basket(pydantic.BaseModel):
    fruit: frozenset[str]


@dataclass
class Customer:
    tags: set[str] = field(default_factory=lambda: set(WORDS))
    groups: dict[str, frozenset[str]] = field(default_factory=lambda: {"all": frozenset(WORDS)})
    basket: Basket = field(default_factory=lambda: Basket(fruit=frozenset(WORDS)))


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call every tool, and one that does not exist, in one response; then answer."""
    if sum(isinstance(each, ModelResponse) for each in messages) > 1:
        return ModelResponse(parts=[TextPart("done")])
    names = [*(tool.name for tool in info.function_tools), "missing"]
    return ModelResponse(parts=[ToolCallPart(name, {"words": WORDS}, tool_call_id=name) for name in names])


async def answer_stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
    for index, part in enumerate(answer(messages, info).parts):
        if isinstance(part, ToolCallPart):
            yield {
                index: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)
            }
        elif isinstance(part, TextPart):
            yield part.content


async def watch(ctx: RunContext[Customer], events: AsyncIterable[AgentStreamEvent]) -> None:
    async for _ in events:
        pass


durability = HourglassDurability(event_stream_handler=watch)
model = FunctionModel(answer, stream_function=answer_stream)
shop = Agent(model, name="shop", deps_type=Customer, retries=3, capabilities=[durability])


@shop.tool
def count(ctx: RunContext[Customer], words: set[str]) -> int:
    return len(words & ctx.deps.tags)


@shop.tool_plain
def sort(words: frozenset[str]) -> frozenset[str]:
    return words


@shop.tool_plain(metadata={"hourglass": False})
async def pick(words: set[str]) -> set[str]:
    return words


@shop.tool_plain(metadata={"hourglass": False})
async def choose(words: set[str]) -> list[set[str]]:
    return [words]


@shop.tool_plain
def refuse(words: set[str]) -> str:
    raise ModelRetry("other words, please")


@function_tool
def weigh(ctx: RunContextWrapper[Customer]) -> int:
    return len(ctx.context.tags)


@function_tool
def wrap(ctx: RunContextWrapper[Customer]) -> str:
    return "wrapped"


def serve(call: Any) -> Any:
    items = [] if isinstance(call.input, str) else call.input
    if any(each.get("type") == "function_call_output" for each in items):
        return [assistant_message("done")]
    return [function_call(name, {}, call_id=name) for name in ("weigh", "wrap")]


desk = DurableRunner(
    OpenAIAgent[Customer](
        name="desk",
        model=ScriptedModel([ModelStep.respond(serve)] * 9),
        tools=[weigh, wrap],
        model_settings=ModelSettings(extra_args={"words": set(WORDS)}, metadata={"a": "b"}),
    ),
    context_type=Customer,
)


@workflow.defn
async def both(rounds: int, messages: Messages) -> str:
    bought = await shop.run(
        "buy",
        deps=Customer(),
        message_history=messages.root or None,
        metadata={"words": set(WORDS)},
        model_settings={"extra_body": {"words": set(WORDS)}},
    )
    served = await desk.run("serve", context=Customer())
    if rounds > 1:
        workflow.continue_as_new(rounds - 1, Messages(bought.all_messages()))
    return f"{bought.output} {served.final_output}"


def main() -> None:
    file = Path(sys.argv[2])
    if sys.argv[1] == "record":
        with (
            Client.connect("local:") as client,
            Worker(client, workflows=[both], activities=[durability, desk]),
        ):
            handle = client.start_workflow(both, 2, Messages(), id="w")
            first = handle.describe().run_id
            assert handle.result(timeout=60) == "done done"
            file.write_text(client.get_workflow_handle("w", run_id=first).history().to_json())
    else:
        with Replayer(workflows=[both]) as replayer:
            replayer.replay(History.from_json(file.read_text()))


if __name__ == "__main__":
    main()
