"""`hourglass why`: one page that explains the state of a workflow, its problems, and what to do about them.

The page shows a diagnosis (`_tools.diagnosis`) as sentences, or as a JSON document for programs.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from linecache import getline
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from hourglass._tools.cli import connecting, console
from hourglass._tools.cli.connecting import DecodingEngine, Json, RunId, WorkflowId
from hourglass._tools.diagnosis.diagnosis import CLOSED, Action, Diagnosis, Finding, command
from hourglass._tools.timeline.faults import root
from hourglass._tools.timeline.spans import Fault
from hourglass._tools.timeline.text import S, duration, nanoseconds, near, precise
from hourglass.errors import (
    ConnectionFailedError,
    HourglassError,
    NamespaceNotFoundError,
    WorkflowNotFoundError,
)

if TYPE_CHECKING:
    from hourglass._worker.targets import Target as Where
    from hourglass.client import Client, ScheduleDescription


_COMMAND = "cyan"
_MOST = 5
_LONGEST = 300


def show(diagnosis: Diagnosis) -> None:
    """Print the diagnosis as readable text."""
    for line in _page(diagnosis):
        console.show(line, soft_wrap=line.style == _COMMAND)


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as data for `json.dumps`. Times are RFC 3339 in UTC. Fields are never removed."""
    return {
        "workflow_id": diagnosis.workflow_id,
        "run_id": diagnosis.run_id,
        "workflow_type": diagnosis.workflow_type,
        "task_queue": diagnosis.task_queue,
        "state": diagnosis.state,
        "wrong": diagnosis.wrong,
        "cause": diagnosis.cause.name.lower(),
        "findings": [_document(finding) for finding in diagnosis.findings],
    }


def _document(finding: Finding) -> dict[str, Any]:
    return {
        "cause": finding.cause.name.lower(),
        "what": finding.what,
        "count": finding.count,
        "since": _precise(finding.since),
        "until": _precise(finding.until),
        "place": finding.place,
        "code": finding.code,
        "failure": [
            {"type": item.type, "message": item.message, "place": item.place} for item in finding.faults
        ],
        "attempts": finding.attempts,
        "maximum_attempts": finding.max_attempts or None,
        "next_attempt": _precise(finding.next_attempt),
        "details": list(finding.details),
        "do": [{"text": item.text, "command": item.command} for item in finding.actions],
        "child": None if finding.inner is None else document(finding.inner),
    }


def _precise(moment: int | None) -> str | None:
    return None if moment is None else precise(moment)


def _page(diagnosis: Diagnosis) -> Iterator[Text]:
    now = diagnosis.now or time_ns()
    first, *further = diagnosis.findings
    yield _headline(_name(diagnosis), first, now)
    yield from _lines(first, now, "  ")
    for finding in further[: _MOST - 1]:
        yield Text("")
        yield _headline("It also", finding, now, bold=False)
        yield from _lines(finding, now, "  ")
    if len(further) >= _MOST:
        yield Text(f"… and {len(further) - _MOST + 1} more; --json shows all")
    yield from _to_do(diagnosis)
    if diagnosis.start is not None:
        yield Text("")
        yield Text(_about(diagnosis, now), style="dim")


def _name(diagnosis: Diagnosis) -> str:
    kind = f" ({diagnosis.workflow_type})" if diagnosis.workflow_type else ""
    return console.one_line(diagnosis.workflow_id + kind)


def _headline(name: str, finding: Finding, now: int, *, bold: bool = True) -> Text:
    from hourglass._tools.diagnosis.reasons import is_wrong

    line = Text(name, style="bold" if bold else "")
    line.append(f" {finding.what}", style="red" if is_wrong(finding) else "default")
    if finding.count > 1:
        line.append(f" (×{finding.count})")
    if finding.since is not None:
        past = duration(max(now - finding.since, 0))
        at = clock(finding.since, now)
        line.append(f", at {at} ({past} ago)" if finding.cause in CLOSED else f", since {at} ({past})")
    return line


