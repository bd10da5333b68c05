"""Channels: signals as a queue that the workflow reads when it likes, with one token for both sides."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

from hourglass._engine.context import NO_VALUE_NO_MESSAGE, LiveRun
from hourglass._engine.definition import check_name
from hourglass._engine.fibers import require_fiber, wait_for
from hourglass._engine.options import Duration, optional_seconds
from hourglass._engine.scheduler import PENDING, Future
from hourglass.converter import Payload
from hourglass.errors import ChannelEmptyError, PayloadError
from hourglass.workflow._tasks import wait_with_timeout

T = TypeVar("T")

_NOTHING = Payload(b"", "binary/null")


class Channel(Generic[T]):
    """A named stream of messages into a workflow.

    Made once, at module level, it serves both sides: `decisions.receive()` in the workflow, `handle.signal(decisions, …)`
    outside. On the wire a message is a signal of this name with one argument.
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
        """The next message, in the order of arrival; waits for it, after `timeout` raises `TimeoutError`."""
        fiber = require_fiber(f"receiving from channel {self.name}")
        limit = optional_seconds(timeout, "the timeout of receive")
        live = fiber.run
        while True:
            found, message = self._take(live)
            if found:
                return message  # type: ignore[return-value]
            arrival = Future(fiber.scheduler)
            live.handlers.receivers_of(self.name)[arrival] = None
            try:
                if limit is None:
                    wait_for(arrival)
                else:
                    wait_with_timeout(fiber, arrival, limit)
            except BaseException:
                self._hand_on(live, arrival)
                raise

    def receive_nowait(self) -> T:
        """The next message if one is there; else raise `ChannelEmptyError`."""
        fiber = require_fiber(f"receiving from channel {self.name}")
        found, message = self._take(fiber.run)
        if not found:
            raise ChannelEmptyError(f"channel {self.name} is empty")
        return message  # type: ignore[return-value]

    def drain(self) -> list[T]:
        """All messages that are there."""
        fiber = require_fiber(f"draining channel {self.name}")
        messages: list[T] = []
        while True:
            found, message = self._take(fiber.run)
            if not found:
                return messages
            messages.append(message)  # type: ignore[arg-type]

    def _take(self, live: LiveRun) -> tuple[bool, T | None]:
        waiting = live.state.signals.get(self.name)
        while waiting:
            payloads = waiting.popleft().arguments
            if not waiting:
                del live.state.signals[self.name]
            try:
                value = live.converter.decode(payloads[0], self.type) if payloads else self._nothing(live)
            except PayloadError as error:
                live.notices += (f"a message to channel {self.name!r} was dropped: {error}",)
                continue
            return True, value
        return False, None

    def _nothing(self, live: LiveRun) -> Any:
        """What a signal without a value is: None, where the channel's type has it."""
        try:
            return live.converter.decode(_NOTHING, self.type)
        except PayloadError as error:
            if not live.has_flag(NO_VALUE_NO_MESSAGE):
                return None  # as in 0.1.0, for runs that have gone that way
            raise PayloadError(f"it came without a value ({error})") from error

    def _hand_on(self, live: LiveRun, arrival: Future) -> None:
        """Give up waiting; if a message woke this receiver in the meantime, wake the next one instead."""
        receivers = live.handlers.receivers_of(self.name)
        if arrival in receivers:
            del receivers[arrival]
        elif arrival.state != PENDING and live.state.signals.get(self.name) and not live.dead:
            live.handlers.wake_receiver(self.name)
