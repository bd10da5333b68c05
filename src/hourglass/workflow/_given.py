"""What callers, in a workflow or outside, may give for a workflow or a message, reduced to a name and a signature.

Workflows and messages come as decorated objects, as classes, as channels or as plain names. Names carry no
types: arguments are sent as they are and answers decoded as JSON says. Pure; knows nothing of connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hourglass._engine.definition import message_definition, workflow_definition
from hourglass._engine.options import check_text
from hourglass.converter import Converter, Payload, Signature
from hourglass.errors import ArgumentError, UsageError
from hourglass.workflow._channels import Channel

MessageKind = Literal["signal", "query", "update"]

_EXAMPLES: dict[MessageKind, str] = {
    "signal": "a name, a Channel or a method decorated with @workflow.signal",
    "query": "a name or a method decorated with @workflow.query",
    "update": "a name or a method decorated with @workflow.update",
}


@dataclass(frozen=True)
class Given:
    """Something that can be addressed: its name on the wire, and its signature where it is known."""

    what: str
    name: str
    signature: Signature | None = None
    return_type: Any = Any
    single: bool = False

    def encode(self, converter: Converter, arguments: Sequence[Any]) -> tuple[Payload, ...]:
        """Arguments bound by the signature and encoded. Raises `ArgumentError` before anything is sent."""
        if self.signature is not None:
            return tuple(self.signature.encode(converter, tuple(arguments), {}))
        if self.single and len(arguments) != 1:
            raise ArgumentError(f"{self.what} carries one value, not {len(arguments)}")
        return tuple(converter.encode_all(arguments))


def given_workflow(workflow: object) -> Given:
    """The workflow that a decorated function, a class, its run method or a name means."""
    if isinstance(workflow, str):
        return Given(f"workflow {_named(workflow, 'workflow')}", workflow)
    definition = workflow_definition(workflow)
    if definition is None:
        raise UsageError(
            f"{_describe(workflow)} is no workflow: decorate it with @workflow.defn, or give a name"
        )
    if definition.dynamic:
        raise UsageError(
            f"workflow {definition.name} is dynamic and takes any type: give the type's name as a text"
        )
    signature = definition.signature
    return Given(f"workflow {definition.name}", definition.name, signature, signature.return_type)


def given_message(kind: MessageKind, message: object) -> Given:
    """The signal, query or update that a decorated method, a channel or a name means."""
    if isinstance(message, str):
        return Given(f"{kind} {_named(message, kind)}", message)
    definition = message_definition(message)
    if definition is not None:
        if definition.kind != kind:
            raise UsageError(f"{_describe(message)} is a {definition.kind}, and was used as a {kind}")
        if definition.name is None:
            raise UsageError(f"{_describe(message)} takes {kind}s of any name: give the name as a text")
        signature = definition.signature
        return Given(f"{kind} {definition.name}", definition.name, signature, signature.return_type)
    if kind == "signal" and isinstance(message, Channel):
        return Given(f"channel {message.name}", message.name, single=True)
    raise UsageError(f"{_describe(message)} is no {kind}: give {_EXAMPLES[kind]}")


def _named(name: str, what: str) -> str:
    if not name:
        raise UsageError(f"the {what}'s name is empty")
    return check_text(name, f"the {what}'s name")


def _describe(thing: object) -> str:
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    return name if isinstance(name, str) else f"an object of type {type(thing).__name__}"
