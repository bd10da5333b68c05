"""Deterministic facts: time, randomness, ids, patches, info and the workflow logger."""

from __future__ import annotations

import logging
import random
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.commands import SetPatchMarker
from hourglass._evaluator.events import PatchNoticed, SeedChanged
from hourglass.errors import NotInWorkflowError, ReadOnlyError

from .activities import work
from .conftest import Drive
from .driver import EPOCH, SECOND, brief


def test_workflow_time_is_constant_within_an_activation(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[Any]:
        first = [workflow.time_ns(), workflow.time(), workflow.now().isoformat()]
        same = workflow.time_ns() == first[0]
        work("x")
        return [first, same, workflow.time_ns()]

    d = begin_run(run)
    d.send(d.done("work"), timestamp_ns=EPOCH + 5 * SECOND + 123_456_789)
    moment = datetime.fromtimestamp(EPOCH // SECOND, UTC).isoformat()
    assert d.result == [[EPOCH, EPOCH / 1e9, moment], True, EPOCH + 5 * SECOND + 123_456_789]


def test_workflow_now_keeps_microseconds(drive: Drive) -> None:
    """A float of seconds would lose them."""

    @workflow.defn
    def run() -> int:
        return workflow.now().microsecond

    d = drive(run)
    d.send(d.started, timestamp_ns=EPOCH + 999_999_001)
    assert d.result == 999_999


def test_random_numbers_match_temporalio(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[Any]:
        return [workflow.random().random(), str(workflow.uuid4()), workflow.random().randint(0, 99)]

    d = begin_run(run, seed=4711)
    generator = random.Random(4711)
    first = generator.random()
    drawn = uuid.UUID(bytes=generator.getrandbits(128).to_bytes(16, "big"), version=4)
    assert d.result == [first, str(drawn), generator.randint(0, 99)]


def test_reset_changes_the_random_seed(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[float]:
        first = workflow.random().random()
        work("x")
        return [first, workflow.random().random()]

    d = begin_run(run, seed=1)
    d.send(SeedChanged(2), d.done("work"))
    assert d.result == [random.Random(1).random(), random.Random(2).random()]


def test_random_seed_callback_may_neither_wait_nor_draw(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[Any]:
        observed: list[Any] = []

        def on_seed(seed: int) -> None:
            observed.append(seed)
            for forbidden in (workflow.random, lambda: workflow.sleep(1)):
                try:
                    forbidden()
                except ReadOnlyError:
                    observed.append("read-only")

        workflow.register_random_seed_callback(on_seed)
        work("x")
        return [*observed, workflow.random_seed()]

    d = begin_run(run, seed=1)
    d.send(SeedChanged(2), d.done("work"))
    assert d.result == [2, "read-only", "read-only", 2]


def test_info_describes_the_run(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[Any]:
        info = workflow.info()
        work("x")
        later = workflow.info()
        return [
            info.workflow_id,
            info.run_id,
            info.workflow_type,
            info.task_queue,
            info.attempt,
            info.first_execution_run_id,
            info.parent_workflow_id,
            info.history_length,
            later.history_length,
            later.is_continue_as_new_suggested,
        ]

    d = begin_run(run)
    d.send(d.done("work"), continue_as_new_suggested=True)
    assert d.result == ["workflow-1", "run-1", "run", "default", 1, "run-1", None, 3, 6, True]


def test_workflow_facts_are_rejected_outside_a_workflow() -> None:
    for fact in (
        workflow.now,
        workflow.time,
        workflow.uuid4,
        workflow.random,
        workflow.info,
        workflow.is_replaying,
    ):
        with pytest.raises(NotInWorkflowError):
            fact()
    assert workflow.in_workflow() is False


# --- patches ----------------------------------------------------------------------------------------------------------


@workflow.defn
def patched() -> str:
    first = workflow.patched("new")
    again = workflow.patched("new")
    assert first == again
    work("new" if first else "old")
    return "new" if workflow.patched("new") else "old"


def test_patch_marker_is_recorded_once_before_the_guarded_command(drive: Drive) -> None:
    d = drive(patched)
    assert d.begin()[0] == SetPatchMarker("new")
    assert d.activities == ["work"]
    d.send(d.done("work"))
    assert d.result == "new"


def test_replay_without_a_patch_marker_takes_the_old_branch(drive: Drive) -> None:
    """The answer stays the same when the run continues live."""
    d = drive(patched)
    assert brief(d.send(d.started, is_replaying=True)) == ["work(old)"]
    d.send(d.done("work"), is_replaying=False)
    assert d.result == "old"


def test_replay_with_a_patch_marker_takes_the_new_branch(drive: Drive) -> None:
    d = drive(patched)
    commands = d.send(PatchNoticed("new"), d.started, is_replaying=True)
    assert brief(commands) == ["SetPatchMarker", "work(new)"]


def test_deprecate_patch_records_a_deprecated_marker(drive: Drive) -> None:
    @workflow.defn
    def run() -> None:
        workflow.deprecate_patch("new")

    d = drive(run)
    assert d.begin()[0] == SetPatchMarker("new", True)


# --- the logger -------------------------------------------------------------------------------------------------------


@workflow.defn
def logs_twice() -> None:
    workflow.logger.info("begun")
    work("x")
    workflow.logger.info("done")


def test_workflow_logger_adds_workflow_type_and_ids(
    begin_run: Drive, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hourglass.workflow")
    d = begin_run(logs_twice, shadow=False)
    assert "begun" in caplog.messages[0]
    assert caplog.records[0].hourglass_workflow == {  # type: ignore[attr-defined]
        "attempt": 1,
        "namespace": "default",
        "run_id": "run-1",
        "task_queue": d.run.settings.task_queue,
        "workflow_id": "workflow-1",
        "workflow_type": "logs_twice",
    }


@workflow.defn(name="50%s_off")
def name_with_percent_sign() -> None:
    workflow.logger.info("plain")
    workflow.logger.info("formatted: %d", 7, extra={"order": "o-1"})


def test_workflow_logger_escapes_a_percent_sign_in_the_workflow_type(
    drive: Drive, caplog: pytest.LogCaptureFixture
) -> None:
    """The `extra` fields of a record are kept."""
    caplog.set_level(logging.INFO, "hourglass.workflow")
    drive(name_with_percent_sign, shadow=False).begin()
    assert caplog.messages == [
        "plain (50_s_off workflow-1)",
        "formatted: 7 (50_s_off workflow-1)",
    ]
    assert caplog.records[1].order == "o-1"  # type: ignore[attr-defined]


def test_workflow_logger_is_silent_during_replay(drive: Drive, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hourglass.workflow")
    d = drive(logs_twice, shadow=False)
    d.send(d.started, is_replaying=True)
    d.send(d.done("work"))
    assert [message.split()[0] for message in caplog.messages] == ["done"]


def test_workflow_logger_is_silent_while_fibers_are_rebuilt(
    begin_run: Drive, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hourglass.workflow")
    d = begin_run(logs_twice, shadow=False)
    d.run.drop()
    d.send(d.done("work"))
    assert [message.split()[0] for message in caplog.messages] == ["begun", "done"]
