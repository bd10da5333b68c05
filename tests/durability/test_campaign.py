"""Campaigns of random faults, and a checker of every acknowledgement: a short one here, a thousand faults with `make chaos`."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.effort import cases

from hourglass import Client, History

from . import campaign_workflows, checker, shim
from .campaign import FileCampaign
from .checker import Case
from .clients import QUEUE, Journal, end_all
from .written import Written

pytestmark = pytest.mark.skipif(not shim.is_here(), reason="needs Linux and a C compiler")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> FileCampaign:
    """A finished campaign on a file."""
    fought = FileCampaign(tmp_path_factory.mktemp("campaign"), 1, cases(16, 150), gap=0.1)
    fought.run()
    return fought


def test_every_guarantee_holds_under_random_faults(campaign: FileCampaign) -> None:
    findings = campaign.findings
    assert not findings.violations, "\n".join(
        [f"seed {findings.seed}", *findings.violations[:20], findings.log[-4000:]]
    )
    assert set(findings.faults) == set(FileCampaign.kinds)
    assert min(findings.checked[kind] for kind in ("start", "signal", "update", "result", "attempt")) > 0


def test_campaign_reports_runs_that_never_end(tmp_path: Path) -> None:
    with Client.connect(f"local:{tmp_path / 'stuck.db'}") as client:
        client.start_workflow(campaign_workflows.nap, 1, 0.0, id="nap-1", task_queue=QUEUE)
        (report,) = end_all(client, Journal(tmp_path / "journal", "last"), limit=0.1)
    assert "nap-1 has not ended" in report
    assert "WORKFLOW_TASK_SCHEDULED" in report
    assert "no worker" in report


Damage = Callable[[Case], Case]


def test_checker_detects_every_violated_guarantee(campaign: FileCampaign) -> None:
    silent = [
        damage.__name__ for damage, seen_by in DAMAGES if not list(seen_by(damage(_copy(campaign.case))))
    ]
    assert not silent


def _copy(case: Case) -> Case:
    return replace(
        case,
        lines=list(case.lines),
        written=copy.deepcopy(case.written),
        histories={name: list(runs) for name, runs in case.histories.items()},
        checked=Counter(),
    )


@dataclass
class EditedHistory:
    """A history with changed events."""

    workflow_id: str
    run_id: str
    events: list[dict[str, Any]]


def _edit(
    case: Case,
    kind: str,
    edit: Callable[[list[dict[str, Any]], int], None],
    *,
    name: str = "",
    which: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> Case:
    """Edit the first event of this kind that `which` accepts, in a workflow whose id starts with `name`."""
    for workflow_id, runs in case.histories.items():
        for place, history in enumerate(runs):
            events = copy.deepcopy(list(history.events))
            for number, event in enumerate(events):
                is_it = workflow_id.startswith(name) and event["eventType"] == f"EVENT_TYPE_{kind}"
                if is_it and which(event):
                    edit(events, number)
                    runs[place] = cast("History", EditedHistory(workflow_id, history.run_id, events))
                    return case
    raise AssertionError(f"there is no {kind}")


def lose_start(case: Case) -> Case:
    line = next(line for line in case.of("start") if not line.workflow_id.startswith("ledger"))
    del case.histories[line.workflow_id]
    return case


def duplicate_first_run(case: Case) -> Case:
    name = next(workflow_id for workflow_id in case.histories if workflow_id.startswith("nap"))
    case.histories[name] *= 2
    return case


def change_race_answer(case: Case) -> Case:
    case.lines.append(replace(next(case.of("race")), value="another"))
    return case


def lose_signal(case: Case) -> Case:
    signal = next(line for line in case.of("signal") if line.workflow_id.startswith("ledger"))

    def is_it(event: dict[str, Any]) -> bool:
        return checker.sender_and_number(event) == (signal.sender, signal.number)

    return _edit(
        case,
        "WORKFLOW_EXECUTION_SIGNALED",
        lambda events, place: events.pop(place),
        name=signal.workflow_id,
        which=is_it,
    )


def duplicate_signal(case: Case) -> Case:
    return _edit(
        case,
        "WORKFLOW_EXECUTION_SIGNALED",
        lambda events, place: events.insert(place, events[place]),
        name="ledger",
    )


def swap_signals(case: Case) -> Case:
    signals = [line for line in case.of("signal") if line.workflow_id.startswith("ledger")]
    first, second = next(
        (earlier, later)
        for earlier in signals
        for later in signals
        if (earlier.sender, earlier.workflow_id) == (later.sender, later.workflow_id)
        and earlier.number < later.number
    )
    places = [case.lines.index(first), case.lines.index(second)]
    case.lines[places[0]], case.lines[places[1]] = second, first
    return case


def change_update_answer(case: Case) -> Case:
    line = next(case.of("update"))
    case.lines.append(replace(line, value="another"))
    return case


def duplicate_update_acceptance(case: Case) -> Case:
    return _edit(
        case,
        "WORKFLOW_EXECUTION_UPDATE_ACCEPTED",
        lambda events, place: events.insert(place, events[place]),
    )


def change_result(case: Case) -> Case:
    line = next(case.of("result"))
    case.lines.append(replace(line, value={"heard": [["nobody", 1]]}))
    return case


def continue_after_end(case: Case) -> Case:
    return _edit(
        case,
        "WORKFLOW_EXECUTION_COMPLETED",
        lambda events, place: events.append(events[place - 1]),
    )


def lose_query_answer(case: Case) -> Case:
    signal = next(line for line in case.of("signal") if line.workflow_id.startswith("trip"))
    query = replace(signal, what="query", phase="asked", number=0, value=None)
    case.lines += [query, replace(query, phase="told", value=[])]
    return case


def execute_attempt_twice(case: Case) -> Case:
    case.written.begun[next(iter(case.written.begun))] += 1
    return case


def execute_attempt_after_recorded_one(case: Case) -> Case:
    run_id, activity_id, attempt = case.written.done[next(checker.recorded_tokens(case))]
    case.written.begun[run_id, activity_id, attempt + 1] += 1
    return case


def invent_result(case: Case) -> Case:
    case.written.done.clear()
    return case


def lose_parent_of_child(case: Case) -> Case:
    name = next(workflow_id for workflow_id in case.histories if "-leg-" in workflow_id)
    case.histories[name] = []
    return case


def fire_timer_early(case: Case) -> Case:
    case.jumps.clear()

    def earlier(events: list[dict[str, Any]], place: int) -> None:
        events[place]["timerStartedEventAttributes"]["startToFireTimeout"] = "3600s"

    return _edit(case, "TIMER_STARTED", earlier, name="nap")


def move_event_time_back(case: Case) -> Case:
    def earlier(events: list[dict[str, Any]], place: int) -> None:
        events[place]["eventTime"] = "2001-01-01T00:00:00Z"

    return _edit(case, "WORKFLOW_TASK_COMPLETED", earlier)


def change_activity_type(case: Case) -> Case:
    def other(events: list[dict[str, Any]], place: int) -> None:
        events[place]["activityTaskScheduledEventAttributes"]["activityType"]["name"] = "other"

    _edit(case, "ACTIVITY_TASK_SCHEDULED", other, name="nap")
    for runs in case.histories.values():
        runs[:] = [
            History.from_json(json.dumps({"events": list(run.events)}), workflow_id=run.workflow_id)
            for run in runs
        ]
    return case


DAMAGES: tuple[tuple[Damage, checker.Check], ...] = (
    (lose_start, checker.starts),
    (duplicate_first_run, checker.starts),
    (change_race_answer, checker.races),
    (lose_signal, checker.signals),
    (duplicate_signal, checker.signals),
    (swap_signals, checker.signals),
    (change_update_answer, checker.updates),
    (duplicate_update_acceptance, checker.updates),
    (change_result, checker.results),
    (continue_after_end, checker.results),
    (lose_query_answer, checker.messages_in_order),
    (lose_signal, checker.ledgers),
    (execute_attempt_twice, checker.executions),
    (execute_attempt_after_recorded_one, checker.executions),
    (invent_result, checker.executions),
    (lose_parent_of_child, checker.children),
    (fire_timer_early, checker.timers),
    (move_event_time_back, checker.orderly),
    (change_activity_type, checker.replays),
)


def _chain_with_early_timer(next_run_at: float) -> Case:
    """Two runs; by its history the first one's timer fired at once, and the clock was ahead from 100.0 to 110.0."""
    started = {"startToFireTimeout": "0.04s"}
    events = [
        {
            "eventId": "5",
            "eventType": "EVENT_TYPE_TIMER_STARTED",
            "eventTime": "2026-01-01T00:00:00Z",
            "timerStartedEventAttributes": started,
        },
        {
            "eventId": "6",
            "eventType": "EVENT_TYPE_TIMER_FIRED",
            "eventTime": "2026-01-01T00:00:00Z",
            "timerFiredEventAttributes": {"startedEventId": "5"},
        },
    ]
    runs = [EditedHistory("trip-1", "run-1", events), EditedHistory("trip-1", "run-2", [])]
    written = Written(first_notes={"run-1": 90.0, "run-2": next_run_at})
    return Case([], written, {"trip-1": cast("list[History]", runs)}, jumps=[(100.0, 110.0)])


def test_checker_ignores_history_times_of_timers_during_clock_jumps() -> None:
    assert list(checker.timers(_chain_with_early_timer(99.0)))
    assert not list(checker.timers(_chain_with_early_timer(101.0)))


def test_every_checker_function_has_a_damage_that_it_must_detect() -> None:
    assert {seen_by for _, seen_by in DAMAGES} == set(checker.CHECKS)
