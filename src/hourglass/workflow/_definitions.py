"""The decorators: `defn`, `run`, `init`, `signal`, `query`, `update`, and what they leave in place of the function;
handlers as values, which a running body looks up, sets and takes away.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from hourglass._engine.context import current_run, require_run
from hourglass._engine.definition import (
    DynamicWorkflowConfig,
    HandlerUnfinishedPolicy,
    MessageDefinition,
    MessageKind,
    WorkflowDefinition,
    check_function,
    check_name,
    check_plain_function,
    define_class,
    define_function,
    is_coroutine_function,
)
from hourglass._engine.fibers import current_fiber, require_fiber
from hourglass._engine.versions import VersioningBehavior
from hourglass.converter import Signature
from hourglass.errors import DefinitionError, UsageError
from hourglass.workflow._children import ChildOptions, ChildWorkflowHandle, check_options, start_defined

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
K = TypeVar("K")

_WARN = HandlerUnfinishedPolicy.WARN_AND_ABANDON
_UNSPECIFIED = VersioningBehavior.UNSPECIFIED


class WorkflowSource(Protocol):
    """What `workflows=[…]` takes, beside classes: any object that is no activity. `ActivitySource` says how that is said."""

    def __dir__(self) -> Iterable[str]: ...


class _Workflow(Generic[P, R]):
    """A workflow made from a function by `@workflow.defn`.

    Start it with `client.start_workflow(checkout, order, id="order-1")`; call the bare function, in a test of its logic
    or at a prompt, as `checkout.fn(order)`. Called inside another workflow it runs as a child of that.
    """

    if TYPE_CHECKING:
        __sizeof__: None  # type: ignore[assignment]  # so that it is no `ActivitySource`

    def __init__(self, definition: WorkflowDefinition, options: ChildOptions | None = None) -> None:
        self.__hourglass_workflow__ = definition
        self._options: ChildOptions = {} if options is None else options
        functools.update_wrapper(self, definition.run)

    @property
    def name(self) -> str:
        """The workflow's type name on the wire."""
        return self.__hourglass_workflow__.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Inside a workflow: run it as a child and wait for its result. Elsewhere it needs a client, and raises."""
        return self.start(*args, **kwargs).result()

    def start(self, *args: P.args, **kwargs: P.kwargs) -> ChildWorkflowHandle[R]:
        """Start it as a child and wait until it has started, not until it has ended. In workflows only."""
        return _start_child(self.__hourglass_workflow__, args, kwargs, self._options)

    def options(self, **options: Unpack[ChildOptions]) -> Self:
        """The same workflow with options for the children that are started through it: `ship.options(id="s-1")(item)`."""
        check_options(options, f"workflow {self.name}")
        return type(self)(self.__hourglass_workflow__, cast(ChildOptions, {**self._options, **options}))

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


class Workflow(_Workflow[P, R]):
    """A workflow made from a plain function."""

    @property
    def fn(self) -> Callable[P, R]:
        """The function itself."""
        return self.__hourglass_workflow__.run


class AsyncWorkflow(_Workflow[P, R]):
    """A workflow made from an `async def`; `R` is what it returns when it is awaited.

    Called inside a plain workflow it runs as a child like any other; in `async def` code start it by
    `hourglass.aio.workflow.execute_child_workflow`.
    """

    @property
    def fn(self) -> Callable[P, Coroutine[Any, Any, R]]:
        """The function itself."""
        return self.__hourglass_workflow__.run


def _start_child(
    definition: WorkflowDefinition | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: ChildOptions,
) -> ChildWorkflowHandle[Any]:
    if definition is None:
        raise UsageError("a @workflow.run method stands in no class that is decorated with @workflow.defn")
    live = current_run()
    name = definition.name
    if definition.dynamic:
        raise UsageError(
            f"workflow {name} is dynamic: it has no type of its own. Give the type as a text, "
            "workflow.execute_child_workflow(…) or client.start_workflow(…), or call the bare function as "
            f"{name}.fn(…)"
        )
    if live is None:
        raise UsageError(
            f"workflow {name} was called directly: start it with client.start_workflow({name}, …) or "
            f"client.execute_workflow({name}, …), or call the bare function as {name}.fn(…)"
        )
    return start_defined(live, name, definition.signature, args, kwargs, options)


class _Decorate(Protocol):
    @overload
    def __call__(self, fn: type[K], /) -> type[K]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncWorkflow[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R]: ...


@overload
def defn(fn: type[K], /) -> type[K]: ...  # type: ignore[overload-overlap]
@overload
def defn(fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncWorkflow[P, R]: ...  # type: ignore[overload-overlap]
@overload
def defn(fn: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def defn(
    *,
    name: str | None = None,
    dynamic: bool = False,
    failure_exceptions: Sequence[type[BaseException]] = (),
    versioning_behavior: VersioningBehavior = _UNSPECIFIED,
) -> _Decorate: ...
def defn(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    dynamic: bool = False,
    failure_exceptions: Sequence[type[BaseException]] = (),
    versioning_behavior: VersioningBehavior = _UNSPECIFIED,
) -> Any:
    """Make a workflow of a function, plain or `async def`, or of a class with a `@workflow.run` method.

    `name` is its type on the wire, by default the function's or class's name. A `dynamic` workflow takes every type that
    its worker knows no other workflow of: its one parameter is a `Sequence[RawPayload]` of all arguments, and
    `workflow.info().workflow_type` says what was asked for. Exceptions listed in `failure_exceptions` fail the run when the
    workflow lets them out; any other exception that is no failure is a bug, and parks the run until the code is mended.
    `versioning_behavior` says whether a run stays with the version of the worker that it began on, or moves on.
    """

    def define(fn: Any) -> Any:
        options: Any = {"dynamic": dynamic, "versioning_behavior": versioning_behavior}
        if isinstance(fn, type):
            defined = define_class(fn, name, tuple(failure_exceptions), **options)
            fn.__hourglass_workflow__ = defined  # type: ignore[attr-defined]
            return fn
        function = define_function(fn, name, tuple(failure_exceptions), **options)
        return AsyncWorkflow(function) if function.is_async else Workflow(function)

    return define if fn is None else define(fn)


class _RunMethod(Generic[P, R]):
    """The run method of a workflow class. `Cart.run` stands for the workflow: give it to `client.start_workflow`, or call
    it inside another workflow to run it as a child.
    """

    if TYPE_CHECKING:
        __sizeof__: None  # type: ignore[assignment]  # so that it is no `ActivitySource`

    def __init__(
        self, fn: Callable[P, R], owner: type | None = None, options: ChildOptions | None = None
    ) -> None:
        self.__hourglass_run__ = fn
        self._owner = owner
        self._options: ChildOptions = {} if options is None else options
        functools.update_wrapper(self, fn)

    @property
    def __hourglass_workflow__(self) -> WorkflowDefinition | None:
        return None if self._owner is None else vars(self._owner).get("__hourglass_workflow__")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """`Cart.run(…)` on the class, inside a workflow: run it as a child. Elsewhere it needs a client, and raises."""
        return self.start(*args, **kwargs).result()

    def start(self, *args: P.args, **kwargs: P.kwargs) -> ChildWorkflowHandle[R]:
        """Start it as a child and wait until it has started, not until it has ended. In workflows only."""
        return _start_child(self.__hourglass_workflow__, args, kwargs, self._options)

    def options(self, **options: Unpack[ChildOptions]) -> Self:
        """The same workflow with options for the children that are started through it."""
        check_options(
            options, f"workflow {getattr(self._owner, '__name__', self.__hourglass_run__.__name__)}"
        )
        merged = cast(ChildOptions, {**self._options, **options})
        return type(self)(self.__hourglass_run__, self._owner, merged)

    def _reached(self, obj: Any, owner: Any) -> Any:
        if obj is None:
            return type(self)(self.__hourglass_run__, owner)
        return types.MethodType(self.__hourglass_run__, obj)


class RunMethod(_RunMethod[P, R]):
    """A run method that is a plain `def`."""

    @overload
    def __get__(self: RunMethod[Concatenate[S, Q], T], obj: None, owner: type[S]) -> RunMethod[Q, T]: ...
    @overload
    def __get__(self: RunMethod[Concatenate[S, Q], T], obj: S, owner: type[S]) -> Callable[Q, T]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        """On the class: the workflow. On an object: the bound method."""
        return self._reached(obj, owner)


class AsyncRunMethod(_RunMethod[P, R]):
    """A run method that is an `async def`; `R` is what it returns when it is awaited."""

    @overload
    def __get__(
        self: AsyncRunMethod[Concatenate[S, Q], T], obj: None, owner: type[S]
    ) -> AsyncRunMethod[Q, T]: ...
    @overload
    def __get__(
        self: AsyncRunMethod[Concatenate[S, Q], T], obj: S, owner: type[S]
    ) -> Callable[Q, Coroutine[Any, Any, T]]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        """On the class: the workflow. On an object: the bound method."""
        return self._reached(obj, owner)


@overload
def run(fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncRunMethod[P, R]: ...  # type: ignore[overload-overlap]
@overload
def run(fn: Callable[P, R], /) -> RunMethod[P, R]: ...
def run(fn: Callable[..., Any], /) -> Any:
    """Mark the method of a workflow class that is the workflow itself: a plain `def` or an `async def`."""
    is_async = check_function(fn, f"@workflow.run method {getattr(fn, '__name__', fn)}")
    return AsyncRunMethod(fn) if is_async else RunMethod(fn)


def init(fn: Callable[P, R], /) -> Callable[P, R]:
    """Mark `__init__` of a workflow class: it gets the same arguments as the run method."""
    if getattr(fn, "__name__", "") != "__init__":
        raise DefinitionError("@workflow.init goes on __init__")
    fn.__hourglass_init__ = True  # type: ignore[attr-defined]
    return fn


def dynamic_config(fn: Callable[[S], DynamicWorkflowConfig], /) -> Callable[[S], DynamicWorkflowConfig]:
    """Mark the method of a dynamic workflow class that says, for one run, what its decorator would: which exceptions fail it,
    and whether it stays with its version. It is called when the object is built, and must only look: at
    `workflow.info().workflow_type`, mostly.
    """
    what = f"@workflow.dynamic_config method {getattr(fn, '__name__', fn)}"
    check_plain_function(fn, what)
    if len(inspect.signature(fn).parameters) != 1:
        raise DefinitionError(f"{what} takes no arguments beside self")
    fn.__hourglass_dynamic_config__ = True  # type: ignore[attr-defined]
    return fn


class _Message(Generic[P, R]):
    """A handler: a method of a workflow class, or a local function that the running body registers."""

    kind: MessageKind

    def __init__(
        self,
        fn: Callable[P, R],
        name: str | None,
        dynamic: bool,
        description: str,
        unfinished_policy: HandlerUnfinishedPolicy = _WARN,
    ) -> None:
        what = f"{self.kind} handler {getattr(fn, '__name__', fn)}"
        is_async = check_function(fn, what)
        is_local = current_fiber() is not None
        parameters = list(inspect.signature(fn).parameters)
        is_method = not is_local and bool(parameters) and parameters[0] == "self"
        checked = None if dynamic else check_name(name if name is not None else fn.__name__, what)
        self.__hourglass_message__ = MessageDefinition(
            kind=self.kind,
            name=checked,
            fn=fn,
            signature=Signature.of(fn, what=f"{self.kind} {checked or fn.__name__}", skip_first=is_method),
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
        """The handler's name on the wire; None for the dynamic one."""
        return self.__hourglass_message__.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the handler as the plain function that it is."""
        result: R = self.__hourglass_message__.fn(*args, **kwargs)
        return result

    def _reached(self, obj: Any) -> Any:
        return self if obj is None else types.MethodType(self.__hourglass_message__.fn, obj)


class Signal(_Message[P, None]):
    """A signal's handler."""

    kind: MessageKind = "signal"

    @overload
    def __get__(self: Signal[Concatenate[S, Q]], obj: None, owner: type[S]) -> Signal[Q]: ...
    @overload
    def __get__(self: Signal[Concatenate[S, Q]], obj: S, owner: type[S]) -> Callable[Q, None]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        """On the class: the handler, for clients. On an object: the bound method."""
        return self._reached(obj)


