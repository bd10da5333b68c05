"""Paths of pages of the web UI. Ids are quoted twice, because servers undo one quoting and browsers resolve dots."""

from __future__ import annotations

from urllib.parse import quote


def _quoted(name: str) -> str:
    return quote(quote(name, safe="").replace(".", "%2E"), safe="")


def workflow_page(workflow_id: str) -> str:
    """Return the path of a workflow's latest run."""
    return f"/workflows/{_quoted(workflow_id)}"


def run_page(workflow_id: str, run_id: str) -> str:
    """Return the path of a run."""
    return f"/workflows/{_quoted(workflow_id)}/{_quoted(run_id)}"


def schedule_page(schedule_id: str) -> str:
    """Return the path of a schedule."""
    return f"/schedules/{_quoted(schedule_id)}"
