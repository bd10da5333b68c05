"""Serialization context: what a value belongs to, for converters and codecs that want to know, such as those with a key for each
tenant or workflow.

    class Keyed(Converter):
        def with_context(self, context: SerializationContext) -> Keyed: ...

A converter, a part of a `CompositeConverter` or a codec that has a method `with_context` is asked for each workflow, activity and
operation of Nexus: what it returns is used for the values of that one, on both sides of the wire. One that has none is not asked,
and costs nothing.

Must not know: who asks (clients, runs, attempts, the codec's edge).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from hourglass.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class SerializationContext:
    """What a value belongs to: one of the kinds below."""


@dataclass(frozen=True)
class WorkflowSerializationContext(SerializationContext):
    """A workflow: of its arguments, its result, and of signals, queries and updates that are sent to it. To a workflow that
    starts a child, or signals another workflow, the id is the other one's. In a schedule it is the id as the schedule says it,
    before the time is added.
    """

    namespace: str
    workflow_id: str


@dataclass(frozen=True)
class ActivitySerializationContext(SerializationContext):
    """An activity: of its arguments, its result and its heartbeats. What is not known on one side is None there: the
    activity's id in a workflow that has not chosen it; the workflow, of an activity that a client started.
    """

    namespace: str
    activity_id: str | None = None
    activity_type: str | None = None
    activity_task_queue: str | None = None
    workflow_id: str | None = None
    workflow_type: str | None = None
    is_local: bool = False


@dataclass(frozen=True)
class NexusSerializationContext(SerializationContext):
    """An operation of Nexus: of its argument and its result. One that is a workflow has its result from there, in that one's own
    context.
    """

    endpoint: str
    service: str
    operation: str


@runtime_checkable
class WithSerializationContext(Protocol):
    """What wants to know whose values it has: a `Converter`, an `EncodingConverter`, a `JSONTypeConverter` or a `Codec`."""

    def with_context(self, context: SerializationContext) -> Any:
        """The same for the values of this context. Called often, and by many threads: do not do much here."""
        ...


def wants_context(what: object) -> bool:
    """Whether a converter or codec wants to know whose values it has; one that holds others says it for them."""
    declared: bool | None = getattr(what, "wants_context", None)
    return isinstance(what, WithSerializationContext) if declared is None else declared


def in_context(what: T, context: SerializationContext) -> T:
    """A converter or codec for the values of a context; itself where it does not want to know."""
    if not wants_context(what):
        return what
    contextual: Any = what
    made = contextual.with_context(context)
    if made is None:
        raise UsageError(
            f"{type(what).__name__}.with_context returned None: it returns what is to be used, itself at least"
        )
    found: T = made
    return found
