"""The decorators of workflows (`defn`, `run`, `init`, `dynamic_config`), and the objects that replace the decorated
functions.
"""

from __future__ import annotations

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

from hourglass._evaluator.context import current_run
from hourglass._evaluator.definition import (
    DynamicWorkflowConfig,
    WorkflowDefinition,
    check_function,
    check_plain_function,
    define_class,
    define_function,
)
from hourglass._evaluator.specs import VersioningBehavior
from hourglass.errors import DefinitionError, UsageError
from hourglass.workflow._children import ChildOptions, ChildWorkflowHandle, check_options, start_defined

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
K = TypeVar("K")

_UNSPECIFIED = VersioningBehavior.UNSPECIFIED


class WorkflowSource(Protocol):
    """The type of the elements of `workflows=[…]`, besides classes: any object except activities. See `ActivitySource`."""

    def __dir__(self) -> Iterable[str]: ...


class _Workflow(Generic[P, R]):
    """A workflow defined by a function with `@workflow.defn`.

    Start it with `client.start_workflow(checkout, order, id="order-1")`. To test the workflow's logic, call the undecorated
    function as `checkout.fn(order)`. A call inside another workflow runs it as a child.
    """

    if TYPE_CHECKING:
        __sizeof__: None  # type: ignore[assignment]  # hides it from the type `ActivitySource`

    def __init__(self, definition: WorkflowDefinition, options: ChildOptions | None = None) -> None:
        self.__hourglass_workflow__ = definition
        self._options: ChildOptions = {} if options is None else options
        functools.update_wrapper(self, definition.run)

    @property
    def name(self) -> str:
        """The workflow type."""
        return self.__hourglass_workflow__.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the workflow as a child and wait for its result. Outside workflows, raise `UsageError`, because a start there
        needs a client.
        """
        return self.start(*args, **kwargs).result()

    def start(self, *args: P.args, **kwargs: P.kwargs) -> ChildWorkflowHandle[R]:
        """Start the workflow as a child, in a workflow only. Wait until the child has started, but not until it is
        closed."""
        return _start_child(self.__hourglass_workflow__, args, kwargs, self._options)

    def options(self, **options: Unpack[ChildOptions]) -> Self:
        """Return a copy that starts children with these options: `ship.options(id="s-1")(item)`."""
        check_options(options, f"workflow {self.name}")
        return type(self)(self.__hourglass_workflow__, cast(ChildOptions, {**self._options, **options}))

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


class Workflow(_Workflow[P, R]):
    """A workflow defined by a plain function."""

    @property
    def fn(self) -> Callable[P, R]:
        """The undecorated function."""
        return self.__hourglass_workflow__.run


class AsyncWorkflow(_Workflow[P, R]):
    """A workflow defined by an `async def`; `R` is the type of its awaited result.

    A call inside a plain workflow runs it as a child, like any other workflow. In `async def` code, start it with
    `hourglass.aio.workflow.execute_child_workflow`.
    """

    @property
    def fn(self) -> Callable[P, Coroutine[Any, Any, R]]:
        """The undecorated function."""
        return self.__hourglass_workflow__.run


def _start_child(
    definition: WorkflowDefinition | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: ChildOptions,
) -> ChildWorkflowHandle[Any]:
    if definition is None:
        raise UsageError("the class of a @workflow.run method must be decorated with @workflow.defn")
    live = current_run()
    name = definition.name
    if definition.dynamic:
        raise UsageError(
            f"workflow {name} is dynamic: it has no type of its own. Pass the type as a str, "
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
    """Define a workflow by a function, plain or `async def`, or by a class with a `@workflow.run` method.

    `name` is the workflow type, by default the name of the function or class. A `dynamic` workflow handles every type for
    which its worker has no other workflow. Its only parameter is a `Sequence[RawPayload]` of all arguments, and
    `workflow.info().workflow_type` is the requested type. If the workflow raises one of the `failure_exceptions`, the run
    fails. Any other exception that is not a failure counts as a bug, and parks the run until the code is fixed.
    `versioning_behavior` decides whether a run stays on the worker version that it started on.
    """

    def define(fn: Any) -> Any:
        options: Any = {"dynamic": dynamic, "versioning_behavior": versioning_behavior}
        if isinstance(fn, type):
            class_definition = define_class(fn, name, tuple(failure_exceptions), **options)
            fn.__hourglass_workflow__ = class_definition  # type: ignore[attr-defined]
            return fn
        definition = define_function(fn, name, tuple(failure_exceptions), **options)
        return AsyncWorkflow(definition) if definition.is_async else Workflow(definition)

    return define if fn is None else define(fn)


class _RunMethod(Generic[P, R]):
    """The run method of a workflow class. `Cart.run` represents the workflow: pass it to `client.start_workflow`, or call it
    inside another workflow to run a child.
    """

    if TYPE_CHECKING:
        __sizeof__: None  # type: ignore[assignment]  # hides it from the type `ActivitySource`

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
        """Run the workflow as a child, by calling `Cart.run(…)` on the class. Outside workflows, raise `UsageError`, because
        a start there needs a client.
        """
        return self.start(*args, **kwargs).result()

    def start(self, *args: P.args, **kwargs: P.kwargs) -> ChildWorkflowHandle[R]:
        """Start the workflow as a child, in a workflow only. Wait until the child has started, but not until it is
        closed."""
        return _start_child(self.__hourglass_workflow__, args, kwargs, self._options)

    def options(self, **options: Unpack[ChildOptions]) -> Self:
        """Return a copy that starts children with these options."""
        check_options(
            options, f"workflow {getattr(self._owner, '__name__', self.__hourglass_run__.__name__)}"
        )
        merged = cast(ChildOptions, {**self._options, **options})
        return type(self)(self.__hourglass_run__, self._owner, merged)

    def _bound(self, obj: Any, owner: Any) -> Any:
        """Return the workflow if accessed on the class, and the bound method on an instance."""
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
        return self._bound(obj, owner)


class AsyncRunMethod(_RunMethod[P, R]):
    """A run method that is an `async def`; `R` is the type of its awaited result."""

    @overload
    def __get__(
        self: AsyncRunMethod[Concatenate[S, Q], T], obj: None, owner: type[S]
    ) -> AsyncRunMethod[Q, T]: ...
    @overload
    def __get__(
        self: AsyncRunMethod[Concatenate[S, Q], T], obj: S, owner: type[S]
    ) -> Callable[Q, Coroutine[Any, Any, T]]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        return self._bound(obj, owner)


@overload
def run(fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncRunMethod[P, R]: ...  # type: ignore[overload-overlap]
@overload
def run(fn: Callable[P, R], /) -> RunMethod[P, R]: ...
def run(fn: Callable[..., Any]) -> Any:
    """Mark the method of a workflow class that contains the workflow's code: a plain `def` or an `async def`."""
    is_async = check_function(fn, f"@workflow.run method {getattr(fn, '__name__', fn)}")
    return AsyncRunMethod(fn) if is_async else RunMethod(fn)


def init(init_fn: Callable[P, R]) -> Callable[P, R]:
    """Mark the `__init__` of a workflow class, so that it receives the arguments of the run method."""
    if getattr(init_fn, "__name__", "") != "__init__":
        raise DefinitionError("@workflow.init must decorate __init__")
    init_fn.__hourglass_init__ = True  # type: ignore[attr-defined]
    return init_fn


def dynamic_config(fn: Callable[[S], DynamicWorkflowConfig]) -> Callable[[S], DynamicWorkflowConfig]:
    """Mark the method of a dynamic workflow class that returns the decorator's options for a particular run.

    The options are the exceptions that fail the run, and whether the run stays on its worker version. The method is called
    when the object is created. It must not change anything; usually it reads `workflow.info().workflow_type`.
    """
    what = f"@workflow.dynamic_config method {getattr(fn, '__name__', fn)}"
    check_plain_function(fn, what)
    if len(inspect.signature(fn).parameters) != 1:
        raise DefinitionError(f"{what} must have no parameters besides self")
    fn.__hourglass_dynamic_config__ = True  # type: ignore[attr-defined]
    return fn
