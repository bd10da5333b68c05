"""A fleet of runs for tests of list filters: all statuses, several types, typed search attributes.

The same fleet is started on each engine. Workflow ids and attributes are equal, run ids and times are not.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hourglass import workflow
from hourglass.client import Client, WorkflowHandle
from hourglass.converter import SearchAttributeKey
from hourglass.errors import ApplicationError, WorkflowFailedError
from hourglass.worker import Worker

QUEUE = "fleet"
IDLE_QUEUE = "fleet-idle"
ATTRIBUTES = {
    "Region": "Keyword",
    "Owner": "Keyword",
    "Tags": "KeywordList",
    "Amount": "Int",
    "Score": "Double",
    "Urgent": "Bool",
    "Due": "Datetime",
    "Note": "Text",
}
LIMIT = 30.0

_NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)
_HALF = timedelta(seconds=0.5)
_EAST = timezone(timedelta(hours=2))

Spec = tuple[str, Any, tuple[Any, ...], dict[str, Any]]


@workflow.defn(name="Order")
def order(result: str) -> str:
    return result


@workflow.defn(name="order.refund")
def refund() -> str:
    raise ApplicationError("refused")


@workflow.defn(name="Waiting")
def waiting() -> str:
    return str(workflow.Channel("go", str).receive())


@workflow.defn(name="Chain")
def chain(left: int) -> int:
    if left:
        return workflow.continue_as_new(left - 1)
    return left


# Workflow id, workflow, arguments, search attributes. These runs complete by themselves, one after another.
ENDING: tuple[Spec, ...] = (
    ("order-1", order, ("a",), {"Region": "eu", "Amount": 1, "Urgent": True, "Tags": ["red"]}),
    ("order-2", order, ("b",), {"Region": "EU", "Amount": 2, "Urgent": False, "Tags": ["red", "green"]}),
    ("order-3", order, ("c",), {"Region": "us", "Amount": -3, "Score": 1.5, "Tags": ["Red"]}),
    ("order-10", order, ("d",), {"Region": "us-east", "Amount": 10, "Score": -0.5, "Owner": "ann"}),
    ("Order-11", order, ("e",), {"Region": "", "Amount": 0, "Score": 2.0, "Owner": "Ann"}),
    ("it's", order, ("f",), {"Region": "o'neil", "Owner": 'say "x"', "Note": "crème brûlée, l'été"}),
    ("100%_sure", order, ("g",), {"Region": "50%_off!", "Owner": "back\\slash"}),
    ("100 sure", order, ("h",), {"Region": "50xyoff", "Owner": "ünïcode"}),
    ("refund-1", refund, (), {"Region": "eu", "Due": _NEW_YEAR}),
    ("refund-2", refund, (), {"Region": "us", "Due": _NEW_YEAR + _HALF, "Note": "the Quick brown fox"}),
    ("chain", chain, (1,), {"Region": "eu", "Amount": 7}),
)
CANCELLED: tuple[Spec, ...] = (
    ("stop-1", waiting, (), {"Due": datetime(2024, 6, 30, 12, tzinfo=_EAST), "Note": "quick, red; fox"}),
    ("stop-2", waiting, (), {"Tags": ["green grass", "Café"], "Amount": 100}),
)
LATE: tuple[Spec, ...] = (("late-1", waiting, (), {"Score": 3.25, "Urgent": True}),)
OPEN: tuple[Spec, ...] = (
    ("open-1", waiting, (), {"Tags": ["red-hot", "blue"], "Urgent": False, "Note": "slow turtle"}),
    ("open-2", waiting, (), {"Tags": [], "Owner": "ann", "Amount": 5}),
    ("open-3", waiting, (), {}),
)
# Runs on a queue without a worker.
UNTOUCHED: tuple[Spec, ...] = (
    ("idle-1", waiting, (), {"Region": "eu", "Score": 0.0}),
    ("idle-2", order, ("z",), {"Region": "ap", "Due": datetime(2025, 3, 1, 0, 0, 0, 123456, UTC)}),
    ("delayed", waiting, (), {"Amount": 3, "Tags": ["x", "y", "z"]}),
)
TERMINATED: tuple[Spec, ...] = (
    ("killed-1", waiting, (), {"Region": "eu", "Note": "fox"}),
    ("killed-2", order, ("k",), {"Amount": 2, "Note": "brown bear"}),
)

COUNT = 1 + sum(map(len, (ENDING, CANCELLED, LATE, OPEN, UNTOUCHED, TERMINATED)))
"""The number of runs; the chain has two."""


def start_fleet(client: Client) -> None:
    """Start the fleet and bring each run into its status, in a fixed order."""
    for spec in TERMINATED:
        _start(client, spec, IDLE_QUEUE).terminate("enough")
    for spec in UNTOUCHED:
        _start(client, spec, IDLE_QUEUE, **({"start_delay": 3600.0} if spec[0] == "delayed" else {}))
    for spec in LATE:
        _wait(_start(client, spec, IDLE_QUEUE, run_timeout=1.0))
    with Worker(client, QUEUE, workflows=[order, refund, waiting, chain]):
        for spec in ENDING:
            _wait(_start(client, spec, QUEUE))
        for spec in OPEN:
            _start(client, spec, QUEUE, memo={"colour": spec[0]})
        for spec in CANCELLED:
            handle = _start(client, spec, QUEUE)
            handle.cancel()
            _wait(handle)


def _start(client: Client, spec: Spec, queue: str, **options: Any) -> WorkflowHandle[Any]:
    workflow_id, definition, arguments, attributes = spec
    typed = [
        SearchAttributeKey[Any](name, ATTRIBUTES[name]).value_set(value) for name, value in attributes.items()
    ]
    handle: WorkflowHandle[Any] = client.start_workflow(
        definition, *arguments, id=workflow_id, task_queue=queue, search_attributes=typed, **options
    )
    return handle


def _wait(handle: WorkflowHandle[Any]) -> None:
    try:
        handle.result(timeout=LIMIT)
    except WorkflowFailedError:
        return
