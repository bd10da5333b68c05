"""Serialization context: the owner of a value, for converters and codecs that depend on it, for example with a
key for each tenant or workflow.

    class Keyed(Converter):
        def with_context(self, context: SerializationContext) -> Keyed: ...

A converter, a part of a `CompositeConverter` or a codec that has a method `with_context` is called for each
workflow, activity and Nexus operation: its result converts the values of that owner, on both sides. One
without this method is not called, and has no cost.

Must not know its callers (clients, runs, attempts, the codec's edge).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from hourglass.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class SerializationContext:
    """The owner of a value: one of the kinds below."""


@dataclass(frozen=True)
class WorkflowSerializationContext(SerializationContext):
    """A workflow: owner of its arguments, its result, and of signals, queries and updates that are sent to it.

    For a workflow that starts a child, or signals another workflow, the id is that of the other one. In a
    schedule it is the id in the schedule's action, before the time is appended.
    """

    namespace: str
    workflow_id: str


@dataclass(frozen=True)
class ActivitySerializationContext(SerializationContext):
    """An activity: owner of its arguments, its result and its heartbeat details.

    Fields unknown on one side are None there: the activity id in a workflow that has not set it; the
    workflow, of an activity started by a client.
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
    """A Nexus operation: owner of its argument and its result. If a workflow handles it, the result has that
    workflow's context.
    """

    endpoint: str
    service: str
    operation: str


@runtime_checkable
class WithSerializationContext(Protocol):
    """A `Converter`, `EncodingConverter`, `JSONTypeConverter` or `Codec` that depends on the serialization
    context.
    """

    def with_context(self, context: SerializationContext) -> Any:
        """Return a copy for the values of this context. Called often and by many threads: keep it cheap."""
        ...


def wants_context(what: object) -> bool:
    """Whether a converter or codec depends on the serialization context; one with parts decides for them."""
    declared: bool | None = getattr(what, "wants_context", None)
    return isinstance(what, WithSerializationContext) if declared is None else declared


def in_context(what: T, context: SerializationContext) -> T:
    """Return the converter or codec for the values of a context; the object itself if it does not depend on the context."""
    if not wants_context(what):
        return what
    contextual: Any = what
    made = contextual.with_context(context)
    if made is None:
        raise UsageError(
            f"{type(what).__name__}.with_context returned None: it must return the object to use, at least itself"
        )
    result: T = made
    return result
