"""Event groups: groups of related commands, for readers of the history.

Must not know: the contents of commands. A group is a note in a command and in the resulting event. Groups have
no effect on the run and are not compared in a replay, so they may be added to the code of open runs. A context
variable contains the groups of the current block. Each fiber and each asyncio task has its own copy of the
variable. A run without groups never reads it.
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
"""The groups of the enclosing `with` blocks, the outermost first."""

C = TypeVar("C", bound=c.Command)
R = TypeVar("R")


class EventGroup:
    """A group of related commands of a workflow, marked in the history. Create it with
    `workflow.create_event_group`.

    Pass `event_groups=[group]` to add a single call to the group, or use `with group.scope():` to add all
    commands in the block.
    """

    __slots__ = ("_marker",)

    def __init__(self, marker: c.EventGroupMarker) -> None:
        self._marker = marker

    @property
    def id(self) -> str:
        """The id of the group, unique in the run."""
        return self._marker.id

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Add all commands of the block to this group and to the groups of the enclosing blocks. Tasks started
        in the block stay in the group. Handlers of signals and updates do not join the group.
        """
        require_fiber("the scope of an event group")
        with block_of((self._marker,)):
            yield

    def __repr__(self) -> str:
        return f"<event group {self.id}>"


def create_event_group(id: str, *, label: str | None = None) -> EventGroup:
    """Create a group of related commands: `create_event_group("order-7", label="Order 7")`. Events with the
    same `id` belong to one group.

    Temporal's web UI displays the `label`. The id is stored in the history without encryption, so it must not
    be secret; the label is encoded by the codec. Groups do not affect the workflow. Experimental, as in
    temporalio.
    """
    run = require_fiber("workflow.create_event_group").run
    if not check_text(id, "the id of an event group"):
        raise UsageError("the id of an event group must not be empty")
    encoded_label = None
    if label is not None:
        if not check_text(label, "the label of an event group"):
            raise UsageError(
                "the label of an event group must not be empty; pass None for a group without a label"
            )
        # Other programs read the label, so it is encoded as plain JSON, regardless of the run's converter.
        encoded_label = default_converter.encode(label)
    run.grouped = True
    return EventGroup(c.EventGroupMarker(id=id, label=encoded_label))


def check_groups(value: object, what: str = "event_groups") -> Markers:
    """Return the groups passed to a call; None means none."""
    markers: list[c.EventGroupMarker] = []
    for group in several(() if value is None else value, what):
        if not isinstance(group, EventGroup):
            raise UsageError(
                f"{what} must contain groups from workflow.create_event_group, not {type(group).__name__}"
            )
        markers.append(group._marker)
    return merged((), tuple(markers))


@contextmanager
def block_of(groups: Markers) -> Iterator[None]:
    """Add these groups to all commands in the block."""
    token = _active.set(merged(_active.get(), groups))
    try:
        yield
    finally:
        # A coroutine that is closed without being resumed leaves the block in another context, where the token
        # is invalid.
        with suppress(ValueError):
            _active.reset(token)


def merged(outer: Markers, inner: Markers) -> Markers:
    """Return the outer and inner groups, each group once. The label of an inner group replaces the outer label."""
    return tuple({marker.id: marker for marker in (*outer, *inner)}.values())


def in_groups(command: C) -> C:
    """Return the command with the groups of the current block, in addition to its own."""
    active = _active.get()
    if not active or type(command) not in c.IN_GROUPS:
        return command
    return msgspec.structs.replace(command, event_groups=merged(active, command.event_groups))


def with_current_groups(function: Callable[[], R]) -> Callable[[], R]:
    """Return a function that applies the groups of the current block when it is called in another fiber."""
    active = _active.get()

    def within() -> Any:
        _active.set(active)
        return function()

    return within if active else function
