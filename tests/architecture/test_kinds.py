"""Every kind of event and command has a handler, a translation and an example (I8); every request an answer in both engines."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import PauseWorkflowExecutionRequest
from tests.specs import requests

from hourglass._contract.deployments import DescribeNamespace, LastSeen
from hourglass._contract.limits import AwaitBurst, ListLimits
from hourglass._contract.service import Request
from hourglass._contract.workflows import ExecuteWorkflow, ImportWorkflow, SignalWorkflow
from hourglass._embedded.api.requests import HANDLERS
from hourglass._evaluator import commands as cmd
from hourglass._evaluator import events as ev
from hourglass._evaluator import words as engine_words
from hourglass._evaluator.apply import APPLY
from hourglass._history.words import COMMAND_OF
from hourglass._temporal.activations import _COMMANDS
from hourglass._temporal.calls import sending
from hourglass._temporal.connection import CALLS

from . import source

# Events that are not applied to a run from the table, and the file that handles each instead.
BESIDE_THE_TABLE: dict[type[ev.Event], str] = {
    ev.PatchNoticed: "_evaluator/evaluator.py",  # before anything else in its activation
    ev.SeedChanged: "_evaluator/evaluator.py",
    ev.QueryReceived: "_evaluator/evaluator.py",  # comes alone and leaves no trace
    ev.RunEvicted: "_worker/lanes/evaluation.py",  # a matter of the cache, not of the run
}

examples: Any = importlib.import_module("temporal.examples")  # the translation's, in tests/temporal


def _kinds(module: Any, base: type) -> set[type]:
    return {
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, base) and thing is not base
    }


def test_lists_of_events_and_commands_are_complete() -> None:
    """`EVENTS` and `COMMANDS` name every class of their kind, once."""
    assert set(ev.EVENTS) == _kinds(ev, ev.Event), "a class of _evaluator/events.py wants a line in AnyEvent"
    assert len(ev.EVENTS) == len(set(ev.EVENTS))
    assert set(cmd.COMMANDS) == _kinds(cmd, cmd.Command), (
        "a class of _evaluator/commands.py wants a line in AnyCommand"
    )
    assert len(cmd.COMMANDS) == len(set(cmd.COMMANDS))
    assert set(cmd.TERMINAL) < set(cmd.COMMANDS)


def test_every_event_has_a_handler() -> None:
    """An event is applied from the table, or handled by the file that is declared for it: one of the two."""
    assert not set(APPLY) & set(BESIDE_THE_TABLE)
    handled = set(APPLY) | set(BESIDE_THE_TABLE)
    assert handled == set(ev.EVENTS), "an event wants a handler in APPLY of _evaluator/apply.py"
    for kind, place in BESIDE_THE_TABLE.items():
        assert kind.__name__ in source.names_in(source.module(place))


@pytest.mark.parametrize("kind", cmd.COMMANDS, ids=lambda kind: kind.__name__)
def test_every_command_has_a_translation(kind: type[cmd.Command]) -> None:
    """Each command can be sent to Temporal."""
    assert callable(_COMMANDS.get(kind)), (
        f"Core's message for {kind.__name__} is missing: _COMMANDS of _temporal/activations.py"
    )


@pytest.mark.parametrize("kind", ev.EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_has_an_example(kind: type[ev.Event]) -> None:
    """Each event has an example of the job that it is translated from."""
    assert any(type(event) is kind for event, _ in examples.EVENTS), (
        f"Core's job for {kind.__name__} wants an example: EVENTS of tests/temporal/examples.py"
    )


@pytest.mark.parametrize("kind", cmd.COMMANDS, ids=lambda kind: kind.__name__)
def test_every_command_has_an_example(kind: type[cmd.Command]) -> None:
    """Each command has an example of the message that it is translated to."""
    assert any(type(command) is kind for command, _ in examples.COMMANDS), (
        f"Core's message for {kind.__name__} wants an example: COMMANDS of tests/temporal/examples.py"
    )


@pytest.mark.parametrize("kind", ev.EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_is_produced_by_the_translation(kind: type[ev.Event]) -> None:
    """Each event is made from Core's messages somewhere in `_temporal`."""
    assert kind.__name__ in source.names_in(source.module("_temporal/activations.py")), (
        f"no job of Core's becomes {kind.__name__}: _JOBS of _temporal/activations.py"
    )


NAMED_WITH_THEIR_EVENT = {cmd.CancelTimer, cmd.RequestCancelActivity, cmd.CancelNexusOperation}
"""What takes another command back is told by the event of that one, which only a replay knows (`replay/_trace.py`)."""


def test_every_command_in_a_history_has_a_description() -> None:
    """What leads to an event is said in the same words as the event: replays compare the two."""
    told: set[type[cmd.Command]] = set()
    for kinds in COMMAND_OF.values():
        told.update(kinds if isinstance(kinds, tuple) else (kinds,))
    silent = told & set(cmd.COMMANDS) - set(engine_words._FACTS) - NAMED_WITH_THEIR_EVENT
    assert not silent, (
        f"{', '.join(kind.__name__ for kind in silent)} needs a line in _FACTS of _evaluator/words.py, with the words of "
        "its event in _history/words.py"
    )


# --- requests ---------------------------------------------------------------------------------------------------------

NOT_FOR_SERVERS: dict[type[Request[Any]], str] = {
    ExecuteWorkflow: "is a start and a wait: `perform` of `_temporal/connection.py`",
    ImportWorkflow: "takes many calls: `_temporal/importing.py`",
    AwaitBurst: "on a server limits are kept by workflows",
    ListLimits: "on a server limits are kept by workflows",
}
NOT_FOR_THE_EMBEDDED_ENGINE: dict[type[Request[Any]], str] = {
    DescribeNamespace: "is about a server",
    LastSeen: "is about a server",
}


def test_every_request_is_handled_by_both_engines() -> None:
    """Each request of the contract is an RPC, and has a handler in the embedded engine, or a reason why not."""
    assert set(CALLS) | set(NOT_FOR_SERVERS) == requests(), (
        "how does it become an RPC? A line in the table at the end of _temporal/calls.py or one of calls_….py, or in "
        "NOT_FOR_SERVERS of this file, with the reason"
    )
    assert set(HANDLERS) | set(NOT_FOR_THE_EMBEDDED_ENGINE) == requests(), (
        "how does the embedded engine answer it? A line in HANDLERS of _embedded/api/requests.py or in the table of one of "
        "its like, or in NOT_FOR_THE_EMBEDDED_ENGINE of this file, with the reason"
    )


def test_field_without_a_place_in_its_message_is_rejected() -> None:
    """A request that is translated by the names of its fields cannot lose one on the way to a server."""
    with pytest.raises(
        TypeError, match=r"PauseWorkflowExecutionRequest has no field for SignalWorkflow\.signal_name"
    ):
        sending({SignalWorkflow: PauseWorkflowExecutionRequest})
