"""A durable agent with Pydantic AI: model requests and tool calls are activities, and payments need a person's approval.

    python examples/pydantic_agent.py
    hourglass run examples/pydantic_agent.py:refund "order 7 came broken" --id refund-1

It needs `pip install 'hourglass-temporal[pydantic-ai]'`. `HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

After a crash neither completed model requests nor refunds are repeated. The model is a fake, so that the example runs without an
API key: replace it by the name of a real model, `Agent("openai:gpt-5.2", …)`.
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
    """Publish the model's answer while it is received. Called in the activity of the model request."""
    async for event in events:
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            tokens.publish(event.part.content)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            tokens.publish(event.delta.content_delta)


async def fake_model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Fake model: look up the order, request a refund, and report the outcome."""
    tool_results = {
        part.tool_name: part
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    }
    if "look_up" not in tool_results:
        yield {0: DeltaToolCall("look_up", '{"order": 7}', tool_call_id="l1")}
    elif "pay_back" not in tool_results:
        yield {0: DeltaToolCall("pay_back", '{"order": 7, "cents": 1999}', tool_call_id="p1")}
    else:
        for word in f"Order 7: {tool_results['pay_back'].content}".split():
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
    """Return the contents of an order."""
    return f"order {order}: a lamp, 19.99"


@agent.tool_plain(requires_approval=True, metadata={"hourglass": {"start_to_close_timeout": 30}})
def pay_back(order: int, cents: int) -> str:
    """Refund an amount. The id of the tool call is the same for every attempt, so the bank books it once."""
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
