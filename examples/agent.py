"""An AI agent: a loop of model requests and tool calls that survives crashes.

    python examples/agent.py
    hourglass run examples/agent.py:agent "What shall I wear in Oslo and in Rome?" --id wear
    hourglass signal consent wear true      (in another terminal, when it asks for consent)

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

Each model request and each tool call is an activity: it is retried on its own, and after a crash completed requests are not
repeated. Tools requested together run in parallel. Tools with side effects on other people wait for consent, for days if
necessary. The model's answer is streamed word by word. Kill the program and run it again: it resumes. The model is a fake;
replace it in `ask`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hourglass import ApplicationError, Client, RetryPolicy, Worker, activity, workflow
from hourglass.client import IdConflictPolicy
from hourglass.errors import ActivityError, ArgumentError
from hourglass.progress import Progress


@dataclass
class ToolCall:
    id: str
    name: str
    arguments: dict[str, Any]


@dataclass
class Message:
    role: str
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    answers: str = ""


consents = workflow.Channel("consent", bool)
tokens = Progress("tokens", str)


@activity.defn(
    start_to_close_timeout=timedelta(minutes=5),
    retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=1)),
)
def ask(messages: list[Message]) -> Message:
    """Ask the model what to do next.

    Call a real model here with the messages and the descriptions of `TOOLS`, and convert its answer to a `Message`. Do not
    catch its errors: the activity is retried. Raise `ApplicationError(…, non_retryable=True)` for permanent errors.
    """
    reply = Message("model")
    for piece in fake_model(messages):
        if isinstance(piece, ToolCall):
            reply.calls.append(piece)
        else:
            tokens.publish(piece)
            reply.text += piece
    return reply


def fake_model(messages: list[Message]) -> Iterator[str | ToolCall]:
    """Fake model: look up the weather of the cities in the question, mail the result, and answer word by word."""
    question, tool_results = messages[0].text, [message for message in messages if message.role == "tool"]
    match len(tool_results):
        case 0:
            yield from (ToolCall(city, "weather", {"city": city}) for city in WEATHER if city in question)
        case _ if tool_results[-1].answers != "mail":
            advice = "; ".join(result.text for result in tool_results)
            yield ToolCall("mail", "mail", {"to": "ann", "text": advice})
        case _:
            yield from ("Done:", *(f" {word}" for word in tool_results[-1].text.split()), ".")


THREE_TIMES = RetryPolicy(maximum_attempts=3)
WEATHER = {"Oslo": "snow", "Rome": "sun", "London": "rain"}


@activity.defn(retry_policy=THREE_TIMES)
def weather(city: str) -> str:
    """Return today's weather in a city."""
    return f"{city} has {WEATHER[city]}"


@activity.defn(retry_policy=THREE_TIMES)
def mail(to: str, text: str) -> str:
    """Send an e-mail."""
    print(f"  mail to {to}: {text}")
    return f"mailed to {to}"


TOOLS: dict[str, Callable[..., str]] = {"weather": weather, "mail": mail}
NEEDS_CONSENT = frozenset({"mail"})


@workflow.defn
def agent(question: str, max_steps: int = 10) -> str:
    messages = [Message("user", question)]
    for _ in range(max_steps):
        reply = ask(messages)
        messages.append(reply)
        if not reply.calls:
            return reply.text
        messages += workflow.map(use, reply.calls)
    raise ApplicationError(f"no answer after {max_steps} steps", type="TooManySteps")


def use(call: ToolCall) -> Message:
    """Run a tool and return its result. Errors are returned to the model, which may try something else."""
    if call.name in NEEDS_CONSENT and not has_consent(call):
        return Message("tool", "the user refused", answers=call.id)
    try:
        text = TOOLS[call.name](**call.arguments)
    except (
        KeyError,
        ArgumentError,
        ActivityError,
    ) as error:  # unknown tool, invalid argument, or failed activity
        text = f"failed: {error}"
    return Message("tool", text, answers=call.id)


def has_consent(call: ToolCall) -> bool:
    workflow.set_current_details(f"May I {call.name} {json.dumps(call.arguments)}?")
    try:
        return consents.receive(timeout=timedelta(days=2))
    except TimeoutError:
        return False


def main() -> None:
    with Client.connect() as client, Worker(client, "agent", modules=[__name__]):
        question, goes_on = "What shall I wear in Oslo and in Rome?", IdConflictPolicy.USE_EXISTING
        handle = client.start_workflow(
            agent, question, id="wardrobe", id_conflict_policy=goes_on, task_queue="agent"
        )
        handle.signal(consents, True)  # a person consents
        for piece in tokens.follow(handle):
            print(piece, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