def _lines(finding: Finding, now: int, indent: str) -> Iterator[Text]:
    yield from _causes(finding.faults, indent)
    if finding.place:
        yield _indented(indent, _place(finding))
    for detail in (*_attempts(finding, now), *_until(finding, now), *finding.details):
        yield _indented(indent, detail.replace(f"{Path.cwd()}{os.sep}", ""))
    if finding.inner is not None:
        yield _headline(f"{indent}↳ {_name(finding.inner)}", finding.inner.findings[0], now)
        yield from _lines(finding.inner.findings[0], now, f"{indent}    ")


def _causes(faults: tuple[Fault, ...], indent: str) -> Iterator[Text]:
    """Yield the root cause and its wrappers. A wrapper that only repeats the cause is omitted."""
    first = root(faults)
    if first is None:
        return
    outer = [fault for fault in faults[-2:-4:-1] if fault.message and fault.message not in first.message]
    if outer and first.message and first.message in outer[0].message:
        first = outer.pop(0)
    yield _indented(indent, _fault(first), "red")
    for fault in outer:
        yield _indented(indent, f"which caused: {_fault(fault)}")


def _indented(indent: str, text: str, style: str = "") -> Text:
    return Text("\n".join(indent + line for line in text.splitlines()), style=style)


def _fault(fault: Fault) -> str:
    text = str(fault)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _place(finding: Finding) -> str:
    file, _, line = finding.place.rpartition(":")
    code = finding.code or (getline(file, int(line)).strip() if line.isdigit() else "")
    return f"at {near(file)}:{line}" + (f"   {code}" if code else "")


def _attempts(finding: Finding, now: int) -> Iterator[str]:
    if not finding.attempts or (finding.attempts == 1 and not finding.faults):
        return
    limit = f" of at most {finding.max_attempts}" if finding.max_attempts else ""
    text = f"{finding.attempts} attempt{'s' * (finding.attempts != 1)}{limit}"
    if finding.next_attempt is not None:
        left = finding.next_attempt - now
        text += (
            f"; next attempt at {clock(finding.next_attempt, now)} (in {duration(left)})"
            if left > 0
            else "; the next attempt is due"
        )
    yield text


def _until(finding: Finding, now: int) -> Iterator[str]:
    if finding.until is not None:
        left = finding.until - now
        text = f"in {duration(left)}" if left > 0 else f"due for {duration(-left)}"
        yield f"until {clock(finding.until, now)} ({text})"


def _to_do(diagnosis: Diagnosis) -> Iterator[Text]:
    """Yield the actions for the first finding, or for the child that it waits for."""
    first = diagnosis.findings[0]
    inner = () if first.inner is None else first.inner.findings[0].actions
    actions = (*inner, *first.actions)
    if not actions:
        return
    yield Text("")
    yield Text("What to do", style="bold")
    for action in actions:
        if action.text:
            yield Text(f"  {action.text}")
        if action.command:
            yield Text(f"    {action.command}", style=_COMMAND)


def _about(diagnosis: Diagnosis, now: int) -> str:
    start = diagnosis.start or 0
    parts = [
        f"started {clock(start, now)}",
        f"{'ran' if diagnosis.end is not None else 'running for'} {duration(max((diagnosis.end or now) - start, 0))}",
        f"task queue {diagnosis.task_queue}",
        f"run {diagnosis.run_id}",
    ]
    return ", ".join(parts)


