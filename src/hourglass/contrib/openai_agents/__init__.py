"""The OpenAI Agents SDK: agents with model calls, tools and MCP calls as activities.

Install the bridge with `pip install 'hourglass-temporal[openai-agents]'`.

    runner = DurableRunner(agent, model_options={"start_to_close_timeout": 300})

    @workflow.defn
    def answer(question: str) -> str:
        return runner.run_sync(question).final_output

    Worker(client, workflows=[answer], activities=[runner])

    _activities  the code of the activities: calls to models, tools and MCP servers
    _runner      `DurableRunner`: agents for workflows, with models, tools and servers as activities
"""

from __future__ import annotations

from hourglass.contrib import _require_extra

with _require_extra("openai-agents"):
    from hourglass.contrib.openai_agents._runner import DurableRunner

__all__ = ["DurableRunner"]
