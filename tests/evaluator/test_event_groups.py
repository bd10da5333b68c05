"""Event groups: which commands are of which groups, the same as under Temporal's own instance; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from tests.aio.porting import ported_module

from hourglass import workflow
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._temporal.activations import CommandDefaults, completion_to_proto
from hourglass.errors import NotInWorkflowError, UsageError

from . import grouped_coroutines
from .driver import Driver
from .official import Official

OURS = ported_module(grouped_coroutines.__file__, "tests.evaluator.grouped_ported").Grouped


def markers(completion: WorkflowActivationCompletion) -> list[tuple[str | None, list[Any]]]:
    """The commands of an activation by their kind, each with its groups."""
    assert completion.HasField("successful"), completion
    return [
        (each.WhichOneof("variant"), [str(group) for group in each.event_group_markers])
        for each in completion.successful.commands
    ]


def test_event_groups_of_coroutines_match_temporalio() -> None:
    """Each command of a workflow has the same groups, in the same order, as under temporalio."""
    ours, theirs = Driver(OURS), Official(grouped_coroutines.Grouped, 7, counting=False)
    activations: list[tuple[e.AnyEvent, ...]] = [
        (ours.started,),
        (e.TimerFired(1),),
        (e.TimerFired(2),),
        (e.ActivityCompleted(2, None),),
        (e.ChildStarted(1, "r"),),
        (e.ActivityCompleted(3, None, is_local=True),),
        (e.ExternalSignalResolved(1),),
        (e.ExternalCancelResolved(1),),
    ]
    seen: list[str | None] = []
    try:
        for events in activations:
            activation = ours.activation(*events)
            completion = ours.deliver(activation)
            expected = markers(theirs.complete(activation))
            own = completion_to_proto(completion, CommandDefaults("default", "default"))
            assert markers(WorkflowActivationCompletion.FromString(own)) == expected
            seen += [kind for kind, groups in expected if groups]
    finally:
        theirs.evict()
    assert ours.terminal is not None
    assert seen[-1] == "continue_as_new_workflow_execution"
    assert len(seen) == 17


@workflow.defn
def in_fibers() -> None:
    """Asks for things in blocks, in fibers that are begun there, and outside."""
    order, billing = workflow.create_event_group("order"), workflow.create_event_group("billing")

    def inner() -> None:
        with billing.scope():
            workflow.start_activity("inner")

    with order.scope():
        inherits = workflow.spawn(inner)
        slow = workflow.start_activity("slow")
    workflow.start_activity("outside")
    inherits.result()
    slow.cancel()
    workflow.start_activity("direct", event_groups=[billing, order, billing])
    workflow.upsert_memo({"a": 1}, event_groups=[billing])
    workflow.upsert_search_attributes({"Region": "eu"}, event_groups=[billing])
    workflow.patched("new", event_groups=[billing])
    workflow.sleep(1, event_groups=[billing])
    workflow.wait_condition(lambda: False, 1, event_groups=[order])


def grouped(commands: tuple[c.Command, ...]) -> list[tuple[str, list[str]]]:
    """Commands by what they ask for, with the ids of their groups."""
    return [
        (getattr(each, "activity_type", type(each).__name__), [group.id for group in each.event_groups])
        for each in commands
    ]


def test_fibers_inherit_the_groups_of_their_block() -> None:
    """A spawned function has the groups of the block that started it; a command that takes back another has the groups of
    that one.
    """
    d = Driver(in_fibers)
    assert grouped(d.begin()) == [
        ("slow", ["order"]),
        ("outside", []),
        ("inner", ["order", "billing"]),
        ("direct", ["billing", "order"]),
        ("UpsertMemo", ["billing"]),
        ("UpsertSearchAttributes", ["billing"]),
        ("SetPatchMarker", ["billing"]),
        ("StartTimer", ["billing"]),
        ("RequestCancelActivity", ["order"]),
    ]
    assert grouped(d.send(e.TimerFired(1))) == [("StartTimer", ["order"])]


@workflow.defn
def in_a_handler() -> None:
    """Waits in a block, with a handler that was made there."""
    order = workflow.create_event_group("order")
    with order.scope():

        def on_ping() -> None:
            workflow.start_activity("handled")

        workflow.set_signal_handler("ping", on_ping)
        workflow.sleep(10)


def test_handlers_do_not_inherit_groups() -> None:
    """A handler does not have the groups of the block that registered it."""
    d = Driver(in_a_handler)
    assert grouped(d.begin()) == [("StartTimer", ["order"])]
    assert grouped(d.send(e.SignalReceived("ping", ()))) == [("handled", [])]


@workflow.defn
def backs_off() -> None:
    """A local activity that waits long for its next attempt."""
    with workflow.create_event_group("order").scope():
        workflow.execute_local_activity("flaky")


def test_retry_of_a_local_activity_keeps_its_groups() -> None:
    """Also after a long back-off."""
    d = Driver(backs_off)
    assert grouped(d.begin()) == [("flaky", ["order"])]
    d.send(e.ActivityBackedOff(1, is_local=True, attempt=2, backoff=60.0, original_schedule_time_ns=1))
    assert grouped(d.send(e.TimerFired(1))) == [("flaky", ["order"])]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: workflow.create_event_group(""), "must not be empty"),
        (lambda: workflow.create_event_group(7), "must be a str"),  # type: ignore[arg-type]
        (lambda: workflow.create_event_group("a", label=""), "pass None for"),
        (lambda: workflow.start_activity("a", event_groups=["order"]), "create_event_group, not str"),  # type: ignore[list-item]
        (lambda: workflow.start_activity("a", event_groups="order"), "must be a list"),  # type: ignore[arg-type]
        (lambda: workflow.continue_as_new(event_groups=[None]), "not NoneType"),  # type: ignore[list-item]
        (lambda: workflow.execute_child_workflow("c", event_groups=7), "must be a list"),  # type: ignore[arg-type]
    ],
)
def test_invalid_groups_are_rejected(make: Any, words: str) -> None:
    """A wrong id, label or group raises an error at the call."""
    said: list[str] = []

    @workflow.defn
    def wrong() -> None:
        try:
            make()
        except UsageError as error:
            said.append(str(error))

    Driver(wrong).begin()
    assert words in said[0]


def test_groups_need_a_workflow() -> None:
    """Outside a workflow they raise an error."""
    with pytest.raises(NotInWorkflowError):
        workflow.create_event_group("order")
