"""The run of a standalone activity never gets a workflow task: neither as time passes nor by any request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.specs import made, requests

from hourglass._contract.activities import StartActivity
from hourglass._contract.service import Request
from hourglass._contract.workflows import StartWorkflow, UpdateWithStart, UpdateWorkflow
from hourglass._embedded.transitions.standalone import PREFIX
from hourglass.errors import ServiceError

from ..memory_world import World, app_failure, settle

REQUIRED: dict[str, Any] = {
    "activity_id": "held",
    "attempt": 1,
    "event_id": 3,
    "events": (),
    "fast_forward_id": "f",
    "id": "burst",
    "name": "progress",
    "published": (),
    "query_name": "q",
    "request_id": "request",
    "run_id": "",
    "signal_name": "s",
    "token": b"",
    "update_id": "u",
    "update_name": "u",
    "workflow_type": "W",
}
"""Values of required fields, by the name of the field."""

KINDS = sorted(
    (kind for kind in requests() if "workflow_id" in kind.__struct_fields__), key=lambda kind: kind.__name__
)


async def start_standalone(world: World, **options: Any) -> Any:
    """Start the standalone activity `held` and return its run."""
    started = await world.call(
        made(StartActivity, activity_id="held", activity_type="A", task_queue="q", request_id="", **options)
    )
    return world.record(run_id=started.run_id)


def request_of(kind: type[Request[Any]], run_id: str) -> Request[Any]:
    """Return a request of this kind to the workflow whose id is that of the activity's run."""
    required = [field.name for field in msgspec.structs.fields(kind) if field.required]
    options: dict[str, Any] = {name: REQUIRED[name] for name in required if name != "workflow_id"}
    if "run_id" in kind.__struct_fields__:
        options["run_id"] = run_id
    return kind(**options, workflow_id=f"{PREFIX}held", rpc_timeout=0.0)


async def is_rejected(world: World, request: Request[Any]) -> bool:
    """Send a request. Return whether it was answered with an error."""
    try:
        await world.call(request)
    except ServiceError:
        return True
    return False


def assert_no_workflow_task(world: World, record: Any) -> None:
    """Check that no workflow task of the run exists or will be scheduled."""
    assert (record.run.task, record.run.task_count) == (None, 0)
    assert world.wake_ns(record.run) == 0
    assert not world.engine.queues.waiting_tasks()


@pytest.mark.parametrize("names_run", [False, True], ids=["latest run", "run id"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_workflow_requests_do_not_change_a_standalone_activity(
    world: World, kind: type[Request[Any]], names_run: bool
) -> None:
    record = await start_standalone(world, start_delay=60)
    before = record.run
    await is_rejected(world, request_of(kind, record.run.run_id if names_run else ""))
    await settle()
    assert record.run == before
    assert_no_workflow_task(world, record)


async def test_update_with_start_on_a_standalone_activity_is_rejected(world: World) -> None:
    record = await start_standalone(world, start_delay=60)
    before = record.run
    start, update = (request_of(kind, "") for kind in (StartWorkflow, UpdateWorkflow))
    assert isinstance(start, StartWorkflow)
    assert isinstance(update, UpdateWorkflow)
    assert await is_rejected(world, UpdateWithStart(start=start, update=update, rpc_timeout=0.0))
    assert record.run == before
    assert_no_workflow_task(world, record)


@pytest.mark.parametrize("start_delay", [0.0, 5.0])
async def test_standalone_activity_schedules_no_workflow_task(world: World, start_delay: float) -> None:
    """Delays, retries and timeouts lead only to attempts."""
    record = await start_standalone(
        world, start_delay=start_delay, start_to_close_timeout=30.0, schedule_to_close_timeout=100.0
    )
    await settle()
    assert_no_workflow_task(world, record)
    world.clock.advance(start_delay)
    attempt = await world.activity()
    assert_no_workflow_task(world, record)
    await world.fail_attempt(attempt, app_failure("first attempt"))
    for _ in range(8):
        await settle()
        assert_no_workflow_task(world, record)
        world.clock.advance(20.0)
    await settle()
    assert not record.run.is_open
    assert_no_workflow_task(world, record)
