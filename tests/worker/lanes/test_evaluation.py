"""Evaluations of a lane, without a thread: caching, eviction, parking, verification."""

from __future__ import annotations

import logging

import pytest

from hourglass import activity
from hourglass._evaluator.commands import (
    CompleteRun,
    ScheduleActivity,
    Succeeded,
    TaskFailed,
    TaskFailureCause,
)
from hourglass._evaluator.events import Activation, ActivityCompleted, QueryReceived, RunEvicted
from hourglass._worker.lanes.cache import LostJournals
from hourglass.converter import default_converter

from ..scripted import evict, lane_of, on, payloads, start, workflow

unwound: list[str] = []
answers: list[object] = []


@activity.defn
def step(number: int) -> int:
    return number


@workflow
def two_steps(name: str) -> int:
    try:
        return step(1) + step(2)
    finally:
        unwound.append(name)


@workflow
def many_steps(count: int) -> int:
    return sum(step(n) for n in range(count))


@workflow
def buggy() -> None:
    step(1)
    raise KeyError("a bug")


@workflow
def nondeterministic() -> None:
    answers.append(None)
    step(len(answers))


@workflow
def exits() -> None:
    raise SystemExit(1)


@pytest.fixture(autouse=True)
def _clean():
    unwound.clear()
    answers.clear()


def evaluations(**options):
    return lane_of([two_steps, many_steps, buggy, nondeterministic, exits], **options)


def resolved(seq: int, value: object = 0) -> ActivityCompleted:
    return ActivityCompleted(seq, default_converter.encode(value))


def test_lane_evaluates_a_run_from_start_to_close():
    lane = evaluations()
    first = lane.evaluate(start("r", "two_steps", "a")).completion
    assert isinstance(first, Succeeded)
    assert isinstance(first.commands[0], ScheduleActivity)
    assert not lane.evaluate(on("r", resolved(1, 5))).closed
    last = lane.evaluate(on("r", resolved(2, 6)))
    assert last.closed
    assert last.completion == Succeeded("r", (CompleteRun(payloads(11)[0]),))
    assert lane.counts.live == 0
    assert lane.evaluate(evict("r")).completion == Succeeded("r")
    assert lane.counts.cached == 0


def test_activation_of_an_uncached_run_fails_the_task():
    lane = evaluations()
    completion = lane.evaluate(on("r", resolved(1))).completion
    assert isinstance(completion, TaskFailed)
    assert "whole history" in completion.failure.message
    assert lane.counts.misses == 1


def test_start_event_replaces_the_cached_run_and_unwinds_it():
    lane = evaluations()
    lane.evaluate(start("r", "two_steps", "old"))
    lane.evaluate(on("r", resolved(1)))
    again = lane.evaluate(start("r", "two_steps", "new")).completion
    assert unwound == ["old"]
    assert isinstance(again, Succeeded)
    assert again.commands[0].seq == 1
    assert lane.counts.cached == 1


def test_eviction_of_an_unknown_run_succeeds():
    assert evaluations().evaluate(evict("nobody")).completion == Succeeded("nobody")


def test_nondeterminism_of_an_uncached_run_is_counted_but_not_logged(caplog):
    """Only the run id is known, so the report is kept until the workflow's name is."""
    lane = evaluations()
    misfit = Activation(run_id="r", events=(RunEvicted("NONDETERMINISM", "[TMPRL1100] other commands"),))
    assert lane.evaluate(misfit).completion == Succeeded("r")
    assert lane.counts.failed_tasks == 1
    assert lane.context.parked.unnamed == {"r": "[TMPRL1100] other commands"}
    assert caplog.records == []


def test_unknown_workflow_type_fails_the_task_and_is_logged_once(caplog):
    lane = evaluations()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            completion = lane.evaluate(start("r", "two_step")).completion
    assert isinstance(completion, TaskFailed)
    assert "did you mean 'two_steps'" in completion.failure.message
    assert len(caplog.records) == 1


def test_parked_run_is_logged_once_and_listed(caplog):
    lane = evaluations()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            lane.evaluate(start("r", "buggy", is_replaying=True))
            completion = lane.evaluate(on("r", resolved(1))).completion
            lane.evaluate(evict("r"))
    assert isinstance(completion, TaskFailed)
    (record,) = caplog.records
    assert "workflow buggy (id of r, run r) is parked: KeyError at" in record.getMessage()
    assert "test_evaluation.py:" in record.getMessage()
    assert record.exc_info is not None
    assert list(lane.counts.parked) == ["r"]
    assert "a bug" not in lane.counts.parked["r"]
    assert lane.counts.failed_tasks == 3


def test_run_that_continues_is_no_longer_parked(caplog):
    lane = evaluations()
    lane.evaluate(start("r", "nothing like it"))
    assert list(lane.counts.parked) == ["r"]
    lane.evaluate(start("r", "two_steps", "mended"))
    assert lane.counts.parked == {}


def test_system_exit_in_workflow_code_does_not_end_the_lane():
    lane = evaluations()
    assert isinstance(lane.evaluate(start("r", "exits")).completion, TaskFailed)
    assert isinstance(lane.evaluate(start("s", "two_steps", "a")).completion, Succeeded)


