"""Would the open runs go on with this code? Their histories are executed again on it, and nothing else is touched."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from hourglass.errors import HourglassError, WorkflowNotFoundError

if TYPE_CHECKING:
    from hourglass._cli.loading import Loaded
    from hourglass.client import Client, WorkflowExecution

_LIMIT = 10.0
"""How long one run may take, in seconds."""


@dataclass(frozen=True)
class Broken:
    """A run that this code would not continue, and why: file, line, expected, produced."""

    id: str
    workflow_type: str
    reason: str


@dataclass(frozen=True)
class Checked:
    """How many runs were tried, and which would break."""

    tried: int
    broken: tuple[Broken, ...]


def check_open_runs(
    client: Client, loaded: Loaded, task_queues: Sequence[str], most: int, over: threading.Event
) -> Checked:
    """Try the newest open runs of the types and queues that are served here, until it is over."""
    tried, broken = 0, list[Broken]()
    found = list(islice(_open(client, loaded.workflows, task_queues), most))
    if not found:
        return Checked(0, ())
    from hourglass.replay import Replayer

    # Changed arguments break no run: engines compare what is asked for, not with what.
    with Replayer(
        modules=loaded.modules,
        converter=client.converter,
        codec=client.codec,
        compare_arguments=False,
        timeout=_LIMIT,
    ) as replayer:
        for run in found:
            if over.is_set():
                break
            try:
                history = client.get_workflow_handle(run.id, run_id=run.run_id).history()
            except WorkflowNotFoundError:
                continue  # gone meanwhile
            tried += 1
            error = replayer.try_replay(history).error
            if error is not None:
                broken.append(Broken(run.id, run.workflow_type, _said(error)))
    return Checked(tried, tuple(broken))


def _open(client: Client, types: Sequence[str], task_queues: Sequence[str]) -> Iterator[WorkflowExecution]:
    for run in client.list_workflows("ExecutionStatus = 'Running'"):
        if run.workflow_type in types and run.task_queue in task_queues:
            yield run


def _said(error: HourglassError | TimeoutError) -> str:
    return str(error) or type(error).__name__
