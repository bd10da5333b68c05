"""Meaning of list filters: SQL compared with an evaluation in plain Python, for generated conditions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import cases
from tests.specs import made

from hourglass._embedded.store import filters as f
from hourglass._embedded.store.sqlite import visibility
from hourglass._embedded.transitions.run import Run
from hourglass._history import events as h
from hourglass.converter import Payload

from .filter_texts import combined, written

TYPES = {
    "K": "Keyword",
    "I": "Int",
    "D": "Double",
    "B": "Bool",
    "T": "Datetime",
    "L": "KeywordList",
    "X": "Text",
}
TIMES = [f"2024-01-0{day}T00:00:00Z" for day in range(1, 4)]
ROWS: dict[str, dict[str, Any]] = {
    "a": {"K": "eu", "I": 1, "D": 0.5, "B": True, "T": TIMES[0], "L": ["p", "q"], "X": "quick fox"},
    "b": {"K": "EU", "I": 2, "D": -0.5, "B": False, "T": TIMES[1], "L": ["P q"], "X": "Fox"},
    "c": {"K": "", "I": 0, "D": 2.0, "L": [], "X": "slow turtle"},
    "d": {"K": "us", "T": TIMES[2], "L": ["r"]},
    "e": {},
}

_KEYWORDS = st.sampled_from(["eu", "EU", "e", "", "us", "%", "_"])
_LITERALS: dict[str, st.SearchStrategy[Any]] = {
    "WorkflowId": st.sampled_from(["a", "B", "c", ""]),
    "K": _KEYWORDS,
    "I": st.one_of(st.integers(-1, 3), st.sampled_from([0.5, 1.0])),
    "D": st.one_of(st.integers(-1, 3), st.sampled_from([0.5, -0.5])),
    "B": st.booleans(),
    "T": st.sampled_from(TIMES),
    "L": st.sampled_from(["p", "P", "p q", "r", "x"]),
    "X": st.sampled_from(["fox", "FOX", "quick turtle", "slow-turtle", "fo"]),
}
_ORDERED = ["=", "!=", "<", "<=", ">", ">="]
_PREFIXED = [*_ORDERED, "STARTS_WITH", "NOT STARTS_WITH"]
_OPERATORS = {"WorkflowId": _PREFIXED, "K": _PREFIXED, "L": ["=", "!="], "X": ["=", "!="]}


def _leaves(name: str) -> st.SearchStrategy[f.Condition]:
    literals, named = _LITERALS[name], st.just(name)
    several = st.lists(literals, min_size=1, max_size=2).map(tuple)
    kinds: list[st.SearchStrategy[f.Condition]] = [
        st.builds(f.Comparison, named, st.sampled_from(_OPERATORS.get(name, _ORDERED)), literals),
        st.builds(f.Missing, named, st.booleans()),
    ]
    if name != "X":
        kinds.append(st.builds(f.Membership, named, several, st.booleans()))
    if name not in "BLX":
        kinds.append(st.builds(f.Between, named, literals, literals, st.booleans()))
    return st.one_of(kinds)


CONDITIONS = combined(st.sampled_from(sorted(_LITERALS)).flatmap(_leaves), 6)


# --- the same in plain Python: True, False, or None where a comparison is with what is missing ------------------------


def evaluate(condition: f.Condition, row: dict[str, Any]) -> bool | None:
    match condition:
        case f.Not(inner):
            return _not(evaluate(inner, row))
        case f.And(conditions):
            return _all([evaluate(condition, row) for condition in conditions])
        case f.Or(conditions):
            return _not(_all([_not(evaluate(condition, row)) for condition in conditions]))
        case f.Missing(name, negated):
            return (row.get(name) in (None, [])) is not negated
        case f.Membership(name, values, negated):
            found = _not(_all([_not(compare(name, "=", value, row)) for value in values]))
            return _not(found) if negated else found
        case f.Between(name, low, high, negated):
            within = _all([compare(name, ">=", low, row), compare(name, "<=", high, row)])
            return _not(within) if negated else within
        case f.Comparison(name, operator, value):
            return compare(name, operator, value, row)


def compare(name: str, operator: str, value: Any, row: dict[str, Any]) -> bool | None:
    actual: Any = row.get(name)
    if name == "L":
        return (value.lower() in [each.lower() for each in actual or []]) is (operator == "=")
    if name == "X":
        text = f" {(actual or '').lower()} "
        return any(f" {word.replace('-', ' ')} " in text for word in value.lower().split()) is (
            operator == "="
        )
    if actual is None:
        return None
    if name == "T":
        return compare("", operator, datetime.fromisoformat(value), {"": datetime.fromisoformat(actual)})
    match operator:
        case "STARTS_WITH" | "NOT STARTS_WITH":
            return bool(actual.lower().startswith(value.lower())) is (operator == "STARTS_WITH")
        case "=" | "!=":
            return bool(actual == value) is (operator == "=")
        case "<" | ">=":
            return bool(actual < value) is (operator == "<")
        case _:
            return bool(actual > value) is (operator == ">")


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _all(values: list[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


# --- both -------------------------------------------------------------------------------------------------------------


def _run(number: int, workflow_id: str, attributes: dict[str, Any]) -> Run:
    payloads = {
        name: Payload(msgspec.json.encode(value), "json/plain", {"type": TYPES[name].encode()})
        for name, value in attributes.items()
    }
    started = made(
        h.WorkflowExecutionStarted,
        workflow_id=workflow_id,
        workflow_type="W",
        task_queue="q",
        original_run_id=workflow_id,
        first_run_id=workflow_id,
    )
    start = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) * 10**9 - number
    return Run(run_id=workflow_id, started=started, start_ns=start, search_attributes=payloads)


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    """The rows as listed runs."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(visibility.SCHEMA)
    visibility.declare(connection, TYPES)
    visibility.write(connection, [_run(n, name, row) for n, (name, row) in enumerate(ROWS.items())])
    yield connection
    connection.close()


@settings(deadline=None, max_examples=cases(60, 1000))
@given(condition=CONDITIONS)
def test_sql_filter_matches_python_evaluation(condition: f.Condition, database: sqlite3.Connection) -> None:
    found = visibility.page(database, written(condition), b"", 10).workflows
    expected = {name for name, row in ROWS.items() if evaluate(condition, {"WorkflowId": name, **row})}
    assert {each.workflow_id for each in found} == expected
