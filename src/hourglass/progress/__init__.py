"""Progress out of a run: the workflow publishes, clients follow.

    status = Progress("status", str)

    @workflow.defn
    def import_all(files: list[str]) -> int:
        for file in files:
            status.publish(f"reading {file}")
            read(file)
        return len(files)

    for line in status.follow(handle):
        print(line)

Publishing costs nothing: no event, no command, no workflow task. A follower waits for the run's history to grow, which
the engine tells without being asked again and again, and then asks the workflow what is new, by a query. So readers
leave no trace in the history either, however many there are.

    _buffer     the workflow's side: a buffer that a query reads
    _following  the client's side, written once, and its two faces
    _token      `Progress`, which joins the two sides
"""

from __future__ import annotations

from hourglass.progress._following import AsyncProgressStream, Origin, ProgressStream
from hourglass.progress._token import Progress

__all__ = ["AsyncProgressStream", "Origin", "Progress", "ProgressStream"]
