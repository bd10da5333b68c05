"""Event groups: which of the things that a run asks for belong together, for those who read its history.

Must not know: what is asked for, or why. A group is a note beside a command and the event that it becomes; it decides nothing, is
compared with nothing in a replay, and may be added to the code of open runs. The groups of the block that the code is in are
a context variable, which fibers and asyncio's tasks have each their own of; a run that has made no group never looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

import msgspec

from hourglass._evaluator import commands as c
from hourglass._evaluator.fibers import require_fiber
from hourglass._evaluator.options import check_text, several
from hourglass.converter import default_converter
from hourglass.errors import UsageError

Markers = tuple[c.EventGroupMarker, ...]

_active: ContextVar[Markers] = ContextVar("hourglass_event_groups", default=())
"""Those of the `with` blocks that the code is in, the outermost first."""

C = TypeVar("C", bound=c.Command)
R = TypeVar("R")


class EventGroup:
    """Things that a workflow asks for and that belong together: their events in the history say so. Made by
    `workflow.create_event_group`.

    Given as `event_groups=[group]` it is of one call; `with group.scope():` is of all that is asked for in the block.
    """

    __slots__ = ("_marker",)

    def __init__(self, marker: c.EventGroupMarker) -> None:
        self._marker = marker

    @property
    def id(self) -> str:
        """What tells it from other groups of the run."""
        return self._marker.id

    @contextmanager
    def scope(self) -> Iterator[None]:
        """All that is asked for in this block belongs to the group, and to those of the blocks around it. Tasks that are begun in
        the block are in it to their end; handlers of signals and updates are not.
        """
        require_fiber("the scope of an event group")
        with block_of((self._marker,)):
            yield

    def __repr__(self) -> str:
        return f"<event group {self.id}>"


def create_event_group(id: str, *, label: str | None = None) -> EventGroup:
    """A group for things that belong together: `create_event_group("order-7", label="Order 7")`. Events of the same `id` are of
    one group.

    Temporal's UI shows the `label`. The id stands in the history as it is, whatever the codec, so it must be no secret; the
    label is encoded by the codec. Groups change nothing in what a workflow does. Experimental, as in temporalio.
    """
    run = require_fiber("workflow.create_event_group").run
    if not check_text(id, "the id of an event group"):
        raise UsageError("the id of an event group must not be empty")
    encoded_label = None
    if label is not None:
        if not check_text(label, "the label of an event group"):
            raise UsageError("the label of an event group must not be empty; None means that it has none")
        # Read by others than the workflow: whatever the run's own converter is, it is plain JSON.
        encoded_label = default_converter.encode(label)
    run.grouped = True
    return EventGroup(c.EventGroupMarker(id=id, label=encoded_label))


def check_groups(value: object, what: str = "event_groups") -> Markers:
    """The groups that are given with a call; None means none."""
    markers: list[c.EventGroupMarker] = []
    for group in several(() if value is None else value, what):
        if not isinstance(group, EventGroup):
            raise UsageError(
                f"{what} must be groups of workflow.create_event_group, not {type(group).__name__}"
            )
        markers.append(group._marker)
    return merged((), tuple(markers))


@contextmanager
def block_of(groups: Markers) -> Iterator[None]:
    """A block in which all belongs to these groups, too."""
    token = _active.set(merged(_active.get(), groups))
    try:
        yield
    finally:
        # A coroutine that is closed and not resumed leaves the block in another context, which knows nothing of it.
        with suppress(ValueError):
            _active.reset(token)


def merged(outer: Markers, inner: Markers) -> Markers:
    """Both, each group once: where one is in both, as the inner says it."""
    return tuple({marker.id: marker for marker in (*outer, *inner)}.values())


def in_groups(command: C) -> C:
    """A command with the groups of the block that asks for it, beside those that it was given."""
    active = _active.get()
    if not active or type(command) not in c.IN_GROUPS:
        return command
    return msgspec.structs.replace(command, event_groups=merged(active, command.event_groups))


def with_current_groups(function: Callable[[], R]) -> Callable[[], R]:
    """A function for another fiber, which is then in the groups of this one's block."""
    active = _active.get()

    def within() -> Any:
        _active.set(active)
        return function()

    return within if active else function
