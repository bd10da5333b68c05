"""The codec at the client's edge: requests are sealed before they leave, answers unsealed when they come.

Runs in worker threads, for a codec is the user's code and may be slow.
"""

from __future__ import annotations

from typing import TypeVar, cast

from hourglass._contract.schedules import SchedulePage
from hourglass._contract.service import Page, Request
from hourglass.converter import Codec, Converter, seal, unseal
from hourglass.errors import DecodeError

A = TypeVar("A")
S = TypeVar("S")


def sealed(request: Request[A], codec: Codec, converter: Converter) -> Request[A]:
    """The request as it may leave."""
    return seal(request, codec, converter)


def unsealed(answer: A, codec: Codec, converter: Converter) -> A:
    """The answer as it can be read."""
    if isinstance(answer, Page):
        workflows = tuple(_summary(summary, codec, converter) for summary in answer.workflows)
        return cast("A", Page(workflows, answer.next_page_token))
    if isinstance(answer, SchedulePage):
        schedules = tuple(_summary(summary, codec, converter) for summary in answer.schedules)
        return cast("A", SchedulePage(schedules, answer.next_page_token))
    return unseal(answer, codec, converter)


def _summary(summary: S, codec: Codec, converter: Converter) -> S:
    # Lists show what is other people's too: one whose memo the codec refuses is shown with its memo as it came.
    try:
        return unseal(summary, codec, converter)
    except DecodeError:
        return summary
