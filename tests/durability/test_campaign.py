"""Faults of every kind by seed, and a checker that knows every acknowledgement: short here, a thousand faults by `make chaos`."""

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

from . import checker, shim, trips
from .audit import Written
from .campaign import FileCampaign
from .checker import Case
from .clients import QUEUE, Journal, end_all

pytestmark = pytest.mark.skipif(not shim.is_here(), reason="needs Linux and a C compiler")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> FileCampaign:
    """A campaign that is over."""
    fought = FileCampaign(tmp_path_factory.mktemp("campaign"), 1, cases(16, 150), gap=0.1)
    fought.run()
    return fought


def test_every_promise_holds_under_random_faults(campaign: FileCampaign) -> None:
    """Processes and their parts, disk and clock fail in every way: no acknowledgement is broken, and all work ends."""
    found = campaign.findings
    assert not found.violations, "\n".join([f"seed {found.seed}", *found.violations[:20], found.log[-4000:]])
    assert set(found.faults) == set(FileCampaign.kinds)
    assert min(found.checked[each] for each in ("start", "signal", "update", "result", "attempt")) > 0


def test_campaign_reports_stuck_runs(tmp_path: Path) -> None:
    """A run that does not end is told within the limit, with what it waits for, instead of being waited for."""
    with Client.connect(f"local:{tmp_path / 'stuck.db'}") as client:
        client.start_workflow(trips.nap, 1, 0.0, id="nap-1", task_queue=QUEUE)
        (said,) = end_all(client, Journal(tmp_path / "journal", "last"), limit=0.1)
    assert "nap-1 has not ended" in said
    assert "WORKFLOW_TASK_SCHEDULED" in said
    assert "no worker" in said


Damage = Callable[[Case], Case]


def test_checker_detects_every_broken_promise(campaign: FileCampaign) -> None:
    """Each kind of damage, done to what a campaign left behind, is seen."""
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
class Edited:
    """Stands for a history that no engine would write."""

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
    """Change the first event of a kind that is one of those, in a run of a workflow whose name begins so."""
    for workflow_id, runs in case.histories.items():
        for place, history in enumerate(runs):
            events = copy.deepcopy(list(history.events))
            for number, event in enumerate(events):
                is_it = workflow_id.startswith(name) and event["eventType"] == f"EVENT_TYPE_{kind}"
                if is_it and which(event):
                    edit(events, number)
                    runs[place] = cast("History", Edited(workflow_id, history.run_id, events))
                    return case
    raise AssertionError(f"there is no {kind}")


def a_start_is_lost(case: Case) -> Case:
    told = next(each for each in case.of("start") if not each.workflow_id.startswith("ledger"))
    del case.histories[told.workflow_id]
    return case


def a_run_is_begun_twice(case: Case) -> Case:
    name = next(each for each in case.histories if each.startswith("nap"))
    case.histories[name] *= 2
    return case


def a_signal_is_lost(case: Case) -> Case:
    """One that was acknowledged: its client may have been killed before it was told of the first."""
    told = next(each for each in case.of("signal") if each.workflow_id.startswith("ledger"))

    def is_it(event: dict[str, Any]) -> bool:
        return checker.sender_and_number(event) == (told.sender, told.number)

    return _edit(
        case,
        "WORKFLOW_EXECUTION_SIGNALED",
        lambda events, place: events.pop(place),
        name=told.workflow_id,
        which=is_it,
    )


def a_signal_comes_twice(case: Case) -> Case:
    return _edit(
        case,
        "WORKFLOW_EXECUTION_SIGNALED",
        lambda events, place: events.insert(place, events[place]),
        name="ledger",
    )


def signals_change_places(case: Case) -> Case:
    """The two that one sender sent one after the other."""
    told = [line for line in case.of("signal") if line.workflow_id.startswith("ledger")]
    first, second = next(
        (one, two)
        for one in told
        for two in told
        if (one.sender, one.workflow_id) == (two.sender, two.workflow_id) and one.number < two.number
    )
    places = [case.lines.index(first), case.lines.index(second)]
    case.lines[places[0]], case.lines[places[1]] = second, first
    return case


def an_update_has_another_answer(case: Case) -> Case:
    told = next(case.of("update"))
    case.lines.append(replace(told, value="another"))
    return case


