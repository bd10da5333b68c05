"""Channels, and the resolution of references to workflows and messages to a name and a signature.

Callers, in a workflow or outside, refer to workflows and messages by decorated objects, classes, channels or plain names. A
plain name carries no types: arguments are encoded as they are, and results are decoded as plain JSON. This module is pure
and must not know connections.

A channel is a queue of signals that the workflow reads when it wants. Both sides use the same module-level object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, overload

from hourglass._evaluator.context import LiveRun
from hourglass._evaluator.definition import check_name, message_definition, workflow_definition
from hourglass._evaluator.fibers import require_fiber, wait_for
from hourglass._evaluator.options import Duration, check_text, optional_seconds
from hourglass._evaluator.scheduler import PENDING, Future
from hourglass._evaluator.words import waits_for_signal
from hourglass.activity import activity_definition
from hourglass.converter import Converter, Payload, Signature
from hourglass.errors import ArgumentError, ChannelEmptyError, PayloadError, UsageError
from hourglass.workflow._tasks import wait_with_timeout

T = TypeVar("T")

_NULL = Payload(b"", "binary/null")


class Channel(Generic[T]):
    """A named stream of messages into a workflow.

    Create a channel once, at module level, for both sides: use `decisions.receive()` in the workflow, and
    `handle.signal(decisions, …)` outside. Each message is sent as a signal with the channel's name and one argument.
    """

    @overload
    def __init__(self: Channel[Any], name: str) -> None: ...
    @overload
    def __init__(self, name: str, type: type[T]) -> None: ...
    @overload
    def __init__(self, name: str, type: object) -> None: ...
    def __init__(self, name: str, type: object = Any) -> None:
        self.name = check_name(name, "a channel")
        self.type: Any = type

    def __repr__(self) -> str:
        return f"<channel {self.name}>"

    def receive(self, timeout: Duration | None = None) -> T:
        """Return the next message in order of arrival, waiting if there is none. Raise `TimeoutError` after `timeout`."""
        fiber = require_fiber(f"receiving from channel {self.name}")
        limit = optional_seconds(timeout, "the timeout of receive")
        live = fiber.run
        while True:
            is_present, message = self._take(live)
            if is_present:
                return message  # type: ignore[return-value]
            arrival = Future(fiber.scheduler)
            live.handlers.receivers_of(self.name)[arrival] = None
            try:
                if limit is None:
                    wait_for(arrival)
                else:
                    wait_with_timeout(fiber, arrival, limit, waits_for_signal(self.name))
            except BaseException:
                self._stop_waiting(live, arrival)
                raise

    def receive_nowait(self) -> T:
        """Return the next message, or raise `ChannelEmptyError` if there is none."""
        fiber = require_fiber(f"receiving from channel {self.name}")
        is_present, message = self._take(fiber.run)
        if not is_present:
            raise ChannelEmptyError(f"channel {self.name} is empty")
        return message  # type: ignore[return-value]

    def drain(self) -> list[T]:
        """Return all messages that have arrived, and remove them from the channel."""
        fiber = require_fiber(f"draining channel {self.name}")
        messages: list[T] = []
        while True:
            is_present, message = self._take(fiber.run)
            if not is_present:
                return messages
            messages.append(message)  # type: ignore[arg-type]

    def _take(self, live: LiveRun) -> tuple[bool, T | None]:
        waiting = live.state.signals.get(self.name)
        while waiting:
            payloads = waiting.popleft().arguments
            if not waiting:
                del live.state.signals[self.name]
            try:
                value = (
                    live.converter.decode(payloads[0], self.type) if payloads else self._empty_message(live)
                )
            except PayloadError as error:
                live.notices += (f"a message to channel {self.name!r} was dropped: {error}",)
                continue
            return True, value
        return False, None

    def _empty_message(self, live: LiveRun) -> Any:
        """Return the value of a signal without arguments. Raise `PayloadError` unless the channel's type allows None."""
        try:
            return live.converter.decode(_NULL, self.type)
        except PayloadError as error:
            raise PayloadError(f"it has no value ({error})") from error

    def _stop_waiting(self, live: LiveRun, arrival: Future) -> None:
        """Stop waiting. If a message has woken this receiver in the meantime, wake the next receiver instead."""
        receivers = live.handlers.receivers_of(self.name)
        if arrival in receivers:
            del receivers[arrival]
        elif arrival.state != PENDING and live.state.signals.get(self.name) and not live.dead:
            live.handlers.wake_receiver(self.name)


