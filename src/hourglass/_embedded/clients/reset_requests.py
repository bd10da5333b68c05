"""The request to reset a run: finds the runs that it concerns, and lets the new one take the old one's place.

Must not know: what a reset is (see `resetting`). Invariant: the new run begins and the one that runs ends in one
change of the store; the same request again is the same reset.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any

from hourglass._contract.service import Request, ResetWorkflow, Started
from hourglass._embedded.clients.answering import Answer, find
from hourglass._embedded.engine.engine import Engine
from hourglass._embedded.engine.run import Record
from hourglass._embedded.rules import children, resetting
from hourglass._embedded.rules.run import Run, Step
from hourglass._embedded.rules.updates import request_id
from hourglass._history import events as h
from hourglass._history.events import WorkflowExecutionUpdateAccepted


async def reset(engine: Engine, request: ResetWorkflow) -> Answer[Started]:
    """Begin a run anew from one of its workflow tasks."""
    base = find(engine, request.workflow_id, request.run_id)
    current = find(engine, request.workflow_id)
    if request.request_id and (made := engine.runs.find_request(current, request.request_id)):
        return Answer(Started(made), engine.runs.newest)
    later = [each for run in _following(engine, base) for each in run]
    of_base = [event.attributes for event in (*base.events, *(() if current is base else current.events))]
    new_run_id = engine.runs.new_run_id()
    now_ns = engine.clock.now_ns()
    step = resetting.reset(base.run, base.events, request, later, new_run_id, now_ns)
    carried_out = tuple(_carried_out(request, step.run, [*of_base, *later]))
    with engine.runs.as_one():
        _give_way(engine, base, current, request, new_run_id)
        record = engine.runs.begin_anew(step, carried_out)
    _tell_of_ended_children(engine, record)
    return Answer(Started(new_run_id), record.number)


def _carried_out(request: ResetWorkflow, run: Run, before: Iterable[h.Attributes]) -> Iterator[str]:
    """The requests that are the new run's from now on: the reset itself, and all updates that were accepted before. Of
    those its history tells what became of them: that they are done, are asked for again, or never were.
    """
    if request.request_id:
        yield request.request_id
    for attributes in before:
        if isinstance(attributes, WorkflowExecutionUpdateAccepted):
            yield request_id(run, attributes.update_id)


def _give_way(engine: Engine, base: Record, current: Record, request: ResetWorkflow, new_run_id: str) -> None:
    if current.run.is_open:
        reason = request.reason
        engine.runs.change(current, lambda run, now: resetting.give_way(run, reason, new_run_id, now))
    if base is not current or not base.run.reset_run_id:
        engine.runs.change(base, lambda run, now: resetting.note_reset(run, new_run_id, now))


def _following(engine: Engine, base: Record) -> Iterator[list[h.Attributes]]:
    """What happened to the runs by which the base was continued as new."""
    record: Record | None = base
    while record is not None and isinstance(record.run.final, h.WorkflowExecutionContinuedAsNew):
        record = engine.record(record.run.final.new_run_id)
        if record is not None:
            yield [*(event.attributes for event in record.events), *record.run.held]


def _tell_of_ended_children(engine: Engine, record: Record) -> None:
    """Children that ended when nobody listened: the old run had closed."""
    for child in tuple(record.run.children.values()):
        last = engine.current(child.spec.workflow_id)
        if last is None or last.run.is_open or last.run.started.first_run_id != child.run_id:
            continue
        engine.runs.change(record, partial(_child_ended, child.initiated_event_id, last.run))


def _child_ended(initiated: int, last: Run, run: Run, now_ns: int) -> Step:
    return children.child_ended(run, initiated, last, now_ns)


RESET_HANDLERS: dict[type[Request[Any]], Callable[[Engine, Any], Awaitable[Answer[Any]]]] = {
    ResetWorkflow: reset
}
"""Who handles what."""
