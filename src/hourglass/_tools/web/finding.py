"""From the fields of a form to a filter, and from a filter to a page of the list. Pure but for `Listing`.

Must not know: HTML. What a reader types into the filter is passed on as it is, in brackets, so that it cannot undo the others;
it must not close them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from hourglass._built_in import check_brackets, without_keepers
from hourglass._tools.diagnosis import problems
from hourglass._tools.diagnosis.problems import ProblemCount
from hourglass._tools.timeline.standing import FILTERED, Problem
from hourglass.client import Client, WorkflowExecution, WorkflowExecutionCount, WorkflowStatus

PAGE_SIZE = 50

STATUSES = tuple(status for status in WorkflowStatus if status is not WorkflowStatus.UNSPECIFIED)

FIELDS = (
    "WorkflowId", "RunId", "WorkflowType", "ExecutionStatus", "StartTime", "CloseTime", "ExecutionTime", "ExecutionDuration",
    "TaskQueue", "HistoryLength", "ParentWorkflowId", "RootWorkflowId", "TemporalReportedProblems",
)  # fmt: skip
"""What a filter may ask for, besides the search attributes of runs."""

_BUCKETS = 16
_WITHIN = {"15m": 15, "1h": 60, "24h": 1440, "7d": 10_080, "30d": 43_200}


FIELD_NAMES = ("type", "id", "within", "since", "until", "query", "problem")
"""The fields of a search but for its statuses and its page."""

_PROBLEMS = {problem.slug: problem for problem in FILTERED}


@dataclass(frozen=True)
class Search:
    """What a reader looks for."""

    status: tuple[str, ...] = ()
    type: str = ""
    id: str = ""
    within: str = ""
    since: str = ""
    until: str = ""
    query: str = ""
    problem: str = ""
    """The slug of what keeps the runs from going on: see `_story.standing`."""
    page: str = ""

    @classmethod
    def from_fields(cls, fields: Mapping[str, str], statuses: Iterable[str]) -> Search:
        """From the fields of a form; what is not known there is left out."""
        known_names = {name.name for name in STATUSES}
        return cls(
            status=tuple(name for name in statuses if name in known_names),
            type=fields.get("type", "").strip(),
            id=fields.get("id", "").strip(),
            within=fields.get("within", "") if fields.get("within", "") in _WITHIN else "",
            since=fields.get("since", "").strip(),
            until=fields.get("until", "").strip(),
            query=fields.get("query", "").strip(),
            problem=fields.get("problem", "") if fields.get("problem", "") in _PROBLEMS else "",
            page=fields.get("page", ""),
        )

    def url(self, path: str = "/workflows", **changes: Any) -> str:
        """The address of this search, or of one that differs in so much; the page is the first unless it is named."""
        changed = replace(self, **{"page": "", **changes})
        pairs = [("status", status) for status in changed.status]
        pairs += [(name, value) for name in (*FIELD_NAMES, "page") if (value := getattr(changed, name))]
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def toggled(self, status: str) -> str:
        """The address with one status more, or less."""
        statuses = tuple(name for name in self.status if name != status)
        return self.url(status=statuses if status in self.status else (*statuses, status))


def literal(value: str) -> str:
    """A text in a filter."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def status_name(status: WorkflowStatus) -> str:
    """A status as filters name it: `TimedOut`."""
    return "".join(part.capitalize() for part in status.name.split("_"))


_BY_NAME = {status.name: status for status in STATUSES}
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d:\d\d)?$")


def parse_time(value: str) -> str:
    """A time as filters write it; a form gives it without zone, in UTC. Raises ValueError."""
    if not _TIME.match(value):
        raise ValueError(f"{value!r} is no time: write 2026-01-31 12:00, in UTC")
    parsed = datetime.fromisoformat(value.replace(" ", "T"))
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    try:
        return filter_time(parsed.astimezone(UTC))
    except OverflowError:
        raise ValueError(f"{value!r} is before year 1 or after year 9999 in UTC") from None


