"""A child spec is data, checked before anything starts, with a message that says what to mend."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass._supervision import ChildSpec, Context, SpecError, Supervisor, start_tree
from hourglass._supervision.policy import Intensity

from .world import World, on_both_loops


async def idle(context: Context) -> None:
    await context.started()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": ""}, "id must be a non-empty str without '/'"),
        ({"id": "a/b"}, "without '/', not 'a/b'"),
        ({"id": 7}, "id must be a str, not int"),
        ({"start": 3}, "child 'a': start must be a callable that takes a context, not int"),
        (
            {"restart": "sometimes"},
            "restart must be one of 'permanent', 'transient', 'temporary', not 'sometimes'",
        ),
        ({"type": "thing"}, "type must be one of 'worker', 'supervisor', not 'thing'"),
        ({"shutdown": -1}, "shutdown must be seconds, 'brutal' or 'infinity', not -1"),
        ({"shutdown": "soon"}, "shutdown must be seconds, 'brutal' or 'infinity', not 'soon'"),
        ({"shutdown": True}, "not True"),
        ({"shutdown": float("nan")}, "not nan"),
        ({"start_timeout": "brutal"}, "start_timeout must be seconds or 'infinity', not 'brutal'"),
        ({"backoff": 1.0}, "backoff must be (first, maximum) in seconds with 0 < first <= maximum, not 1.0"),
        ({"backoff": (2.0, 1.0)}, "0 < first <= maximum"),
        ({"backoff": (0, 1)}, "0 < first <= maximum"),
    ],
)
def test_invalid_fields_are_rejected(fields: dict[str, Any], message: str) -> None:
    """Each bad field is refused by name, with what was found and what is expected."""
    with pytest.raises(SpecError) as caught:
        Supervisor("one_for_one", [ChildSpec(**{"id": "a", "start": idle, **fields})])
    assert message in str(caught.value)


def test_duplicate_child_ids_are_rejected() -> None:
    """Two children of one id are refused, and both places are named."""
    with pytest.raises(SpecError, match="duplicate child id 'a': children 0 and 2"):
        Supervisor("one_for_one", [ChildSpec("a", idle), ChildSpec("b", idle), ChildSpec("a", idle)])


def test_object_that_is_no_spec_is_rejected() -> None:
    """A child must be a ChildSpec."""
    with pytest.raises(SpecError, match="must be a ChildSpec, not function"):
        Supervisor("one_for_one", [idle])  # type: ignore[list-item]


def test_invalid_supervisor_options_are_rejected() -> None:
    """An unknown strategy and a senseless intensity are refused."""
    with pytest.raises(
        SpecError, match="strategy must be one of 'one_for_one', 'one_for_all', 'rest_for_one'"
    ):
        Supervisor("all_for_one", [])  # type: ignore[arg-type]
    for options in ({"max_restarts": -1}, {"max_restarts": 1.5}, {"window": 0}, {"window": float("inf")}):
        with pytest.raises(SpecError, match=r"max_restarts|window"):
            Intensity(**options)


def test_defaults_depend_on_the_type() -> None:
    """A worker is stopped and started within limits; a supervisor has the time that its children need."""
    worker, supervisor = ChildSpec("a", idle), ChildSpec("a", idle, type="supervisor")
    assert (worker.shutdown_limit, worker.start_limit) == (5.0, 30.0)
    assert (supervisor.shutdown_limit, supervisor.start_limit) == ("infinity", "infinity")


@on_both_loops
async def test_root_spec_is_checked(world: World) -> None:
    """Starting a tree checks its root before anything runs."""
    with pytest.raises(SpecError, match="restart must be one of"):
        await start_tree(ChildSpec("a", idle, "never"))  # type: ignore[arg-type]
