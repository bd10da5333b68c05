"""Import of a history into a Temporal server: a new run is taken through the same workflow tasks.

A server does not accept a finished history (the administrative `ImportWorkflowExecution` needs replicated
namespaces, and Temporal Cloud does not offer it). But a server writes the same events if it receives the same
inputs and commands in the same order. This module acts as the worker: it completes each task with the commands
that the history records, and reproduces the run's inputs (signals, results of activities, timers). No workflow
code and no activity runs.

Meanwhile no worker may receive the run's tasks: the run is pinned to a deployment version that exists only for
the import (`import_plan.DEPLOYMENT`). It is released when its history is complete and compares as equal. If
the process is killed before that, no worker receives the run; the next import with the same request finds it,
removes it, and starts again. Pending work then waits on its own task queue: activities start at their first
attempt, timers fire at their original time.

Histories that cannot be reproduced are rejected before the start (`import_plan`): children, updates, activities
that timed out, messages to other workflows. Times, and values that code derived from them and from
`workflow.random`, belong to the new run.
"""

from __future__ import annotations

import contextlib
from asyncio import sleep
from collections.abc import Sequence
from time import monotonic
from typing import Any

from temporalio.api.history.v1 import History, HistoryEvent

from hourglass._contract.workflows import ImportWorkflow, Started
from hourglass._temporal.calls import CallScope
from hourglass._temporal.histories import read_history
from hourglass._temporal.import_plan import (
    COMPLETED,
    ENDS,
    SCHEDULED,
    ImportCommands,
    PlannedTask,
    is_equal,
    kind_of,
    plan,
    start_message,
    subject_of,
)
from hourglass._temporal.import_run import STEP_TIMEOUT, Call, ImportedRun
from hourglass.errors import HistoryError, HourglassError, ServiceError


async def import_workflow(call: Call, request: ImportWorkflow, scope: CallScope) -> Started:
    """Start the run on the server, take it through its recorded history, and release it to the workers."""
    try:
        source = read_history(b'{"events":[' + b",".join(request.events) + b"]}")
    except HistoryError as error:
        raise ServiceError(f"the history cannot be read: {error}", status="INVALID_ARGUMENT") from None
    history = History.FromString(source.encoded)
    operation = _Import(call, request, scope, history)
    return Started("", False) if request.dry_run else await operation.run()


class _Import:
    """One import: the run is started, taken through its tasks, compared and released."""

    def __init__(self, call: Call, request: ImportWorkflow, scope: CallScope, history: History) -> None:
        self._request = request
        self._history = history
        self._tasks = plan(history)
        self._commands = ImportCommands(history, self._tasks)
        self._start_message = start_message(request, scope, history.events[0])
        self._server = ImportedRun(call, scope, request.workflow_id, self._start_message.task_queue.name)

    async def run(self) -> Started:
        """Carry out the import. If an earlier import of the same request was incomplete, remove its run first.
        If it was complete, return its run.
        """
        await self._server.withhold_activities(self._commands.pending_queues)
        is_new = await self._start_or_find()
        if is_new:
            await self._replay_tasks()
        elif not await self._server.is_pinned_to_import():
            return Started(self._server.run_id, False)
        if not self._request.hold:
            await self._server.release()
        return Started(self._server.run_id, is_new)

    async def _replay_tasks(self) -> None:
        try:
            for index, task in enumerate(self._tasks):
                await self._replay_task(task, self._tasks[index + 1 :])
            await self._compare()
        except BaseException:
            with contextlib.suppress(HourglassError):
                await self._server.remove()
            raise

    async def _start_or_find(self) -> bool:
        """Start the run, pinned to this process. Return False if an earlier attempt of the same request was complete."""
        server = self._server
        server.run_id = await server.start(self._start_message)
        imported = await server.fetch()
        has_completed_tasks = any(event.event_type == COMPLETED for event in imported.events)
        if not has_completed_tasks and await server.is_pinned_to_this_process():
            return True
        if not await server.is_pinned_to_import() or is_equal(imported, self._history):
            return False
        # An earlier import was killed. No process polls for the version to which its run is pinned.
        await server.remove()
        deadline = monotonic() + STEP_TIMEOUT
        while True:  # the server deletes asynchronously
            new_run_id = await server.start(self._start_message)
            if new_run_id != server.run_id or monotonic() > deadline:
                server.run_id = new_run_id
                return True
            await sleep(0.1)

    async def _replay_task(self, task: PlannedTask, later: Sequence[PlannedTask]) -> None:
        for event in task.inputs:
            await self._reproduce(event)
        if task.completed is None:
            return
        token = await self._server.next_task()
        commands = [self._commands.command(event, later) for event in task.issued]
        # If no input precedes the next task, the original worker had requested that task itself.
        force_new = bool(later) and not later[0].inputs and later[0].completed is not None
        await self._server.complete_task(token, task.completed, commands, force_new=force_new)
        await self._map_event_ids(task)

    async def _reproduce(self, event: HistoryEvent) -> None:
        attributes: Any = getattr(event, event.WhichOneof("attributes") or "")
        if event.event_type == kind_of("WORKFLOW_EXECUTION_SIGNALED"):
            await self._server.signal(attributes)
        elif event.event_type == kind_of("WORKFLOW_EXECUTION_CANCEL_REQUESTED"):
            await self._server.request_cancel(attributes)
        elif event.event_type in ENDS:
            scheduled = self._commands.scheduled[attributes.scheduled_event_id]
            activity_id = scheduled.activity_task_scheduled_event_attributes.activity_id
            await self._server.end_activity(event, activity_id, self._commands.private_queue)
        else:
            await self._wait_until_fired(event)

    async def _wait_until_fired(self, event: HistoryEvent) -> None:
        """Wait until the server has recorded that this timer fired."""
        timer, deadline = subject_of(event), monotonic() + STEP_TIMEOUT
        while monotonic() < deadline:
            if any(subject_of(recorded) == timer for recorded in (await self._server.fetch()).events):
                return
            await sleep(0.05)
        raise ServiceError("a timer did not fire in time", status="DEADLINE_EXCEEDED")

    async def _map_event_ids(self, task: PlannedTask) -> None:
        """Store the event ids that the server assigned to a task's activities, if the history cancels any activity."""
        scheduled = [event for event in task.issued if event.event_type == SCHEDULED]
        cancels = any(
            event.event_type == kind_of("ACTIVITY_TASK_CANCEL_REQUESTED")
            for planned in self._tasks
            for event in planned.issued
        )
        if not scheduled or not cancels:
            return
        ids = {
            event.activity_task_scheduled_event_attributes.activity_id: event.event_id
            for event in (await self._server.fetch()).events
            if event.event_type == SCHEDULED
        }
        for event in scheduled:
            self._commands.server_ids[event.event_id] = ids[
                event.activity_task_scheduled_event_attributes.activity_id
            ]

    async def _compare(self) -> None:
        if not is_equal(await self._server.fetch(), self._history):
            raise ServiceError(
                "the history on the server differs from the source: the run received another event during the import, "
                "or a timer fired out of order. Try again",
                status="ABORTED",
            )
