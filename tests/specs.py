"""Construction of commands, events, requests and tasks with flat fields, those of their specs included."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec

from hourglass._contract.service import Request
from hourglass._evaluator.specs import SPECS, Spec

S = TypeVar("S", bound=msgspec.Struct)


def made(kind: type[S], /, *args: Any, **fields: Any) -> S:
    """Create a struct of this kind; fields of its specs are passed as its own."""
    return kind(*args, **_gathered(kind, fields, None))


def changed(struct: S, /, **fields: Any) -> S:
    """Copy a struct with changed fields; fields of its specs are passed as its own."""
    return msgspec.structs.replace(struct, **_gathered(type(struct), fields, struct))


@cache
def spec_fields(kind: type[msgspec.Struct]) -> dict[str, type[Spec]]:
    """Return the fields of a kind that contain specs."""
    return {name: hint for name, hint in get_type_hints(kind).items() if hint in SPECS}


def _gathered(kind: type[msgspec.Struct], fields: dict[str, Any], before: Any) -> dict[str, Any]:
    own: dict[str, Any] = dict(fields)
    for name, spec in spec_fields(kind).items():
        spec_values = {
            field: own.pop(field)
            for field in spec.__struct_fields__
            if field in own and field not in kind.__struct_fields__
        }
        if spec_values:
            base = own.get(name) or getattr(before, name, None) or spec()
            own[name] = msgspec.structs.replace(base, **spec_values)
    return own


def requests(kind: type[Request[Any]] = Request) -> set[type[Request[Any]]]:
    """Return every concrete kind of request: those without subclasses."""
    below = kind.__subclasses__()
    return {kind}.union(*map(requests, below)) - {kind} if below else {kind}
