"""Addresses of pages. Pure.

An id may contain any characters, including slashes, dots and percent signs. In a path an id is quoted twice, because servers
undo one quoting before they match routes, and browsers resolve dots.
"""

from __future__ import annotations

from urllib.parse import quote, unquote


def quoted(name: str) -> str:
    """Quote a name for use as a part of a path."""
    return quote(quote(name, safe="").replace(".", "%2E"), safe="")


def unquoted(part: str) -> str:
    """Return the name for a part of a path from which a server has already undone one quoting."""
    return unquote(part)


def workflow(workflow_id: str) -> str:
    """Return the path of a workflow's latest run."""
    return f"/workflows/{quoted(workflow_id)}"


def run(workflow_id: str, run_id: str) -> str:
    """Return the path of a run."""
    return f"/workflows/{quoted(workflow_id)}/{quoted(run_id)}"


def schedule(schedule_id: str) -> str:
    """Return the path of a schedule."""
    return f"/schedules/{quoted(schedule_id)}"


def run_at(path: str) -> tuple[str, str]:
    """Return the workflow id and the run id of a run's path. Raise ValueError."""
    try:
        _, _, workflow_id, run_id = path.split("/")
    except ValueError:
        raise ValueError(f"{path[:80]!r} is not the path of a run") from None
    return unquoted(unquoted(workflow_id)), unquoted(unquoted(run_id))
