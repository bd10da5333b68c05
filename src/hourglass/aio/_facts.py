"""Functions of `hourglass.workflow` with temporalio's parameter names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

from hourglass import workflow
from hourglass.aio._values import UNSET
from hourglass.converter import SearchAttributes
from hourglass.workflow import EventGroup

D = TypeVar("D")
T = TypeVar("T")


def patched(id: str, *, event_groups: Sequence[EventGroup] | None = None) -> bool:
    """Return whether to run the new code: True in new runs, False in a run with a history that already took the old path."""
    return workflow.patched(id, event_groups=event_groups)


def deprecate_patch(id: str, *, event_groups: Sequence[EventGroup] | None = None) -> None:
    """Declare that the old path of a patch has been removed from the code. Do this only after all runs that took the path
    have closed.
    """
    workflow.deprecate_patch(id, event_groups=event_groups)


@overload
def memo_value(key: str) -> Any: ...
@overload
def memo_value(key: str, *, type_hint: type[T]) -> T: ...
@overload
def memo_value(key: str, default: D, *, type_hint: type[T]) -> T | D: ...
@overload
def memo_value(key: str, default: object = UNSET, *, type_hint: Any = None) -> Any: ...
def memo_value(key: str, default: Any = UNSET, *, type_hint: Any = None) -> Any:
    """Return an entry of the memo as this type. Raise `KeyError` if the memo has no such key and there is no default."""
    type_ = Any if type_hint is None else type_hint
    if default is UNSET:
        return workflow.memo_value(key, type=type_)
    return workflow.memo_value(key, default, type=type_)


@overload
def get_last_completion_result(type_hint: type[T]) -> T | None: ...
@overload
def get_last_completion_result(type_hint: Any = None) -> Any: ...
def get_last_completion_result(type_hint: Any = None) -> Any:
    """Return the result of the last completed run of this workflow's cron expression or schedule; None if there is none."""
    return workflow.last_completion_result(Any if type_hint is None else type_hint)


def is_failure_exception(err: BaseException) -> bool:
    """Return whether an uncaught exception of this type fails the workflow. Any other exception parks the workflow until the
    code is fixed.
    """
    return workflow.is_failure_exception(err)


def set_current_details(description: str) -> None:
    """Set a short description of the workflow's current state. Temporal's UI displays it as Markdown."""
    workflow.set_current_details(description)


def upsert_memo(updates: Mapping[str, Any], *, event_groups: Sequence[EventGroup] | None = None) -> None:
    """Change entries of the memo. A value of None removes the entry."""
    workflow.upsert_memo(updates, event_groups=event_groups)


def upsert_search_attributes(
    attributes: SearchAttributes, *, event_groups: Sequence[EventGroup] | None = None
) -> None:
    """Change search attributes, by key (`upsert_search_attributes([REGION.value_set("eu"), DUE.value_unset()])`) or by name."""
    workflow.upsert_search_attributes(attributes, event_groups=event_groups)
