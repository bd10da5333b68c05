"""Schedule transitions as pure functions: overlap policies, catch-up, jitter, backfills, pauses, updates."""

from __future__ import annotations

import dataclasses
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.specs import made

from hourglass import client
from hourglass._contract.schedule_specs import (
    ScheduleBackfill,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
)
from hourglass._contract.schedules import CreateSchedule, EngineSchedule, PatchSchedule, UpdateSchedule
from hourglass._contract.workflows import StartWorkflow, WorkflowStatus
from hourglass._embedded.schedules import transitions as rec
from hourglass._embedded.schedules import transitions as tr
from hourglass._embedded.schedules.times import NANOS
from hourglass._embedded.schedules.transitions import MAX_BUFFERED, BufferedStart, decide_overlap
from hourglass.converter import Failure, Payload
from hourglass.testing import DevServer

from .schedule_specs import nanos

NOON = nanos("2026-01-01T12:00:00")
MINUTE = 60 * NANOS


def after(seconds: float) -> datetime:
    """Return the time `seconds` after noon."""
    return datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(seconds=seconds)


ACTION = made(StartWorkflow, workflow_id="report", workflow_type="Report", task_queue="q", request_id="")
DONE = WorkflowStatus.COMPLETED


class World:
    """An engine that has only schedules: it starts their workflows, and closes those named by a test."""

    def __init__(
        self,
        every: float = 60.0,
        policy: SchedulePolicy | None = None,
        state: ScheduleState | None = None,
        jitter: float = 0.0,
        **create: Any,
    ) -> None:
        schedule = EngineSchedule(
            action=ACTION,
            spec=ScheduleSpec(intervals=(ScheduleIntervalSpec(every),), jitter=jitter),
            policy=policy or SchedulePolicy(),
            state=state or ScheduleState(),
        )
        self.now = NOON
        self.record = tr.create(
            CreateSchedule(schedule_id="s", schedule=schedule, request_id="r", **create), NOON
        )
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.terminated: list[str] = []
        self.ended = 0
        self.advance()

    def advance(self) -> int | None:
        """Let the schedule act until it has nothing to do. Return the next wake time."""
        while True:
            step = tr.advance(self.record, self.now)
            self.record = step.record
            for start in step.starts:
                self.started.append(start.workflow_id.removeprefix("report-2026-01-01T"))
                self.record = tr.started(self.record, start, f"run-{len(self.started)}", self.now)
            self.cancelled += [name for name, _ in step.cancel]
            self.terminated += [name for name, _ in step.terminate]
            if step.wake_ns is None or step.wake_ns > self.now:
                return step.wake_ns

    def wait(self, seconds: float) -> None:
        """Let time pass in one step."""
        self.now += round(seconds * NANOS)
        self.advance()

    def tick(self, count: int, seconds: float = 60.0) -> None:
        """Let time pass in `count` steps."""
        for _ in range(count):
            self.wait(seconds)

    def close(self, status: WorkflowStatus = DONE, message: str = "") -> None:
        failure = Failure(message) if message else None
        self.record = tr.closed(self.record, self.record.running[0][0], status, failure=failure)
        self.ended += 1
        self.advance()

    def patch(self, **patch: Any) -> None:
        self.record = tr.patch(self.record, PatchSchedule(schedule_id="s", request_id="p", **patch), self.now)
        self.advance()

    def update(self, token: bytes | None = None, **changes: Any) -> None:
        request = UpdateSchedule(
            schedule_id="s",
            schedule=msgspec.structs.replace(self.record.schedule, **changes),
            request_id="u",
            conflict_token=rec.token_of(self.record) if token is None else token,
        )
        self.record = tr.update(self.record, request, self.now)
        self.advance()

    @property
    def counts(self) -> tuple[int, int, int, int, list[str]]:
        """The numbers of actions, skipped, waiting and running starts, and the recent action times."""
        record = self.record
        return (
            record.action_count,
            record.skipped_overlap,
            len(record.waiting),
            len(record.running),
            [taken.action.workflow_id[-9:] for taken in record.recent],
        )

    @property
    def state(self) -> ScheduleState:
        return self.record.schedule.state


