"""What clients ask of the engine: a run that begins with a history, by a reset or an import.

Must not know: what a reset is (see `rules.resetting`), handles. Invariants: the new run begins and the one that runs ends in
one change of the store; the same request again is the same reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import msgspec

from hourglass._contract.workflows import ImportWorkflow, ResetWorkflow, Started
from hourglass._embedded.clients.answering import Handlers, PendingAnswer, find
from hourglass._embedded.engine.engine import Engine
from hourglass._embedded.engine.run import LoadedRun
from hourglass._embedded.engine.starting import check_free, check_room
from hourglass._embedded.rules import children, resetting
from hourglass._embedded.rules.run import Run, Transition
from hourglass._embedded.rules.updates import request_id
from hourglass._history import events as h
from hourglass._history.codec import read_event
from hourglass._history.events import WorkflowExecutionUpdateAccepted
from hourglass.errors import HistoryError, ServiceError


async def reset(engine: Engine, request: ResetWorkflow) -> PendingAnswer[Started]:
    """Begin a run anew from one of its workflow tasks."""
    base = find(engine, request.workflow_id, request.run_id)
    current = find(engine, request.workflow_id)
    if request.request_id and (made := engine.runs.find_request(current, request.request_id)):
        return PendingAnswer(Started(made), engine.writes.newest)
    later = [each for run in _following(engine, base) for each in run]
    of_base = [event.attributes for event in (*base.events, *(() if current is base else current.events))]
    new_run_id = engine.runs.new_run_id()
    now_ns = engine.clock.now_ns()
    step = resetting.reset(base.run, base.events, request, later, new_run_id, now_ns)
    carried_out = tuple(_carried_out(request, step.run, [*of_base, *later]))
    with engine.runs.transaction():
        _give_way(engine, base, current, request, new_run_id)
        record = engine.runs.begin_anew(step, carried_out)
    _tell_of_ended_children(engine, record)
    return PendingAnswer(Started(new_run_id), engine.writes.number_of(record))


async def import_workflow(engine: Engine, request: ImportWorkflow) -> PendingAnswer[Started]:
    """Begin a run that has a history already."""
    existing = engine.current(request.workflow_id)
    if existing is not None:
        made = engine.runs.find_request(existing, request.request_id)
        if made:
            return PendingAnswer(Started(made), engine.writes.newest)
        check_free(existing)
    check_room(engine.runs)
    try:
        events = [
            read_event(msgspec.json.decode(each), place) for place, each in enumerate(request.events, 1)
        ]
    except (HistoryError, msgspec.DecodeError) as error:
        raise ServiceError(f"the history cannot be read: {error}", status="INVALID_ARGUMENT") from None
    run_id, now = engine.runs.new_run_id(), engine.clock.now_ns()
    step = resetting.begin_with(events, request.workflow_id, run_id, now)
    if request.dry_run:
        return PendingAnswer(Started("", False), 0)
    ids = (request.request_id, *(request_id(step.run, each) for each in accepted_updates(events)))
    record = engine.runs.begin_anew(step, tuple(filter(None, ids)))
    return PendingAnswer(Started(run_id), engine.writes.number_of(record))


def _carried_out(request: ResetWorkflow, run: Run, before: Iterable[h.Attributes]) -> Iterator[str]:
    """The requests that are the new run's from now on: the reset itself, and all updates that were accepted before.
    Of those its history tells what became of them: that they are done, are asked for again, or never were.
    """
    if request.request_id:
        yield request.request_id
    for attributes in before:
        if isinstance(attributes, WorkflowExecutionUpdateAccepted):
            yield request_id(run, attributes.update_id)


def accepted_updates(events: Iterable[h.HistoryEvent]) -> Iterator[str]:
    """The ids of the updates that a history accepted."""
    for event in events:
        if isinstance(event.attributes, WorkflowExecutionUpdateAccepted):
            yield event.attributes.update_id


def _give_way(
    engine: Engine, base: LoadedRun, current: LoadedRun, request: ResetWorkflow, new_run_id: str
) -> None:
    if current.run.is_open:
        reason = request.reason
        engine.runs.change(current, lambda run, now: resetting.give_way(run, reason, new_run_id, now))
    if base is not current or not base.run.reset_run_id:
        engine.runs.change(base, lambda run, now: resetting.note_reset(run, new_run_id, now))


def _following(engine: Engine, base: LoadedRun) -> Iterator[list[h.Attributes]]:
    """What happened to the runs by which the base was continued as new."""
    record: LoadedRun | None = base
    while record is not None and isinstance(record.run.final, h.WorkflowExecutionContinuedAsNew):
        record = engine.record(record.run.final.new_run_id)
        if record is not None:
            yield [*(event.attributes for event in record.events), *record.run.held]


def _tell_of_ended_children(engine: Engine, record: LoadedRun) -> None:
    """Tell the new run of children that ended while no run could hear of it: the old one had closed."""
    for child in tuple(record.run.children.values()):
        last = engine.current(child.initiated.workflow_id)
        if last is None or last.run.is_open or last.run.started.first_run_id != child.run_id:
            continue
        engine.runs.change(record, partial(_child_ended, child.initiated_event_id, last.run))


def _child_ended(initiated: int, last: Run, run: Run, now_ns: int) -> Transition:
    return children.child_ended(run, initiated, last, now_ns)


RESET_HANDLERS: Handlers = {ResetWorkflow: reset, ImportWorkflow: import_workflow}
"""Requests by which a run begins with a history."""
