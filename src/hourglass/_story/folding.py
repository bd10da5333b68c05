"""Many spans into few: those of one kind and name become one with a count, the most numerous first, until they fit.

The run itself and what failed for a reason of its own are told before what is merely often. Nothing is lost from the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from hourglass._story.spans import Kind, Outcome, Segment, Span, Story

Group: TypeAlias = tuple[int, Kind, str]

_PLURALS = {
    Kind.ACTIVITY: "activities",
    Kind.LOCAL: "local activities",
    Kind.CHILD: "children",
    Kind.NEXUS: "nexus operations",
    Kind.EXTERNAL: "calls of other workflows",
    Kind.TASK: "workflow tasks",
}


def fold(story: Story, limit: int) -> Story:
    """The same story in at most `limit` spans, or as few as there are kinds."""
    first, rest = story.spans[0], story.spans[1:]
    if len(story.spans) <= limit:
        return story
    folded = _fold(rest, limit - 1, lambda span: (span.depth, span.kind, span.name))
    if len(folded) >= limit:
        folded = _fold(folded, limit - 1, lambda span: (0, span.kind, ""))
    return replace(story, spans=(first, *folded))


def _fold(spans: Sequence[Span], limit: int, key: Callable[[Span], Group]) -> tuple[Span, ...]:
    sizes = Counter(key(span) for span in spans)
    chosen: set[Group] = set()
    left = len(spans)
    for group, size in sizes.most_common():
        if left <= limit or size < 2:
            break
        chosen.add(group)
        left -= size - 1
    groups: dict[Group, list[Span]] = {}
    out: list[Span | Group] = []
    for span in spans:
        group = key(span)
        if group not in chosen:
            out.append(span)
        elif group in groups:
            groups[group].append(span)
        else:
            groups[group] = [span]
            out.append(group)
    return tuple(each if isinstance(each, Span) else _one(groups[each], each) for each in out)


def _one(spans: list[Span], group: Group) -> Span:
    depth, kind, name = group
    count = sum(each.count for each in spans)
    ends = [each.end for each in spans]
    faulty = next((each.faults for each in reversed(spans) if each.faults), ())
    return Span(
        id=spans[0].id,
        kind=kind,
        name=name or f"{_PLURALS.get(kind, f'{kind}s')} of {len({each.name for each in spans})} names",
        start=min(each.start for each in spans),
        end=None if None in ends else max(each for each in ends if each is not None),
        outcome=_worst(spans),
        segments=_union(segment for each in spans for segment in each.segments),
        attempts=max(each.attempts for each in spans),
        faults=faulty,
        depth=depth,
        count=count,
        bad=sum(each.bad if each.count > 1 else each.outcome.bad for each in spans),
    )


_ORDER = (
    Outcome.RETRYING,
    Outcome.OPEN,
    Outcome.TERMINATED,
    Outcome.FAILED,
    Outcome.TIMED_OUT,
    Outcome.CANCELLED,
    Outcome.LEFT,
    Outcome.CONTINUED,
    Outcome.DONE,
)


def _worst(spans: Iterable[Span]) -> Outcome:
    return min((each.outcome for each in spans), key=_ORDER.index)


def _union(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """What was done when, by any of them; the columns of a picture decide which is seen where they overlap."""
    return tuple(sorted(segments, key=lambda each: (each.start, each.end)))
