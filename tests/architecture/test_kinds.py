"""Every kind of event and command has a handler, a translation and an example (I8); both engines handle every request."""

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
from hourglass._temporal.calls import nothing, sending
from hourglass._temporal.connection import CALLS

from . import source

# Events that are not in the table of handlers, and the file that handles each instead.
HANDLED_ELSEWHERE: dict[type[ev.Event], str] = {
    ev.PatchNoticed: "_evaluator/evaluator.py",  # before anything else in its activation
    ev.SeedChanged: "_evaluator/evaluator.py",
    ev.QueryReceived: "_evaluator/evaluator.py",  # comes alone and leaves no trace
    ev.RunEvicted: "_worker/lanes/evaluation.py",  # concerns the cache, not the run
}

examples: Any = importlib.import_module("temporal.examples")  # in tests/temporal


def _kinds(module: Any, base: type) -> set[type]:
    """Return the classes of a module that are derived from a class, without common base classes."""
    classes = {
        thing for thing in vars(module).values() if isinstance(thing, type) and issubclass(thing, base)
    }
    return {kind for kind in classes if not any(kind in other.__bases__ for other in classes)}


def test_event_and_command_lists_contain_every_class_once() -> None:
    assert set(ev.EVENTS) == _kinds(ev, ev.Event), "add each class of _evaluator/events.py to AnyEvent"
    assert len(ev.EVENTS) == len(set(ev.EVENTS))
    assert set(cmd.COMMANDS) == _kinds(cmd, cmd.Command), (
        "add each class of _evaluator/commands.py to AnyCommand"
    )
    assert len(cmd.COMMANDS) == len(set(cmd.COMMANDS))
    assert set(cmd.TERMINAL) < set(cmd.COMMANDS)


def test_every_event_kind_has_one_handler() -> None:
    assert not set(APPLY) & set(HANDLED_ELSEWHERE)
    handled = set(APPLY) | set(HANDLED_ELSEWHERE)
    assert handled == set(ev.EVENTS), "add a handler for each event to APPLY of _evaluator/apply.py"
    for kind, place in HANDLED_ELSEWHERE.items():
        assert kind.__name__ in source.names_in(source.module(place))


@pytest.mark.parametrize("kind", cmd.COMMANDS, ids=lambda kind: kind.__name__)
def test_every_command_kind_has_a_message_of_core(kind: type[cmd.Command]) -> None:
    assert callable(_COMMANDS.get(kind)), (
        f"Core's message for {kind.__name__} is missing: _COMMANDS of _temporal/activations.py"
    )


@pytest.mark.parametrize("kind", ev.EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_kind_has_a_translation_example(kind: type[ev.Event]) -> None:
    assert any(type(event) is kind for event, _ in examples.EVENTS), (
        f"add an example of Core's job for {kind.__name__} to EVENTS of tests/temporal/examples.py"
    )


@pytest.mark.parametrize("kind", cmd.COMMANDS, ids=lambda kind: kind.__name__)
def test_every_command_kind_has_a_translation_example(kind: type[cmd.Command]) -> None:
    assert any(type(command) is kind for command, _ in examples.COMMANDS), (
        f"add an example of Core's message for {kind.__name__} to COMMANDS of tests/temporal/examples.py"
    )


@pytest.mark.parametrize("kind", ev.EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_kind_is_translated_from_a_job_of_core(kind: type[ev.Event]) -> None:
    assert kind.__name__ in source.names_in(source.module("_temporal/activations.py")), (
        f"no job of Core's becomes {kind.__name__}: _JOBS of _temporal/activations.py"
    )


DESCRIBED_BY_A_REPLAY = {cmd.CancelTimer, cmd.RequestCancelActivity, cmd.CancelNexusOperation}
"""Commands that cancel another are described by the event of that one, which only a replay knows (`replay/_trace.py`)."""


def test_every_command_in_a_history_has_a_description() -> None:
    """Replays compare the descriptions of commands and events, so both use the same words."""
    recorded: set[type[cmd.Command]] = set()
    for kinds in COMMAND_OF.values():
        recorded.update(kinds if isinstance(kinds, tuple) else (kinds,))
    undescribed = recorded & set(cmd.COMMANDS) - set(engine_words._FACTS) - DESCRIBED_BY_A_REPLAY
    assert not undescribed, (
        f"{', '.join(kind.__name__ for kind in undescribed)} needs a line in _FACTS of _evaluator/words.py, with the words of "
        "its event in _history/words.py"
    )


# --- requests ---------------------------------------------------------------------------------------------------------

NOT_FOR_SERVERS: dict[type[Request[Any]], str] = {
    ExecuteWorkflow: "combines two requests: `perform` of `_temporal/connection.py`",
    ImportWorkflow: "takes many calls: `_temporal/importing.py`",
    AwaitBurst: "on a server limits are kept by workflows",
    ListLimits: "on a server limits are kept by workflows",
}
NOT_FOR_THE_EMBEDDED_ENGINE: dict[type[Request[Any]], str] = {
    DescribeNamespace: "is about a server",
    LastSeen: "is about a server",
}


def test_every_request_is_handled_by_both_engines() -> None:
    assert set(CALLS) | set(NOT_FOR_SERVERS) == requests(), (
        "add each request to the table at the end of _temporal/calls.py or one of calls_….py, or with the "
        "reason to NOT_FOR_SERVERS of this file"
    )
    assert set(HANDLERS) | set(NOT_FOR_THE_EMBEDDED_ENGINE) == requests(), (
        "add a handler of each request to HANDLERS of _embedded/api/requests.py or a similar table of that package, or the "
        "request with the reason to NOT_FOR_THE_EMBEDDED_ENGINE of this file"
    )


def test_request_field_that_its_rpc_message_lacks_is_rejected() -> None:
    with pytest.raises(
        TypeError, match=r"PauseWorkflowExecutionRequest has no field for SignalWorkflow\.signal_name"
    ):
        sending({SignalWorkflow: (PauseWorkflowExecutionRequest, nothing)})