def test_internal_error_of_a_lane_fails_the_activation(caplog):
    def broken(_: str) -> object:
        raise RuntimeError("we have a bug")

    lane = lane_of(broken)
    with caplog.at_level(logging.ERROR):
        completion = lane.evaluate(start("r", "two_steps", "a")).completion
    assert isinstance(completion, TaskFailed)
    assert completion.run_id == "r"
    assert "the evaluation of run r failed" in caplog.text
    assert lane.counts.cached == 0


def test_run_whose_fibers_were_dropped_continues_from_its_journal():
    lane = evaluations(cache={"live": 1})
    lane.evaluate(start("a", "two_steps", "a"))
    lane.evaluate(start("b", "two_steps", "b"))
    assert unwound == ["a"]
    assert (lane.counts.cached, lane.counts.live) == (2, 1)
    lane.evaluate(on("a", resolved(1, 1)))
    assert unwound == ["a", "b"]
    last = lane.evaluate(on("a", resolved(2, 2))).completion
    assert last == Succeeded("a", (CompleteRun(payloads(3)[0]),))


def test_least_recently_used_runs_are_evicted_beyond_the_cache_limit():
    lane = evaluations(cache={"states": 2})
    asked = [lane.evaluate(start(name, "two_steps", name)).evict for name in "abcd"]
    assert asked == [(), (), ("a",), ("b",)]
    assert lane.evaluate(on("d", resolved(1))).evict == ()


@pytest.mark.parametrize("limits", [{"journal_entries": 2}, {"journal_bytes": 2 * 150}])
def test_run_with_an_oversized_journal_is_evicted(limits):
    lane = evaluations(cache=limits)
    asked = [lane.evaluate(start("r", "many_steps", 9)).evict]
    asked += [lane.evaluate(on("r", resolved(n))).evict for n in range(1, 5)]
    assert asked.count(("r",)) == 1
    assert asked[0] == ()


def test_queries_do_not_extend_the_journal():
    lane = evaluations(cache={"journal_entries": 1})
    lane.evaluate(start("r", "two_steps", "a"))
    for n in range(5):
        verdict = lane.evaluate(on("r", QueryReceived(str(n), "unknown")))
        assert isinstance(verdict.completion, Succeeded)
        assert verdict.evict == ()


def test_verification_fails_the_task_of_a_nondeterministic_workflow(caplog):
    completion = evaluations(verify="always").evaluate(start("r", "nondeterministic")).completion
    assert isinstance(completion, TaskFailed)
    assert completion.cause is TaskFailureCause.NON_DETERMINISTIC_ERROR
    assert "not deterministic" in completion.failure.message
    assert "test_evaluation.py:" in completion.failure.message


def test_nondeterministic_workflow_passes_without_verification():
    for verify in ("off", 0.0):
        assert isinstance(
            evaluations(verify=verify).evaluate(start("r", "nondeterministic")).completion, Succeeded
        )
    assert isinstance(evaluations(verify=1.0).evaluate(start("r", "nondeterministic")).completion, TaskFailed)


def test_verification_replays_at_powers_of_two_and_at_the_close(monkeypatch):
    counts = []
    from hourglass._worker.lanes import evaluation

    monkeypatch.setattr(evaluation, "verify_run", lambda run: counts.append(len(run.state.journal)))
    lane = evaluations(verify="always")
    lane.evaluate(start("r", "many_steps", 10))
    for n in range(1, 11):
        lane.evaluate(on("r", resolved(n)))
    assert counts == [1, 2, 4, 8, 11]


def test_closing_a_lane_unwinds_every_fiber():
    lane = evaluations()
    for name in "abc":
        lane.evaluate(start(name, "two_steps", name))
    lane.close()
    assert unwound == ["a", "b", "c"]
    assert lane.counts.cached == 0


@workflow
def logs() -> None:
    from hourglass import workflow as wf

    wf.logger.warning("before")
    step(1)
    wf.logger.warning("after")
    raise KeyError("a bug")


def test_retried_task_does_not_repeat_workflow_log_messages(caplog):
    lane = lane_of([logs])
    with caplog.at_level(logging.WARNING, logger="hourglass.workflow"):
        for _ in range(3):
            lane.evaluate(start("r", "logs"))
            assert isinstance(lane.evaluate(on("r", resolved(1))).completion, TaskFailed)
            lane.evaluate(evict("r"))
    messages = [record.getMessage() for record in caplog.records if record.name == "hourglass.workflow"]
    assert len(messages) == 2


def test_lost_journals_are_bounded_in_number_and_bytes():
    lost = LostJournals(most=2, most_bytes=100)
    for name, size in (("a", 10), ("b", 10), ("c", 10)):
        lost.keep(name, [on(name)], size)
    assert not lost.take("a")
    assert lost.take("c") == [on("c")]
    assert not lost.take("c")
    lost.keep("huge", [on("huge")], 1000)
    assert not lost.take("huge")
    assert not lost.take("b")