class AsyncSignal(_Message[P, None]):
    """A signal's handler that is an `async def`."""

    kind: MessageKind = "signal"

    @overload
    def __get__(self: AsyncSignal[Concatenate[S, Q]], obj: None, owner: type[S]) -> AsyncSignal[Q]: ...
    @overload
    def __get__(
        self: AsyncSignal[Concatenate[S, Q]], obj: S, owner: type[S]
    ) -> Callable[Q, Coroutine[Any, Any, None]]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        """On the class: the handler, for clients. On an object: the bound method."""
        return self._reached(obj)


class Query(_Message[P, R]):
    """A query's handler."""

    kind: MessageKind = "query"

    @overload
    def __get__(self: Query[Concatenate[S, Q], T], obj: None, owner: type[S]) -> Query[Q, T]: ...
    @overload
    def __get__(self: Query[Concatenate[S, Q], T], obj: S, owner: type[S]) -> Callable[Q, T]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        """On the class: the handler, for clients. On an object: the bound method."""
        return self._reached(obj)


class _Update(_Message[P, R]):
    """An update's handler; `@name.validator` adds a function that may refuse an update before it leaves a trace."""

    kind: MessageKind = "update"

    def validator(self, fn: Callable[P, None], /) -> Callable[P, None]:
        """Take a function with the same parameters that raises to refuse an update."""
        check_plain_function(fn, f"validator {getattr(fn, '__name__', fn)}")
        mine = list(inspect.signature(self.__hourglass_message__.fn).parameters)
        if list(inspect.signature(fn).parameters) != mine:
            raise DefinitionError(
                f"the validator of update {self.name} must have the same parameters as its handler: {', '.join(mine)}"
            )
        self.__hourglass_message__ = dataclasses.replace(self.__hourglass_message__, validator=fn)
        if current_fiber() is not None:
            self._register()
        return fn


