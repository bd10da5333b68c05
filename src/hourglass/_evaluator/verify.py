"""Determinism checked by re-execution: the journal is executed again and must ask for the same things, arguments included."""

from __future__ import annotations

from typing import Any

import msgspec

from hourglass._evaluator.call_sites import Site
from hourglass._evaluator.commands import (
    TERMINAL_KINDS,
    AnswerQuery,
    Command,
    ContinueAsNew,
    FailRun,
    RejectUpdate,
    ScheduleActivity,
    ScheduleLocalActivity,
    SignalExternalWorkflow,
    StartChildWorkflow,
)
from hourglass._evaluator.evaluator import Evaluator, begin, feed
from hourglass._evaluator.words import describe, summarize
from hourglass.converter import Failure
from hourglass.errors import NondeterminismError


def verify_run(run: Evaluator) -> NondeterminismError | None:
    """Execute a run's journal again, in fresh fibers, and compare all it asks for with what it asked for the first time."""
    if run.record is None:
        return None
    state = run.state.forget_derived()
    live = begin(run.definition, state, run.settings)
    live.quiet = True
    try:
        for activation, (expected, sites) in zip(state.journal, run.record, strict=True):
            produced = feed(live, activation)
            if run.on_step is not None:
                run.on_step()
            difference = compare(expected, produced, sites, live.sites or [])
            if difference is not None:
                return difference
    except Exception as error:
        return NondeterminismError(
            f"executing the workflow again raised {type(error).__name__}: {error}; the first time it did not",
            expected="the same execution as the first time",
            produced=f"{type(error).__name__}: {error}",
        )
    finally:
        live.drop(run.on_step)
    return None


def compare(
    expected: tuple[Command, ...], produced: tuple[Command, ...], first: list[Site], again: list[Site]
) -> NondeterminismError | None:
    """The first difference between two lists of commands, None if there is none."""
    if expected == produced:
        return None
    for position in range(max(len(expected), len(produced))):
        was = expected[position] if position < len(expected) else None
        now = produced[position] if position < len(produced) else None
        if was is not None and now is not None and _bare(was) == _bare(now):
            continue
        is_missing = now is None or (was is not None and _kind(now) in map(_kind, expected[position + 1 :]))
        is_missing = is_missing or (type(now) in TERMINAL_KINDS and type(was) not in TERMINAL_KINDS)
        sites = _site(first, position), _site(again, position)
        file, line = next((each for each in (sites if is_missing else sites[::-1]) if each[0]), ("", 0))
        return NondeterminismError(
            "the workflow is not deterministic: executed again on the same events, it asked for something else\n"
            f"  the first time: {_described(was)}{_at(_site(first, position))}\n"
            f"  now:            {_described(now)}{_at(_site(again, position))}",
            expected=_described(was),
            produced=_described(now),
            file=file,
            line=line,
        )
    return None


def _described(command: Command | None) -> str:
    if command is None:
        return "nothing"
    item = summarize(command)
    return describe(item) + (f" ({_sizes(item.payloads)})" if item.payloads else "")


def _kind(command: Command) -> tuple[type[Command], str]:
    return type(command), getattr(command, "activity_type", "")


def _sizes(payloads: tuple[Any, ...]) -> str:
    return f"{len(payloads)} arguments, {sum(len(p.data) for p in payloads)} bytes"


def _bare(command: Command) -> Command:
    """Without stack traces: where an exception was raised again is not what the run asked for; and without headers, which are
    the interceptors' own: what traces a request is another the second time. Temporal does not compare them either.
    """
    match command:
        case (
            ScheduleActivity()
            | ScheduleLocalActivity()
            | StartChildWorkflow()
            | SignalExternalWorkflow()
            | ContinueAsNew()
        ) if command.headers:
            return msgspec.structs.replace(command, headers={})
        case FailRun() | RejectUpdate():
            return msgspec.structs.replace(command, failure=_without_stack(command.failure))
        case AnswerQuery() if command.failure is not None:
            return msgspec.structs.replace(command, failure=_without_stack(command.failure))
        case _:
            return command


def _without_stack(failure: Failure) -> Failure:
    cause = _without_stack(failure.cause) if failure.cause is not None else None
    return msgspec.structs.replace(failure, stack_trace="", cause=cause)


def _site(sites: list[Site], position: int) -> Site:
    return sites[position] if position < len(sites) else ("", 0)


def _at(site: Site) -> str:
    return f"   at {site[0]}:{site[1]}" if site[0] else ""
