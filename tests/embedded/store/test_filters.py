"""List filters: parsing, SQL, and rejected input."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import cases

from hourglass._embedded.store import filters as f
from hourglass._embedded.store.filters import parse, parse_duration, without_not
from hourglass._embedded.store.search_attributes import AttributeType, parse_time, words
from hourglass._embedded.store.sqlite.filter_sql import statement
from hourglass.errors import ServiceError

from .filter_texts import CONDITIONS, NAMES, TEXTS, literal, written

SCRAPS = st.lists(
    st.one_of(
        st.sampled_from(
            [*"(),=<'\"`\\;#-+.1", "AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "STARTS_WITH"]
        ),
        st.sampled_from(
            ["GROUP", "ORDER", "BY", "!=", "<=", "--", "/*", "*/", "1.5", "true", "e9", "0x", "'x'"]
        ),
        st.sampled_from(["WorkflowId", "Region", "Amount", "ExecutionStatus", "'Running'", "5", "'eu'"]),
        st.text(max_size=3),
    ),
    max_size=25,
).map(" ".join)


def test_and_binds_more_tightly_than_or() -> None:
    a, b, c = (f.Missing(name) for name in "abc")
    assert parse("a IS NULL OR b IS NULL AND NOT c IS NULL").condition == f.Or((a, f.And((b, f.Not(c)))))
    assert parse("(a IS NULL OR b IS NULL) AND c IS NULL").condition == f.And((f.Or((a, b)), c))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'it''s'", "it's"),
        (r"'it\'s'", "it's"),
        ('"it\'s"', "it's"),
        ('"say ""x"""', 'say "x"'),
        (r"'a\\b\nc\qd'", "a\\b\ncqd"),
        ("''", ""),
        ("- 3", -3),
        ("+1.5", 1.5),
        (".5e1", 5.0),
        ("1.", 1.0),
        ("99999999999999999999", 1e20),
        ("TRUE", True),
    ],
)
def test_filter_literals_are_parsed(text: str, value: f.Literal) -> None:
    condition = parse(f"x={text}").condition
    assert isinstance(condition, f.Comparison)
    assert repr(condition.value) == repr(value)


@settings(deadline=None, max_examples=cases(60, 1000))
@given(CONDITIONS)
def test_condition_round_trips_as_text(condition: f.Condition) -> None:
    assert repr_without_positions(parse(written(condition)).condition) == repr_without_positions(condition)


@settings(deadline=None, max_examples=cases(60, 1000))
@given(SCRAPS)
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    assert status(text) in ("OK", "INVALID_ARGUMENT")


@settings(deadline=None, max_examples=cases(60, 1000))
@given(NAMES, TEXTS)
def test_filter_names_and_values_are_bound_parameters(name: str, value: str) -> None:
    types = {name: AttributeType.KEYWORD, "plain": AttributeType.KEYWORD}
    if name == "WorkflowId":
        return
    filter_sql = statement(parse(f"`{name}` = {literal(value)}"), types)
    assert filter_sql.text == statement(parse("plain = 'x'"), types).text
    assert filter_sql.values == (name, value)


@settings(deadline=None, max_examples=cases(60, 1000))
@given(CONDITIONS)
def test_negations_are_moved_into_the_leaves(condition: f.Condition) -> None:
    moved = without_not(condition)
    assert "Not(" not in repr(moved)
    assert without_not(f.Not(f.Not(condition))) == moved
    assert without_not(without_not(f.Not(condition)), negate=True) == moved


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Region = ", "character 10 at the end: expected a value"),
        ("Region = eu", "character 10 near 'eu': expected a value: .* forget to quote"),
        ("Region = 'eu' Region", "character 15 near 'Region': expected AND, OR or the end"),
        ("Region ~ 'x'", "character 8 near \"~ 'x'\""),
        (
            "Region = 'x' AND Nope = 1",
            "invalid search attribute: Nope at character 18. Built-in attributes: WorkflowId, .*: Region",
        ),
        ("Region = 5", "Region of type Keyword at character 1: expected a quoted string"),
        ("ExecutionStatus = 'Done'", "one of Unspecified, Running, Completed, .*TimedOut"),
        ("StartTime > 'today'", "expected '2024-12-31T23:59:59Z'"),
        (
            "StartTime STARTS_WITH '2024'",
            "STARTS_WITH at character 1 is not supported .* StartTime of type Datetime",
        ),
        ("x = " + "1" * 400, "the number at character 5 is too large"),
        ("Region = '\ud800'", "the string at character 10 is not Unicode"),
        ("Region STARTS_WITH '" + "%" * 30000 + "'", "Region at character 1 is too long"),
        ("Region = 'x' LIMIT 3", "LIMIT at character 14 is not supported"),
        ("GROUP BY Region", "GROUP BY is supported for ExecutionStatus only, not for Region"),
    ],
)
def test_filter_error_names_position_and_alternatives(text: str, message: str) -> None:
    with pytest.raises(ServiceError, match=message) as caught:
        statement(parse(text), {"Region": AttributeType.KEYWORD})
    assert caught.value.status == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "x = 1" + ")" * 5000,
        "NOT " * 5000 + "x = 1",
        " AND ".join(["x = 1"] * 5000),
        f"x IN ({', '.join(['1'] * 40000)})",
    ],
)
def test_huge_filters_are_rejected(text: str) -> None:
    """Parsing such a filter could exhaust the stack."""
    with pytest.raises(ServiceError, match=r"more than \d+ (nested levels|conditions|values)"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1h30m", 5400 * 10**9),
        ("1d2h", 93600 * 10**9),
        ("1.5s", 1_500_000_000),
        ("-1s", -(10**9)),
        (".5ms", 500_000),
        ("1µs2ns", 1002),
        ("00:01:01", 61 * 10**9),
        ("100:00:00.5", 360_000 * 10**9 + 500_000_000),
        ("12", 12),
    ],
)
def test_durations_are_parsed(text: str, nanoseconds: int) -> None:
    """A duration has Go's form with days, or is a clock time or a number of nanoseconds."""
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    "text", ["", "x", "1", "1w", "1H", "1h 2m", "00:61:00", "1:2", "9" * 30, "300000d", "s"]
)
def test_invalid_durations_are_rejected(text: str) -> None:
    """A bare number is in nanoseconds."""
    assert parse_duration(text) == (1 if text == "1" else None)


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00.1234567Z", 123_456),
        ("1969-12-31T23:59:59.5Z", -500_000),
        ("1970-01-01", None),
        ("1970-01-01T00:00:00", None),
        ("1970-01-01T00:00:00+0100", None),
        ("1970-02-30T00:00:00Z", None),
        ("1970-01-01T00:00:00Z ", None),
    ],
)
def test_only_rfc_3339_times_with_an_offset_are_accepted(text: str, microseconds: int | None) -> None:
    assert parse_time(text) == microseconds


def test_text_is_normalized_into_words() -> None:
    assert words("The Quick_brown, l'été 3.14") == " the quick brown l ete 3 14 "
    assert words("?!") == "  "


def status(text: str) -> str:
    """Return "OK", or the status with which a filter is rejected."""
    try:
        statement(parse(text), {"Region": AttributeType.KEYWORD, "Amount": AttributeType.INT})
    except ServiceError as error:
        return error.status
    return "OK"


def repr_without_positions(condition: object) -> str:
    """Return a condition as a str that distinguishes 1 from True and 1.0, without positions."""
    return re.sub(r", position=\d+", "", repr(condition))
