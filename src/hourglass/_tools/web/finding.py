"""The conversion of form fields to a filter, and of a filter to a page of the list. Pure, except for functions that take a
client.

Must not know: HTML. The reader's own filter is passed on unchanged, in brackets, so that it cannot change the meaning of the
other conditions. A filter that would close these brackets is rejected.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from hourglass._built_in import check_brackets, without_keepers
from hourglass._tools.diagnosis import problems
from hourglass._tools.diagnosis.problems import ProblemCount, literal
from hourglass._tools.timeline.run_state import FILTERED, Problem
from hourglass.client import Client, WorkflowExecution, WorkflowExecutionCount, WorkflowStatus

PAGE_SIZE = 50

STATUSES = tuple(status for status in WorkflowStatus if status is not WorkflowStatus.UNSPECIFIED)

FIELDS = (
    "WorkflowId", "RunId", "WorkflowType", "ExecutionStatus", "StartTime", "CloseTime", "ExecutionTime", "ExecutionDuration",
    "TaskQueue", "HistoryLength", "ParentWorkflowId", "RootWorkflowId", "TemporalReportedProblems",
)  # fmt: skip
"""The fields that a filter may use, besides search attributes."""

_BUCKETS = 16
_WITHIN = {"15m": 15, "1h": 60, "24h": 1440, "7d": 10_080, "30d": 43_200}


FIELD_NAMES = ("type", "id", "within", "since", "until", "query", "problem")
"""The fields of a search, except for its statuses and its page."""

_PROBLEMS = {problem.slug: problem for problem in FILTERED}


@dataclass(frozen=True)
class Search:
    """The criteria of a search."""

    status: tuple[str, ...] = ()
    type: str = ""
    id: str = ""
    within: str = ""
    since: str = ""
    until: str = ""
    query: str = ""
    problem: str = ""
    """The slug of the problem that the runs have; see `_tools.diagnosis.problems`."""
    page: str = ""

    @classmethod
    def from_fields(cls, fields: Mapping[str, str], statuses: Iterable[str]) -> Search:
        """Return a search from the fields of a form. Unknown values are ignored."""
        known_names = {name.name for name in STATUSES}
        values = {name: fields.get(name, "").strip() for name in FIELD_NAMES}
        for name, choices in (("within", set(_WITHIN)), ("problem", set(_PROBLEMS))):
            values[name] = values[name] if values[name] in choices else ""
        status = tuple(name for name in statuses if name in known_names)
        return cls(status=status, page=fields.get("page", ""), **values)

    def url(self, path: str = "/workflows", **changes: Any) -> str:
        """Return the URL of this search with these changes. The URL requests the first page unless `page` is passed."""
        changed = replace(self, **{"page": "", **changes})
        pairs = [("status", status) for status in changed.status]
        pairs += [(name, value) for name in (*FIELD_NAMES, "page") if (value := getattr(changed, name))]
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def toggled(self, status: str) -> str:
        """Return the URL of this search with a status added, or removed if it is present."""
        statuses = tuple(name for name in self.status if name != status)
        return self.url(status=statuses if status in self.status else (*statuses, status))


def status_name(status: WorkflowStatus) -> str:
    """Return the name of a status in filters, for example `TimedOut`."""
    return "".join(part.capitalize() for part in status.name.split("_"))


_BY_NAME = {status.name: status for status in STATUSES}
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d:\d\d)?$")


def parse_time(value: str) -> str:
    """Return a time, by default in UTC, in the format of filters. Raise `ValueError` for an invalid time."""
    if not _TIME.match(value):
        raise ValueError(f"{value!r} is not a time; use for example 2026-01-31 12:00 (UTC)")
    parsed = datetime.fromisoformat(value.replace(" ", "T"))
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    try:
        return filter_time(parsed.astimezone(UTC))
    except OverflowError:
        raise ValueError(f"{value!r} is before year 1 or after year 9999 in UTC") from None


def filter_time(at: datetime) -> str:
    """Return a UTC time in the format of filters. Unlike with `strftime`, years always have four digits."""
    return at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def filter_of(search: Search, now: datetime, *, statuses: bool = True) -> str:
    """Return the filter of a search. Raise ValueError for an invalid time."""
    parts = []
    if statuses and search.status:
        names = ", ".join(literal(status_name(_BY_NAME[name])) for name in search.status)
        parts.append(f"ExecutionStatus IN ({names})")
    if search.type:
        parts.append(f"WorkflowType = {literal(search.type)}")
    if search.id:
        parts.append(f"WorkflowId STARTS_WITH {literal(search.id)}")
    if search.within:
        since = now - timedelta(minutes=_WITHIN[search.within])
        parts.append(f"StartTime >= {literal(since.strftime('%Y-%m-%dT%H:%M:%SZ'))}")
    if search.since:
        parts.append(f"StartTime >= {literal(parse_time(search.since))}")
    if search.until:
        parts.append(f"StartTime <= {literal(parse_time(search.until))}")
    if search.query:
        check_brackets(search.query)
        parts.append(f"({search.query})" if parts else search.query)
    return " AND ".join(parts)


def visible_filter(client: Client, search: Search, now: datetime, *, statuses: bool = True) -> str:
    """Return the filter for the runs in a list. The filter excludes the workflows that manage limits. Raise `ValueError` for
    an invalid time.

    If the engine does not report problems itself, runs with the problem are searched now.
    """
    query = without_keepers(filter_of(search, now, statuses=statuses))
    if not search.problem:
        return query
    return f"({query}) AND {problems.filter_of(client, _PROBLEMS[search.problem], query).query}"


@dataclass(frozen=True)
class Listing:
    """One page of the list of runs."""

    items: tuple[WorkflowExecution, ...]
    next_page: str
    counts: Mapping[str, int]
    problems: Mapping[str, Problem] = field(default_factory=dict)
    """The problems that block runs, by run id."""

    @property
    def total(self) -> int:
        """The number of runs with any status."""
        return sum(self.counts.values())


def listing(
    client: Client,
    search: Search,
    find_problems: Callable[[Iterable[WorkflowExecution]], Mapping[str, Problem]],
) -> Listing:
    """Query a page of the list and the number of runs per status. Call `find_problems` for the runs of the page."""
    now = datetime.now(UTC)
    query, token = visible_filter(client, search, now), bytes.fromhex(search.page)
    with ThreadPoolExecutor(1, "hourglass-ui-list") as thread:
        count_result = thread.submit(counts, client, search, now)
        page = client.list_page(query, page_size=PAGE_SIZE, page_token=token)
        return Listing(
            page.items, page.next_page_token.hex(), count_result.result(), find_problems(page.items)
        )


def counts(client: Client, search: Search, now: datetime) -> dict[str, int]:
    """Return the number of runs per status, regardless of the statuses in the search."""
    query = visible_filter(client, search, now, statuses=False)
    result = client.count_workflows(f"{query} GROUP BY ExecutionStatus".strip())
    by_name = {status_name(status): status.name for status in STATUSES}
    counts_by_name = dict.fromkeys((status.name for status in STATUSES), 0)
    for group in result.groups:
        name = by_name.get(str(group.group_values[0]))
        if name is not None:
            counts_by_name[name] += group.count
    return counts_by_name


def problem_counts(client: Client, search: Search) -> tuple[ProblemCount, ...]:
    """Return the number of open runs per problem that blocks them. The status and problem in the search are ignored."""
    unfiltered = replace(search, problem="")
    return problems.count(client, visible_filter(client, unfiltered, datetime.now(UTC), statuses=False))


@dataclass(frozen=True)
class Bucket:
    """A period of time, and the numbers of runs that started, closed and failed in it."""

    start: datetime
    end: datetime
    started: int
    closed: int
    failed: int


def chart(client: Client, search: Search) -> tuple[Bucket, ...]:
    """Count the runs that started, closed and failed within the search's time range, by default the last day."""
    edges = _bucket_edges(search, datetime.now(UTC))
    common = filter_of(replace(search, within="", since="", until="", status=()), datetime.now(UTC))
    prefix = f"({common}) AND " if common else ""
    periods = list(itertools.pairwise(edges))

    def count(field: str, period: tuple[datetime, datetime], grouping: str = "") -> WorkflowExecutionCount:
        low, high = map(filter_time, period)
        condition_query = f"{prefix}{field} >= '{low}' AND {field} < '{high}'{grouping}"
        return client.count_workflows(without_keepers(condition_query))

    # In parallel, because a server processes the queries concurrently, and a file without a worker is opened only once for
    # all of them.
    with ThreadPoolExecutor(2 * _BUCKETS, "hourglass-ui-chart") as threads:
        started = [threads.submit(count, "StartTime", period) for period in periods]
        closed = [
            threads.submit(count, "CloseTime", period, " GROUP BY ExecutionStatus") for period in periods
        ]
        return tuple(
            Bucket(*period, int(start_count.result()), *_closed_and_failed(close_counts.result()))
            for period, start_count, close_counts in zip(periods, started, closed, strict=True)
        )


def _bucket_edges(search: Search, now: datetime) -> list[datetime]:
    """Return the edges between the buckets of the chart. Return none if the search ends before it starts."""
    end = datetime.fromisoformat(parse_time(search.until)) if search.until else now
    if search.since:
        start = datetime.fromisoformat(parse_time(search.since))
    elif search.within:
        start = now - timedelta(minutes=_WITHIN[search.within])
    else:
        start = end - min(timedelta(days=1), end - datetime.min.replace(tzinfo=UTC))
    if start >= end:
        return []
    return [start + (end - start) * number / _BUCKETS for number in range(_BUCKETS + 1)]


_FAILED_STATUSES = frozenset(
    status_name(status)
    for status in (WorkflowStatus.FAILED, WorkflowStatus.TIMED_OUT, WorkflowStatus.TERMINATED)
)


def _closed_and_failed(result: WorkflowExecutionCount) -> tuple[int, int]:
    groups = [(str(group.group_values[0]), group.count) for group in result.groups]
    return sum(number for _, number in groups), sum(
        number for name, number in groups if name in _FAILED_STATUSES
    )
