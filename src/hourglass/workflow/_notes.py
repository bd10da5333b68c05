"""What a workflow says of itself to those who look at it: memo, search attributes, current details."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

from hourglass._engine.commands import UpsertMemo, UpsertSearchAttributes
from hourglass._engine.context import merge, require_run
from hourglass._engine.fibers import require_fiber
from hourglass._engine.options import named_values
from hourglass.converter import SearchAttributes, decode_search_attribute, encode_search_attributes
from hourglass.errors import UsageError

T = TypeVar("T")
D = TypeVar("D")

_MISSING: Any = object()


def memo() -> dict[str, Any]:
    """The memo as it stands, decoded as JSON says."""
    live = require_run("workflow.memo")
    return {name: live.converter.decode(payload) for name, payload in live.notes.memo.items()}


@overload
def memo_value(key: str) -> Any: ...
@overload
def memo_value(key: str, *, type: type[T]) -> T: ...
@overload
def memo_value(key: str, default: D, *, type: type[T]) -> T | D: ...
@overload
def memo_value(key: str, default: object) -> Any: ...
def memo_value(key: str, default: Any = _MISSING, *, type: Any = Any) -> Any:
    """One entry of the memo as the given type. Raises `KeyError` where there is none and no default."""
    live = require_run("workflow.memo_value")
    payload = live.notes.memo.get(key)
    if payload is not None:
        return live.converter.decode(payload, type)
    if default is _MISSING:
        raise KeyError(f"the memo has no entry {key!r}")
    return default


def upsert_memo(changes: Mapping[str, Any]) -> None:
    """Change entries of the memo; None removes one."""
    fiber = require_fiber("workflow.upsert_memo")
    live = fiber.run
    if not changes:
        raise UsageError("upsert_memo was given no changes")
    encoded = {name: live.converter.encode(value) for name, value in named_values(changes, "a memo").items()}
    live.issue(UpsertMemo(encoded), fiber)
    merge(live.notes.memo, encoded)


def search_attributes() -> dict[str, Any]:
    """The search attributes as they stand."""
    live = require_run("workflow.search_attributes")
    return {name: decode_search_attribute(payload) for name, payload in live.notes.search_attributes.items()}


def upsert_search_attributes(changes: SearchAttributes) -> None:
    """Change search attributes: `upsert_search_attributes([REGION.value_set("eu"), DUE.value_unset()])`, or by name.

    They are never encrypted, and the service must know their names and types.
    """
    fiber = require_fiber("workflow.upsert_search_attributes")
    encoded = encode_search_attributes(changes)
    if not encoded:
        raise UsageError("upsert_search_attributes was given no changes")
    fiber.run.issue(UpsertSearchAttributes(encoded), fiber)
    merge(fiber.run.notes.search_attributes, encoded)


def set_current_details(details: str) -> None:
    """Say in a few lines what the workflow is doing, for whoever looks at it; Temporal's UI shows it as Markdown."""
    fiber = require_fiber("workflow.set_current_details")
    if not isinstance(details, str):
        raise UsageError(f"current details are a text, not {type(details).__name__}")
    fiber.run.notes.details = details


def get_current_details() -> str:
    """What `set_current_details` said last."""
    return require_run("workflow.get_current_details").notes.details
