"""Bridges to other libraries and services.

Each bridge is loaded only by a program that imports it; most need an extra.

    openai_agents  durable agents of the OpenAI Agents SDK
    opentelemetry  traces and metrics for OpenTelemetry
    pydantic_ai    durable agents of Pydantic AI
    s3             storage of large payloads in a bucket; needs no extra
    sqlalchemy     activities with exactly-once effects in your database, and an outbox
    _agents        the code shared by the two agent bridges
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__: list[str] = []


@contextmanager
def _require_extra(extra: str) -> Iterator[None]:
    """Convert an `ImportError` in the block: if a bridge's library is missing or has an incompatible version, name the extra
    to install.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "hourglass":  # a bug in Hourglass, so no extra fixes it
            raise
        home = f"hourglass.contrib.{extra.replace('-', '_')}"
        raise type(error)(
            f"{home} needs the packages of its extra: pip install 'hourglass-temporal[{extra}]' ({error})",
            name=error.name,
            path=error.path,
        ) from error
