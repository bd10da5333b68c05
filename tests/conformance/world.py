"""A world for one scenario: a client of one engine, a worker, and the runs that the scenario started."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hourglass.client import Client, WorkflowHandle
from hourglass.errors import TimedOutError, WorkflowFailedError
from hourglass.replay import History
from hourglass.worker import Worker

LIMIT = 60.0


class World:
    """Starts runs, waits for them and remembers them. `engine` is "memory", "file" or "server"."""

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
        """The worker that runs now."""
        return self._workers[-1]

    def start_worker(self, **changed: Any) -> Worker:
        """Start a worker on the scenario's queue, ending the one before."""
        self._end(self._workers)
        options = {"modules": self._modules, **self._options, **changed}
        worker = Worker(self.client, self.queue, **options)
        worker.start()
        self._workers.append(worker)
        return worker

    def stop_worker(self) -> None:
        """End the worker that runs."""
        self._end([*self._workers, *self._elsewhere])

    def leave_queue(self) -> None:
        """End the worker that runs, while another, on another queue, keeps a file's engine: only an engine can hold what is
        not recorded yet, such as an update that no worker has accepted.
        """
        elsewhere = Worker(self.client, f"{self.queue}-elsewhere", modules=self._modules, **self._options)
        elsewhere.start()
        self._elsewhere.append(elsewhere)
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

    def run(self, workflow: Any, *args: Any, **options: Any) -> Any:
        """Start a run and return its result."""
        return self.start(workflow, *args, **options).result(timeout=LIMIT)

    def failure(self, handle: WorkflowHandle[Any]) -> Any:
        """What ended a run that did not complete."""
        try:
            result = handle.result(timeout=LIMIT)
        except WorkflowFailedError as error:
            return error.cause
        raise AssertionError(f"the run completed with {result!r}")

    def fails(self, workflow: Any, *args: Any, **options: Any) -> Any:
        """Start a run and return what ended it."""
        return self.failure(self.start(workflow, *args, **options))

    def until(self, handle: WorkflowHandle[Any], event: str, count: int = 1) -> None:
        """Wait until so many events of a kind stand in the run's history."""
        self.until_true(lambda: kinds(handle.history()).count(event) >= count, f"{count} {event}")

    def until_true(self, holds: Callable[[], object], what: str) -> None:
        """Ask again and again until something holds."""
        deadline = time.monotonic() + LIMIT
        while not holds():
            assert time.monotonic() < deadline, f"there never was {what}"
            time.sleep(0.005)  # whoever asks without a pause takes the processor from those who answer

    def histories(self) -> list[History]:
        """The histories of all runs, those that continued as new ones along their chain."""
        found: list[History] = []
        for handle in self.handles:
            run_id: str | None = handle.run_id
            while run_id:
                history = self.client.get_workflow_handle(handle.id, run_id=run_id).history()
                found.append(history)
                run_id = successor(history)
        return found


def kinds(history: History) -> list[str]:
    """The types of a history's events, in short."""
    return [event["eventType"].removeprefix("EVENT_TYPE_") for event in history.events]


def successor(history: History) -> str | None:
    """The run that follows this one, if one does."""
    for key, value in history.events[-1].items():
        if key.endswith("EventAttributes"):
            run_id: str | None = value.get("newExecutionRunId")
            return run_id
    return None


def counts(history: History) -> Counter[str]:
    """How many events of each kind there are, workflow tasks aside."""
    return Counter(kind for kind in kinds(history) if not kind.startswith("WORKFLOW_TASK_"))


def described(error: BaseException | None) -> list[Any]:
    """A chain of failures as plain data: all that a program may look at, outermost first."""
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
