"""Handlers of signals, queries and updates: the decorators, the objects that replace the decorated functions, and functions
that get and set the handlers of a running workflow.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from hourglass._evaluator.context import current_run, require_run
from hourglass._evaluator.definition import (
    HandlerUnfinishedPolicy,
    MessageDefinition,
    MessageKind,
    check_function,
    check_name,
    check_plain_function,
    is_coroutine_function,
)
from hourglass._evaluator.fibers import current_fiber, require_fiber
from hourglass.converter import Signature
from hourglass.errors import DefinitionError

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")

_WARN = HandlerUnfinishedPolicy.WARN_AND_ABANDON


class _Message(Generic[P, R]):
    """A handler: a method of a workflow class, or a local function that the running body registers."""

    kind: MessageKind

    def __init__(
        self,
        fn: Callable[P, R],
        name: str | None,
        dynamic: bool,
        description: str | None,
        unfinished_policy: HandlerUnfinishedPolicy = _WARN,
    ) -> None:
        what = f"{self.kind} handler {getattr(fn, '__name__', fn)}"
        is_async = check_function(fn, what)
        is_local = current_fiber() is not None
        parameters = list(inspect.signature(fn).parameters)
        is_method = not is_local and bool(parameters) and parameters[0] == "self"
        checked_name = None if dynamic else check_name(name if name is not None else fn.__name__, what)
        self.__hourglass_message__ = MessageDefinition(
            kind=self.kind,
            name=checked_name,
            fn=fn,
            signature=Signature.of(
                fn, what=f"{self.kind} {checked_name or fn.__name__}", skip_first=is_method
            ),
            description=description or (inspect.getdoc(fn) or "").split("\n")[0],
            unfinished_policy=HandlerUnfinishedPolicy(unfinished_policy),
            is_async=is_async,
        )
        functools.update_wrapper(self, fn)
        if is_local:
            self._register()

    def _register(self) -> None:
        live = current_run()
        if live is not None:
            live.handlers.register(self.__hourglass_message__)

    @property
    def name(self) -> str | None:
        """The handler's name; None for a dynamic handler."""
        return self.__hourglass_message__.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the handler as a plain function."""
        result: R = self.__hourglass_message__.fn(*args, **kwargs)
        return result

    def _bound(self, obj: Any) -> Any:
        """Return the handler if accessed on the class, for clients, and the bound method on an instance."""
        return self if obj is None else types.MethodType(self.__hourglass_message__.fn, obj)


class Signal(_Message[P, None]):
    """A signal handler."""

    kind: MessageKind = "signal"

    @overload
    def __get__(self: Signal[Concatenate[S, Q]], obj: None, owner: type[S]) -> Signal[Q]: ...
    @overload
    def __get__(self: Signal[Concatenate[S, Q]], obj: S, owner: type[S]) -> Callable[Q, None]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        return self._bound(obj)


class AsyncSignal(_Message[P, None]):
    """A signal handler that is an `async def`."""

    kind: MessageKind = "signal"

    @overload
    def __get__(self: AsyncSignal[Concatenate[S, Q]], obj: None, owner: type[S]) -> AsyncSignal[Q]: ...
    @overload
    def __get__(
        self: AsyncSignal[Concatenate[S, Q]], obj: S, owner: type[S]
    ) -> Callable[Q, Coroutine[Any, Any, None]]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        return self._bound(obj)


class Query(_Message[P, R]):
    """A query handler."""

    kind: MessageKind = "query"

    @overload
    def __get__(self: Query[Concatenate[S, Q], T], obj: None, owner: type[S]) -> Query[Q, T]: ...
    @overload
    def __get__(self: Query[Concatenate[S, Q], T], obj: S, owner: type[S]) -> Callable[Q, T]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        return self._bound(obj)


class _Update(_Message[P, R]):
    """An update handler. `@name.validator` adds a function that may reject an update before it is recorded."""

    kind: MessageKind = "update"

    def validator(self, fn: Callable[P, None], /) -> Callable[P, None]:
        """Set the validator: a function with the handler's parameters that raises an exception to reject an update."""
        check_plain_function(fn, f"validator {getattr(fn, '__name__', fn)}")
        parameters = list(inspect.signature(self.__hourglass_message__.fn).parameters)
        if list(inspect.signature(fn).parameters) != parameters:
            raise DefinitionError(
                f"the validator of update {self.name} must have the same parameters as its handler: {', '.join(parameters)}"
            )
        self.__hourglass_message__ = dataclasses.replace(self.__hourglass_message__, validator=fn)
        if current_fiber() is not None:
            self._register()
        return fn


