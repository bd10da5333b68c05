"""Bridges to other libraries and services, each loaded only by the program that imports it; most need an extra.

openai_agents  agents of the OpenAI Agents SDK, durable
opentelemetry  OpenTelemetry
pydantic_ai    agents of Pydantic AI, durable
s3             large payloads in a bucket; needs no extra
sqlalchemy     steps that happen exactly once in your database, and an outbox
_agents        what the two bridges to agents share
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__: list[str] = []


@contextmanager
def _require_extra(extra: str) -> Iterator[None]:
    """Where a bridge imports its parts: if its library is missing, or another version than the bridge is made for, the error says
    which extra brings it.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "hourglass":  # a fault of ours, which no extra mends
            raise
        home = f"hourglass.contrib.{extra.replace('-', '_')}"
        raise type(error)(
            f"{home} needs what its extra brings: pip install 'hourglass-temporal[{extra}]' ({error})",
            name=error.name,
            path=error.path,
        ) from error