class Update(_Update[P, R]):
    """An update's handler that is a plain `def`."""

    @overload
    def __get__(self: Update[Concatenate[S, Q], T], obj: None, owner: type[S]) -> Update[Q, T]: ...
    @overload
    def __get__(self: Update[Concatenate[S, Q], T], obj: S, owner: type[S]) -> Callable[Q, T]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        """On the class: the handler, for clients. On an object: the bound method."""
        return self._reached(obj)


class AsyncUpdate(_Update[P, R]):
    """An update's handler that is an `async def`; `R` is what it returns when it is awaited."""

    @overload
    def __get__(self: AsyncUpdate[Concatenate[S, Q], T], obj: None, owner: type[S]) -> AsyncUpdate[Q, T]: ...
    @overload
    def __get__(
        self: AsyncUpdate[Concatenate[S, Q], T], obj: S, owner: type[S]
    ) -> Callable[Q, Coroutine[Any, Any, T]]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        """On the class: the handler, for clients. On an object: the bound method."""
        return self._reached(obj)


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
    description: str = "",
    unfinished_policy: HandlerUnfinishedPolicy = _WARN,
) -> _DecorateSignal: ...
def signal(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    dynamic: bool = False,
    description: str = "",
    unfinished_policy: HandlerUnfinishedPolicy = _WARN,
) -> Any:
    """Handle a signal: on a method of a workflow class, or on a local function inside a running workflow.

    The dynamic handler takes every signal that no other handler does, as `(name, arguments)`. A handler that has not
    finished when the workflow closes is abandoned with a warning, unless `unfinished_policy` is `ABANDON`.
    """

    def handler(fn: Any) -> Any:
        kind = AsyncSignal if is_coroutine_function(fn) else Signal
        return kind(fn, name, dynamic, description, unfinished_policy)

    return handler if fn is None else handler(fn)