def an_update_is_accepted_twice(case: Case) -> Case:
    return _edit(
        case,
        "WORKFLOW_EXECUTION_UPDATE_ACCEPTED",
        lambda events, place: events.insert(place, events[place]),
    )


def a_result_is_told_otherwise(case: Case) -> Case:
    told = next(case.of("result"))
    case.lines.append(replace(told, value={"heard": [["nobody", 1]]}))
    return case


def a_run_goes_on_after_its_end(case: Case) -> Case:
    return _edit(
        case,
        "WORKFLOW_EXECUTION_COMPLETED",
        lambda events, place: events.append(events[place - 1]),
    )


def a_query_forgets(case: Case) -> Case:
    told = next(each for each in case.of("signal") if each.workflow_id.startswith("trip"))
    asked = replace(told, what="query", phase="asked", number=0, value=None)
    case.lines += [asked, replace(asked, phase="told", value=[])]
    return case


def an_attempt_is_executed_twice(case: Case) -> Case:
    case.written.begun[next(iter(case.written.begun))] += 1
    return case


def an_attempt_follows_the_recorded_one(case: Case) -> Case:
    run_id, activity_id, attempt = case.written.done[next(checker.recorded_tokens(case))]
    case.written.begun[run_id, activity_id, attempt + 1] += 1
    return case


def a_result_comes_from_nowhere(case: Case) -> Case:
    case.written.done.clear()
    return case


def a_child_is_of_another(case: Case) -> Case:
    name = next(each for each in case.histories if "-leg-" in each)
    case.histories[name] = []
    return case


def a_timer_is_early(case: Case) -> Case:
    case.jumps.clear()

    def earlier(events: list[dict[str, Any]], place: int) -> None:
        events[place]["timerStartedEventAttributes"]["startToFireTimeout"] = "3600s"

    return _edit(case, "TIMER_STARTED", earlier, name="nap")


def time_goes_back(case: Case) -> Case:
    def earlier(events: list[dict[str, Any]], place: int) -> None:
        events[place]["eventTime"] = "2001-01-01T00:00:00Z"

    return _edit(case, "WORKFLOW_TASK_COMPLETED", earlier)


def code_and_history_differ(case: Case) -> Case:
    def other(events: list[dict[str, Any]], place: int) -> None:
        events[place]["activityTaskScheduledEventAttributes"]["activityType"]["name"] = "other"

    _edit(case, "ACTIVITY_TASK_SCHEDULED", other, name="nap")
    for runs in case.histories.values():
        runs[:] = [
            History.from_json(json.dumps({"events": list(each.events)}), workflow_id=each.workflow_id)
            for each in runs
        ]
    return case


DAMAGES: tuple[tuple[Damage, checker.Check], ...] = (
    (a_start_is_lost, checker.starts),
    (a_run_is_begun_twice, checker.starts),
    (a_signal_is_lost, checker.signals),
    (a_signal_comes_twice, checker.signals),
    (signals_change_places, checker.signals),
    (an_update_has_another_answer, checker.updates),
    (an_update_is_accepted_twice, checker.updates),
    (a_result_is_told_otherwise, checker.results),
    (a_run_goes_on_after_its_end, checker.results),
    (a_query_forgets, checker.messages_in_order),
    (a_signal_is_lost, checker.ledgers),
    (an_attempt_is_executed_twice, checker.executions),
    (an_attempt_follows_the_recorded_one, checker.executions),
    (a_result_comes_from_nowhere, checker.executions),
    (a_child_is_of_another, checker.children),
    (a_timer_is_early, checker.timers),
    (time_goes_back, checker.orderly),
    (code_and_history_differ, checker.replays),
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
    runs = [Edited("trip-1", "run-1", events), Edited("trip-1", "run-2", [])]
    written = Written(first_notes={"run-1": 90.0, "run-2": next_run_at})
    return Case([], written, {"trip-1": cast("list[History]", runs)}, jumps=[(100.0, 110.0)])


def test_timer_started_during_a_clock_jump_is_not_judged_by_its_history() -> None:
    """The time of an event never goes back, so a timer that began while the clock was ahead seems to fire at once."""
    assert list(checker.timers(_chain_with_early_timer(99.0)))
    assert not list(checker.timers(_chain_with_early_timer(101.0)))


def test_every_check_detects_its_damage() -> None:
    """No check is without a damage that it must see."""
    assert {seen_by for _, seen_by in DAMAGES} == set(checker.CHECKS)
