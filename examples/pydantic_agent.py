"""An agent of Pydantic AI, durable: its model requests and tools are activities, and a person is asked before it pays.

    python examples/pydantic_agent.py
    hourglass run examples/pydantic_agent.py:refund "order 7 came broken" --id refund-1

It needs `pip install 'hourglass-temporal[pydantic-ai]'`. `HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

After a crash no answer that was paid for is asked for again, and a refund that was paid is not paid again. The model is a fake
here, so that it runs without a key: put the name of yours in its place, `Agent("openai:gpt-5.2", …)`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from datetime import timedelta

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from hourglass import Client, RetryPolicy, Worker, workflow
from hourglass.contrib.pydantic_ai import HourglassDurability
from hourglass.progress import Progress

tokens = Progress("tokens", str)
consents = workflow.Channel("consent", bool)


async def show(ctx: RunContext[object], events: AsyncIterable[AgentStreamEvent]) -> None:
    """Called where the model's answer arrives: what it says is followed while it comes."""
    async for event in events:
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            tokens.publish(event.part.content)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            tokens.publish(event.delta.content_delta)


async def fake_model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Looks the order up, asks for a refund, and says what came of it."""
    told = {
        part.tool_name: part for each in messages for part in each.parts if isinstance(part, ToolReturnPart)
    }
    if "look_up" not in told:
        yield {0: DeltaToolCall("look_up", '{"order": 7}', tool_call_id="l1")}
    elif "pay_back" not in told:
        yield {0: DeltaToolCall("pay_back", '{"order": 7, "cents": 1999}', tool_call_id="p1")}
    else:
        for word in f"Order 7: {told['pay_back'].content}".split():
            yield f"{word} "


durability = HourglassDurability(
    event_stream_handler=show,
    model_options={
        "start_to_close_timeout": timedelta(minutes=5),
        "retry_policy": RetryPolicy(maximum_interval=timedelta(minutes=1)),
    },
)
agent = Agent(
    FunctionModel(stream_function=fake_model),
    name="support",
    instructions="Help the customer. Refunds are up to 20.00.",
    output_type=[str, DeferredToolRequests],
    capabilities=[durability],
)


@agent.tool_plain
def look_up(order: int) -> str:
    """What was ordered."""
    return f"order {order}: a lamp, 19.99"


@agent.tool_plain(requires_approval=True, metadata={"hourglass": {"start_to_close_timeout": 30}})
def pay_back(order: int, cents: int) -> str:
    """Pay money back. The call's id is the same for every attempt: the bank books it once."""
    print(f"  bank: {cents / 100:.2f} for order {order}")
    return f"{cents / 100:.2f} paid back"


@workflow.defn
def refund(complaint: str) -> str:
    result = workflow.run_async(agent.run(complaint))
    while isinstance(result.output, DeferredToolRequests):
        asked = result.output.approvals
        answers = DeferredToolResults(
            approvals={call.tool_call_id: consents.receive(timeout=timedelta(days=2)) for call in asked}
        )
        result = workflow.run_async(
            agent.run(message_history=result.all_messages(), deferred_tool_results=answers)
        )
    return result.output.strip()


if __name__ == "__main__":
    with Client.connect() as client, Worker(client, workflows=[refund], activities=[durability]):
        handle = client.start_workflow(refund, "order 7 came broken")
        handle.signal(consents, True)
        print("".join(tokens.follow(handle)).strip())
        print(handle.result())
