"""Helpers that replay written histories and check the verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hourglass import workflow
from hourglass.errors import NondeterminismError
from hourglass.replay import History, Replayer, ReplayResult

from .writer import Writer


def replay(text: str | Writer, code: Callable[..., Any], name: str = "W", **options: Any) -> ReplayResult:
    """Replay a history on a plain function."""
    document = text.json() if isinstance(text, Writer) else text
    with Replayer(workflows=[workflow.defn(name=name)(code)], **options) as replayer:
        return replayer.try_replay(History.from_json(document))


def assert_fits(text: str | Writer, code: Callable[..., Any], **options: Any) -> None:
    """Assert that the code issues the recorded commands, in any order within a task."""
    result = replay(text, code, **options)
    if result.difference is not None:
        raise result.difference


def assert_rejected(text: str | Writer, code: Callable[..., Any], **options: Any) -> NondeterminismError:
    """Assert that the replay finds a difference; return it."""
    result = replay(text, code, **options)
    assert isinstance(result.error, NondeterminismError)
    assert isinstance(result.difference, NondeterminismError)
    return result.difference
