"""Event groups: the groups of each command, equal to temporalio's, and invalid groups."""

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
from .driver import Driver, error_in_workflow
from .official import Official

OURS = ported_module(grouped_coroutines.__file__, "tests.evaluator.grouped_ported").Grouped


def groups_by_kind(completion: WorkflowActivationCompletion) -> list[tuple[str | None, list[Any]]]:
    """Return the kind and the groups of each command."""
    assert completion.HasField("successful"), completion
    return [
        (command.WhichOneof("variant"), [str(group) for group in command.event_group_markers])
        for command in completion.successful.commands
    ]


def test_event_groups_of_coroutines_match_temporalio() -> None:
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
            expected = groups_by_kind(theirs.complete(activation))
            own = completion_to_proto(completion, CommandDefaults("default", "default"))
            assert groups_by_kind(WorkflowActivationCompletion.FromString(own)) == expected
            seen += [kind for kind, groups in expected if groups]
    finally:
        theirs.evict()
    assert ours.terminal is not None
    assert seen[-1] == "continue_as_new_workflow_execution"
    assert len(seen) == 17


@workflow.defn
def groups_in_fibers() -> None:
    """Issues commands in and outside of blocks, also in fibers started in a block."""
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


def groups_by_command(commands: tuple[c.Command, ...]) -> list[tuple[str, list[str]]]:
    """Return the activity type or class of each command with the ids of its groups."""
    return [
        (
            getattr(command, "activity_type", type(command).__name__),
            [group.id for group in command.event_groups],
        )
        for command in commands
    ]


def test_spawned_fiber_inherits_the_event_groups_of_its_block() -> None:
    """A command that cancels another has the groups of the cancelled one."""
    d = Driver(groups_in_fibers)
    assert groups_by_command(d.begin()) == [
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
    assert groups_by_command(d.send(e.TimerFired(1))) == [("StartTimer", ["order"])]


@workflow.defn
def handler_in_a_block() -> None:
    order = workflow.create_event_group("order")
    with order.scope():

        def on_ping() -> None:
            workflow.start_activity("handled")

        workflow.set_signal_handler("ping", on_ping)
        workflow.sleep(10)


def test_handler_does_not_inherit_event_groups_from_its_registration() -> None:
    d = Driver(handler_in_a_block)
    assert groups_by_command(d.begin()) == [("StartTimer", ["order"])]
    assert groups_by_command(d.send(e.SignalReceived("ping", ()))) == [("handled", [])]


@workflow.defn
def flaky_local_activity() -> None:
    with workflow.create_event_group("order").scope():
        workflow.execute_local_activity("flaky")


def test_local_activity_keeps_its_event_groups_after_a_long_backoff() -> None:
    d = Driver(flaky_local_activity)
    assert groups_by_command(d.begin()) == [("flaky", ["order"])]
    d.send(e.ActivityBackedOff(1, is_local=True, attempt=2, backoff=60.0, original_schedule_time_ns=1))
    assert groups_by_command(d.send(e.TimerFired(1))) == [("flaky", ["order"])]


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
def test_invalid_event_groups_are_rejected(make: Any, words: str) -> None:
    error = error_in_workflow(make)
    assert isinstance(error, UsageError)
    assert words in str(error)


def test_event_groups_cannot_be_created_outside_a_workflow() -> None:
    with pytest.raises(NotInWorkflowError):
        workflow.create_event_group("order")
