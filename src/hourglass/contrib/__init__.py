"""Bridges to other libraries. Each needs its extra, and is loaded only by the program that imports it.

openai_agents  agents of the OpenAI Agents SDK, durable
opentelemetry  OpenTelemetry
pydantic_ai    agents of Pydantic AI, durable
sqlalchemy     steps that happen exactly once in your database, and an outbox
_agents        what the two bridges to agents share
"""

from __future__ import annotations

__all__: list[str] = []
