"""Progress of a run: the workflow publishes items, clients follow them.

    status = Progress("status", str)

    @workflow.defn
    def import_all(files: list[str]) -> int:
        for file in files:
            status.publish(f"reading {file}")
            read(file)
        return len(files)

    for line in status.follow(handle):
        print(line)

Publishing costs no event, no command and no workflow task. A follower waits with a long poll until the run's history has
grown, and then queries the workflow for new items. So followers leave no trace in the history either, however many there
are.

    _buffer     the workflow's side: a buffer that a query reads
    _following  the client's side, with a blocking and an asynchronous interface
    _token      `Progress`, the link between both sides
"""

from __future__ import annotations

from hourglass.progress._following import AsyncProgressStream, Origin, ProgressStream
from hourglass.progress._token import Progress

__all__ = ["AsyncProgressStream", "Origin", "Progress", "ProgressStream"]