def overlapping(policy: ScheduleOverlapPolicy) -> World:
    """Return a world whose first workflow runs during two more action times."""
    world = World(policy=SchedulePolicy(overlap=policy))
    world.tick(3)
    return world


# --- overlap ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "end", "counts", "started"),
    [
        ("SKIP", DONE, (2, 0, 1), ["01", "04"]),
        ("BUFFER_ONE", DONE, (1, 1, 1), ["01", "02"]),
        ("BUFFER_ALL", DONE, (0, 2, 1), ["01", "02", "03"]),
        ("CANCEL_OTHER", WorkflowStatus.CANCELED, (0, 2, 1), ["01", "03"]),
        ("TERMINATE_OTHER", WorkflowStatus.TERMINATED, (0, 2, 1), ["01", "03"]),
    ],
)
def test_overlap_policy_decides_about_times_during_a_running_workflow(
    policy: str, end: WorkflowStatus, counts: tuple[int, int, int], started: list[str]
) -> None:
    """The first workflow runs during two more action times, then each workflow closes."""
    world = overlapping(ScheduleOverlapPolicy[policy])
    assert world.started == ["12:01:00Z"]
    assert (world.record.skipped_overlap, len(world.record.waiting), len(world.record.running)) == counts
    for ended, wanted in (
        (world.cancelled, end is WorkflowStatus.CANCELED),
        (world.terminated, end is WorkflowStatus.TERMINATED),
    ):
        assert set(ended) == ({"report-2026-01-01T12:01:00Z"} if wanted else set())
    while world.record.running:
        world.close(end)
    if policy == "SKIP":
        world.tick(1)
    assert world.started == [f"12:{minute}:00Z" for minute in started]
    assert world.record.waiting == ()


def test_allow_all_policy_starts_every_action() -> None:
    world = overlapping(ScheduleOverlapPolicy.ALLOW_ALL)
    assert world.started == ["12:01:00Z", "12:02:00Z", "12:03:00Z"]
    assert world.record.running == ()


POLICIES = [policy for policy in ScheduleOverlapPolicy if policy is not ScheduleOverlapPolicy.UNSPECIFIED]


@settings(max_examples=300)
@given(
    policies=st.lists(st.sampled_from(list(ScheduleOverlapPolicy)), max_size=8),
    running=st.booleans(),
    default=st.sampled_from(POLICIES),
)
def test_overlap_decision_handles_each_start_exactly_once(
    policies: list[ScheduleOverlapPolicy], running: bool, default: ScheduleOverlapPolicy
) -> None:
    waiting = tuple(BufferedStart(at, at, policy) for at, policy in enumerate(policies))
    decision = decide_overlap(waiting, running, default)
    alone = () if decision.alone is None else (decision.alone,)
    kept = [*decision.together, *alone, *decision.waiting]
    assert len(set(kept)) == len(kept)
    assert set(kept) <= set(waiting)
    assert list(decision.waiting) == sorted(decision.waiting, key=lambda due: due.nominal_ns)
    assert not (running and decision.alone)
    assert (decision.cancel or decision.terminate) <= running
    resolved = [policy or default for policy in policies]
    replacing_count = sum(
        policy in (ScheduleOverlapPolicy.CANCEL_OTHER, ScheduleOverlapPolicy.TERMINATE_OTHER)
        for policy in resolved
    )
    dropped = resolved.count(ScheduleOverlapPolicy.ALLOW_ALL) if decision.cancel or decision.terminate else 0
    lost = len(waiting) - len(kept) - decision.skipped - dropped
    assert 0 <= lost <= replacing_count


