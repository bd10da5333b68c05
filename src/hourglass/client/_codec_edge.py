"""The codec at the client's edge: requests are sealed before they leave, answers unsealed when they come.

Runs in worker threads, for a codec is the user's code and may be slow.
"""

from __future__ import annotations

from typing import TypeVar, cast

from hourglass._bridge.service import Page, Request, WorkflowSummary
from hourglass.converter import Codec, Converter, seal, unseal
from hourglass.errors import DecodeError

A = TypeVar("A")


def sealed(request: Request[A], codec: Codec, converter: Converter) -> Request[A]:
    """The request as it may leave."""
    return seal(request, codec, converter)


def unsealed(answer: A, codec: Codec, converter: Converter) -> A:
    """The answer as it can be read."""
    if isinstance(answer, Page):
        workflows = tuple(_summary(summary, codec, converter) for summary in answer.workflows)
        return cast("A", Page(workflows, answer.next_page_token))
    return unseal(answer, codec, converter)


def _summary(summary: WorkflowSummary, codec: Codec, converter: Converter) -> WorkflowSummary:
    # Lists show other people's runs too: one whose memo the codec refuses is shown with its memo as it came.
    try:
        return unseal(summary, codec, converter)
    except DecodeError:
        return summary