@overload
def query(fn: Callable[P, R], /) -> Query[P, R]: ...
@overload
def query(
    *, name: str | None = None, dynamic: bool = False, description: str = ""
) -> Callable[[Callable[P, R]], Query[P, R]]: ...
def query(fn: Any = None, /, *, name: str | None = None, dynamic: bool = False, description: str = "") -> Any:
    """Answer a query: on a method of a workflow class, or on a local function inside a running workflow."""
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
    description: str = "",
    unfinished_policy: HandlerUnfinishedPolicy = _WARN,
) -> _DecorateUpdate: ...
def update(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    dynamic: bool = False,
    description: str = "",
    unfinished_policy: HandlerUnfinishedPolicy = _WARN,
) -> Any:
    """Handle an update: on a method of a workflow class, or on a local function inside a running workflow."""

    def handler(fn: Any) -> Any:
        kind = AsyncUpdate if is_coroutine_function(fn) else Update
        return kind(fn, name, dynamic, description, unfinished_policy)

    return handler if fn is None else handler(fn)


# --- handlers as values -----------------------------------------------------------------------------------------------


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
    decorated = decorate(name=name, dynamic=name is None)(handler)  # in a running workflow this registers it
    if validator is not None:
        decorated.validator(validator)


def _get_handler(kind: MessageKind, name: str | None) -> Callable[..., Any] | None:
    found = require_run(f"looking for a {kind} handler").handlers.known.get((kind, name))
    if found is None:
        return None
    message, obj = found
    return message.fn if obj is None else types.MethodType(message.fn, obj)