@pytest.mark.server
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_overlap_decisions_match_the_server(policy: ScheduleOverlapPolicy, quick_server: DevServer) -> None:
    world = World(policy=SchedulePolicy(overlap=policy), state=ScheduleState(paused=True))
    name = f"same-{uuid.uuid4().hex[:8]}"
    schedule = client.Schedule(
        client.ScheduleActionStartWorkflow("unserved", task_queue=name, execution_timeout=60),
        client.ScheduleSpec(intervals=[client.ScheduleIntervalSpec(60)]),
        client.SchedulePolicy(overlap=policy),
        client.ScheduleState(paused=True),
    )
    with client.Client.connect(quick_server.target) as connected:
        handle = connected.create_schedule(name, schedule)
        for hour in (9, 10):
            begin = datetime(2026, 1, 1, hour, tzinfo=UTC)
            end = begin + timedelta(minutes=2)
            world.patch(backfill=(ScheduleBackfill(start_at=begin, end_at=end),))
            while len(world.terminated) > world.ended:
                world.close(WorkflowStatus.TERMINATED)
            handle.backfill(client.ScheduleBackfill(start_at=begin, end_at=end))
            deadline = time.monotonic() + 30
            while (seen := _counts(handle.describe().info)) != world.counts:
                assert time.monotonic() < deadline, (seen, world.counts)
                time.sleep(0.05)
        handle.delete()


def _counts(info: client.ScheduleInfo) -> tuple[int, int, int, int, list[str]]:
    return (
        info.num_actions,
        info.num_actions_skipped_overlap,
        info.num_actions_waiting,
        len(info.running_actions),
        [action.action.workflow_id[-9:] for action in info.recent_actions],
    )


# --- time ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    steps=st.lists(st.floats(0.001, 400.0), min_size=1, max_size=12),
    jitter=st.floats(0, 100),
    every=st.integers(1, 90),
)
def test_started_workflows_are_independent_of_step_size(
    steps: list[float], jitter: float, every: int
) -> None:
    policy = SchedulePolicy(overlap=ScheduleOverlapPolicy.ALLOW_ALL)
    in_steps, in_one_step = World(every, policy, jitter=jitter), World(every, policy, jitter=jitter)
    for step in steps:
        in_steps.wait(step)
    in_one_step.now = in_steps.now
    in_one_step.advance()
    assert in_steps.started == in_one_step.started
    assert len(set(in_one_step.started)) == len(in_one_step.started)


def test_next_wake_time_includes_jitter_and_ends_with_the_schedule() -> None:
    assert World().advance() == NOON + MINUTE
    later = World(jitter=30.0).advance()
    assert later is not None
    assert NOON + MINUTE <= later < NOON + MINUTE + 30 * NANOS
    assert World(state=ScheduleState(paused=True)).advance() is None
    ended = World()
    ended.update(spec=dataclasses.replace(ended.record.schedule.spec, end_at=after(90)))
    ended.tick(2)
    assert ended.advance() is None
    assert ended.started == ["12:01:00Z"]


def test_pending_jitter_is_not_lost() -> None:
    """A step or an update between a time and its jitter neither drops nor repeats the action."""
    world = World(3600.0, jitter=1800.0)
    due = world.advance()
    assert due is not None
    assert due > NOON + 3600 * NANOS  # otherwise there is no time in between
    world.now = NOON + 3600 * NANOS + 1
    world.advance()
    assert world.started == []
    world.update(policy=world.record.schedule.policy)
    assert world.advance() == due
    world.now = due
    world.advance()
    world.advance()
    assert world.started == ["13:00:00Z"]


def test_clock_set_back_repeats_no_action() -> None:
    world = World(policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.ALLOW_ALL))
    world.tick(2)
    world.now -= 2 * MINUTE
    world.advance()
    world.tick(2)
    assert world.started == ["12:01:00Z", "12:02:00Z"]
    world.tick(1)
    assert world.started[2:] == ["12:03:00Z"]


def test_missed_times_are_caught_up_within_the_window() -> None:
    policy = SchedulePolicy(overlap=ScheduleOverlapPolicy.ALLOW_ALL, catchup_window=150.0)
    world = World(policy=policy)
    world.wait(600)
    assert world.started == ["12:08:00Z", "12:09:00Z", "12:10:00Z"]
    assert world.record.missed_catchup == 7


