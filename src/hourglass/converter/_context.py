"""Serialization context: the owner of a value. Converters and codecs may depend on the owner, for example to use a key for
each tenant or workflow.

    class Keyed(Converter):
        def with_context(self, context: SerializationContext) -> Keyed: ...

If a converter, a part of a `CompositeConverter` or a codec has a method `with_context`, this method is called for each
workflow, activity and Nexus operation. The returned object converts the values of that owner, on both sides. Objects without
this method cause no overhead.

Must not know its callers (clients, runs, attempts, the codec's edge).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from hourglass.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class SerializationContext:
    """The owner of a value: an object of one of the subclasses below."""


@dataclass(frozen=True)
class WorkflowSerializationContext(SerializationContext):
    """A workflow, as the owner of its arguments, its result, and the signals, queries and updates that are sent to it.

    When a workflow starts a child or signals another workflow, the id is the id of the child or of the other workflow. In a
    schedule, the id comes from the schedule's action, without the appended time.
    """

    namespace: str
    workflow_id: str


@dataclass(frozen=True)
class ActivitySerializationContext(SerializationContext):
    """An activity, as the owner of its arguments, its result and its heartbeat details.

    Unknown fields are None: the activity id in a workflow that has not set one, and the workflow fields of an activity that
    a client started.
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
    """A Nexus operation, as the owner of its argument and its result. If a workflow handles the operation, the result has
    the workflow's context instead.
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
        """Return a copy for values in this context. Many threads call this method often, so it must be fast."""
        ...


def wants_context(what: object) -> bool:
    """Whether a converter or codec depends on the serialization context. A composed object decides for its parts."""
    declared: bool | None = getattr(what, "wants_context", None)
    return isinstance(what, WithSerializationContext) if declared is None else declared


def in_context(what: T, context: SerializationContext) -> T:
    """Return the converter or codec bound to a context, or the object itself if it does not depend on the context."""
    if not wants_context(what):
        return what
    contextual: Any = what
    made = contextual.with_context(context)
    if made is None:
        raise UsageError(
            f"{type(what).__name__}.with_context returned None: it must return the object to use, for example self"
        )
    result: T = made
    return result