class Update(_Update[P, R]):
    """An update handler that is a plain `def`."""

    @overload
    def __get__(self: Update[Concatenate[S, Q], T], obj: None, owner: type[S]) -> Update[Q, T]: ...
    @overload
    def __get__(self: Update[Concatenate[S, Q], T], obj: S, owner: type[S]) -> Callable[Q, T]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        return self._bound(obj)


class AsyncUpdate(_Update[P, R]):
    """An update handler that is an `async def`; `R` is the type of its awaited result."""

    @overload
    def __get__(self: AsyncUpdate[Concatenate[S, Q], T], obj: None, owner: type[S]) -> AsyncUpdate[Q, T]: ...
    @overload
    def __get__(
        self: AsyncUpdate[Concatenate[S, Q], T], obj: S, owner: type[S]
    ) -> Callable[Q, Coroutine[Any, Any, T]]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        return self._bound(obj)


class _DecorateSignal(Protocol):
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, None]], /) -> AsyncSignal[P]: ...
    @overload
    def __call__(self, fn: Callable[P, None], /) -> Signal[P]: ...


class _DecorateUpdate(Protocol):
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncUpdate[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Update[P, R]: ...


@overload
def signal(fn: Callable[P, Coroutine[Any, Any, None]], /) -> AsyncSignal[P]: ...
@overload
def signal(fn: Callable[P, None], /) -> Signal[P]: ...
@overload
def signal(
    *,
    name: str | None = None,
    dynamic: bool = False,
    description: str | None = None,
    unfinished_policy: HandlerUnfinishedPolicy = _WARN,
) -> _DecorateSignal: ...
def signal(
    fn: Any = None,
    *,
    name: str | None = None,
    dynamic: bool = False,
    description: str | None = None,
    unfinished_policy: HandlerUnfinishedPolicy = _WARN,
) -> Any:
    """Define a signal handler: a method of a workflow class, or a local function inside a running workflow.

    A dynamic handler receives every signal that has no handler of its own, as `(name, arguments)`. A handler that is still
    running when the workflow closes is abandoned with a warning, unless `unfinished_policy` is `ABANDON`.
    """
    return _handler(fn, Signal, AsyncSignal, name, dynamic, description, unfinished_policy)


@overload
def query(fn: Callable[P, R], /) -> Query[P, R]: ...
@overload
def query(
    *, name: str | None = None, dynamic: bool = False, description: str | None = None
) -> Callable[[Callable[P, R]], Query[P, R]]: ...
def query(
    fn: Any = None, *, name: str | None = None, dynamic: bool = False, description: str | None = None
) -> Any:
    """Define a query handler: a method of a workflow class, or a local function inside a running workflow."""
    if fn is None:
        return lambda fn: Query(fn, name, dynamic, description)
    return Query(fn, name, dynamic, description)


@overload
def update(fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncUpdate[P, R]: ...  # type: ignore[overload-overlap]
@overload
def update(fn: Callable[P, R], /) -> Update[P, R]: ...
@overload
def update(
    *,
    name: str | None = None,
    dynamic: bool = False,
    description: str | None = None,
    unfinished_policy: HandlerUnfinishedPolicy = _WARN,
) -> _DecorateUpdate: ...
def update(
    fn: Any = None,
    *,
    name: str | None = None,
    dynamic: bool = False,
    description: str | None = None,
    unfinished_policy: HandlerUnfinishedPolicy = _WARN,
) -> Any:
    """Define an update handler: a method of a workflow class, or a local function inside a running workflow."""
    return _handler(fn, Update, AsyncUpdate, name, dynamic, description, unfinished_policy)


def _handler(fn: Any, plain: Any, awaited: Any, *options: Any) -> Any:
    """Return the handler for a decorated function. If there is no function yet, return the decorator."""

    def decorate(fn: Any) -> Any:
        return (awaited if is_coroutine_function(fn) else plain)(fn, *options)

    return decorate if fn is None else decorate(fn)


def _set_handler(
    kind: MessageKind,
    name: str | None,
    handler: Callable[..., Any] | None,
    validator: Callable[..., Any] | None = None,
) -> None:
    live = require_fiber(f"setting a {kind} handler").run
    if name is not None:
        check_name(name, f"a {kind} handler")
    if handler is None:
        live.handlers.forget(kind, name)
        return
    if isinstance(handler, _Message):
        handler = handler.__hourglass_message__.fn
    decorate: Any = {"signal": signal, "query": query, "update": update}[kind]
    decorated = decorate(name=name, dynamic=name is None)(handler)  # registers the handler in a live run
    if validator is not None:
        decorated.validator(validator)


def _get_handler(kind: MessageKind, name: str | None) -> Callable[..., Any] | None:
    registered = require_run(f"looking for a {kind} handler").handlers.known.get((kind, name))
    if registered is None:
        return None
    message, obj = registered
    return message.fn if obj is None else types.MethodType(message.fn, obj)


def set_signal_handler(name: str, handler: Callable[..., Any] | None) -> None:
    """Set the handler of a signal, or remove it with None. Signals that were waiting for a handler are handled now."""
    _set_handler("signal", name, handler)


def set_query_handler(name: str, handler: Callable[..., Any] | None) -> None:
    """Set the handler of a query, or remove it with None."""
    _set_handler("query", name, handler)


def set_update_handler(
    name: str, handler: Callable[..., Any] | None, *, validator: Callable[..., Any] | None = None
) -> None:
    """Set the handler and the validator of an update, or remove both with None."""
    _set_handler("update", name, handler, validator)


def set_dynamic_signal_handler(handler: Callable[..., Any] | None) -> None:
    """Set the handler of signals that have no handler of their own, or remove it with None."""
    _set_handler("signal", None, handler)


def set_dynamic_query_handler(handler: Callable[..., Any] | None) -> None:
    """Set the handler of queries that have no handler of their own, or remove it with None."""
    _set_handler("query", None, handler)


def set_dynamic_update_handler(
    handler: Callable[..., Any] | None, *, validator: Callable[..., Any] | None = None
) -> None:
    """Set the handler and the validator of updates that have no handler of their own, or remove both with None."""
    _set_handler("update", None, handler, validator)


def get_signal_handler(name: str) -> Callable[..., Any] | None:
    """Return the handler of a signal, or None if the signal has no handler of its own."""
    return _get_handler("signal", name)


def get_query_handler(name: str) -> Callable[..., Any] | None:
    """Return the handler of a query, or None if the query has no handler of its own."""
    return _get_handler("query", name)


def get_update_handler(name: str) -> Callable[..., Any] | None:
    """Return the handler of an update, or None if the update has no handler of its own."""
    return _get_handler("update", name)


def get_dynamic_signal_handler() -> Callable[..., Any] | None:
    """Return the handler of signals that have no handler of their own, or None."""
    return _get_handler("signal", None)


def get_dynamic_query_handler() -> Callable[..., Any] | None:
    """Return the handler of queries that have no handler of their own, or None."""
    return _get_handler("query", None)


def get_dynamic_update_handler() -> Callable[..., Any] | None:
    """Return the handler of updates that have no handler of their own, or None."""
    return _get_handler("update", None)
