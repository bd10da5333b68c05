"""The pages: each function takes data and returns HTML. This is the only module that uses templates.

The templates escape all values (`autoescape`). Only `time_of` marks text as safe, and it escapes its
argument. Control and line-separator characters in external text are displayed as escapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hourglass._history.events import HistoryEvent
from hourglass._tools.diagnosis.diagnosis import Diagnosis
from hourglass._tools.diagnosis.problems import ProblemCount
from hourglass._tools.timeline import captions
from hourglass._tools.timeline.run_state import Problem, problem_of, run_state
from hourglass._tools.timeline.spans import Kind, Span, Story
from hourglass._tools.timeline.text import duration, harmless, near, near_place
from hourglass._tools.web import addresses
from hourglass._tools.web.bulk import BulkOperation, ConfirmedScope
from hourglass._tools.web.calendar import Day
from hourglass._tools.web.finding import FIELD_NAMES, FIELDS, STATUSES, Bucket, Listing, Search, status_name
from hourglass._tools.web.forms import Form
from hourglass._tools.web.run_view import HistoryTable, ResetPlan
from hourglass._tools.web.waterfall import Waterfall
from hourglass.client import (
    ScheduleDescription,
    ScheduleListDescription,
    WorkflowDescription,
    WorkflowExecution,
)
from hourglass.converter._stacks import is_ours
from hourglass.replay import Moment, ValueChange


@dataclass(frozen=True)
class View:
    """The data that every page displays around its content."""

    target: str
    read_only: bool = False
    has_code: bool = False
    hides_payloads: bool = False
    payloads_requested: bool = False
    trouble: str = ""


def time_of(moment: datetime | int | None) -> Markup:
    """Return the HTML of a time in UTC; a script converts it to the reader's time zone."""
    if moment is None or moment == 0:
        return Markup("")
    at = datetime.fromtimestamp(moment / 1e9, UTC) if isinstance(moment, int) else moment.astimezone(UTC)
    utc = at.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" title="{} UTC">{} UTC</time>').format(at.isoformat(), utc, utc)


def lasted(start: datetime | None, end: datetime | None) -> str:
    """Return the duration from one time to another, or to the current time."""
    if start is None:
        return ""
    elapsed = (end or datetime.now(UTC)) - start
    return duration(max(0, int(elapsed.total_seconds() * 1e9)))


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("hourglass._tools.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            value if isinstance(value, Markup) else harmless("" if value is None else str(value))
        ),
    )
    environment.filters.update(
        time=time_of, duration=duration, near=near, near_place=near_place, is_ours=is_ours
    )
    environment.globals.update(
        lasted=lasted,
        lasted_for=lambda length: duration(int(length.total_seconds() * 1e9)),
        statuses=STATUSES,
        status_name=status_name,
        outcome_of=captions.outcome,
        state_of=run_state,
        address=addresses,
    )
    return environment


def _page(name: str, view: View, **data: Any) -> str:
    return _templates().get_template(f"{name}.html").render(view=view, **data)


def workflows(
    view: View, search: Search, listing: Listing | None, error: str = "", known_types: Sequence[str] = ()
) -> str:
    """Render the list of workflows. Input fields offer the types and search attributes in use as completions."""
    items = () if listing is None else listing.items
    types = dict.fromkeys([*known_types, *sorted({run.workflow_type for run in items})])
    attributes = sorted({name for run in items for name in run.search_attributes}.difference(FIELDS))
    return _page(
        "workflows",
        view,
        title="Workflows",
        search=search,
        listing=listing,
        error=error,
        types=list(types),
        fields=[*FIELDS, *attributes],
        field_names=FIELD_NAMES,
    )


def problem_counts(view: View, search: Search, counts: Sequence[ProblemCount]) -> str:
    """Render the numbers of open runs per problem."""
    return _page("problems", view, search=search, counts=counts)


def confirm(
    view: View, action: str, scope: ConfirmedScope, fields: Sequence[tuple[str, str]], error: str = ""
) -> str:
    """Render the confirmation page for an action on many runs. `fields` are the fields of the form that requested the
    action."""
    verb, consequence = _VERBS[action]
    return _page(
        "confirm",
        view,
        title=f"{verb}?",
        verb=verb,
        consequence=consequence,
        scope=scope,
        fields=fields,
        error=error,
    )


_VERBS = {
    "cancel": (
        "Cancel",
        "Requests cancellation. A workflow's code may clean up first, and may ignore the request.",
    ),
    "terminate": (
        "Terminate",
        "The workflows end immediately. Their code is not notified and cannot clean up.",
    ),
    "reset": ("Reset", "Each workflow starts a new run from its last workflow task."),
    "signal": ("Signal", "Each workflow receives the signal."),
}


def chart(view: View, buckets: Sequence[Bucket]) -> str:
    """Render the numbers of starts, ends and failures over time."""
    most = max((max(bucket.started, bucket.closed) for bucket in buckets), default=0)
    return _page("chart", view, buckets=buckets, most=most)


