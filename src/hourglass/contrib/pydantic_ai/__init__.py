"""Pydantic AI: agents with model requests, tools and MCP calls as activities.

Install the bridge with `pip install 'hourglass-temporal[pydantic-ai]'`.

    durability = HourglassDurability(model_options={"start_to_close_timeout": 300})
    agent = Agent("openai:gpt-5.2", name="support", tools=[look_up], capabilities=[durability])

    @workflow.defn
    def answer(question: str) -> str:
        return workflow.run_async(agent.run(question)).output

    Worker(client, workflows=[answer], activities=[durability])

    _durability  `HourglassDurability`: an agent's capability, with its activities and their options
    _errors      errors of an agent's activities, rebuilt as their own class in the workflow
    _wire        the arguments of an agent's activities as JSON
"""

from __future__ import annotations

from hourglass.contrib import _require_extra

with _require_extra("pydantic-ai"):
    from hourglass.contrib.pydantic_ai._durability import HourglassDurability
    from hourglass.contrib.pydantic_ai._wire import Messages

__all__ = ["HourglassDurability", "Messages"]
