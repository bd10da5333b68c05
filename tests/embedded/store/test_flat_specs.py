"""Specs are stored flat, as before there were specs: what 0.1.0 wrote is read, and what is written is what it would have
written.

`golden/specs-0.1.0.json` holds the bytes that 0.1.0 wrote of the four kinds of events that hold specs now, and of a
schedule, with every field set and with none. It is never made again.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from hourglass._embedded.store.sqlite.records import decode_events, decode_schedule, encode_schedule
from hourglass._engine.specs import (
    ActivitySpec,
    ChildWorkflowSpec,
    IdReusePolicy,
    ParentClosePolicy,
    RetryRule,
    StartSpec,
)
from hourglass._history import events as h
from hourglass._history.encoding import array, encode_events
from hourglass.converter import Payload

GOLDEN = {
    name: bytes.fromhex(data)
    for name, data in json.loads((Path(__file__).parent / "golden" / "specs-0.1.0.json").read_text()).items()
}
X = Payload(b'"x"')
FIELDS = {"k": X}
RULE = RetryRule(2.0, 3.0, 9.0, 4, ("Bad",))
COMMON = StartSpec(task_queue="q", run_timeout=800.0, task_timeout=7.0, memo=FIELDS, search_attributes=FIELDS)
START = msgspec.structs.replace(
    COMMON,
    execution_timeout=900.0,
    retry_policy=RULE,
    cron_schedule="5 4 * * *",
    priority_key=3,
    static_summary=X,
    static_details=X,
)


def test_every_field_that_0_1_0_wrote_is_read() -> None:
    """What was said of a start, an activity, a child and a next run stands in their specs."""
    started, scheduled, initiated, continued = (each.attributes for each in decode_events(GOLDEN["full"]))
    assert isinstance(started, h.WorkflowExecutionStarted)
    assert (started.spec, started.arguments, started.headers) == (START, (X,), FIELDS)
    assert (started.attempt, started.identity, started.parent_workflow_id) == (2, "me", "p")
    assert isinstance(scheduled, h.ActivityTaskScheduled)
    assert scheduled.spec == ActivitySpec(
        task_queue="q",
        schedule_to_close_timeout=900.0,
        schedule_to_start_timeout=41.0,
        start_to_close_timeout=42.0,
        heartbeat_timeout=17.0,
        retry_policy=RULE,
        priority_key=3,
    )
    assert (scheduled.activity_type, scheduled.arguments, scheduled.summary) == ("a", (X,), X)
    assert isinstance(initiated, h.StartChildWorkflowExecutionInitiated)
    assert initiated.spec == START
    assert initiated.child == ChildWorkflowSpec(
        parent_close_policy=ParentClosePolicy.ABANDON, id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE
    )
    assert isinstance(continued, h.WorkflowExecutionContinuedAsNew)
    assert (continued.spec, continued.workflow_type, continued.arguments) == (COMMON, "t", (X,))


def test_what_0_1_0_left_out_was_its_default() -> None:
    """Ten seconds for a task and Temporal's usual retries were not written: they are what is missing."""
    started, scheduled, initiated, continued = (each.attributes for each in decode_events(GOLDEN["bare"]))
    usual = StartSpec(task_queue="q", task_timeout=10.0)
    assert isinstance(started, h.WorkflowExecutionStarted)
    assert isinstance(scheduled, h.ActivityTaskScheduled)
    assert isinstance(initiated, h.StartChildWorkflowExecutionInitiated)
    assert isinstance(continued, h.WorkflowExecutionContinuedAsNew)
    assert started.spec == initiated.spec == continued.spec == usual
    assert scheduled.spec == ActivitySpec(task_queue="q", retry_policy=RetryRule())
    assert initiated.child == ChildWorkflowSpec()


def test_schedules_of_0_1_0_are_read() -> None:
    """A schedule's action, with all that it says, and with nothing."""
    full, bare = (decode_schedule(GOLDEN[name]).schedule.action for name in ("schedule", "bare_schedule"))
    assert full.spec == msgspec.structs.replace(START, cron_schedule="")
    assert (full.arguments, full.headers, full.workflow_type) == ((X,), FIELDS, "t")
    assert bare.spec == StartSpec(task_queue="q")


@pytest.mark.parametrize("name", ["full", "bare"])
def test_what_is_written_is_what_0_1_0_would_have_written(name: str) -> None:
    """The same names and values, so that a process of 0.1.0 that comes to own the file reads it."""
    events = decode_events(GOLDEN[name])
    written = msgspec.msgpack.decode(array(len(events), encode_events(events)))
    assert written == msgspec.msgpack.decode(GOLDEN[name])


@pytest.mark.parametrize("name", ["schedule", "bare_schedule"])
def test_schedules_are_written_as_before(name: str) -> None:
    """The same names; a limit that is not set is 0 where it was null."""
    written = msgspec.msgpack.decode(encode_schedule(decode_schedule(GOLDEN[name])))
    before = msgspec.msgpack.decode(GOLDEN[name])
    assert {key: value or None for key, value in before["schedule"]["action"].items()} == {
        name: written["schedule"]["action"].get(name) or None for name in before["schedule"]["action"]
    }