def run(
    view: View,
    description: WorkflowDescription,
    story: Story,
    waterfall: Waterfall,
    span: Span | None,
    chain: Sequence[tuple[str, str, str]],
    unprocessed_signals: Sequence[HistoryEvent],
    runs: Sequence[WorkflowExecution],
    problems: Mapping[str, Problem],
    messages: Mapping[str, Mapping[str, Form]],
    selected: Mapping[str, str],
    notice: str = "",
) -> str:
    """Render the page of a run: its state, its timeline, its pending steps, and the actions on it."""
    return _page(
        "run",
        view,
        title=description.id,
        run=description,
        story=story,
        waterfall=waterfall,
        waiting=[step for step in story.spans[1:] if step.end is None and step.kind in _OTHER_PENDING_KINDS],
        span=span,
        chain=chain,
        unprocessed_signals=unprocessed_signals,
        runs=runs,
        problems={
            **{
                run_of_id.run_id: problem
                for run_of_id in runs
                if (problem := problem_of(run_of_id)) is not None
            },
            **problems,
        },
        messages=messages,
        chosen=selected,
        notice=notice,
    )


_OTHER_PENDING_KINDS = (Kind.TIMER, Kind.UPDATE, Kind.SIGNAL, Kind.EXTERNAL, Kind.NEXUS, Kind.LOCAL)
"""Kinds of pending steps that a workflow description does not list."""


def why(view: View, diagnosis: Diagnosis | None, error: str = "") -> str:
    """Render the reasons for a run's state."""
    return _page("why", view, diagnosis=diagnosis, error=error)


def unread(view: View, signals: Mapping[str, Any]) -> str:
    """Render the signals that a run has received but not handled, by name."""
    return _page("unread", view, signals=signals)


def history(view: View, table: HistoryTable) -> str:
    """Render the events of a run as a table."""
    return _page("history", view, title=f"History of {table.workflow_id}", table=table)


def confirm_reset(view: View, workflow_id: str, run_id: str, plan: ResetPlan) -> str:
    """Render the effects of a reset, to be confirmed."""
    return _page(
        "reset",
        view,
        title=f"Reset {workflow_id}",
        id=workflow_id,
        run_id=run_id,
        plan=plan,
    )


def moments(
    view: View,
    workflow_id: str,
    run_id: str,
    all_moments: Sequence[Moment],
    at: Moment | None,
    changed: Sequence[ValueChange],
    sources: Mapping[tuple[str, int], Sequence[tuple[int, str]]],
    error: str,
) -> str:
    """Render a run at one moment of its past."""
    return _page(
        "moments",
        view,
        title=f"Time travel: {workflow_id}",
        id=workflow_id,
        run_id=run_id,
        moments=all_moments,
        at=at,
        changed=changed,
        sources=sources,
        error=error,
    )


def start(
    view: View,
    known_forms: Mapping[str, Form],
    selected: str,
    error: str = "",
    entered: Mapping[str, str] | None = None,
) -> str:
    """Render the form to start a workflow."""
    return _page(
        "start",
        view,
        title="Start a workflow",
        forms=known_forms,
        chosen=selected,
        error=error,
        given=entered or {},
    )


def answer(view: View, title: str, value: str, back: str) -> str:
    """Render the result of a query or an update."""
    return _page("answer", view, title=title, value=value, back=back)


def operation(view: View, bulk_operation: BulkOperation) -> str:
    """Render the progress of a bulk operation."""
    return _page("operation", view, title=bulk_operation.title, operation=bulk_operation)


def schedules(view: View, listed: Sequence[ScheduleListDescription], error: str = "") -> str:
    """Render the list of schedules."""
    return _page("schedules", view, title="Schedules", schedules=listed, error=error)


def schedule(view: View, description: ScheduleDescription, year: Sequence[Day], notice: str = "") -> str:
    """Render one schedule."""
    return _page("schedule", view, title=description.id, schedule=description, year=year, notice=notice)


def workers(view: View, queues: Sequence[Any], local: Sequence[Mapping[str, Any]], error: str = "") -> str:
    """Render the task queues with their pollers, and details of the workers in this process."""
    return _page("workers", view, title="Workers", queues=queues, local=local, error=error)


def limits(
    view: View,
    slots: Sequence[Mapping[str, Any]],
    throttles: Sequence[Mapping[str, Any]],
    bursts: Sequence[Mapping[str, Any]],
    error: str = "",
) -> str:
    """Render the slots with their holders and waiting workflows, the pending turns of throttles, and the
    pending calls of debouncers.
    """
    return _page("limits", view, title="Limits", slots=slots, throttles=throttles, bursts=bursts, error=error)


def login(view: View, error: str = "") -> str:
    """Render the form that asks for the token."""
    return _page("login", view, title="Log in", error=error)


def logged_in(view: View, after: str) -> str:
    """Render the page that a browser shows briefly after its login, before the page at `after`."""
    return _page("logged_in", view, title="Logged in", after=after)


def failure(view: View, title: str, message: str, back: str, *, reloads: bool = False) -> str:
    """Render an error page. With `reloads`, the page reloads itself when its content becomes available."""
    return _page("failure", view, title=title, message=message, back=back, reloads=reloads)
