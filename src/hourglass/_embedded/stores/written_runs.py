"""The open runs that were written last, as the writer remembers them: under which keys, and what lists show of them.

Must not know: SQL, transactions. What is not remembered can be found in the file again. Invariants: a key is given to
one run; a run that has closed is not remembered.
"""

from __future__ import annotations

from typing import NamedTuple

from hourglass._embedded.rules.run import Run
from hourglass._history.encoding import plain
from hourglass.converter import Payload


class Written(NamedTuple):
    """An open run; `memo` and `search_attributes` are as lists show them, None where that is not known."""

    key: int
    names: tuple[str, str]
    """Its own id and its workflow's, as they are stored."""
    memo: dict[str, Payload] | None
    search_attributes: dict[str, Payload] | None

    def shows(self, run: Run) -> bool:
        """Whether lists show the run, which is open, as it is."""
        return (self.memo is run.memo or self.memo == run.memo) and (
            self.search_attributes is run.search_attributes or self.search_attributes == run.search_attributes
        )


class WrittenRuns:
    """Remembers runs by their ids."""

    def __init__(self, next_key: int) -> None:
        self._runs: dict[str, Written] = {}
        self._next_key = next_key

    def get(self, run_id: str) -> Written | None:
        """A run, if it is remembered."""
        return self._runs.get(run_id)

    def begin(self, run: Run) -> Written:
        """A run that is not in the file yet gets a key."""
        self._next_key += 1
        return self.learn(run, self._next_key - 1)

    def learn(self, run: Run, key: int) -> Written:
        """A run is in the file under this key; what lists show of it is not known."""
        names = (plain(run.run_id), plain(run.started.workflow_id))
        written = self._runs[run.run_id] = Written(key, names, None, None)
        return written

    def show(self, run: Run, written: Written) -> None:
        """Lists show an open run as it is."""
        self._runs[run.run_id] = written._replace(memo=run.memo, search_attributes=run.search_attributes)

    def forget(self, run_id: str) -> None:
        """A run has closed, or is gone."""
        self._runs.pop(run_id, None)

    def keep_few(self, most: int) -> None:
        """Forget the oldest."""
        while len(self._runs) > most:
            del self._runs[next(iter(self._runs))]
