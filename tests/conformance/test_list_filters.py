"""List filters return the same runs in the same order, or the same status of error, on both engines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from hourglass.client import Client
from hourglass.errors import ServiceError
from hourglass.testing import dev_server

from .filter_fleet import ATTRIBUTES, COUNT, LIMIT, start_fleet

pytestmark = pytest.mark.server

# By default a server fires timers in groups, up to a second late, and waits a second between the runs of a chain.
_QUICK = ('history.timerProcessorMaxTimeShift="1ms"', 'history.continueAsNewMinInterval="1ms"')

IDS = (
    "",
    "   ",
    "WorkflowId = 'order-1'",
    'WorkflowId = "order-1"',
    "`WorkflowId` = 'order-1'",
    "WorkflowId = 'ORDER-1'",
    "WorkflowId = 'it''s'",
    r"WorkflowId = 'it\'s'",
    'WorkflowId = "it\'s"',
    r"WorkflowId = '\order-1'",
    "WorkflowId != 'order-1'",
    "WorkflowId IN ('order-1', 'order-2', 'nobody')",
    "WorkflowId NOT IN ('order-1', 'order-2')",
    "WorkflowId STARTS_WITH 'order'",
    "WorkflowId starts_with 'ORDER-1'",
    "WorkflowId NOT STARTS_WITH 'order'",
    "WorkflowId STARTS_WITH '100%_'",
    "WorkflowId STARTS_WITH ''",
    "WorkflowId > 'order-1' AND WorkflowId <= 'order-3'",
    "WorkflowId BETWEEN 'order-1' AND 'order-2'",
    "TemporalWorkflowId = 'order-1'",
    "RunId = '<run>'",
    "RunId != '<run>'",
    "RootWorkflowId = 'order-1'",
    "RootRunId = '<run>'",
    "ParentWorkflowId IS NULL",
    "ParentWorkflowId != 'x'",
    "ParentRunId IS NOT NULL",
    "WorkflowType = 'Order'",
    "WorkflowType IN ('order.refund', 'Chain')",
    "WorkflowType STARTS_WITH 'order'",
    "TaskQueue = 'fleet-idle'",
    "TaskQueue STARTS_WITH 'fleet-'",
)
STATUSES = (
    "ExecutionStatus = 'Running'",
    "ExecutionStatus = 'WORKFLOW_EXECUTION_STATUS_RUNNING'",
    "ExecutionStatus = 1",
    "ExecutionStatus = 'Completed'",
    "ExecutionStatus = 'Failed'",
    "ExecutionStatus = 'Canceled'",
    "ExecutionStatus = 'Terminated'",
    "ExecutionStatus = 'ContinuedAsNew'",
    "ExecutionStatus = 'TimedOut'",
    "ExecutionStatus = 'Paused'",
    "ExecutionStatus = 'Unspecified'",
    "ExecutionStatus != 'Running'",
    "NOT ExecutionStatus = 'Running'",
    "ExecutionStatus IN ('Failed', 7)",
    "ExecutionStatus NOT IN ('Failed', 'TimedOut', 'Completed')",
    "ExecutionStatus > 'Running'",
    "ExecutionStatus < 3",
    "ExecutionStatus BETWEEN 'Running' AND 'Failed'",
    "ExecutionStatus IS NULL",
    "ExecutionStatus IS NOT NULL",
    "GROUP BY ExecutionStatus",
    "WorkflowType = 'Order' GROUP BY ExecutionStatus",
)
TIMES = (
    "StartTime = '<start>'",
    "StartTime != '<start>'",
    "StartTime > '<start>'",
    "StartTime >= '<start>'",
    "StartTime < '<start>'",
    "StartTime BETWEEN '<start>' AND '<close>'",
    "StartTime IN ('<start>', '2024-01-01T00:00:00Z')",
    "StartTime > 1700000000000000000",
    "StartTime > '2024-01-01T00:00:00+02:00'",
    "StartTime > '2024-01-01T00:00:00,5Z'",
    "StartTime IS NULL",
    "CloseTime = '<close>'",
    "CloseTime > '<close>'",
    "CloseTime <= '<close>'",
    "CloseTime IS NULL",
    "CloseTime IS NOT NULL",
    "NOT CloseTime > '2024-01-01T00:00:00Z'",
    "CloseTime BETWEEN '2024-01-01T00:00:00Z' AND '2100-12-31T00:00:00Z'",
    "ExecutionTime = '<start>'",
    "ExecutionTime > '<later>'",
    "ExecutionDuration IS NULL",
    "ExecutionDuration >= 0",
    "ExecutionDuration < '1d'",
    "ExecutionDuration < '1h30m' AND ExecutionDuration > '-1s'",
    "WorkflowId = 'late-1' AND ExecutionDuration >= '1s'",
    "WorkflowId = 'late-1' AND ExecutionDuration >= '1000000000'",
    "WorkflowId = 'late-1' AND ExecutionDuration > '00:00:00'",
    "WorkflowId = 'late-1' AND ExecutionDuration BETWEEN '0.5s' AND '1d2h'",
    "ExecutionDuration > '1.5h'",
    "ExecutionDuration > '100:00:00'",
    "HistoryLength = 5",
    "HistoryLength BETWEEN 3 AND 5",
    "HistoryLength >= 6",
    "HistoryLength IS NULL",
    "HistorySizeBytes > 0",
    "HistorySizeBytes IS NULL",
)
ATTRIBUTE_FILTERS = (
    "Region = 'eu'",
    "Region != 'eu'",
    "Region <> 'eu'",
    "NOT Region = 'eu'",
    "not not Region = 'eu'",
    "NOT (Region = 'eu' OR Region = 'us')",
    "NOT (Region != 'eu' AND Amount IS NULL)",
    "Region = ''",
    "Region = 'o\\'neil'",
    "Region IS NULL",
    "Region is not null",
    "NOT Region IS NULL",
    "Region IN ('eu', 'us')",
    "Region NOT IN ('eu', 'us')",
    "Region > 'eu'",
    "Region >= 'eu' AND Region < 'us'",
    "Region BETWEEN 'eu' AND 'us'",
    "Region NOT BETWEEN 'eu' AND 'us'",
    "Region STARTS_WITH 'EU'",
    "Region STARTS_WITH ''",
    "Region STARTS_WITH '50%'",
    "Region STARTS_WITH '50%_off!'",
    "Region NOT STARTS_WITH 'u'",
    "Owner = 'ünïcode'",
    "Owner = 'ann'",
    "Region = 'eu' AND Amount = 1",
    "Region = 'eu' AND Amount = 1 OR Region = 'us'",
    "Region = 'us' OR Region = 'eu' AND Amount = 1",
    "(Region = 'us' OR Region = 'eu') AND Amount IS NULL",
    "NOT Region = 'eu' AND Amount = 2",
    "NOT Region = 'eu' OR Amount = 1",
    "Region='eu'AND Amount=1",
    "Region = 'eu' && Amount = 1",
    "Region = 'eu' || Amount = 2",
    "((Region = 'eu') AND (Amount = 1 OR NOT Amount = 7))",
    "Region NOT IN ('eu') OR Region IS NULL",
    "Region = 'eu';",
    "Region = 'eu' -- not more",
    "Region = 'eu' /* and */ AND Amount = 1",
    "# all of\nRegion = 'eu'",
    "Amount = 1",
    "Amount = 1.0",
    "Amount = 1.5",
    "Amount = -3",
    "Amount = +1",
    "Amount = - 3",
    "Amount <= 1.5",
    "Amount != 1",
    "Amount IN (1, 2, -3)",
    "Amount BETWEEN 1 AND 5",
    "Amount BETWEEN 5 AND 1",
    "Amount NOT BETWEEN 1 AND 5",
    "Amount = 1e1",
    "Amount = 99999999999999999999",
    "Amount IS NULL",
    "Score = 1.5",
    "Score = 2",
    "Score > -1",
    "Score < 0",
    "Score = 0",
    "Score BETWEEN -1 AND 1.5",
    "Score = .5",
    "Urgent = true",
    "Urgent = FALSE",
    "Urgent != true",
    "NOT Urgent = true",
    "Urgent IN (true, false)",
    "Urgent > false",
    "Urgent IS NULL",
    "Tags = 'red'",
    "Tags = 'RED'",
    "Tags = 'green'",
    "Tags = 'green grass'",
    "Tags = 'grass'",
    "Tags = 'red-hot'",
    "Tags = 'CAFÉ'",
    "Tags = 'cafe'",
    "Tags = ''",
    "Tags != 'red'",
    "NOT Tags = 'red'",
    "Tags IN ('red', 'blue')",
    "Tags NOT IN ('red', 'blue')",
    "Tags IS NULL",
    "Tags IS NOT NULL",
    "Note = 'fox'",
    "Note = 'FOX,'",
    "Note = 'quick bear'",
    "Note = 'qui'",
    "Note = 'slow-turtle'",
    "Note = 'turtle-slow'",
    "Note = 'creme'",
    "Note = 'brûlée'",
    "Note = 'l''ete'",
    "Note != 'fox'",
    "NOT Note != 'fox'",
    "Note IS NULL",
    "Due > '2023-12-31T23:59:59Z'",
    "Due < '2024-01-01T00:00:01Z'",
    "Due <= '2024-01-01T00:00:00.4Z'",
    "Due BETWEEN '2023-12-31T00:00:00Z' AND '2024-12-31T00:00:00Z'",
    "Due NOT BETWEEN '2023-12-31T00:00:00Z' AND '2024-12-31T00:00:00Z'",
    "Due > 1704067199000000000",
    "Due IS NULL",
    "TemporalChangeVersion IS NULL",
    "TemporalChangeVersion = 'x-1'",
    "TemporalScheduledById IS NULL",
    "ScheduledById IS NULL",
    "TemporalSchedulePaused = true",
    "TemporalNamespaceDivision IS NULL",
    "BatcherUser = 'x'",
)
REFUSED = (
    "workflowid = 'order-1'",
    "Unknown = 'x'",
    "TemporalRegion = 'eu'",
    "CustomKeywordField = 'x'",
    "a.Region = 'eu'",
    "Region",
    "Region =",
    "Region = eu",
    "Region = `eu`",
    "Region = 5",
    "Region = true",
    "Region = NULL",
    "Region = ('eu')",
    "Region = 'e' 'u'",
    "Region = 'a",
    "`Region = 'eu'",
    "Region == 'eu'",
    "Region IN ()",
    "Region IN 'eu'",
    "Region IN ('a',)",
    "Region LIKE 'e%'",
    "Region NOT LIKE 'e%'",
    "Region REGEXP 'e'",
    "Region <=> 'eu'",
    "Region IS 'eu'",
    "Region IS TRUE",
    "Region NOT 'eu'",
    "Region NOT NULL",
    "Region BETWEEN 'a'",
    "Region BETWEEN 'a' OR 'b'",
    "Region = concat('e', 'u')",
    "Region IN (SELECT 1)",
    "Region + 1 = 2",
    "Region STARTS_WITH 5",
    "'eu' = Region",
    "1 = 1",
    "true",
    "NULL",
    "! Region = 'eu'",
    "Region = 'eu' AND",
    "AND Region = 'eu'",
    "Region = 'eu' Amount = 1",
    "Region = 'eu'; drop table x",
    "Region = 'eu' LIMIT 3",
    "where Region = 'eu'",
    "(Region = 'eu'",
    "Region = 'eu')",
    "()",
    "NOT",
    "/* nothing */",
    "(Region) = 'eu'",
    "(Region = 'eu') IS NULL",
    "EXISTS (SELECT 1)",
    "Amount = '1'",
    "Amount = true",
    "Amount = 1abc",
    "Amount = 1 2",
    "Amount = 0x1",
    "Amount = 1+1",
    "Amount = (1)",
    "Amount = -'1'",
    "Amount = 1e999",
    "Amount IN (1, '2')",
    "Amount STARTS_WITH '1'",
    "Amount IS TRUE",
    "Score = '1.5'",
    "Urgent = 'true'",
    "Urgent = 1",
    "Urgent BETWEEN false AND true",
    "Urgent STARTS_WITH 't'",
    "Tags = 5",
    "Tags > 'a'",
    "Tags STARTS_WITH 'r'",
    "Tags BETWEEN 'a' AND 'b'",
    "Note = ''",
    "Note IN ('fox')",
    "Note > 'a'",
    "Note STARTS_WITH 'f'",
    "Note BETWEEN 'a' AND 'b'",
    "Due = '2024-01-01'",
    "Due = '2024-01-01 00:00:00'",
    "Due = '2024-01-01T00:00:00'",
    "Due = '2024-01-01T00:00:00+0200'",
    "Due = '2024-02-30T00:00:00Z'",
    "Due = '2024-01-01T24:00:00Z'",
    "Due = 1.5",
    "Due = true",
    "Due STARTS_WITH '2024'",
    "StartTime > '5'",
    "ExecutionStatus = 'running'",
    "ExecutionStatus = 'Cancelled'",
    "ExecutionStatus = '1'",
    "ExecutionStatus = 9",
    "ExecutionStatus = 1.5",
    "ExecutionStatus = true",
    "ExecutionStatus STARTS_WITH 'R'",
    "ExecutionDuration = 'x'",
    "ExecutionDuration = ''",
    "ExecutionDuration = '1w'",
    "ExecutionDuration = '1S'",
    "ExecutionDuration = '00:61:00'",
    "ExecutionDuration = '1h 2m'",
    "ExecutionDuration = 1.5",
    "HistoryLength = '5'",
    "ORDER BY StartTime",
    "Region = 'eu' ORDER BY StartTime DESC",
    "ORDER BY Unknown",
    "GROUP BY WorkflowType",
    "GROUP BY ExecutionStatus, WorkflowType",
    "GROUP BY",
)

# The dev server evaluates these filters wrongly: it escapes values in its SQL in a way that SQLite does not know, and
# compares times of custom attributes as strings in two different formats.
BETTER = {
    "Owner = 'say \"x\"'": ["it's"],
    r"Owner = 'back\\slash'": ["100%_sure"],
    "Due = '2024-01-01T00:00:00Z'": ["refund-1"],
    "Due > '2024-01-01T00:00:00Z'": ["idle-2", "stop-1", "refund-2"],
    "Due IN ('2024-06-30T10:00:00Z', '2024-01-01T00:00:00.500Z')": ["stop-1", "refund-2"],
}


@dataclass
class Fleet:
    """The fleet on one engine. Placeholders in filters stand for times and the run id of its run order-2."""

    client: Client
    facts: dict[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        """Wait until the engine lists all runs; look up the values of the placeholders."""
        deadline = time.monotonic() + LIMIT
        while self.client.count_workflows("ExecutionStatus = 'Running'") != 6 or len(self.ids("")) != COUNT:
            assert time.monotonic() < deadline, f"the fleet is not complete: {self.ids('')}"
        (run,) = self.client.list_workflows("WorkflowId = 'order-2'")
        (delayed,) = self.client.list_workflows("WorkflowId = 'delayed'")
        assert run.start_time is not None
        assert run.close_time is not None
        assert delayed.start_time is not None
        self.facts = {
            "<run>": run.run_id,
            "<start>": run.start_time.isoformat(),
            "<close>": run.close_time.isoformat(),
            "<later>": (delayed.start_time + timedelta(minutes=30)).isoformat(),
        }

    def ids(self, text: str) -> list[str]:
        """Return the ids of the listed runs, in order."""
        for name, value in self.facts.items():
            text = text.replace(name, value)
        return [run.id for run in self.client.list_workflows(text)]

    def outcome(self, text: str) -> Any:
        """Return the ids of the listed runs, or the status of the error."""
        try:
            return self.ids(text)
        except ServiceError as error:
            return error.status


@pytest.fixture(scope="module")
def fleets() -> Iterator[tuple[Fleet, Fleet]]:
    """The same fleet on a server and on the embedded engine."""
    config = [arg for value in _QUICK for arg in ("--dynamic-config-value", value)]
    with (
        dev_server(search_attributes=ATTRIBUTES, extra_args=config) as server,
        Client.connect(server.target) as theirs,
        Client.connect("local:") as ours,
    ):
        both = Fleet(theirs), Fleet(ours)
        for fleet in both:
            start_fleet(fleet.client)
        for fleet in both:
            fleet.prepare()
        yield both


@pytest.mark.parametrize("text", [*IDS, *STATUSES, *TIMES, *ATTRIBUTE_FILTERS])
def test_list_filter_returns_the_same_runs_on_both_engines(text: str, fleets: tuple[Fleet, Fleet]) -> None:
    theirs, ours = fleets
    expected = theirs.outcome(text)
    assert isinstance(expected, list)
    assert ours.outcome(text) == expected


@pytest.mark.parametrize("text", REFUSED)
def test_invalid_list_filter_is_rejected_by_both_engines(text: str, fleets: tuple[Fleet, Fleet]) -> None:
    assert [fleet.outcome(text) for fleet in fleets] == ["INVALID_ARGUMENT"] * 2


@pytest.mark.parametrize(("text", "right"), BETTER.items())
def test_embedded_engine_evaluates_filters_that_the_dev_server_gets_wrong(
    text: str, right: list[str], fleets: tuple[Fleet, Fleet]
) -> None:
    theirs, ours = fleets
    assert ours.outcome(text) == right
    assert theirs.outcome(text) != right


def test_count_workflows_equals_number_of_listed_runs(fleets: tuple[Fleet, Fleet]) -> None:
    for text in ("", "ExecutionStatus = 'Running'", "Tags != 'red'", "Region = 'eu' AND Amount IS NULL"):
        assert [fleet.client.count_workflows(text) for fleet in fleets] == [len(fleets[0].ids(text))] * 2


def test_list_workflows_returns_the_same_runs_for_any_page_size(fleets: tuple[Fleet, Fleet]) -> None:
    for fleet in fleets:
        all_ids = fleet.ids("Amount IS NULL")
        for size in (1, 4, 100):
            runs = fleet.client.list_workflows("Amount IS NULL", page_size=size)
            assert [run.id for run in runs] == all_ids
