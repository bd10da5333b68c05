"""Dynamic workflows and activities: valid definitions, their arguments, and precedence of named definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from hourglass import Client, Worker, activity, workflow
from hourglass._worker.resolver import Resolver
from hourglass.activity import RawPayload
from hourglass.converter import Payload, default_converter
from hourglass.errors import (
    DecodeError,
    DefinitionError,
    UnknownTypeError,
    UsageError,
)
from hourglass.testing import Environment


@dataclass
class Order:
    id: str
    cents: int


@activity.defn(dynamic=True)
def any_activity(arguments: Sequence[RawPayload]) -> str:
    """Return the activity type and the arguments."""
    return f"{activity.info().activity_type}{[argument.decode() for argument in arguments]}"


@activity.defn(dynamic=True)
async def any_coroutine(arguments: list[RawPayload]) -> int:
    """Count its arguments, on the activity loop."""
    return len(arguments)


@workflow.defn(dynamic=True)
def any_workflow(arguments: Sequence[workflow.RawPayload]) -> object:
    """Decode one order, or forward the raw arguments."""
    called = workflow.info().workflow_type
    if called == "orders":
        order = arguments[0].decode(Order)
        return [called, order.id, order.cents]
    if called == "forwards":
        return workflow.execute_activity("step", *arguments)
    return called


@workflow.defn
def plain(name: str) -> str:
    return f"plain {name}"


# --- running -----------------------------------------------------------------------------------------------------------


def test_dynamic_workflow_runs_for_any_type_without_its_own_definition() -> None:
    with Environment(workflows=[any_workflow, plain]) as env:
        assert env.execute_workflow("orders", Order("o-1", 7)) == ["orders", "o-1", 7]
        assert env.execute_workflow("whatever") == "whatever"
        assert env.execute_workflow("plain", "x") == "plain x"


def test_async_activity_can_be_dynamic() -> None:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[any_workflow], activities=[any_coroutine]),
    ):
        assert client.execute_workflow("forwards", 1, 2, 3) == 3


def test_method_of_an_instance_can_be_a_dynamic_activity() -> None:
    class Shop:
        @activity.defn(dynamic=True)
        def anything(self, arguments: Sequence[RawPayload]) -> str:
            return f"shop {activity.info().activity_type} {len(arguments)}"

    with Client.connect("local:") as client, Worker(client, workflows=[any_workflow], activities=[Shop()]):
        assert client.execute_workflow("forwards", 1) == "shop step 1"


def test_raw_argument_of_another_type_raises_decode_error() -> None:
    raw = RawPayload(default_converter.encode("text"), default_converter)
    with pytest.raises(DecodeError, match="expected int, got str"):
        raw.decode(int)
    assert raw.decode(str) == "text"
    assert default_converter.encode(raw) is raw.payload
    assert "text" not in repr(raw)


def test_named_definitions_take_precedence_over_dynamic_ones() -> None:
    @activity.defn
    def own() -> str:
        return "own"

    @workflow.defn
    def child() -> str:
        return "child"

    @workflow.defn
    def parent() -> list[object]:
        return [child(), own(), workflow.execute_activity("other")]

    with Environment(workflows=[any_workflow], activities=[any_activity]) as env:
        assert env.execute_workflow(parent) == ["child", "own", "other[]"]


# --- what is refused ----------------------------------------------------------------------------------------------------


def none() -> None: ...
def two(a: Sequence[RawPayload], b: int) -> None: ...
def rest(*arguments: RawPayload) -> None: ...
def wrong(arguments: Sequence[int]) -> None: ...
def a_text(arguments: str) -> None: ...
def a_dict(arguments: dict[str, RawPayload]) -> None: ...
def optional(arguments: Sequence[RawPayload], more: int = 1) -> None: ...


@pytest.mark.parametrize("fn", [none, two, rest, wrong, a_text, a_dict, optional])
@pytest.mark.parametrize("define", [workflow.defn(dynamic=True), activity.defn(dynamic=True)])
def test_dynamic_definition_with_a_wrong_signature_is_rejected(
    define: Callable[..., Any], fn: Callable[..., Any]
) -> None:
    with pytest.raises(DefinitionError, match=r"must have one parameter, a Sequence\[RawPayload\]"):
        define(fn)


def bare(arguments): ...  # type: ignore[no-untyped-def]
def a_list(arguments: list[RawPayload]) -> None: ...
def any_sequence(arguments: Sequence[Any]) -> None: ...


@pytest.mark.parametrize("fn", [bare, a_list, any_sequence])
def test_dynamic_definition_with_loose_annotations_is_accepted(fn: Callable[..., Any]) -> None:
    assert workflow.defn(dynamic=True)(fn).__hourglass_workflow__.dynamic
    assert activity.defn(dynamic=True)(fn).__hourglass_activity__.dynamic


def test_dynamic_definition_with_a_name_or_options_is_rejected() -> None:
    with pytest.raises(DefinitionError, match="must not have a name"):
        workflow.defn(dynamic=True, name="x")(a_list)
    with pytest.raises(DefinitionError, match="remove the name and the options"):
        activity.defn(dynamic=True, name="x")(a_list)
    with pytest.raises(DefinitionError, match="remove the name and the options"):
        activity.defn(dynamic=True, start_to_close_timeout=5)(a_list)


def test_second_dynamic_definition_is_rejected() -> None:
    @workflow.defn(dynamic=True)
    def another(arguments: list[RawPayload]) -> None: ...

    with pytest.raises(DefinitionError, match=r"two dynamic workflows: .*any_workflow.* and .*another"):
        Resolver(workflows=[any_workflow, another])
    with pytest.raises(DefinitionError, match="two dynamic activities"):
        Resolver(activities=[any_activity, any_coroutine])
    assert Resolver(workflows=[any_workflow, any_workflow]).workflow("x").dynamic


def test_dynamic_definition_cannot_be_called_directly() -> None:
    @workflow.defn
    def calls_it() -> None:
        any_activity([])

    with Environment(workflows=[any_workflow, calls_it], activities=[any_activity]) as env:
        with pytest.raises(UsageError, match="handles any type: pass the type's name"):
            env.execute_workflow(any_workflow, [])
        with pytest.raises(Exception, match="is dynamic: it has no type of its own"):
            env.execute_workflow(calls_it)
    with pytest.raises(UsageError, match="is dynamic"):
        any_workflow([])
    assert any_workflow.fn is not None


def test_resolver_without_dynamic_definitions_rejects_unknown_names() -> None:
    resolver = Resolver(workflows=[plain])
    with pytest.raises(UnknownTypeError, match="registered workflows: plain"):
        resolver.workflow("other")
    assert Resolver(activities=[any_activity]).known_activity("other") is not None
    assert Resolver(activities=[any_activity], modules=["json"]).known_activity("other") is None


def test_dynamic_activity_receives_arguments_of_unknown_encoding_undecoded() -> None:
    raw = RawPayload(Payload(b"\x00\x01", "binary/own"), default_converter)
    assert (
        any_activity.__hourglass_activity__.arguments(default_converter, (raw.payload,))[0][0].payload
        is raw.payload
    )
