"""Conversion of search form fields to a filter and a URL."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourglass._embedded.store.filters import parse
from hourglass._tools.web.finding import Search, filter_of

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_search_fields_are_combined_into_one_filter() -> None:
    search = Search(
        status=("FAILED", "TIMED_OUT"), type="Order", id="o-", within="1h", query="Amount > 1 OR Vip = true"
    )
    assert filter_of(search, NOW) == (
        "ExecutionStatus IN ('Failed', 'TimedOut') AND WorkflowType = 'Order' AND WorkflowId STARTS_WITH 'o-' "
        "AND StartTime >= '2026-01-31T11:00:00Z' AND (Amount > 1 OR Vip = true)"
    )
    assert filter_of(Search(), NOW) == ""


@given(st.text(max_size=30), st.text(max_size=30))
def test_arbitrary_search_text_stays_a_valid_filter(kind: str, prefix: str) -> None:
    query = filter_of(Search(type=kind, id=prefix), NOW)
    if query:
        parse(query)


@pytest.mark.parametrize("value", ["yesterday", "2026-13-01 25:00", "'; DROP", "2026-01-01T00:00:00Z OR 1=1"])
def test_invalid_search_time_raises_before_the_filter(value: str) -> None:
    with pytest.raises(ValueError, match=r"time|month|hour"):
        filter_of(Search(since=value), NOW)


def test_search_url_contains_all_fields_and_resets_the_page() -> None:
    search = Search(status=("RUNNING",), id="a b&c", page="ff")
    assert search.url() == "/workflows?status=RUNNING&id=a+b%26c"
    assert search.url(page="00") == "/workflows?status=RUNNING&id=a+b%26c&page=00"
    assert search.url(status=()) == "/workflows?id=a+b%26c"
    assert search.url(status=("RUNNING", "FAILED")) == "/workflows?status=RUNNING&status=FAILED&id=a+b%26c"
