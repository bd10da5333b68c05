"""The world of a scenario: a client of one engine, a worker, and the runs that the scenario started."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hourglass.client import Client, WorkflowHandle
from hourglass.errors import TimedOutError, WorkflowFailedError, WorkflowNotFoundError
from hourglass.replay import History
from hourglass.worker import Worker

LIMIT = 60.0


class World:
    """Starts runs, waits for them and remembers their handles. `engine` is "memory", "file" or "server"."""

    def __init__(self, engine: str, client: Client, modules: Sequence[Any], **worker: Any) -> None:
        self.engine = engine
        self.client = client
        self.queue = f"conformance-{uuid.uuid4().hex[:10]}"
        self.handles: list[WorkflowHandle[Any]] = []
        self._modules = modules
        self._options: dict[str, Any] = {"verify": "always", **worker}
        self._workers: list[Worker] = []
        self._elsewhere: list[Worker] = []

    # --- workers -----------------------------------------------------------------------------------------------------

    @property
    def worker(self) -> Worker:
        """The worker that was started last."""
        return self._workers[-1]

    def start_worker(self, **changed: Any) -> Worker:
        """Start a worker on the scenario's queue; shut down the previous one."""
        self._end(self._workers)
        options = {"modules": self._modules, **self._options, **changed}
        worker = Worker(self.client, self.queue, **options)
        worker.start()
        self._workers.append(worker)
        return worker

    def stop_worker(self) -> None:
        """Shut down all workers."""
        self._end([*self._workers, *self._elsewhere])

    def stop_serving_queue(self) -> None:
        """Shut down the worker, but start one on another queue, which keeps a file's engine open: updates that
        no worker has accepted exist only in the memory of an engine."""
        worker = Worker(self.client, f"{self.queue}-elsewhere", modules=self._modules, **self._options)
        worker.start()
        self._elsewhere.append(worker)
        self._end(self._workers)

    def _end(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.shutdown()

    # --- runs --------------------------------------------------------------------------------------------------------

    def start(self, workflow: Any, *args: Any, **options: Any) -> WorkflowHandle[Any]:
        """Start a run on the scenario's queue."""
        options.setdefault("id", f"{self.queue}-{len(self.handles)}")
        handle: WorkflowHandle[Any] = self.client.start_workflow(
            workflow, *args, task_queue=self.queue, **options
        )
        self.handles.append(handle)
        return handle

    def start_waiting(self, workflow: Any, *args: Any, **options: Any) -> WorkflowHandle[Any]:
        """Start a run and wait until its first workflow task is completed."""
        handle = self.start(workflow, *args, **options)
        self.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED")
        return handle

    def run(self, workflow: Any, *args: Any, **options: Any) -> Any:
        """Start a run and return its result."""
        return self.start(workflow, *args, **options).result(timeout=LIMIT)

    def failure(self, handle: WorkflowHandle[Any]) -> Any:
        """Return the error that ended a run."""
        try:
            result = handle.result(timeout=LIMIT)
        except WorkflowFailedError as error:
            return error.cause
        raise AssertionError(f"the run completed with {result!r}")

    def run_failing(self, workflow: Any, *args: Any, **options: Any) -> Any:
        """Start a run and return the error that ended it."""
        return self.failure(self.start(workflow, *args, **options))

    def wait_for_event(self, handle: WorkflowHandle[Any], event: str, count: int = 1) -> None:
        """Wait until the run's history has `count` events of this type."""
        self.wait_until(lambda: event_types(handle.history()).count(event) >= count, f"{count} {event}")

    def wait_until(self, condition: Callable[[], object], description: str = "the expected state") -> None:
        """Poll until the condition holds."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < deadline, f"there never was {description}"
            time.sleep(0.005)  # polling without a pause would take CPU time from the engine

    def histories(self) -> list[History]:
        """Return the histories of all runs, including those that continued as new."""
        histories: list[History] = []
        for handle in self.handles:
            run_id: str | None = handle.run_id
            while run_id:
                history = self.client.get_workflow_handle(handle.id, run_id=run_id).history()
                histories.append(history)
                run_id = successor_run_id(history)
        return histories


def exists(handle: WorkflowHandle[Any]) -> bool:
    """Return whether the workflow of this handle exists."""
    try:
        handle.describe()
    except WorkflowNotFoundError:
        return False
    return True


def event_types(history: History) -> list[str]:
    """Return the types of a history's events, without the prefix."""
    return [event["eventType"].removeprefix("EVENT_TYPE_") for event in history.events]


def attributes_of(history: History, event_type: str) -> list[dict[str, Any]]:
    """Return the attributes of the history's events of this type, given without its prefix."""
    name = "".join(word.title() for word in event_type.split("_")) + "EventAttributes"
    name = name[0].lower() + name[1:]
    return [event[name] for event in history.events if name in event]


def successor_run_id(history: History) -> str | None:
    """Return the id of the run that follows this one, or None."""
    for key, value in history.events[-1].items():
        if key.endswith("EventAttributes"):
            run_id: str | None = value.get("newExecutionRunId")
            return run_id
    return None


def event_counts(history: History) -> Counter[str]:
    """Count the events of each type, without workflow tasks."""
    return Counter(kind for kind in event_types(history) if not kind.startswith("WORKFLOW_TASK_"))


def error_chain(error: BaseException | None) -> list[Any]:
    """Return a chain of errors as plain data, outermost first."""
    chain: list[Any] = []
    while error is not None:
        facts: dict[str, Any] = {"class": type(error).__name__, "message": str(error)}
        for name in ("type", "details", "non_retryable", "retry_state", "activity_type", "activity_id"):
            if hasattr(error, name):
                value = getattr(error, name)
                facts[name] = list(value) if isinstance(value, tuple) else value
        if isinstance(error, TimedOutError):
            facts["last_heartbeat_details"] = list(error.last_heartbeat_details)
        chain.append(facts)
        error = error.__cause__
    return chain
