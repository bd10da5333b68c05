"""From the fields of a form to a filter, and from a filter to a page of the list. Pure but for `Listing`.

Must not know: HTML. What a reader types into the filter is passed on as it is, in brackets, so that it cannot undo the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from hourglass.client import Client, WorkflowExecution, WorkflowStatus

PAGE_SIZE = 50

STATUSES = tuple(each for each in WorkflowStatus if each is not WorkflowStatus.UNSPECIFIED)

FIELDS = (
    "WorkflowId", "RunId", "WorkflowType", "ExecutionStatus", "StartTime", "CloseTime", "ExecutionTime", "ExecutionDuration",
    "TaskQueue", "HistoryLength", "ParentWorkflowId", "RootWorkflowId",
)  # fmt: skip
"""What a filter may ask for, besides the search attributes of runs."""

_WITHIN = {"15m": 15, "1h": 60, "24h": 1440, "7d": 10_080, "30d": 43_200}


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
    page: str = ""

    @classmethod
    def from_fields(cls, fields: Mapping[str, str], statuses: Iterable[str]) -> Search:
        """From the fields of a form; what is not known there is left out."""
        known = {each.name for each in STATUSES}
        return cls(
            status=tuple(each for each in statuses if each in known),
            type=fields.get("type", "").strip(),
            id=fields.get("id", "").strip(),
            within=fields.get("within", "") if fields.get("within", "") in _WITHIN else "",
            since=fields.get("since", "").strip(),
            until=fields.get("until", "").strip(),
            query=fields.get("query", "").strip(),
            page=fields.get("page", ""),
        )

    def url(self, path: str = "/workflows", **changes: Any) -> str:
        """The address of this search, or of one that differs in so much; the page is the first unless it is named."""
        changed = replace(self, **{"page": "", **changes})
        pairs = [("status", each) for each in changed.status]
        pairs += [
            (name, value)
            for name in ("type", "id", "within", "since", "until", "query", "page")
            if (value := getattr(changed, name))
        ]
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def toggled(self, status: str) -> str:
        """The address with one status more, or less."""
        kept = tuple(each for each in self.status if each != status)
        return self.url(status=kept if status in self.status else (*kept, status))


def text(value: str) -> str:
    """A text in a filter."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def status_name(status: WorkflowStatus) -> str:
    """A status as filters name it: `TimedOut`."""
    return "".join(part.capitalize() for part in status.name.split("_"))


_BY_NAME = {each.name: each for each in STATUSES}
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d:\d\d)?$")


def moment(value: str) -> str:
    """A time as filters write it; a form gives it without zone, in UTC. Raises ValueError."""
    if not _TIME.match(value):
        raise ValueError(f"{value!r} is no time: write 2026-01-31 12:00, in UTC")
    parsed = datetime.fromisoformat(value.replace(" ", "T"))
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return parsed.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def filter_of(search: Search, now: datetime, *, statuses: bool = True) -> str:
    """The filter that finds it. Raises ValueError for a time that is none."""
    parts = []
    if statuses and search.status:
        names = ", ".join(text(status_name(_BY_NAME[each])) for each in search.status)
        parts.append(f"ExecutionStatus IN ({names})")
    if search.type:
        parts.append(f"WorkflowType = {text(search.type)}")
    if search.id:
        parts.append(f"WorkflowId STARTS_WITH {text(search.id)}")
    if search.within:
        since = now - timedelta(minutes=_WITHIN[search.within])
        parts.append(f"StartTime >= {text(since.strftime('%Y-%m-%dT%H:%M:%SZ'))}")
    if search.since:
        parts.append(f"StartTime >= {text(moment(search.since))}")
    if search.until:
        parts.append(f"StartTime <= {text(moment(search.until))}")
    if search.query:
        parts.append(f"({search.query})" if parts else search.query)
    return " AND ".join(parts)


@dataclass(frozen=True)
class Listing:
    """One page of the list."""

    items: tuple[WorkflowExecution, ...]
    next_page: str
    counts: Mapping[str, int]

    @property
    def total(self) -> int:
        """How many there are with any status."""
        return sum(self.counts.values())


def listing(client: Client, search: Search) -> Listing:
    """Ask for a page of the list, and how many there are of each status."""
    now = datetime.now(UTC)
    page = client.list_page(
        filter_of(search, now), page_size=PAGE_SIZE, page_token=bytes.fromhex(search.page)
    )
    return Listing(page.items, page.next_page_token.hex(), counts(client, search, now))


def counts(client: Client, search: Search, now: datetime) -> dict[str, int]:
    """How many runs there are of each status, whatever status is looked for."""
    query = filter_of(search, now, statuses=False)
    found = client.count_workflows(f"{query} GROUP BY ExecutionStatus".strip())
    by_name = {status_name(each): each.name for each in STATUSES}
    told = dict.fromkeys((each.name for each in STATUSES), 0)
    for group in found.groups:
        name = by_name.get(str(group.group_values[0]))
        if name is not None:
            told[name] += group.count
    return told


# --- over time --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bucket:
    """A stretch of time, and how many runs began, ended and failed in it."""

    start: datetime
    end: datetime
    started: int
    closed: int
    failed: int


def chart(client: Client, search: Search, buckets: int = 16) -> tuple[Bucket, ...]:
    """How many runs began, ended and failed, over the time that is looked at: by default the last day."""
    now = datetime.now(UTC)
    end = datetime.fromisoformat(moment(search.until)) if search.until else now
    minutes = _WITHIN.get(search.within, 1440)
    start = datetime.fromisoformat(moment(search.since)) if search.since else now - timedelta(minutes=minutes)
    width = (end - start) / buckets
    common = filter_of(replace(search, within="", since="", until="", status=()), now)
    prefix = f"({common}) AND " if common else ""
    bad = "ExecutionStatus IN ('Failed', 'TimedOut', 'Terminated')"

    def count(field: str, first: datetime, more: str = "") -> int:
        low, high = (each.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for each in (first, first + width))
        return int(client.count_workflows(f"{prefix}{field} >= '{low}' AND {field} < '{high}'{more}"))

    def bucket(first: datetime) -> Bucket:
        closed = count("CloseTime", first)
        failed = count("CloseTime", first, f" AND {bad}") if closed else 0
        return Bucket(first, first + width, count("StartTime", first), closed, failed)

    return tuple(bucket(start + width * number) for number in range(buckets))
