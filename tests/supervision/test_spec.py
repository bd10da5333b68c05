"""Child specs are validated before anything starts."""

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
def test_invalid_child_spec_fields_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Supervisor("one_for_one", [ChildSpec(**{"id": "a", "start": idle, **fields})])
    assert message in str(caught.value)


def test_supervisor_with_duplicate_child_ids_is_rejected() -> None:
    with pytest.raises(SpecError, match=r"duplicate child id 'a' \(children 0 and 2\)"):
        Supervisor("one_for_one", [ChildSpec("a", idle), ChildSpec("b", idle), ChildSpec("a", idle)])


def test_supervisor_child_that_is_no_child_spec_is_rejected() -> None:
    with pytest.raises(SpecError, match="must be a ChildSpec, not function"):
        Supervisor("one_for_one", [idle])  # type: ignore[list-item]


def test_invalid_supervisor_options_are_rejected() -> None:
    with pytest.raises(
        SpecError, match="strategy must be one of 'one_for_one', 'one_for_all', 'rest_for_one'"
    ):
        Supervisor("all_for_one", [])  # type: ignore[arg-type]
    for options in ({"max_restarts": -1}, {"max_restarts": 1.5}, {"window": 0}, {"window": float("inf")}):
        with pytest.raises(SpecError, match=r"max_restarts|window"):
            Intensity(**options)


def test_default_limits_of_a_child_spec_depend_on_its_type() -> None:
    worker, supervisor = ChildSpec("a", idle), ChildSpec("a", idle, type="supervisor")
    assert (worker.shutdown_limit, worker.start_limit) == (5.0, 30.0)
    assert (supervisor.shutdown_limit, supervisor.start_limit) == ("infinity", "infinity")


@on_both_loops
async def test_invalid_root_spec_is_rejected_by_start_tree(world: World) -> None:
    with pytest.raises(SpecError, match="restart must be one of"):
        await start_tree(ChildSpec("a", idle, "never"))  # type: ignore[arg-type]
