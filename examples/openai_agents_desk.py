"""Durable agents with the OpenAI Agents SDK: a triage agent and two specialists, in a conversation that continues as new.

    python examples/openai_agents_desk.py
    hourglass run examples/openai_agents_desk.py:desk '[]' --id desk-1

It needs `pip install 'hourglass-temporal[openai-agents]'`. `HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

Model and tool calls are activities: after a crash completed calls are not repeated. The models are fakes, so that the example
runs without an API key: omit `model=` or pass the name of a real model.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from agents import Agent, function_tool
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call

from hourglass import Client, Worker, workflow
from hourglass.contrib.openai_agents import DurableRunner


def fake(respond: Any) -> ScriptedModel:
    return ScriptedModel([ModelStep.respond(respond)] * 100)


def newest(call: ModelCall) -> dict[str, Any]:
    return call.input[-1] if isinstance(call.input, list) else {"content": call.input}


def triage(call: ModelCall) -> Any:
    wanted = "billing" if "bill" in str(call.input[-1]) else "shipping"
    return [function_call(f"transfer_to_{wanted}", {}, call_id=f"{wanted}-{len(call.input)}")]


def bills(call: ModelCall) -> Any:
    return [assistant_message("Your bill is paid.")]


def parcels(call: ModelCall) -> Any:
    item = newest(call)
    if item.get("type") == "function_call_output" and "parcel" in str(item["output"]):
        return [assistant_message(f"Found it: {item['output']}.")]
    return [function_call("track", {"order": 7}, call_id=f"track-{len(call.input)}")]


@function_tool
def track(order: int) -> str:
    """Return the location of a parcel."""
    print(f"  carrier: asked for order {order}")
    return f"parcel {order} is in Oslo"


billing = Agent(name="billing", model=fake(bills))
shipping = Agent(name="shipping", model=fake(parcels), tools=[track])
first = Agent(name="triage", model=fake(triage), handoffs=[billing, shipping])
runner = DurableRunner(
    first,
    model_options={"start_to_close_timeout": timedelta(minutes=5)},
    tool_options={"track": {"start_to_close_timeout": 30}},
)

questions = workflow.Channel("questions", str)


@workflow.defn
class desk:
    """Run a conversation. The transcript is passed to the next run, so that no history grows without limit."""

    def __init__(self) -> None:
        self.answers: list[str] = []

    @workflow.run
    def run(self, so_far: list[Any]) -> list[str]:
        while (question := questions.receive()) != "bye":
            result = runner.run_sync([*so_far, {"role": "user", "content": question}])
            so_far = result.to_input_list()
            self.answers.append(f"{result.last_agent.name}: {result.final_output}")
            if workflow.info().is_continue_as_new_suggested:
                workflow.continue_as_new(so_far)
        return self.answers


if __name__ == "__main__":
    with Client.connect() as client, Worker(client, workflows=[desk], activities=[runner]):
        handle = client.start_workflow(desk.run, [])
        for question in ("where is my parcel?", "and my bill?", "bye"):
            handle.signal(questions, question)
        for answer in handle.result():
            print(answer)