def set_signal_handler(name: str, handler: Callable[..., Any] | None) -> None:
    """Have a function take the signals of a name; those that waited for it are handled now. None takes it away."""
    _set_handler("signal", name, handler)


def set_query_handler(name: str, handler: Callable[..., Any] | None) -> None:
    """Have a function answer the queries of a name. None takes it away."""
    _set_handler("query", name, handler)


def set_update_handler(
    name: str, handler: Callable[..., Any] | None, *, validator: Callable[..., Any] | None = None
) -> None:
    """Have a function handle the updates of a name, and another one refuse them. None takes it away."""
    _set_handler("update", name, handler, validator)


def set_dynamic_signal_handler(handler: Callable[..., Any] | None) -> None:
    """Have a function take the signals that no other handler is for."""
    _set_handler("signal", None, handler)


def set_dynamic_query_handler(handler: Callable[..., Any] | None) -> None:
    """Have a function answer the queries that no other handler is for."""
    _set_handler("query", None, handler)


def set_dynamic_update_handler(
    handler: Callable[..., Any] | None, *, validator: Callable[..., Any] | None = None
) -> None:
    """Have a function handle the updates that no other handler is for, and another one refuse them."""
    _set_handler("update", None, handler, validator)


def get_signal_handler(name: str) -> Callable[..., Any] | None:
    """The handler of a signal; None if there is none of its own."""
    return _get_handler("signal", name)


def get_query_handler(name: str) -> Callable[..., Any] | None:
    """The handler of a query; None if there is none of its own."""
    return _get_handler("query", name)


def get_update_handler(name: str) -> Callable[..., Any] | None:
    """The handler of an update; None if there is none of its own."""
    return _get_handler("update", name)


def get_dynamic_signal_handler() -> Callable[..., Any] | None:
    """The handler of the signals that no other is for."""
    return _get_handler("signal", None)


def get_dynamic_query_handler() -> Callable[..., Any] | None:
    """The handler of the queries that no other is for."""
    return _get_handler("query", None)


def get_dynamic_update_handler() -> Callable[..., Any] | None:
    """The handler of the updates that no other is for."""
    return _get_handler("update", None)
