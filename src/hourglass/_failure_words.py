"""Failures in words: what failed, what it raised and what that began with, in one line.

Knows no class of ours, because `errors` stands on it: how a failure ended something is asked of the failure
(`ending`), and whether it already tells of its causes (`tells_causes`).
"""

from __future__ import annotations


def summary(error: BaseException) -> str:
    """A failure in one line, such as `activity charge failed: ValueError: no such card`."""
    said = _first_line(str(error))
    if getattr(error, "tells_causes", False):
        return said
    kind = getattr(error, "type", None)
    name = kind if isinstance(kind, str) and kind else type(error).__name__
    return f"{name}: {said}" if said else name


def one_line(what: str, error: BaseException, message: str) -> str:
    """What became of something (`activity charge`), by the failure that says so and its causes."""
    cause = error.__cause__
    if not what or cause is None:
        return ": ".join(each for each in (what, message) if each)
    ending = getattr(cause, "ending", "")
    if ending:
        return f"{what} {ending}"
    root = innermost(cause)
    told = root is cause or getattr(cause, "tells_causes", False)
    return f"{what} failed: {summary(cause)}" + ("" if told else f" (because {summary(root)})")


def innermost(error: BaseException) -> BaseException:
    """What it all began with; the failure itself where it has no cause."""
    seen = {id(error)}
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    return error


def _first_line(text: str) -> str:
    return next((each.strip() for each in text.splitlines() if each.strip()), "")
