"""A program that runs agents of both libraries with guardrails, handoffs, approvals and errors, and prints the modules that
workflow code imports; run by `test_agents`.

An import inside a workflow is slow, and that of a large module can exceed the deadlock timeout under load.
"""

from __future__ import annotations

import sys
from typing import Any

from agents import (
    Agent as OpenAIAgent,
)
from agents import (
    AgentsException,
    GuardrailFunctionOutput,
    RunState,
    function_tool,
    input_guardrail,
    output_guardrail,
)
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from hourglass import Client, Worker, workflow
from hourglass.contrib.openai_agents import DurableRunner
from hourglass.contrib.pydantic_ai import HourglassDurability


class Answer(BaseModel):
    text: str


@input_guardrail
async def beside(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="trip beside" in str(given))


@input_guardrail(run_in_parallel=False)
async def first(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="trip first" in str(given))


@output_guardrail
async def after(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="trip" in str(output))


@function_tool
def look_up(order: int) -> str:
    return "a lamp"


@function_tool
def fail(order: int) -> str:
    raise ValueError("no such order")


@function_tool(needs_approval=True)
def pay(order: int) -> str:
    return "paid"


def model(*calls: str, text: str = "done") -> ScriptedModel:
    def respond(call: Any) -> Any:
        items = [] if isinstance(call.input, str) else call.input
        if not calls or any(each.get("type") == "function_call_output" for each in items):
            return [assistant_message(text)]
        if calls == ("handoff",):
            return [function_call(call.handoffs[0].tool_name, {}, call_id="h")]
        return [function_call(name, {"order": 1}, call_id=name) for name in calls]

    return ScriptedModel([ModelStep.respond(respond)] * 20)


expert = OpenAIAgent[None](name="expert", model=model("look_up"), tools=[look_up])
agents = {
    "tools": OpenAIAgent[None](
        name="tools",
        model=model("look_up", "fail"),
        tools=[look_up, fail],
        input_guardrails=[beside, first],
        output_guardrails=[after],
    ),
    "tripped": OpenAIAgent[None](name="tripped", model=model(text="trip"), output_guardrails=[after]),
    "handoff": OpenAIAgent[None](name="handoff", model=model("handoff"), handoffs=[expert]),
    "approval": OpenAIAgent[None](name="approval", model=model("pay"), tools=[pay]),
    "typed": OpenAIAgent[None](name="typed", model=model(text='{"text": "a"}'), output_type=Answer),
    "mistyped": OpenAIAgent[None](name="mistyped", model=model(text="a"), output_type=Answer),
    "unknown": OpenAIAgent[None](name="unknown", model=model("missing")),
}
runners = {name: DurableRunner(agent) for name, agent in agents.items()}


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    count = sum(isinstance(each, ModelResponse) for each in messages)
    if count > 1:
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart(name, {"order": count}) for name in ("find", "missing")])


durability = HourglassDurability()
finder = Agent(FunctionModel(answer), name="finder", retries=3, capabilities=[durability])


@finder.tool_plain
def find(order: int) -> str:
    if order == 0:
        raise ModelRetry("another one")
    return "a lamp"


@workflow.defn
async def run(name: str, question: str) -> list[str]:
    before = set(sys.modules)
    try:
        if name == "finder":
            outcome = (await finder.run(question)).output
        else:
            result = await runners[name].run(question)
            if result.interruptions:
                state = await RunState.from_json(runners[name].agent, result.to_state().to_json())
                state.approve(state.get_interruptions()[0])
                result = await runners[name].run(state)
            outcome = str(result.final_output)
    except (AgentsException, AgentRunError) as error:
        outcome = type(error).__name__
    return [outcome, *sorted(set(sys.modules) - before)]


CASES = {
    ("tools", "well?"): "done",
    ("tools", "trip beside"): "InputGuardrailTripwireTriggered",
    ("tools", "trip first"): "InputGuardrailTripwireTriggered",
    ("tripped", "well?"): "OutputGuardrailTripwireTriggered",
    ("handoff", "well?"): "done",
    ("approval", "well?"): "done",
    ("typed", "well?"): "text='a'",
    ("mistyped", "well?"): "ModelBehaviorError",
    ("unknown", "well?"): "ModelBehaviorError",
    ("finder", "well?"): "done",
}


def main() -> None:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[run], activities=[durability, *runners.values()]),
    ):
        for case, expected in CASES.items():
            outcome, *imported = client.execute_workflow(run, *case)
            assert outcome == expected, (case, outcome)
            print(*imported, sep="\n", end="\n" if imported else "")


if __name__ == "__main__":
    main()