MessageKind = Literal["signal", "query", "update"]

_EXAMPLES: dict[MessageKind, str] = {
    "signal": "a name, a Channel or a method decorated with @workflow.signal",
    "query": "a name or a method decorated with @workflow.query",
    "update": "a name or a method decorated with @workflow.update",
}


@dataclass(frozen=True)
class ResolvedReference:
    """A resolved reference: the name of a workflow or message, and its signature if known."""

    what: str
    name: str
    signature: Signature | None = None
    return_type: Any = Any
    single: bool = False

    def encode(self, converter: Converter, arguments: Sequence[Any]) -> tuple[Payload, ...]:
        """Bind arguments to the signature and encode them. Raise `ArgumentError` before anything is sent."""
        if self.signature is not None:
            return tuple(self.signature.encode(converter, tuple(arguments), {}))
        if self.single and len(arguments) != 1:
            raise ArgumentError(f"{self.what} takes one value, not {len(arguments)}")
        return tuple(converter.encode_all(arguments))

    def reject_misfits(
        self, converter: Converter, arguments: Sequence[Any], encoded: Sequence[Payload]
    ) -> None:
        """Raise `ArgumentError` for arguments whose types do not match the signature."""
        if self.signature is not None:
            self.signature.reject_misfits(converter, arguments, encoded)


def resolve_workflow(workflow: object) -> ResolvedReference:
    """Resolve a workflow from a decorated function, a class, its run method or a name."""
    if isinstance(workflow, str):
        return ResolvedReference(f"workflow {_checked_name(workflow, 'workflow')}", workflow)
    definition = workflow_definition(workflow)
    if definition is None:
        raise UsageError(f"{_describe(workflow)} is {_mismatch_advice(workflow)}")
    if definition.dynamic:
        raise UsageError(f"workflow {definition.name} is dynamic and handles any type: pass the type's name")
    signature = definition.signature
    return ResolvedReference(f"workflow {definition.name}", definition.name, signature, signature.return_type)


def resolve_message(kind: MessageKind, message: object) -> ResolvedReference:
    """Resolve a signal, query or update from a decorated method, a channel or a name."""
    if isinstance(message, str):
        return ResolvedReference(f"{kind} {_checked_name(message, kind)}", message)
    definition = message_definition(message)
    if definition is not None:
        if definition.kind != kind:
            raise UsageError(f"{_describe(message)} is a {definition.kind}, but was used as a {kind}")
        if definition.name is None:
            raise UsageError(f"{_describe(message)} handles {kind}s with any name: pass the name")
        signature = definition.signature
        return ResolvedReference(
            f"{kind} {definition.name}", definition.name, signature, signature.return_type
        )
    if kind == "signal" and isinstance(message, Channel):
        return ResolvedReference(f"channel {message.name}", message.name, single=True)
    raise UsageError(f"{_describe(message)} is not a {kind}: pass {_EXAMPLES[kind]}")


def _checked_name(name: str, kind: str) -> str:
    if not name:
        raise UsageError(f"the {kind}'s name is empty")
    return check_text(name, f"the {kind}'s name")


def _mismatch_advice(workflow: object) -> str:
    """Return why an object is not a workflow, and what to use instead."""
    if activity_definition(workflow) is not None:
        return (
            "an activity, not a workflow: call it in a workflow (@workflow.defn) and start that; or run it alone "
            "with client.execute_activity(…)"
        )
    if workflow is None or not (callable(workflow) or isinstance(workflow, type)):
        return "not a workflow: pass the function that is decorated with @workflow.defn, or its name"
    return "not a workflow: decorate it with @workflow.defn, or pass a name"


def _describe(reference: object) -> str:
    if reference is None:
        return "None"
    name = getattr(reference, "__qualname__", None) or getattr(reference, "__name__", None)
    return name if isinstance(name, str) else f"an object of type {type(reference).__name__}"