def test_catchup_window_has_temporals_bounds() -> None:
    assert World(
        policy=SchedulePolicy(catchup_window=1.0)
    ).record.schedule.policy.catchup_window == timedelta(seconds=10)
    assert World().record.schedule.policy.catchup_window == timedelta(days=365)


def test_long_outage_is_caught_up_in_steps() -> None:
    world = World(1.0, SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP))
    step = tr.advance(world.record, NOON + 5000 * NANOS)
    assert step.wake_ns == NOON + 5000 * NANOS
    assert step.record.seen_ns == NOON + tr.BATCH * NANOS
    world.wait(5000)
    assert world.record.skipped_overlap == 4999


def test_full_buffer_drops_and_counts_starts() -> None:
    world = World(1.0, SchedulePolicy(overlap=ScheduleOverlapPolicy.BUFFER_ALL))
    world.wait(MAX_BUFFERED + 101)
    assert len(world.record.waiting) <= MAX_BUFFERED
    assert len(world.started) + len(world.record.waiting) + world.record.dropped == MAX_BUFFERED + 101
    assert world.record.dropped > 0


# --- pausing and limits ------------------------------------------------------------------------------------------------


def test_paused_schedule_skips_its_times() -> None:
    """A time that came due before the pause and was not processed is skipped, too."""
    world = World(policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.ALLOW_ALL))
    world.now += 70 * NANOS  # 12:01 has come and was not processed yet
    world.patch(pause="holidays")
    assert (world.state.paused, world.state.note) == (True, "holidays")
    world.tick(3)
    world.patch(unpause="back")
    world.tick(1)
    assert (world.state.paused, world.state.note) == (False, "back")
    assert world.started == ["12:05:00Z"]


def test_pause_on_failure_pauses_after_failure_and_timeout() -> None:
    for status, note in [
        (WorkflowStatus.FAILED, "paused due to workflow failure: report-2026-01-01T12:01:00Z: no money"),
        (WorkflowStatus.TIMED_OUT, "paused due to workflow timeout: report-2026-01-01T12:01:00Z"),
    ]:
        world = World(policy=SchedulePolicy(pause_on_failure=True))
        world.tick(1)
        world.close(status, "no money")
        assert (world.state.paused, world.state.note) == (True, note)
        world.tick(2)
        assert len(world.started) == 1
    for status in (DONE, WorkflowStatus.CANCELED, WorkflowStatus.TERMINATED):
        world = World(policy=SchedulePolicy(pause_on_failure=True))
        world.tick(1)
        world.close(status)
        assert not world.state.paused
    world = World()
    world.tick(1)
    world.close(WorkflowStatus.FAILED)
    assert not world.state.paused


def test_remaining_actions_are_counted_down() -> None:
    """Skipped and manual actions do not count."""
    world = World(state=ScheduleState(limited_actions=True, remaining_actions=2))
    world.tick(3)
    assert (world.state.remaining_actions, world.record.skipped_overlap) == (1, 2)
    world.close()
    world.patch(trigger=ScheduleOverlapPolicy.ALLOW_ALL)
    assert world.state.remaining_actions == 1
    world.tick(1)
    assert world.state.remaining_actions == 0
    world.close()
    world.tick(3)
    assert world.advance() is None
    assert len(world.started) == 3
    world.patch(trigger=ScheduleOverlapPolicy.UNSPECIFIED)
    assert len(world.started) == 4


def test_pause_drops_buffered_starts() -> None:
    """Manual triggers remain."""
    world = World(policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.BUFFER_ALL))
    world.tick(3)
    world.patch(trigger=ScheduleOverlapPolicy.BUFFER_ALL)
    world.patch(pause="enough")
    world.close()
    assert world.started == [
        "12:01:00Z",
        "12:03:00Z",
    ]  # the trigger, named after the time of its request
    assert world.record.waiting == ()


# --- by hand --------------------------------------------------------------------------------------------------------------


