"""Conversion of schedules between the public classes and those of the contract, with validation. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from hourglass._contract import schedules as sc
from hourglass._contract.cron import FIELDS
from hourglass._contract.schedule_specs import ScheduleBackfill, SchedulePolicy, ScheduleSpec, ScheduleState
from hourglass._contract.spec_checks import canonical, is_empty
from hourglass._contract.workflows import StartWorkflow
from hourglass._evaluator.options import (
    RetryPolicy,
    named_values,
    policy_from,
    several,
)
from hourglass._evaluator.specs import RetryRule
from hourglass.client._options import start_request
from hourglass.client._schedule_data import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleDescription,
    ScheduleListDescription,
    ScheduleStartOptions,
)
from hourglass.client._values import attributes_from, memo_from, values_of
from hourglass.converter import Converter, Payload
from hourglass.errors import UsageError
from hourglass.workflow._references import resolve_workflow

_KNOWN = tuple(ScheduleStartOptions.__annotations__)


def schedule_form(
    schedule: Schedule, schedule_id: str, converter: Converter, identity: str
) -> sc.EngineSchedule:
    """Return a schedule for a request. Raise `UsageError` or `ArgumentError` for invalid values."""
    if not isinstance(schedule, Schedule):
        raise UsageError(f"the schedule must be a Schedule(action=…, spec=…), not {type(schedule).__name__}")
    action, foreign = _action_form(schedule.action, schedule_id, converter, identity)
    for name, kind in (("spec", ScheduleSpec), ("policy", SchedulePolicy), ("state", ScheduleState)):
        if not isinstance(part := getattr(schedule, name), kind):
            raise UsageError(f"{name} must be a {kind.__name__}, not {type(part).__name__}")
    canonical(schedule.spec)  # raises an error if the spec is invalid
    state = schedule.state
    if state.remaining_actions < 0 or (state.remaining_actions and not state.limited_actions):
        raise UsageError("remaining_actions must be 0 or more, and needs limited_actions=True")
    return sc.EngineSchedule(
        action=action, spec=schedule.spec, policy=schedule.policy, state=state, foreign=foreign
    )


def reject_empty(spec: ScheduleSpec) -> None:
    """Reject a new spec that restricts or skips times but does not define any. Existing specs of this kind are accepted,
    because other SDKs permit them.

    An entirely empty spec is valid: its schedule acts only when triggered.
    """
    if is_empty(spec) and (spec.skip or spec.start_at or spec.end_at or spec.jitter):
        raise UsageError(
            "the schedule has no times: set calendars, intervals or cron_expressions of its ScheduleSpec, or leave the "
            "ScheduleSpec empty if the schedule is only triggered"
        )
    for calendar in (*spec.calendars, *spec.skip):
        for part in FIELDS:
            if part.name != "year" and not getattr(calendar, part.name):
                raise UsageError(f"{part.name} of a calendar is empty, so the calendar would never match")


def backfill_form(backfill: Sequence[ScheduleBackfill]) -> tuple[ScheduleBackfill, ...]:
    """Return backfills for a request."""
    for part in several(backfill, "backfill"):
        if not isinstance(part, ScheduleBackfill):
            raise UsageError(f"a backfill must be a ScheduleBackfill, not {type(part).__name__}")
    return tuple(backfill)


def _action_form(
    action: ScheduleActionStartWorkflow, schedule_id: str, converter: Converter, identity: str
) -> tuple[StartWorkflow, bytes]:
    if not isinstance(action, ScheduleActionStartWorkflow):
        raise UsageError(f"action must be a ScheduleActionStartWorkflow, not {type(action).__name__}")
    if action._known is not None:
        return action._known
    for name in action.options:
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, 1)
            hint = f"did you mean {near[0]}?" if near else f"known options: {', '.join(_KNOWN)}"
            raise UsageError(f"unknown option {name!r} of a schedule's action: {hint}")
    options = {"id": schedule_id, **action.options}
    headers = _headers(options.pop("headers", {}))
    request = start_request(resolve_workflow(action.workflow), action.args, options, converter, identity)
    return msgspec.structs.replace(request, headers=headers), b""


def _headers(value: object) -> dict[str, Payload]:
    headers = named_values(value, "headers")
    for name, payload in headers.items():
        if not isinstance(payload, Payload):
            raise UsageError(
                f"headers must map str to Payload, but the value of {name!r} is of type {type(payload).__name__}"
            )
    return dict(headers)


def description_from(answer: sc.ScheduleDetails, converter: Converter) -> ScheduleDescription:
    """Return the description of a schedule."""
    return ScheduleDescription(
        id=answer.schedule_id,
        schedule=_schedule_from(answer.schedule, converter),
        info=answer.info,
        memo=memo_from(answer.memo, converter),
        search_attributes=attributes_from(answer.search_attributes),
    )


def listed_from(summary: sc.ScheduleSummary, converter: Converter) -> ScheduleListDescription:
    """Return a schedule for the results of a list."""
    values = values_of(
        ScheduleListDescription,
        summary,
        id=summary.schedule_id,
        memo=memo_from(summary.memo, converter),
        search_attributes=attributes_from(summary.search_attributes),
    )
    return ScheduleListDescription(**values)


def _schedule_from(schedule: sc.EngineSchedule, converter: Converter) -> Schedule:
    action = _action_from(schedule.action, schedule.foreign, converter)
    return Schedule(action=action, spec=schedule.spec, policy=schedule.policy, state=schedule.state)


def _action_from(action: StartWorkflow, foreign: bytes, converter: Converter) -> ScheduleActionStartWorkflow:
    options: dict[str, Any] = {"id": action.workflow_id, "task_queue": action.spec.task_queue}
    for name in ("execution_timeout", "run_timeout", "task_timeout"):
        if limit := getattr(action.spec, name):
            options[name] = timedelta(seconds=limit)
    if action.spec.retry_policy is not None and (policy := _policy_from(action.spec.retry_policy)):
        options["retry_policy"] = policy
    if action.spec.priority_key:
        options["priority_key"] = action.spec.priority_key
    if action.headers:
        options["headers"] = dict(action.headers)
    if action.spec.memo:
        options["memo"] = memo_from(action.spec.memo, converter)
    if action.spec.search_attributes:
        options["search_attributes"] = attributes_from(action.spec.search_attributes)
    args = memo_from({str(at): payload for at, payload in enumerate(action.arguments)}, converter)
    return ScheduleActionStartWorkflow._from_service(action, foreign, tuple(args.values()), options)


def _policy_from(rule: RetryRule) -> RetryPolicy | None:
    try:
        return policy_from(rule)
    except UsageError:  # other SDKs permit policies that we reject; the action itself is kept unchanged
        return None
