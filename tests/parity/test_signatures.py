"""Functions of `hourglass.aio` accept every call that temporalio's accept. `signatures.toml` lists differences with reasons."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import tomllib
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.parity import table

LISTED: dict[str, Any] = tomllib.loads((table.HERE / "signatures.toml").read_text())
MODULES = (
    "activity",
    "client",
    "common",
    "envconfig",
    "exceptions",
    "service",
    "testing",
    "worker",
    "workflow",
)
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def callables(module: str) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """Yield the path of each function, constructor and method of a temporalio module that exists here, with both versions."""
    theirs = importlib.import_module(f"temporalio.{module}")
    ours = importlib.import_module(f"hourglass.aio.{module}")
    for name in filter(str.isidentifier, table.names_of(f"temporalio.{module}")):
        their, our = getattr(theirs, name), getattr(ours, name, None)
        if our is None or not callable(their):
            continue
        if not isinstance(their, type):
            yield f"{module}.{name}", their, our
            continue
        if isinstance(their, enum.EnumMeta) or isinstance(our, enum.EnumMeta) or typing.is_typeddict(their):
            continue
        yield f"{module}.{name}", their, our
        for member in vars(their):
            method = getattr(their, member)
            if member.startswith("_") or not inspect.isroutine(method) or not hasattr(our, member):
                continue
            yield f"{module}.{name}.{member}", method, getattr(our, member)


def difference(theirs: Callable[..., Any], ours: Callable[..., Any]) -> str:
    """Describe why a call that temporalio accepts would be rejected here; return "" if all are accepted."""
    try:
        wanted, has = dict(inspect.signature(theirs).parameters), inspect.signature(ours).parameters
    except (TypeError, ValueError):
        return ""  # written in C, or without a signature
    order = [name for name, parameter in has.items() if parameter.kind in POSITIONAL]
    kinds = {parameter.kind for parameter in has.values()}
    if any(str(parameter.annotation) == "Unpack[RpcOptions]" for parameter in has.values()):
        wanted = {name: parameter for name, parameter in wanted.items() if not name.startswith("rpc_")}
    position = -1
    for name, parameter in wanted.items():
        position += parameter.kind in POSITIONAL
        if parameter.kind is parameter.VAR_POSITIONAL:
            if parameter.VAR_POSITIONAL not in kinds:
                return f"*{name} is not taken"
        elif parameter.kind is parameter.VAR_KEYWORD:
            continue
        elif name not in has:
            return f"{name} is not taken"
        elif has[name].kind is parameter.POSITIONAL_ONLY and parameter.kind is not parameter.POSITIONAL_ONLY:
            return f"{name} is not taken by keyword"
        elif parameter.kind in POSITIONAL and order[position : position + 1] != [name]:
            return f"{name} is not taken at position {position}"
        elif parameter.default is not parameter.empty and has[name].default is parameter.empty:
            return f"{name} has no default"
    for name, parameter in has.items():
        if name not in wanted and parameter.default is parameter.empty and "VAR" not in parameter.kind.name:
            return f"{name} is needed here"
    return ""


@pytest.mark.parametrize("module", MODULES)
def test_every_call_that_temporalio_accepts_is_accepted_or_listed(module: str) -> None:
    found = {path: what for path, their, our in callables(module) if (what := difference(their, our))}
    known = {path for path in LISTED["differences"] if path.startswith(f"{module}.")}
    new = {path: what for path, what in found.items() if path not in known}
    assert not new, f"calls that hourglass.aio does not take, and signatures.toml does not list: {new}"
    if table.installed() >= table.tabled():
        gone = sorted(known - set(found))
        assert not gone, f"signatures.toml lists differences that are none: {gone}"


def test_every_listed_signature_difference_has_a_reason() -> None:
    used = set(LISTED["differences"].values())
    assert used == set(LISTED["reasons"])


def test_signature_comparison_detects_missing_moved_and_required_parameters() -> None:
    def theirs(first: int, second: int = 0, *, third: int = 0) -> None: ...

    def equal(first: int, second: int = 1, *more: int, third: int = 1, fourth: int = 1) -> None: ...
    def missing_parameter(first: int, second: int = 0) -> None: ...
    def swapped_order(second: int = 0, first: int = 0, *, third: int = 0) -> None: ...
    def positional_only(first: int, /, second: int = 0, *, third: int = 0) -> None: ...
    def without_default(first: int, second: int, *, third: int = 0) -> None: ...
    def additional_required(first: int, second: int = 0, *, third: int = 0, fourth: int) -> None: ...

    assert difference(theirs, equal) == ""
    assert all(
        difference(theirs, function)
        for function in (
            missing_parameter,
            swapped_order,
            positional_only,
            without_default,
            additional_required,
        )
    )


def test_every_input_field_of_temporalio_can_be_set_or_is_listed() -> None:
    import temporalio.client

    import hourglass.aio.client

    unsupported: dict[str, set[str]] = {}
    for name, their in vars(temporalio.client).items():
        our = getattr(hourglass.aio.client, name, None)
        if not name.endswith("Input") or our is None:
            continue
        fields = {field.name for field in dataclasses.fields(our)}
        missing = {
            field.name
            for field in dataclasses.fields(their)
            if field.name not in fields and not hasattr(our, field.name) and not field.name.startswith("_")
        }
        if missing:
            unsupported[name] = missing
    assert {name: set(fields) for name, fields in LISTED["inputs"].items()} == unsupported