def clock(moment: int, now: int) -> str:
    """Return a time in the local time zone, with its date unless it is today."""
    at, today = (datetime.fromtimestamp(nanoseconds // S) for nanoseconds in (moment, now))
    return f"{at:%H:%M:%S}" if at.date() == today.date() else f"{at:%Y-%m-%d %H:%M}"


def diagnosis(client: Client, workflow_id: str, run_id: str | None, options: str) -> Diagnosis:
    """Return the diagnosis for an id without a workflow. It suggests another run, a schedule, or a similar id."""
    from hourglass._tools.diagnosis import reasons

    latest = connecting.latest_run(client, workflow_id, run_id)
    if latest is not None:
        not_found = reasons.not_found(workflow_id, (), options)
        finding = replace(
            not_found.findings[0],
            what=f"has no run {run_id!r}",
            details=(f"its latest run is {latest}",),
            actions=(Action("Diagnose that run:", command(f"why {shlex.quote(workflow_id)}", options)),),
        )
        return replace(not_found, findings=(finding,))
    not_found = reasons.not_found(workflow_id, connecting.similar(client, workflow_id), options)
    schedule = _schedule(client, workflow_id)
    if schedule is None:
        return not_found
    return replace(not_found, findings=(_scheduled(not_found, schedule, options),))


def _schedule(client: Client, schedule_id: str) -> ScheduleDescription | None:
    try:
        return client.get_schedule_handle(schedule_id).describe()
    except HourglassError:
        return None  # the schedule does not exist, or the server does not allow reading it


def _scheduled(diagnosis: Diagnosis, schedule: ScheduleDescription, options: str) -> Finding:
    """Return the finding for the id of a schedule, which starts workflows with a common id prefix."""
    state, coming, action = schedule.schedule.state, schedule.info.next_action_times, schedule.schedule.action
    paused = f": it is paused ({state.note})" if state.note else ": it is paused, and starts no workflows"
    unpause = f"client.get_schedule_handle({schedule.id!r}).unpause()"
    begun = shlex.quote(f"WorkflowId STARTS_WITH '{action.options.get('id', schedule.id)}'")
    return replace(
        diagnosis.findings[0],
        what="is a schedule, not a workflow" + (paused if state.paused else ""),
        until=nanoseconds(coming[0]) if coming and not state.paused else None,
        details=(f"it has started {schedule.info.num_actions} workflows",),
        actions=(
            *((Action(f"Let it continue: {unpause}"),) if state.paused else ()),
            Action("List the workflows that it started:", command(f"list {begun}", options)),
        ),
    )


def why(
    workflow_id: WorkflowId,
    run_id: RunId = None,
    code: Annotated[
        list[str] | None,
        typer.Option(
            "--code", "-c", metavar="FILE|MODULE", help="Also check whether this code fits its history."
        ),
    ] = None,
    *,
    engine: DecodingEngine,
    json: Json = False,
) -> None:
    """Show why a workflow waits or failed, and what to do.

    It shows what the workflow does or waits for, since when, what failed and at which line.

    Exit code 1 if it cannot be diagnosed; 0 otherwise, whatever its state.

    \b
    Examples:
      hourglass why order-1
      hourglass why order-1 --code app.py
    """
    diagnosis = _diagnosis(workflow_id, run_id, code or [], engine)
    if json:
        connecting.write_json(document(diagnosis))
    else:
        show(diagnosis)
    if diagnosis.start is None:
        raise typer.Exit(1)


def _diagnosis(workflow_id: str, run_id: str | None, code: list[str], engine: DecodingEngine) -> Diagnosis:
    from hourglass._tools.cli.loading import load
    from hourglass._tools.diagnosis import reasons
    from hourglass._tools.diagnosis.asking import WhyContext
    from hourglass._worker.targets import resolve

    loaded = load(code) if code else None
    where = resolve(engine.target, namespace=engine.namespace)
    with ExitStack() as stack:
        replayer = None
        if loaded is not None:
            from hourglass.replay import Replayer

            replayer = stack.enter_context(Replayer(modules=loaded.modules, codec=engine.payload_codec()))
        try:
            client = stack.enter_context(engine.connect())
            context = WhyContext(client, engine.options, replayer, _temporal_options(where))
            try:
                return context.diagnosis(workflow_id, run_id)
            except WorkflowNotFoundError:
                return diagnosis(client, workflow_id, run_id, engine.options)
        except (ConnectionFailedError, NamespaceNotFoundError) as error:
            reason = str(error).partition("\n")[0]
            return reasons.unreachable(workflow_id, str(where), reason, engine.options)


def _temporal_options(where: Where) -> str:
    """Return the options with which Temporal's CLI finds the same server, because it ignores our settings."""
    if where.kind != "temporal":
        return ""
    named = "" if where.namespace == "default" else f" --namespace {shlex.quote(where.namespace)}"
    return f"--address {shlex.quote(where.address)}{named}"
