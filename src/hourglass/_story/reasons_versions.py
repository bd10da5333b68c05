"""Why a run's code is not run though its queue is served: by workers of another version than the one it needs. Pure."""

from __future__ import annotations

from hourglass._story import advice
from hourglass._story.diagnosis import Cause, Facts, Finding, QueueFacts


def wanted(facts: Facts, queue: QueueFacts) -> str:
    """The version whose workers may run it; empty: those without a version."""
    return facts.pinned or queue.current


def unserved(facts: Facts, queue: QueueFacts, since: int | None) -> list[Finding]:
    """That those who poll the queue are of other versions; nothing if one of them may run it."""
    needed = wanted(facts, queue)
    there = sorted({each.version for each in queue.workflow_pollers})
    if needed in there:
        return []
    return [
        Finding(
            cause=Cause.NO_VERSION,
            what=_sentence(facts, queue, needed),
            since=since,
            details=(f"workers of {_listed(there)} poll the queue",),
            actions=advice.serve_version(queue.name, needed, there, facts.options),
        )
    ]


def _sentence(facts: Facts, queue: QueueFacts, needed: str) -> str:
    if facts.pinned:
        return f"is pinned to version {needed}, and no worker of it polls its task queue {queue.name!r}"
    if needed:
        return f"waits for version {needed}, which is current, and no worker of it polls task queue {queue.name!r}"
    return f"waits for a worker without a version, for no version is current on task queue {queue.name!r}"


def _listed(versions: list[str]) -> str:
    return ", ".join(f"version {each}" if each else "no version" for each in versions)
