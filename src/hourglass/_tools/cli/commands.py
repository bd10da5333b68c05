"""Groups of commands. A parameter with the type of a dataclass, for example `Engine`, adds an option for each field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

import typer


class Commands(typer.Typer):
    """A group of commands."""

    def command(self, *arguments: Any, **settings: Any) -> Callable[[Any], Any]:
        """Return a decorator that adds a function to the group."""
        add = super().command(*arguments, **settings)

        def added(function: Callable[..., Any]) -> Callable[..., Any]:
            add(_with_options(function))
            return function

        return added


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(**values: Any) -> Any:
        return _call(function, values)

    options = list(_options(function))
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _parameters(of: Any) -> Iterator[Parameter]:
    hints = get_type_hints(of, include_extras=True)
    for parameter in signature(of).parameters.values():
        yield parameter.replace(annotation=hints[parameter.name], kind=Parameter.KEYWORD_ONLY)


def _options(of: Any) -> Iterator[Parameter]:
    for parameter in _parameters(of):
        yield from _options(parameter.annotation) if is_dataclass(parameter.annotation) else (parameter,)


def _call(function: Any, values: Mapping[str, Any]) -> Any:
    return function(
        **{
            parameter.name: _call(parameter.annotation, values)
            if is_dataclass(parameter.annotation)
            else values[parameter.name]
            for parameter in _parameters(function)
        }
    )
