"""Tasks in a set: those that are done at the same time come out in the order of their addresses."""

from __future__ import annotations

from hourglass import workflow

from .acts import fetch, note


@workflow.defn(name="as_completed_set")
def bug(names: list[str]) -> list[str]:
    tasks = {fetch.start(name) for name in names}
    return [note(str(task.result())) for task in workflow.as_completed(tasks)]  # caught: check HG104


arguments = (["a", "bb", "ccc"],)
