"""Bridges to other libraries and services, each loaded only by the program that imports it; most need an extra.

openai_agents  agents of the OpenAI Agents SDK, durable
opentelemetry  OpenTelemetry
pydantic_ai    agents of Pydantic AI, durable
s3             large payloads in a bucket; needs no extra
sqlalchemy     steps that happen exactly once in your database, and an outbox
_agents        what the two bridges to agents share
"""

from __future__ import annotations

__all__: list[str] = []