def test_backfill_starts_past_times() -> None:
    """Both ends belong to it; neither the catch-up window nor the limit of actions applies."""
    backfill = ScheduleBackfill(
        start_at=after(-180), end_at=after(-60), overlap=ScheduleOverlapPolicy.ALLOW_ALL
    )
    world = World(
        policy=SchedulePolicy(catchup_window=10.0),
        state=ScheduleState(limited_actions=True, remaining_actions=1, paused=True),
        backfill=(backfill,),
    )
    assert world.started == ["11:57:00Z", "11:58:00Z", "11:59:00Z"]
    assert world.state.remaining_actions == 1


@pytest.mark.parametrize("overlap", [ScheduleOverlapPolicy.ALLOW_ALL, ScheduleOverlapPolicy.BUFFER_ALL])
def test_long_backfill_is_done_in_steps(overlap: ScheduleOverlapPolicy) -> None:
    count = 1300
    backfill = ScheduleBackfill(start_at=after(1 - count), end_at=after(0), overlap=overlap)
    world = World(1.0, state=ScheduleState(paused=True))
    request = PatchSchedule(schedule_id="s", request_id="p", backfill=(backfill,))
    step = tr.advance(tr.patch(world.record, request, NOON), NOON)
    assert len(step.starts) + len(step.record.waiting) == tr.BACKFILL_BATCH
    world.patch(backfill=(backfill,))
    while world.record.running:
        world.close()
    assert len(world.started) == count
    assert world.started == sorted(world.started)
    assert (world.record.dropped, world.record.skipped_overlap) == (0, 0)


# --- updates, views, storing ----------------------------------------------------------------------------------------------


def test_update_applies_to_future_times() -> None:
    world = World(policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.ALLOW_ALL))
    world.tick(2)
    world.wait(30)
    world.update(spec=ScheduleSpec(intervals=(ScheduleIntervalSpec(20.0),)))
    world.tick(2, 20.0)
    assert world.started == ["12:01:00Z", "12:02:00Z", "12:02:40Z", "12:03:00Z"]
    assert world.record.update_time_ns == NOON + 150 * NANOS


def test_update_with_an_outdated_token_is_rejected() -> None:
    world = World()
    stale = rec.token_of(world.record)
    world.patch(pause="mine")
    assert rec.token_of(world.record) != stale
    world.update(stale, state=ScheduleState(note="yours"))
    assert world.state.note == "mine"
    world.update(b"", state=ScheduleState(note="anyhow"))
    assert world.state.note == "anyhow"


def test_description_shows_recent_and_next_actions() -> None:
    world = World(memo={"a": Payload(b"1")})
    world.tick(12)
    assert len(world.record.recent) == 1
    for _ in range(12):
        world.close()
        world.tick(1)
    seen = rec.describe(world.record)
    assert (seen.schedule_id, seen.memo) == ("s", {"a": Payload(b"1")})
    assert (seen.info.num_actions, seen.info.num_actions_skipped_overlap) == (13, 11)
    assert len(seen.info.recent_actions) == 10
    last = seen.info.recent_actions[-1]
    assert (last.action.workflow_id, last.action.first_execution_run_id) == (
        "report-2026-01-01T12:24:00Z",
        "run-13",
    )
    assert seen.info.running_actions == (last.action,)
    assert seen.info.next_action_times == tuple(after(60 * (24 + number)) for number in range(1, 11))
    listed = rec.summarize(world.record)
    assert (len(listed.recent_actions), len(listed.next_action_times)) == (5, 5)
    assert (listed.workflow_type, listed.paused) == ("Report", False)


def test_original_workflow_id_can_be_kept() -> None:
    world = World(policy=SchedulePolicy(keep_original_workflow_id=True))
    world.tick(1)
    assert world.started == ["report"]


def test_schedule_record_round_trips() -> None:
    world = overlapping(ScheduleOverlapPolicy.BUFFER_ALL)
    world.patch(
        backfill=(
            ScheduleBackfill(
                start_at=after(-9999 * 60), end_at=after(0), overlap=ScheduleOverlapPolicy.BUFFER_ALL
            ),
        )
    )
    assert world.record.waiting
    assert world.record.backfills
    stored = msgspec.msgpack.encode(world.record)
    assert msgspec.msgpack.decode(stored, type=rec.ScheduleRecord) == world.record