def filter_time(at: datetime) -> str:
    """Return a time in UTC as filters write it. Years have four digits, which `strftime` does not keep."""
    return at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def filter_of(search: Search, now: datetime, *, statuses: bool = True) -> str:
    """The filter that finds it. Raises ValueError for a time that is none."""
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
    """Return the filter of the runs that a list shows: without the workflows that keep limits. Raise ValueError.

    What keeps runs from going on is looked for now, where the engine does not report it.
    """
    query = without_keepers(filter_of(search, now, statuses=statuses))
    if not search.problem:
        return query
    return f"({query}) AND {problems.filter_of(client, _PROBLEMS[search.problem], query).query}"


@dataclass(frozen=True)
class Listing:
    """One page of the list."""

    items: tuple[WorkflowExecution, ...]
    next_page: str
    counts: Mapping[str, int]
    problems: Mapping[str, Problem] = field(default_factory=dict)
    """What keeps runs from going on, by run id."""

    @property
    def total(self) -> int:
        """How many there are with any status."""
        return sum(self.counts.values())


def listing(
    client: Client,
    search: Search,
    find_problems: Callable[[Iterable[WorkflowExecution]], Mapping[str, Problem]],
) -> Listing:
    """Ask for a page of the list, how many there are of each status, and `look` for what keeps runs from going on."""
    now = datetime.now(UTC)
    query, token = visible_filter(client, search, now), bytes.fromhex(search.page)
    with ThreadPoolExecutor(1, "hourglass-ui-list") as thread:
        count_result = thread.submit(counts, client, search, now)
        page = client.list_page(query, page_size=PAGE_SIZE, page_token=token)
        return Listing(
            page.items, page.next_page_token.hex(), count_result.result(), find_problems(page.items)
        )


def counts(client: Client, search: Search, now: datetime) -> dict[str, int]:
    """How many runs there are of each status, whatever status is looked for."""
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
    """How many open runs there are that do not go on, by what keeps them, whatever status and problem is looked for."""
    unfiltered = replace(search, problem="")
    return problems.count(client, visible_filter(client, unfiltered, datetime.now(UTC), statuses=False))


# --- over time --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bucket:
    """A stretch of time, and how many runs began, ended and failed in it."""

    start: datetime
    end: datetime
    started: int
    closed: int
    failed: int


def chart(client: Client, search: Search) -> tuple[Bucket, ...]:
    """How many runs began, ended and failed, over the time that is looked at: by default the last day."""
    now = datetime.now(UTC)
    end = datetime.fromisoformat(parse_time(search.until)) if search.until else now
    minutes = _WITHIN.get(search.within, 1440)
    start = (
        datetime.fromisoformat(parse_time(search.since)) if search.since else now - timedelta(minutes=minutes)
    )
    width = (end - start) / _BUCKETS
    common = filter_of(replace(search, within="", since="", until="", status=()), now)
    prefix = f"({common}) AND " if common else ""
    firsts = [start + width * number for number in range(_BUCKETS)]

    def count(field: str, first: datetime, grouping: str = "") -> WorkflowExecutionCount:
        low, high = filter_time(first), filter_time(first + width)
        condition_query = f"{prefix}{field} >= '{low}' AND {field} < '{high}'{grouping}"
        return client.count_workflows(without_keepers(condition_query))

    # At once: a server answers them side by side, and a file that no worker has open is opened once for all of them.
    with ThreadPoolExecutor(2 * _BUCKETS, "hourglass-ui-chart") as threads:
        started = [threads.submit(count, "StartTime", first) for first in firsts]
        closed = [threads.submit(count, "CloseTime", first, " GROUP BY ExecutionStatus") for first in firsts]
        return tuple(
            Bucket(
                first, first + width, int(start_count.result()), *_closed_and_failed(close_counts.result())
            )
            for first, start_count, close_counts in zip(firsts, started, closed, strict=True)
        )


_FAILED_STATUSES = frozenset(
    status_name(status)
    for status in (WorkflowStatus.FAILED, WorkflowStatus.TIMED_OUT, WorkflowStatus.TERMINATED)
)


def _closed_and_failed(result: WorkflowExecutionCount) -> tuple[int, int]:
    """How many there are, and how many of them failed."""
    groups = [(str(group.group_values[0]), group.count) for group in result.groups]
    return sum(number for _, number in groups), sum(
        number for name, number in groups if name in _FAILED_STATUSES
    )
