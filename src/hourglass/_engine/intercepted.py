"""A run's code, called through the interceptors of its worker. Used only where there are any; knows no fibers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from hourglass._engine.context import LiveRun
from hourglass._engine.events import QueryReceived, SignalReceived, UpdateReceived
from hourglass._engine.interception import (
    ExecuteWorkflowInput,
    HandleQueryInput,
    HandleSignalInput,
    HandleUpdateInput,
    WorkflowInboundInterceptor,
)

Message: TypeAlias = SignalReceived | UpdateReceived | QueryReceived


def executed(live: LiveRun, inbound: WorkflowInboundInterceptor, arguments: list[Any]) -> Any:
    """Run the body. The object of a workflow that is a class is none of its arguments."""
    definition, started = live.definition, live.started
    assert started is not None
    obj = arguments[0] if definition.is_class else None
    call = ExecuteWorkflowInput(
        type=started.workflow_type,
        run_fn=definition.run,
        args=arguments[1:] if definition.is_class else arguments,
        headers=dict(started.headers),
        _proceed=lambda call: call.run_fn(*call.args) if obj is None else call.run_fn(obj, *call.args),
    )
    return inbound.execute_workflow(call)


def intercepted(
    inbound: WorkflowInboundInterceptor, event: Message, fn: Callable[..., Any], obj: Any, values: list[Any]
) -> Callable[[], Any]:
    """The call of a message's handler."""
    go_on = _calling(fn, obj)
    headers = dict(event.headers)
    match event:
        case SignalReceived():
            signal = HandleSignalInput(signal=event.name, args=values, headers=headers, _proceed=go_on)
            return lambda: inbound.handle_signal(signal)
        case UpdateReceived():
            update = HandleUpdateInput(
                id=event.id, update=event.name, args=values, headers=headers, _proceed=go_on
            )
            return lambda: inbound.handle_update_handler(update)
        case QueryReceived():
            query = HandleQueryInput(
                id=event.id, query=event.name, args=values, headers=headers, _proceed=go_on
            )
            return lambda: inbound.handle_query(query)


def validated(
    inbound: WorkflowInboundInterceptor,
    event: UpdateReceived,
    validator: Callable[..., Any],
    obj: Any,
    values: list[Any],
) -> None:
    """Run an update's validator."""
    inbound.handle_update_validator(
        HandleUpdateInput(
            id=event.id,
            update=event.name,
            args=values,
            headers=dict(event.headers),
            _proceed=_calling(validator, obj),
        )
    )


def _calling(fn: Callable[..., Any], obj: Any) -> Callable[[Any], Any]:
    return lambda call: fn(*call.args) if obj is None else fn(obj, *call.args)
