"""Commands, events, requests and tasks for tests, all of whose fields are given flat: those of their specs too; and which
kinds of requests there are.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec

from hourglass._contract.service import Request
from hourglass._evaluator.specs import SPECS, Spec

S = TypeVar("S", bound=msgspec.Struct)


def made(kind: type[S], /, *args: Any, **fields: Any) -> S:
    """One of this kind, with these fields: each goes where it belongs."""
    return kind(*args, **_gathered(kind, fields, None))


def changed(thing: S, /, **fields: Any) -> S:
    """The same thing with other fields."""
    return msgspec.structs.replace(thing, **_gathered(type(thing), fields, thing))


@cache
def spec_fields(kind: type[msgspec.Struct]) -> dict[str, type[Spec]]:
    """The fields of a kind that hold specs."""
    return {name: hint for name, hint in get_type_hints(kind).items() if hint in SPECS}


def _gathered(kind: type[msgspec.Struct], fields: dict[str, Any], before: Any) -> dict[str, Any]:
    own: dict[str, Any] = dict(fields)
    for name, spec in spec_fields(kind).items():
        said = {
            each: own.pop(each)
            for each in spec.__struct_fields__
            if each in own and each not in kind.__struct_fields__
        }
        if said:
            base = own.get(name) or getattr(before, name, None) or spec()
            own[name] = msgspec.structs.replace(base, **said)
    return own


def requests(kind: type[Request[Any]] = Request) -> set[type[Request[Any]]]:
    """Every kind of request that can be sent: those that others are made of are none."""
    below = kind.__subclasses__()
    return {kind}.union(*map(requests, below)) - {kind} if below else {kind}
