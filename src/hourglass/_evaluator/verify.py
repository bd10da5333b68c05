"""The determinism check: re-executing the journal must issue the same commands with the same arguments."""

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
    """Re-execute a run's journal in new fibers, and compare the commands with those of the first execution.
    Return the first difference, or None.
    """
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
            f"a re-execution of the workflow raised {type(error).__name__}: {error}; the first execution did not",
            expected="the same result as the first execution",
            produced=f"{type(error).__name__}: {error}",
        )
    finally:
        live.drop(run.on_step)
    return None


def compare(
    expected: tuple[Command, ...], produced: tuple[Command, ...], first: list[Site], second: list[Site]
) -> NondeterminismError | None:
    """Return the first difference between two lists of commands, or None if they are equal."""
    if expected == produced:
        return None
    for position in range(max(len(expected), len(produced))):
        expected_command = expected[position] if position < len(expected) else None
        actual_command = produced[position] if position < len(produced) else None
        if (
            expected_command is not None
            and actual_command is not None
            and _comparable(expected_command) == _comparable(actual_command)
        ):
            continue
        is_missing = actual_command is None or (
            expected_command is not None and _kind(actual_command) in map(_kind, expected[position + 1 :])
        )
        is_missing = is_missing or (
            type(actual_command) in TERMINAL_KINDS and type(expected_command) not in TERMINAL_KINDS
        )
        sites = _site(first, position), _site(second, position)
        file, line = next((site for site in (sites if is_missing else sites[::-1]) if site[0]), ("", 0))
        return NondeterminismError(
            "the workflow is not deterministic: a re-execution with the same events issued different commands\n  first "
            f"execution: {_describe(expected_command)}{_location(_site(first, position))}\n  re-execution:    "
            f"{_describe(actual_command)}{_location(_site(second, position))}",
            expected=_describe(expected_command),
            produced=_describe(actual_command),
            file=file,
            line=line,
        )
    return None


def _describe(command: Command | None) -> str:
    if command is None:
        return "nothing"
    summary = summarize(command)
    return describe(summary) + (f" ({_sizes(summary.payloads)})" if summary.payloads else "")


def _kind(command: Command) -> tuple[type[Command], str]:
    return type(command), getattr(command, "activity_type", "")


def _sizes(payloads: tuple[Any, ...]) -> str:
    return f"{len(payloads)} arguments, {sum(len(p.data) for p in payloads)} bytes"


def _comparable(command: Command) -> Command:
    """Return a command without stack traces and headers, both of which may differ between executions.
    Interceptors write headers, e.g. a trace id. Temporal does not compare stack traces or headers either.
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


def _location(site: Site) -> str:
    return f"   at {site[0]}:{site[1]}" if site[0] else ""
